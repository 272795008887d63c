//! Verification of every checksum and length of a capture.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io::Read;
use std::net::IpAddr;

use segue::packet::{Header, Kind, Tunnels};

use crate::checksums::{Finding, PacketVerdict, Verdict};
use crate::error::CaptureError;
use crate::file::{Item, ReadError, Reader, Record};
use crate::frame::{Frame, USUAL_MTU};
use crate::stream::each_item;

/// Configuration of [`verify`].
#[derive(Clone, Debug)]
pub struct VerifyConfig {
    /// UDP ports that carry tunnels.
    pub tunnels: Tunnels,
    /// Largest IP packet in bytes; longer ones are counted; `None` for no limit.
    pub mtu: Option<usize>,
}

impl Default for VerifyConfig {
    /// Returns the default: no tunnel on a UDP port, no limit of length.
    fn default() -> VerifyConfig {
        VerifyConfig { tunnels: Tunnels::NONE, mtu: None }
    }
}

/// One packet of a capture, judged.
#[derive(Debug)]
pub struct CheckedPacket<'a> {
    /// The packet as stored in its file.
    pub record: &'a Record<'a>,
    /// Verdict on the whole packet.
    pub verdict: PacketVerdict,
    /// Checksums of the packet, outermost first; empty if bytes of the packet are missing.
    pub findings: &'a [Finding],
    /// Whether the outermost IP packet is longer than [`VerifyConfig::mtu`].
    pub is_above_mtu: bool,
    mtu: Option<usize>,
    frame: Option<&'a Frame<'a>>,
}

impl CheckedPacket<'_> {
    /// Returns the length of the outermost IP packet in bytes; `None` for other records.
    pub fn ip_len(&self) -> Option<usize> {
        self.frame.map(Frame::ip_len)
    }

    /// Returns whether lengths contradict each other. Where bytes are missing too, the verdict says that.
    pub fn is_malformed(&self) -> bool {
        self.frame.is_some_and(Frame::is_malformed)
    }

    /// Returns the parsed headers, outermost first.
    pub fn headers(&self) -> &[Header] {
        self.frame.map_or(&[], |frame| frame.layout.headers())
    }

    /// Returns the parsed headers after the outermost IP header, outermost first.
    pub fn inside_outer_ip(&self) -> &[Header] {
        self.frame.map_or(&[], |frame| frame.layout.inside_outer_ip())
    }

    /// Returns source and destination address of the outermost IP header; `None` without one.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let frame = self.frame?;
        frame.addresses(frame.layout.outer_ip()?)
    }

    /// Returns a line of text for each finding on the packet that would be wrong on a wire; empty for a good one.
    pub fn faults(&self) -> String {
        let (mut text, record) = (String::new(), self.record);
        let mut line = |what: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "packet {}  {what}", record.number);
        };
        if record.is_cut() {
            let (present, len, offset) = (record.data.len(), record.len, record.offset);
            line(&format!("cut when captured: {present} bytes of {len} (byte {offset})"));
        } else if self.is_malformed() {
            line(&format!("malformed: a length that contradicts another     {}", self.describe()));
        }
        for f in self.findings {
            let title = f.layer.title(f.is_outer);
            match f.verdict {
                Verdict::Bad => {
                    let (field, expected, packet) = (f.field, f.expected, self.describe());
                    line(&format!("{title} checksum {field:#06x}, should be {expected:#06x}     {packet}"));
                }
                Verdict::Unfinished => {
                    line(&format!("{title} checksum unfinished; fine in a capture, wrong on a wire"));
                }
                Verdict::Good | Verdict::Absent | Verdict::Remote => {}
            }
        }
        if let (true, Some(mtu), Some(len)) = (self.is_above_mtu, self.mtu, self.ip_len()) {
            line(&format!("{len} bytes of IP, above the MTU of {mtu}"));
        }
        text
    }

    /// Returns the outermost addresses and the names of the headers after the outermost IP header; empty for a packet
    /// without IP.
    fn describe(&self) -> String {
        let Some((source, destination)) = self.addresses() else { return String::new() };
        let name = |header: &Header| match header.kind {
            Kind::Ipv4 => "IPv4",
            Kind::Ipv6 => "IPv6",
            Kind::Udp => "UDP",
            Kind::Tcp => "TCP",
            Kind::Gre => "GRE",
            kind => kind.format().map_or("Ethernet", |format| format.name),
        };
        let kinds: Vec<&str> = self.inside_outer_ip().iter().map(name).collect();
        format!("{source} -> {destination} {}", kinds.join(" ")).trim_end().to_owned()
    }
}

