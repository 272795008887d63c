//! The program that selects a queue of a TUN or TAP device, or a socket of a group, always the same one for a flow.
//!
//! The driver's own choice moves a flow to the queue by which its other direction was written last, so that a later
//! packet may overtake those that wait in the queue before; and a socket may change the hash of its packets. The hash
//! of a group of packet sockets takes all fragments of two hosts for one flow, and whole packets for others.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::assembler::{Assembler, Fault, Helper, If, Instruction, Label, Op, Reg, Size};
use crate::code::CONTEXT;
use crate::layout::packet;
use crate::map::Map;
use crate::sys::{self, MapKind, ProgramKind};
use crate::wire::{ethernet, ethertype, ipv4, ipv6, number};

/// Register of the hash over the bytes read so far.
const HASH: Reg = Reg::R7;
/// Register of the offset of the next header.
const AT: Reg = Reg::R8;
/// Register that is 1 if the packet is a first fragment, whose flow the later ones are to be found by, otherwise 0.
const IS_FIRST: Reg = Reg::R9;
/// Multiplier of each step: the odd number next to 2^32 divided by the golden ratio.
const FACTOR: i32 = 0x9e37_79b1_u32.cast_signed();
/// Stack offset of the headers that are read, which are at most 40 bytes.
const HEADER: i16 = -40;
/// Stack offset of the Ethernet addresses.
const STATIONS: i16 = -56;
/// Stack offset of the number of the protocol after the IP header.
const PROTOCOL: i16 = -64;
/// Stack offset of a fragmented packet's key: the hash of its addresses and its identification.
const KEY: i16 = -72;
/// Stack offset of the flow of a fragmented packet: the hash that selects its queue.
const FLOW: i16 = -80;
/// Number of fragmented packets whose flow is remembered; of more the oldest ones are forgotten.
const FRAGMENTED: u32 = 4096;
/// Argument of `bpf_skb_load_bytes_relative`: offsets count from the Ethernet header.
const FROM_LINK_HEADER: i32 = 0;
/// Number of IPv6 extension headers that are followed. Real packets have one or two.
const EXTENSIONS: usize = 4;
/// Protocols whose headers begin with two port numbers: TCP, UDP, DCCP, SCTP and UDP-Lite.
const WITH_PORTS: [i32; 5] = [number::TCP, number::UDP, 33, 132, 136];

/// A thing that the program selects for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// A queue of a TUN device, which carries IP packets.
    Tun,
    /// A queue of a TAP device, which carries Ethernet frames.
    Tap,
    /// One of the packet sockets that share an interface (`PACKET_FANOUT_EBPF`).
    Sockets,
}

/// Loads the program for a device or a group of sockets; `seed` is a random number. It is of the type for sockets. Its
/// result, of which the kernel takes the remainder, is a hash of addresses, protocol and ports.
///
/// The later fragments of a packet, which have no ports, have the result of the first one, as long as it arrives before
/// them and is among about the last 4096 that the program has seen; otherwise that of their addresses, of IPv4 with the
/// protocol. Up to four extension headers of IPv6 are followed, and two VLAN tags with sockets, one otherwise; frames
/// that are not IP are distinguished by their Ethernet addresses.
///
/// # Errors
/// The kernel's refusal: EPERM without CAP_BPF, ENOSYS without BPF; [`io::ErrorKind::Unsupported`] on a big-endian
/// machine.
pub fn steering(of: Steered, seed: u32) -> io::Result<OwnedFd> {
    if cfg!(target_endian = "big") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // It exists as long as the program.
    let fragmented = Map::create(MapKind::LruHash, 8, 8, FRAGMENTED, "segue_fragments")?;
    let code = program(of, seed, fragmented.as_fd()).map_err(|fault| io::Error::other(fault.to_string()))?;
    sys::load(ProgramKind::Socket, &code, c"Dual MIT/GPL", "segue_steering")
}

