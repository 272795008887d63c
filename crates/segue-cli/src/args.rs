//! The commands of segue and their dashed options. The keywords of `segue tunnel` are in [`segue_grammar`].

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use segue::gro::Profile;
use segue_service::gateway::config::{PortForward, Workers};

/// The parsed command line.
#[derive(Debug, Parser)]
#[command(
    name = "segue",
    about = "packet offloads in user space: tunnels and gateways that move trains of packets",
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Print the version; with -v all that a bug report needs
    #[arg(short = 'V', long)]
    pub(crate) version: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The options that every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// JSON on stdout
    #[arg(short = 'j', long, global = true)]
    pub(crate) json: bool,
    /// Indent the JSON
    #[arg(short = 'p', long, global = true)]
    pub(crate) pretty: bool,
    /// Only data and errors
    #[arg(short = 'q', long, global = true)]
    pub(crate) quiet: bool,
    /// Show each change to the system as a shell command
    #[arg(short = 'v', long, global = true)]
    pub(crate) verbose: bool,
    /// Colour; auto: on a terminal, subject to NO_COLOR and CLICOLOR_FORCE
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
    /// Messages of long-running commands; logfmt is one line for each event, with its id; auto: for the journal
    #[arg(long, global = true, value_name = "FORM", default_value = "auto", hide_short_help = true)]
    pub(crate) log_format: LogFormat,
    /// A short help
    #[arg(short = 'h', global = true)]
    pub(crate) short_help: bool,
    /// The complete help
    #[arg(long = "help", global = true)]
    pub(crate) long_help: bool,
}

/// The values of `--color`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// The values of `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Auto,
    Text,
    Logfmt,
}

/// The command to run, with its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// make a tunnel and keep it until Ctrl-C
    Tunnel(Tunnel),
    /// a bump in the wire that joins packets into trains
    Gateway(Gateway),
    /// counters of running instances, with the reason for each
    Stat(Stat),
    /// counters of running instances as a live screen
    Top(Top),
    /// counters of running instances for Prometheus
    Metrics(Metrics),
    /// the NAT mappings of running gateways
    Nat(Nat),
    /// the peer table of a running tunnel
    Peer(Peer),
    /// end a running instance
    Stop(Stop),
    /// read and change settings while packets move
    Set(Set),
    /// tunnels and gateways of a file, as one service
    Run(Run),
    /// peers of a tunnel from a fleet's registry: etcd, flannel
    Fleet(Fleet),
    /// make a running service read its file again, and wait
    Reload(Reload),
    /// what this host can do, and what would fix the rest
    Doctor(Doctor),
    /// two hosts with a tunnel between them: the demonstration
    Lab(Lab),
    /// tables of measurements beside published figures
    Bench(Bench),
    /// capture files: merge, split, decap, verify, stat
    Pcap(crate::pcap::args::Pcap),
    /// a USB network adapter without a kernel driver, or a model
    Lan78xx(crate::lan78xx::args::Lan78xx),
    /// the JSON Schema of the output of -j
    Schema(Schema),
    /// completion for bash, zsh and fish
    Completions(Completions),
    /// the complete help of a command
    Help(Help),
    /// the words that may come next, for the scripts of `segue completions`
    #[command(hide = true)]
    Complete(Complete),
}

/// The arguments of `segue tunnel`.
#[derive(Args, Debug)]
pub(crate) struct Tunnel {
    /// Print the plan and change nothing
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) check: bool,
    /// Write the outer packets to a capture file, pipe or - (stdout), as they pass; pcapng where its name ends so
    #[arg(long, value_name = "FILE.pcap")]
    pub(crate) trace: Option<PathBuf>,
    /// Size at which the trace ends, in millions of bytes; the tunnel continues
    #[arg(long, value_name = "MB", requires = "trace", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) trace_size: Option<u32>,
    /// Overwrite the capture file
    #[arg(short = 'f', long, requires = "trace")]
    pub(crate) force: bool,
    /// Start even if the kernel has no Landlock or no seccomp filters
    #[arg(long, hide_short_help = true)]
    pub(crate) weak_sandbox: bool,
    /// Initial value of a knob of segue set; may be given several times
    #[arg(long, value_name = "KNOB=VALUE", value_parser = segue_service::daemon::knobs::assignment)]
    pub(crate) set: Vec<(String, String)>,
    /// Process id of the supervisor, with which this process ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) supervised: Option<i32>,
    /// Take over the ports of another process, which that process sends on standard input
    #[arg(long, hide = true, requires = "supervised")]
    pub(crate) successor: bool,
    /// Keywords and values
    #[arg(value_name = "WORD", hide = true)]
    pub(crate) words: Vec<String>,
}

