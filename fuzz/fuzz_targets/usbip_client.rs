//! Fuzz target for the client's side of USB/IP; see [`segue_fuzz::usbip_client`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::usbip_client(data));
