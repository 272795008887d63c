//! Fuzz target for calls of the container runtime; see [`segue_fuzz::cni`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::cni(data));
