//! A trace of all packets that cross a port, as a capture file.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use segue::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use segue::gso::Limits;
use segue::wire::{ipv4, ipv6, protocol, udp};
use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Resolution, Writer, link};

use super::backlog::Backlog;
use crate::batch::{Burst, RxBatch, TxBatch, TxUnit};
use crate::link::LinkState;
use crate::port::{Blocked, Counters, Extra, OffloadState, Path, Polled, Port, Sent, pass_on};

/// Longest record: the largest packet with outer headers in front.
const SNAPLEN: u32 = 131_072;

/// A capture file of raw IP packets, for the traces of one or several ports in different threads.
#[derive(Debug)]
pub struct TraceFile<W: Write>(Arc<Mutex<Writer<Backlog<W>>>>);

impl<W: Write> Clone for TraceFile<W> {
    fn clone(&self) -> TraceFile<W> {
        TraceFile(Arc::clone(&self.0))
    }
}

impl<W: Write> TraceFile<W> {
    /// Writes the file's header, or that of a pcapng file with `is_pcapng`.
    ///
    /// # Errors
    /// The error of writing the header.
    pub fn new(file: W, is_pcapng: bool) -> io::Result<TraceFile<W>> {
        let format = if is_pcapng { Format::Pcapng } else { Format::Pcap };
        let header = PcapHeader { order: Order::NATIVE, nanos: false, snaplen: SNAPLEN, link: u32::from(link::RAW) };
        let mut writer = Writer::new(Backlog::new(file), format);
        writer.begin_pcap(&header, &header.bytes(), &[])?;
        writer.get_mut().flush()?;
        Ok(TraceFile(Arc::new(Mutex::new(writer))))
    }

    /// Limits the file to the given number of bytes: all traces that write to it end with the last packet that fits.
    #[must_use]
    pub fn limited(self, bytes: u64) -> TraceFile<W> {
        self.writer().get_mut().limit(bytes);
        self
    }

    fn writer(&self) -> MutexGuard<'_, Writer<Backlog<W>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that writes all packets that cross it to a capture file of raw IP packets (link type 101).
///
/// Packets of a packet port are written unchanged: trains whole, and owed checksums still owed. Datagrams of a datagram
/// port get outer IP and, but for a raw socket, UDP headers, made up from its addresses, with a computed UDP
/// checksum; so a trace of a port with zero checksums looks as if it had them. Units that the inner port dropped are in
/// the trace too.
///
/// The file is written after every call, so that a reader of a pipe sees packets as they pass. What a non-blocking file
/// does not take at once is kept, up to 16 MiB; packets beyond are not in the trace (`trace_lost`). Any other error of
/// the file ends the trace (`trace_failed`), and not the port; so does the limit of [`TraceFile::limited`]
/// (`trace_full`).
#[derive(Debug)]
pub struct Trace<P, W: Write> {
    inner: P,
    file: TraceFile<W>,
    record: Vec<u8>,
    before: Vec<u32>,
    /// Number of packets missing in the trace because its reader was too slow.
    lost: u64,
    /// Whether the trace has ended because of a file error.
    has_failed: bool,
    /// Whether the trace has ended at the limit of the file.
    is_full: bool,
}

/// Outer fields of a made-up header.
#[derive(Clone, Copy)]
struct Outside {
    source: SocketAddr,
    target: SocketAddr,
    protocol: u8,
    tos: u8,
    ttl: u8,
    df: bool,
}

impl<P: Port, W: Write> Trace<P, W> {
    /// Wraps `inner` and writes the file's header.
    ///
    /// # Errors
    /// The error of writing the header.
    pub fn new(inner: P, file: W) -> io::Result<Trace<P, W>> {
        TraceFile::new(file, false).map(|file| Trace::to(inner, file))
    }

    /// Wraps `inner` as [`Trace::new`] does, with a pcapng file.
    ///
    /// # Errors
    /// The error of writing the header.
    pub fn pcapng(inner: P, file: W) -> io::Result<Trace<P, W>> {
        TraceFile::new(file, true).map(|file| Trace::to(inner, file))
    }

    /// Wraps `inner`, with its packets written to a file that other traces may share.
    pub fn to(inner: P, file: TraceFile<W>) -> Trace<P, W> {
        Trace { inner, file, record: Vec::new(), before: Vec::new(), lost: 0, has_failed: false, is_full: false }
    }

