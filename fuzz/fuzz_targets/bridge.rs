//! Fuzz target for bridges; see [`segue_fuzz::bridge_frames`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::bridge_frames(data));
