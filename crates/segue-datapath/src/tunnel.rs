//! The pipeline of a tunnel: a packet port inside, a datagram port outside.
//!
//! Outward: read trains inside, put the outer headers on, split for the datagram port. Inward: take bursts apart,
//! decapsulate, join what belongs together, write trains inside. Between the two ends nothing looks at single segments.

use std::io;
use std::net::IpAddr;

use segue::encap::{self, DecapRefusal, Decapsulator, EncapRefusal, Encapsulator, Fdb, Fit, OuterCsum, Received, Way};
use segue::gro::{self, Gro};
use segue::gso;
use segue::packet::{Csum, Frag, Packet, Start, Tunnels, Unit};
use segue::reason::Counts;
use segue::time::Nanos;
use segue::wire::ethernet;
use segue_port::{Burst, Page, Polled, Port, RxBatch};

use crate::board::{Group, Sink, Stage};
use crate::end::{self, End};
use crate::entry::{Entry, Seen};
use crate::knobs::{Dial, Knobs};
use crate::napi::{Pace, Turns};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::tuning::{Remcsum, Settings};

segue::reasons! {
    /// Why the tunnel itself dropped something, beside what encapsulation, decapsulation and ports name.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not a configured remote address.",
        PathMtu = "path_mtu": "A packet that the way has become too narrow for; its sender was told by ICMP.",
        NoRemote = "no_remote": "A frame for a group or an unknown address, and no remote that has such.",
    }
}

/// The knobs that a tunnel between ports of these names has, before it is made; `remcsum` where it is made with remote
/// checksum offload, `budget` as in [`Parts`].
pub fn knobs(inside: &str, outside: &str, gro: Option<gro::Config>, remcsum: bool, budget: usize) -> Knobs {
    let remcsum = if remcsum { Remcsum::Can(true) } else { Remcsum::Never };
    let names = [inside, outside].map(str::to_owned);
    // Joining goes by the name of the port at which trains appear, as its counters do.
    Knobs::list(|dial| Settings::new(names, [gro, None], remcsum, budget).tune(dial))
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
    /// Whose datagrams are taken: the outside port's peers, in its order. Everything goes to the first, or, where frames are
    /// inside and there is a forwarding table, where that says.
    pub remotes: Vec<IpAddr>,
    /// Which remote has which Ethernet address. Frames for groups and for addresses that nobody knows go to `flood`.
    pub fdb: Option<Fdb>,
    /// Which of the remotes have all frames that have no remote of their own.
    pub flood: Vec<u16>,
    /// What the outside port vouches for on every datagram it delivers that carries a remote checksum option.
    pub outer_csum: OuterCsum,
    /// How to join what comes in, which can then be changed and switched off as it runs; `None` leaves packets single for
    /// good.
    pub gro: Option<gro::Config>,
    /// Packets or bursts taken from one port in one round: the weight that both begin with.
    pub budget: usize,
    /// Most pages of memory to receive into.
    pub pages: usize,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("inside", &self.inside_name)
            .field("remotes", &self.remotes)
            .finish_non_exhaustive()
    }
}

