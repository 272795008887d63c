//! Fuzz target for checksums; see [`segue_fuzz::checksum`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::checksum(data));
