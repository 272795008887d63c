//! The ingress program of the interface towards the remotes: it removes the outer headers of a packet or train and
//! passes it to the tunnel's interface.
//!
//! It takes what is certain: packets of a configured sender, key and protocol, without options, whose lengths agree.
//! Everything else continues to the kernel's network layer and so to the sockets of the daemon, which judges it. What
//! UDP GRO has merged is several packets, which shows in the lengths.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use segue::encap::DecapRefusal;
use segue::wire::{ethertype, vxlan};

use crate::assembler::{Fault, Helper, If, Instruction, Label, Op, Reg, Size};
use crate::code::{CONTEXT, COUNTERS, Code, Index, Maps, TUNNEL, TableMaps, Tunnels, protocol};
use crate::counters::Counter;
use crate::layout::{ETHERNET_LEN, inbound, packet, peer, peer_counts, room, settings, station, tunnel};
use crate::order::Flows;
use crate::peer_table::{self, Exits};
use crate::places::{FIB, FIB_LEN, FRAME, GRE, HEADERS, INNER, MARK, OUTER, PEER, TOTAL, VERSION};
use crate::receive_form::{Carrier, Form};
use crate::verdict::Verdict;
use crate::wire::{self, ethernet, gre, ipv4, ipv6, number, udp};
use crate::{checksum, ecn, refuse};

/// First word of a VXLAN header with a network identifier.
const VXLAN_WORD: u32 = vxlan::VALID;
/// First word of a Geneve header without options around frames.
const GENEVE_WORD: u32 = ethertype::TEB as u32;
/// Result of `bpf_fib_lookup`: the packet is not forwarded to a third host.
const NOT_FORWARDED: i32 = 4;
/// Result of `bpf_fib_lookup`: this host forwards no packets from the interface.
const FORWARDING_OFF: i32 = 5;

/// Assembles the BPF program for ingress.
pub(crate) fn program(form: &Form, maps: &Maps<'_>) -> Result<Vec<Instruction>, Fault> {
    let index = form.table.map_or(Index::At(inbound::COUNTERS), |table| Index::Constant(table.counters));
    let mut code = Code::begin(maps, index);
    code.judges = form.carrier != Carrier::Bare && matches!(maps.tunnels, Tunnels::Single { .. });
    let mut later = Later::default();
    read_ip(&mut code, form);
    read_tunnel_headers(&mut code, form, &mut later);
    if let Tunnels::Single { by_packet, .. } = maps.tunnels {
        find_tunnel(&mut code, form, by_packet, &mut later);
    }
    if form.carrier.has_frames() {
        read_frame(&mut code, form, maps, &mut later);
    }
    if let Tunnels::Table(table) = &maps.tunnels {
        find_peer(&mut code, form, table);
    }
    check_inner(&mut code, form, &mut later);
    if form.carrier != Carrier::Bare || !form.abilities.clears_marks {
        let behind = code.leave(Counter::BehindTrain);
        // What R4 holds is needed afterwards.
        code.a.store(Size::D, Reg::R10, MARK, Reg::R4);
        Flows::Received.follow(&mut code, maps, behind);
        code.a.load(Size::D, Reg::R4, Reg::R10, MARK);
    }
    ecn::combine(&mut code, form);
    if form.carrier != Carrier::Bare {
        checksum::check(&mut code, form);
    }
    if !form.abilities.clears_marks {
        check_destination(&mut code, form, maps, &mut later);
    }
    code.note_segments();
    remove_headers(&mut code, form);
    deliver(&mut code, form, maps);
    later.judge(&mut code, form, maps);
    if let (true, Tunnels::Single { senders, .. }) = (code.judges, &maps.tunnels) {
        refuse::finish(&mut code, form, maps, senders);
    }
    code.finish(maps)
}

/// Labels of the checks after the main program, for packets that are not decapsulated.
#[derive(Debug, Default)]
struct Later {
    header: Option<(Counter, Label)>,
    gre: Option<Label>,
    identity: Option<Label>,
    station: Option<Label>,
    version: Option<Label>,
    source: Option<Label>,
    joined: Option<Label>,
    forwarded: Option<Label>,
}

impl Later {
    /// Returns the label of a check, in a program that itself drops packets; otherwise the exit that leaves them to the
    /// daemon.
    fn label(slot: &mut Option<Label>, code: &mut Code, why: Counter, is_claimed: bool) -> Label {
        match (code.judges, is_claimed) {
            (true, _) => *slot.get_or_insert_with(|| code.a.label()),
            (false, true) => code.leave(why),
            (false, false) => code.leave_unclaimed(why),
        }
    }