fn program(of: Steered, seed: u32, fragmented: BorrowedFd<'_>) -> Result<Vec<Instruction>, Fault> {
    let mut a = Assembler::default();
    let (v4, v6, end) = (a.label(), a.label(), a.label());
    a.copy(CONTEXT, Reg::R1);
    a.set(HASH, seed.cast_signed());
    // A program may serve several interfaces, with the same addresses behind them.
    a.load(Size::W, Reg::R1, CONTEXT, packet::IFINDEX);
    a.op(Op::Xor, HASH, Reg::R1);
    a.set(AT, 0);
    a.set(IS_FIRST, 0);
    match of {
        Steered::Tun => begin_packet(&mut a, [v4, v6], end),
        Steered::Tap => begin_frame(&mut a, [v4, v6], end),
        Steered::Sockets => begin_behind_link(&mut a, [v4, v6], end),
    }
    let ports = a.label();
    a.place(v4);
    read(&mut a, ipv4::LEN, end);
    [ipv4::SRC, ipv4::DST].into_iter().for_each(|at| mix(&mut a, Size::W, at));
    mix(&mut a, Size::B, ipv4::PROTOCOL);
    a.load(Size::H, Reg::R1, Reg::R10, HEADER + ipv4::FRAGMENT);
    a.swap(Reg::R1, 16);
    a.op_value(Op::And, Reg::R1, ipv4::IS_FRAGMENT);
    let whole = a.label();
    a.jump_if_value(If::Eq, Reg::R1, 0, whole);
    a.op_value(Op::And, Reg::R1, ipv4::OFFSET);
    fragment(&mut a, (Size::H, ipv4::ID), fragmented, end);
    a.place(whole);
    a.load(Size::B, Reg::R2, Reg::R10, HEADER);
    a.op_value(Op::And, Reg::R2, 0x0f);
    a.op_value(Op::Lsh, Reg::R2, 2);
    a.op(Op::Add, AT, Reg::R2);
    a.load(Size::B, Reg::R1, Reg::R10, HEADER + ipv4::PROTOCOL);
    a.jump(ports);
    a.place(v6);
    read(&mut a, ipv6::LEN, end);
    (ipv6::SRC..ipv6::LEN).step_by(4).for_each(|at| mix(&mut a, Size::W, at));
    a.op_value(Op::Add, AT, ipv6::LEN.into());
    a.load(Size::B, Reg::R1, Reg::R10, HEADER + ipv6::NEXT_HEADER);
    follow_extensions(&mut a, fragmented, end);
    a.store(Size::D, Reg::R10, PROTOCOL, Reg::R1);
    mix_from(&mut a, Size::D, PROTOCOL);
    a.load(Size::D, Reg::R1, Reg::R10, PROTOCOL);
    a.place(ports);
    let has_ports = a.label();
    for protocol in WITH_PORTS {
        a.jump_if_value(If::Eq, Reg::R1, protocol, has_ports);
    }
    a.jump(end);
    a.place(has_ports);
    read(&mut a, 4, end);
    mix(&mut a, Size::W, 0);
    a.place(end);
    remember(&mut a, fragmented);
    // The upper half has every bit of what was mixed in.
    a.copy(Reg::R0, HASH);
    a.op_value(Op::Mul, Reg::R0, FACTOR);
    a.op_value(Op::Rsh, Reg::R0, 32);
    a.end();
    a.finish()
}

/// Finds the IP header of a packet without link header.
fn begin_packet(a: &mut Assembler, [v4, v6]: [Label; 2], end: Label) {
    read(a, 1, end);
    a.load(Size::B, Reg::R1, Reg::R10, HEADER);
    a.op_value(Op::Rsh, Reg::R1, 4);
    a.jump_if_value(If::Eq, Reg::R1, 4, v4);
    a.jump_if_value(If::Eq, Reg::R1, 6, v6);
    a.jump(end);
}

/// Finds the IP header of a frame; a frame without one is identified by its addresses.
fn begin_frame(a: &mut Assembler, versions: [Label; 2], end: Label) {
    read(a, ethernet::LEN, end);
    // The addresses stay where the next read does not go.
    for at in [0, 4, 8] {
        a.load(Size::W, Reg::R1, Reg::R10, HEADER + at);
        a.store(Size::W, Reg::R10, STATIONS + at, Reg::R1);
    }
    a.op_value(Op::Add, AT, ethernet::LEN.into());
    a.load(Size::H, Reg::R1, Reg::R10, HEADER + ethernet::TYPE);
    a.swap(Reg::R1, 16);
    behind_tag(a, versions, end);
    mix_stations(a);
    a.jump(end);
}

