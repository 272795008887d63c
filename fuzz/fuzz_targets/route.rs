//! Fuzz target for a whole router; see [`segue_fuzz::route`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::route(data));
