//! The poll loop of tunnels that share an outside port.

use std::collections::VecDeque;
use std::io;

use segue::packet::Tunnels;
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Burst, Polled, Received, RxBatch, TunnelWatch};

use super::common::{Common, Remote};
use super::dropped::Dropped;
use super::lookup::Lookup;
use super::member::Member;
use super::parts::{Outside, Parts, settings, tune};
use super::probe::{self, Message};
use super::queue::{Direction, Next, Queues};
use crate::board::{Group, Sink, Stage};
use crate::endpoint::{Endpoint, reply_pages};
use crate::ingress::{CutCounts, Traffic};
use crate::knobs::Dial;
use crate::napi::{PollPolicy, RoundRobin};
use crate::pipeline::{Interest, Pipeline, Round};
use crate::sys::Ready;
use crate::tuning::{Remcsum, Settings};

/// Number of rounds after which the state of the inside ports' interfaces is read even without an event.
const LISTEN_EVERY: u64 = 64;

/// Limit of the queued bytes that a round sends in each direction, which bounds the wait of a packet that arrives
/// meanwhile. A poll brings more, so that no flow waits in the kernel after the trains of another one.
const TURN: usize = 256 << 10;

/// The pipeline of all tunnels that share an outside port.
pub struct Tunnel {
    common: Common,
    members: Vec<Member>,
    settings: Vec<Settings>,
    lookup: Lookup,
    /// Whether control messages may be those of a probe.
    has_probes: bool,
    /// Whether a probe's answer is queued in the outside port.
    has_answers: bool,
    /// Indexes of the tunnels that have packets to deliver.
    due: Vec<usize>,
    /// Indexes of the tunnels whose inside port is blocked.
    blocked: Vec<usize>,
    /// Poll set that finds the readable inside ports; without it all ports are read.
    ready: Option<Ready>,
    round_robin: RoundRobin,
    /// Indexes of the tunnels whose inside port has packets to read, the next one first.
    active: VecDeque<usize>,
    /// Whether a readable inside port has woken the loop.
    woken: bool,
    /// Indexes of the tunnels whose inside port follows its interface or a guest.
    followed: Vec<usize>,
    tunnels: Followed,
    /// Whether a port lacked pages to receive into, since packets that GRO holds occupy them.
    is_starved: bool,
    /// Number of rounds so far.
    rounds: u64,
    /// The sides that have woken the loop since the last round; `None` where the round was not begun by a port.
    wake: Option<Wake>,
}

/// The sides of a tunnel whose readiness has woken the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wake {
    inside: bool,
    outside: bool,
}

/// The kernel's tunnel devices beside the interfaces.
struct Followed {
    /// `None` where nothing depends on them, and after a failure.
    watch: Option<TunnelWatch>,
    found: Tunnels,
    /// Whether the watch has something to read.
    told: bool,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Creates the tunnel's pipeline. The configurations of the tunnels must be able to share the outside port
    /// ([`Config::shares`](segue::encap::Config::shares)), and two tunnels with a common remote must have no identity
    /// in common.
    ///
    /// # Panics
    ///
    /// Without any tunnel.
    pub fn new(outside: Outside, mut parts: Vec<Parts>) -> Tunnel {
        // Tunnels that were made without remote checksum offload refuse.
        let can = parts.iter_mut().filter_map(|parts| parts.encap.set_remcsum(true).then_some(())).count() > 0;
        let remcsum = if can { Remcsum::Can(true) } else { Remcsum::Never };
        let all = parts.iter().map(|parts| {
            let names = [&parts.inside_name, &outside.name].map(String::clone);
            let probe = parts.probe.as_ref().map(|probe| probe.interval());
            Settings { probe, ..settings(names, parts.gro, remcsum, outside.budget) }
        });
        let settings: Vec<Settings> = all.collect();
        let mut first_peer = 0;
        let members: Vec<Member> = parts
            .into_iter()
            .enumerate()
            .map(|(index, parts)| {
                let member = Member::new(parts, index, first_peer);
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
                replies: reply_pages(),
                pages: outside.pages,
                outer_csum: outside.csum,
                taken: 0,
                remote: Remote::default(),
                unwrapped: Traffic::default(),
                joined: Traffic::default(),
                entered: Traffic::default(),
                cuts: CutCounts::default(),
                verified: 0,
                fdb: [0; 3],
                queues: Queues::new(outside.key, settings[0].queue.unwrap_or_default()),
                queues_in: false,
                drops: Counts::default(),
                decap_drops: Counts::default(),
            },
            lookup: Lookup::new(config, members.iter().map(|m| (m.encap.config(), &m.remotes[..]))),
            due: Vec::with_capacity(members.len()),
            blocked: Vec::new(),
            // Where the kernel has no epoll, or a port cannot be polled, all are read.
            ready: if members.len() > 1 { Ready::new(members.iter().map(|m| m.inside.port.fd())).ok() } else { None },
            settings,
            has_answers: false,
            has_probes: members.iter().any(Member::has_probe),
            tunnels: Followed { watch: outside.tunnels, found: Tunnels::NONE, told: true },
            followed: (0..members.len()).filter(|at| members[*at].inside.port.link_fd().is_some()).collect(),
            is_starved: false,
            rounds: 0,
            members,
            round_robin: RoundRobin::default(),
            active: VecDeque::new(),
            woken: false,
            wake: None,
        };
        made.settle();
        made
    }

