//! The egress program of the tunnels' interfaces: it prepends the outer headers to a packet or train and sends it
//! through the interface towards the remote.
//!
//! The headers are a copy of those that the engine's encapsulator makes, with the fields that differ from packet to
//! packet filled in: DSCP and ECN (RFC 6040, normal mode), length, identification, DF, TTL, header checksum, flow
//! label, source port. A train stays whole: the kernel cuts it where the interface does not take it.

use crate::assembler::{Fault, Helper, If, Instruction, Op, Reg, Size};
use crate::code::{CONTEXT, COUNTERS, Code, Index, Maps, TUNNEL, TableMaps, Tunnels, protocol};
use crate::counters::Counter;
use crate::layout::{ETHERNET_LEN, HEADERS_LEN, PORTS, packet, peer_counts, room, tunnel};
use crate::order::Flows;
use crate::peer_table::{self, Exits, KEY_LEN};
use crate::wire::{self, ethernet, ipv4, ipv6, number, tcp, udp};

/// Stack offset of the first 20 bytes of the inner packet.
const INNER: i16 = -40;
/// Stack offset of the outer headers, with room for an inner Ethernet header after them.
const OUTER: i16 = INNER - HEADERS_LEN as i16 - 16;
/// Stack offset of the inner Ethernet header.
const FRAME: i16 = OUTER - 80;
/// Stack offset of the room in front of the outer headers, for their Ethernet header.
const LINK: i16 = OUTER - 16;
const TOS: i16 = OUTER - 24;
const TTL: i16 = OUTER - 32;
/// Stack offset of the DF bit of the outer header: 0x4000 for an inner packet with DF.
const DF: i16 = OUTER - 40;
const HASH: i16 = OUTER - 48;
/// Stack offset of the address of the outer headers to copy.
const TEMPLATE: i16 = OUTER - 56;
/// Stack offset of the length of the inner IP header and of the link header in front of it.
const INNER_HEADER: i16 = OUTER - 64;
/// Stack offset of one byte, for loads of single bytes from the packet.
const BYTE: i16 = OUTER - 88;
/// Stack offset of the key by which a peer is looked up.
const KEY: i16 = OUTER - 88 - KEY_LEN;

/// Length of the inner packet or frame.
const LEN: Reg = Reg::R9;

/// The form of the outer headers that all tunnels of a port have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Whether the outer addresses are IPv4 addresses.
    pub(crate) is_v4: bool,
    pub(crate) has_udp: bool,
    /// Whether Ethernet frames are inside, after UDP and 8 bytes of VXLAN or Geneve.
    pub(crate) has_frames: bool,
}

impl Form {
    pub(crate) fn ip_len(self) -> i16 {
        wire::ip_len(self.is_v4)
    }

    /// Returns the length of the link header in front of the inner packet.
    fn link_len(self) -> i16 {
        if self.has_frames { ETHERNET_LEN } else { 0 }
    }
}

