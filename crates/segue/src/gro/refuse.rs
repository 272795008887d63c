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

#[cfg(test)]
mod tests {
    use segue_testkit::build::{Ip, L4, Packet as Built, Tcp, V4};

    use super::*;
    use crate::checksum::{Field, Sum};
    use crate::gro::{Config, Profile};
    use crate::packet::{Frag, Frame, Pool};
    use crate::time::Nanos;
    use crate::wire::write_u16;

    /// Least length of a segment without payload of TCP over IPv4.
    const BARE: usize = ipv4::MIN_LEN + tcp::MIN_LEN;
    /// Least length of such a segment behind Ethernet.
    const FRAMED: usize = ethernet::LEN + BARE;

    /// Returns a segment without payload, with `options` bytes of options of TCP, behind `l3` bytes, changed before its
    /// IPv4 checksum is computed.
    fn segment(l3: usize, options: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = vec![0; l3 + BARE + options];
        let ip = &mut bytes[l3..];
        (ip[ipv4::VERSION_IHL], ip[ipv4::PROTOCOL]) = (0x45, protocol::TCP);
        write_u16(ip, ipv4::TOTAL_LEN, (BARE + options) as u16);
        ip[ipv4::MIN_LEN + tcp::OFFSET] = 0x50 + ((options as u8 / 4) << 4);
        change(ip);
        let field = Field::complete(Sum::of(&ip[..ipv4::MIN_LEN]));
        write_u16(ip, ipv4::CHECKSUM, field.value());
        bytes
    }

    fn gro(profile: Profile) -> Gro<Vec<u8>> {
        Gro::new(Config { profile, ..Config::default() })
    }

    /// Returns what is found of the same segment, bare and on Ethernet, which must be the same.
    #[track_caller]
    fn found(gro: &Gro<Vec<u8>>, segment: impl Fn(usize) -> Vec<u8>, csum: Csum) -> bool {
        let bare = gro.plain_acknowledgment::<0, BARE>(&segment(0), csum);
        let framed = gro.plain_acknowledgment::<1, FRAMED>(&segment(ethernet::LEN), csum);
        for (plain, link, l4) in [(bare, 0, ipv4::MIN_LEN), (framed, 1, ethernet::LEN + ipv4::MIN_LEN)] {
            if let Some(Plain { link: its, is_v6, is_tcp, l4: at }) = plain {
                assert_eq!((its, is_v6, is_tcp, at), (link, false, true, l4));
            }
        }
        assert_eq!(bare.is_some(), framed.is_some());
        bare.is_some()
    }

    /// Tests that a segment without payload is recognised by all of its fields together: of each case below only one
    /// is another.
    #[test]
    fn a_plain_acknowledgment_is_one_in_every_field() {
        let strict = gro(Profile::Strict);
        for (options, csum) in [(0, Csum::Unknown), (12, Csum::Unknown), (40, Csum::Verified), (0, Csum::Partial)] {
            assert!(found(&strict, |l3| segment(l3, options, |_| ()), csum), "{options} {csum:?}");
        }
        assert!(found(&strict, |l3| segment(l3, 0, |ip| ip[ipv4::FRAGMENT] = 0x40), Csum::Unknown), "DF");
        let offset_at = ipv4::MIN_LEN + tcp::OFFSET;
        let cases: [(&str, usize, u8); 8] = [
            ("IPv4 options", ipv4::VERSION_IHL, 0x46),
            ("another version", ipv4::VERSION_IHL, 0x55),
            ("another protocol", ipv4::PROTOCOL, protocol::UDP),
            ("padding", ipv4::TOTAL_LEN + 1, BARE as u8 - 1),
            ("a part", ipv4::TOTAL_LEN + 1, BARE as u8 + 1),
            ("more fragments", ipv4::FRAGMENT, 0x20),
            ("an offset", ipv4::FRAGMENT + 1, 1),
            ("options of TCP that are not there", offset_at, 0x60),
        ];
        for (what, at, value) in cases {
            assert!(!found(&strict, |l3| segment(l3, 0, |ip| ip[at] = value), Csum::Unknown), "{what}");
        }
        // Data behind the header, which the length counts.
        assert!(!found(&strict, |l3| segment(l3, 4, |ip| ip[offset_at] = 0x50), Csum::Unknown));
        let wrong = |l3: usize| {
            let mut bytes = segment(l3, 0, |_| ());
            bytes[l3 + ipv4::CHECKSUM + 1] ^= 1;
            bytes
        };
        assert!(!found(&strict, wrong, Csum::Unknown), "a wrong checksum");
        for csum in [Csum::Bad, Csum::Absent] {
            assert!(!found(&strict, |l3| segment(l3, 0, |_| ()), csum), "{csum:?}");
        }
        let acks = Gro::new(Config { profile: Profile::Lro, acks: true, ..Config::default() });
        assert!(!found(&acks, |l3| segment(l3, 0, |_| ()), Csum::Unknown), "it may collapse with another");
        for len in [BARE - 1, BARE] {
            let plain = strict.plain_acknowledgment::<0, BARE>(&segment(0, 0, |_| ())[..len], Csum::Unknown);
            assert_eq!(plain.is_some(), len == BARE, "{len}");
        }
    }

