//! Fuzz target for whole tunnels; see [`segue_fuzz::tunnelled`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::tunnelled(data));
