//! Updates of a router's tables by the kernel and by neighbours, and packets that wait for address resolution.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

use segue::gso;
use segue::packet::{Frag, Kind, Packet, Start, Tunnels};
use segue::time::Nanos;
use segue::wire::address::is_host;
use segue::wire::ethernet;
use segue_port::Page;

use super::fields::{AddressPair, copy_front, ends, is_between_neighbours, is_malformed_ip, keep, page_of};
use super::messages::{self, Advertisement, NeighbourMessage};
use super::neighbour_cache::Freshness;
use super::resolver::{Held, Learned};
use super::solicit_limits::{PORTS, Sender};
use super::state::{Boxed, HERE, OUTSIDE, Router};
use super::tables::{Message, Neighbour, NeighbourEvent, Tables};
use crate::forward::DropReason;
use crate::ingress::packets;
use crate::route::{Action, Hop, Link};

/// Number of ARP announcements of a new outside address (RFC 5227, section 1.1).
const ANNOUNCEMENTS: u8 = 2;
/// Time between two such announcements (RFC 5227, section 1.1), nanoseconds.
const ANNOUNCE_AGAIN: u64 = 2_000_000_000;
/// DEFEND_INTERVAL: shortest time between two announcements against other hosts with the outside address (RFC 5227,
/// section 1.1), nanoseconds.
const DEFEND_INTERVAL: u64 = 10_000_000_000;
/// Time for which another host with the outside address is shown after its last message, nanoseconds.
const CONFLICT_SHOWN: u64 = 120_000_000_000;
/// Number of messages queued for a port since it is blocked, behind the packets in front of them, from which on there
/// are no more queries for neighbours.
const MOST_QUERIES: usize = 32;
/// Number of those from which on there are no more answers and announcements, to which queries leave room.
const MOST_ANSWERS: usize = 2 * MOST_QUERIES;

const _: () = assert!(HERE as usize + 1 == PORTS, "the router itself is the last port of the limits");

impl Router {
    /// Handles all messages that are queued in the feed.
    pub(super) fn read_feed(&mut self, now: Nanos) {
        while let Some(message) = self.feed.next() {
            match message {
                Message::Tables(tables) => self.learn(*tables, now),
                Message::Neighbours(changes) => self.follow(changes, now),
                Message::AllNeighbours(neighbours) => self.learn_neighbours(&neighbours, now),
                Message::Mappings(reply) => {
                    let all = self.nat.as_ref().map(|(nat, _)| nat.mappings(now).cloned().collect());
                    // The client that asked may have gone.
                    let _ = reply.try_send((now, all.unwrap_or_default()));
                }
            }
        }
    }

    fn learn(&mut self, tables: Tables, now: Nanos) {
        let outside = self.nat.as_ref().map(|(_, own)| own.to_bits().into());
        self.is_outside_local = outside.is_some_and(|own| tables.routes.lookup(own, true) == Some(Action::Local));
        self.forwarder.routes = tables.routes;
        self.source_check.forget();
        if self.nat.is_some() && self.addrs[OUTSIDE].mac != tables.ports[OUTSIDE].mac {
            self.announcements = ANNOUNCEMENTS;
            self.next_announcement = now;
        }
        self.addrs = tables.ports;
        for (end, addrs) in self.pair.ends.iter_mut().zip(&self.addrs) {
            end.fragment_to(addrs.mtu as usize, gso::Fragment::Router);
        }
        self.learn_neighbours(&tables.neighbours, now);
    }

    /// Handles a full listing of the kernel's neighbours.
    fn learn_neighbours(&mut self, neighbours: &[Neighbour], now: Nanos) {
        self.resolver.cache.forget_permanent();
        let mut ready = Vec::new();
        for neighbour in neighbours {
            let learned = self.resolver.kernel_update(neighbour, Freshness::Old, now);
            ready.extend(self.take(neighbour.hop, learned));
        }
        let said: HashSet<Hop> = neighbours.iter().map(|neighbour| neighbour.hop).collect();
        self.resolver.cache.retain_kernel(|hop| said.contains(hop));
        // The port's own link address may have changed, so all link headers are made anew.
        self.forwarder.neighbours.clear();
        let hops: Vec<Hop> = self.resolver.cache.hops().collect();
        hops.into_iter().for_each(|hop| self.link(hop));
        self.again(ready, now);
    }

