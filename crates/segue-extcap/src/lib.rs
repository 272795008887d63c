//! segue as an extcap of Wireshark: it lists the running tunnels as interfaces, and captures one of them live.
//!
//! Wireshark starts every program in its extcap folder with options of its own (extcap(4)), so that no command is
//! given. dumpcap, which is part of every Wireshark, does the capturing, with the rights that it has.
//!
//! # Lifecycle
//! 1. [`is_call`] tells a command line of Wireshark from one of the user.
//! 2. [`answer`] returns the text of the protocol, or it captures, until Wireshark ends it by a signal, which dumpcap
//!    gets too.
//!
//! # Promises
//! - The state of an instance is read, by its control socket; nothing of it is changed, and its packets do not wait.
//! - A name or an address of a tunnel ends no value of the protocol: braces and control characters are left out.
//! - What an instance answers names no other device than an interface of this host, and only narrows what is captured.
//! - An option of a later version of the protocol is passed over where its value follows a `=`.
//!
//! # Limits
//! Only tunnels are captured. Trains that are cut to wire size pass through `segue pcap split` of the same program.

use std::env;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use segue_control::client;
use segue_control::error::{Error, Kind, printable, printable_line};
use segue_control::model::{Instance, Tunnel};
use segue_host::address::HostPort;
use segue_host::interface::check_name;
use segue_host::netlink::Netlink;
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{Pid, Want, kill, memory_file, poll};

/// Prefix of a tunnel's name in the name of its Wireshark interface.
const PREFIX: &str = "segue-";
/// Name of the program that captures the packets.
const DUMPCAP: &str = "dumpcap";
/// Time within which Wireshark ends a capture by a signal after it has closed its pipe.
const END: Duration = Duration::from_secs(1);
/// Largest number of bytes of the messages of a failed capture that are shown.
const MOST_SAID: u64 = 4096;

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

