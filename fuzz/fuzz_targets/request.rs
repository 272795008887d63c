//! Fuzz target for the head of a request for metrics; see [`segue_fuzz::request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::request(data));
