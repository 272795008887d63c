//! segue as an extcap of Wireshark: it lists the running tunnels as interfaces, and captures one of them live.
//!
//! Wireshark starts every program in its extcap folder with options of its own (extcap(4)), so that no command is
//! given. dumpcap, which is part of every Wireshark, does the capturing, with the rights that it has.
//!
//! # Lifecycle
//! 1. [`is_call`] tells a command line of Wireshark from one of the user.
//! 2. [`answer`] returns the text of the protocol, or it captures: another program then takes the place of this one,
//!    until Wireshark ends it.
//!
//! # Promises
//! - The state of an instance is read, by its control socket; nothing of it is changed, and its packets do not wait.
//! - A name or an address of a tunnel ends no value of the protocol: braces and control characters are left out.
//! - An option of a later version of the protocol is passed over where its value follows a `=`.
//!
//! # Limits
//! Only tunnels are captured. Trains that are cut to wire size pass through `segue pcap split` of the same program.

use std::convert::Infallible;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use segue_control::client;
use segue_control::error::{Error, Kind, printable, printable_line};
use segue_control::model::Tunnel;
use segue_host::address::HostPort;

/// Prefix of a tunnel's name in the name of its Wireshark interface.
const PREFIX: &str = "segue-";
/// Name of the program that captures the packets.
const DUMPCAP: &str = "dumpcap";

/// Point of a tunnel at which packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tap {
    /// Outer packets, on the link.
    Outer,
    /// Inner packets and trains, on the tunnel's interface.
    Trains,
    /// Inner packets, segmented to wire size.
    Cut,
}

const TAPS: &[(&str, Tap, &str)] = &[
    ("received", Tap::Outer, "outer packets, as received and sent"),
    ("trains", Tap::Trains, "inner packets: trains, as programs of this host see them"),
    ("cut", Tap::Cut, "inner packets, trains cut and checksums finished"),
];

/// Options of a call by Wireshark.
#[derive(Debug, Default)]
struct Call {
    interfaces: bool,
    dlts: bool,
    config: bool,
    capture: bool,
    interface: String,
    fifo: String,
    filter: String,
    tap: String,
}

/// Returns whether the words after the program's name are those of Wireshark.
pub fn is_call(words: &[String]) -> bool {
    words.iter().any(|word| word.starts_with("--extcap-"))
}

fn parse(words: &[String]) -> Call {
    let mut call = Call::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        let flag = match name {
            "--extcap-interfaces" => &mut call.interfaces,
            "--extcap-dlts" => &mut call.dlts,
            "--extcap-config" => &mut call.config,
            "--capture" => &mut call.capture,
            _ => {
                let place = match name {
                    "--extcap-interface" => &mut call.interface,
                    "--fifo" => &mut call.fifo,
                    "--extcap-capture-filter" => &mut call.filter,
                    "--tap" => &mut call.tap,
                    // Options of later versions, which have their values after `=`.
                    _ => continue,
                };
                *place = value.map_or_else(|| words.next().cloned().unwrap_or_default(), str::to_owned);
                continue;
            }
        };
        *flag = true;
    }
    call
}

/// Answers a call of Wireshark with the text for its standard output. A call for a capture returns only where that
/// fails. `version` is that of the program.
///
/// # Errors
/// The tunnel is not there, a value of an option is wrong, or dumpcap cannot be started.
pub fn answer(words: &[String], version: &str) -> Result<String, Error> {
    let call = parse(words);
    if call.interfaces {
        Ok(interfaces(version))
    } else if call.dlts {
        Ok("dlt {number=101}{name=RAW}{display=IP}\ndlt {number=1}{name=EN10MB}{display=Ethernet}\n".to_owned())
    } else if call.config {
        Ok(config())
    } else if call.capture {
        match capture(&call)? {}
    } else {
        Ok(String::new())
    }
}

/// Returns a text without the characters that have a meaning in the protocol.
fn plain(text: &str) -> String {
    printable_line(text).chars().filter(|c| !matches!(c, '{' | '}')).collect()
}

fn interfaces(version: &str) -> String {
    let mut text = format!("extcap {{version={version}}}{{display=segue tunnels}}\n");
    for instance in client::all().instances {
        for (name, tunnel) in &instance.tunnels {
            let about = format!("segue {}: {} to {}", plain(name), plain(&tunnel.mode), plain(&tunnel.remote));
            text.push_str(&format!("interface {{value={PREFIX}{}}}{{display={about}}}\n", plain(name)));
        }
    }
    text
}

fn config() -> String {
    let mut text =
        "arg {number=0}{call=--tap}{display=Where}{type=selector}{tooltip=The place where packets are taken}\n"
            .to_owned();
    for (name, tap, about) in TAPS {
        text.push_str(&format!(
            "value {{arg=0}}{{value={name}}}{{display={about}}}{{default={}}}\n",
            *tap == Tap::Outer
        ));
    }
    text
}