    /// Handles changes of single neighbours in the kernel.
    fn follow(&mut self, changes: Vec<NeighbourEvent>, now: Nanos) {
        let mut ready = Vec::new();
        for change in changes {
            match change {
                NeighbourEvent::Set(neighbour) => {
                    let learned = self.resolver.kernel_update(&neighbour, Freshness::New, now);
                    ready.extend(self.take(neighbour.hop, learned));
                }
                NeighbourEvent::Removed(hop) if self.resolver.cache.forget(&hop, now) => {
                    self.forwarder.neighbours.remove(hop)
                }
                NeighbourEvent::Removed(_) => {}
            }
        }
        self.again(ready, now);
    }

    /// Updates the forwarding table after a change of the neighbour cache. Returns the packets that waited for
    /// the neighbour.
    fn take(&mut self, hop: Hop, learned: Learned) -> VecDeque<Held> {
        let Learned { change, ready } = learned;
        if let Some(displaced) = change.displaced {
            self.forwarder.neighbours.remove(displaced);
        }
        if let Some(stats) = self.stats.get_mut(usize::from(hop.port)) {
            stats.moved += u64::from(change.is_moved);
            stats.displaced += u64::from(change.displaced.is_some());
        }
        if change.is_gone {
            self.forwarder.neighbours.remove(hop);
        }
        if change.is_linked {
            self.link(hop);
        }
        ready
    }

    /// Adds a neighbour of the cache to the forwarding table.
    fn link(&mut self, hop: Hop) {
        let known = self.resolver.cache.mac(&hop).zip(self.addrs.get(usize::from(hop.port)));
        if let Some((to, port)) = known {
            // The forwarding table has room for all entries of the cache.
            let _ = self.forwarder.neighbours.insert(hop, Link::Ethernet { to, from: port.mac });
        }
    }

    /// Filters a packet: returns it if it is to be routed. Others are read as neighbour messages, or left to the host's
    /// stack.
    pub(super) fn accept(&mut self, from: usize, packet: Boxed, now: Nanos) -> Option<Boxed> {
        let head = packet.head.bytes();
        let to: Option<&[u8; 6]> = head.first_chunk();
        let is_own = to == Some(&self.addrs[from].mac);
        let is_group = to.is_some_and(|mac| ethernet::is_group(*mac));
        let mut headers = packet.layout.headers().iter();
        let is_ip =
            headers.next().is_some_and(|h| h.kind == Kind::Ethernet) && headers.next().is_some_and(|h| h.is_ip());
        if is_own && is_ip && !is_between_neighbours(&packet, &self.addrs[from].v6) {
            return Some(packet);
        }
        let message = (is_own || is_group).then(|| self.message(from, &packet)).flatten();
        if let Some(message) = &message {
            self.observe(from, message, now);
        }
        match message {
            Some(message) if message.advertisement.is_solicited => self.stats[from].answers += 1,
            Some(message) if self.answer(from, &message) => {}
            _ if is_own && is_malformed_ip(&packet) => {
                self.stats[from].drops.add_many(DropReason::NotIp, packets(&packet));
            }
            _ if is_own => self.stats[from].local += packets(&packet),
            _ => self.stats[from].foreign += packets(&packet),
        }
        self.pair.rx.pool.put(packet);
        None
    }

    /// Reads a frame as a neighbour message: the first bytes of it, or all that one of neighbour discovery may have.
    fn message(&self, from: usize, packet: &Packet<Page>) -> Option<NeighbourMessage> {
        let mut frame = [0; messages::MAX_LEN];
        let front = copy_front(packet, &mut frame);
        let most = ethernet::LEN + self.addrs[from].mtu as usize;
        if packet.len() <= front.len() || most <= front.len() || !messages::is_discovery(front) {
            return messages::parse(front);
        }
        messages::parse(copy_front(packet, &mut vec![0; packet.len().min(most)]))
    }

