//! The rules of GRO: when a packet stays alone, when a train is closed, and which fields must be equal.
//!
//! Two packets join only if all bytes of their headers are equal except those of [`VARYING`]; [`FIELDS`] names the
//! others for statistics. Sources: RFC 9293 (TCP), RFC 7323 (timestamps), RFC 3168 and RFC 9768 (ECN and CWR), RFC 6864
//! (identification), and Linux `net/ipv4/tcp_offload.c`, `net/ipv4/udp_offload.c`, `net/ipv4/af_inet.c` as observed on
//! Linux 6.18. [`Profile::Lro`] adds what Linux `inet_lro` did and a receiver can cope with.

use super::config::Config;
use super::profile::Profile;
use super::stamps::stamps;
use crate::checksum::Sum;
use crate::packet::{Csum, Kind, LayerCsum, Layout, Packet, Remote, Unit, remote};
use crate::wire::parse::MAX_HEADER_BYTES;
use crate::wire::{ethernet, gre, ipv4, ipv6, read_u16, tcp, udp};

crate::reasons! {
    /// The reason why a packet was passed on without being held.
    pub enum RefusalReason {
        Protocol = "protocol": "Neither TCP nor UDP.",
        Fragment = "fragment": "An IP fragment.",
        Malformed = "malformed": "Headers whose lengths contradict each other or the bytes present.",
        TooDeep = "too_deep": "More headers, tunnel levels or extension headers than the engine follows.",
        Padding = "padding": "Bytes after the packet, which segmentation could not restore.",
        NoPayload = "no_payload": "No payload: a pure ACK, or an empty datagram.",
        TcpFlags = "tcp_flags": "SYN, RST or URG is set.",
        IpOptions = "ip_options": "IPv4 options.",
        ReservedFlag = "reserved_flag": "The reserved flag of IPv4 is set.",
        Routing = "routing": "An IPv6 routing header with segments left, or a home address option: the checksum covers another address.",
        IpChecksum = "ip_checksum": "A wrong IPv4 header checksum.",
        NoChecksum = "no_checksum": "UDP without a checksum.",
        BadChecksum = "bad_checksum": "A wrong transport, GRE or outer UDP checksum; passed on unchanged.",
        NotCanonical = "not_canonical": "A right checksum in a form that would not be restored (0xffff for 0).",
        Tunnel = "tunnel": "A tunnel header that segmentation could not reproduce: GRE sequence number or reserved bits, a remote checksum that is GRE's or misplaced, no IP header inside; or a header of a version or with flags that are not known.",
        RemoteUnprotected = "remcsum_unprotected": "A remote checksum without a verified outer checksum.",
        Tiny = "tiny": "A pending TCP checksum over less payload than a train from outside is cut into.",
        AlreadyTrain = "already_train": "It is a train already.",
        AckFlags = "ack_flags": "A pure acknowledgment with another flag than ACK: PSH, URG, FIN, SYN, RST or one of ECN.",
        AckOptions = "ack_options": "A pure acknowledgment with options other than timestamps in the usual layout, such as SACK.",
        AckDuplicate = "ack_duplicate": "A duplicate acknowledgment.",
        AckWindow = "ack_window": "A pure window update, or an acknowledgment that takes back the window.",
        AckOld = "ack_old": "An acknowledgment older than the one before it.",
        AckTimestamp = "ack_timestamp": "A pure acknowledgment whose timestamp or echo goes back or is missing.",
        AckFirst = "ack_first": "The first pure acknowledgment of a flow, or the first one after data or anything that a sender must see.",
    }
}

crate::reasons! {
    /// The reason for which a train, or a packet that could have begun one, was released.
    pub enum Flush {
        Full = "full": "It had the most packets or bytes, or the next segment did not fit the limit on bytes.",
        Short = "short": "Its last segment is shorter than the others.",
        Push = "psh": "PSH is set.",
        Fin = "fin": "FIN is set.",
        Mismatch = "mismatch": "The next packet of the flow did not fit; see the mismatches.",
        Order = "order": "A packet of the flow, or one of unknown flow, had to pass and must not overtake.",
        BadChecksum = "bad_checksum": "The packet held had a wrong checksum.",
        PollEnd = "poll_end": "The poll round ended.",
        Timeout = "timeout": "It had been held for the hold time.",
        Evicted = "evicted": "The table was full.",
        Pressure = "pressure": "More packets were held than the limit, and this was the oldest.",
    }
}

