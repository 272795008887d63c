//! Verification of every checksum and length of a capture.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;

use segue::packet::{Header, Tunnels};

use crate::checksums::{Finding, PacketVerdict};
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
