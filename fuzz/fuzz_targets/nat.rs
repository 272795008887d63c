//! Fuzz target for address translation; see [`segue_fuzz::nat`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::nat(data));
