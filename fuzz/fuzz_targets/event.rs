//! Fuzz target for event lines of instances; see [`segue_fuzz::event`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::event(data));