    /// Writes the records of a call that are still in the backlog. An error ends the trace, and not the port.
    fn settle(&mut self, written: io::Result<()>) {
        if self.has_failed {
            return;
        }
        let mut writer = self.file.writer();
        let flushed = written.and_then(|()| writer.get_mut().flush());
        let is_full = writer.get_mut().is_full();
        drop(writer);
        if let Err(error) = flushed {
            self.has_failed = true;
            notice!(warn, %error, "the trace has ended, and packets continue to pass");
        } else if is_full && !self.is_full {
            self.is_full = true;
            notice!(warn, "the trace has reached its size and ended, and packets continue to pass");
        }
    }

    /// Returns whether no further packet is written; buffered bytes may still be waiting for a slow reader.
    fn has_ended(&self) -> bool {
        self.has_failed || self.is_full
    }

    /// Returns the inner port, and the file unless another trace writes to it as well.
    pub fn into_inner(self) -> (P, Option<W>) {
        let writer =
            Arc::into_inner(self.file.0).map(|writer| writer.into_inner().unwrap_or_else(PoisonError::into_inner));
        (self.inner, writer.map(|writer| writer.into_inner().into_inner()))
    }

    fn write(&mut self) -> io::Result<()> {
        let mut writer = self.file.writer();
        if writer.get_mut().is_full() {
            return Ok(());
        }
        if !writer.get_mut().has_room() {
            self.lost += 1;
            return Ok(());
        }
        let start = writer.get_mut().begin_record();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        writer.packet(&Outgoing {
            interface: 0,
            ticks: Some(Resolution::MICRO.ticks(nanos)),
            len: self.record.len() as u32,
            data: &[&self.record[..self.record.len().min(SNAPLEN as usize)]],
            options: &[],
        })?;
        writer.get_mut().end_record(start);
        Ok(())
    }

    fn write_unit(&mut self, unit: &TxUnit<'_>) -> io::Result<()> {
        self.record.clear();
        let path = unit.outer().and_then(|outer| Some((outer, self.inner.path(outer.slot, outer.to)?)));
        let Some((outer, path)) = path else {
            self.record.extend_from_slice(unit.head());
            unit.pieces().for_each(|piece| self.record.extend_from_slice(piece));
            return self.write();
        };
        let Path { source, peer: target, protocol, .. } = path;
        let outside = Outside { source, target, protocol, tos: outer.tos, ttl: outer.ttl, df: outer.df };
        let head = unit.head().get(usize::from(outer.skip)..).unwrap_or(&[]);
        wrap(&mut self.record, outside, std::iter::once(head).chain(unit.pieces()));
        self.write()
    }

