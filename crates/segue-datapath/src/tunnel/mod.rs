//! The pipeline of tunnels: a packet port inside for each, and one datagram port outside for all of them.
//!
//! Outward: read trains inside, put the outer headers on, split for the datagram port. Inward: take bursts apart,
//! decapsulate, join what belongs together, write trains inside. Between the two ends nothing looks at single segments.
//!
//! What a round costs depends on the tunnels that have packets, not on how many there are: who is to be read is the kernel's
//! to say, whose a datagram is says a table, and counters of those with nothing new are left as they are.

mod lookup;
mod member;
mod path_mtu;

use std::io;
use std::net::IpAddr;

use segue::encap::{DecapRefusal, Decapsulator, Encapsulator, Fdb, OuterCsum};
use segue::gro;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Burst, Polled, Port, RxBatch};

use self::lookup::Lookup;
use self::member::Member;
use crate::board::{Group, Sink, Stage};
use crate::endpoint::Endpoint;
use crate::ingress::{CutCounts, Traffic};
use crate::knobs::{Dial, Knobs};
use crate::napi::{PollPolicy, RoundRobin};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::sys::Ready;
use crate::tuning::{Remcsum, Settings};

segue::reasons! {
    /// Why the tunnel itself dropped something, beside what encapsulation, decapsulation and ports name.
    pub enum Dropped {
        UnknownPeer = "unknown_peer": "A datagram whose source is not a configured remote address.",
        PathMtu = "path_mtu": "A packet that the way has become too narrow for; its sender was told by ICMP.",
        NoRemote = "no_remote": "A frame for a group or an unknown address, and no remote that has such.",
    }
}

/// The knobs that tunnels between ports of these names have, before they are made; `remcsum` where one of them is made with
/// remote checksum offload, `budget` as in [`Outside`].
pub fn knobs(insides: &[&str], outside: &str, gro: Option<gro::Config>, remcsum: bool, budget: usize) -> Knobs {
    let remcsum = if remcsum { Remcsum::Can(true) } else { Remcsum::Never };
    let settings = |inside: &&str| Settings::new([*inside, outside].map(str::to_owned), [gro, None], remcsum, budget);
    // Joining goes by the name of the port at which trains appear, as its counters do.
    let mut all: Vec<Settings> = insides.iter().map(settings).collect();
    Knobs::list(|dial| tune(&mut all, dial))
}

/// The first has all settings, of the others those of their own interface are asked for.
fn tune(settings: &mut [Settings], dial: &mut Dial<'_>) {
    if let Some((first, others)) = settings.split_first_mut() {
        first.tune(dial);
        others.iter_mut().for_each(|other| other.tune_inside(dial, first));
    }
}

/// The outside of a pipeline.
pub struct Outside {
    /// Name of the port in statistics.
    pub name: String,
    /// The datagram port. Its peers are the remotes of all tunnels, one tunnel after the other.
    pub port: Box<dyn Port>,
    /// What the port vouches for on every datagram it delivers that carries a remote checksum option.
    pub csum: OuterCsum,
    /// Packets or bursts taken from one port in one round: the weight that all begin with.
    pub budget: usize,
    /// Most pages of memory to receive into.
    pub pages: usize,
}

/// What one tunnel is made of.
pub struct Parts {
    /// Name of the inside port in statistics: the interface.
    pub inside_name: String,
    /// The packet port inside.
    pub inside: Box<dyn Port>,
    /// Puts headers on.
    pub encap: Encapsulator,
    /// Takes headers off.
    pub decap: Decapsulator,
    /// Whose datagrams are taken. Everything goes to the first, or, where frames are inside and there is a forwarding table,
    /// where that says.
    pub remotes: Vec<IpAddr>,
    /// Which remote has which Ethernet address. Frames for groups and for addresses that nobody knows go to `flood`.
    pub fdb: Option<Fdb>,
    /// Which of the remotes have all frames that have no remote of their own.
    pub flood: Vec<u16>,
    /// How to join what comes in, which can then be changed and switched off as it runs; `None` leaves packets single for
    /// good.
    pub gro: Option<gro::Config>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("inside", &self.inside_name)
            .field("remotes", &self.remotes)
            .finish_non_exhaustive()
    }
}

/// Tunnels; see the module.
pub struct Tunnel {
    common: Common,
    members: Vec<Member>,
    settings: Vec<Settings>,
    lookup: Lookup,
    /// Those with something to hand in.
    due: Vec<usize>,
    /// Those whose inside port takes no more.
    blocked: Vec<usize>,
    /// Which of several are to be read; without it all of them are.
    ready: Option<Ready>,
    round_robin: RoundRobin,
    /// The tunnel whose turn it is among those that are to be read.
    turn: usize,
    /// One of several that are to be read woke the loop.
    woken: bool,
}