    /// Tests that a checksum of all ones, which splitting would not restore, is none in the profile that promises that.
    #[test]
    fn a_checksum_of_all_ones_is_plain_where_nothing_has_to_be_restored() {
        let ones = |l3: usize| {
            // The other words, 0x4500, 0x0028 and 0x0006 with it, sum to all ones, so that both zeros are right.
            let mut bytes = segment(l3, 0, |ip| {
                write_u16(ip, ipv4::ID, 0xbad1);
            });
            assert_eq!(bytes[l3 + ipv4::CHECKSUM..][..2], [0, 0]);
            write_u16(&mut bytes[l3..], ipv4::CHECKSUM, 0xffff);
            assert_eq!(Sum::of(&bytes[l3..l3 + ipv4::MIN_LEN]).fold(), 0xffff);
            bytes
        };
        assert!(!found(&gro(Profile::Strict), ones, Csum::Unknown));
        assert!(found(&gro(Profile::linux()), ones, Csum::Unknown));
    }
    /// Pushes a frame into an engine of its own. Returns how many of its packets stayed alone for this reason, and how
    /// many took the slow path.
    fn refused(bytes: Vec<u8>, (start, csum): (Start, Csum), why: RefusalReason) -> (u64, usize) {
        let mut gro = gro(Profile::Strict);
        gro.push_frame(Frame { bytes: Frag::all(bytes), start, csum }, Nanos(1), &mut Pool::new(1));
        (gro.stats.alone.of(why), gro.effort.0)
    }

