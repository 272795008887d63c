//! Fuzz target for the virtio-net header codec; see [`segue_fuzz::vnet`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::vnet(data));
