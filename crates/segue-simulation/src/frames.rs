//! Frames of both hosts: Ethernet, IPv4, TCP with timestamps or UDP, and a payload of zeros.

use segue::checksum::{Field, Sum, pseudo_v4};
use segue::wire::write_u16;

const ETHERNET: usize = 14;
const IP: usize = 20;
const TRANSPORT: usize = ETHERNET + IP;
/// Length of all headers of a TCP segment, bytes.
pub(super) const TCP_HEAD: usize = TRANSPORT + 32;
/// Length of all headers of a UDP datagram, bytes.
pub(super) const UDP_HEAD: usize = TRANSPORT + 8;
/// Payload length of a full segment, bytes, and of a datagram of iperf3, which derives its size from the MSS.
pub(super) const MSS: usize = 1448;

pub(super) const HOST: [u8; 6] = [0x02, 0x78, 0, 0, 0, 1];
const PEER: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

/// The sender of a frame, which determines the state of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The peer: the checksum is complete.
    Peer,
    /// The host, which leaves the checksum to the chip.
    Host,
}

/// The fields of a TCP segment that the simulation uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// The receive window in units of 256 bytes.
    pub(super) window: u16,
}

/// Builds a TCP segment or train with `len` bytes of payload.
pub(super) fn tcp(sender: Sender, id: u16, segment: Segment, len: usize) -> Vec<u8> {
    let mut frame = ip(sender, id, 6, TCP_HEAD - TRANSPORT + len);
    let tcp = &mut frame[TRANSPORT..];
    write_u16(tcp, 0, 5201);
    write_u16(tcp, 2, 5201);
    tcp[4..8].copy_from_slice(&segment.seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&segment.ack.to_be_bytes());
    // Data offset 8 words, flag ACK.
    (tcp[12], tcp[13]) = (8 << 4, 0x10);
    write_u16(tcp, 14, segment.window);
    // Two NOPs, then the timestamps option (RFC 7323, section 3.2) with constant values.
    tcp[20..32].copy_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    checksum(sender, frame, 6, 16)
}

/// Builds a UDP datagram with `len` bytes of payload.
pub(super) fn udp(sender: Sender, id: u16, len: usize) -> Vec<u8> {
    let total = UDP_HEAD - TRANSPORT + len;
    let mut frame = ip(sender, id, 17, total);
    let udp = &mut frame[TRANSPORT..];
    write_u16(udp, 0, 5201);
    write_u16(udp, 2, 5201);
    write_u16(udp, 4, total as u16);
    checksum(sender, frame, 17, 6)
}

/// Reads the TCP header in `head`.
pub(super) fn segment(head: &[u8]) -> Segment {
    let word = |at: usize| head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    let window = (word(TRANSPORT + 12) & 0xffff) as u16;
    Segment { seq: word(TRANSPORT + 4), ack: word(TRANSPORT + 8), window }
}

fn addresses(sender: Sender) -> ([u8; 4], [u8; 4]) {
    let (host, peer) = ([198, 18, 0, 1], [198, 18, 0, 2]);
    if sender == Sender::Host { (host, peer) } else { (peer, host) }
}

fn ip(sender: Sender, id: u16, protocol: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![0; TRANSPORT + len];
    let (to, by) = if sender == Sender::Host { (PEER, HOST) } else { (HOST, PEER) };
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&by);
    frame[12..14].copy_from_slice(&[8, 0]);
    let (source, destination) = addresses(sender);
    let ip = &mut frame[ETHERNET..];
    ip[0] = 0x45;
    write_u16(ip, 2, (IP + len) as u16);
    write_u16(ip, 4, id);
    // DF
    ip[6] = 0x40;
    (ip[8], ip[9]) = (64, protocol);
    ip[12..16].copy_from_slice(&source);
    ip[16..20].copy_from_slice(&destination);
    let field = Field::complete(Sum::of(&ip[..IP])).value();
    write_u16(ip, 10, field);
    frame
}

fn checksum(sender: Sender, mut frame: Vec<u8>, protocol: u8, at: usize) -> Vec<u8> {
    let (source, destination) = addresses(sender);
    let mut sum = pseudo_v4(source, destination, protocol, frame.len() - TRANSPORT);
    let field = match sender {
        Sender::Host => Field::primed(sum),
        Sender::Peer => {
            // The payload is zeros and adds nothing to the sum.
            sum.add(&frame[TRANSPORT..frame.len().min(TCP_HEAD)]);
            Field::complete_udp(sum)
        }
    };
    write_u16(&mut frame, TRANSPORT + at, field.value());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use segue_testkit::oracle;

    #[test]
    fn frames_of_the_far_end_are_right() {
        let header = Segment { seq: 7, ack: 0xffff_0001, window: 0x1234 };
        let frames = [tcp(Sender::Peer, 1, header, MSS), tcp(Sender::Peer, 2, header, 0), udp(Sender::Peer, 3, MSS)];
        for frame in &frames {
            oracle::verify(frame, oracle::Start::Ethernet, &oracle::Ports::default()).unwrap();
        }
        assert_eq!(frames[0].len(), 1514);
        assert_eq!(segment(&frames[1]), header);
    }
}
