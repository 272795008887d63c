//! The program that selects the queue of a TUN or TAP device for each packet, always the same one for a flow.
//!
//! The driver's own choice moves a flow to the queue by which its other direction was written last, so that a later
//! packet may overtake those that wait in the queue before; and a socket may change the hash of its packets.

use std::io;
use std::os::fd::OwnedFd;

use crate::assembler::{Assembler, Fault, Helper, If, Instruction, Label, Op, Reg, Size};
use crate::code::CONTEXT;
use crate::sys::{self, ProgramKind};
use crate::wire::{ethernet, ethertype, ipv4, ipv6, number};

/// Register of the hash over the bytes read so far.
const HASH: Reg = Reg::R7;
/// Register of the offset of the next header.
const AT: Reg = Reg::R8;
/// Multiplier of each step: the odd number next to 2^32 divided by the golden ratio.
const FACTOR: i32 = 0x9e37_79b1_u32.cast_signed();
/// Stack offset of the headers that are read, which are at most 40 bytes.
const HEADER: i16 = -40;
/// Protocols whose headers begin with two port numbers: TCP, UDP, DCCP, SCTP and UDP-Lite.
const WITH_PORTS: [i32; 5] = [number::TCP, number::UDP, 33, 132, 136];

/// Loads the program for a device that carries Ethernet frames or IP packets; `seed` is a random number. It is of the
/// type for sockets. Its result, of which the driver takes the remainder, is a hash of addresses, protocol and ports.
/// All packets of a pair of addresses that are fragments have the same result, and so have those with extension headers
/// of IPv6; frames that are not IP, or after two VLAN tags, are distinguished by their Ethernet addresses.
///
/// # Errors
/// The kernel's refusal: EPERM without CAP_BPF where unprivileged programs are switched off
/// (`kernel.unprivileged_bpf_disabled`), ENOSYS without BPF; [`io::ErrorKind::Unsupported`] on a big-endian machine.
pub fn steering(is_ethernet: bool, seed: u32) -> io::Result<OwnedFd> {
    if cfg!(target_endian = "big") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let code = program(is_ethernet, seed).map_err(|fault| io::Error::other(fault.to_string()))?;
    sys::load(ProgramKind::Socket, &code, c"Dual MIT/GPL", "segue_steering")
}

fn program(is_ethernet: bool, seed: u32) -> Result<Vec<Instruction>, Fault> {
    let mut a = Assembler::default();
    let (v4, v6, end) = (a.label(), a.label(), a.label());
    a.copy(CONTEXT, Reg::R1);
    a.set(HASH, seed.cast_signed());
    a.set(AT, 0);
    if is_ethernet {
        begin_ethernet(&mut a, [v4, v6], end);
    } else {
        read(&mut a, 1, end);
        a.load(Size::B, Reg::R1, Reg::R10, HEADER);
        a.op_value(Op::Rsh, Reg::R1, 4);
        a.jump_if_value(If::Eq, Reg::R1, 4, v4);
        a.jump_if_value(If::Eq, Reg::R1, 6, v6);
        a.jump(end);
    }
    let ports = a.label();
    a.place(v4);
    read(&mut a, ipv4::LEN, end);
    [ipv4::SRC, ipv4::DST].into_iter().for_each(|at| mix(&mut a, Size::W, at));
    mix(&mut a, Size::B, ipv4::PROTOCOL);
    // Only the first fragment of a packet has its ports.
    a.load(Size::H, Reg::R1, Reg::R10, HEADER + ipv4::FRAGMENT);
    a.swap(Reg::R1, 16);
    a.op_value(Op::And, Reg::R1, ipv4::IS_FRAGMENT);
    a.jump_if_value(If::Ne, Reg::R1, 0, end);
    a.load(Size::B, Reg::R2, Reg::R10, HEADER);
    a.op_value(Op::And, Reg::R2, 0x0f);
    a.op_value(Op::Lsh, Reg::R2, 2);
    a.op(Op::Add, AT, Reg::R2);
    a.load(Size::B, Reg::R1, Reg::R10, HEADER + ipv4::PROTOCOL);
    a.jump(ports);
    a.place(v6);
    read(&mut a, ipv6::LEN, end);
    (ipv6::SRC..ipv6::LEN).step_by(4).for_each(|at| mix(&mut a, Size::W, at));
    mix(&mut a, Size::B, ipv6::NEXT_HEADER);
    a.op_value(Op::Add, AT, ipv6::LEN.into());
    a.load(Size::B, Reg::R1, Reg::R10, HEADER + ipv6::NEXT_HEADER);
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
    // The upper half has every bit of what was mixed in.
    a.copy(Reg::R0, HASH);
    a.op_value(Op::Mul, Reg::R0, FACTOR);
    a.op_value(Op::Rsh, Reg::R0, 32);
    a.end();
    a.finish()
}

