//! Fuzz target for GSO; see [`segue_fuzz::gso`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::gso(data));
