//! Fuzz target for the packet parser; see [`segue_fuzz::parse`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::parse(data));