    fn header(&mut self, code: &mut Code, why: Counter) -> Label {
        let mut label = None;
        let place = Later::label(&mut label, code, why, false);
        self.header = label.map(|label| (why, label));
        place
    }

    /// Returns the label for lengths that disagree, as those of joined datagrams do.
    fn joined(&mut self, code: &mut Code) -> Label {
        *self.joined.get_or_insert_with(|| code.a.label())
    }

    /// Returns the label for aggregates that this host would forward.
    fn forwarded(&mut self, code: &mut Code) -> Label {
        *self.forwarded.get_or_insert_with(|| code.a.label())
    }

    fn judge(self, code: &mut Code, form: &Form, maps: &Maps<'_>) {
        for (label, left) in [(self.joined, Counter::OuterLength), (self.forwarded, Counter::Forwarded)] {
            let Some(label) = label else { continue };
            let exit = code.leave(left);
            code.a.place(label);
            // What is no aggregate has a wrong length, or something behind it.
            code.a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SIZE);
            code.a.jump_if_value(If::Eq, Reg::R1, 0, exit);
            Flows::Received.remember(code, maps);
            code.a.jump(exit);
        }
        match self.header {
            Some((_, label)) if matches!(form.carrier, Carrier::Gue(_)) => refuse::judge_gue(code, form, label),
            Some((why, label)) => refuse::judge_overlay(code, form, why, label),
            None => {}
        }
        if let Some(label) = self.gre {
            refuse::judge_gre(code, label);
        }
        if let Some(label) = self.identity {
            refuse::judge_identity(code, form, label);
        }
        if let Some(label) = self.station {
            refuse::judge_station(code, label);
        }
        if let Some(label) = self.version {
            refuse::judge_version(code, label);
        }
        if let Some(label) = self.source {
            refuse::judge_source(code, label);
        }
    }
}

/// Checks that the packet is addressed to this host and not to a VLAN on the interface, is no fragment and has a
/// correct header checksum; others are left to the kernel.
fn read_ip(code: &mut Code, form: &Form) {
    let out = code.out;
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::TYPE);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, out);
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::PROTOCOL);
    code.a.jump_if_value(If::Ne, Reg::R1, protocol(form.is_v4()), out);
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::VLAN_PRESENT);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, out);
    code.a.set(Reg::R2, i32::from(ETHERNET_LEN));
    code.load_bytes(OUTER, i32::from(form.ip_len()), out);
    let words =
        |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect() };
    let words = match form.local {
        IpAddr::V4(local) => words(&local.octets()),
        IpAddr::V6(local) => words(&local.octets()),
    };
    for (at, word) in (wire::destination(form.is_v4())..).step_by(4).zip(words) {
        code.a.load(Size::W, Reg::R1, Reg::R10, OUTER + at);
        code.a.jump_if_word(If::Ne, Reg::R1, word, out);
    }
    if form.is_v4() {
        code.a.load(Size::B, Reg::R1, Reg::R10, OUTER);
        code.a.jump_if_value(If::Ne, Reg::R1, ipv4::FIRST, out);
        code.a.load(Size::B, Reg::R1, Reg::R10, OUTER + ipv4::PROTOCOL);
    } else {
        code.a.load(Size::B, Reg::R1, Reg::R10, OUTER);
        code.a.op_value(Op::Rsh, Reg::R1, 4);
        code.a.jump_if_value(If::Ne, Reg::R1, 6, out);
        code.a.load(Size::B, Reg::R1, Reg::R10, OUTER + ipv6::NEXT_HEADER);
    }
    match (form.carrier, form.has_gre) {
        (carrier, _) if carrier != Carrier::Bare => code.a.jump_if_value(If::Ne, Reg::R1, number::UDP, out),
        (_, true) => code.a.jump_if_value(If::Ne, Reg::R1, number::GRE, out),
        (_, false) => {
            let known = code.a.label();
            code.a.jump_if_value(If::Eq, Reg::R1, number::IPV4, known);
            code.a.jump_if_value(If::Ne, Reg::R1, number::IPV6, out);
            code.a.place(known);
        }
    }
    code.a.set(HEADERS, i32::from(ETHERNET_LEN + form.ip_len()));
    if let Some((port, behind)) = form.carrier.udp() {
        let len = udp::LEN + behind;
        code.a.copy(Reg::R2, HEADERS);
        code.load_bytes(OUTER + form.ip_len(), i32::from(len), out);
        code.a.load(Size::H, Reg::R1, Reg::R10, OUTER + form.ip_len() + udp::DST_PORT);
        code.a.jump_if_value(If::Ne, Reg::R1, i32::from(port.to_be()), out);
        code.a.op_value(Op::Add, HEADERS, i32::from(len));
    }
    if form.is_v4() {
        // The kernel drops and counts a packet with a wrong header checksum.
        code.sum_ipv4(OUTER);
        code.a.jump_if_value(If::Ne, Reg::R1, 0xffff, out);
        let fragment = code.leave_unclaimed(Counter::Fragment);
        code.a.load(Size::H, Reg::R1, Reg::R10, OUTER + ipv4::FRAGMENT);
        code.a.swap(Reg::R1, 16);
        code.a.jump_if_value(If::Set, Reg::R1, ipv4::IS_FRAGMENT, fragment);
        code.a.load(Size::H, Reg::R1, Reg::R10, OUTER + ipv4::TOTAL_LEN);
        code.a.swap(Reg::R1, 16);
    } else {
        code.a.load(Size::H, Reg::R1, Reg::R10, OUTER + ipv6::PAYLOAD_LEN);
        code.a.swap(Reg::R1, 16);
        code.a.op_value(Op::Add, Reg::R1, ipv6::LEN.into());
    }
    code.a.store(Size::D, Reg::R10, TOTAL, Reg::R1);
    if form.carrier != Carrier::Bare {
        let length = code.leave_unclaimed(Counter::OuterLength);
        code.a.load(Size::H, Reg::R2, Reg::R10, OUTER + form.ip_len() + udp::LENGTH);
        code.a.swap(Reg::R2, 16);
        code.a.op_value(Op::Add, Reg::R2, i32::from(form.ip_len()));
        code.a.jump_if(If::Ne, Reg::R1, Reg::R2, length);
    }
}

