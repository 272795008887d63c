//! The options of `segue pcap`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use segue::gro::Profile;
use segue::wire::{Kind, Tunnels, geneve, gue, protocol, vxlan};
use segue_capture::merge::MergeRules;

/// The arguments of `segue pcap`.
#[derive(Args, Debug)]
pub(crate) struct Pcap {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
}

/// The subcommand to run, with its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// join packets of a flow into trains, as GRO does
    Merge(Merge),
    /// segment trains and finish checksums, as on the wire
    Split(Split),
    /// remove one layer of tunnel
    Decap(Decap),
    /// check every checksum
    Verify(Verify),
    /// flows, sizes, trains; what would merge, and why not the rest
    Stat(Stat),
}

impl Action {
    /// Returns the name of the subcommand.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Action::Merge(_) => "merge",
            Action::Split(_) => "split",
            Action::Decap(_) => "decap",
            Action::Verify(_) => "verify",
            Action::Stat(_) => "stat",
        }
    }
}

/// Options for the input file.
#[derive(Args, Clone, Debug)]
pub(crate) struct Input {
    /// The capture file, - for stdin
    #[arg(value_name = "IN")]
    pub(crate) input: Option<PathBuf>,
    /// Accept a cut or damaged file (exit 0)
    #[arg(long)]
    pub(crate) allow_cut: bool,
    /// Largest expansion ratio of a gzip or zstd file; 0: unlimited
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = segue_capture::file::compression::MAX_RATIO)]
    pub(crate) max_ratio: u64,
    /// How progress is shown on stderr
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "never"]))]
    pub(crate) progress: String,
}

/// Options for the output file.
#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// The new file, - for stdout
    #[arg(value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Replace IN when done
    #[arg(short = 'i', long)]
    pub(crate) in_place: bool,
    /// Replace OUT where it exists
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Format of OUT; default: by its name, else that of IN
    #[arg(short = 'F', long, value_name = "FORM", value_parser = PossibleValuesParser::new(["pcap", "pcapng"]))]
    pub(crate) format: Option<String>,
}

/// Options for the UDP ports that carry tunnels.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ports {
    /// UDP port of GUE; default: 6080; 0 for none
    #[arg(long, value_name = "PORT")]
    pub(crate) gue: Vec<u16>,
    /// UDP port of VXLAN; default: 4789, 8472; 0 for none
    #[arg(long, value_name = "PORT")]
    pub(crate) vxlan: Vec<u16>,
    /// UDP port of Geneve; default: 6081; 0 for none
    #[arg(long, value_name = "PORT")]
    pub(crate) geneve: Vec<u16>,
    /// UDP port of FOU with ipip, sit, gre, eth or a number
    #[arg(long, value_name = "PORT:PROTO", value_parser = fou)]
    pub(crate) fou: Vec<(u16, u8)>,
}

impl Ports {
    /// Returns the ports as the packet parser takes them, with the default ports of each format that was not given.
    pub(crate) fn tunnels(&self) -> Tunnels {
        // Ports that were given come first, because they take precedence over default ports.
        let fou = self.fou.iter().fold(Tunnels::NONE, |tunnels, (port, protocol)| tunnels.with_fou(*port, *protocol));
        let formats = [
            (Kind::Gue, &self.gue, &[gue::PORT][..]),
            // IANA assigned 4789 to VXLAN; the default of Linux is 8472.
            (Kind::Vxlan, &self.vxlan, &[vxlan::PORT, 8472]),
            (Kind::Geneve, &self.geneve, &[geneve::PORT]),
        ];
        let add = |tunnels: Tunnels, kind, ports: &[u16]| ports.iter().fold(tunnels, |all, port| all.with(*port, kind));
        let asked = formats.iter().fold(fou, |tunnels, (kind, ports, _)| add(tunnels, *kind, ports));
        formats
            .iter()
            .filter(|(_, ports, _)| ports.is_empty())
            .fold(asked, |all, (kind, _, usual)| add(all, *kind, usual))
    }
}

