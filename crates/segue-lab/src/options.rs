//! Options of the demonstration, in types into which a command line is parsed.

use std::path::PathBuf;

use crate::address::Family;
use crate::keywords::keywords;
use crate::{LabError, LinkForm};

/// The demonstration's options. [`Options::default`] is what `segue lab` does without any.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program `segue`, for the cases that need it; a path, absolute or relative to the current directory.
    pub segue: PathBuf,
    /// Form of the link between the hosts.
    pub link: LinkForm,
    /// Mode of the tunnel, as in iproute2.
    pub mode: Mode,
    /// UDP encapsulation of the tunnel.
    pub encap: Encap,
    /// Address families to measure inside the tunnel, in this order. Mode ipip carries only IPv4, sit only IPv6.
    pub families: Vec<Family>,
    /// Family of the tunnel's outer addresses.
    pub outer: Family,
    /// Transport protocol of the load.
    pub proto: Proto,
    /// Length of one measurement in seconds, 1..=3600.
    pub seconds: u32,
    /// Number of parallel streams, 1..=128 (iperf3's limit).
    pub parallel: u32,
    /// Number of measurements of each case and family, 1..=1000.
    pub runs: u32,
    /// Case names in the order of the table, see [`crate::Case::NAMES`].
    pub cases: Vec<String>,
    /// Note on the SIMD path that segue uses, for the table's machine part.
    pub simd: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segue: PathBuf::from("segue"),
            link: LinkForm::Nic,
            mode: Mode::Gre,
            encap: Encap::Gue,
            families: vec![Family::V4, Family::V6],
            outer: Family::V4,
            proto: Proto::Tcp,
            seconds: 2,
            parallel: 1,
            runs: 3,
            cases: ["fastpath-gre", "segue", "segue-plain", "vxlan", "link"].map(String::from).to_vec(),
            simd: None,
        }
    }
}

impl Options {
    /// Returns the chosen families that the mode can carry; an error when none remains or a number is out of range.
    pub fn checked_families(&self) -> Result<Vec<Family>, LabError> {
        let limits = [("seconds", self.seconds, 3600), ("parallel", self.parallel, 128), ("runs", self.runs, 1000)];
        if let Some((name, value, most)) = limits.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            return Err(LabError::Usage(format!("--{name} {value} is not within 1..={most}")));
        }
        let families: Vec<Family> = self.families.iter().copied().filter(|family| self.mode.carries(*family)).collect();
        if families.is_empty() {
            return Err(LabError::Usage(format!(
                "mode {} carries only IPv{}",
                self.mode,
                if self.mode == Mode::Ipip { 4 } else { 6 }
            )));
        }
        Ok(families)
    }
}

keywords! {
    /// iproute2's tunnel modes.
    Mode {
        /// Mode `gre`: IPv4 and IPv6 inside.
        Gre = "gre",
        /// Mode `ipip`: IPv4 inside.
        Ipip = "ipip",
        /// Mode `sit`: IPv6 inside.
        Sit = "sit",
    }
}

keywords! {
    /// UDP encapsulations.
    Encap {
        /// Generic UDP Encapsulation in Linux's layout.
        Gue = "gue",
        /// Foo over UDP (FOU).
        Fou = "fou",
    }
}

keywords! {
    /// The transport protocol of the load.
    Proto {
        /// One TCP stream at full speed.
        Tcp = "tcp",
        /// UDP datagrams of 1400 bytes at full speed.
        Udp = "udp",
    }
}

impl Mode {
    /// Returns whether this mode can carry `family`.
    pub const fn carries(self, family: Family) -> bool {
        match self {
            Mode::Gre => true,
            Mode::Ipip => matches!(family, Family::V4),
            Mode::Sit => matches!(family, Family::V6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_keeps_only_the_families_it_carries() {
        let ipip = Options { mode: Mode::Ipip, ..Options::default() };
        assert_eq!(ipip.checked_families().unwrap(), [Family::V4]);
        let none = Options { mode: Mode::Sit, families: vec![Family::V4], ..Options::default() };
        assert!(matches!(none.checked_families(), Err(LabError::Usage(text)) if text.contains("only IPv6")));
    }

    #[test]
    fn numbers_out_of_range_are_usage_errors() {
        for options in [
            Options { seconds: 0, ..Options::default() },
            Options { parallel: 129, ..Options::default() },
            Options { runs: 0, ..Options::default() },
        ] {
            assert!(matches!(options.checked_families(), Err(LabError::Usage(_))));
        }
    }

    #[test]
    fn every_word_parses_back_and_a_wrong_one_names_the_right_ones() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse::<Mode>().unwrap(), *mode);
        }
        assert_eq!("x".parse::<Proto>().unwrap_err().to_string(), "`x` is not one of tcp, udp");
    }
}
