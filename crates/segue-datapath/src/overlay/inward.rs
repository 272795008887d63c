//! The inbound direction: from a peer to the interface.

use std::net::IpAddr;

use segue::encap::Received;
use segue::packet::{Csum, Frag, Packet, Unit};
use segue::time::Nanos;
use segue::wire::ethernet;
use segue::wire::gue::Gue;
use segue::wire::vxlan::Vxlan;
use segue_port::{Burst, Page};

use super::counts::Dropped;
use super::outward::{address, mac};
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
        let is_frame = decap.config().mode.is_ethernet();
        let mut packet = self.rx.pool.take();
        if let Err(why) = decap.pull(Frag::all(datagram.clone()), &meta, &mut packet) {
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
        }
        let peer = match self.frames {
            true => sender_of(&self.table, &packet, burst.peer.ip()),
            false => address(&packet, true).and_then(|source| self.table.find(source)),
        };
        let peer = peer.and_then(|index| self.table.peers.get(index)).filter(|peer| peer.remote == burst.peer.ip());
        let reason = match peer {
            None => Some(Dropped::PeerSource),
            Some(peer) if peer.network.is_some() && network.is_some() && peer.network != network => {
                Some(Dropped::PeerNetwork)
            }
            Some(peer) => {
                peer.counters.add_received(packet.len());
                None
            }
        };
        if let Some(reason) = reason {
            outside.drops.add(reason);
            return self.rx.pool.put(packet);
        }
        outside.unwrapped.add(&packet);
        if owes_its_checksum(&packet) {
            let bytes = datagram.as_ref();
            let is_left = match is_frame {
                true => Vxlan::parse(bytes).is_ok_and(|header| header.remcsum.is_some()),
                // Without a header there is no option; a GUE header has one or not.
                false => Gue::parse(bytes).is_ok_and(|header| header.remcsum.is_some()),
            };
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
}

/// Returns the index of the peer that a frame's source address belongs to: the one with the address, or else the one at
/// `from` with the unknown addresses. A group is no source.
fn sender_of(table: &Table, frame: &Packet<Page>, from: IpAddr) -> Option<usize> {
    let source = mac(frame, ethernet::SRC).filter(|source| ethernet::is_station(*source))?;
    table.find(station(source)).or_else(|| table.flooded(from))
}

/// Returns whether the inner transport checksum of a packet is still to be computed: the sender left it to the
/// receiver, or the sender's kernel left it to a device that did not compute it.
fn owes_its_checksum(packet: &Packet<Page>) -> bool {
    matches!(packet.offload.unit, Unit::Whole(Csum::Partial) | Unit::Train { .. })
}
