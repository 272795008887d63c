//! Known forms of packets: TCP or UDP over one IP header without options or extension headers, bare or on Ethernet with
//! up to two tags. Nearly all packets have one. A few bytes identify the form, and the form determines the offsets of
//! all fields and which bits must be equal.

use alloc::vec::Vec;

use super::key::L3;
use super::rules::{self, Masks, Mismatch};
use super::stamps::stamps;
use crate::packet::{HEAD_BLOCK, Kind, Layout, Packet, Start, Stop, Tunnels};
use crate::wire::{self, ethernet, ethertype, ipv4, ipv6, protocol, tcp, udp};

/// A known form of packets: its layout, and the masks by which its headers are compared.
#[derive(Debug)]
pub(super) struct Form {
    /// Bits of the headers that must be equal; zero after the headers.
    pub(super) mask: [u8; HEAD_BLOCK],
    /// Bits that are equal if a TCP segment is the expected one: all but identification, sequence number and checksums.
    /// Zero after the headers.
    pub(super) strict: [u8; HEAD_BLOCK],
    pub(super) layout: Layout,
    /// Whether the transport protocol is TCP.
    pub(super) is_tcp: bool,
    /// Offset of the transport header, in bytes.
    pub(super) l4: usize,
    /// Offset of the IP header, in bytes.
    pub(super) l3: usize,
    /// Length of all headers, in bytes.
    pub(super) len: usize,
}

impl Form {
    /// Returns the mismatch that names the first compared field that differs between the headers of a train of this
    /// form and of another packet with its layout.
    pub(super) fn explain(&self, train: &[u8; HEAD_BLOCK], other: &[u8; HEAD_BLOCK]) -> Mismatch {
        let differs = |(at, mask): (usize, &u8)| ((train[at] ^ other[at]) & mask != 0).then_some(at);
        let at = self.mask.iter().enumerate().find_map(differs).unwrap_or(usize::MAX);
        rules::explain(&self.layout, at, &train[..self.len], &other[..self.len])
    }
}

/// The identifier of a form: an index into [`Forms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FormId(u8);

impl FormId {
    /// Stands for every packet without a known form.
    pub(super) const NONE: FormId = FormId(u8::MAX);

    /// Returns the form of TCP with a header of this length, whose timestamps, if any, must be equal.
    #[inline(always)]
    pub(super) fn tcp(link: usize, is_v6: bool, header_len: usize) -> FormId {
        FormId(((link * 2 + usize::from(is_v6)) * TRANSPORTS + FIRST_TCP + header_len / 4 - tcp::MIN_LEN / 4) as u8)
    }

    /// Returns the number of headers in front of IP.
    #[inline(always)]
    pub(super) fn link(self) -> usize {
        usize::from(self.0) / (2 * TRANSPORTS)
    }

    /// Returns the offset of the IP header, in bytes.
    #[inline(always)]
    pub(super) fn l3(self) -> usize {
        L3.get(self.link()).copied().unwrap_or(0)
    }
}

/// Number of transport headers that are distinguished: UDP, TCP by its length of 5 to 15 words, and TCP with timestamps
/// that may differ.
const TRANSPORTS: usize = 13;
/// Index of TCP without options among the transport headers.
const FIRST_TCP: usize = 1;
/// Index of TCP with timestamps that may differ among the transport headers.
const STAMPED: usize = 12;

/// The table of all known forms.
#[derive(Debug)]
pub(super) struct Forms {
    forms: Vec<Form>,
    moves_stamps: bool,
}

impl Forms {
    /// Creates the forms of headers that are compared under `masks`.
    pub(super) fn new(masks: &Masks) -> Forms {
        let mut forms = Vec::with_capacity(L3.len() * 2 * TRANSPORTS);
        for link in 0..L3.len() {
            for is_v6 in [false, true] {
                forms.extend((0..TRANSPORTS).map(|transport| form(link, is_v6, transport, masks)));
            }
        }
        Forms { forms, moves_stamps: masks.moves_stamps() }
    }

    /// Returns the form with this identifier.
    #[inline(always)]
    pub(super) fn get(&self, id: FormId) -> Option<&Form> {
        self.forms.get(usize::from(id.0))
    }

