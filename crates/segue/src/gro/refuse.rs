//! Frames that cannot join a train: other protocols, fragments, segments without payload, SYN and RST, UDP without a
//! checksum, padding. They leave after one look at their first bytes, without being parsed, and after what is held of
//! their flow.
//!
//! As on the fast path, the result is always that of the slow path: a frame about which anything is unusual takes that,
//! before anything has changed.

use super::engine::Gro;
use super::key::{L3, Plain};
use super::rules::{Flush, RefusalReason};
use super::table::Lookup;
use super::verify::is_sum_good;
use crate::packet::{Csum, Start};
use crate::wire::{ethernet, ethertype, ipv4, ipv6, protocol, read_u16, tcp, udp};

/// The held packets that must leave before a frame that cannot join a train.
#[derive(Clone, Copy)]
pub(super) enum FlushScope {
    /// No packets need to leave first: the frame belongs to no flow that is ever held.
    Nothing,
    /// The held train of the same flow.
    Flow(Plain),
    /// Everything, since its flow is unknown.
    All,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Returns the reason why a frame shorter than a block cannot join a train, if its bytes show that; packets that
    /// must precede it are ready afterwards. It is not copied to be padded, which short frames that may join are.
    #[inline(never)]
    pub(super) fn refuse_short(&mut self, bytes: &[u8], start: Start, csum: Csum) -> Option<RefusalReason> {
        let plain = match start {
            Start::Ethernet if read_u16(bytes, ethernet::TYPE) == Some(ethertype::IPV4) => {
                self.plain_acknowledgment::<1, { ethernet::LEN + ipv4::MIN_LEN + tcp::MIN_LEN }>(bytes, csum)
            }
            Start::Ethernet => None,
            Start::Ip => self.plain_acknowledgment::<0, { ipv4::MIN_LEN + tcp::MIN_LEN }>(bytes, csum),
        };
        let (why, behind) = match plain {
            Some(plain) => (RefusalReason::NoPayload, FlushScope::Flow(plain)),
            None => self.refusal(bytes, bytes.len(), (start, csum))?,
        };
        self.flush_before(bytes, None, behind);
        Some(why)
    }

    /// Returns the form of a frame that is a segment without payload of TCP over IPv4, without IP options and padding,
    /// after `LINK` headers: most short frames are one. `N` is the least length of such a frame, so that its fields
    /// are read without a check for each. [`Gro::refusal`] says the same of it, and judges all others.
    #[inline(always)]
    fn plain_acknowledgment<const LINK: usize, const N: usize>(&self, bytes: &[u8], csum: Csum) -> Option<Plain> {
        let l3 = const { L3[LINK] };
        let l4 = const { L3[LINK] + ipv4::MIN_LEN };
        let front: &[u8; N] = bytes.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let is_plain = front[l3 + ipv4::VERSION_IHL] == 0x45
            && front[l3 + ipv4::PROTOCOL] == protocol::TCP
            && usize::from(word(l3 + ipv4::TOTAL_LEN)) + l3 == bytes.len()
            && l4 + tcp::header_len(front[l4 + tcp::OFFSET]) == bytes.len()
            && word(l3 + ipv4::FRAGMENT) & !ipv4::DF == 0
            && u32::from(word(l3 + ipv4::CHECKSUM)) != self.rules.ones
            && is_sum_good(&front[l3..l4])
            && !matches!(csum, Csum::Bad | Csum::Absent)
            && !self.config.acks;
        is_plain.then_some(Plain { link: LINK, is_v6: false, is_tcp: true, l4 })
    }

    /// Releases the held packets that must leave before a frame that cannot join a train. `hash` is the hash of its
    /// flow if already computed.
    #[inline(always)]
    pub(super) fn flush_before(&mut self, front: &[u8], hash: Option<u64>, behind: FlushScope) {
        if self.table.len() == 0 {
            return;
        }
        match behind {
            FlushScope::Nothing => {}
            FlushScope::All => self.flush_because(Flush::Order),
            FlushScope::Flow(plain) => {
                let hash = hash.or_else(|| self.hasher.plain(front, plain));
                if let Some(Lookup::Slot(idx)) = hash.map(|hash| self.table.lookup(hash)) {
                    self.finish(idx, Flush::Order);
                }
            }
        }
    }