crate::reasons! {
    /// The field that differed when a packet did not fit the train of its flow.
    pub enum Mismatch {
        Headers = "headers": "Other headers or header lengths.",
        Link = "link": "The Ethernet header or a VLAN tag.",
        Tos = "tos": "DSCP or ECN.",
        Ttl = "ttl": "Time to live or hop limit.",
        Fragment = "df": "The flags of IPv4.",
        FlowLabel = "flow_label": "The flow label.",
        Extensions = "extensions": "IPv6 extension headers.",
        IpId = "ip_id": "The identification neither stayed nor counted up.",
        TunnelHeader = "tunnel_header": "Bytes of the header of GUE, VXLAN or Geneve.",
        Sequence = "sequence": "Not the next sequence number: a gap, a retransmission or an overlap.",
        AckNumber = "ack": "The acknowledgment number.",
        TcpFlags = "flags": "TCP flags, data offset or reserved bits.",
        Cwr = "cwr": "CWR on a segment that is not the first.",
        Window = "window": "The window.",
        Urgent = "urgent": "The urgent pointer.",
        Options = "options": "TCP options (timestamps among them).",
        Larger = "larger": "More payload than the first segment.",
        ChecksumKind = "checksum_kind": "One checksum is pending or absent, the other is not.",
    }
}

/// A field that may differ: a part of a header, and which of its bits.
#[derive(Clone, Copy, Debug)]
pub struct Varying {
    /// The header that the field is part of.
    pub kind: Kind,
    /// Offset of the first byte, from the start of the header.
    pub at: usize,
    /// Length of the part in bytes.
    pub len: usize,
    /// Bits that may differ in every byte.
    pub bits: u8,
    /// The profiles in which the field may differ.
    pub whose: ProfileSet,
}

/// The profiles that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileSet {
    /// Set of every profile.
    All,
    /// Profiles in which CWR closes the train held and is not compared: splitting sets it on the first segment alone.
    CwrCloses,
    /// Set of the profiles that follow Linux.
    Linux,
    /// The profile of a receiver with LRO.
    Lro,
}

impl ProfileSet {
    /// Returns whether the rule applies to `profile`.
    pub const fn has(self, profile: Profile) -> bool {
        match self {
            ProfileSet::All => true,
            ProfileSet::CwrCloses => !profile.compares_cwr(),
            ProfileSet::Linux => matches!(profile, Profile::Linux(_)),
            ProfileSet::Lro => matches!(profile, Profile::Lro),
        }
    }
}

const fn vary(kind: Kind, at: usize, len: usize, bits: u8) -> Varying {
    Varying { kind, at, len, bits, whose: ProfileSet::All }
}

const fn only(whose: ProfileSet, varying: Varying) -> Varying {
    Varying { whose, ..varying }
}

/// Fields that may differ between the segments of a train, because splitting rewrites them in each segment.
pub const VARYING: &[Varying] = &[
    vary(Kind::Ipv4, ipv4::TOTAL_LEN, 2, 0xff),
    vary(Kind::Ipv4, ipv4::ID, 2, 0xff),
    vary(Kind::Ipv4, ipv4::CHECKSUM, 2, 0xff),
    vary(Kind::Ipv6, ipv6::PAYLOAD_LEN, 2, 0xff),
    vary(Kind::Udp, udp::LENGTH, 2, 0xff),
    vary(Kind::Udp, udp::CHECKSUM, 2, 0xff),
    vary(Kind::Tcp, tcp::SEQ, 4, 0xff),
    vary(Kind::Tcp, tcp::FLAGS, 1, tcp::FIN | tcp::PSH),
    vary(Kind::Tcp, tcp::CHECKSUM, 2, 0xff),
    only(ProfileSet::CwrCloses, vary(Kind::Tcp, tcp::FLAGS, 1, tcp::CWR)),
    // Linux compares no urgent pointer while URG is clear, and so loses it.
    only(ProfileSet::Linux, vary(Kind::Tcp, tcp::URGENT, 2, 0xff)),
    // The newest values replace those in the header; timestamps too, if they have the usual layout.
    only(ProfileSet::Lro, vary(Kind::Tcp, tcp::ACK_NUMBER, 4, 0xff)),
    only(ProfileSet::Lro, vary(Kind::Tcp, tcp::WINDOW, 2, 0xff)),
];