/// Answers a call of Wireshark with the text for its standard output. A call for a capture returns after it. `version`
/// is that of the program.
///
/// # Errors
/// The tunnel is not there, a value of an option is wrong, or dumpcap cannot be started or fails.
pub fn answer(words: &[String], version: &str) -> Result<String, Error> {
    let call = parse(words);
    if call.interfaces {
        Ok(interfaces(version))
    } else if call.dlts {
        Ok("dlt {number=101}{name=RAW}{display=IP}\ndlt {number=1}{name=EN10MB}{display=Ethernet}\n".to_owned())
    } else if call.config {
        Ok(config())
    } else if call.capture {
        capture(&call).map(|()| String::new())
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

/// Returns the capture filter of a tunnel's outer packets: those of its remote, of its ports or of its IP protocols. Of
/// a tunnel with a table, and of one that may have several remotes, only the ports are known. What is no address or no
/// port in the answer of the instance is left out.
fn outer_filter(instance: &Instance, tunnel: &Tunnel) -> String {
    let (remote, dport) = end(&tunnel.remote);
    let (_, port) = end(&tunnel.local);
    let listen = instance.peers.as_ref().map(|table| table.listen.iter().filter_map(|form| end(form).1));
    let known: Vec<&str> = match listen {
        Some(ports) => ports.collect(),
        None => [port, dport].into_iter().flatten().collect(),
    };
    let known = known.into_iter().filter_map(|port| port.parse::<u16>().ok());
    let ports: Vec<String> = known.map(|port| format!("udp port {port}")).collect();
    let has_more = ["vxlan", "geneve"].iter().any(|mode| tunnel.mode.starts_with(mode));
    if (instance.peers.is_some() || has_more) && !ports.is_empty() {
        return ports.join(" or ");
    }
    // libpcap has no word for the interface of a link-local address.
    let remote = remote.split('%').next().and_then(|host| host.parse::<IpAddr>().ok());
    let what = if ports.is_empty() {
        let name = if remote.is_some_and(|remote| remote.is_ipv6()) { "ip6" } else { "ip" };
        [4, 41, 47].map(|protocol| format!("{name} proto {protocol}")).join(" or ")
    } else {
        ports.join(" or ")
    };
    match remote {
        Some(remote) => format!("host {remote} and ({what})"),
        None => what,
    }
}

/// Checks that the kernel has a network interface of this name, which an instance has answered. dumpcap takes other
/// names too: other devices, such as `usbmon1` with what is typed, pipes, and hosts to connect to.
fn interface(name: &str) -> Result<&str, Error> {
    let link = match check_name(name) {
        Ok(name) => Netlink::open().and_then(|mut netlink| netlink.link_named(name)),
        Err(_) => Ok(None),
    };
    match link.map_err(|error| Error::system("cannot read the interfaces", &error, "ip link"))? {
        // The kernel finds an interface by an alternative name too.
        Some(link) if link.name == name => Ok(name),
        _ => Err(Error::new(Kind::NotFound, format!("there is no interface {}", printable(name)), "ip link")
            .why("the instance names it")),
    }
}

/// Captures packets until Wireshark ends this process by a signal.
fn capture(call: &Call) -> Result<(), Error> {
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
        (Tap::Outer, "") => outer_filter(&instance, tunnel),
        (Tap::Outer, more) => format!("({}) and ({more})", outer_filter(&instance, tunnel)),
        (_, filter) => filter.to_owned(),
    };
    let device = interface(if tap == Tap::Outer { tunnel.underlay.as_str() } else { name })?;
    let mut dumpcap = Command::new(DUMPCAP);
    dumpcap.args(["-q", "-i", device]);
    if !filter.is_empty() {
        dumpcap.args(["-f", &filter]);
    }
    run(dumpcap, (tap == Tap::Cut).then(cutter), &call.fifo)
}

/// Returns the command line of `segue pcap split` without its files.
fn cutter() -> Command {
    let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut split = Command::new(program);
    split.args(["pcap", "split", "-F", "pcapng", "-q", "--allow-cut"]);
    split
}

/// Runs dumpcap until it ends, or a signal ends it. It writes to Wireshark's pipe, by way of `cutter` if there is one.
fn run(mut dumpcap: Command, cutter: Option<Command>, fifo: &str) -> Result<(), Error> {
    let failed = |error: io::Error| Error::system("cannot capture", &error, "dumpcap -D");
    // Wireshark shows whatever is on stderr, and dumpcap says much there that is no failure.
    let said = memory_file(c"stderr").map_err(failed)?;
    let stderr = || said.try_clone().map_err(failed);
    dumpcap.stdin(Stdio::null()).stderr(stderr()?);
    match &cutter {
        Some(_) => dumpcap.args(["-w", "-"]).stdout(Stdio::piped()),
        None => dumpcap.args(["-w", fifo]),
    };
    let dumpcap = dumpcap.spawn().map_err(|error| {
        Error::system("cannot start dumpcap", &error, "apt-get install wireshark-common")
            .why("it captures for Wireshark, and for this")
    })?;
    let mut capture = Capture { dumpcap, cutter: None, is_stopped: false, kill_at: None };
    // They are blocked from now on, which programs inherit: segue reads them all the same, and dumpcap would not.
    let mut signals = Signals::new().map_err(failed)?;
    if let Some(mut split) = cutter {
        let input = capture.dumpcap.stdout.take().map_or_else(Stdio::null, Stdio::from);
        let started = split.args(["-", fifo]).stdin(input).stderr(stderr()?).spawn();
        capture.cutter = Some(started.map_err(|error| {
            Error::system("cannot cut the trains", &error, "--tap trains").why("segue pcap split was not started")
        })?);
    }
    let ended = capture.follow(&mut signals).map_err(failed)?;
    // Where Wireshark has closed its pipe, dumpcap fails as well.
    if ended.success() || capture.is_stopped_within(END, &mut signals).map_err(failed)? {
        return Ok(());
    }
    let message = format!("the capture has failed: {}", words_of(&said));
    Err(Error::new(Kind::System, message, "dumpcap -D").why("dumpcap captures for Wireshark, and for this"))
}

/// Time from a signal until what has not ended is killed; Wireshark kills this process 30 s after its signal.
const GRACE: Duration = Duration::from_secs(10);

/// The programs of a running capture. They end with this value: where it cannot follow them, dumpcap would go on.
struct Capture {
    dumpcap: Child,
    /// The program that cuts trains to wire size.
    cutter: Option<Child>,
    /// Whether a signal has ended the capture.
    is_stopped: bool,
    /// The time at which what a signal should have ended is killed.
    kill_at: Option<Instant>,
}

impl Capture {
    /// Waits until all programs have ended, by themselves or by a signal; returns the status of dumpcap.
    fn follow(&mut self, signals: &mut Signals) -> io::Result<ExitStatus> {
        let mut before: Option<ExitStatus> = None;
        loop {
            self.pass_on(signals)?;
            let captured = self.dumpcap.try_wait()?;
            let cut = self.cutter.as_mut().map_or(Ok(None), Child::try_wait)?;
            match (captured, before) {
                // What dumpcap has written is cut to its end.
                (Some(status), _) if cut.is_some() || self.cutter.is_none() => return Ok(status),
                // Nothing takes the packets any more. It has closed its pipe, or the cutter has failed.
                (None, Some(status)) => {
                    self.is_stopped |= status.success();
                    self.dumpcap.kill()?;
                }
                _ => {}
            }
            before = cut;
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.dumpcap.kill()?;
                self.cutter.as_mut().map_or(Ok(()), Child::kill)?;
            }
            poll(&[(signals.as_fd(), Want::Read)], Duration::from_secs(1))?;
        }
    }

    /// Ends dumpcap by a signal that arrived. It stops to capture then, and what reads from it ends after it.
    fn pass_on(&mut self, signals: &mut Signals) -> io::Result<()> {
        while let Some((action, number)) = signals.receive()? {
            let is_last = action == SignalAction::StopNow;
            if !is_last && !matches!(action, SignalAction::Stop | SignalAction::Hangup) {
                continue;
            }
            self.is_stopped = true;
            self.kill_at.get_or_insert(Instant::now() + GRACE);
            if self.dumpcap.try_wait()?.is_none() {
                kill(self.dumpcap.id() as Pid, number)?;
            }
            if let Some(cutter) = self.cutter.as_mut().filter(|_| is_last) {
                cutter.kill()?;
            }
        }
        Ok(())
    }

    /// Returns whether a signal ends the capture within this time.
    fn is_stopped_within(&mut self, longest: Duration, signals: &mut Signals) -> io::Result<bool> {
        let until = Instant::now() + longest;
        while !self.is_stopped && Instant::now() < until {
            poll(&[(signals.as_fd(), Want::Read)], until.saturating_duration_since(Instant::now()))?;
            self.pass_on(signals)?;
        }
        Ok(self.is_stopped)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Those that have ended are left alone.
        for program in [Some(&mut self.dumpcap), self.cutter.as_mut()].into_iter().flatten() {
            let _ = program.kill();
        }
    }
}