    /// Returns why a frame cannot join a train, if its first bytes show that.
    #[inline(always)]
    pub(super) fn refusal(
        &self,
        front: &[u8],
        total: usize,
        (start, csum): (Start, Csum),
    ) -> Option<(RefusalReason, FlushScope)> {
        let kind = |tags: usize| read_u16(front, ethernet::TYPE + tags * ethernet::VLAN_LEN).unwrap_or(0);
        let is_tag = |kind| matches!(kind, ethertype::VLAN | ethertype::QINQ);
        let (link, kind) = match start {
            Start::Ip => match front.first()? >> 4 {
                4 => (0, ethertype::IPV4),
                6 => (0, ethertype::IPV6),
                _ => return None,
            },
            Start::Ethernet if !is_tag(kind(0)) => (1, kind(0)),
            Start::Ethernet if !is_tag(kind(1)) => (2, kind(1)),
            Start::Ethernet => (3, kind(2)),
        };
        let l3 = *L3.get(link)?;
        let rest = total.checked_sub(l3)?;
        let ip = front.get(l3..l3 + ipv6::LEN)?;
        let (is_v6, ip_len, len, number) = match kind {
            ethertype::IPV4 if ip[0] == 0x45 && rest >= ipv4::MIN_LEN => {
                let len = usize::from(read_u16(ip, ipv4::TOTAL_LEN)?);
                if !(ipv4::MIN_LEN..=rest).contains(&len) {
                    return None;
                }
                let fragment = read_u16(ip, ipv4::FRAGMENT)?;
                if fragment & (ipv4::MF | ipv4::OFFSET) != 0 {
                    return Some((RefusalReason::Fragment, FlushScope::All));
                }
                if fragment & ipv4::RESERVED != 0 && matches!(ip[ipv4::PROTOCOL], protocol::TCP | protocol::UDP) {
                    return None;
                }
                (false, ipv4::MIN_LEN, len, ip[ipv4::PROTOCOL])
            }
            ethertype::IPV6 if ip[0] >> 4 == 6 && (ipv6::LEN..=ipv6::LEN + ipv6::MAX_PAYLOAD_LEN).contains(&rest) => {
                let len = ipv6::LEN + usize::from(read_u16(ip, ipv6::PAYLOAD_LEN)?);
                if len > rest {
                    return None;
                }
                if ip[ipv6::NEXT_HEADER] == protocol::FRAGMENT {
                    return Some((RefusalReason::Fragment, FlushScope::All));
                }
                (true, ipv6::LEN, len, ip[ipv6::NEXT_HEADER])
            }
            ethertype::IPV4 | ethertype::IPV6 | ethertype::VLAN | ethertype::QINQ | ethertype::TEB => return None,
            _ => return Some((RefusalReason::Protocol, FlushScope::Nothing)),
        };
        let l4 = l3 + ip_len;
        let behind = |is_tcp| FlushScope::Flow(Plain { link, is_v6, is_tcp, l4 });
        let is_padded = len != rest;
        let is_odd =
            || !is_v6 && (u32::from(read_u16(ip, ipv4::CHECKSUM).unwrap_or(0)) == self.rules.ones || !is_sum_good(ip));
        match number {
            protocol::TCP => {
                let transport = front.get(l4..l4 + tcp::MIN_LEN)?;
                let header_len = tcp::header_len(transport[tcp::OFFSET]);
                let payload = (len - ip_len).checked_sub(header_len.max(tcp::MIN_LEN))?;
                if header_len < tcp::MIN_LEN || matches!(csum, Csum::Bad | Csum::Absent) || self.config.acks {
                    return None;
                }
                if is_padded && !self.config.profile.trims() {
                    return Some((RefusalReason::Padding, behind(true)));
                }
                let flags = transport[tcp::FLAGS];
                if payload != 0 && flags & (tcp::SYN | tcp::RST | tcp::URG) == 0 || is_odd() {
                    return None;
                }
                Some((if payload == 0 { RefusalReason::NoPayload } else { RefusalReason::TcpFlags }, behind(true)))
            }
            protocol::UDP => {
                let transport = front.get(l4..l4 + udp::LEN)?;
                let length = usize::from(read_u16(transport, udp::LENGTH)?);
                let is_tunnel = self.config.tunnels.has(read_u16(transport, udp::DST_PORT)?);
                if length < udp::LEN || length != len - ip_len || is_tunnel || matches!(csum, Csum::Bad | Csum::Absent)
                {
                    return None;
                }
                if csum == Csum::Unknown && read_u16(transport, udp::CHECKSUM)? == 0 {
                    return Some((RefusalReason::NoChecksum, behind(false)));
                }
                if is_padded && !self.config.profile.trims() {
                    return Some((RefusalReason::Padding, behind(false)));
                }
                if length != udp::LEN || is_odd() {
                    return None;
                }
                Some((RefusalReason::NoPayload, behind(false)))
            }
            protocol::IPV4 | protocol::IPV6 | protocol::GRE | protocol::ETHERNET => None,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION if is_v6 => None,
            _ => Some((RefusalReason::Protocol, FlushScope::Nothing)),
        }
    }
}
