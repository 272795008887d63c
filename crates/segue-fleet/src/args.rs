//! The command line of `segue-fleet`, which `segue fleet` passes on.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use segue_control::peers::Mac;

/// Peers of a tunnel from a fleet's registry.
#[derive(Debug, Parser)]
#[command(name = "segue fleet", version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// The subcommand to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `segue fleet`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep a tunnel's peers equal to flannel's registry in etcd, as one more node of it.
    Etcd(Etcd),
    /// Apply a change that flanneld's backend `extension` reports; it calls this once for each.
    Hook(Hook),
}

/// The options of `segue fleet hook`.
#[derive(Debug, Args)]
pub struct Hook {
    /// The tunnel whose peers are set.
    #[arg(long, value_name = "DEV", default_value = "segue0")]
    pub dev: String,
    /// The hook that flanneld calls.
    #[command(subcommand)]
    pub call: Call,
}

/// A hook call of flanneld.
#[derive(Debug, Subcommand)]
pub enum Call {
    /// PreStartupCommand: prints what the other hosts get as this one's BackendData.
    Pre {
        /// The encapsulation that this host takes: gue, fou or vxlan.
        #[arg(long, value_enum, default_value = "gue")]
        mode: Mode,
        /// The UDP port; 6080, 8285 or 8472 without it.
        #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        /// Take remote checksums; with gue.
        #[arg(long)]
        remcsum: bool,
        /// The network identifier; with vxlan.
        #[arg(long, value_name = "VNI", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..1 << 24))]
        vni: u32,
        /// The MAC address of the tunnel's VTEP, where the tunnel does not run yet; with vxlan.
        #[arg(long, value_name = "MAC")]
        lladdr: Option<Mac>,
    },
    /// PostStartupCommand: post $NETWORK $SUBNET $PUBLIC_IP.
    Post {
        /// The network of the fleet.
        network: String,
        /// The subnet of this host.
        subnet: String,
        /// The address of this host.
        public_ip: String,
        /// After how many seconds without an `add` hosts that flanneld has not reported again are removed.
        #[arg(long, value_name = "SECS", default_value_t = 20)]
        grace: u32,
    },
    /// SubnetAddCommand: add $SUBNET $PUBLIC_IP, with the host's BackendData on stdin.
    Add {
        /// The subnet of the host.
        subnet: String,
        /// The address of the host.
        public_ip: String,
    },
    /// flanneld's SubnetRemoveCommand: del $SUBNET $PUBLIC_IP.
    Del {
        /// The subnet of the host.
        subnet: String,
        /// The address of the host, which is not needed.
        public_ip: Option<String>,
    },
    /// Remove the peers that a round did not confirm; `post` starts this in the background.
    #[command(hide = true)]
    Sweep {
        /// Number of the sync round; peers that it did not confirm are removed.
        round: u64,
        /// Seconds without an `add` after which they are removed.
        grace: u32,
    },
}

/// An encapsulation of the fleet's tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Encapsulation in GUE.
    Gue,
    /// The bare packet in UDP.
    Fou,
    /// Encapsulation in VXLAN.
    Vxlan,
}