    fn write_burst(&mut self, burst: &Burst, path: Path) -> io::Result<()> {
        let target = SocketAddr::new(burst.local.unwrap_or(path.listen.ip()), path.listen.port());
        for datagram in burst.datagrams() {
            self.record.clear();
            let bytes = datagram.as_ref();
            // A port with a socket for each says it by the first nibble of what they carry.
            let protocol = match (path.protocol, bytes.first().map_or(0, |byte| byte >> 4)) {
                (protocol::IPV4 | protocol::IPV6, 4) => protocol::IPV4,
                (protocol::IPV4 | protocol::IPV6, 6) => protocol::IPV6,
                (other, _) => other,
            };
            let (tos, ttl) = (burst.tos, burst.ttl.unwrap_or(64));
            let outside = Outside { source: burst.peer, target, protocol, tos, ttl, df: false };
            wrap(&mut self.record, outside, std::iter::once(bytes));
            self.write()?;
        }
        Ok(())
    }
}

/// Writes an IP packet of `pieces` into `record`, in a UDP datagram if the protocol is UDP.
fn wrap<'a>(record: &mut Vec<u8>, outside: Outside, pieces: impl Iterator<Item = &'a [u8]>) {
    let ip_len = if outside.source.is_ipv4() { ipv4::MIN_LEN } else { ipv6::LEN };
    let udp_len = if outside.protocol == protocol::UDP { udp::LEN } else { 0 };
    record.clear();
    record.resize(ip_len + udp_len, 0);
    pieces.for_each(|piece| record.extend_from_slice(piece));
    let len = record.len() - ip_len;
    let pseudo = match (outside.source.ip(), outside.target.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            record[ipv4::VERSION_IHL] = 0x45;
            record[ipv4::TOS] = outside.tos;
            put(record, ipv4::TOTAL_LEN, length(ip_len + len));
            put(record, ipv4::FRAGMENT, (if outside.df { ipv4::DF } else { 0 }).to_be_bytes());
            record[ipv4::TTL] = outside.ttl;
            record[ipv4::PROTOCOL] = outside.protocol;
            record[ipv4::SRC].copy_from_slice(&source.octets());
            record[ipv4::DST].copy_from_slice(&target.octets());
            let field = Field::complete(Sum::of(&record[..ip_len])).value();
            put(record, ipv4::CHECKSUM, field.to_be_bytes());
            pseudo_v4(source.octets(), target.octets(), protocol::UDP, len)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let first = 0x6000 | u16::from(outside.tos) << 4;
            put(record, ipv6::VERSION_CLASS_LABEL, first.to_be_bytes());
            put(record, ipv6::PAYLOAD_LEN, length(len));
            record[ipv6::NEXT_HEADER] = outside.protocol;
            record[ipv6::HOP_LIMIT] = outside.ttl;
            record[ipv6::SRC].copy_from_slice(&source.octets());
            record[ipv6::DST].copy_from_slice(&target.octets());
            pseudo_v6(source.octets(), target.octets(), protocol::UDP, len)
        }
        // A port has one family.
        _ => return record.clear(),
    };
    if udp_len > 0 {
        finish_udp(&mut record[ip_len..], &outside, pseudo);
    }
}

/// Fills in the UDP header at the start of `datagram`.
fn finish_udp(datagram: &mut [u8], outside: &Outside, pseudo: Sum) {
    put(datagram, udp::SRC_PORT, outside.source.port().to_be_bytes());
    put(datagram, udp::DST_PORT, outside.target.port().to_be_bytes());
    let len = length(datagram.len());
    put(datagram, udp::LENGTH, len);
    let mut sum = pseudo;
    sum.add(datagram);
    put(datagram, udp::CHECKSUM, Field::complete_udp(sum).value().to_be_bytes());
}

/// Writes a field of 16 bits at the offset `at`.
fn put(header: &mut [u8], at: usize, field: [u8; 2]) {
    header[at..at + 2].copy_from_slice(&field);
}

/// Returns the length of a datagram as 16 bits, which fits because a socket sent or received the datagram.
fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

impl<P: Port, W: Write> Port for Trace<P, W> {
    pass_on!(self, self.inner);

    /// Receives from the inner port.
    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let (packets, bursts) = (into.packets.len(), into.bursts.len());
        let polled = self.inner.receive(into, budget)?;
        if self.has_ended() {
            self.settle(Ok(()));
            return Ok(polled);
        }
        let mut written = Ok(());
        for packet in into.packets.iter().skip(packets) {
            self.record.clear();
            packet.pieces().for_each(|piece| self.record.extend_from_slice(piece));
            written = written.and_then(|()| self.write());
        }
        if let Some(path) = self.inner.path(0, 0) {
            for burst in into.bursts.iter().skip(bursts) {
                written = written.and_then(|()| self.write_burst(burst, path));
            }
        }
        self.settle(written);
        Ok(polled)
    }

    /// Transmits by the inner port.
    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        if self.has_ended() {
            self.settle(Ok(()));
            return self.inner.transmit(batch);
        }
        let mut before = std::mem::take(&mut self.before);
        before.clear();
        before.extend((0..batch.entries()).map(|entry| batch.position(entry)));
        let sent = self.inner.transmit(batch);
        let mut written = Ok(());
        for (entry, &position) in before.iter().enumerate() {
            for unit in batch.done_since(entry, position) {
                written = written.and_then(|()| self.write_unit(&unit));
            }
        }
        self.before = before;
        self.settle(written);
        sent
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        self.inner.extras(put);
        put(Extra::Number, "trace_lost", self.lost);
        put(Extra::Number, "trace_failed", u64::from(self.has_failed));
        put(Extra::Number, "trace_full", u64::from(self.is_full));
    }
}