impl Tunnel {
    /// Returns the capture file for the outer packets and the size at which it ends.
    pub(crate) fn capture(&self) -> (Option<PathBuf>, Option<u32>) {
        (self.trace.clone(), self.trace_size)
    }
}

/// The arguments of `segue gateway`.
#[derive(Args, Debug)]
pub(crate) struct Gateway {
    /// An interface, a new tap:NAME[@NETNS], or vhost:PATH
    #[arg(value_name = "IN", required_unless_present_any = ["short_help", "long_help"])]
    pub(crate) from: Option<String>,
    /// The other side, likewise
    #[arg(value_name = "OUT", required_unless_present_any = ["short_help", "long_help"])]
    pub(crate) to: Option<String>,
    /// More ports, likewise: the gateway is a bridge
    #[arg(hide_short_help = true, value_name = "PORT")]
    pub(crate) more: Vec<String>,
    /// Print the plan and change nothing
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) check: bool,
    /// Start even if the kernel has no Landlock or no seccomp filters
    #[arg(long, hide_short_help = true)]
    pub(crate) weak_sandbox: bool,
    /// Do not merge packets into trains
    #[arg(long)]
    pub(crate) no_lro: bool,
    /// Merge rules: strict, linux, linux:VERSION or lro
    #[arg(long, value_name = "NAME", value_parser = segue_service::profile::parse)]
    pub(crate) profile: Option<Profile>,
    /// Merge pure ACKs into the newest one (profile lro)
    #[arg(long)]
    pub(crate) ack_aggregation: bool,
    /// Maximum number of ACKs that are merged into one
    #[arg(long, hide_short_help = true, value_name = "N", allow_negative_numbers = true, default_value_t = 32, requires = "ack_aggregation", value_parser = clap::value_parser!(u32).range(2..=65_535))]
    pub(crate) max_acks: u32,
    /// Size of receive pages, or one buffer for each frame
    #[arg(long, value_name = "SIZE", default_value = "32k", value_parser = PossibleValuesParser::new(["4k", "8k", "16k", "32k", "frame"]))]
    pub(crate) page: String,
    /// Maximum wait for the next packet, microseconds
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub(crate) hold_us: u64,
    /// Largest train, bytes
    #[arg(long, hide_short_help = true, value_name = "N", allow_negative_numbers = true, default_value_t = segue_service::gateway::config::MAX_BYTES, value_parser = clap::value_parser!(u32).range(576..=65_535))]
    pub(crate) max_bytes: u32,
    /// Most packets in a train; of datagrams at most 64
    #[arg(long, hide_short_help = true, value_name = "N", allow_negative_numbers = true, default_value_t = segue_service::gateway::config::MAX_PACKETS, value_parser = clap::value_parser!(u32).range(2..=65_535))]
    pub(crate) max_packets: u32,
    /// MTU of a new TAP; default: the other side's
    #[arg(long, hide_short_help = true, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(68..=65_521))]
    pub(crate) tap_mtu: Option<u32>,
    /// Fragment packets that exceed the smaller MTU
    #[arg(long, conflicts_with = "route")]
    pub(crate) fragment: bool,
    /// Forward at layer 3, by the kernel's routes
    #[arg(long)]
    pub(crate) route: bool,
    /// With --route: use routes from router advertisements
    #[arg(long, requires = "route")]
    pub(crate) accept_ra: bool,
    /// With --route: IPv4 source address used on OUT
    #[arg(long, value_name = "ADDRESS", requires = "route", value_parser = segue_service::gateway::config::parse_nat)]
    pub(crate) nat: Option<Ipv4Addr>,
    /// With --nat: tcp:PORT=ADDRESS:PORT or udp:, inwards
    #[arg(long, value_name = "RULE", requires = "nat", value_parser = segue_service::gateway::config::parse_forward)]
    pub(crate) forward: Vec<PortForward>,
    /// Threads that share the flows; not with --route
    #[arg(long, value_name = "N|auto", default_value = "1", value_parser = segue_service::gateway::config::parse_workers)]
    pub(crate) workers: Workers,
    /// The name for segue stat; IN-OUT when not given
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Initial value of a knob of segue set
    #[arg(long, value_name = "KNOB=VALUE", value_parser = segue_service::daemon::knobs::assignment)]
    pub(crate) set: Vec<(String, String)>,
    /// Process id of the supervisor, with which this process ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) supervised: Option<i32>,
}

