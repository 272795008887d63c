//! Fuzz target for slots of a receive ring; see [`segue_fuzz::ring`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::ring(data));