/// Finds the IP header of a frame that a packet socket receives: it begins after the Ethernet header, and the first
/// VLAN tag is kept beside it.
fn begin_behind_link(a: &mut Assembler, versions: [Label; 2], end: Label) {
    a.load(Size::W, Reg::R1, CONTEXT, packet::PROTOCOL);
    a.swap(Reg::R1, 16);
    behind_tag(a, versions, end);
    a.copy(Reg::R1, CONTEXT);
    a.set(Reg::R2, 0);
    a.frame(Reg::R3, STATIONS);
    a.set(Reg::R4, ethernet::ADDRESSES_LEN.into());
    a.set(Reg::R5, FROM_LINK_HEADER);
    a.call(Helper::SkbLoadBytesRelative);
    a.jump_if_value(If::Ne, Reg::R0, 0, end);
    mix_stations(a);
    a.jump(end);
}

/// Jumps to the code of an IP version by the EtherType in R1, or by that after one VLAN tag. Other frames go on.
fn behind_tag(a: &mut Assembler, [v4, v6]: [Label; 2], end: Label) {
    let (tagged, plain) = (a.label(), a.label());
    for kind in ethertype::VLANS {
        a.jump_if_value(If::Eq, Reg::R1, kind, tagged);
    }
    a.jump(plain);
    a.place(tagged);
    read(a, ethernet::VLAN_LEN, end);
    a.op_value(Op::Add, AT, ethernet::VLAN_LEN.into());
    a.load(Size::H, Reg::R1, Reg::R10, HEADER + ethernet::VLAN_TYPE);
    a.swap(Reg::R1, 16);
    a.place(plain);
    a.jump_if_value(If::Eq, Reg::R1, ethertype::IPV4, v4);
    a.jump_if_value(If::Eq, Reg::R1, ethertype::IPV6, v6);
}

/// Follows the extension headers of IPv6 at [`AT`], the first of which is of the type in R1, and returns that of the
/// header after them there.
fn follow_extensions(a: &mut Assembler, fragmented: BorrowedFd<'_>, end: Label) {
    let over = a.label();
    for _ in 0..EXTENSIONS {
        let (options, next) = (a.label(), a.label());
        for kind in number::EXTENSIONS {
            a.jump_if_value(If::Eq, Reg::R1, kind, options);
        }
        a.jump_if_value(If::Ne, Reg::R1, number::FRAGMENT, over);
        read(a, ipv6::FRAGMENT_LEN, end);
        a.op_value(Op::Add, AT, ipv6::FRAGMENT_LEN.into());
        a.load(Size::H, Reg::R1, Reg::R10, HEADER + ipv6::FRAGMENT);
        a.swap(Reg::R1, 16);
        a.op_value(Op::And, Reg::R1, ipv6::IS_FRAGMENT);
        // An atomic fragment is a whole packet (RFC 6946).
        a.jump_if_value(If::Eq, Reg::R1, 0, next);
        a.op_value(Op::And, Reg::R1, ipv6::OFFSET);
        fragment(a, (Size::W, ipv6::FRAGMENT_ID), fragmented, end);
        a.jump(next);
        a.place(options);
        read(a, ipv6::FRAGMENT_LEN, end);
        // Its length is in units of eight bytes, without the first one.
        a.load(Size::B, Reg::R2, Reg::R10, HEADER + 1);
        a.op_value(Op::Add, Reg::R2, 1);
        a.op_value(Op::Lsh, Reg::R2, 3);
        a.op(Op::Add, AT, Reg::R2);
        a.place(next);
        a.load(Size::B, Reg::R1, Reg::R10, HEADER);
    }
    a.place(over);
}

/// Makes the key of a fragment whose offset is in R1, from the hash and the identification at `id` of the bytes read. A
/// first one goes on; a later one has the flow of the first, if it is known, and ends.
fn fragment(a: &mut Assembler, id: (Size, i16), fragmented: BorrowedFd<'_>, end: Label) {
    let (later, on) = (a.label(), a.label());
    a.copy(IS_FIRST, Reg::R1);
    a.store(Size::D, Reg::R10, FLOW, HASH);
    mix(a, id.0, id.1);
    a.store(Size::D, Reg::R10, KEY, HASH);
    a.load(Size::D, HASH, Reg::R10, FLOW);
    a.jump_if_value(If::Ne, IS_FIRST, 0, later);
    a.set(IS_FIRST, 1);
    a.jump(on);
    a.place(later);
    a.set(IS_FIRST, 0);
    a.map(Reg::R1, fragmented);
    a.frame(Reg::R2, KEY);
    a.call(Helper::MapLookupElem);
    a.jump_if_value(If::Eq, Reg::R0, 0, end);
    a.load(Size::D, HASH, Reg::R0, 0);
    a.jump(end);
    a.place(on);
}

