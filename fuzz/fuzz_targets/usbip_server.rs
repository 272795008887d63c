//! Fuzz target for the server's side of USB/IP; see [`segue_fuzz::usbip_server`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::usbip_server(data));