/// The arguments of `segue stat`.
#[derive(Args, Debug)]
pub(crate) struct Stat {
    /// Name of the instance; default: all
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Why trains ended, why packets stayed alone, and hints
    #[arg(long)]
    pub(crate) why: bool,
    /// Repeat every SECS seconds; default: 1
    #[arg(long, value_name = "SECS", allow_negative_numbers = true, num_args = 0..=1, default_missing_value = "1", require_equals = false,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) watch: Option<u32>,
    /// Exit 1 and print a line for each problem; nothing when all is well
    #[arg(long)]
    pub(crate) health: bool,
    /// With --health: notices count too, such as a tunnel that is not answered
    #[arg(long, requires = "health")]
    pub(crate) strict: bool,
    /// Exact numbers without units
    #[arg(long)]
    pub(crate) raw: bool,
    /// Every column, however wide
    #[arg(short = 'd', long)]
    pub(crate) details: bool,
}

/// The arguments of `segue top`.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only lines that contain this text
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Option<String>,
    /// Seconds between two queries
    #[arg(long, value_name = "SECS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) interval: u32,
    /// Sparklines of ASCII
    #[arg(long)]
    pub(crate) ascii: bool,
}

/// The arguments of `segue metrics`.
#[derive(Args, Debug)]
pub(crate) struct Metrics {
    /// Serve /metrics at ADDRESS[:PORT] (port 9780), unix:/PATH or fd:NAME; may be given several times
    #[arg(long, value_name = "WHERE", value_parser = segue_metrics::listen::parse)]
    pub(crate) listen: Vec<segue_metrics::listen::Place>,
    /// Write the metrics to a file for node_exporter periodically
    #[arg(long, value_name = "FILE.prom")]
    pub(crate) textfile: Option<PathBuf>,
    /// Seconds between two writes of the file
    #[arg(long, value_name = "SECS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) every: u32,
    /// Write the file once, and end
    #[arg(long, requires = "textfile", conflicts_with = "listen")]
    pub(crate) once: bool,
    /// OpenMetrics on stdout instead of the format of Prometheus
    #[arg(long, conflicts_with_all = ["listen", "textfile"])]
    pub(crate) openmetrics: bool,
    /// List the metrics: names, types and labels
    #[arg(long)]
    pub(crate) list: bool,
    /// Serve even if the kernel has no Landlock or no seccomp filters
    #[arg(long, hide_short_help = true)]
    pub(crate) weak_sandbox: bool,
    /// Process id of the supervisor, with which this process ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) supervised: Option<i32>,
}