/// Stores the flow of a first fragment.
fn remember(a: &mut Assembler, fragmented: BorrowedFd<'_>) {
    let done = a.label();
    a.jump_if_value(If::Eq, IS_FIRST, 0, done);
    a.store(Size::D, Reg::R10, FLOW, HASH);
    a.map(Reg::R1, fragmented);
    a.frame(Reg::R2, KEY);
    a.frame(Reg::R3, FLOW);
    a.set(Reg::R4, 0);
    a.call(Helper::MapUpdateElem);
    a.place(done);
}

/// Reads `len` bytes at [`AT`] to [`HEADER`]; jumps to `short` if there are fewer.
fn read(a: &mut Assembler, len: i16, short: Label) {
    a.copy(Reg::R1, CONTEXT);
    a.copy(Reg::R2, AT);
    a.frame(Reg::R3, HEADER);
    a.set(Reg::R4, len.into());
    a.call(Helper::SkbLoadBytes);
    a.jump_if_value(If::Ne, Reg::R0, 0, short);
}

/// Mixes the field at the offset `at` of the bytes read into the hash.
fn mix(a: &mut Assembler, size: Size, at: i16) {
    mix_from(a, size, HEADER + at);
}

/// Mixes the Ethernet addresses into the hash.
fn mix_stations(a: &mut Assembler) {
    for at in [0, 4, 8] {
        mix_from(a, Size::W, STATIONS + at);
    }
}