/// Reads GUE, VXLAN, Geneve and GRE, and puts the identity of the tunnel into the key of the map.
fn read_tunnel_headers(code: &mut Code, form: &Form, later: &mut Later) {
    match form.carrier {
        Carrier::Vxlan(_) => return read_overlay(code, form, (VXLAN_WORD, Counter::VxlanHeader), later),
        Carrier::Geneve(_) => return read_overlay(code, form, (GENEVE_WORD, Counter::GeneveHeader), later),
        Carrier::Bare | Carrier::Fou(_) | Carrier::Gue(_) => {}
    }
    let (gre, identified) = (code.a.label(), code.a.label());
    let other = Verdict::Drop(DecapRefusal::InnerProtocol);
    let unknown = code.judge(Counter::NoTunnel, if form.has_gue() { other } else { Verdict::Leave });
    code.a.store_value(Size::W, Reg::R10, PEER + peer::KEY, 0);
    if form.may_have_gre() {
        code.a.store_value(Size::D, Reg::R10, GRE, 0);
    }
    match form.carrier {
        Carrier::Gue(_) => {
            let header = later.header(code, Counter::GueHeader);
            let at = OUTER + form.ip_len() + udp::LEN;
            // Version 0, no control message, no optional field.
            code.a.load(Size::B, Reg::R1, Reg::R10, at);
            code.a.jump_if_value(If::Ne, Reg::R1, 0, header);
            code.a.load(Size::H, Reg::R1, Reg::R10, at + 2);
            code.a.jump_if_value(If::Ne, Reg::R1, 0, header);
            code.a.load(Size::B, Reg::R1, Reg::R10, at + 1);
            if form.may_have_gre() {
                code.a.jump_if_value(If::Eq, Reg::R1, number::GRE, gre);
            }
        }
        Carrier::Bare if !form.has_gre => {
            let at = if form.is_v4() { ipv4::PROTOCOL } else { ipv6::NEXT_HEADER };
            code.a.load(Size::B, Reg::R1, Reg::R10, OUTER + at);
        }
        Carrier::Fou(_) if !form.has_gre => {
            // The first four bits of the packet are the version.
            let v4 = code.a.label();
            code.a.copy(Reg::R2, HEADERS);
            code.load_bytes(INNER, 1, unknown);
            code.a.load(Size::B, Reg::R2, Reg::R10, INNER);
            code.a.op_value(Op::Rsh, Reg::R2, 4);
            code.a.set(Reg::R1, number::IPV4);
            code.a.jump_if_value(If::Eq, Reg::R2, 4, v4);
            code.a.set(Reg::R1, number::IPV6);
            code.a.place(v4);
        }
        Carrier::Bare | Carrier::Fou(_) | Carrier::Vxlan(_) | Carrier::Geneve(_) => code.a.jump(gre),
    }
    if matches!(form.carrier, Carrier::Gue(_)) || !form.has_gre {
        let (v6, known) = (code.a.label(), code.a.label());
        code.a.store(Size::W, Reg::R10, PEER + peer::KIND, Reg::R1);
        code.a.set(Reg::R2, 4);
        code.a.jump_if_value(If::Eq, Reg::R1, number::IPV4, known);
        code.a.jump_if_value(If::Eq, Reg::R1, number::IPV6, v6);
        code.a.jump(unknown);
        code.a.place(v6);
        code.a.set(Reg::R2, 6);
        code.a.place(known);
        code.a.store(Size::D, Reg::R10, VERSION, Reg::R2);
        code.a.jump(identified);
    }
    code.a.place(gre);
    if form.may_have_gre() {
        read_gre(code, later);
    }
    code.a.place(identified);
}