/// The options of `segue fleet etcd`.
#[derive(Debug, Args)]
pub struct Etcd {
    /// The tunnel whose peers are set, started as: segue tunnel DEV peers none ...
    #[arg(long, value_name = "DEV", default_value = "segue0")]
    pub dev: String,
    /// The members of etcd, such as https://198.18.0.1:2379; with commas between them.
    #[arg(long, value_name = "URL", required = true, value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// Prefix of the registry's keys.
    #[arg(long, default_value = "/coreos.com/network")]
    pub prefix: String,
    /// The certificates of the authorities that etcd's certificate may be from (PEM); those of the system without it.
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// This host's certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of this host's certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The user of etcd; the password is in --password-file.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub user: Option<String>,
    /// A file whose first line is the password of --user.
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// Take http:// for members that are not on this host. A device on the path can then change every peer.
    #[arg(long)]
    pub allow_plain_http: bool,
    /// The interface whose first IPv4 address the other hosts reach this one at.
    #[arg(long, value_name = "DEV", required_unless_present = "public_ip", conflicts_with = "public_ip")]
    pub iface: Option<String>,
    /// The address that the other hosts reach this one at.
    #[arg(long, value_name = "ADDRESS")]
    pub public_ip: Option<Ipv4Addr>,
    /// The formats that this host takes from other segue nodes besides the network's VXLAN: gue, or gue,remcsum.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    pub offer: Vec<Offered>,
    /// The UDP port of --offer gue; the tunnel listens there.
    #[arg(long, value_name = "PORT", default_value_t = 6080, value_parser = clap::value_parser!(u16).range(1..))]
    pub gue_port: u16,
    /// The file to write for other programs; DEV.subnet.env beside the tunnel's control socket without it.
    #[arg(long, value_name = "FILE")]
    pub subnet_file: Option<PathBuf>,
    /// How long the lease outlives this agent: from 5s to 9000h.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = ttl)]
    pub ttl: Duration,
    /// The largest number of peers.
    #[arg(long, value_name = "N", default_value_t = crate::roster::PEERS)]
    pub max_peers: usize,
    /// Run even if the kernel has no Landlock or no seccomp filters.
    #[arg(long)]
    pub weak_sandbox: bool,
}

/// A keyword of `--offer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Offered {
    /// This host accepts GUE.
    Gue,
    /// This host accepts GUE with remote checksum offload.
    Remcsum,
}

/// Parses a time with a unit: `10s`, `5m`, `24h`.
fn ttl(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 10s, 5m or 24h".to_owned();
    let unit = text.bytes().last().ok_or_else(wrong)?;
    let seconds = match unit {
        b's' => 1,
        b'm' => 60,
        b'h' => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    match number.checked_mul(seconds) {
        Some(time @ 5..=32_400_000) => Ok(Duration::from_secs(time)),
        _ => Err("it lies from 5s to 9000h".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    fn options<'a>(command: &'a clap::Command, found: &mut Vec<&'a clap::Arg>) {
        found.extend(command.get_arguments());
        command.get_subcommands().filter(|call| !call.is_hide_set()).for_each(|call| options(call, found));
    }

    #[test]
    fn the_document_has_each_option_with_its_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fleet.md");
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<Vec<&str>> =
            text.lines().filter(|line| line.starts_with("| `")).map(|row| row.split('|').collect()).collect();
        let command = <Cli as clap::CommandFactory>::command();
        let mut found = Vec::new();
        options(&command, &mut found);
        let long: Vec<_> = found.iter().filter_map(|option| Some((option.get_long()?, *option))).collect();
        assert!(long.len() > 18, "{}", long.len());
        for (name, option) in long.into_iter().filter(|(name, _)| *name != "help" && *name != "version") {
            let has_name = |cell: &str| {
                let word = format!("--{name}");
                cell.split(['`', ' ']).any(|part| part == word)
            };
            let defaults = option.get_default_values();
            let is_row = |row: &Vec<&str>| {
                has_name(row[1])
                    && defaults.iter().all(|value| row[2].trim() == format!("`{}`", value.to_string_lossy()))
            };
            assert!(rows.iter().any(is_row), "no row of {path} has --{name} with {defaults:?}");
        }
    }

    #[test]
    fn times_have_a_unit_and_limits() {
        assert_eq!(ttl("24h"), Ok(Duration::from_secs(86400)));
        assert_eq!(ttl("10s"), Ok(Duration::from_secs(10)));
        for wrong in ["", "10", "4s", "9001h", "-5s", "1d", "99999999999999999999h"] {
            assert!(ttl(wrong).is_err(), "{wrong}");
        }
    }
}