/// Splits the text of a tunnel endpoint into its address and its port.
fn end(text: &str) -> (&str, Option<&str>) {
    HostPort::split(text).map_or((text, None), |parts| (parts.host, parts.port))
}

/// Returns the capture filter of a tunnel's outer packets: those of its remote, of its ports or of its IP protocols.
fn outer_filter(tunnel: &Tunnel) -> String {
    let (remote, dport) = end(&tunnel.remote);
    let (_, port) = end(&tunnel.local);
    let ports: Vec<String> = [port, dport].into_iter().flatten().map(|port| format!("udp port {port}")).collect();
    let what = if ports.is_empty() {
        let (name, protocols) = if remote.contains(':') { ("ip6", [4, 41, 47]) } else { ("ip", [4, 41, 47]) };
        protocols.map(|protocol| format!("{name} proto {protocol}")).join(" or ")
    } else {
        ports.join(" or ")
    };
    format!("host {remote} and ({what})")
}

/// Captures packets until Wireshark ends this process, which another program replaces.
fn capture(call: &Call) -> Result<Infallible, Error> {
    let name = call.interface.strip_prefix(PREFIX).unwrap_or(&call.interface);
    let instance = client::one(name)?;
    let Some(tunnel) = instance.tunnels.get(name) else {
        return Err(Error::new(Kind::NotFound, format!("{} is no tunnel", printable(name)), "segue stat")
            .why("only tunnels are captured"));
    };
    let tap = match call.tap.as_str() {
        "" => Tap::Outer,
        word => match TAPS.iter().find(|(known, ..)| *known == word) {
            Some((_, tap, _)) => *tap,
            None => {
                let message = format!("`{}` is not a value of `--tap`", printable(word));
                return Err(Error::new(Kind::BadValue, message, "--tap received, --tap trains or --tap cut"));
            }
        },
    };
    let filter = match (tap, call.filter.as_str()) {
        (Tap::Outer, "") => outer_filter(tunnel),
        (Tap::Outer, more) => format!("({}) and ({more})", outer_filter(tunnel)),
        (_, filter) => filter.to_owned(),
    };
    let mut dumpcap = Command::new(DUMPCAP);
    dumpcap.args(["-q", "-i", if tap == Tap::Outer { &tunnel.underlay } else { name }]);
    if !filter.is_empty() {
        dumpcap.args(["-f", &filter]);
    }
    dumpcap.stdin(Stdio::null()).stderr(Stdio::null());
    let missing = |error: &std::io::Error| {
        Error::system("cannot start dumpcap", error, "apt-get install wireshark-common")
            .why("it captures for Wireshark, and for this")
    };
    if tap != Tap::Cut {
        return Err(missing(&dumpcap.args(["-w", &call.fifo]).exec()));
    }
    // Where this process ends, the pipe closes, and dumpcap ends as well.
    let mut child = dumpcap.args(["-w", "-"]).stdout(Stdio::piped()).spawn().map_err(|error| missing(&error))?;
    let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut split = Command::new(program);
    split.args(["pcap", "split", "-", &call.fifo, "-F", "pcapng", "-q", "--allow-cut"]);
    split.stdin(child.stdout.take().map_or_else(Stdio::null, Stdio::from));
    Err(Error::system("cannot cut the trains", &split.exec(), "--tap trains").why("segue pcap split was not started"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_their_values_behind_them_or_behind_an_equals_sign() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let line = "--capture --extcap-interface segue-sg0 --fifo /tmp/f --tap=cut --extcap-version=4.0 --later 7";
        let call = parse(&words(line));
        assert!(call.capture && !call.interfaces && is_call(&words(line)));
        assert_eq!((call.interface.as_str(), call.fifo.as_str(), call.tap.as_str()), ("segue-sg0", "/tmp/f", "cut"));
        assert!(!is_call(&words("stat sg0 --watch")));
    }

    #[test]
    fn the_filter_is_that_of_the_outer_packets() {
        let filter = |local: &str, remote: &str| {
            outer_filter(&Tunnel { local: local.into(), remote: remote.into(), ..Tunnel::default() })
        };
        assert_eq!(
            filter("198.18.0.1:6080", "198.18.0.2:6081"),
            "host 198.18.0.2 and (udp port 6080 or udp port 6081)"
        );
        assert_eq!(filter("[2001:db8::1]:7", "[2001:db8::2]:8"), "host 2001:db8::2 and (udp port 7 or udp port 8)");
        assert_eq!(
            filter("2001:db8::1", "2001:db8::2"),
            "host 2001:db8::2 and (ip6 proto 4 or ip6 proto 41 or ip6 proto 47)"
        );
    }
}