fn mix_from(a: &mut Assembler, size: Size, place: i16) {
    a.load(size, Reg::R1, Reg::R10, place);
    a.op(Op::Xor, HASH, Reg::R1);
    a.op_value(Op::Mul, HASH, FACTOR);
    a.copy(Reg::R1, HASH);
    a.op_value(Op::Rsh, Reg::R1, 32);
    a.op(Op::Xor, HASH, Reg::R1);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::AsFd;

    use super::*;

    const ALL: [Steered; 3] = [Steered::Tun, Steered::Tap, Steered::Sockets];
    /// Addresses that differ in their last bytes.
    const ENDS: [u8; 2] = [1, 2];

    /// Returns an IP packet between hosts of the given last bytes, with bytes that begin with a header of `protocol`.
    fn ip(is_v4: bool, ends: [u8; 2], protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut packet = if is_v4 {
            let mut ip = vec![0x45, 0, 0, 20 + body.len() as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            ends.iter().for_each(|end| ip.extend([198, 18, 0, *end]));
            ip
        } else {
            let mut ip = vec![0x60, 0, 0, 0, 0, body.len() as u8, protocol, 64];
            for end in ends {
                ip.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
            }
            ip
        };
        packet.extend_from_slice(body);
        packet
    }

    /// Returns the start of a UDP datagram.
    fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
        let ports = ports.iter().flat_map(|port| port.to_be_bytes());
        ports.chain([0; 4]).chain(payload.iter().copied()).collect()
    }

    /// Returns a fragment with an offset in units of eight bytes; `before` and `behind` are IPv6 extension headers of
    /// eight bytes, before and after the fragment header.
    fn fragment(is_v4: bool, ends: [u8; 2], id: u16, at: u16, more: bool, headers: [&[u8]; 2], body: &[u8]) -> Vec<u8> {
        if is_v4 {
            let mut packet = ip(true, ends, 17, body);
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            packet[6..8].copy_from_slice(&(at | if more { 0x2000 } else { 0 }).to_be_bytes());
            return packet;
        }
        // Each is the type of the header, whose next one has that of the following.
        let types: Vec<u8> = headers[0].iter().chain([&44]).chain(headers[1]).chain([&17]).copied().collect();
        let mut all = Vec::new();
        for pair in types.windows(2) {
            let word = at << 3 | u16::from(more);
            match pair[0] {
                44 => all.extend([&[pair[1], 0][..], &word.to_be_bytes(), &[0, 0], &id.to_be_bytes()].concat()),
                _ => all.extend([pair[1], 0, 1, 4, 0, 0, 0, 0]),
            }
            // A later fragment has only what is before the fragment header, and that.
            if pair[0] == 44 && at > 0 {
                break;
            }
        }
        all.extend_from_slice(body);
        ip(false, ends, types[0], &all)
    }

    /// Returns the frame with `packet`, after `tags`.
    fn frame(is_v4: bool, tags: &[u8], packet: &[u8]) -> Vec<u8> {
        let kind: &[u8] = if is_v4 { &[8, 0] } else { &[0x86, 0xdd] };
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], tags, kind, packet].concat()
    }

    /// Runs the program as the kernel does: for queues with the packet or frame from its first byte on, which a test
    /// run expects after an Ethernet header, for sockets with the frame, of which a test run removes that header.
    fn run(of: Steered, program: &OwnedFd, is_v4: bool, tags: &[u8], packet: &[u8]) -> u32 {
        let bytes = match of {
            Steered::Tun => [&[0; 12], &[8, 0][..], packet].concat(),
            Steered::Tap => [&[0; 12], &[8, 0][..], &frame(is_v4, tags, packet)].concat(),
            Steered::Sockets => frame(is_v4, tags, packet),
        };
        sys::test_run(program.as_fd(), &bytes, &[], 1).unwrap().result.cast_unsigned()
    }

    /// Returns the programs of all kinds, or says why the test is skipped.
    fn programs(seed: u32) -> Option<Vec<(Steered, OwnedFd)>> {
        let made = ALL.into_iter().map(|of| Ok((of, steering(of, seed)?))).collect::<io::Result<_>>();
        made.map_err(|error| segue_lab::skip_this_test(&format!("no BPF programs here: {error}"))).ok()
    }

    #[test]
    fn a_flow_has_one_queue_and_flows_are_spread() {
        for (of, program) in programs(0x1234_5678).into_iter().flatten() {
            for (is_v4, tags) in [true, false].into_iter().flat_map(|v4| [(v4, &[][..]), (v4, &[0x81, 0, 0, 5])]) {
                if of == Steered::Tun && !tags.is_empty() {
                    continue;
                }
                let queue = |ends, flow: u16, payload: &[u8]| {
                    run(of, &program, is_v4, tags, &ip(is_v4, ends, 17, &udp([flow, 443], payload)))
                };
                let mut seen = [0; 2];
                let mut all = BTreeSet::new();
                for flow in 5000..5256_u16 {
                    let first = queue(ENDS, flow, &[]);
                    let others = (queue(ENDS, flow, &[7; 60]), queue(ENDS, flow, &[0xff; 9]));
                    assert_eq!((first, first), others, "{of:?} {is_v4} {flow}");
                    seen[first as usize % 2] += 1;
                    all.insert(first);
                }
                assert!(seen.iter().all(|count| (64..=192).contains(count)), "{seen:?}");
                assert!(all.len() > 250, "{} values", all.len());
                assert_ne!(queue([1, 3], 5000, &[]), queue(ENDS, 5000, &[]), "another address");
            }
        }
    }

    #[test]
    fn frames_without_ip_are_distinguished_by_their_addresses() {
        for (of, program) in programs(7).into_iter().flatten().filter(|(of, _)| *of != Steered::Tun) {
            let queue = |last: u8, body: &[u8]| {
                let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, last, 0x88, 0xcc], body].concat();
                let before: &[u8] = if of == Steered::Tap { &[0; 14] } else { &[] };
                sys::test_run(program.as_fd(), &[before, &frame].concat(), &[], 1).unwrap().result
            };
            assert_eq!(queue(1, &[1; 60]), queue(1, &[2; 46]), "{of:?}");
            let all: BTreeSet<i32> = (0..64).map(|last| queue(last, &[0; 46])).collect();
            assert_eq!(all.len(), 64, "{of:?}");
        }
    }

    /// Tests the fragments of many flows between two hosts, with IPv6 extension headers too: each goes where the whole
    /// packets of its flow go.
    #[test]
    fn fragments_go_with_the_whole_packets_of_their_flow() {
        for (of, program) in programs(9).into_iter().flatten() {
            let forms = [[&[][..], &[]], [&[0], &[]], [&[], &[60]], [&[0, 43], &[60]]];
            for (is_v4, headers) in forms.map(|form| (false, form)).into_iter().chain([(true, forms[0])]) {
                let queue = |packet: &[u8]| run(of, &program, is_v4, &[], packet);
                let whole: Vec<u32> =
                    (0..64).map(|flow| queue(&ip(is_v4, ENDS, 17, &udp([5000 + flow, 443], &[1; 9])))).collect();
                assert_eq!(whole.iter().collect::<BTreeSet<_>>().len(), whole.len());
                let part = |id, at, more, body: &[u8]| queue(&fragment(is_v4, ENDS, id, at, more, headers, body));
                // All first ones come before all later ones; an identification that comes again is another packet's.
                for round in [0, 20] {
                    let id = |flow: u16| (flow + round) % 64;
                    for flow in 0..64 {
                        let first = part(id(flow), 0, true, &udp([5000 + flow, 443], &[1; 16]));
                        assert_eq!(first, whole[usize::from(flow)], "{of:?} {is_v4} {headers:?} {flow}");
                    }
                    for (flow, (at, more)) in (0..64).flat_map(|flow| [(flow, (3, true)), (flow, (6, false))]) {
                        let later = part(id(flow), at, more, &[9; 24]);
                        assert_eq!(later, whole[usize::from(flow)], "{of:?} {is_v4} {headers:?} {flow} at {at}");
                    }
                }
                // Of a packet whose first fragment has not come, all have one queue; so has another pair of hosts.
                let unknown = part(999, 3, true, &[9; 24]);
                assert_eq!(unknown, part(998, 6, false, &[1; 8]));
                let other = |id| queue(&fragment(is_v4, [1, 3], id, 3, true, headers, &[9; 24]));
                assert_eq!(other(5), other(6), "the identifications are those of other hosts");
                assert_ne!(other(5), unknown);
            }
            // An atomic fragment (RFC 6946) is a whole packet, and not remembered.
            let queue = |packet: &[u8]| run(of, &program, false, &[], packet);
            let datagram = udp([5000, 443], &[1; 9]);
            let atomic = queue(&fragment(false, ENDS, 77, 0, false, [&[], &[]], &datagram));
            assert_eq!(atomic, queue(&ip(false, ENDS, 17, &datagram)));
            let of_id = |id| queue(&fragment(false, ENDS, id, 3, false, [&[], &[]], &[9; 24]));
            assert_eq!(of_id(77), of_id(78));
        }
    }

    #[test]
    fn more_fragmented_packets_than_are_remembered_cost_only_the_oldest_their_queue() {
        let Ok(program) = steering(Steered::Tun, 3) else {
            return segue_lab::skip_this_test("no BPF programs here");
        };
        let queue = |id, at, body: &[u8]| {
            run(Steered::Tun, &program, true, &[], &fragment(true, ENDS, id, at, true, [&[], &[]], body))
        };
        for id in 0..3 * FRAGMENTED as u16 {
            queue(id, 0, &udp([id, 443], &[1; 16]));
            let first = run(Steered::Tun, &program, true, &[], &ip(true, ENDS, 17, &udp([id, 443], &[])));
            assert_eq!(queue(id, 3, &[1; 8]), first, "{id}");
        }
    }

    #[test]
    fn packets_that_end_early_have_some_queue() {
        for (of, program) in programs(9).into_iter().flatten() {
            for is_v4 in [true, false] {
                let headers: [&[u8]; 2] = [&[0], &[60]];
                for (at, more) in [(0, true), (3, true), (0, false)] {
                    let whole = fragment(is_v4, ENDS, 5, at, more, headers, &udp([1, 2], &[1; 9]));
                    // Cut short after the fixed header, as no kernel sends it; a test run refuses shorter ones.
                    for len in (if is_v4 { 20 } else { 40 })..whole.len() {
                        run(of, &program, is_v4, &[], &whole[..len]);
                    }
                }
            }
            // More extension headers than are followed.
            let many = fragment(false, ENDS, 5, 0, true, [&[0, 43, 60, 60, 60], &[]], &udp([1, 2], &[1; 9]));
            run(of, &program, false, &[], &many);
        }
    }

    #[test]
    fn the_seed_decides_which_queue_a_flow_has() {
        let programs: Vec<_> = (0..8).map_while(|seed| steering(Steered::Tun, seed).ok()).collect();
        if programs.is_empty() {
            return segue_lab::skip_this_test("no BPF programs here");
        }
        let one = ip(true, ENDS, 17, &udp([5000, 443], &[]));
        let results: BTreeSet<u32> =
            programs.iter().map(|program| run(Steered::Tun, program, true, &[], &one)).collect();
        assert!(results.len() > 1);
    }
}
