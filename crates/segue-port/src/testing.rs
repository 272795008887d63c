//! Helpers for tests: a network namespace for the calling thread, and packets built with arithmetic independent of the
//! engine's.

use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use segue::packet::{Csum, Frag, Kind, Packet, Start, Tunnels, Unit};

use crate::page::{Page, PagePool};

mod sys;

pub(crate) use sys::{
    allocations, next_edge, refuse_ioctl, set_send_buffer, tcp_socket, wait_for_error, wait_for_input, watch_writable,
};

/// Moves this thread into a new network namespace whose loopback interface is up. Notes that the test is skipped and
/// returns `None` where that is not permitted.
#[track_caller]
pub(crate) fn namespace() -> Option<()> {
    if let Err(error) = sys::unshare_network() {
        segue_lab::skip_this_test(&format!("no network namespace: {error}"));
        return None;
    }
    ip("link set lo up");
    Some(())
}

/// Runs `ip` with `arguments` in this thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `ip` with `arguments`; returns whether it succeeded.
pub(crate) fn try_ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// Waits until `address` is an address of this host that accepts packets. The kernel adds the local route of an IPv6
/// address from a work queue after the interface is up, with `nodad` too, and drops what comes before
/// (`Ip6InAddrErrors`).
pub(crate) fn wait_for_local(address: Ipv6Addr) {
    let route = format!("{:032x} 80 ", u128::from(address));
    let begin = Instant::now();
    while !std::fs::read_to_string("/proc/thread-self/net/ipv6_route").expect("a list of routes").contains(&route) {
        assert!(begin.elapsed() < Duration::from_secs(20), "no local route to {address}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the folded ones-complement sum of big-endian words: the naive oracle.
pub(crate) fn sum16(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo(source: IpAddr, target: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let tail = [0, protocol, (len >> 8) as u8, len as u8];
    [octets(source), octets(target), tail.to_vec()].concat()
}

/// The value of the checksum field of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// The checksum is correct.
    Good,
    /// The field has the pseudo-header sum, as a partial checksum.
    Primed,
}

/// Builds an IP packet around a transport header and its payload; `field` is the offset of the checksum in it.
pub(crate) fn ip_packet(ends: (IpAddr, IpAddr), protocol: u8, field: usize, body: &[u8], fill: Fill) -> Vec<u8> {
    let mut body = body.to_vec();
    body[field..field + 2].fill(0);
    let pseudo = pseudo(ends.0, ends.1, protocol, body.len());
    let value = match fill {
        Fill::Primed => sum16(&[&pseudo]),
        Fill::Good => match !sum16(&[&pseudo, &body]) {
            0 => 0xffff,
            value => value,
        },
    };
    body[field..field + 2].copy_from_slice(&value.to_be_bytes());
    let mut packet = match ends {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let len = (20 + body.len()) as u16;
            let mut header = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 1, 0x40, 0, 64, protocol, 0, 0];
            header.extend(source.octets());
            header.extend(target.octets());
            let sum = !sum16(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let len = body.len() as u16;
            let mut header = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, protocol, 64];
            header.extend(source.octets());
            header.extend(target.octets());
            header
        }
        _ => panic!("one family"),
    };
    packet.extend(body);
    packet
}

/// Returns whether the transport checksum of an IP packet without options is right.
pub(crate) fn checksum_is_good(packet: &[u8]) -> bool {
    let (header, protocol) = if packet[0] >> 4 == 4 { (20, packet[9]) } else { (40, packet[6]) };
    let addresses = if header == 20 { &packet[12..20] } else { &packet[8..40] };
    let len = packet.len() - header;
    sum16(&[addresses, &[0, protocol, (len >> 8) as u8, len as u8], &packet[header..]]) == 0xffff
}

/// Builds a UDP datagram without checksum.
pub(crate) fn udp(source: u16, target: u16, payload: &[u8]) -> Vec<u8> {
    let words = [source, target, (8 + payload.len()) as u16, 0];
    [words.map(u16::to_be_bytes).concat(), payload.to_vec()].concat()
}

/// Builds a TCP segment without options and checksum.
pub(crate) fn tcp(ports: (u16, u16), seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    segment
}

/// Builds an Ethernet frame around an IP packet, between two made-up stations; each tag is a type and its control
/// information.
pub(crate) fn ethernet(tags: &[(u16, u16)], packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(packet);
    frame
}

/// Loads `bytes` as a packet.
pub(crate) fn load(pages: &mut PagePool, bytes: &[u8]) -> Box<Packet<Page>> {
    load_from(pages, bytes, Start::Ip)
}

/// Loads `bytes` as an Ethernet frame.
pub(crate) fn load_frame(pages: &mut PagePool, bytes: &[u8]) -> Box<Packet<Page>> {
    load_from(pages, bytes, Start::Ethernet)
}

fn load_from(pages: &mut PagePool, bytes: &[u8], start: Start) -> Box<Packet<Page>> {
    let mut page = pages.take().expect("a page");
    page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let mut packet = Box::new(Packet::default());
    packet.load(Frag::all(page.freeze(bytes.len())), start, &Tunnels::NONE);
    packet
}

/// Returns `bytes` stored in one page, as ranges of at most `len` bytes.
pub(crate) fn ranges(pages: &mut PagePool, bytes: &[u8], len: usize) -> Vec<Frag<Page>> {
    let mut page = pages.take().expect("a page");
    page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let page = page.freeze(bytes.len());
    (0..bytes.len()).step_by(len).map(|at| Frag::new(page.clone(), at..at.saturating_add(len))).collect()
}

/// Returns whether the packet's checksum is correct, once a partial one is completed by the oracle's arithmetic.
pub(crate) fn is_good_once_complete(packet: &Packet<Page>) -> bool {
    let mut bytes = flat(packet);
    let (Some(header), Some(ip)) = (packet.layout.transport(), packet.layout.inner_ip()) else { return false };
    if matches!(packet.offload.unit, Unit::Train { .. } | Unit::Whole(Csum::Partial)) {
        let field = header.start() + if header.kind == Kind::Tcp { 16 } else { 6 };
        let sum = !sum16(&[&bytes[header.start()..]]);
        bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    checksum_is_good(&bytes[ip.start()..])
}

/// Returns all bytes of a packet.
pub(crate) fn flat(packet: &Packet<Page>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    packet.payload.pieces(0..packet.payload.len()).for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Returns bytes that differ by position and by `seed`.
pub(crate) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect()
}
