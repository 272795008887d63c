//! Fuzz target for ICMP errors of a router; see [`segue_fuzz::icmp_error`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::icmp_error(data));
