//! Fuzz target for packets with a virtio-net header; see [`segue_fuzz::vnet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::vnet(data));