    /// Reads which tunnel devices the kernel has, if that may have changed or `looks` is true.
    fn follow_tunnels(&mut self, looks: bool) {
        let Followed { watch, found, told } = &mut self.tunnels;
        if let (Some(open), true) = (&mut *watch, *told || looks) {
            // Without the watch nothing is known of them, and only packets outside of them are joined.
            let now = open.listen().unwrap_or_else(|_| {
                *watch = None;
                Tunnels::NONE
            });
            *told = false;
            // Now and then, since a port may have refused such a train.
            if now != std::mem::replace(found, now) || looks {
                for (at, member) in self.members.iter_mut().enumerate() {
                    if member.join_inside(now) && !std::mem::replace(&mut member.is_due, true) {
                        self.due.push(at);
                    }
                }
            }
        }
    }

    /// Moves at most `left` packets from the inside ports to the outside port, and reduces `left` by their number.
    fn outward(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let Tunnel { common, members, ready, active, .. } = self;
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
        for place in 0..count {
            let at = ready.as_ref().map_or(place, |ready| ready.at(place));
            if let Some(member) = members.get_mut(at)
                && !std::mem::replace(&mut member.is_active, true)
            {
                active.push_back(at);
            }
        }
        let woken = std::mem::take(&mut self.woken);
        // Without the poll set all are asked, so that the list is empty where none has more.
        let most = if ready.is_some() { Ready::MOST } else { usize::MAX };
        for _ in 0..active.len().min(most) {
            if *left == 0 || common.outside.blocked || common.is_full(Direction::Outward) {
                // The others are first in the next round.
                break;
            }
            let Some(at) = active.pop_front() else { break };
            let member = &mut members[at];
            member.is_active = false;
            member.inside.polls.wake_ups += u64::from(woken);
            let polled = member.receive(common, now, left)?;
            self.is_starved |= polled == Polled::Starved;
            if polled != Polled::Idle {
                member.is_active = true;
                active.push_back(at);
            }
            let packets = &common.rx.packets;
            let bytes = || packets.iter().map(Received::len).sum();
            if common.queues.wants(Direction::Outward, packets.len(), bytes) {
                while let Some(packet) = common.rx.pop_packet() {
                    common.queues.push(Direction::Outward, at, packet, now);
                }
            } else {
                member.send_all(common, now)?;
            }
            note_blocked(&mut self.blocked, at, member);
        }
        more |= !active.is_empty();
        let more = self.serve(now)? || more;
        // A blocked port is waited for before more is read for it.
        Ok(if more && !self.common.outside.blocked { Polled::More } else { Polled::Idle })
    }

    /// Sends queued packets in fair order. Returns whether packets are still queued.
    fn serve(&mut self, now: Nanos) -> io::Result<bool> {
        let Tunnel { common, members, blocked, .. } = self;
        if !common.queues.has(Direction::Outward) || common.outside.blocked {
            return Ok(common.queues.has(Direction::Outward));
        }
        let (mut bytes, mut last) = (0, 0);
        while bytes < TURN
            && let Some(Next { member: at, packet, loses_first }) = common.next(Direction::Outward, now)
        {
            bytes += packet.len();
            last = at;
            match loses_first {
                true => members[at].send_without_first(packet, common, now),
                false => members[at].send_one(packet, common, now),
            }
            members[at].tell_senders(common)?;
            note_blocked(blocked, at, &members[at]);
        }
        common.outside.transmit(&mut common.rx, &mut members[last].split_drops)?;
        Ok(common.queues.has(Direction::Outward))
    }

