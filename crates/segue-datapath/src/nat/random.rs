//! Random numbers for the choice of ports and identifications.

/// Returns the next pseudo-random number (SplitMix64); it is unpredictable only while the seed is secret.
pub(super) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::random;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // The numbers of the reference implementation for the seed 1234567.
        let mut state = 1_234_567;
        let numbers = [(); 3].map(|()| random(&mut state));
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