/// Reads a VXLAN or Geneve header, whose first word must be `word`. Behind the network identifier there must be
/// nothing.
fn read_overlay(code: &mut Code, form: &Form, (word, why): (u32, Counter), later: &mut Later) {
    let header = later.header(code, why);
    let at = OUTER + form.ip_len() + udp::LEN;
    code.a.load(Size::W, Reg::R1, Reg::R10, at);
    code.a.jump_if_word(If::Ne, Reg::R1, word.to_be(), header);
    code.a.load(Size::B, Reg::R1, Reg::R10, at + 7);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, header);
    code.a.load(Size::W, Reg::R1, Reg::R10, at + 4);
    code.a.store(Size::W, Reg::R10, PEER + peer::KEY, Reg::R1);
    code.a.store_value(Size::W, Reg::R10, PEER + peer::KIND, peer::NETWORK as i32);
}

/// Reads the Ethernet header of an inner frame, which must have a unicast source and carry IPv4 or IPv6 without a VLAN
/// tag, and be addressed to this host where the interface carries IP.
fn read_frame(code: &mut Code, form: &Form, maps: &Maps<'_>, later: &mut Later) {
    let malformed = code.judge_claimed(Counter::InnerMalformed, Verdict::Drop(DecapRefusal::InnerMalformed));
    let frame = code.leave(Counter::InnerFrame);
    let source = Later::label(&mut later.station, code, Counter::InnerSource, true);
    let (v6, known, station) = (code.a.label(), code.a.label(), code.a.label());
    code.a.copy(Reg::R2, HEADERS);
    code.load_bytes(FRAME, i32::from(ETHERNET_LEN), malformed);
    code.a.op_value(Op::Add, HEADERS, i32::from(ETHERNET_LEN));
    if let Some(table) = form.table {
        let other = code.leave(Counter::NotForUs);
        let [a, b, c, d, e, f] = table.station;
        code.a.load(Size::W, Reg::R1, Reg::R10, FRAME);
        code.a.jump_if_word(If::Ne, Reg::R1, u32::from_ne_bytes([a, b, c, d]), other);
        code.a.load(Size::H, Reg::R1, Reg::R10, FRAME + 4);
        code.a.jump_if_value(If::Ne, Reg::R1, i32::from(u16::from_ne_bytes([e, f])), other);
    }
    code.a.load(Size::B, Reg::R1, Reg::R10, FRAME + ethernet::SRC);
    code.a.jump_if_value(If::Set, Reg::R1, ethernet::GROUP, source);
    code.a.load(Size::H, Reg::R1, Reg::R10, FRAME + ethernet::SRC);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, station);
    code.a.load(Size::W, Reg::R1, Reg::R10, FRAME + ethernet::SRC + 2);
    code.a.jump_if_value(If::Eq, Reg::R1, 0, source);
    code.a.place(station);
    check_returned(code, form, maps);
    code.a.load(Size::H, Reg::R1, Reg::R10, FRAME + ethernet::TYPE);
    code.a.set(Reg::R2, 6);
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(false), v6);
    code.a.jump_if_value(If::Ne, Reg::R1, protocol(true), frame);
    code.a.set(Reg::R2, 4);
    code.a.jump(known);
    code.a.place(v6);
    code.a.place(known);
    code.a.store(Size::D, Reg::R10, VERSION, Reg::R2);
}