    /// Updates the neighbour cache by a message, unless the sender claims an address that no neighbour may have: one of
    /// this router's own, or a loopback or multicast address, for example.
    fn observe(&mut self, from: usize, message: &NeighbourMessage, now: Nanos) {
        let NeighbourMessage { advertisement, target } = *message;
        let is_own = |address: IpAddr| match address {
            IpAddr::V4(v4) => {
                self.nat.as_ref().is_some_and(|(_, own)| *own == v4)
                    || self.addrs.iter().flat_map(|port| &port.v4).any(|(own, _)| *own == v4)
            }
            IpAddr::V6(v6) => self.addrs.iter().flat_map(|port| &port.v6).any(|(own, _)| *own == v6),
        };
        let is_strange = !is_host(advertisement.address) || is_own(advertisement.address);
        // A neighbour solicitation for another host's address is ignored (RFC 4861, section 7.2.3). ARP has no such
        // rule.
        let is_others = target.is_some_and(|target| target.is_ipv6() && !is_own(target));
        self.defend(from, &advertisement, now);
        if is_strange || is_others || advertisement.mac == Some(self.addrs[from].mac) {
            return;
        }
        let hop = Hop::new(from as u16, Some(advertisement.address), 0, advertisement.address.is_ipv4());
        let learned = self.resolver.observe(hop, &advertisement, now);
        let ready = self.take(hop, learned);
        self.again(ready, now);
    }

    /// Answers an ARP request for the outside address. Returns whether the message was one.
    fn answer(&mut self, from: usize, message: &NeighbourMessage) -> bool {
        let own = self.nat.as_ref().filter(|_| from == OUTSIDE).map(|(_, own)| *own);
        let (Some(own), NeighbourMessage { advertisement, target: Some(IpAddr::V4(target)) }) = (own, *message) else {
            return false;
        };
        let (IpAddr::V4(by), Some(mac)) = (advertisement.address, advertisement.mac) else { return false };
        // A host without an address asks from 0.0.0.0 (RFC 5227, section 1.1); one that has the same one announces it.
        if target != own || by == own || !is_host(by.into()) && !by.is_unspecified() {
            return false;
        }
        let frame = messages::reply(self.addrs[from].mac, target, by, mac);
        self.send_frame(from, &frame, MOST_ANSWERS)
    }

    /// Decides again on the packets that were queued for a resolved neighbour.
    fn again(&mut self, held: impl IntoIterator<Item = Held>, now: Nanos) {
        for (from, packet) in held {
            self.decide(from, vec![packet], now);
        }
    }

    /// Keeps a packet until its next hop is resolved.
    pub(super) fn wait(&mut self, from: u16, mut packet: Boxed, now: Nanos) {
        let Some(hop) = self.forwarder.next_hop(from, &packet) else { return self.give_up((from, packet)) };
        let sender = sender(from, &packet, &hop);
        if !self.resolver.takes(&hop) {
            // The packets that wait may be of a sender over its limit.
            if self.resolver.start_solicit(&hop, sender, now) {
                self.solicit(&hop, None);
            }
            return self.give_up((from, packet));
        }
        for held in self.resolver.make_room(&hop) {
            self.give_up(held);
        }
        while !keep(&mut packet, &mut self.held_pages[usize::from(hop.is_v4)]) {
            let Some(evicted) = self.resolver.evict(hop.is_v4) else { return self.give_up((from, packet)) };
            evicted.into_iter().for_each(|held| self.give_up(held));
        }
        if self.resolver.hold(hop, (from, packet), sender, now) {
            self.solicit(&hop, None);
        }
    }

    /// Drops a packet that cannot wait.
    fn give_up(&mut self, (from, packet): Held) {
        self.stats[usize::from(from).min(OUTSIDE)].drops.add_many(DropReason::NoNeighbour, packets(&packet));
        self.pair.rx.pool.put(packet);
    }

