//! A run of iperf3 between two hosts.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Cpu, Host, LabError, Process, Proto};

/// Usual payload of a UDP datagram in bytes, which fits every tunnel over an Ethernet link.
const DATAGRAM_LEN: u32 = 1400;
/// Directory of the file that iperf3 sends from: the host's own tmpfs, to which a user without privileges can write
/// too.
const BUFFER_DIR: &str = "/run/segue";
/// Time for start, connection and the exchange of results on a slow machine.
const OVERHEAD: Duration = Duration::from_secs(15);

/// A load from `client`, the sender, to `server`, the receiver.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Host of the iperf3 client, the sender.
    pub client: &'a Host,
    /// Host of the iperf3 server, the receiver.
    pub server: &'a Host,
    /// The receiver's address, which chooses the path and the family.
    pub to: IpAddr,
    /// Protocol of the load: TCP, or UDP datagrams without a rate limit.
    pub proto: Proto,
    /// Length of the load in seconds.
    pub seconds: u32,
    /// Number of parallel streams.
    pub parallel: u32,
    /// Method by which the sender sends.
    pub style: Style,
}

/// Sending method of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether the sender uses `sendfile(2)` on a file, without copying the bytes into the kernel.
    pub sendfile: bool,
    /// Payload of a UDP datagram in bytes.
    pub datagram: u32,
}

impl Default for Style {
    fn default() -> Self {
        Style { sendfile: false, datagram: DATAGRAM_LEN }
    }
}

/// The result of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Number of payload bytes received.
    pub bytes: u64,
    /// Duration of reception in seconds, by the receiver's clock.
    pub seconds: f64,
    /// Number of TCP segments retransmitted; `None` for UDP, or if the kernel does not count them.
    pub retransmits: Option<u64>,
    /// UDP datagrams that did not arrive, per cent; `None` for TCP.
    pub lost_percent: Option<f64>,
    /// CPU seconds of the client host's [`Cpu`] from before the sender started until both ends had ended; `None` when
    /// the host is not accounted.
    pub cpu_s: Option<f64>,
    /// CPU seconds of the server host, if counted separately from the client's.
    pub server_cpu_s: Option<f64>,
    /// Seconds between the two readings of CPU time.
    pub wall_s: f64,
}

impl Outcome {
    /// Returns the rate of the received payload, Gbit/s.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.seconds
    }

    /// Returns the CPU seconds per 1e9 bytes received; `None` when nothing was received.
    pub fn cpu_s_per_gb(&self) -> Option<f64> {
        self.cpu_s.filter(|_| self.bytes > 0).map(|cpu| cpu / (self.bytes as f64 * 1e-9))
    }
}

/// Runs a server for one connection and a client that sends to it, and waits for both.
pub fn run(load: &Load<'_>) -> Result<Outcome, LabError> {
    let mut server = load.server.command("iperf3");
    server.args(["-s", "-1", "--forceflush"]).env("TMPDIR", BUFFER_DIR);
    let mut server = Process::spawn(server, b"")?;
    server.wait_for_line("Server listening", OVERHEAD)?;

    let mut client = load.client.command("iperf3");
    client.env("TMPDIR", BUFFER_DIR);
    client.args(["-c", &load.to.to_string(), "-J", "--connect-timeout", "5000"]);
    client.args(["-t", &load.seconds.to_string(), "-P", &load.parallel.to_string()]);
    if load.proto == Proto::Udp {
        client.args(["-u", "-b", "0", "-l", &load.style.datagram.to_string()]);
    }
    if load.style.sendfile {
        client.arg("-Z");
    }
    let cpus = [load.client.cpu(), load.server.cpu().filter(|server| !is_same(load.client.cpu(), server))];
    let read = || -> Result<_, LabError> { Ok((reading(cpus[0])?, reading(cpus[1])?)) };
    let (begin, before) = (Instant::now(), read()?);
    let mut client = Process::spawn(client, b"")?;
    client.wait(Duration::from_secs(u64::from(load.seconds)) + OVERHEAD)?;
    // iperf3 3.12 can end with status 0 and an error in its report, so the report decides.
    let mut outcome = parse(&client.stdout(), load.proto).map_err(|text| match client.stderr().trim() {
        "" => LabError::Load(text),
        stderr => LabError::Load(format!("{text}\n  | {stderr}")),
    })?;
    server.wait(OVERHEAD)?;
    let after = read()?;
    outcome.wall_s = begin.elapsed().as_secs_f64();
    let used = |before: Option<f64>, after: Option<f64>| before.zip(after).map(|(before, after)| after - before);
    (outcome.cpu_s, outcome.server_cpu_s) = (used(before.0, after.0), used(before.1, after.1));
    Ok(outcome)
}