/// Leaves frames to the daemon that this end has sent itself and that have come back.
fn check_returned(code: &mut Code, form: &Form, maps: &Maps<'_>) {
    let (true, Tunnels::Single { stations, .. }) = (form.delivers_frames(), maps.tunnels) else { return };
    let own = code.leave(Counter::InnerSource);
    let other = code.a.label();
    code.a.load(Size::W, Reg::R1, TUNNEL, inbound::COUNTERS);
    code.look_up(stations, COUNTERS, own);
    for (size, at) in [(Size::H, 0), (Size::W, 2)] {
        code.a.load(size, Reg::R1, COUNTERS, station::ADDRESS + at);
        code.a.load(size, Reg::R2, Reg::R10, FRAME + ethernet::SRC + at);
        code.a.jump_if(If::Ne, Reg::R1, Reg::R2, other);
    }
    code.a.jump(own);
    code.a.place(other);
}

/// Reads a GRE header without options except for a key.
fn read_gre(code: &mut Code, later: &mut Later) {
    let header = Later::label(&mut later.gre, code, Counter::GreHeader, false);
    let short = code.judge(Counter::NoTunnel, Verdict::DropWithGre(DecapRefusal::GreMalformed));
    let (v6, known, keyless, done) = (code.a.label(), code.a.label(), code.a.label(), code.a.label());
    code.a.copy(Reg::R2, HEADERS);
    code.load_bytes(GRE, gre::LEN.into(), short);
    code.a.op_value(Op::Add, HEADERS, gre::LEN.into());
    code.a.load(Size::H, Reg::R1, Reg::R10, GRE + 2);
    code.a.set(Reg::R2, 4);
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(true), known);
    code.a.jump_if_value(If::Eq, Reg::R1, protocol(false), v6);
    code.a.jump(header);
    code.a.place(v6);
    code.a.set(Reg::R2, 6);
    code.a.place(known);
    code.a.store(Size::D, Reg::R10, VERSION, Reg::R2);
    code.a.load(Size::H, Reg::R1, Reg::R10, GRE);
    code.a.swap(Reg::R1, 16);
    code.a.jump_if_value(If::Eq, Reg::R1, 0, keyless);
    code.a.jump_if_value(If::Ne, Reg::R1, gre::KEY, header);
    code.a.copy(Reg::R2, HEADERS);
    code.load_bytes(GRE + gre::LEN, 4, short);
    code.a.op_value(Op::Add, HEADERS, 4);
    code.a.load(Size::W, Reg::R1, Reg::R10, GRE + gre::LEN);
    code.a.store(Size::W, Reg::R10, PEER + peer::KEY, Reg::R1);
    code.a.store_value(Size::W, Reg::R10, PEER + peer::KIND, peer::GRE_KEY as i32);
    code.a.jump(done);
    code.a.place(keyless);
    code.a.store_value(Size::W, Reg::R10, PEER + peer::KIND, peer::GRE as i32);
    code.a.place(done);
}

/// Looks up the tunnel of the sender and the identity.
fn find_tunnel(code: &mut Code, form: &Form, by_packet: BorrowedFd<'_>, later: &mut Later) {
    let unknown = Later::label(&mut later.identity, code, Counter::NoTunnel, false);
    let (source, len) = wire::source(form.is_v4());
    for at in (0..len).step_by(4) {
        code.a.load(Size::W, Reg::R1, Reg::R10, OUTER + source + at);
        code.a.store(Size::W, Reg::R10, PEER + peer::ADDRESS + at, Reg::R1);
    }
    code.a.map(Reg::R1, by_packet);
    code.a.frame(Reg::R2, PEER);
    code.a.call(Helper::MapLookupElem);
    code.a.jump_if_value(If::Eq, Reg::R0, 0, unknown);
    code.a.copy(TUNNEL, Reg::R0);
}

