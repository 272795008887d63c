//! The pipeline of a tunnel: a packet port inside, a datagram port outside.
//!
//! Outward: read trains inside, put the outer headers on, split for the datagram port. Inward: take bursts apart,
//! decapsulate, join what belongs together, write trains inside. Between the two ends nothing looks at single segments.

use std::io;
use std::net::IpAddr;

use segue::encap::{DecapRefusal, Decapsulator, EncapRefusal, Encapsulator, OuterCsum, Received};
use segue::gro::{self, Gro};
use segue::gso;
use segue::packet::{Csum, Frag, Packet, Unit};
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Burst, Page, Polled, Port, RxBatch};

use crate::board::{Group, Sink, Stage};
use crate::end::{self, End};
use crate::entry::{Entry, Seen};
use crate::knobs::{Dial, Knobs};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::tuning::{Remcsum, Settings};

segue::reasons! {
    /// Why the tunnel itself dropped something, beside what encapsulation, decapsulation and ports name.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not the configured remote address.",
    }
}

/// The knobs that a tunnel between ports of these names has, before it is made; `remcsum` where it is made with remote
/// checksum offload.
pub fn knobs(inside: &str, outside: &str, gro: Option<gro::Config>, remcsum: bool) -> Knobs {
    let remcsum = if remcsum { Remcsum::Can(true) } else { Remcsum::Never };
    let names = [inside, outside].map(str::to_owned);
    // Joining goes by the name of the port at which trains appear, as its counters do.
    Knobs::list(|dial| Settings::new(names, [gro, None], remcsum).tune(dial))
}

/// What a tunnel is made of.
pub struct Parts {
    /// Name of the inside port in statistics: the interface.
    pub inside_name: String,
    /// The packet port inside.
    pub inside: Box<dyn Port>,
    /// Name of the outside port in statistics.
    pub outside_name: String,
    /// The datagram port outside.
    pub outside: Box<dyn Port>,
    /// Puts headers on.
    pub encap: Encapsulator,
    /// Takes headers off.
    pub decap: Decapsulator,
    /// Whose datagrams are taken.
    pub remote: IpAddr,
    /// What the outside port vouches for on every datagram it delivers that carries a remote checksum option.
    pub outer_csum: OuterCsum,
    /// How to join what comes in, which can then be changed and switched off as it runs; `None` leaves packets single for
    /// good.
    pub gro: Option<gro::Config>,
    /// Packets or bursts taken from one port in one round.
    pub budget: usize,
    /// Most pages of memory to receive into.
    pub pages: usize,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("inside", &self.inside_name).field("remote", &self.remote).finish_non_exhaustive()
    }
}

/// A tunnel; see the module.
pub struct Tunnel {
    inside: End,
    outside: End,
    encap: Encapsulator,
    decap: Decapsulator,
    peer: IpAddr,
    outer_csum: OuterCsum,
    gro: Option<Gro<Page>>,
    joins: bool,
    settings: Settings,
    /// The ways outward and inward.
    outward: Entry,
    inward: Entry,
    seen: Stages,
    /// Packets sent and received whose checksum is left to the far end.
    remote: Remote,
    rx: RxBatch,
    budget: usize,
    drops: Counts<Dropped>,
    encap_drops: Counts<EncapRefusal>,
    decap_drops: Counts<DecapRefusal>,
    split_drops: Counts<gso::Refusal>,
}

/// What the stages saw that only a tunnel has.
#[derive(Debug, Default)]
struct Stages {
    decap: Seen,
    gro: Seen,
    encap: Seen,
}

/// Packets whose checksum is left to the far end.
#[derive(Debug, Default)]
struct Remote {
    sent: u64,
    received: u64,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("remote", &self.peer).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// A tunnel between two ports.
    pub fn new(mut parts: Parts) -> Tunnel {
        // Refused by what was made without it.
        let remcsum = if parts.encap.set_remcsum(true) { Remcsum::Can(true) } else { Remcsum::Never };
        let names = [&parts.inside_name, &parts.outside_name].map(String::clone);
        let mut made = Tunnel {
            inside: End::new(parts.inside_name, parts.inside),
            outside: End::new(parts.outside_name, parts.outside),
            encap: parts.encap,
            decap: parts.decap,
            peer: parts.remote,
            outer_csum: parts.outer_csum,
            gro: parts.gro.map(Gro::new),
            joins: parts.gro.is_some(),
            settings: Settings::new(names, [parts.gro, None], remcsum),
            outward: Entry::default(),
            inward: Entry::default(),
            seen: Stages::default(),
            remote: Remote::default(),
            rx: RxBatch::new(parts.pages),
            budget: parts.budget.max(1),
            drops: Counts::default(),
            encap_drops: Counts::default(),
            decap_drops: Counts::default(),
            split_drops: Counts::default(),
        };
        made.settle();
        made
    }

    /// From the inside port to the outside port.
    fn outward(&mut self) -> io::Result<Polled> {
        if self.outside.blocked {
            self.outside.transmit(&mut self.rx, &mut self.split_drops)?;
            if self.outside.blocked {
                return Ok(Polled::Idle);
            }
        }
        let polled = self.inside.port.receive(&mut self.rx, self.budget)?;
        while let Some(packet) = self.rx.packets.pop_front() {
            let Tunnel { outward, outside, encap, encap_drops, seen, remote, rx, split_drops, .. } = self;
            outward.each(packet, rx, split_drops, |mut packet, rx, split_drops| {
                seen.encap.add(&packet);
                match encap.push(&mut packet) {
                    Ok(()) => {
                        remote.sent += remotely(&packet);
                        outside.push(packet, rx, split_drops);
                    }
                    Err(why) => {
                        encap_drops.add(why);
                        rx.pool.put(packet);
                    }
                }
            });
        }
        self.outside.transmit(&mut self.rx, &mut self.split_drops)?;
        Ok(polled)
    }

