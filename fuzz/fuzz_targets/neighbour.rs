//! Fuzz target for the ARP, neighbour discovery and ICMP parsers; see [`segue_fuzz::neighbour`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::neighbour(data));
