//! Fuzz target for compressed captures; see [`segue_fuzz::compressed`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::compressed(data));
