//! Fuzz target for hosts that flanneld reports; see [`segue_fuzz::hook`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::hook(data));