/// Assembles the BPF program for egress.
pub(crate) fn program(form: Form, maps: &Maps<'_>) -> Result<Vec<Instruction>, Fault> {
    let mut code = Code::begin(maps, Index::LookedUp);
    let out = code.out;
    match &maps.tunnels {
        Tunnels::Single { by_interface, .. } => {
            code.a.load(Size::W, Reg::R1, CONTEXT, packet::IFINDEX);
            code.look_up(*by_interface, TUNNEL, out);
        }
        Tunnels::Table(table) => find_peer(&mut code, maps, table),
    }
    code.a.load(Size::W, Reg::R1, TUNNEL, tunnel::COUNTERS);
    code.look_up(maps.counters, COUNTERS, out);
    let no_route = code.leave(Counter::NoRoute);
    code.a.load(Size::W, Reg::R1, TUNNEL, tunnel::LINK);
    code.a.jump_if_value(If::Eq, Reg::R1, 0, no_route);
    code.a.load(Size::W, LEN, CONTEXT, packet::LEN);

    if form.has_frames {
        read_frame(&mut code);
    }
    read_inner(&mut code, form);
    check_size(&mut code, form, maps);
    choose_fields(&mut code);
    code.note_segments();
    make_room(&mut code, form);
    write_headers(&mut code, form);

    // Marks and filters of the inner packet do not hold for the outer one, as with a socket of the daemon.
    code.a.set(Reg::R1, 0);
    code.a.store(Size::W, CONTEXT, packet::MARK, Reg::R1);
    code.count_unit(LEN, COUNTERS, Counter::SentUnits as i16 * 8);
    if let Tunnels::Table(table) = &maps.tunnels {
        code.a.set(Reg::R1, 1);
        code.count_peer(table, LEN, peer_counts::SENT);
    }
    // Without a given neighbour the kernel looks up the route and asks for the neighbour.
    code.a.load(Size::W, Reg::R1, TUNNEL, tunnel::LINK);
    for register in [Reg::R2, Reg::R3, Reg::R4] {
        code.a.set(register, 0);
    }
    code.a.call(Helper::RedirectNeigh);
    code.a.end();
    code.finish(maps)
}

/// Looks up the peer for the packet's destination, unless the daemon serves it.
fn find_peer(code: &mut Code, maps: &Maps<'_>, table: &TableMaps<'_>) {
    let out = code.out;
    code.a.set(Reg::R1, 0);
    code.look_up(maps.counters, COUNTERS, out);
    let [none, short, version, by_daemon] =
        [Counter::NoPeer, Counter::InnerMalformed, Counter::InnerVersion, Counter::PeerByDaemon]
            .map(|why| code.leave(why));
    peer_table::version_of_packet(code, version);
    peer_table::find(code, table, (KEY, LEN), Exits { short, none }, |code, is_v4| {
        code.a.set(Reg::R2, wire::destination(is_v4).into());
    });
    code.a.load(Size::W, Reg::R1, TUNNEL, tunnel::FLAGS);
    code.a.jump_if_value(If::Set, Reg::R1, tunnel::BY_DAEMON, by_daemon);
}

/// Reads the Ethernet header of a frame; a frame with a VLAN tag goes to the daemon.
fn read_frame(code: &mut Code) {
    let [malformed, frame] = [Counter::InnerMalformed, Counter::InnerFrame].map(|why| code.leave(why));
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::VLAN_PRESENT);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, frame);
    code.a.set(Reg::R2, 0);
    code.load_bytes(FRAME, i32::from(ETHERNET_LEN), malformed);
    let known = code.a.label();
    code.a.load(Size::H, Reg::R1, Reg::R10, FRAME + ethernet::TYPE);
    code.a.load(Size::W, Reg::R2, CONTEXT, packet::PROTOCOL);
    code.a.jump_if(If::Ne, Reg::R1, Reg::R2, frame);
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(true), known);
    code.a.jump_if_value(If::Ne, Reg::R1, protocol(false), frame);
    code.a.place(known);
}