/// The arguments of `segue nat`.
#[derive(Args, Debug)]
pub(crate) struct Nat {
    /// Name of the instance; default: all
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// The arguments of `segue peer`.
#[derive(Args, Debug)]
pub(crate) struct Peer {
    /// The action on the table
    #[arg(value_name = "ACTION", required_unless_present_any = ["short_help", "long_help"], value_parser = PossibleValuesParser::new(["add", "replace", "del", "list", "sync"]))]
    pub(crate) action: Option<String>,
    /// Name of the tunnel
    #[arg(value_name = "NAME")]
    pub(crate) dev: Option<String>,
    /// A prefix and the words of a peer, prefixes, or a file
    #[arg(value_name = "WORD")]
    pub(crate) words: Vec<String>,
}

/// The arguments of `segue stop`.
#[derive(Args, Debug)]
pub(crate) struct Stop {
    /// Names of the instances
    #[arg(value_name = "NAME", required_unless_present_any = ["short_help", "long_help"])]
    pub(crate) names: Vec<String>,
}

/// The arguments of `segue run`.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The file, as with --config
    #[arg(value_name = "FILE", conflicts_with = "config")]
    pub(crate) file: Option<PathBuf>,
    /// The file: a [[tunnel]], [[gateway]] or [[lan78xx]] for each; keys are the words and options of the command
    #[arg(short = 'c', long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print what would run and change nothing
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) check: bool,
    /// Continue the service whose program this one replaces, which has left its state in this descriptor
    #[arg(long, value_name = "FD", hide = true)]
    pub(crate) resume: Option<i32>,
}

/// The arguments of `segue fleet`.
#[derive(Args, Debug)]
pub(crate) struct Fleet {
    /// The command of segue-fleet, with its options
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

/// The arguments of `segue reload`.
#[derive(Args, Debug)]
pub(crate) struct Reload {
    /// The service, by its name or its file; default: the only one
    #[arg(value_name = "SERVICE|FILE")]
    pub(crate) service: Option<String>,
    /// Continue with the program that has replaced the service's own; the file is not read; default: all services
    #[arg(long)]
    pub(crate) upgrade: bool,
    /// Longest wait for the outcome, seconds
    #[arg(long, value_name = "SECS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) timeout: u32,
}

/// The arguments of `segue set`.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Name of the instance
    #[arg(value_name = "INSTANCE")]
    pub(crate) instance: Option<String>,
    /// Without KNOB, list all; KNOB reads one; KNOB VALUE or KNOB=VALUE sets it; of several, all or none are set
    #[arg(value_name = "KNOB", allow_negative_numbers = true)]
    pub(crate) words: Vec<String>,
    /// Check whether the values can be set; change nothing
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) check: bool,
}

/// The arguments of `segue doctor`.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Links whose offloads are checked; default: all that are up
    #[arg(value_name = "LINK")]
    pub(crate) links: Vec<String>,
}

/// The arguments of `segue lab`.
#[derive(Args, Debug)]
pub(crate) struct Lab {
    /// The link: nic segments and aggregates like a plain network card, veth passes trains whole
    #[arg(long, value_name = "FORM", default_value = "nic", value_parser = PossibleValuesParser::new(["nic", "nic-csum", "veth"]))]
    pub(crate) link: String,
    /// Tunnel mode
    #[arg(long, value_name = "MODE", default_value = "gre", value_parser = PossibleValuesParser::new(["gre", "ipip", "sit"]))]
    pub(crate) mode: String,
    /// Encapsulation of the tunnel
    #[arg(long, value_name = "KIND", default_value = "gue", value_parser = PossibleValuesParser::new(["gue", "fou"]))]
    pub(crate) encap: String,
    /// Measure only this family inside; both when not given
    #[arg(long, value_name = "4|6", value_parser = PossibleValuesParser::new(["4", "6"]))]
    pub(crate) family: Option<String>,
    /// Address family of the outer packets
    #[arg(long, value_name = "4|6", default_value = "4", value_parser = PossibleValuesParser::new(["4", "6"]))]
    pub(crate) outer: String,
    /// Protocol of the load
    #[arg(long, value_name = "PROTO", default_value = "tcp", value_parser = PossibleValuesParser::new(["tcp", "udp"]))]
    pub(crate) proto: String,
    /// Seconds of one measurement
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    /// Streams at the same time
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) parallel: u32,
    /// Measurements of each row
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Leave the two hosts running and print how to enter them
    #[arg(long)]
    pub(crate) keep: bool,
    /// Measure this program as well
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(["fastd", "wireguard-go"]))]
    pub(crate) with: Vec<String>,
    /// How progress is shown on stderr
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "never", "json"]))]
    pub(crate) progress: String,
}

