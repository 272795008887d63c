//! What a router learns, from the kernel and from frames, and what waits until it has learned it.

use segue::gso;
use segue::packet::{Frag, Kind, Start, Tunnels};
use segue::time::Nanos;

use super::ask::{self, Heard};
use super::look::{is_between_neighbours, keep, page_of};
use super::resolver::{Held, MOST_KNOWN, News};
use super::{Boxed, Change, Message, OUTSIDE, Router, Tables};
use crate::forward::Why;
use crate::route::{Hop, Link, Neighbours};

impl Router {
    /// What the kernel and others say.
    pub(super) fn listen(&mut self, now: Nanos) {
        while let Some(message) = self.feed.next() {
            match message {
                Message::Tables(tables) => self.learn(*tables, now),
                Message::Neighbours(changes) => self.follow(changes, now),
                Message::Mappings(reply) => {
                    let all = self.nat.as_ref().map(|(nat, _)| nat.mappings(now).cloned().collect());
                    // Who asked may have gone.
                    let _ = reply.try_send((now, all.unwrap_or_default()));
                }
            }
        }
    }

    fn learn(&mut self, tables: Tables, now: Nanos) {
        self.forwarder.routes = tables.routes;
        self.facts = tables.ports;
        for (end, facts) in self.sides.ends.iter_mut().zip(&self.facts) {
            end.fragment_to(facts.mtu as usize, gso::Fragment::Router);
        }
        self.resolver.forget_permanent();
        let mut ready = Vec::new();
        for neighbour in &tables.neighbours {
            ready.extend(self.resolver.told(neighbour, News::Old, now));
        }
        // Its own link address may be another one now.
        self.forwarder.neighbours = Neighbours::new(MOST_KNOWN);
        let hops: Vec<Hop> = self.resolver.hops().collect();
        hops.into_iter().for_each(|hop| self.link(hop));
        self.again(ready, now);
    }

    /// Single changes of the kernel's neighbours.
    fn follow(&mut self, changes: Vec<Change>, now: Nanos) {
        let mut ready = Vec::new();
        for change in changes {
            match change {
                Change::Is(neighbour) => {
                    ready.extend(self.resolver.told(&neighbour, News::New, now));
                    self.link(neighbour.hop);
                }
                Change::Gone(hop) if self.resolver.forget(&hop) => self.forwarder.neighbours.remove(hop),
                Change::Gone(_) => {}
            }
        }
        self.again(ready, now);
    }

    /// Lets packets go to a neighbour that is known.
    fn link(&mut self, hop: Hop) {
        let known = self.resolver.mac(&hop).zip(self.facts.get(usize::from(hop.port)));
        if let Some((to, port)) = known {
            // As many as the resolver knows have room.
            let _ = self.forwarder.neighbours.insert(hop, Link::Ethernet { to, from: port.mac });
        }
    }

    /// A packet that is to be routed; others are heard, or left to the host.
    pub(super) fn accept(&mut self, from: usize, packet: Boxed, now: Nanos) -> Option<Boxed> {
        let head = packet.head.bytes();
        let is_own = head.get(..6) == Some(&self.facts[from].mac[..]);
        let mut headers = packet.layout.headers().iter();
        let is_ip =
            headers.next().is_some_and(|h| h.kind == Kind::Ethernet) && headers.next().is_some_and(|h| h.is_ip());
        if is_own && is_ip && !is_between_neighbours(&packet) {
            return Some(packet);
        }
        let mut frame = [0; ask::LOOK];
        let headers = head.len().min(frame.len());
        frame[..headers].copy_from_slice(&head[..headers]);
        let len = headers + packet.payload.copy_to(0..ask::LOOK - headers, &mut frame[headers..]);
        let is_broadcast = head.get(..6) == Some(&[0xff; 6][..]);
        match ask::hear(&frame[..len]).filter(|_| is_own || is_broadcast) {
            Some(Heard::Answer(address, mac)) if is_own => {
                let hop = Hop::new(from as u16, Some(address), 0, address.is_ipv4());
                if let Some(held) = self.resolver.answered(hop, mac, now) {
                    self.link(hop);
                    self.again(held, now);
                }
            }
            Some(Heard::Asked { target, by, mac })
                if from == OUTSIDE && self.nat.as_ref().is_some_and(|(_, own)| *own == target) =>
            {
                let frame = ask::answer(self.facts[from].mac, target, by, mac);
                self.send_frame(from, &frame);
            }
            _ if is_own => self.stats[from].local += 1,
            _ => self.stats[from].foreign += 1,
        }
        self.sides.rx.pool.put(packet);
        None
    }

    /// Routes packets that have waited for a neighbour.
    fn again(&mut self, held: impl IntoIterator<Item = Held>, now: Nanos) {
        for (from, packet) in held {
            self.forward(from, vec![packet], now);
        }
    }

    /// Keeps a packet until its next hop is known.
    pub(super) fn wait(&mut self, from: u16, mut packet: Boxed, now: Nanos) {
        let hop = self.forwarder.next_hop(from, &packet);
        match hop {
            Some(hop) if self.resolver.has_room(&hop) && keep(&mut packet, &mut self.sides.rx.pages) => {
                if self.resolver.hold(hop, (from, packet), now) {
                    self.ask(&hop);
                }
            }
            _ => {
                self.stats[usize::from(from).min(OUTSIDE)].drops.add(Why::NoNeighbour);
                self.sides.rx.pool.put(packet);
            }
        }
    }

    pub(super) fn ask(&mut self, hop: &Hop) {
        let port = usize::from(hop.port);
        let Some(facts) = self.facts.get(port) else { return };
        let frame = ask::question(hop, facts);
        self.stats[port].questions += 1;
        self.send_frame(port, &frame);
    }

    fn send_frame(&mut self, port: usize, bytes: &[u8]) {
        let Some(page) = page_of(&mut self.sides.rx.pages, bytes) else { return };
        let mut packet = self.sides.rx.pool.take();
        packet.load(Frag::all(page), Start::Ethernet, &Tunnels::NONE);
        self.sides.ends[port].push(packet, &mut self.sides.rx, &mut self.sides.split_drops[port]);
    }
}
