//! Fuzz target for registers of a LAN78xx adapter; see [`segue_fuzz::registers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::registers(data));