/// A tunnel; see the module.
pub struct Tunnel {
    inside: End,
    outside: End,
    encap: Encapsulator,
    decap: Decapsulator,
    remotes: Vec<IpAddr>,
    fdb: Option<Fdb>,
    flood: Vec<u16>,
    outer_csum: OuterCsum,
    gro: Option<Gro<Page>>,
    joins: bool,
    settings: Settings,
    way: WayMtu,
    /// The ways outward and inward.
    outward: Entry,
    inward: Entry,
    seen: Stages,
    /// Packets sent and received whose checksum is left to the far end.
    remote: Remote,
    rx: RxBatch,
    turns: Turns,
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
        f.debug_struct("Tunnel").field("remotes", &self.remotes).finish_non_exhaustive()
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
            remotes: parts.remotes,
            fdb: parts.fdb,
            flood: parts.flood,
            outer_csum: parts.outer_csum,
            gro: parts.gro.map(Gro::new),
            joins: parts.gro.is_some(),
            settings: Settings::new(names, [parts.gro, None], remcsum, parts.budget),
            way: WayMtu::default(),
            outward: Entry::default(),
            inward: Entry::default(),
            seen: Stages::default(),
            remote: Remote::default(),
            rx: RxBatch::new(parts.pages),
            turns: Turns::default(),
            drops: Counts::default(),
            encap_drops: Counts::default(),
            decap_drops: Counts::default(),
            split_drops: Counts::default(),
        };
        made.settle();
        made
    }

    /// From the inside port to the outside port, at most `left` packets, which becomes what is left of it.
    fn outward(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        if self.outside.blocked {
            self.outside.transmit(&mut self.rx, &mut self.split_drops)?;
            if self.outside.blocked {
                return Ok(Polled::Idle);
            }
        }
        let polled = self.inside.poll(&mut self.rx, left)?;
        if !self.rx.packets.is_empty() {
            self.way.ask(&*self.outside.port, self.encap.config().overhead(), now);
        }
        while let Some(packet) = self.rx.packets.pop_front() {
            let mut next = self.outward.enter(packet, &mut self.rx, &mut self.split_drops);
            while let Some(packet) = next {
                match self.way.inside.map_or(Fit::Fits, |mtu| encap::fit(&packet, mtu)) {
                    Fit::Fits => self.wrap(packet, now),
                    Fit::Fragment => self.wrap_in_fragments(packet, now),
                    Fit::TooBig(mtu) => self.tell_sender(packet, mtu),
                }
                next = self.outward.more();
            }
        }
        if self.way.inside.is_some() && !self.inside.blocked {
            self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
        }
        self.outside.transmit(&mut self.rx, &mut self.split_drops)?;
        Ok(polled)
    }

    /// A packet that does not fit the way and may be fragmented: its outside is.
    fn wrap_in_fragments(&mut self, packet: Box<Packet<Page>>, now: Nanos) {
        self.way.fragments = true;
        self.wrap(packet, now);
        self.way.fragments = false;
    }

    /// A packet that does not fit the way and must not be fragmented: its sender hears of it.
    fn tell_sender(&mut self, packet: Box<Packet<Page>>, mtu: usize) {
        self.drops.add(Dropped::PathMtu);
        if let Some(mut page) = self.rx.pages.take()
            && let Some(len) = encap::too_big(&packet, mtu, page.bytes_mut())
        {
            let start = if self.encap.config().mode.is_ethernet() { Start::Ethernet } else { Start::Ip };
            let mut error = self.rx.pool.take();
            error.load(Frag::all(page.freeze(len)), start, &Tunnels::NONE);
            self.inside.push(error, &mut self.rx, &mut self.split_drops);
        }
        self.rx.pool.put(packet);
    }

    /// Puts a packet into the tunnel, or a frame into those of all remotes that should have it.
    fn wrap(&mut self, packet: Box<Packet<Page>>, now: Nanos) {
        let Some(fdb) = &self.fdb else { return self.send(packet) };
        let to = packet.head.bytes().get(ethernet::DST).and_then(|mac| mac.first_chunk());
        match to.map_or(Way::Flood, |mac| fdb.way(*mac, now)) {
            Way::To(remote) => self.aim_and_send(remote, packet),
            Way::Flood => {
                let flood = std::mem::take(&mut self.flood);
                if let [others @ .., last] = &flood[..] {
                    for remote in others {
                        let mut copy = self.rx.pool.take();
                        copy.copy_from(&packet);
                        self.aim_and_send(*remote, copy);
                    }
                    self.aim_and_send(*last, packet);
                } else {
                    self.drops.add(Dropped::NoRemote);
                    self.rx.pool.put(packet);
                }
                self.flood = flood;
            }
        }
    }

    fn aim_and_send(&mut self, remote: u16, packet: Box<Packet<Page>>) {
        if let Some(address) = self.remotes.get(usize::from(remote)) {
            self.encap.aim(*address, remote);
        }
        self.send(packet);
    }

    fn send(&mut self, mut packet: Box<Packet<Page>>) {
        self.seen.encap.add(&packet);
        match self.encap.push(&mut packet) {
            Ok(()) => {
                self.remote.sent += remotely(&packet);
                if let (true, Some(outer)) = (self.way.fragments, &mut packet.outer) {
                    outer.df = false;
                }
                self.outside.push(packet, &mut self.rx, &mut self.split_drops);
            }
            Err(why) => {
                self.encap_drops.add(why);
                self.rx.pool.put(packet);
            }
        }
    }

    /// From the outside port to the inside port, at most `left` bursts, which becomes what is left of it.
    fn inward(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        if self.inside.blocked {
            self.inside.transmit(&mut self.rx, &mut self.split_drops)?;
            if self.inside.blocked {
                return Ok(Polled::Idle);
            }
        }
        // What a change of settings let go.
        self.hand_in();
        let polled = self.outside.poll(&mut self.rx, left)?;
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
        let sender = burst.peer.ip();
        let Some(from) = self.remotes.iter().position(|remote| *remote == sender) else {
            return self.drops.add_many(Dropped::UnknownPeer, burst.segments() as u64);
        };
        let meta = Received { tos: burst.tos, csum: self.outer_csum, sum: None };
        for datagram in burst.datagrams() {
            let mut packet = self.rx.pool.take();
            match self.decap.pull(Frag::all(datagram), &meta, &mut packet) {
                Err(why) => {
                    self.decap_drops.add(why);
                    self.rx.pool.put(packet);
                }
                Ok(()) => {
                    if let Some(fdb) = &mut self.fdb
                        && let Some(source) = packet.head.bytes().get(ethernet::SRC).and_then(|mac| mac.first_chunk())
                    {
                        // As many as the port has peers.
                        fdb.learn(*source, from as u16, now);
                    }
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
        let Settings { protocols, leaving, joining, remcsum, sharing, .. } = &self.settings;
        self.inside.polls.weight = sharing.weights[0] as usize;
        self.outside.polls.weight = sharing.weights[1] as usize;
        self.inside.leave(leaving[0]);
        self.outside.leave(leaving[1]);
        (self.inward.cuts, self.outward.cuts) = (self.settings.cuts(0), self.settings.cuts(1));
        if let (Some(gro), Some(joining)) = (&mut self.gro, &joining[0]) {
            self.joins = joining.on;
            gro.reconfigure(joining.config(protocols, sharing.hold(joining.hold())));
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

/// How often the outside port is asked for the MTU of the way, in nanoseconds: more often than any TCP repeats itself.
const ASK_EVERY: u64 = 100_000_000;

/// What is known of the way's MTU.
#[derive(Debug, Default)]
struct WayMtu {
    asked: Option<Nanos>,
    /// What it was at first: the interface and whoever set the inside's MTU know that much.
    first: Option<usize>,
    /// Bytes of inner IP that fit, once that is less than at first.
    inside: Option<usize>,
    /// The packet at hand is to be fragmented outside.
    fragments: bool,
}

impl WayMtu {
    fn ask(&mut self, port: &dyn Port, overhead: usize, now: Nanos) {
        if self.asked.is_some_and(|asked| now.0.saturating_sub(asked.0) < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let mtu = port.path_mtu();
        let first = *self.first.get_or_insert(mtu.unwrap_or(usize::MAX));
        self.inside = mtu.filter(|mtu| *mtu < first).map(|mtu| mtu.saturating_sub(overhead));
    }
}

impl Pipeline for Tunnel {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let mut turns = self.turns;
        let more = turns.round(self.settings.sharing.budget, |from, left| match from {
            0 => self.outward(now, left),
            _ => self.inward(now, left),
        })?;
        self.turns = turns;
        // A blocked port has to be waited for even if the other one has more; that one is then read on the next wake-up,
        // which is at once.
        let blocked = self.inside.blocked || self.outside.blocked;
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        self.inside.interests(self.outside.blocked, wait);
        self.outside.interests(self.inside.blocked, wait);
    }

    fn woken(&mut self, place: usize) {
        self.inside.woken(place);
        self.outside.woken(place.wrapping_sub(end::WISHES));
    }

    fn pace(&self) -> Pace {
        self.settings.sharing.pace()
    }

    fn taken(&self) -> u64 {
        self.inside.polls.taken + self.outside.polls.taken
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
        if let Some(fdb) = &self.fdb {
            let [learned, moved, evicted] = fdb.counts();
            for (key, value) in [("fdb_learned", learned), ("fdb_moved", moved), ("fdb_evicted", evicted)] {
                sink.put(outside, Group::Port, key, value);
            }
        }
        if let Some(gro) = &self.gro {
            end::collect_gro(inside, gro.stats(), sink);
        }
    }
}