/// Reasons for differing header bytes, by header kind and offset; the first entry that covers the byte counts. Fields
/// of the flow key are not listed, since two packets that differ in one never meet.
pub const FIELDS: &[(Kind, core::ops::Range<usize>, Mismatch)] = &[
    (Kind::Ethernet, 0..14, Mismatch::Link),
    (Kind::Vlan, 0..4, Mismatch::Link),
    (Kind::Ipv4, 1..2, Mismatch::Tos),
    (Kind::Ipv4, 6..8, Mismatch::Fragment),
    (Kind::Ipv4, 8..9, Mismatch::Ttl),
    (Kind::Ipv6, 0..1, Mismatch::Tos),
    (Kind::Ipv6, 2..4, Mismatch::FlowLabel),
    (Kind::Ipv6, 6..7, Mismatch::Extensions),
    (Kind::Ipv6, 7..8, Mismatch::Ttl),
    (Kind::Ipv6, 40..usize::MAX, Mismatch::Extensions),
    (Kind::Tcp, 8..12, Mismatch::AckNumber),
    (Kind::Tcp, 12..14, Mismatch::TcpFlags),
    (Kind::Tcp, 14..16, Mismatch::Window),
    (Kind::Tcp, 18..20, Mismatch::Urgent),
    (Kind::Tcp, 20..60, Mismatch::Options),
];

/// Number of bytes at the start of a header that may contain varying fields; all bytes after them must be equal,
/// except timestamps.
const MASKED: usize = tcp::MIN_LEN;

/// The masks of the header bits that must be equal.
#[derive(Debug)]
pub(super) struct Masks {
    kinds: [[u8; MASKED]; Kind::COUNT],
    /// Whether timestamps may differ if they have the usual layout.
    moves_stamps: bool,
}

impl Masks {
    pub(super) fn new(profile: Profile) -> Masks {
        let mut kinds = [[0xff; MASKED]; Kind::COUNT];
        for field in VARYING.iter().filter(|field| field.whose.has(profile)) {
            for bits in &mut kinds[field.kind as usize][field.at..field.at + field.len] {
                *bits &= !field.bits;
            }
        }
        Masks { kinds, moves_stamps: profile == Profile::Lro }
    }

    /// Returns whether timestamps in the usual layout may differ.
    pub(super) fn moves_stamps(&self) -> bool {
        self.moves_stamps
    }

    /// Writes to `out` the mask of a header with these bytes.
    fn of(&self, kind: Kind, bytes: &[u8], out: &mut [u8]) {
        out.fill(0xff);
        for (out, bits) in out.iter_mut().zip(&self.kinds[kind as usize]) {
            *out = *bits;
        }
        if kind == Kind::Gre && bytes.len() >= 8 {
            // A checksum may differ. A key in these bytes must be equal, and is, being part of the flow key.
            out[gre::CHECKSUM..][..2].fill(0);
        }
        if kind == Kind::Tcp && self.moves_stamps && stamps(bytes).is_some() {
            out[tcp::STAMP..].fill(0);
        }
    }

    /// Returns the mask of headers like those in `head`, whose layout is `layout`.
    pub(super) fn all(&self, layout: &Layout, head: &[u8]) -> [u8; MAX_HEADER_BYTES] {
        let mut mask = [0; MAX_HEADER_BYTES];
        for header in layout.headers() {
            let range = header.start()..header.end();
            if let (Some(bytes), Some(out)) = (head.get(range.clone()), mask.get_mut(range)) {
                self.of(header.kind, bytes, out);
            }
        }
        mask
    }