    /// Moves at most `left` bursts from the outside port to the inside ports, and reduces `left` by their number.
    fn inward(&mut self, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        self.unblock()?;
        if self.blocked.is_empty() {
            // What GRO has released when it was switched off; later packets pass it by.
            self.deliver_from(|member| !member.joins, now)?;
        }
        if !self.blocked.is_empty() {
            return Ok(Polled::Idle);
        }
        let mut polled = Polled::More;
        if !self.common.is_full(Direction::Inward) {
            polled = self.common.outside.poll(&mut self.common.rx, left)?;
        }
        self.is_starved |= polled == Polled::Starved;
        let bursts = &self.common.rx.bursts;
        self.common.taken += bursts.len() as u64;
        let bytes = || bursts.iter().map(|burst| burst.page.len()).sum();
        self.common.queues_in = self.common.queues.wants(Direction::Inward, bursts.len(), bytes);
        while let Some(burst) = self.common.rx.bursts.pop_front() {
            self.take_apart(&burst, now);
        }
        if std::mem::take(&mut self.has_answers) && !self.common.outside.blocked {
            self.common.outside.transmit(&mut self.common.rx, &mut self.members[0].split_drops)?;
        }
        if std::mem::take(&mut self.is_starved) {
            self.due.iter().for_each(|&at| self.members[at].release());
        }
        self.deliver_from(|_| true, now)?;
        let waits = self.deliver_waiting(now)?;
        Ok(match (self.blocked.is_empty(), waits) {
            (false, _) => Polled::Idle,
            (true, true) => Polled::More,
            (true, false) => polled,
        })
    }

    /// Delivers what GRO releases in those of the due tunnels that `is_meant` accepts.
    fn deliver_from(&mut self, is_meant: impl Fn(&Member) -> bool, now: Nanos) -> io::Result<()> {
        let mut kept = 0;
        for at in 0..self.due.len() {
            let index = self.due[at];
            let member = &mut self.members[index];
            if is_meant(member) {
                member.is_due = member.deliver(&mut self.common, now)?;
                note_blocked(&mut self.blocked, index, member);
            }
            if member.is_due {
                self.due[kept] = index;
                kept += 1;
            }
        }
        self.due.truncate(kept);
        Ok(())
    }

    /// Delivers queued packets in fair order. Returns whether packets are still queued.
    fn deliver_waiting(&mut self, now: Nanos) -> io::Result<bool> {
        let Tunnel { common, members, blocked, .. } = self;
        let mut bytes = 0;
        while bytes < TURN
            && blocked.is_empty()
            && let Some(Next { member: at, packet, loses_first }) = common.next(Direction::Inward, now)
        {
            bytes += packet.len();
            let member = &mut members[at];
            member.enter_waiting(packet, loses_first, common)?;
            if member.inside.blocked {
                blocked.push(at);
            }
        }
        Ok(common.queues.has(Direction::Inward))
    }

    /// Returns whether a port takes no packets at present.
    fn is_blocked(&self) -> bool {
        self.common.outside.blocked || !self.blocked.is_empty()
    }

    /// Returns whether queued packets wait for a writable port, or for their time.
    fn has_waiting(&self) -> bool {
        self.is_blocked()
            || !self.due.is_empty()
            || self.common.queues.has(Direction::Outward)
            || self.common.queues.has(Direction::Inward)
    }

    /// Returns whether packets are queued for a port that accepts them.
    fn can_serve(&self) -> bool {
        let Common { queues, outside, .. } = &self.common;
        queues.has(Direction::Outward) && !outside.blocked || queues.has(Direction::Inward) && self.blocked.is_empty()
    }

    /// Retries transmission on the blocked inside ports.
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

    /// Passes every datagram of a burst to its tunnel.
    fn take_apart(&mut self, burst: &Burst, now: Nanos) {
        let Some(tunnels) = self.lookup.of(burst.peer.ip()) else {
            return self.common.drops.add_many(Dropped::UnknownPeer, burst.segments() as u64);
        };
        for datagram in burst.datagrams() {
            if self.has_probes && probe::is_control(datagram.as_ref()) {
                self.control(tunnels, datagram.as_ref(), now);
                continue;
            }
            let to = self.lookup.to(tunnels, &datagram);
            let member = &mut self.members[to.member];
            if !member.is_due {
                member.is_due = true;
                self.due.push(to.member);
            }
            member.take(datagram, to.remote, burst.tos, &mut self.common, now);
        }
    }