/// What all tunnels have in common, with what is counted for all together under the name of the outside port.
struct Common {
    outside: Endpoint,
    rx: RxBatch,
    outer_csum: OuterCsum,
    /// Packets and bursts taken from all ports.
    taken: u64,
    /// Packets sent and received whose checksum is left to the far end.
    remote: Remote,
    /// What the stages saw.
    unwrapped: Traffic,
    joined: Traffic,
    entered: Traffic,
    /// What was cut on the way out.
    cuts: CutCounts,
    /// Payload bytes summed to verify checksums.
    verified: u64,
    /// Addresses learned, moved, forgotten.
    fdb: [u64; 3],
    drops: Counts<Dropped>,
    decap_drops: Counts<DecapRefusal>,
}

/// Packets whose checksum is left to the far end.
#[derive(Debug, Default)]
struct Remote {
    sent: u64,
    received: u64,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Tunnels with one outside port, whose configurations share it
    /// ([`Config::shares`](segue::encap::Config::shares)) and have no identity in common where they have a remote in common.
    ///
    /// # Panics
    /// Without any tunnel.
    pub fn new(outside: Outside, mut parts: Vec<Parts>) -> Tunnel {
        // Refused by what was made without it.
        let can = parts.iter_mut().filter_map(|parts| parts.encap.set_remcsum(true).then_some(())).count() > 0;
        let remcsum = if can { Remcsum::Can(true) } else { Remcsum::Never };
        let settings = parts.iter().map(|parts| {
            Settings::new(
                [&parts.inside_name, &outside.name].map(String::clone),
                [parts.gro, None],
                remcsum,
                outside.budget,
            )
        });
        let settings = settings.collect();
        let mut first_peer = 0;
        let members: Vec<Member> = parts
            .into_iter()
            .map(|parts| {
                let member = Member::new(parts, first_peer);
                // A port numbers its peers with 16 bits.
                first_peer = first_peer.saturating_add(member.remotes.len() as u16);
                member
            })
            .collect();
        let config = *members[0].encap.config();
        let mut made = Tunnel {
            common: Common {
                outside: Endpoint::new(outside.name, outside.port),
                rx: RxBatch::new(outside.pages),
                outer_csum: outside.csum,
                taken: 0,
                remote: Remote::default(),
                unwrapped: Traffic::default(),
                joined: Traffic::default(),
                entered: Traffic::default(),
                cuts: CutCounts::default(),
                verified: 0,
                fdb: [0; 3],
                drops: Counts::default(),
                decap_drops: Counts::default(),
            },
            lookup: Lookup::new(config, members.iter().map(|m| (m.encap.config(), &m.remotes[..]))),
            due: Vec::with_capacity(members.len()),
            blocked: Vec::new(),
            // Where the kernel has no epoll, or a port cannot be waited for, all are read.
            ready: if members.len() > 1 { Ready::new(members.iter().map(|m| m.inside.port.fd())).ok() } else { None },
            settings,
            members,
            round_robin: RoundRobin::default(),
            turn: 0,
            woken: false,
        };
        made.settle();
        made
    }

    /// From the inside ports to the outside port, at most `left` packets, which becomes what is left of it.
    fn outward(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let Tunnel { common, members, ready, .. } = self;
        if common.outside.blocked {
            common.outside.transmit(&mut common.rx, &mut members[0].split_drops)?;
            if common.outside.blocked {
                return Ok(Polled::Idle);
            }
        }
        let (count, mut more) = match ready {
            Some(ready) => ready.poll()?,
            None => (members.len(), false),
        };
        let woken = std::mem::take(&mut self.woken);
        let first = self.turn;
        // Those before the one whose turn it is come last.
        let turns = (0..2 * count).filter_map(|place| {
            let at = ready.as_ref().map_or(place % count, |ready| ready.at(place % count));
            ((at >= first) == (place < count)).then_some(at)
        });
        for at in turns {
            let Some(member) = members.get_mut(at) else { continue };
            if *left == 0 || common.outside.blocked {
                // The rest is as ready the next time.
                (self.turn, more) = (at, true);
                break;
            }
            member.inside.polls.wake_ups += u64::from(woken);
            more |= member.read(common, now, left)? != Polled::Idle;
            if member.inside.blocked && !self.blocked.contains(&at) {
                self.blocked.push(at);
            }
        }
        Ok(if more { Polled::More } else { Polled::Idle })
    }

    /// From the outside port to the inside ports, at most `left` bursts, which becomes what is left of it.
    fn inward(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        self.unblock()?;
        if !self.blocked.is_empty() {
            return Ok(Polled::Idle);
        }
        let polled = self.common.outside.poll(&mut self.common.rx, left)?;
        self.common.taken += self.common.rx.bursts.len() as u64;
        while let Some(burst) = self.common.rx.bursts.pop_front() {
            self.take_apart(&burst, now);
        }
        let mut kept = 0;
        for at in 0..self.due.len() {
            let index = self.due[at];
            let member = &mut self.members[index];
            member.is_due = member.hand_in(&mut self.common, now)?;
            if member.is_due {
                self.due[kept] = index;
                kept += 1;
            }
            if member.inside.blocked {
                self.blocked.push(index);
            }
        }
        self.due.truncate(kept);
        Ok(polled)
    }