/// Reads the inner header fields on which the outer header depends. Afterwards R3 is the length of the inner IP header
/// and R4 its protocol or next header.
fn read_inner(code: &mut Code, form: Form) {
    let [malformed, version, length] =
        [Counter::InnerMalformed, Counter::InnerVersion, Counter::InnerLength].map(|why| code.leave(why));
    let link = i32::from(form.link_len());
    code.a.set(Reg::R2, link);
    code.load_bytes(INNER, 20, malformed);
    let a = &mut code.a;
    let (v4, read) = (a.label(), a.label());
    let takes = |a: &mut crate::assembler::Assembler, bit: i32, is_v4: bool| {
        a.load(Size::W, Reg::R2, TUNNEL, tunnel::FLAGS);
        a.op_value(Op::And, Reg::R2, bit);
        a.jump_if_value(If::Eq, Reg::R2, 0, version);
        a.load(Size::W, Reg::R2, CONTEXT, packet::PROTOCOL);
        a.jump_if_value(If::Ne, Reg::R2, protocol(is_v4), version);
    };
    a.load(Size::B, Reg::R1, Reg::R10, INNER);
    a.copy(Reg::R2, Reg::R1);
    a.op_value(Op::Rsh, Reg::R2, 4);
    a.jump_if_value(If::Eq, Reg::R2, 4, v4);
    a.jump_if_value(If::Ne, Reg::R2, 6, version);

    takes(a, tunnel::TAKES_6, false);
    a.load(Size::H, Reg::R2, Reg::R10, INNER + ipv6::PAYLOAD_LEN);
    a.swap(Reg::R2, 16);
    a.op_value(Op::Add, Reg::R2, i32::from(ipv6::LEN) + link);
    a.jump_if(If::Ne, Reg::R2, LEN, length);
    a.load(Size::H, Reg::R2, Reg::R10, INNER);
    a.swap(Reg::R2, 16);
    a.op_value(Op::Rsh, Reg::R2, 4);
    a.op_value(Op::And, Reg::R2, 0xff);
    a.store(Size::D, Reg::R10, TOS, Reg::R2);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + ipv6::HOP_LIMIT);
    a.store(Size::D, Reg::R10, TTL, Reg::R2);
    // IPv6 has no such flag.
    a.store_value(Size::D, Reg::R10, DF, 0);
    a.set(Reg::R3, ipv6::LEN.into());
    a.load(Size::B, Reg::R4, Reg::R10, INNER + ipv6::NEXT_HEADER);
    a.copy(Reg::R5, TUNNEL);
    a.op_value(Op::Add, Reg::R5, i32::from(tunnel::HEADERS_6));
    a.store(Size::D, Reg::R10, TEMPLATE, Reg::R5);
    a.jump(read);

    a.place(v4);
    takes(a, tunnel::TAKES_4, true);
    a.load(Size::H, Reg::R2, Reg::R10, INNER + ipv4::TOTAL_LEN);
    a.swap(Reg::R2, 16);
    a.op_value(Op::Add, Reg::R2, link);
    a.jump_if(If::Ne, Reg::R2, LEN, length);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + ipv4::TOS);
    a.store(Size::D, Reg::R10, TOS, Reg::R2);
    a.load(Size::B, Reg::R2, Reg::R10, INNER + ipv4::TTL);
    a.store(Size::D, Reg::R10, TTL, Reg::R2);
    a.load(Size::H, Reg::R2, Reg::R10, INNER + ipv4::FRAGMENT);
    a.swap(Reg::R2, 16);
    a.op_value(Op::And, Reg::R2, ipv4::DF);
    a.store(Size::D, Reg::R10, DF, Reg::R2);
    a.copy(Reg::R3, Reg::R1);
    a.op_value(Op::And, Reg::R3, 15);
    a.op_value(Op::Lsh, Reg::R3, 2);
    a.jump_if_value(If::Lt, Reg::R3, ipv4::LEN.into(), malformed);
    a.load(Size::B, Reg::R4, Reg::R10, INNER + ipv4::PROTOCOL);
    a.copy(Reg::R5, TUNNEL);
    a.op_value(Op::Add, Reg::R5, i32::from(tunnel::HEADERS_4));
    a.store(Size::D, Reg::R10, TEMPLATE, Reg::R5);
    a.place(read);
}