/// Counters of [`verify`]: packets and checksums by verdict.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Number of packets read.
    pub packets: u64,
    /// Number of packets with all checksums correct.
    pub good: u64,
    /// Number of packets with a wrong checksum.
    pub bad: u64,
    /// Number of packets with an unfinished checksum.
    pub unfinished: u64,
    /// Number of packets whose UDP header has no checksum.
    pub absent: u64,
    /// Number of packets of which only the IP headers could be judged.
    pub ip_only: u64,
    /// Number of packets whose lengths contradict each other.
    pub malformed: u64,
    /// Number of truncated packets; the position at which the file is truncated or damaged counts as one.
    pub cut: u64,
    /// Number of records that hold no IP packet.
    pub not_ip: u64,
    /// Number of IP packets longer than [`VerifyConfig::mtu`].
    pub above_mtu: u64,
    /// Checksums by the names of their header and verdict.
    pub layers: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// The position at which the input is truncated or damaged; all packets before it were verified.
    pub fault: Option<ReadError>,
}

impl VerifyReport {
    /// Returns whether no packet has a wrong checksum or a length that contradicts another.
    pub fn is_good(&self) -> bool {
        self.bad == 0 && self.malformed == 0
    }

    fn add(&mut self, packet: &CheckedPacket<'_>) {
        self.above_mtu += u64::from(packet.is_above_mtu);
        for f in packet.findings {
            *self.layers.entry(f.layer.name(f.is_outer)).or_default().entry(f.verdict.name()).or_default() += 1;
        }
        *match packet.verdict {
            PacketVerdict::Good => &mut self.good,
            PacketVerdict::Bad => &mut self.bad,
            PacketVerdict::Unfinished => &mut self.unfinished,
            PacketVerdict::Absent => &mut self.absent,
            PacketVerdict::IpOnly => &mut self.ip_only,
            PacketVerdict::Malformed => &mut self.malformed,
            PacketVerdict::Cut => &mut self.cut,
            PacketVerdict::NotIp => &mut self.not_ip,
        } += 1;
    }
}

/// The totals as text: one line about the packets, and one for each kind of header.
impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerifyReport { good, bad, unfinished, cut, .. } = self;
        write!(f, "{good} good, {bad} bad, {unfinished} unfinished, {cut} cut")?;
        for (n, what) in [
            (self.malformed, "malformed"),
            (self.absent, "without a checksum"),
            (self.ip_only, "judged by their IP header only"),
            (self.not_ip, "not IP"),
            (self.above_mtu, "above the MTU"),
        ] {
            if n > 0 {
                write!(f, ", {n} {what}")?;
            }
        }
        for (layer, verdicts) in &self.layers {
            let counts: Vec<String> = verdicts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
            write!(f, "\n  {:<10} {}", layer.replace('_', " "), counts.join(", "))?;
        }
        Ok(())
    }
}

/// Verifies every packet of a capture, and passes each to `each` in the order of the file.
///
/// # Errors
/// [`CaptureError::Read`].
pub fn verify<R: Read>(
    reader: &mut Reader<R>,
    config: &VerifyConfig,
    mut each: impl FnMut(&CheckedPacket<'_>),
) -> Result<VerifyReport, CaptureError> {
    let (mut report, mut findings) = (VerifyReport::default(), Vec::new());
    let fault = each_item(reader, |item| {
        let Item::Packet(record) = item else { return Ok(()) };
        let frame = Frame::open(record.link, record.data(), &config.tunnels, USUAL_MTU);
        let frame = frame.filter(|frame| frame.is_ip() || frame.is_malformed());
        findings.clear();
        let verdict = match &frame {
            _ if record.is_cut() => PacketVerdict::Cut,
            None => PacketVerdict::NotIp,
            Some(frame) => {
                frame.judge(&mut findings);
                frame.verdict(&findings)
            }
        };
        let ip_len = frame.as_ref().map(Frame::ip_len);
        let packet = CheckedPacket {
            record: &record,
            verdict,
            findings: &findings,
            mtu: config.mtu,
            is_above_mtu: config.mtu.is_some_and(|mtu| ip_len.is_some_and(|len| len > mtu)),
            frame: frame.as_ref(),
        };
        report.add(&packet);
        each(&packet);
        Ok(())
    })?;
    report.packets = reader.packets();
    report.cut += u64::from(fault.is_some());
    report.fault = fault;
    Ok(report)
}
