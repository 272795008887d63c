//! A trace of everything that crosses a port, as a capture file.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError};
use segue::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use segue::gso::Limits;
use segue::wire::protocol;

use crate::batch::{Burst, RxBatch, TxBatch, TxUnit};
use crate::port::{Counters, OffloadState, Path, Polled, Port, Sent};

/// Longest record: the largest packet with outer headers in front.
const SNAPLEN: u32 = 131_072;
/// Bytes of the UDP header.
const UDP_LEN: usize = 8;

/// A port that writes what crosses it to a capture file of raw IP packets (link type 101).
///
/// What a packet port carries is written as it is: trains whole, and owed checksums still owed. What a datagram port
/// carries gets outer IP and UDP headers, made up from its addresses, with a computed UDP checksum; so a trace of a port
/// with zero checksums looks as if it had them. Units that the inner port dropped are in the trace too.
#[derive(Debug)]
pub struct Trace<P, W: Write> {
    inner: P,
    writer: PcapWriter<W>,
    record: Vec<u8>,
    before: Vec<u32>,
}

/// Outer fields of a made-up header.
#[derive(Clone, Copy)]
struct Outside {
    source: SocketAddr,
    target: SocketAddr,
    tos: u8,
    ttl: u8,
    df: bool,
}

impl<P: Port, W: Write> Trace<P, W> {
    /// Wraps `inner` and writes the file's header.
    ///
    /// # Errors
    /// What writing met.
    pub fn new(inner: P, file: W) -> io::Result<Trace<P, W>> {
        let header = PcapHeader { datalink: DataLink::RAW, snaplen: SNAPLEN, ..PcapHeader::default() };
        let writer = PcapWriter::with_header(file, header).map_err(into_io)?;
        Ok(Trace { inner, writer, record: Vec::new(), before: Vec::new() })
    }

    /// The port and the file.
    pub fn into_inner(self) -> (P, W) {
        (self.inner, self.writer.into_writer())
    }

    fn write(&mut self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let packet = PcapPacket {
            timestamp: now,
            orig_len: self.record.len() as u32,
            data: Cow::Borrowed(&self.record[..self.record.len().min(SNAPLEN as usize)]),
        };
        self.writer.write_packet(&packet).map_err(into_io).map(drop)
    }

    fn write_unit(&mut self, unit: &TxUnit<'_>) -> io::Result<()> {
        self.record.clear();
        let path = unit.outer().and_then(|outer| Some((outer, self.inner.path(outer.slot)?)));
        let Some((outer, path)) = path else {
            self.record.extend_from_slice(unit.head());
            unit.pieces().for_each(|piece| self.record.extend_from_slice(piece));
            return self.write();
        };
        let outside = Outside { source: path.source, target: path.peer, tos: outer.tos, ttl: outer.ttl, df: outer.df };
        let head = unit.head().get(usize::from(outer.skip)..).unwrap_or(&[]);
        wrap(&mut self.record, outside, std::iter::once(head).chain(unit.pieces()));
        self.write()
    }

    fn write_burst(&mut self, burst: &Burst, path: Path) -> io::Result<()> {
        let target = SocketAddr::new(burst.local.unwrap_or(path.listen.ip()), path.listen.port());
        for datagram in burst.datagrams() {
            self.record.clear();
            let outside =
                Outside { source: burst.peer, target, tos: burst.tos, ttl: burst.ttl.unwrap_or(64), df: false };
            wrap(&mut self.record, outside, std::iter::once(datagram.as_ref()));
            self.write()?;
        }
        Ok(())
    }
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// Appends an IP packet with a UDP datagram of `pieces` to `record`.
fn wrap<'a>(record: &mut Vec<u8>, outside: Outside, pieces: impl Iterator<Item = &'a [u8]>) {
    let ip_len = if outside.source.is_ipv4() { 20 } else { 40 };
    record.resize(ip_len + UDP_LEN, 0);
    pieces.for_each(|piece| record.extend_from_slice(piece));
    let udp_len = record.len() - ip_len;
    // A datagram that a socket sent or received has a length that fits.
    let length = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let pseudo = match (outside.source.ip(), outside.target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            record[0] = 0x45;
            record[1] = outside.tos;
            record[2..4].copy_from_slice(&length(ip_len + udp_len));
            record[6] = if outside.df { 0x40 } else { 0 };
            record[8] = outside.ttl;
            record[9] = protocol::UDP;
            record[12..16].copy_from_slice(&source.octets());
            record[16..20].copy_from_slice(&target.octets());
            let field = Field::complete(Sum::of(&record[..ip_len])).value();
            record[10..12].copy_from_slice(&field.to_be_bytes());
            pseudo_v4(source.octets(), target.octets(), protocol::UDP, udp_len)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            record[0] = 0x60 | outside.tos >> 4;
            record[1] = outside.tos << 4;
            record[4..6].copy_from_slice(&length(udp_len));
            record[6] = protocol::UDP;
            record[7] = outside.ttl;
            record[8..24].copy_from_slice(&source.octets());
            record[24..40].copy_from_slice(&target.octets());
            pseudo_v6(source.octets(), target.octets(), protocol::UDP, udp_len)
        }
        // A port has one family.
        _ => return record.clear(),
    };
    let udp = &mut record[ip_len..];
    udp[0..2].copy_from_slice(&outside.source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&outside.target.port().to_be_bytes());
    udp[4..6].copy_from_slice(&length(udp_len));
    let mut sum = pseudo;
    sum.add(udp);
    udp[6..8].copy_from_slice(&Field::complete_udp(sum).value().to_be_bytes());
}

impl<P: Port, W: Write> Port for Trace<P, W> {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        self.inner.offloads()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn blocked_fd(&self) -> BorrowedFd<'_> {
        self.inner.blocked_fd()
    }

    /// As the inner port; errors of the file come out here as well.
    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let (packets, bursts) = (into.packets.len(), into.bursts.len());
        let polled = self.inner.receive(into, budget)?;
        for packet in into.packets.iter().skip(packets) {
            self.record.clear();
            self.record.extend_from_slice(packet.head.bytes());
            packet.payload.pieces(0..packet.payload.len()).for_each(|piece| self.record.extend_from_slice(piece));
            self.write()?;
        }
        if let Some(path) = self.inner.path(0) {
            for burst in into.bursts.iter().skip(bursts) {
                self.write_burst(burst, path)?;
            }
        }
        Ok(polled)
    }

    /// As the inner port; errors of the file come out here as well.
    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        let mut before = std::mem::take(&mut self.before);
        before.clear();
        before.extend((0..batch.entries()).map(|entry| batch.position(entry)));
        let sent = self.inner.transmit(batch);
        for (entry, &position) in before.iter().enumerate() {
            for unit in batch.done_since(entry, position) {
                self.write_unit(&unit)?;
            }
        }
        self.before = before;
        sent
    }

    fn limit_burst(&mut self, bytes: usize) {
        self.inner.limit_burst(bytes);
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn path(&self, slot: u16) -> Option<Path> {
        self.inner.path(slot)
    }
}
