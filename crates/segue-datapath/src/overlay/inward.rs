//! The inbound direction: from a peer to the interface.

use std::net::IpAddr;

use segue::encap::{Carrier, DecapRefusal, Mac, Received};
use segue::packet::{Csum, Frag, Frame, Packet, Start, Unit};
use segue::time::Nanos;
use segue::wire::ethernet;
use segue::wire::gue::Gue;
use segue::wire::vxlan::Vxlan;
use segue_port::{Burst, Page};

use super::counts::Dropped;
use super::outward::{address, address_in, mac};
use super::pipeline::Overlay;
use super::table::{Sender, Table, station};

impl Overlay {
    /// Decapsulates the datagrams of a burst from the listener with this index.
    pub(super) fn take_apart(&mut self, listener: usize, burst: &Burst, now: Nanos) {
        let reason = match self.table.sender(burst.peer.ip()) {
            Sender::Peer => {
                for datagram in burst.datagrams() {
                    self.take(listener, burst, datagram, now);
                }
                return;
            }
            Sender::Removed => Dropped::RemovedPeer,
            Sender::Unknown => Dropped::UnknownPeer,
        };
        self.outsides[listener].drops.add_many(reason, burst.segments() as u64);
    }

    /// Decapsulates a datagram and passes the packet to GRO, or directly to the interface.
    fn take(&mut self, listener: usize, burst: &Burst, datagram: Page, now: Nanos) {
        let outside = &mut self.outsides[listener];
        let Some((network, decap)) = self.table.decap(listener, datagram.as_ref()) else {
            return outside.drops.add(Dropped::PeerNetwork);
        };
        let meta = Received { tos: burst.tos, csum: outside.csum, sum: None };
        let (is_frame, carrier) = (decap.config().mode.is_ethernet(), decap.config().carrier);
        let mut whole = Frag::all(datagram.clone());
        // GRO recognises most packets by a few bytes. The port inside takes parsed packets.
        if self.joins {
            match decap.pull_frame(whole, &meta) {
                Ok(frame) => return self.take_frame(frame, listener, network, burst.peer.ip(), now),
                Err(back) => whole = back,
            }
        }
        let mut packet = self.rx.pool.take();
        if let Err(why) = decap.pull(whole, &meta, &mut packet) {
            outside.decap_drops.add(why);
            return self.rx.pool.put(packet);
        }
        if is_frame && !self.frames {
            let is_for_us = packet.head.bytes().get(ethernet::DST).is_some_and(|to| *to == self.mac);
            let reason = match is_for_us {
                false => Some(Dropped::NotForUs),
                // Only what the interface can carry: IP, without VLAN tags.
                true if packet.layout.outer_ip_index() == Some(1) && packet.relink(None) => None,
                true => Some(Dropped::NotIp),
            };
            if let Some(reason) = reason {
                outside.drops.add(reason);
                return self.rx.pool.put(packet);
            }
            // The decapsulation looks at no addresses in frames.
            if address(&packet, true).is_some_and(is_martian) {
                outside.decap_drops.add(DecapRefusal::InnerSource);
                return self.rx.pool.put(packet);
            }
        }
        let from = burst.peer.ip();
        let peer = match self.frames {
            true => sender_of(&mut self.table, packet.head.bytes(), from, self.inside.mac(now)),
            false => address(&packet, true).and_then(|source| self.table.source(source)),
        };
        if let Err(reason) = admit(&self.table, peer, from, network, packet.len()) {
            outside.drops.add(reason);
            return self.rx.pool.put(packet);
        }
        outside.unwrapped.add(&packet);
        if owes_its_checksum(&packet) {
            let is_left = leaves_its_checksum(datagram.as_ref(), carrier);
            outside.remcsum[1] += u64::from(is_left);
            outside.unfinished += u64::from(!is_left);
        }
        match &mut self.gro {
            Some(gro) if self.joins => {
                self.joined.add(&packet);
                gro.push(packet, now, &mut self.rx.pool);
            }
            _ => {
                let Overlay { inward, inside, split_drops, rx, .. } = self;
                inward.each(packet, rx, split_drops, |packet, rx, drops| inside.push(packet, rx, drops));
            }
        }
    }