/// The arguments of `segue bench`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// The bench to run, or all; compare and report read earlier results
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(segue_lab::bench::NAMES.iter().copied().chain(["all", "compare", "report"])))]
    pub(crate) name: Option<String>,
    /// Files of -j: two for compare, any number for report
    #[arg(value_name = "FILE.json", hide_short_help = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Where all and report put the page; that of the data ends in .json
    #[arg(long, hide_short_help = true, value_name = "FILE.html", default_value = "segue-report.html")]
    pub(crate) output: PathBuf,
    /// Every row
    #[arg(long, conflicts_with = "quick")]
    pub(crate) all: bool,
    /// A few rows, one run of one second each: a quick test
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only rows that have all these words, as "lro 4k"; several times: any of them
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["all"])]
    pub(crate) rows: Vec<String>,
    /// Only rows of this link, as nic-csum or 10gbit
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<String>,
    /// Measurements of each row, 5 when not given; napi 2
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: Option<u32>,
    /// Seconds of one measurement, 2 when not given; napi 1
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: Option<u32>,
    /// tunnel: another segue, measured in turn with this one
    #[arg(long, hide_short_help = true, value_name = "PROGRAM")]
    pub(crate) beside: Option<PathBuf>,
    /// Per cent of its processor that the host under test may use
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) quota: Option<u32>,
    /// Print the number of rows, the time they take and their words
    #[arg(long)]
    pub(crate) list: bool,
    /// How progress is shown on stderr
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "never", "json"]))]
    pub(crate) progress: String,
    /// Run one end of a load, as a bench does in its hosts
    #[arg(long, hide = true, conflicts_with = "name")]
    pub(crate) end: Option<String>,
}

/// The arguments of `segue schema`.
#[derive(Args, Debug)]
pub(crate) struct Schema {
    /// The command whose output the schema describes
    #[arg(value_name = "COMMAND", value_parser = PossibleValuesParser::new(["stat", "set", "nat", "peer", "lab", "bench", "pcap", "lan78xx"]))]
    pub(crate) of: Option<String>,
}

/// The arguments of `segue help`.
#[derive(Args, Debug)]
pub(crate) struct Help {
    /// The command, or a reason that `segue stat` shows; the overview when not given
    #[arg(value_name = "COMMAND|REASON", num_args = 0..=4)]
    pub(crate) command: Vec<String>,
    /// Write the manual pages of all commands into a folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub(crate) manual: Option<PathBuf>,
}

/// The arguments of `segue completions`.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", required_unless_present_any = ["short_help", "long_help"], value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]))]
    pub(crate) shell: Option<String>,
}

/// The arguments of `segue complete`.
#[derive(Args, Debug)]
pub(crate) struct Complete {
    /// The words after `segue`; the last one may be incomplete
    #[arg(value_name = "WORD", last = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<String>,
}

impl Command {
    /// Returns the command's name as it is typed.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Tunnel(_) => "tunnel",
            Command::Gateway(_) => "gateway",
            Command::Nat(_) => "nat",
            Command::Peer(_) => "peer",
            Command::Stat(_) => "stat",
            Command::Top(_) => "top",
            Command::Metrics(_) => "metrics",
            Command::Stop(_) => "stop",
            Command::Set(_) => "set",
            Command::Run(_) => "run",
            Command::Reload(_) => "reload",
            Command::Fleet(_) => "fleet",
            Command::Doctor(_) => "doctor",
            Command::Lab(_) => "lab",
            Command::Bench(_) => "bench",
            Command::Pcap(_) => "pcap",
            Command::Lan78xx(_) => "lan78xx",
            Command::Schema(_) => "schema",
            Command::Completions(_) => "completions",
            Command::Help(_) => "help",
            Command::Complete(_) => "complete",
        }
    }
}
