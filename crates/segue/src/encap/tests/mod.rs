//! Tests of golden bytes, refusals and properties. Everything here that computes a checksum does so byte by byte,
//! without the engine.

mod golden;
mod outer;
mod plain;
mod property;
mod refusals;
mod switched;
mod too_big;
mod toy;

use core::net::IpAddr;

use super::*;
use crate::packet::{Csum, Frag, Kind, LayerCsum, Packet, Remote, Start, Tunnels, Unit};

/// Tests that the sending half of a tunnel keeps to four cache lines: a process may have one for each of 10,000 peers,
/// and a packet to another peer than the last waits for each line.
#[test]
fn the_sending_half_takes_at_most_four_cache_lines() {
    assert!(size_of::<Encapsulator>() <= 4 * 64, "{} bytes", size_of::<Encapsulator>());
}

/// Parses a hexadecimal string with any white space in it.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the tunnel of the worked examples, seen from 198.18.0.1.
fn sender(mode: Mode, carrier: Carrier) -> Config {
    let config = Config::new(mode, carrier, address("198.18.0.1"), address("198.18.0.2"));
    Config { slots: SourcePorts::Fixed(0xc000), ..config }
}

/// Returns the configuration of the remote end of `config`.
fn opposite(config: &Config) -> Config {
    let mode = match config.mode {
        Mode::Gre(o) => Mode::Gre(GreOptions {
            ikey: o.okey,
            okey: o.ikey,
            icsum: o.ocsum,
            ocsum: o.icsum,
            iseq: o.oseq,
            oseq: o.iseq,
        }),
        mode => mode,
    };
    Config { mode, local: config.remote, remote: config.local, dport: config.port, port: config.dport, ..*config }
}

fn load(bytes: &[u8]) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes.to_vec()), Start::Ip, &Tunnels::NONE);
    packet
}

/// Loads a packet like [`load`], with the state of a primed transport checksum.
fn load_partial(bytes: &[u8]) -> Packet<Vec<u8>> {
    let mut packet = load(bytes);
    packet.offload.unit = Unit::Whole(Csum::Partial);
    packet
}

fn bytes_of(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = packet.head.bytes().to_vec();
    packet.payload.frags().iter().for_each(|frag| bytes.extend(frag.bytes()));
    bytes
}

/// Returns the ones-complement sum of bytes, folded.
fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for (at, &byte) in bytes.iter().enumerate() {
        sum += u32::from(byte) << if at % 2 == 0 { 8 } else { 0 };
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the pseudo header of the transport at `transport` in the IP packet at `ip`, as bytes.
fn pseudo(bytes: &[u8], ip: usize, transport: usize, protocol: u8) -> Vec<u8> {
    let mut pseudo = match bytes[ip] >> 4 {
        4 => bytes[ip + 12..ip + 20].to_vec(),
        _ => bytes[ip + 8..ip + 40].to_vec(),
    };
    pseudo.extend(((bytes.len() - transport) as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    pseudo
}

/// Completes the primed field of the transport at `transport`.
fn complete(bytes: &mut [u8], transport: usize, kind: Kind) {
    let at = transport + if kind == Kind::Tcp { 16 } else { 6 };
    let value = match (kind, !naive_sum(&bytes[transport..])) {
        (Kind::Udp, 0) => 0xffff,
        (_, value) => value,
    };
    put(bytes, at, value);
}

/// Returns the bytes that go on the wire: a single encapsulated packet with every owed checksum filled in.
fn seal(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let mut bytes = bytes_of(packet);
    let layer = packet.offload.layers()[0];
    let headers = packet.layout.headers();
    let mut finished = bytes.clone();
    if packet.offload.unit == Unit::Whole(Csum::Partial) {
        let transport = packet.layout.transport().unwrap();
        complete(&mut finished, transport.start(), transport.kind);
        if layer.remote != Some(Remote::Transport) {
            bytes.clone_from(&finished);
        }
    }
    if layer.gre == LayerCsum::Owed && layer.remote != Some(Remote::Gre) {
        let gre = headers.iter().find(|h| h.kind == Kind::Gre).unwrap().start();
        put(&mut bytes, gre + 4, !naive_sum(&finished[gre..]));
    }
    if layer.udp == LayerCsum::Owed {
        let udp = headers[1].start();
        let mut covered = pseudo(&bytes, 0, udp, 17);
        covered.extend(&bytes[udp..]);
        let value = match !naive_sum(&covered) {
            0 => 0xffff,
            value => value,
        };
        put(&mut bytes, udp + 6, value);
    }
    bytes
}
