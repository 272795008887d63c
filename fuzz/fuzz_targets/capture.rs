//! Fuzz target for the reader of capture files; see [`segue_fuzz::capture`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::capture(data));