fn is_same(one: Option<&Arc<Cpu>>, other: &Arc<Cpu>) -> bool {
    one.is_some_and(|one| Arc::ptr_eq(one, other))
}

fn reading(cpu: Option<&Arc<Cpu>>) -> Result<Option<f64>, LabError> {
    cpu.map(|cpu| cpu.seconds().map_err(|source| LabError::system("read the CPU time", source))).transpose()
}

/// Parses iperf3's `-J` report. The error is iperf3's own text where it has one.
fn parse(report: &str, proto: Proto) -> Result<Outcome, String> {
    let report: Value = serde_json::from_str(report).map_err(|error| {
        let start: String = report.chars().take(200).collect();
        format!("its report is not JSON ({error}): {start}")
    })?;
    if let Some(error) = report["error"].as_str() {
        return Err(error.to_string());
    }
    let end = &report["end"];
    let received = &end["sum_received"];
    let (bytes, seconds) = match (received["bytes"].as_u64(), received["seconds"].as_f64()) {
        (Some(bytes), Some(seconds)) if seconds > 0.0 => (bytes, seconds),
        _ => return Err("its report lacks end.sum_received".into()),
    };
    Ok(Outcome {
        bytes,
        seconds,
        retransmits: end["sum_sent"]["retransmits"].as_u64().filter(|_| proto == Proto::Tcp),
        lost_percent: received["lost_percent"].as_f64().filter(|_| proto == Proto::Udp),
        cpu_s: None,
        server_cpu_s: None,
        wall_s: seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_report_gives_the_receivers_bytes_and_the_senders_retransmits() {
        let report = r#"{"end":{"sum_sent":{"bytes":3000,"seconds":1.0,"retransmits":4},
                         "sum_received":{"bytes":2500000000,"seconds":2.0}}}"#;
        let outcome = Outcome { cpu_s: Some(5.0), ..parse(report, Proto::Tcp).unwrap() };
        assert_eq!((outcome.bytes, outcome.retransmits, outcome.lost_percent), (2_500_000_000, Some(4), None));
        assert_eq!((outcome.gbps(), outcome.cpu_s_per_gb()), (10.0, Some(2.0)));
    }

    #[test]
    fn a_udp_report_gives_the_loss() {
        let report =
            r#"{"end":{"sum_sent":{"bytes":1},"sum_received":{"bytes":1400,"seconds":1.0,"lost_percent":2.5}}}"#;
        let outcome = parse(report, Proto::Udp).unwrap();
        assert_eq!((outcome.bytes, outcome.retransmits, outcome.lost_percent), (1400, None, Some(2.5)));
    }

    #[test]
    fn the_error_text_of_a_failed_run_is_kept() {
        let report = r#"{"start":{},"end":{},"error":"unable to connect to server: Network is unreachable"}"#;
        assert_eq!(parse(report, Proto::Tcp).unwrap_err(), "unable to connect to server: Network is unreachable");
        assert!(parse("Segmentation fault", Proto::Tcp).unwrap_err().ends_with("Segmentation fault"));
        assert!(parse("{}", Proto::Tcp).unwrap_err().contains("sum_received"));
    }

    #[test]
    fn nothing_received_has_no_cost_per_gigabyte() {
        let report = r#"{"end":{"sum_sent":{"bytes":0},"sum_received":{"bytes":0,"seconds":1.0}}}"#;
        let nothing = Outcome { cpu_s: Some(1.0), ..parse(report, Proto::Tcp).unwrap() };
        assert_eq!(nothing.cpu_s_per_gb(), None);
    }
}
