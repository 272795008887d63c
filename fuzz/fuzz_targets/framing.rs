//! Fuzz target for transfers of a LAN78xx adapter; see [`segue_fuzz::framing`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::framing(data));