    /// Passes an unparsed inner packet to GRO, under the same rules as a parsed one.
    #[inline(always)]
    fn take_frame(&mut self, mut frame: Frame<Page>, listener: usize, network: Option<u32>, from: IpAddr, now: Nanos) {
        let outside = &mut self.outsides[listener];
        if frame.start == Start::Ethernet && !self.frames {
            // Of the rest it is known that it is IP, without VLAN tags.
            if mac(frame.bytes.bytes(), ethernet::DST) != Some(self.mac) {
                return outside.drops.add(Dropped::NotForUs);
            }
            frame = Frame { bytes: frame.bytes.skip(ethernet::LEN), start: Start::Ip, csum: frame.csum };
            if source_of(frame.bytes.bytes()).is_some_and(is_martian) {
                return outside.decap_drops.add(DecapRefusal::InnerSource);
            }
        }
        let bytes = frame.bytes.bytes();
        let peer = match self.frames {
            true => sender_of(&mut self.table, bytes, from, self.inside.mac(now)),
            false => source_of(bytes).and_then(|source| self.table.source(source)),
        };
        if let Err(reason) = admit(&self.table, peer, from, network, frame.len()) {
            return outside.drops.add(reason);
        }
        outside.unwrapped.add_frame(frame.len());
        // What a kernel left unfinished is parsed.
        outside.remcsum[1] += u64::from(frame.csum == Csum::Partial);
        if let Some(gro) = &mut self.gro {
            self.joined.add_frame(frame.len());
            gro.push_from(&mut Some(frame), Option::as_ref, Option::take, now, &mut self.rx.pool);
        }
    }
}

/// Returns the source of the IP packet that `bytes` are.
#[inline]
fn source_of(bytes: &[u8]) -> Option<IpAddr> {
    address_in(bytes, bytes.first().is_some_and(|first| first >> 4 == 4), true)
}

/// Returns whether no packet from another host may have this source address: it is multicast, broadcast or loopback.
#[inline]
fn is_martian(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(source) => source.is_loopback() || source.is_multicast() || source.is_broadcast(),
        IpAddr::V6(source) => source.is_loopback() || source.is_multicast(),
    }
}

/// Returns the index of the peer that a frame's source address belongs to: the one with the address, or else the one
/// at `from` with the unknown addresses. A group is no source, and `own` is that of no peer: a frame that this end has
/// sent has come back, which Linux's devices drop too.
fn sender_of(table: &mut Table, frame: &[u8], from: IpAddr, own: Option<Mac>) -> Option<usize> {
    let source = mac(frame, ethernet::SRC).filter(|source| ethernet::is_station(*source) && Some(*source) != own)?;
    table.source(station(source)).or_else(|| table.flooded(from))
}

/// Counts a packet of `len` bytes, whose source `peer` has, for that peer.
///
/// # Errors
/// The reason why the packet is dropped: its sender at `from` is another one, or its network is not that of the peer.
#[inline]
fn admit(table: &Table, peer: Option<usize>, from: IpAddr, network: Option<u32>, len: usize) -> Result<(), Dropped> {
    let peer = peer.and_then(|index| table.peers.get(index)).filter(|peer| peer.remote == from);
    let peer = peer.ok_or(Dropped::PeerSource)?;
    if peer.network.is_some() && network.is_some() && peer.network != network {
        return Err(Dropped::PeerNetwork);
    }
    peer.counters.add_received(len);
    Ok(())
}

/// Returns whether the inner transport checksum of a packet is still to be computed: the sender left it to the
/// receiver, or the sender's kernel left it to a device that did not compute it.
fn owes_its_checksum(packet: &Packet<Page>) -> bool {
    matches!(packet.offload.unit, Unit::Whole(Csum::Partial) | Unit::Train { .. })
}

/// Returns whether the headers of a datagram leave the inner transport checksum to the receiver.
fn leaves_its_checksum(datagram: &[u8], carrier: Carrier) -> bool {
    match carrier {
        Carrier::Vxlan { .. } => Vxlan::parse(datagram).is_ok_and(|header| header.remcsum.is_some()),
        Carrier::Gue { .. } => Gue::parse(datagram).is_ok_and(|header| header.remcsum.is_some()),
        // Without a header there is no option.
        Carrier::Fou | Carrier::Bare | Carrier::Geneve { .. } => false,
    }
}
