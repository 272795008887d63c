//! Fuzz target for tunnels with a peer table; see [`segue_fuzz::overlay`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::overlay(data));
