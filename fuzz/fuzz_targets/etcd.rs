//! Fuzz target for answers of etcd; see [`segue_fuzz::etcd`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::etcd(data));