/// Finds the IP header of a frame; a frame without one is identified by its addresses.
fn begin_ethernet(a: &mut Assembler, [v4, v6]: [Label; 2], end: Label) {
    let (tagged, plain) = (a.label(), a.label());
    read(a, ethernet::LEN, end);
    // The addresses stay where the next read does not go.
    for (at, to) in [(0, -64), (4, -60), (8, -56)] {
        a.load(Size::W, Reg::R1, Reg::R10, HEADER + at);
        a.store(Size::W, Reg::R10, to, Reg::R1);
    }
    a.op_value(Op::Add, AT, ethernet::LEN.into());
    a.load(Size::H, Reg::R1, Reg::R10, HEADER + ethernet::TYPE);
    a.swap(Reg::R1, 16);
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
    for at in [-64, -60, -56] {
        mix_from(a, Size::W, at);
    }
    a.jump(end);
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

    /// Returns an IP packet with the given last bytes of its addresses, its ports, and its payload.
    fn packet(is_v4: bool, ends: [u8; 2], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
        let mut packet = if is_v4 {
            let mut ip = vec![0x45, 0, 0, 0, 0, payload.len() as u8, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, ends[0]];
            ip.extend([198, 18, 0, ends[1]]);
            ip
        } else {
            let mut ip = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
            for end in ends {
                ip.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
            }
            ip
        };
        ports.iter().for_each(|port| packet.extend(port.to_be_bytes()));
        packet.extend([0; 4]);
        packet.extend_from_slice(payload);
        packet
    }

    /// Returns the frame with `packet`, after `tags`.
    fn frame(is_v4: bool, tags: &[u8], packet: &[u8]) -> Vec<u8> {
        let kind: &[u8] = if is_v4 { &[8, 0] } else { &[0x86, 0xdd] };
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], tags, kind, packet].concat()
    }

    /// Runs the program as the driver does: with the packet from its first byte on, which a test run expects after an
    /// Ethernet header.
    fn queue(program: &OwnedFd, packet: &[u8]) -> u32 {
        let whole = [&[0; 12], &[8, 0][..], packet].concat();
        sys::test_run(program.as_fd(), &whole, &[], 1).unwrap().result.cast_unsigned()
    }

    #[test]
    fn a_flow_has_one_queue_and_flows_are_spread() {
        for is_ethernet in [false, true] {
            let program = match steering(is_ethernet, 0x1234_5678) {
                Ok(program) => program,
                Err(error) => return segue_lab::skip_this_test(&format!("no BPF programs here: {error}")),
            };
            for (is_v4, tags) in [true, false].into_iter().flat_map(|v4| [(v4, &[][..]), (v4, &[0x81, 0, 0, 5])]) {
                let put = |packet: &[u8]| if is_ethernet { frame(is_v4, tags, packet) } else { packet.to_vec() };
                let mut seen = [0; 2];
                let mut all = BTreeSet::new();
                for flow in 0..256_u16 {
                    let ports = [5000 + flow, 443];
                    let of = |payload: &[u8]| queue(&program, &put(&packet(is_v4, [1, 2], ports, payload)));
                    let first = of(&[]);
                    assert_eq!((first, first), (of(&[7; 60]), of(&[0xff; 9])), "{is_ethernet} {is_v4} {flow}");
                    seen[first as usize % 2] += 1;
                    all.insert(first);
                }
                assert!(seen.iter().all(|count| (64..=192).contains(count)), "{seen:?}");
                assert!(all.len() > 250, "{} values", all.len());
                let other = queue(&program, &put(&packet(is_v4, [1, 3], [5000, 443], &[])));
                assert_ne!(other, queue(&program, &put(&packet(is_v4, [1, 2], [5000, 443], &[]))), "another address");
            }
        }
    }

    #[test]
    fn the_fragments_of_a_pair_of_hosts_have_one_queue_and_odd_packets_have_some() {
        let Ok(program) = steering(false, 9) else { return segue_lab::skip_this_test("no BPF programs here") };
        let fragment = |word: u16, ports: [u16; 2]| {
            let mut bytes = packet(true, [1, 2], ports, &[1; 40]);
            bytes[6..8].copy_from_slice(&word.to_be_bytes());
            queue(&program, &bytes)
        };
        let first = fragment(0x2000, [5000, 443]);
        for (word, ports) in [(0x2000, [5001, 443]), (0x2010, [1, 2]), (0x0020, [3, 4])] {
            assert_eq!(fragment(word, ports), first);
        }
        assert_ne!(fragment(0x4000, [5000, 443]), first, "it has DF and is whole");
        // Cut short after the IP header, as no kernel sends it, a packet still has a queue.
        let whole = packet(true, [1, 2], [1, 2], &[]);
        for len in 20..whole.len() {
            queue(&program, &whole[..len]);
        }
    }

    #[test]
    fn the_seed_decides_which_queue_a_flow_has() {
        let programs: Vec<_> = (0..8).map_while(|seed| steering(false, seed).ok()).collect();
        if programs.is_empty() {
            return segue_lab::skip_this_test("no BPF programs here");
        }
        let one = packet(true, [1, 2], [5000, 443], &[]);
        let results: BTreeSet<u32> = programs.iter().map(|program| queue(program, &one)).collect();
        assert!(results.len() > 1);
    }
}