/// Looks up the peer for the packet's inner source address. The outer source must be the peer's remote, and the VNI the
/// peer's.
fn find_peer(code: &mut Code, form: &Form, table: &TableMaps<'_>) {
    let [short, none, by_daemon] =
        [Counter::InnerMalformed, Counter::PeerSource, Counter::PeerByDaemon].map(|why| code.leave(why));
    let known = code.a.label();
    code.a.load(Size::D, Reg::R2, Reg::R10, VERSION);
    code.a.set(Reg::R1, protocol(true));
    code.a.jump_if_value(If::Eq, Reg::R2, 4, known);
    code.a.set(Reg::R1, protocol(false));
    code.a.place(known);
    peer_table::find(code, table, (FIB, COUNTERS), Exits { short, none }, |code, is_v4| {
        code.a.copy(Reg::R2, HEADERS);
        code.a.op_value(Op::Add, Reg::R2, wire::source(is_v4).0.into());
    });
    let (source, len) = wire::source(form.is_v4());
    for at in (0..len).step_by(4) {
        code.a.load(Size::W, Reg::R1, Reg::R10, OUTER + source + at);
        code.a.load(Size::W, Reg::R2, TUNNEL, tunnel::REMOTE + at);
        code.a.jump_if(If::Ne, Reg::R1, Reg::R2, none);
    }
    if form.carrier.has_frames() {
        let network = code.leave(Counter::PeerNetwork);
        code.a.load(Size::W, Reg::R1, Reg::R10, PEER + peer::KEY);
        code.a.load(Size::W, Reg::R2, TUNNEL, tunnel::NETWORK);
        code.a.jump_if(If::Ne, Reg::R1, Reg::R2, network);
    }
    code.a.load(Size::W, Reg::R1, TUNNEL, tunnel::FLAGS);
    code.a.jump_if_value(If::Set, Reg::R1, tunnel::BY_DAEMON, by_daemon);
}

/// Checks version and length of the inner packet, and its source address unless the interface carries frames, whose
/// addresses the tunnel does not check. Afterwards R4 is its DSCP and ECN byte.
fn check_inner(code: &mut Code, form: &Form, later: &mut Later) {
    let length = if form.carrier == Carrier::Bare { code.leave(Counter::OuterLength) } else { later.joined(code) };
    // Of what is in a frame the daemon wants to know less.
    let [malformed, version, source] = if form.carrier.has_frames() {
        [Counter::InnerMalformed, Counter::InnerVersion, Counter::InnerSource].map(|why| code.leave(why))
    } else {
        [
            code.judge_claimed(Counter::InnerMalformed, Verdict::Drop(DecapRefusal::InnerMalformed)),
            Later::label(&mut later.version, code, Counter::InnerVersion, true),
            Later::label(&mut later.source, code, Counter::InnerSource, true),
        ]
    };
    let (v4, checked) = (code.a.label(), code.a.label());
    code.a.copy(Reg::R2, HEADERS);
    code.load_bytes(INNER, 20, malformed);
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER);
    code.a.copy(Reg::R2, Reg::R1);
    code.a.op_value(Op::Rsh, Reg::R2, 4);
    code.a.load(Size::D, Reg::R3, Reg::R10, VERSION);
    code.a.jump_if(If::Ne, Reg::R2, Reg::R3, version);
    code.a.jump_if_value(If::Eq, Reg::R2, 4, v4);

    if !form.delivers_frames() {
        check_source6(code, malformed, source);
    }
    if !form.carrier.has_frames() {
        let extension = code.leave(Counter::InnerExtension);
        code.a.load(Size::B, Reg::R1, Reg::R10, INNER + ipv6::NEXT_HEADER);
        for header in number::EXTENSIONS {
            code.a.jump_if_value(If::Eq, Reg::R1, header, extension);
        }
    }
    code.a.load(Size::H, Reg::R4, Reg::R10, INNER);
    code.a.swap(Reg::R4, 16);
    code.a.op_value(Op::Rsh, Reg::R4, 4);
    code.a.op_value(Op::And, Reg::R4, 0xff);
    code.a.load(Size::H, Reg::R3, Reg::R10, INNER + ipv6::PAYLOAD_LEN);
    code.a.swap(Reg::R3, 16);
    code.a.op_value(Op::Add, Reg::R3, ipv6::LEN.into());
    code.a.jump(checked);

    code.a.place(v4);
    code.a.op_value(Op::And, Reg::R1, 15);
    code.a.jump_if_value(If::Lt, Reg::R1, i32::from(ipv4::LEN / 4), malformed);
    if !form.delivers_frames() {
        code.a.load(Size::W, Reg::R1, Reg::R10, INNER + ipv4::SRC);
        code.a.jump_if_word(If::Eq, Reg::R1, u32::MAX, source);
        code.a.load(Size::B, Reg::R1, Reg::R10, INNER + ipv4::SRC);
        code.a.jump_if_value(If::Eq, Reg::R1, 127, source);
        // 224 to 239 are multicast.
        code.a.op_value(Op::And, Reg::R1, 0xf0);
        code.a.jump_if_value(If::Eq, Reg::R1, 224, source);
    }
    code.a.load(Size::B, Reg::R4, Reg::R10, INNER + ipv4::TOS);
    code.a.load(Size::H, Reg::R3, Reg::R10, INNER + ipv4::TOTAL_LEN);
    code.a.swap(Reg::R3, 16);
    code.a.load(Size::B, Reg::R1, Reg::R10, INNER);
    code.a.op_value(Op::And, Reg::R1, 15);
    code.a.op_value(Op::Lsh, Reg::R1, 2);
    code.a.jump_if(If::Gt, Reg::R1, Reg::R3, malformed);

    code.a.place(checked);
    // Outer length, headers and inner length agree only for one packet without a trailer.
    code.a.op(Op::Add, Reg::R3, HEADERS);
    code.a.load(Size::D, Reg::R1, Reg::R10, TOTAL);
    code.a.op_value(Op::Add, Reg::R1, i32::from(ETHERNET_LEN));
    code.a.jump_if(If::Ne, Reg::R1, Reg::R3, length);
    code.a.load(Size::W, Reg::R2, CONTEXT, packet::LEN);
    code.a.jump_if(If::Gt, Reg::R1, Reg::R2, length);
}

