//! Fuzz target for the documents of peer tables; see [`segue_fuzz::peers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::peers(data));