    /// Lets those send whose inside port took no more.
    fn unblock(&mut self) -> io::Result<()> {
        let Tunnel { common, members, blocked, .. } = self;
        let mut outcome = Ok(());
        blocked.retain(|&at| {
            let member = &mut members[at];
            if outcome.is_ok() {
                outcome = member.inside.transmit(&mut common.rx, &mut member.split_drops);
            }
            member.inside.blocked
        });
        outcome
    }

    /// Every datagram of a burst goes to its tunnel.
    fn take_apart(&mut self, burst: &Burst, now: Nanos) {
        let Some(tunnels) = self.lookup.of(burst.peer.ip()) else {
            return self.common.drops.add_many(Dropped::UnknownPeer, burst.segments() as u64);
        };
        for datagram in burst.datagrams() {
            let to = self.lookup.to(tunnels, datagram.as_ref());
            let member = &mut self.members[to.member];
            if !member.is_due {
                member.is_due = true;
                self.due.push(to.member);
            }
            member.take(datagram, to.remote, burst.tos, &mut self.common, now);
        }
    }

    /// Goes by the settings. What is held leaves first.
    fn settle(&mut self) {
        self.common.outside.set_egress(self.settings[0].egress[1]);
        self.common.outside.polls.weight = self.settings[0].sharing.weights[1] as usize;
        for (at, (member, settings)) in self.members.iter_mut().zip(&self.settings).enumerate() {
            member.settle(settings);
            if !member.is_due {
                member.is_due = true;
                self.due.push(at);
            }
        }
    }
}

impl Pipeline for Tunnel {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let mut round_robin = self.round_robin;
        let more = round_robin.round(self.settings[0].sharing.budget, |from, left| match from {
            0 => self.outward(now, left),
            _ => self.inward(now, left),
        })?;
        self.round_robin = round_robin;
        // A blocked port has to be waited for even if the other one has more; that one is then read on the next wake-up,
        // which is at once.
        let blocked = !self.blocked.is_empty() || self.common.outside.blocked;
        Ok(if more && !blocked { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let outside = &self.common.outside;
        match &self.ready {
            Some(ready) => wait(Interest { fd: ready.fd(), read: !outside.blocked, write: false }),
            None => self.members.iter().for_each(|member| member.inside.wait_to_read(outside.blocked, wait)),
        }
        self.blocked.iter().for_each(|&at| self.members[at].inside.wait_to_write(wait));
        outside.wait_to_read(!self.blocked.is_empty(), wait);
        outside.wait_to_write(wait);
    }

    fn woken(&mut self, place: usize) {
        let insides = if self.ready.is_some() { 1 } else { self.members.len() };
        match self.members.get_mut(place) {
            _ if place == insides + self.blocked.len() => self.common.outside.woken(0),
            _ if place >= insides => {}
            // Which of them it was shows when they are read.
            _ if self.ready.is_some() => self.woken = true,
            Some(member) => member.inside.woken(0),
            None => {}
        }
    }

    fn poll_policy(&self) -> PollPolicy {
        self.settings[0].sharing.poll_policy()
    }

    fn taken(&self) -> u64 {
        self.common.taken
    }

    fn deadline(&self) -> Option<Nanos> {
        self.due.iter().filter_map(|&at| self.members[at].deadline()).min()
    }

    fn close(&mut self) -> bool {
        self.common.outside.polls.closed = true;
        // Whose interface has something is no longer asked.
        self.ready = None;
        self.members.iter_mut().for_each(|member| member.inside.polls.closed = true);
        self.settle();
        true
    }

    fn sequences(&self) -> Vec<(&str, u32)> {
        let numbered = self.members.iter().filter_map(|member| Some((member, member.encap.sequence()?)));
        numbered.map(|(member, next)| (member.inside.name.as_str(), next)).collect()
    }

    fn go_on(&mut self, name: &str, next: u32) {
        let of = self.members.iter_mut().find(|member| member.inside.name == name);
        of.into_iter().for_each(|member| member.encap.go_on(next));
    }

    fn tune(&mut self, dial: &mut Dial<'_>) {
        tune(&mut self.settings, dial);
        self.settle();
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        let common = &self.common;
        let mut count = None;
        for member in &self.members {
            let before = sink.place();
            member.collect(count, sink);
            // All of one kind have the same.
            count.get_or_insert(sink.place() - before);
        }
        let outside = common.outside.name.as_str();
        common.outside.collect(common.verified + common.cuts.checksummed, sink);
        common.cuts.collect(outside, sink);
        common.entered.collect(outside, Stage::Ingress, sink);
        common.unwrapped.collect(outside, Stage::Decap, sink);
        common.joined.collect(outside, Stage::Gro, sink);
        sink.put(outside, Group::Remcsum, "sent", common.remote.sent);
        sink.put(outside, Group::Remcsum, "received", common.remote.received);
        sink.reasons(outside, Group::Drops, &common.drops);
        sink.reasons(outside, Group::Drops, &common.decap_drops);
        if self.members.iter().any(Member::learns) {
            for (key, value) in ["fdb_learned", "fdb_moved", "fdb_evicted"].into_iter().zip(common.fdb) {
                sink.put(outside, Group::Port, key, value);
            }
        }
    }
}