/// Leaves packets with an invalid IPv6 source address to the daemon.
fn check_source6(code: &mut Code, malformed: Label, source: Label) {
    code.a.copy(Reg::R2, HEADERS);
    code.a.op_value(Op::Add, Reg::R2, ipv6::SRC.into());
    code.load_bytes(FIB, ipv6::ADDRESS_LEN.into(), malformed);
    let station = code.a.label();
    code.a.load(Size::B, Reg::R1, Reg::R10, FIB);
    code.a.jump_if_value(If::Eq, Reg::R1, 0xff, source);
    code.a.load(Size::D, Reg::R1, Reg::R10, FIB);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, station);
    code.a.load(Size::W, Reg::R1, Reg::R10, FIB + 8);
    code.a.jump_if_value(If::Ne, Reg::R1, 0, station);
    code.a.load(Size::W, Reg::R1, Reg::R10, FIB + 12);
    code.a.jump_if_word(If::Eq, Reg::R1, 1_u32.to_be(), source);
    code.a.place(station);
}

/// Leaves aggregates that this host would forward to the daemon: decapsulated by the program they keep the tunnel's
/// marks, by which other tunnels and some interfaces would segment them wrongly. Frames for another station are
/// forwarded by a bridge.
fn check_destination(code: &mut Code, form: &Form, maps: &Maps<'_>, later: &mut Later) {
    let (forwarded, malformed) = (later.forwarded(code), code.leave(Counter::InnerMalformed));
    let (v4, filled, stays) = (code.a.label(), code.a.label(), code.a.label());
    code.a.load(Size::W, Reg::R1, CONTEXT, packet::GSO_SIZE);
    code.a.jump_if_value(If::Eq, Reg::R1, 0, stays);
    if let (true, Tunnels::Single { by_interface, .. }) = (form.delivers_frames(), maps.tunnels) {
        code.a.load(Size::W, Reg::R1, TUNNEL, inbound::INTERFACE);
        code.look_up(by_interface, COUNTERS, forwarded);
        for (size, at) in [(Size::W, 0), (Size::H, 4)] {
            code.a.load(size, Reg::R1, COUNTERS, tunnel::ADDRESS + at);
            code.a.load(size, Reg::R2, Reg::R10, FRAME + at);
            code.a.jump_if(If::Ne, Reg::R1, Reg::R2, forwarded);
        }
    }
    for at in (0..FIB_LEN as i16).step_by(8) {
        code.a.store_value(Size::D, Reg::R10, FIB + at, 0);
    }
    interface(code, maps);
    code.a.store(Size::W, Reg::R10, FIB + 8, Reg::R1);
    code.a.load(Size::D, Reg::R1, Reg::R10, VERSION);
    code.a.jump_if_value(If::Eq, Reg::R1, 4, v4);
    code.a.store_value(Size::B, Reg::R10, FIB, 10);
    for (from, to) in [(ipv6::SRC, 16), (ipv6::DST, 32)] {
        code.a.copy(Reg::R2, HEADERS);
        code.a.op_value(Op::Add, Reg::R2, from.into());
        code.load_bytes(FIB + to, ipv6::ADDRESS_LEN.into(), malformed);
    }
    code.a.jump(filled);
    code.a.place(v4);
    code.a.store_value(Size::B, Reg::R10, FIB, 2);
    for (from, to) in [(ipv4::SRC, 16), (ipv4::DST, 32)] {
        code.a.load(Size::W, Reg::R1, Reg::R10, INNER + from);
        code.a.store(Size::W, Reg::R10, FIB + to, Reg::R1);
    }
    code.a.place(filled);
    code.a.copy(Reg::R1, CONTEXT);
    code.a.frame(Reg::R2, FIB);
    code.a.set(Reg::R3, FIB_LEN);
    code.a.set(Reg::R4, 0);
    code.a.call(Helper::FibLookup);
    code.a.jump_if_value(If::Eq, Reg::R0, NOT_FORWARDED, stays);
    code.a.jump_if_value(If::Ne, Reg::R0, FORWARDING_OFF, forwarded);
    code.a.place(stays);
}

