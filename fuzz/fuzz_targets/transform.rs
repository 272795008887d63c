//! Fuzz target for the transformations of capture files; see [`segue_fuzz::transform`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| segue_fuzz::transform(data));
