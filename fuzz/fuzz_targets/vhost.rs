//! Fuzz target for a guest and a front end; see [`segue_fuzz::vhost`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::vhost(data));
