//! Fuzz target for the configuration of `segue run`; see [`segue_fuzz::configuration`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::configuration(data));
