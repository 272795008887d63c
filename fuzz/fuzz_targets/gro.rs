//! Fuzz target for GRO; see [`segue_fuzz::gro`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::gro(data));