/// Leaves to the daemon the packets that exceed IP's limit or the path MTU (it sends the ICMP error), and trains other
/// than TCP, with the single packets that follow them.
fn check_size(code: &mut Code, form: Form, maps: &Maps<'_>) {
    let [malformed, datagrams, behind, too_big, length] =
        [Counter::InnerMalformed, Counter::DatagramTrain, Counter::BehindTrain, Counter::TooBig, Counter::InnerLength]
            .map(|why| code.leave(why));
    let (single, train, packet_of_tcp, measured) = (code.a.label(), code.a.label(), code.a.label(), code.a.label());
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SIZE);
    code.a.jump_if_value(If::Eq, Reg::R1, 0, single);
    code.a.jump_if_value(If::Eq, Reg::R4, number::TCP, train);
    Flows::Sent.remember(code, maps);
    code.a.jump(datagrams);
    code.a.place(train);
    code.a.op_value(Op::Add, Reg::R3, i32::from(form.link_len()));
    code.a.store(Size::D, Reg::R10, INNER_HEADER, Reg::R3);
    code.a.copy(Reg::R2, Reg::R3);
    // The length of the TCP header, in words of four bytes, is in the upper half of this byte.
    code.a.op_value(Op::Add, Reg::R2, tcp::OFFSET.into());
    code.load_bytes(BYTE, 1, malformed);
    code.a.load(Size::B, Reg::R1, Reg::R10, BYTE);
    code.a.op_value(Op::Rsh, Reg::R1, 4);
    code.a.op_value(Op::Lsh, Reg::R1, 2);
    code.a.load(Size::D, Reg::R2, Reg::R10, INNER_HEADER);
    code.a.op(Op::Add, Reg::R1, Reg::R2);
    code.a.load(Size::W, Reg::R2, CONTEXT, packet::GSO_SIZE);
    code.a.op(Op::Add, Reg::R1, Reg::R2);
    code.a.jump(measured);
    code.a.place(single);
    code.a.jump_if_value(If::Eq, Reg::R4, number::TCP, packet_of_tcp);
    Flows::Sent.follow(code, maps, behind);
    code.a.place(packet_of_tcp);
    code.a.copy(Reg::R1, LEN);
    code.a.place(measured);
    code.a.load(Size::W, Reg::R2, TUNNEL, tunnel::HEADER_LEN);
    code.a.op(Op::Add, Reg::R1, Reg::R2);
    code.a.load(Size::W, Reg::R3, TUNNEL, tunnel::MTU);
    let (exceeds, fits) = (code.a.label(), code.a.label());
    code.a.jump_if(If::Gt, Reg::R1, Reg::R3, exceeds);
    code.a.jump(fits);
    code.a.place(exceeds);
    // The daemon may send it in fragments.
    Flows::Sent.remember(code, maps);
    code.a.jump(too_big);
    code.a.place(fits);
    code.a.copy(Reg::R1, LEN);
    code.a.op(Op::Add, Reg::R1, Reg::R2);
    let most = if form.is_v4 { 0xffff } else { 0xffff + i32::from(ipv6::LEN) };
    code.a.jump_if_value(If::Gt, Reg::R1, most, length);
}

/// Chooses the outer DSCP, ECN, TTL and DF, and computes the flow hash.
fn choose_fields(code: &mut Code) {
    let a = &mut code.a;
    let (tos, ttl, df, no_df) = (a.label(), a.label(), a.label(), a.label());
    a.load(Size::W, Reg::R3, TUNNEL, tunnel::FLAGS);
    a.jump_if_value(If::Set, Reg::R3, tunnel::INHERITS_TOS, tos);
    a.load(Size::D, Reg::R1, Reg::R10, TOS);
    a.op_value(Op::And, Reg::R1, 3);
    a.load(Size::B, Reg::R2, TUNNEL, tunnel::TOS);
    a.op(Op::Or, Reg::R1, Reg::R2);
    a.store(Size::D, Reg::R10, TOS, Reg::R1);
    a.place(tos);
    a.jump_if_value(If::Set, Reg::R3, tunnel::INHERITS_TTL, ttl);
    a.load(Size::B, Reg::R2, TUNNEL, tunnel::TTL);
    a.store(Size::D, Reg::R10, TTL, Reg::R2);
    a.place(ttl);
    a.jump_if_value(If::Set, Reg::R3, tunnel::INHERITS_DF, df);
    a.store_value(Size::D, Reg::R10, DF, 0);
    a.copy(Reg::R2, Reg::R3);
    a.op_value(Op::And, Reg::R2, tunnel::SETS_DF);
    a.jump_if_value(If::Eq, Reg::R2, 0, no_df);
    a.store_value(Size::D, Reg::R10, DF, ipv4::DF);
    a.place(no_df);
    a.place(df);
    a.copy(Reg::R1, CONTEXT);
    a.call(Helper::GetHashRecalc);
    a.store(Size::D, Reg::R10, HASH, Reg::R0);
}

