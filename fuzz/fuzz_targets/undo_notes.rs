//! Fuzz target for the notes that undo a merge; see [`segue_fuzz::undo_notes`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::undo_notes(data));