/// Returns what programs have written to their stderr, on one line.
fn words_of(mut said: &File) -> String {
    let mut bytes = Vec::new();
    // Without the words there is the failure still.
    let _ = said.rewind().and_then(|()| said.take(MOST_SAID).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(printable_line).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use segue_control::model::PeerTable;

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
            let tunnel = Tunnel { local: local.into(), remote: remote.into(), ..Tunnel::default() };
            outer_filter(&Instance::default(), &tunnel)
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
        assert_eq!(filter("[fe80::1%eth0]:7", "[fe80::2%eth0]:7"), "host fe80::2 and (udp port 7 or udp port 7)");
        assert_eq!(
            filter("fe80::1%eth0", "fe80::2%eth0"),
            "host fe80::2 and (ip6 proto 4 or ip6 proto 41 or ip6 proto 47)"
        );
    }

    #[test]
    fn the_filter_has_nothing_of_an_answer_but_addresses_and_ports() {
        let filter = |local: &str, remote: &str, listen: Option<&str>| {
            let tunnel = Tunnel { local: local.into(), remote: remote.into(), ..Tunnel::default() };
            let table = |listen: &str| Box::new(PeerTable { listen: vec![listen.into()], ..PeerTable::default() });
            outer_filter(&Instance { peers: listen.map(table), ..Instance::default() }, &tunnel)
        };
        let all = "ip proto 4 or ip proto 41 or ip proto 47";
        assert_eq!(filter("198.18.0.1", "198.18.0.2) or (tcp", None), all);
        assert_eq!(filter("198.18.0.1:7 or tcp", "198.18.0.2:8", None), "host 198.18.0.2 and (udp port 8)");
        assert_eq!(filter("198.18.0.1:7", "[::1) or (tcp]:8", None), "udp port 7 or udp port 8");
        assert_eq!(filter("198.18.0.1", "198.18.0.2", Some("gue:7 or tcp")), format!("host 198.18.0.2 and ({all})"));
    }

    #[test]
    fn only_interfaces_of_this_host_are_captured() {
        assert_eq!(interface("lo").unwrap(), "lo");
        for other in ["usbmon1", "any", "-", "TCP@127.0.0.1:2002", "/tmp/pipe", "../net/lo", ".", "", "1", "lo lo"] {
            assert_eq!(interface(other).unwrap_err().kind, Kind::NotFound, "{other}");
        }
    }

    /// Returns the command line of a program that stands for dumpcap or the cutter.
    fn program(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn a_capture_that_fails_says_why_and_one_that_ends_says_nothing() {
        let loud = "echo \"Capturing on 'sg0'\" >&2";
        assert!(run(program(loud), None, "/dev/null").is_ok());
        assert!(run(program(loud), Some(program("cat > /dev/null")), "/dev/null").is_ok());
        let failing = "echo first >&2; echo 'no \u{1b}permission' >&2; exit 1";
        for (dumpcap, cutter) in
            [(failing, None), (failing, Some("cat > /dev/null; exit 1")), ("exec sleep 60", Some(failing))]
        {
            let error = run(program(dumpcap), cutter.map(program), "/dev/null").unwrap_err();
            assert_eq!(error.message, "the capture has failed: first no ?permission", "{dumpcap}");
        }
    }

    #[test]
    fn the_programs_of_a_capture_that_fails_end() {
        let start = |()| program("exec sleep 300").stdout(Stdio::piped()).spawn().unwrap();
        let [mut dumpcap, mut cutter] = [(); 2].map(start);
        let pipes = [&mut dumpcap, &mut cutter].map(|program| program.stdout.take().unwrap());
        drop(Capture { dumpcap, cutter: Some(cutter), is_stopped: false, kill_at: None });
        for pipe in &pipes {
            // It says nothing: the pipe is ready once it has ended.
            assert_eq!(poll(&[(pipe.as_fd(), Want::Hangup)], Duration::from_secs(60)).unwrap(), [true]);
        }
    }

    #[test]
    fn a_capture_that_nothing_reads_ends() {
        let (dumpcap, cutter) = (program("exec sleep 60"), program("exit 0"));
        let begin = Instant::now();
        assert!(run(dumpcap, Some(cutter), "/dev/null").is_ok());
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    }

    #[test]
    fn the_filter_of_a_tunnel_that_may_have_several_remotes_has_its_ports_alone() {
        let (local, remote) = ("198.18.0.1:4789".to_owned(), "198.18.0.2:8472".to_owned());
        let tunnel = Tunnel { mode: "vxlan 42".to_owned(), local, remote, ..Tunnel::default() };
        assert_eq!(outer_filter(&Instance::default(), &tunnel), "udp port 4789 or udp port 8472");
        let listen = vec!["vxlan:4789".to_owned(), "gue:6080".to_owned()];
        let peers = Some(Box::new(PeerTable { listen, ..PeerTable::default() }));
        let instance = Instance { peers, ..Instance::default() };
        let tunnel = Tunnel { local: "198.18.0.1:4789".into(), remote: "0.0.0.0:4789".into(), ..Tunnel::default() };
        assert_eq!(outer_filter(&instance, &tunnel), "udp port 4789 or udp port 6080");
    }
}