/// Makes room for the outer headers after that of a link header, and for a link header in front, which the kernel
/// checks before it is replaced.
fn make_room(code: &mut Code, form: Form) {
    let refused = code.leave(Counter::Refused);
    let a = &mut code.a;
    a.copy(Reg::R1, CONTEXT);
    a.load(Size::W, Reg::R2, TUNNEL, tunnel::HEADER_LEN);
    a.op_value(Op::Add, Reg::R2, i32::from(form.link_len()));
    a.set(Reg::R3, room::MAC);
    a.load(Size::D, Reg::R4, TUNNEL, tunnel::ROOM);
    a.call(Helper::SkbAdjustRoom);
    a.jump_if_value(If::Ne, Reg::R0, 0, refused);
    // A frame has a link header.
    if form.has_frames {
        return;
    }
    let drop = code.drop();
    let a = &mut code.a;
    a.copy(Reg::R1, CONTEXT);
    a.set(Reg::R2, ETHERNET_LEN.into());
    a.set(Reg::R3, 0);
    a.call(Helper::SkbChangeHead);
    a.jump_if_value(If::Ne, Reg::R0, 0, drop);
}

/// Copies the outer headers, fills in the fields of this packet, and writes them into it.
fn write_headers(code: &mut Code, form: Form) {
    let a = &mut code.a;
    a.load(Size::D, Reg::R5, Reg::R10, TEMPLATE);
    for at in (0..HEADERS_LEN as i16).step_by(8) {
        a.load(Size::D, Reg::R1, Reg::R5, at);
        a.store(Size::D, Reg::R10, OUTER + at, Reg::R1);
    }
    // R3 is the length of the whole packet.
    a.load(Size::W, Reg::R3, TUNNEL, tunnel::HEADER_LEN);
    a.op(Op::Add, Reg::R3, LEN);
    if form.has_udp {
        let header = OUTER + form.ip_len();
        a.load(Size::D, Reg::R1, Reg::R10, HASH);
        a.op_value(Op::And, Reg::R1, PORTS as i32 - 1);
        a.op_value(Op::Lsh, Reg::R1, 1);
        a.copy(Reg::R2, TUNNEL);
        a.op(Op::Add, Reg::R2, Reg::R1);
        a.load(Size::H, Reg::R1, Reg::R2, tunnel::SOURCES);
        a.store(Size::H, Reg::R10, header, Reg::R1);
        a.copy(Reg::R1, Reg::R3);
        a.op_value(Op::Sub, Reg::R1, i32::from(form.ip_len()));
        a.swap(Reg::R1, 16);
        a.store(Size::H, Reg::R10, header + udp::LENGTH, Reg::R1);
        a.store_value(Size::H, Reg::R10, header + udp::CHECKSUM, 0);
    }
    if form.is_v4 {
        write_ipv4(code);
    } else {
        write_ipv6(code);
    }
    let drop = code.drop();
    let a = &mut code.a;
    if form.has_frames {
        // The frame's own Ethernet header is in front of the room that was made: it moves to the end of the outer
        // headers, and its place is that of the outer one, which the kernel fills in.
        let behind = form.ip_len() + 16;
        for at in [0, 4, 8] {
            a.load(Size::W, Reg::R1, Reg::R10, FRAME + at);
            a.store(Size::W, Reg::R10, OUTER + behind + at, Reg::R1);
        }
        a.load(Size::H, Reg::R1, Reg::R10, FRAME + ethernet::TYPE);
        a.store(Size::H, Reg::R10, OUTER + behind + ethernet::TYPE, Reg::R1);
        a.store_value(Size::D, Reg::R10, LINK, 0);
        a.store_value(Size::D, Reg::R10, LINK + 8, 0);
        a.set(Reg::R2, 0);
        a.frame(Reg::R3, OUTER - ETHERNET_LEN);
        a.set(Reg::R4, i32::from(ETHERNET_LEN + behind + ETHERNET_LEN));
    } else {
        a.set(Reg::R2, ETHERNET_LEN.into());
        a.frame(Reg::R3, OUTER);
        a.load(Size::W, Reg::R4, TUNNEL, tunnel::HEADER_LEN);
        a.jump_if_value(If::Lt, Reg::R4, i32::from(form.ip_len()), drop);
        a.jump_if_value(If::Gt, Reg::R4, HEADERS_LEN as i32, drop);
    }
    a.copy(Reg::R1, CONTEXT);
    a.set(Reg::R5, 0);
    a.call(Helper::SkbStoreBytes);
    a.jump_if_value(If::Ne, Reg::R0, 0, drop);
}

