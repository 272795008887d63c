//! Fuzz target for decapsulation; see [`segue_fuzz::decap`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::decap(data));
