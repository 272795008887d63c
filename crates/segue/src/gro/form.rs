//! The forms that nearly all packets have: TCP or UDP over one IP header without options or extension headers, bare or behind
//! Ethernet with up to two tags. Where everything is, and which bits must be equal, is known once a few bytes were looked at.

use alloc::vec::Vec;

use super::acks;
use super::key::{L3, Plain};
use super::rules::Masks;
use crate::packet::{BLOCK, Kind, Layout, Packet, Start, Stop, Tunnels};
use crate::wire::{self, ethernet, ethertype, ipv4, ipv6, protocol, read_u16, tcp, udp};

/// One form.
#[derive(Debug)]
pub(super) struct Form {
    /// Bits of the headers that must be equal; zero behind them.
    pub(super) mask: [u8; BLOCK],
    pub(super) layout: Layout,
    pub(super) plain: Plain,
    /// Where the IP header starts.
    pub(super) l3: usize,
    /// Bytes of all headers.
    pub(super) len: usize,
}

/// Which form: an index into [`Forms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which(u8);

impl Which {
    /// Another one.
    pub(super) const NONE: Which = Which(u8::MAX);
}

/// Transport headers told apart: UDP, TCP by its length in words, from 5 to 15, and TCP with timestamps that may differ.
const TRANSPORTS: usize = 13;
/// Of them, TCP without options.
const FIRST_TCP: usize = 1;
/// Of them, TCP with timestamps that may differ.
const STAMPED: usize = 12;

/// All forms.
#[derive(Debug)]
pub(super) struct Forms {
    forms: Vec<Form>,
    moves_stamps: bool,
}

impl Forms {
    /// The forms of headers that are compared with `masks`.
    pub(super) fn new(masks: &Masks) -> Forms {
        let mut forms = Vec::with_capacity(L3.len() * 2 * TRANSPORTS);
        for link in 0..L3.len() {
            for is_v6 in [false, true] {
                forms.extend((0..TRANSPORTS).map(|transport| form(link, is_v6, transport, masks)));
            }
        }
        Forms { forms, moves_stamps: masks.moves_stamps() }
    }

    /// The form `which`.
    #[inline(always)]
    pub(super) fn get(&self, which: Which) -> Option<&Form> {
        self.forms.get(usize::from(which.0))
    }

    /// Which form the packet has that begins with `front`, as far as types, versions and header lengths say. Bytes behind the
    /// packet's end are zero, so that it may be said to have headers that it does not have.
    #[inline(always)]
    pub(super) fn find(&self, front: &[u8; BLOCK], start: Start) -> Option<Which> {
        let (mut link, mut kind) = (0, None);
        if start == Start::Ethernet {
            link = 1;
            let mut at = ethernet::TYPE;
            let mut found = read_u16(front, at)?;
            while matches!(found, ethertype::VLAN | ethertype::QINQ) && link <= ethernet::MAX_TAGS {
                (link, at) = (link + 1, at + ethernet::VLAN_LEN);
                found = read_u16(front, at)?;
            }
            kind = Some(found);
        }
        let l3 = L3[link];
        let first = front[l3];
        let (is_v6, number, l4) = match (kind, first) {
            (Some(ethertype::IPV4) | None, 0x45) => (false, front[l3 + ipv4::PROTOCOL], l3 + ipv4::MIN_LEN),
            (Some(ethertype::IPV6) | None, 0x60..=0x6f) => (true, front[l3 + ipv6::NEXT_HEADER], l3 + ipv6::LEN),
            _ => return None,
        };
        let transport = match number {
            protocol::TCP => {
                let words = usize::from(front[l4 + tcp::OFFSET] >> 4);
                let is_stamped = self.moves_stamps && words * 4 == tcp::STAMPED_LEN && {
                    front.get(l4..l4 + tcp::STAMPED_LEN).and_then(acks::stamps).is_some()
                };
                if is_stamped { STAMPED } else { (words * 4).checked_sub(tcp::MIN_LEN)? / 4 + FIRST_TCP }
            }
            protocol::UDP => 0,
            _ => return None,
        };
        Some(Which(((link * 2 + usize::from(is_v6)) * TRANSPORTS + transport) as u8))
    }

    /// Which form a parsed packet has, where its layout is that of the form.
    #[inline(always)]
    pub(super) fn of<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> Option<Which> {
        let layout = &packet.layout;
        let first = layout.headers().first()?;
        let start = if first.kind == Kind::Ethernet { Start::Ethernet } else { Start::Ip };
        let which = self.find(packet.head.block()?, start)?;
        let form = self.get(which)?;
        let fits = packet.head.len() == form.len && *layout == form.layout && packet.offload.layers().is_empty();
        fits.then_some(which)
    }
}

/// Has the parser say what the layout is, of a packet with one byte of payload.
fn form(link: usize, is_v6: bool, transport: usize, masks: &Masks) -> Form {
    let mut bytes = [0; BLOCK];
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
    let mut mask = [0; BLOCK];
    mask.copy_from_slice(&masks.all(&layout, &bytes[..end])[..BLOCK]);
    let plain = Plain { link, is_v6, is_tcp: number == protocol::TCP, l4 };
    Form { mask, layout, plain, l3, len: end - 1 }
}