/// Fills in IPv4; R3 is the length of the packet.
fn write_ipv4(code: &mut Code) {
    let a = &mut code.a;
    let atomic = a.label();
    a.swap(Reg::R3, 16);
    a.store(Size::H, Reg::R10, OUTER + ipv4::TOTAL_LEN, Reg::R3);
    a.load(Size::D, Reg::R1, Reg::R10, TOS);
    a.store(Size::B, Reg::R10, OUTER + ipv4::TOS, Reg::R1);
    a.load(Size::D, Reg::R1, Reg::R10, TTL);
    a.store(Size::B, Reg::R10, OUTER + ipv4::TTL, Reg::R1);
    // With DF the identification means nothing (RFC 6864, section 4.1); without, it should be unique.
    a.store_value(Size::H, Reg::R10, OUTER + ipv4::ID, 0);
    a.load(Size::D, Reg::R1, Reg::R10, DF);
    a.jump_if_value(If::Ne, Reg::R1, 0, atomic);
    a.call(Helper::GetPrandomU32);
    a.store(Size::H, Reg::R10, OUTER + ipv4::ID, Reg::R0);
    a.place(atomic);
    a.load(Size::D, Reg::R1, Reg::R10, DF);
    a.swap(Reg::R1, 16);
    a.store(Size::H, Reg::R10, OUTER + ipv4::FRAGMENT, Reg::R1);
    a.store_value(Size::H, Reg::R10, OUTER + ipv4::CHECKSUM, 0);
    code.sum_ipv4(OUTER);
    code.a.op_value(Op::Xor, Reg::R1, 0xffff);
    code.a.store(Size::H, Reg::R10, OUTER + ipv4::CHECKSUM, Reg::R1);
}

/// Fills in IPv6; R3 is the length of the packet. The flow label is that of the inner flow (RFC 6438).
fn write_ipv6(code: &mut Code) {
    let a = &mut code.a;
    a.op_value(Op::Sub, Reg::R3, ipv6::LEN.into());
    a.swap(Reg::R3, 16);
    a.store(Size::H, Reg::R10, OUTER + ipv6::PAYLOAD_LEN, Reg::R3);
    a.load(Size::D, Reg::R1, Reg::R10, HASH);
    a.op_value(Op::And, Reg::R1, 0x000f_ffff);
    a.load(Size::D, Reg::R2, Reg::R10, TOS);
    a.op_value(Op::Lsh, Reg::R2, 20);
    a.op(Op::Or, Reg::R1, Reg::R2);
    a.op_value(Op::Or, Reg::R1, 0x6000_0000);
    a.swap(Reg::R1, 32);
    a.store(Size::W, Reg::R10, OUTER, Reg::R1);
    a.load(Size::D, Reg::R1, Reg::R10, TTL);
    a.store(Size::B, Reg::R10, OUTER + ipv6::HOP_LIMIT, Reg::R1);
}
