//! The outbound direction: from the interface to a peer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use segue::encap::{self, EncapRefusal, Fit, Mac};
use segue::packet::{Frag, Kind, Packet, Start, Tunnels, Unit};
use segue::time::Nanos;
use segue::wire::{ethernet, ipv4, ipv6};
use segue_port::{Page, PageMut};

use super::counts::Dropped;
use super::pipeline::Overlay;
use super::table::{Peer, station};
use crate::forward::DropReason;
use crate::icmp::{self, ErrorKind};
use crate::ingress::packets;
use crate::tuning::Remcsum;

/// Most packets and trains that wait for a socket before no more copies of flooded frames are made for it.
const MOST_COPIES: usize = 1024;
/// Interval at which the path MTU to a peer is queried while packets are sent to it, nanoseconds.
const MTU_QUERY_INTERVAL: u64 = 1_000_000_000;

/// Returns the source or the destination of the outermost IP header of a packet.
pub(super) fn address(packet: &Packet<Page>, is_source: bool) -> Option<IpAddr> {
    let ip = packet.layout.outer_ip()?;
    address_in(packet.head.bytes().get(ip.start()..ip.end())?, ip.kind == Kind::Ipv4, is_source)
}

/// Returns the source or the destination of the IP header that `bytes` begin with.
#[inline]
pub(super) fn address_in(bytes: &[u8], is_v4: bool, is_source: bool) -> Option<IpAddr> {
    if is_v4 {
        let at = if is_source { ipv4::SRC } else { ipv4::DST };
        bytes.get(at)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into())
    } else {
        let at = if is_source { ipv6::SRC } else { ipv6::DST };
        bytes.get(at)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into())
    }
}

/// Returns the address in the given range of the Ethernet header of a frame.
#[inline]
pub(super) fn mac(frame: &[u8], at: Range<usize>) -> Option<Mac> {
    frame.get(at)?.first_chunk().copied()
}

impl Overlay {
    /// Sends a packet or train to the peer that has its destination.
    pub(super) fn route(&mut self, packet: Box<Packet<Page>>, now: Nanos) {
        let Some(to) = address(&packet, false) else {
            self.drops.add_many(Dropped::NotIp, packets(&packet));
            return self.rx.pool.put(packet);
        };
        let Some(index) = self.table.destination(to) else {
            let reason = match to {
                to if self.table.had(to) => Dropped::RemovedPeer,
                // What a host sends by itself to find routers and to report its groups.
                IpAddr::V4(to) if to.is_multicast() || to.is_broadcast() => Dropped::NoGroup,
                IpAddr::V6(to) if to.is_multicast() => Dropped::NoGroup,
                _ => Dropped::NoRoute,
            };
            return self.refuse(packet, to, reason, now);
        };
        self.send_to(packet, index, now);
    }

    /// Sends a frame or a train of frames to the peer that has its destination, or to all peers for unknown
    /// destinations.
    ///
    /// # Errors
    /// Those of a port that transmits.
    pub(super) fn forward(&mut self, packet: Box<Packet<Page>>, now: Nanos) -> io::Result<()> {
        let to = mac(packet.head.bytes(), ethernet::DST).unwrap_or([0xff; 6]);
        let is_group = ethernet::is_group(to);
        if let Some(index) = self.table.destination(station(to)).filter(|_| !is_group) {
            self.send_to(packet, index, now);
            return Ok(());
        }
        let copies = self.table.flood.len();
        if copies == 1 {
            self.send_to(packet, self.table.flood[0], now);
            return Ok(());
        }
        if copies == 0 {
            let reason = match is_group {
                true => Dropped::NoGroup,
                false if self.table.had(station(to)) => Dropped::RemovedPeer,
                false => Dropped::NoRoute,
            };
            self.drops.add_many(reason, packets(&packet));
            self.rx.pool.put(packet);
            return Ok(());
        }
        if self.flood_limit.take(packets(&packet).saturating_mul(copies as u64), now) {
            for at in 0..copies {
                self.send_copy(&packet, self.table.flood[at], now)?;
            }
        } else {
            self.drops.add_many(Dropped::FloodLimit, packets(&packet));
        }
        self.rx.pool.put(packet);
        Ok(())
    }

    /// Sends a copy of a flooded frame to the peer with this index, while there is room for it.
    fn send_copy(&mut self, packet: &Packet<Page>, index: usize, now: Nanos) -> io::Result<()> {
        let Overlay { table, outsides, rx, split_drops, .. } = self;
        let end = &mut outsides[table.peers[index].listener].end;
        if end.waiting() >= MOST_COPIES && !end.blocked {
            end.transmit(rx, split_drops)?;
        }
        if end.waiting() >= MOST_COPIES {
            self.drops.add_many(Dropped::FloodFull, packets(packet));
            return Ok(());
        }
        let mut copy = rx.pool.take();
        copy.copy_from(packet);
        self.send_to(copy, index, now);
        Ok(())
    }

