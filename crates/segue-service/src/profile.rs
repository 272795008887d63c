//! The value of `--profile`: the rules that decide which packets are joined.

use segue::gro::{Generation, Profile};
use serde::Serializer;

/// Error text with the values of `--profile`.
const EXPECTED: &str = "expected strict, linux, linux:VERSION (as linux:6.12) or lro";

/// Parses `strict`, `linux`, `lro`, or `linux:VERSION` for the rules of that kernel.
pub fn parse(text: &str) -> Result<Profile, String> {
    match text.split_once(':') {
        None if text == "strict" => Ok(Profile::Strict),
        None if text == "linux" => Ok(Profile::linux()),
        None if text == "lro" => Ok(Profile::Lro),
        Some(("linux", version)) => generation(version).map(Profile::Linux).ok_or_else(|| EXPECTED.to_owned()),
        _ => Err(EXPECTED.to_owned()),
    }
}

/// Returns the generation of a kernel version, such as `6.12`.
fn generation(version: &str) -> Option<Generation> {
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    Some(match (number(major)?, number(minor)?) {
        (..=5, _) | (6, ..=17) => Generation::V6_12,
        (6, _) => Generation::V6_18,
        _ => Generation::V7,
    })
}

/// Returns the word for a profile. The rules of a Linux generation are named after the first long-term kernel that has
/// them.
pub fn name(profile: Profile) -> &'static str {
    match profile {
        Profile::Strict => "strict",
        Profile::Linux(Generation::V6_12) => "linux:6.12",
        Profile::Linux(Generation::V6_18) => "linux:6.18",
        // The newest generation.
        Profile::Linux(_) => "linux:7.0",
        Profile::Lro => "lro",
    }
}

/// Serializes a profile as its word.
pub fn serialize<S: Serializer>(profile: &Profile, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name(*profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_has_a_word_that_reads_back() {
        let newest = Profile::Linux(Generation::V7);
        for profile in [Profile::Strict, Profile::Linux(Generation::V6_12), Profile::linux(), newest, Profile::Lro] {
            assert_eq!(parse(name(profile)), Ok(profile));
        }
        assert_eq!(parse("linux"), Ok(Profile::linux()));
    }

    #[test]
    fn a_kernel_belongs_to_the_generation_of_its_version() {
        for (version, generation) in [
            ("5.10", Generation::V6_12),
            ("6.1", Generation::V6_12),
            ("6.17", Generation::V6_12),
            ("6.18", Generation::V6_18),
            ("6.99", Generation::V6_18),
            ("7", Generation::V7),
            ("7.2", Generation::V7),
        ] {
            assert_eq!(parse(&format!("linux:{version}")), Ok(Profile::Linux(generation)), "{version}");
        }
        for wrong in
            ["", "Strict", "linux:", "linux:x", "linux:6.", "linux:6.+1", "lro:6.1", "linux:6.1.2", "linux:99999"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