    /// From the outside port to the inside port.
    fn inward(&mut self, now: Nanos) -> io::Result<Polled> {
        if self.inside.blocked {
            self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
            if self.inside.blocked {
                return Ok(Polled::Idle);
            }
        }
        // What a change of settings let go.
        self.hand_in();
        let polled = self.outside.port.receive(&mut self.rx, self.budget)?;
        while let Some(burst) = self.rx.bursts.pop_front() {
            self.take_apart(&burst, now);
        }
        if let Some(gro) = &mut self.gro {
            // With a hold time of 0 everything is due.
            gro.expire(now);
        }
        self.hand_in();
        self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
        Ok(polled)
    }

    /// Hands all that is ready to the inside port.
    fn hand_in(&mut self) {
        let Tunnel { gro, inward, inside, rx, split_drops, .. } = self;
        while let Some(packet) = gro.as_mut().and_then(Gro::pop) {
            inward.each(packet, rx, split_drops, |packet, rx, drops| inside.push(packet, rx, drops));
        }
    }

    /// Every datagram of a burst becomes a packet, and goes to GRO or straight to the inside port.
    fn take_apart(&mut self, burst: &Burst, now: Nanos) {
        if burst.peer.ip() != self.peer {
            return self.drops.add_many(Dropped::UnknownPeer, burst.segments() as u64);
        }
        let meta = Received { tos: burst.tos, csum: self.outer_csum, sum: None };
        for datagram in burst.datagrams() {
            let mut packet = self.rx.pool.take();
            match self.decap.pull(Frag::all(datagram), &meta, &mut packet) {
                Err(why) => {
                    self.decap_drops.add(why);
                    self.rx.pool.put(packet);
                }
                Ok(()) => {
                    self.seen.decap.add(&packet);
                    self.remote.received += u64::from(packet.offload.unit == Unit::Whole(Csum::Partial));
                    match &mut self.gro {
                        Some(gro) if self.joins => {
                            self.seen.gro.add(&packet);
                            gro.push(packet, now, &mut self.rx.pool);
                        }
                        _ => {
                            let Tunnel { inward, inside, rx, split_drops, .. } = self;
                            inward.each(packet, rx, split_drops, |packet, rx, drops| inside.push(packet, rx, drops));
                        }
                    }
                }
            }
        }
    }

    /// Goes by the settings. What is held leaves first.
    fn settle(&mut self) {
        let Settings { protocols, leaving, joining, remcsum, .. } = &self.settings;
        self.inside.leave(leaving[0]);
        self.outside.leave(leaving[1]);
        (self.inward.cuts, self.outward.cuts) = (self.settings.cuts(0), self.settings.cuts(1));
        if let (Some(gro), Some(joining)) = (&mut self.gro, &joining[0]) {
            self.joins = joining.on;
            gro.reconfigure(joining.config(protocols, joining.hold()));
        }
        if let Remcsum::Can(on) = remcsum {
            self.encap.set_remcsum(*on);
        }
    }
}

/// How many packets `packet` stands for whose checksum is left to the far end.
fn remotely(packet: &Packet<Page>) -> u64 {
    match (packet.offload.layers().first().and_then(|layer| layer.remote), packet.offload.unit) {
        (None, _) => 0,
        (Some(_), Unit::Whole(_)) => 1,
        (Some(_), Unit::Train { gso, .. }) => gso.segs(packet.payload.len()) as u64,
    }
}

impl Pipeline for Tunnel {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let out = self.outward()?;
        let inn = self.inward(now)?;
        // A blocked port has to be waited for even if the other one has more; that one is then read on the next wake-up,
        // which is at once.
        let blocked = self.inside.blocked || self.outside.blocked;
        let more = out != Polled::Idle || inn != Polled::Idle;
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        self.inside.interests(self.outside.blocked, wait);
        self.outside.interests(self.inside.blocked, wait);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.gro.as_ref().and_then(Gro::deadline)
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        self.settings.tune(dial);
        self.settle();
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        let verified = self.gro.as_ref().map_or(0, |g| g.stats().checksummed_bytes) + self.decap.checksummed_bytes();
        for (end, verified) in
            [(&self.inside, self.inward.checksummed()), (&self.outside, verified + self.outward.checksummed())]
        {
            end.collect(verified, sink);
        }
        let (inside, outside) = (self.inside.name.as_str(), self.outside.name.as_str());
        self.outward.collect(inside, outside, sink);
        self.inward.collect(outside, inside, sink);
        self.seen.encap.collect(inside, Stage::Encap, sink);
        self.seen.decap.collect(outside, Stage::Decap, sink);
        sink.put(outside, Group::Remcsum, "sent", self.remote.sent);
        sink.put(outside, Group::Remcsum, "received", self.remote.received);
        if self.gro.is_some() {
            self.seen.gro.collect(outside, Stage::Gro, sink);
        }
        sink.reasons(inside, Group::Drops, &self.encap_drops);
        sink.reasons(inside, Group::Drops, &self.split_drops);
        sink.reasons(outside, Group::Drops, &self.drops);
        sink.reasons(outside, Group::Drops, &self.decap_drops);
        if let Some(gro) = &self.gro {
            end::collect_gro(inside, gro.stats(), sink);
        }
    }
}