    /// Handles a control message from a remote of `tunnels`.
    #[cold]
    fn control(&mut self, tunnels: usize, datagram: &[u8], now: Nanos) {
        let message = Message::parse(datagram);
        let to = match message {
            Some(message) => self.lookup.with(tunnels, message.identity),
            None => self.lookup.to(tunnels, datagram),
        };
        self.members[to.member].control(message, to.remote, &mut self.common, now);
        self.has_answers = true;
    }

    /// Applies changed settings to the ports. Packets that GRO holds are released first.
    fn settle(&mut self) {
        self.common.outside.set_egress(self.settings[0].egress[1]);
        if let Some(queue) = self.settings[0].queue {
            self.common.queues.settle(queue);
        }
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

/// Lists the tunnel with index `at` among the `blocked` ones if its inside port is blocked.
fn note_blocked(blocked: &mut Vec<usize>, at: usize, member: &Member) {
    if member.inside.blocked && !blocked.contains(&at) {
        blocked.push(at);
    }
}

impl Pipeline for Tunnel {
    fn round(&mut self, now: Nanos) -> io::Result<Round> {
        let mut round_robin = self.round_robin;
        // While a port was blocked, another one may not have been read to its end, and a guest calls only after that.
        let wake = self.wake.take().filter(|_| !self.is_blocked());
        self.rounds = self.rounds.wrapping_add(1);
        // A loop that never sleeps is never woken for it.
        let looks = self.rounds.is_multiple_of(LISTEN_EVERY);
        self.followed.iter().for_each(|&at| self.members[at].follow(looks));
        self.follow_tunnels(looks);
        if let Some(wake) = wake {
            // The answers of this host to what comes in are there as soon as that is written.
            round_robin.begin_with(usize::from(wake.outside));
        }
        let before = self.common.taken;
        let more = round_robin.round(self.settings[0].sharing.budget, |from, left| match (from, wake) {
            // A call for each side whose port is known to have nothing would be most of the work for a lone packet.
            (0, Some(Wake { inside: false, .. }))
                if self.common.taken == before && self.active.is_empty() && !self.has_waiting() =>
            {
                Ok(Polled::Idle)
            }
            (0, _) => self.outward(now, left),
            (_, Some(Wake { outside: false, .. })) if !self.has_waiting() => Ok(Polled::Idle),
            (..) => self.inward(now, left),
        })?;
        self.round_robin = round_robin;
        // What waits for a blocked port may have the memory that another port lacks.
        let more = more && (!self.is_blocked() || self.common.taken != before);
        Ok(if more || self.can_serve() { Round::More } else { Round::Idle })
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
        self.followed.iter().for_each(|&at| self.members[at].inside.wait_for_link(wait));
        if let Some(watch) = &self.tunnels.watch {
            wait(Interest { fd: watch.fd(), read: true, write: false });
        }
    }

    fn woken(&mut self, place: usize) {
        let insides = if self.ready.is_some() { 1 } else { self.members.len() };
        // The outside port has two interests.
        let links = insides + self.blocked.len() + 2;
        if let Some(&at) = place.checked_sub(links).and_then(|place| self.followed.get(place)) {
            return self.members[at].inside.woken_by_link();
        }
        if place >= links {
            self.tunnels.told = true;
            return;
        }
        let wake = self.wake.get_or_insert_default();
        wake.inside |= place < insides;
        // A port that is writable again wakes the loop as well; what waits for it is asked for by itself.
        wake.outside |= place >= insides;
        match self.members.get_mut(place) {
            _ if place == insides + self.blocked.len() => self.common.outside.woken(0),
            _ if place >= insides => {}
            // Which port it was is found when they are read.
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

    fn sent(&self) -> Option<u64> {
        let insides = self.members.iter().map(|member| member.inside.sent());
        Some(insides.sum::<u64>() + self.common.outside.sent())
    }

    fn deadline(&self) -> Option<Nanos> {
        // Packets held while an inside port is blocked wait for that port anyway.
        if !self.blocked.is_empty() {
            return None;
        }
        self.due.iter().filter_map(|&at| self.members[at].deadline()).min()
    }

    fn close(&mut self) -> bool {
        self.common.outside.polls.closed = true;
        // Readability of the interfaces is no longer of interest.
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
            // All tunnels of one kind have the same number of counters.
            count.get_or_insert(sink.place() - before);
        }
        let outside = common.outside.name.as_str();
        common.outside.collect(common.verified + common.cuts.checksummed, sink);
        common.queues.collect(outside, sink);
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