    /// Returns the offset of the first byte in which the headers `a`, whose layout is `layout`, and `b` differ in a
    /// compared bit; `None` if there is none.
    pub(super) fn difference(&self, layout: &Layout, a: &[u8], b: &[u8]) -> Option<usize> {
        if a.len() != layout.header_len() || b.len() != a.len() {
            return Some(usize::MAX);
        }
        let mask = self.all(layout, a);
        let differs = a.iter().zip(b).zip(&mask).fold(0, |acc, ((a, b), mask)| acc | ((a ^ b) & mask));
        if differs == 0 {
            return None;
        }
        a.iter().zip(b).zip(&mask).position(|((a, b), mask)| (a ^ b) & mask != 0)
    }
}

/// Returns the mismatch that names the difference of two headers at the byte `at`.
pub(super) fn explain(layout: &Layout, at: usize, a: &[u8], b: &[u8]) -> Mismatch {
    let Some(header) = layout.headers().iter().find(|h| (h.start()..h.end()).contains(&at)) else {
        return Mismatch::Headers;
    };
    let offset = at - header.start();
    if header.kind == Kind::Ipv6 && offset == 1 {
        // The byte is shared: its upper half is traffic class, its lower half flow label.
        return if (a[at] ^ b[at]) & 0xf0 != 0 { Mismatch::Tos } else { Mismatch::FlowLabel };
    }
    let unnamed = if header.kind.format().is_some() { Mismatch::TunnelHeader } else { Mismatch::Headers };
    FIELDS
        .iter()
        .find(|(kind, range, _)| *kind == header.kind && range.contains(&offset))
        .map_or(unnamed, |(_, _, why)| *why)
}

/// Returns why a packet cannot be part of any train, checksums over payload aside. If the reason is missing payload,
/// nothing else was found wrong with the packet except possibly its TCP flags.
pub(super) fn gate<B: AsRef<[u8]>>(packet: &Packet<B>, config: &Config) -> Result<(), RefusalReason> {
    match packet.offload.unit {
        Unit::Train { .. } => return Err(RefusalReason::AlreadyTrain),
        Unit::Whole(Csum::Bad) => return Err(RefusalReason::BadChecksum),
        Unit::Whole(Csum::Absent) => return Err(RefusalReason::NoChecksum),
        Unit::Whole(Csum::Partial) => {}
        // A caller that calls it verified may mean that there is none.
        Unit::Whole(_) => {
            if let Some((Kind::Udp, bytes)) = packet.transport()
                && read_u16(bytes, udp::CHECKSUM) == Some(0)
            {
                return Err(RefusalReason::NoChecksum);
            }
        }
    }
    let is_fit = packet.layout.is_exact() || (config.profile.trims() && packet.layout.is_padded());
    if !is_fit {
        return Err(RefusalReason::Padding);
    }
    if packet.layout.ip_levels() > 2 {
        return Err(RefusalReason::TooDeep);
    }
    gate_form(packet)?;
    let head = packet.head.bytes();
    for (index, header) in packet.layout.headers().iter().enumerate() {
        let bytes = head.get(header.start()..header.end()).ok_or(RefusalReason::Malformed)?;
        match header.kind {
            Kind::Ipv4 => gate_ipv4(bytes, config.profile)?,
            Kind::Ipv6 if ipv6::is_routed(bytes) => return Err(RefusalReason::Routing),
            Kind::Gre => {
                let gre = gre::Gre::parse(bytes).ok_or(RefusalReason::Malformed)?;
                let in_udp = packet.layout.headers().iter().any(|h| h.kind == Kind::Udp && h.start() < header.start());
                // Linux joins no GRE packets with a checksum inside FOU or GUE.
                let linux_refuses = gre.checksum.is_some() && in_udp && matches!(config.profile, Profile::Linux(_));
                if gre.seq.is_some() || linux_refuses {
                    return Err(RefusalReason::Tunnel);
                }
                if gre.checksum == Some(0xffff) && config.profile == Profile::Strict {
                    return Err(RefusalReason::NotCanonical);
                }
                // The reserved half of the checksum word would not be restored if it were not zero.
                if gre.checksum.is_some() && read_u16(bytes, gre::CHECKSUM + 2) != Some(0) {
                    return Err(RefusalReason::Tunnel);
                }
            }
            // What the far end makes of a misplaced option is unknown.
            _ if matches!(remote::option(&packet.head, &packet.layout, index), Some(Err(_))) => {
                return Err(RefusalReason::Tunnel);
            }
            _ => {}
        }
    }
    for layer in packet.offload.layers() {
        match layer.remote {
            Some(Remote::Gre) => return Err(RefusalReason::Tunnel),
            Some(Remote::Transport) if matches!(layer.udp, LayerCsum::Absent | LayerCsum::Owed) => {
                return Err(RefusalReason::RemoteUnprotected);
            }
            _ => {}
        }
    }
    // The bytes present may be padding.
    if packet.payload.is_empty() || (packet.layout.is_padded() && packet.layout.end() <= packet.head.len()) {
        return Err(RefusalReason::NoPayload);
    }
    let (kind, bytes) = packet.transport().ok_or(RefusalReason::Malformed)?;
    if kind == Kind::Tcp {
        if bytes[tcp::FLAGS] & (tcp::SYN | tcp::RST | tcp::URG) != 0 {
            return Err(RefusalReason::TcpFlags);
        }
        let owed = packet.offload.unit == Unit::Whole(Csum::Partial);
        if !owed && config.profile == Profile::Strict && read_u16(bytes, tcp::CHECKSUM) == Some(0xffff) {
            return Err(RefusalReason::NotCanonical);
        }
    }
    Ok(())
}

