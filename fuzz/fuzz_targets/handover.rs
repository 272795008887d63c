//! Fuzz target for records of a handover; see [`segue_fuzz::handover`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::handover(data));