    /// Tests that a frame which looks like one that can join nothing, and is none, is judged by the parser: each has
    /// the reason that the slow path has.
    #[test]
    fn what_only_looks_like_a_frame_that_can_join_nothing_has_the_reason_of_the_slow_path() {
        let bare = (Start::Ip, Csum::Unknown);
        let framed = (Start::Ethernet, Csum::Unknown);
        let typed = |kind: u16, mut bytes: Vec<u8>| {
            write_u16(&mut bytes, ethernet::TYPE, kind);
            bytes
        };
        // What is no IPv4 by its type is none, whatever its bytes are.
        let other = typed(0x88b5, segment(ethernet::LEN, 0, |_| ()));
        assert_eq!(refused(other, framed, RefusalReason::Protocol), (1, 0));
        let usual = typed(ethertype::IPV4, segment(ethernet::LEN, 0, |_| ()));
        assert_eq!(refused(usual, framed, RefusalReason::NoPayload), (1, 0));
        // An IPv4 header of four words, and IPv6 of version 7.
        let short = segment(0, 0, |ip| (ip[ipv4::VERSION_IHL], ip[ipv4::PROTOCOL]) = (0x44, protocol::ICMP));
        assert_eq!(refused(short, bare, RefusalReason::Malformed), (1, 1));
        let mut seven = typed(ethertype::IPV6, vec![0; ethernet::LEN + ipv6::LEN + 8]);
        (seven[ethernet::LEN], seven[ethernet::LEN + ipv6::NEXT_HEADER]) = (0x70, protocol::ICMPV6);
        write_u16(&mut seven, ethernet::LEN + ipv6::PAYLOAD_LEN, 8);
        assert_eq!(refused(seven, framed, RefusalReason::Malformed), (1, 1));
        // The longest IPv6 packet, and a byte behind it.
        for (padding, parsed) in [(0, 0), (1, 1)] {
            let mut long = vec![0; ipv6::LEN + ipv6::MAX_PAYLOAD_LEN + padding];
            (long[0], long[ipv6::NEXT_HEADER]) = (0x60, protocol::ICMPV6);
            write_u16(&mut long, ipv6::PAYLOAD_LEN, 0xffff);
            assert_eq!(refused(long, bare, RefusalReason::Protocol), (1, parsed), "{padding}");
        }
        // A header of TCP that is too short, a checksum that is known to be wrong, and one of IPv4 that is.
        let offset = segment(0, 0, |ip| ip[ipv4::MIN_LEN + tcp::OFFSET] = 0x40);
        assert_eq!(refused(offset, bare, RefusalReason::Malformed), (1, 1));
        let bad = (Start::Ip, Csum::Bad);
        assert_eq!(refused(segment(0, 0, |_| ()), bad, RefusalReason::BadChecksum), (1, 1));
        let mut wrong = segment(0, 0, |_| ());
        wrong[ipv4::CHECKSUM + 1] ^= 1;
        assert_eq!(refused(wrong, bare, RefusalReason::IpChecksum), (1, 1));
        // A datagram without payload, and bytes behind it in the same packet.
        let datagram = segment(0, 0, |ip| {
            ip[ipv4::PROTOCOL] = protocol::UDP;
            write_u16(ip, ipv4::MIN_LEN + udp::LENGTH, udp::LEN as u16);
            write_u16(ip, ipv4::MIN_LEN + udp::CHECKSUM, 1);
        });
        assert_eq!(refused(datagram, bare, RefusalReason::Padding), (1, 1));
        // Numbers of extension headers of IPv6 are other protocols over IPv4.
        for number in [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION] {
            let bytes = segment(0, 0, |ip| ip[ipv4::PROTOCOL] = number);
            assert_eq!(refused(bytes, bare, RefusalReason::Protocol), (1, 0), "{number}");
        }
    }

    /// Tests that a short fragment is not even parsed where its flow is held, all of which leaves before it.
    #[test]
    fn a_short_fragment_of_a_held_flow_leaves_without_being_parsed() {
        let mut gro = gro(Profile::Strict);
        for (seq, fragment) in [(1, None), (61, Some((0, true)))] {
            let (flags, options) = (0x10, Vec::new());
            let tcp = Tcp { src_port: 1, dst_port: 80, seq, ack: 1, flags, window: 9, urgent: 0, options };
            let ip = Ip::V4(V4 { df: false, fragment, ..V4::new(1, 1, 2) });
            let bytes = Built { ip, l4: L4::Tcp(tcp), data: vec![1; 60] }.bytes();
            let frame = Frame { bytes: Frag::all(bytes), start: Start::Ip, csum: Csum::Verified };
            gro.push_frame(frame, Nanos(1), &mut Pool::new(1));
        }
        assert_eq!((gro.stats.alone.of(RefusalReason::Fragment), gro.effort), (1, (0, 0)));
        assert_eq!((gro.held(), gro.stats.flushes.of(Flush::Order)), (0, 1));
    }
}