/// Checks the assumptions of later stages: that no header is shorter than its kind, that the layout covers the head,
/// that each tunnel level has a state, and that the transport header directly follows an IP header, whose addresses its
/// checksum covers.
fn gate_form<B: AsRef<[u8]>>(packet: &Packet<B>) -> Result<(), RefusalReason> {
    let head = packet.head.bytes();
    let levels = packet.offload.layers().len() + 1;
    if head.len() != packet.layout.header_len() {
        return Err(RefusalReason::Malformed);
    }
    let mut after_ip = false;
    for header in packet.layout.headers() {
        let least = match header.kind {
            Kind::Ethernet => ethernet::LEN,
            Kind::Vlan => ethernet::VLAN_LEN,
            Kind::Ipv4 => ipv4::MIN_LEN,
            Kind::Ipv6 => ipv6::LEN,
            Kind::Udp => udp::LEN,
            Kind::Tcp => tcp::MIN_LEN,
            Kind::Gre => gre::MIN_LEN,
            _ => 0,
        };
        if usize::from(header.len) < least || !header.len.is_multiple_of(2) {
            return Err(RefusalReason::Malformed);
        }
        if matches!(header.kind, Kind::Tcp | Kind::Udp) && !after_ip {
            return Err(RefusalReason::Tunnel);
        }
        after_ip = header.is_ip();
    }
    if levels != packet.layout.ip_levels() {
        return Err(RefusalReason::Malformed);
    }
    match packet.transport() {
        Some((Kind::Tcp | Kind::Udp, _)) => Ok(()),
        _ => Err(RefusalReason::Malformed),
    }
}

/// Returns why a packet with this IPv4 header cannot be part of any train.
pub(super) fn gate_ipv4(bytes: &[u8], profile: Profile) -> Result<(), RefusalReason> {
    if bytes.len() > ipv4::MIN_LEN {
        return Err(RefusalReason::IpOptions);
    }
    if read_u16(bytes, ipv4::FRAGMENT).is_some_and(|word| word & ipv4::RESERVED != 0) {
        return Err(RefusalReason::ReservedFlag);
    }
    if Sum::of(bytes).fold() != 0xffff {
        return Err(RefusalReason::IpChecksum);
    }
    if profile == Profile::Strict && read_u16(bytes, ipv4::CHECKSUM) == Some(0xffff) {
        return Err(RefusalReason::NotCanonical);
    }
    Ok(())
}

/// Returns why no segment may follow `packet` in a train, if so.
pub(super) fn closes<B: AsRef<[u8]>>(packet: &Packet<B>) -> Option<Flush> {
    match packet.transport() {
        Some((Kind::Tcp, bytes)) => closing(bytes[tcp::FLAGS]),
        _ => None,
    }
}

/// Returns the reason why no segment may follow one with the given TCP flags, if so.
#[inline(always)]
pub(super) fn closing(flags: u8) -> Option<Flush> {
    match flags {
        _ if flags & tcp::FIN != 0 => Some(Flush::Fin),
        _ if flags & tcp::PSH != 0 => Some(Flush::Push),
        _ => None,
    }
}
