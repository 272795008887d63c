//! Fuzz target for netlink answers; see [`segue_fuzz::netlink`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::netlink(data));