/// Sets R1 to the index of the tunnel's interface.
fn interface(code: &mut Code, maps: &Maps<'_>) {
    match maps.tunnels {
        Tunnels::Single { .. } => code.a.load(Size::W, Reg::R1, TUNNEL, inbound::INTERFACE),
        Tunnels::Table(_) => {
            code.a.map_value(Reg::R1, maps.settings, i32::from(settings::INTERFACE));
            code.a.load(Size::W, Reg::R1, Reg::R1, 0);
        }
    }
}

/// Removes the outer headers, and marks the packet CE where congestion was marked outside.
fn remove_headers(code: &mut Code, form: &Form) {
    let refused = code.leave(Counter::Refused);
    ecn::prepare(code, refused);
    let a = &mut code.a;
    let v4 = a.label();
    if !form.abilities.crosses {
        a.load(Size::D, Reg::R1, Reg::R10, VERSION);
        a.jump_if_value(If::Ne, Reg::R1, if form.is_v4() { 4 } else { 6 }, refused);
    }
    if form.delivers_frames() {
        // The inner Ethernet header takes the place of the outer one, which is of no more use, first: afterwards the
        // daemon could no longer be left with the packet.
        a.copy(Reg::R1, CONTEXT);
        a.set(Reg::R2, 0);
        a.frame(Reg::R3, FRAME);
        a.set(Reg::R4, i32::from(ETHERNET_LEN));
        a.set(Reg::R5, 0);
        a.call(Helper::SkbStoreBytes);
        a.jump_if_value(If::Ne, Reg::R0, 0, refused);
    }
    a.load(Size::D, Reg::R1, Reg::R10, VERSION);
    a.set(Reg::R4, form.room(4) as i32);
    a.jump_if_value(If::Eq, Reg::R1, 4, v4);
    a.set(Reg::R4, form.room(6) as i32);
    a.place(v4);
    a.copy(Reg::R1, CONTEXT);
    a.set(Reg::R2, i32::from(ETHERNET_LEN));
    a.op(Op::Sub, Reg::R2, HEADERS);
    a.set(Reg::R3, room::MAC);
    a.call(Helper::SkbAdjustRoom);
    a.jump_if_value(If::Ne, Reg::R0, 0, refused);
    ecn::mark(code);
}

/// Counts the packet and passes it to the tunnel's interface.
fn deliver(code: &mut Code, form: &Form, maps: &Maps<'_>) {
    code.a.load(Size::W, HEADERS, CONTEXT, packet::LEN);
    if !form.delivers_frames() {
        code.a.op_value(Op::Sub, HEADERS, i32::from(ETHERNET_LEN));
    }
    match (&maps.tunnels, form.table) {
        (Tunnels::Table(table), Some(of)) => {
            let uncounted = code.a.label();
            code.a.set(Reg::R1, of.counters);
            code.look_up(maps.counters, COUNTERS, uncounted);
            code.count_unit(HEADERS, COUNTERS, Counter::ReceivedUnits as i16 * 8);
            code.segments();
            code.count_peer(table, HEADERS, peer_counts::RECEIVED);
            code.a.place(uncounted);
        }
        _ => code.count_unit(HEADERS, TUNNEL, inbound::RECEIVED),
    }
    interface(code, maps);
    // BPF_F_INGRESS.
    code.a.set(Reg::R2, 1);
    code.a.call(Helper::Redirect);
    code.a.end();
}
