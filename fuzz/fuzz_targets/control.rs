//! Fuzz target for the control protocol; see [`segue_fuzz::control`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::control(data));