    /// Returns the form of a packet with `link` headers in front of IP, and with this transport header.
    #[inline(always)]
    pub(super) fn id_of<const V6: bool, const TCP: bool>(&self, link: usize, transport: &[u8]) -> Option<FormId> {
        let mut transport_id = 0;
        if TCP {
            let words = usize::from(transport.get(tcp::OFFSET)? >> 4);
            transport_id = words.checked_sub(tcp::MIN_LEN / 4)? + FIRST_TCP;
            if self.moves_stamps && transport.get(..words * 4).and_then(stamps).is_some() {
                transport_id = STAMPED;
            }
        }
        Some(FormId(((link * 2 + usize::from(V6)) * TRANSPORTS + transport_id) as u8))
    }

    /// Returns the form of a parsed packet, if its layout is that of the form.
    #[inline(always)]
    pub(super) fn of<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> Option<FormId> {
        let (transport, link) = (packet.layout.transport()?, packet.layout.headers().len().checked_sub(2)?);
        let bytes = packet.head.bytes().get(transport.start()..)?;
        let is_v6 = packet.layout.headers().get(link)?.kind == Kind::Ipv6;
        if link >= L3.len() || bytes.len() < usize::from(transport.len) {
            return None;
        }
        let id = match (is_v6, transport.kind) {
            (false, Kind::Tcp) => self.id_of::<false, true>(link, bytes),
            (false, _) => self.id_of::<false, false>(link, bytes),
            (true, Kind::Tcp) => self.id_of::<true, true>(link, bytes),
            (true, _) => self.id_of::<true, false>(link, bytes),
        }?;
        let form = self.get(id)?;
        let fits = packet.head.len() == form.len
            && packet.layout == form.layout
            && packet.layout.is_exact()
            && packet.offload.layers().is_empty();
        fits.then_some(id)
    }
}

/// Creates a form by parsing a sample packet with one byte of payload.
fn form(link: usize, is_v6: bool, transport: usize, masks: &Masks) -> Form {
    let mut bytes = [0; HEAD_BLOCK];
    let l3 = L3[link];
    let kind = if is_v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let l4 = l3 + if is_v6 { ipv6::LEN } else { ipv4::MIN_LEN };
    let (number, header_len) = match transport {
        0 => (protocol::UDP, udp::LEN),
        STAMPED => (protocol::TCP, tcp::STAMPED_LEN),
        other => (protocol::TCP, tcp::MIN_LEN + 4 * (other - FIRST_TCP)),
    };
    let end = l4 + header_len + 1;
    for tag in 1..link {
        wire::write_u16(&mut bytes, ethernet::TYPE + (tag - 1) * ethernet::VLAN_LEN, ethertype::VLAN);
    }
    if link > 0 {
        wire::write_u16(&mut bytes, l3 - 2, kind);
    }
    if is_v6 {
        (bytes[l3], bytes[l3 + ipv6::NEXT_HEADER]) = (0x60, number);
        wire::write_u16(&mut bytes, l3 + ipv6::PAYLOAD_LEN, (end - l4) as u16);
    } else {
        (bytes[l3], bytes[l3 + ipv4::PROTOCOL]) = (0x45, number);
        wire::write_u16(&mut bytes, l3 + ipv4::TOTAL_LEN, (end - l3) as u16);
    }
    if number == protocol::UDP {
        wire::write_u16(&mut bytes, l4 + udp::LENGTH, (end - l4) as u16);
    } else {
        bytes[l4 + tcp::OFFSET] = ((header_len / 4) << 4) as u8;
        if transport == STAMPED {
            bytes[l4 + tcp::OPTIONS..][..tcp::STAMPED.len()].copy_from_slice(&tcp::STAMPED);
        }
    }
    let start = if link == 0 { Start::Ip } else { Start::Ethernet };
    let layout = wire::parse(&bytes[..end], start, &Tunnels::NONE);
    debug_assert!(layout.is_exact() && layout.stop() == Stop::Transport && layout.header_len() + 1 == end);
    let mut mask = [0; HEAD_BLOCK];
    mask.copy_from_slice(&masks.all(&layout, &bytes[..end])[..HEAD_BLOCK]);
    let mut strict = [0; HEAD_BLOCK];
    strict[..end - 1].fill(0xff);
    if !is_v6 {
        strict[l3 + ipv4::ID..][..2].fill(0);
        strict[l3 + ipv4::CHECKSUM..][..2].fill(0);
    }
    if number == protocol::TCP {
        strict[l4 + tcp::SEQ..][..4].fill(0);
        strict[l4 + tcp::CHECKSUM..][..2].fill(0);
    }
    Form { mask, strict, layout, is_tcp: number == protocol::TCP, l4, l3, len: end - 1 }
}