fn fou(text: &str) -> Result<(u16, u8), String> {
    let wrong = || "expected PORT:PROTO, as 5555:ipip".to_owned();
    let (port, name) = text.split_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let number = match name {
        "ipip" => protocol::IPV4,
        "sit" => protocol::IPV6,
        "gre" => protocol::GRE,
        "eth" => protocol::ETHERNET,
        number => number.parse().map_err(|_| wrong())?,
    };
    Ok((port, number))
}

/// Options for the limits and rules of merging.
#[derive(Args, Clone, Debug)]
pub(crate) struct Rules {
    /// strict: can be undone; linux or linux:VERSION: as that kernel, and padded frames; lro: pure ACKs too
    #[arg(long, value_name = "NAME", default_value = "strict", value_parser = segue_service::profile::parse)]
    pub(crate) profile: Profile,
    /// Largest train, from its IP header
    #[arg(long, value_name = "N", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(68..=65_535))]
    pub(crate) max_bytes: u32,
    /// Most packets of a train
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=65_535))]
    pub(crate) max_packets: u32,
    /// Maximum wait of a packet, microseconds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = hold)]
    pub(crate) hold_us: u32,
}

impl Rules {
    /// Returns the rules as the library takes them.
    pub(crate) fn merge_rules(&self) -> MergeRules {
        MergeRules {
            profile: self.profile,
            max_bytes: self.max_bytes as usize,
            max_packets: self.max_packets as usize,
            hold_us: self.hold_us,
        }
    }
}

fn hold(text: &str) -> Result<u32, String> {
    let range = 1..=60_000_000;
    match text.parse() {
        Ok(0) => Err(format!(
            "expected {} to {}: 0 merges within one read of a port, and a capture does not record reads",
            range.start(),
            range.end()
        )),
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("expected {} to {}", range.start(), range.end())),
    }
}

/// The arguments of `segue pcap merge`.
#[derive(Args, Debug)]
pub(crate) struct Merge {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) rules: Rules,
    /// Explain in each packet's comment why it merged or not
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) ports: Ports,
}

/// The arguments of `segue pcap split`.
#[derive(Args, Debug)]
pub(crate) struct Split {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Restore the packets that segue pcap merge joined
    #[arg(long, conflicts_with_all = ["mtu", "mss"])]
    pub(crate) undo: bool,
    /// Largest IP packet; default: the flow's SYN, or 1500
    #[arg(long, value_name = "N", conflicts_with = "mss", value_parser = clap::value_parser!(u32).range(68..=65_535))]
    pub(crate) mtu: Option<u32>,
    /// Payload bytes of a segment, of UDP trains as well
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_495))]
    pub(crate) mss: Option<u32>,
    /// Which checksums to write: unfinished ones, or wrong ones too
    #[arg(long, value_name = "WHICH", default_value = "partial", value_parser = PossibleValuesParser::new(["partial", "all"]))]
    pub(crate) fix_checksums: String,
    #[command(flatten)]
    pub(crate) ports: Ports,
}

/// The arguments of `segue pcap decap`.
#[derive(Args, Debug)]
pub(crate) struct Decap {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Leave out packets without a tunnel
    #[arg(long)]
    pub(crate) only_tunnelled: bool,
    #[command(flatten)]
    pub(crate) ports: Ports,
}

/// The arguments of `segue pcap verify`.
#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) input: Input,
    /// Report IP packets longer than N bytes too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(68..=65_535))]
    pub(crate) mtu: Option<u32>,
    #[command(flatten)]
    pub(crate) ports: Ports,
}

/// The arguments of `segue pcap stat`.
#[derive(Args, Debug)]
pub(crate) struct Stat {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) rules: Rules,
    #[command(flatten)]
    pub(crate) ports: Ports,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_ports_have_names_and_numbers() {
        assert_eq!(fou("5555:ipip"), Ok((5555, 4)));
        assert_eq!(fou("5556:41"), Ok((5556, 41)));
        for wrong in ["", "5555", "5555:", ":gre", "70000:gre", "1:300", "x:4"] {
            assert!(fou(wrong).is_err(), "{wrong}");
        }
        let none = Ports { gue: vec![0], vxlan: vec![0], geneve: vec![0], fou: vec![] };
        assert_eq!(format!("{:?}", none.tunnels()), format!("{:?}", Tunnels::NONE));
    }
}