    /// Sends a packet or train to the peer with this index.
    fn send_to(&mut self, packet: Box<Packet<Page>>, index: usize, now: Nanos) {
        let peer = &mut self.table.peers[index];
        let outside = &self.outsides[peer.listener];
        if peer.mtu.asked.is_none_or(|asked| now.0.saturating_sub(asked.0) >= MTU_QUERY_INTERVAL)
            && self.queries.take(now)
        {
            peer.mtu.asked = Some(now);
            let overhead = peer.encap.config().overhead();
            peer.mtu.inside = outside.end.port.path_mtu(peer.to).map(|mtu| mtu.saturating_sub(overhead));
        }
        match peer.mtu.inside.map_or(Fit::Fits, |mtu| encap::fit(&packet, mtu)) {
            Fit::Fits => self.wrap(packet, index, false),
            Fit::Fragment => self.wrap(packet, index, true),
            // It is refused under its reason.
            Fit::TooBig(_) if peer.encap.is_own(&packet) => self.wrap(packet, index, false),
            Fit::TooBig(mtu) => self.tell_too_big(packet, mtu, now),
        }
    }

    /// Encapsulates a packet for the peer with this index, and queues it on the port of its encapsulation.
    fn wrap(&mut self, mut packet: Box<Packet<Page>>, index: usize, fragments: bool) {
        self.wrapped.add(&packet);
        let Peer { listener, link, encap, counters, .. } = &mut self.table.peers[index];
        let len = packet.len();
        if let Some(headers) = link {
            // In a frame it would not be told from a packet of another host.
            if address(&packet, false) == Some(encap.config().remote) && encap.is_own(&packet) {
                self.encap_drops.add_many(EncapRefusal::Loop, packets(&packet));
                return self.rx.pool.put(packet);
            }
            let is_v4 = packet.layout.outer_ip().is_some_and(|ip| ip.kind == Kind::Ipv4);
            if !packet.relink(Some(&headers[usize::from(is_v4)])) {
                self.drops.add_many(Dropped::NoRoom, packets(&packet));
                return self.rx.pool.put(packet);
            }
        }
        if let Some(Remcsum::Can(on)) = self.settings.first().map(|settings| settings.remcsum) {
            encap.set_remcsum(on);
        }
        match encap.push(&mut packet) {
            Ok(()) => {
                counters.add_sent(len);
                let outside = &mut self.outsides[*listener];
                outside.remcsum[0] += left_to_the_peer(&packet);
                if let (true, Some(outer)) = (fragments, &mut packet.outer) {
                    outer.df = false;
                }
                outside.end.push(packet, &mut self.rx, &mut self.split_drops);
            }
            Err(why) => {
                self.encap_drops.add_many(why, packets(&packet));
                self.rx.pool.put(packet);
            }
        }
    }

    /// Drops a packet without a matching peer, and sends "net unreachable", or "no route" over IPv6, to its source
    /// where the rate limit allows.
    ///
    /// The source of the error is the packet's own destination, as for a packet that is too big: the host would take
    /// an error from one of its own addresses for a forgery.
    fn refuse(&mut self, packet: Box<Packet<Page>>, to: IpAddr, reason: Dropped, now: Nanos) {
        self.drops.add_many(reason, packets(&packet));
        let kind = icmp::kind_of(&packet, DropReason::NoRoute);
        if let (Some(kind), Some(sender)) = (kind, address(&packet, true))
            && let Some(mut page) = self.error_page(kind, sender, now)
            && let Some(bytes) = icmp::error(&packet, DropReason::NoRoute, 0, to, &mut self.scratch)
        {
            let len = bytes.len();
            page.bytes_mut()[..len].copy_from_slice(&bytes);
            self.answer(page.freeze(len));
        }
        self.rx.pool.put(packet);
    }

    /// Drops a packet that exceeds the path MTU and must not be fragmented, and sends an ICMP error to its source.
    fn tell_too_big(&mut self, packet: Box<Packet<Page>>, mtu: usize, now: Nanos) {
        self.drops.add_many(Dropped::PathMtu, packets(&packet));
        let kind = icmp::kind_of(&packet, DropReason::TooBig);
        if let (Some(kind), Some(sender)) = (kind, address(&packet, true))
            && !encap::is_to_group(&packet)
            && let Some(mut page) = self.error_page(kind, sender, now)
            && let Some(len) = encap::too_big(&packet, mtu, page.bytes_mut())
        {
            self.answer(page.freeze(len));
        }
        self.rx.pool.put(packet);
    }

    /// Returns a page for an ICMP error to `sender`, where the rate limit allows one and the interface takes it.
    fn error_page(&mut self, kind: ErrorKind, sender: IpAddr, now: Nanos) -> Option<PageMut> {
        let page = self.inside.error_page(&mut self.replies).filter(|_| self.limits.take(kind, sender, now));
        self.errors[1] += u64::from(page.is_none());
        page
    }

    /// Queues an ICMP error on the interface.
    fn answer(&mut self, page: Page) {
        self.errors[0] += 1;
        let mut error = self.rx.pool.take();
        let start = if self.frames { Start::Ethernet } else { Start::Ip };
        error.load(Frag::all(page), start, &Tunnels::NONE);
        self.inside.push(error, &mut self.rx, &mut self.split_drops);
    }
}

/// Returns the number of packets in `packet` whose inner checksum is left to the peer.
fn left_to_the_peer(packet: &Packet<Page>) -> u64 {
    let is_left = packet.offload.layers().first().is_some_and(|layer| layer.remote.is_some());
    match packet.offload.unit {
        _ if !is_left => 0,
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(packet.payload.len()) as u64,
    }
}