    /// Counts a message of another host that has the outside address, and announces that address, at most once in
    /// [`DEFEND_INTERVAL`].
    fn defend(&mut self, from: usize, advertisement: &Advertisement, now: Nanos) {
        let own = self.nat.as_ref().filter(|_| from == OUTSIDE).map(|(_, own)| IpAddr::V4(*own));
        if own != Some(advertisement.address) || advertisement.mac == Some(self.addrs[from].mac) {
            return;
        }
        self.stats[from].conflicts += 1;
        self.conflict_until = Some(Nanos(now.0 + CONFLICT_SHOWN));
        if now >= self.next_defence && self.announce_outside() {
            self.next_defence = Nanos(now.0 + DEFEND_INTERVAL);
        }
    }

    /// Sends an ARP announcement of the outside address when one is due.
    pub(super) fn announce(&mut self, now: Nanos) {
        if self.conflict_until.is_some_and(|until| until <= now) {
            self.conflict_until = None;
        }
        if self.announcements > 0 && now >= self.next_announcement && self.announce_outside() {
            self.announcements -= 1;
            self.next_announcement = Nanos(now.0 + ANNOUNCE_AGAIN);
        }
    }

    /// Sends an ARP announcement of the outside address. Returns whether there was room for it.
    fn announce_outside(&mut self) -> bool {
        let Some((_, own)) = self.nat.as_ref() else { return false };
        let frame = messages::announcement(self.addrs[OUTSIDE].mac, *own);
        let is_sent = self.send_frame(OUTSIDE, &frame, MOST_ANSWERS);
        self.stats[OUTSIDE].announcements += u64::from(is_sent);
        is_sent
    }

    /// Marks the next hops of a batch as used, and probes those that are STALE.
    pub(super) fn probe_used(&mut self, now: Nanos) {
        let mut probes = Vec::new();
        for hop in self.forwarder.used() {
            probes.extend(self.resolver.cache.mark_used(hop, now).map(|mac| (*hop, mac)));
        }
        probes.iter().for_each(|(hop, mac)| self.solicit(hop, Some(*mac)));
    }

    /// Sends a solicitation for a neighbour's link address: unicast to `at`, or else multicast.
    pub(super) fn solicit(&mut self, hop: &Hop, at: Option<[u8; 6]>) {
        let port = usize::from(hop.port);
        let Some(addrs) = self.addrs.get(port) else { return };
        let frame = messages::solicitation_for(hop, addrs, at);
        self.stats[port].questions += u64::from(self.send_frame(port, &frame, MOST_QUERIES));
    }

    /// Sends a frame created by the router on a port. It waits for a blocked one, unless `most` messages or more were
    /// queued since that is blocked: others in the place of those that leave would keep it so. Returns whether it was
    /// sent or waits: there was a page for it.
    fn send_frame(&mut self, port: usize, bytes: &[u8], most: usize) -> bool {
        let is_blocked = self.pair.ends[port].blocked;
        if is_blocked && self.late[port] >= most {
            return false;
        }
        let Some(page) = page_of(&mut self.message_pages[port], bytes) else { return false };
        self.late[port] += usize::from(is_blocked);
        let mut packet = self.pair.rx.pool.take();
        packet.load(Frag::all(page), Start::Ethernet, &Tunnels::NONE);
        self.pair.ends[port].push(packet, &mut self.pair.rx, &mut self.pair.split_drops[port]);
        true
    }
}

/// Returns the sender to whose limit the solicitation for a packet's next hop is charged.
fn sender(from: u16, packet: &Boxed, hop: &Hop) -> Sender {
    let (source, destination): (IpAddr, IpAddr) = match ends(packet) {
        Some(AddressPair::V4(source, destination)) => (source.into(), destination.into()),
        Some(AddressPair::V6(source, destination)) => (source.into(), destination.into()),
        None => return Sender::Unlimited,
    };
    match hop.ip() == destination {
        true => Sender::Host(from, if from == HERE { destination } else { source }),
        false => Sender::Unlimited,
    }
}
