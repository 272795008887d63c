//! One of the tunnels that share an outside port: its interface, encapsulation and decapsulation.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use segue::encap::{
    self, DecapRefusal, Decapsulator, Destination, Df, EncapRefusal, Encapsulator, Fdb, Fit, Identity, Received, Tos,
};
use segue::gro::{self, Gro, Popped};
use segue::gso;
use segue::packet::{self, Csum, Frag, Frame, Outer, Packet, Start, Tunnels, Unit};
use segue::reason::{Counts, Reason};
use segue::time::Nanos;
use segue::wire::{ethernet, ipv4, ipv6, protocol, read_u16, udp};
use segue_port::{Page, PageMut, Polled};

use super::common::Common;
use super::dropped::Dropped;
use super::parts::Parts;
use super::path_mtu::PathMtu;
use super::probe::{self, Kind, Message, Probe};
use super::queue::Direction;
use crate::board::{Group, Sink, Stage};
use crate::endpoint::{self, Endpoint};
use crate::forward::DropReason;
use crate::icmp::{self, Limiter};
use crate::ingress::{Ingress, Traffic, packets};
use crate::tuning::{Remcsum, Settings};

/// Rate limit of the ICMP errors of one tunnel: rate per second, and burst. They all say that a packet is too
/// big, which senders depend on, so the limit only keeps a flood from doubling itself.
const ERRORS: (u32, u32) = (10_000, 1000);

/// Rate limit of the replies to probes of one tunnel, like [`ERRORS`]. The other end asks at most four times a second,
/// but a lower limit would let forged requests use up its replies. They amplify nothing: a reply has as many bytes as
/// its request, and goes to the configured remote.
const ANSWERS: (u32, u32) = ERRORS;

/// Most packets and trains that wait for the socket before no more copies of a frame are made for other remotes.
const MOST_COPIES: usize = 8192;

/// Key of the counter of datagrams from the remote end that a tunnel has decapsulated.
pub const RECEIVED: &str = "received";
/// Key of the counter of datagrams from the remote end that a tunnel has refused.
pub const REFUSED: &str = "refused";
/// Key of the reason of the last refusal: 0 without one, else 1 more than its [`index`](Reason::index) among
/// [`DecapRefusal`].
pub const REFUSED_FOR: &str = "refused_for";

/// Counters of datagrams from a tunnel's remotes: those accepted for this tunnel, and those refused.
#[derive(Debug, Default)]
struct Arrivals {
    received: u64,
    refused: u64,
    why: Option<DecapRefusal>,
}

impl Arrivals {
    fn refuse(&mut self, why: DecapRefusal) {
        self.refused += 1;
        self.why = Some(why);
    }

    fn collect(&self, name: &str, sink: &mut Sink<'_>) {
        sink.put(name, Group::Port, RECEIVED, self.received);
        sink.put(name, Group::Port, REFUSED, self.refused);
        sink.put(name, Group::Port, REFUSED_FOR, self.why.map_or(0, |why| 1 + why.index() as u64));
    }
}

/// Returns whether a packet that was parsed without tunnels is a datagram of one of them.
fn is_inside(tunnels: &Tunnels, packet: &Packet<Page>) -> bool {
    *tunnels != Tunnels::NONE
        && packet.transport().is_some_and(|(kind, header)| {
            kind == packet::Kind::Udp && read_u16(header, udp::DST_PORT).is_some_and(|port| tunnels.has(port))
        })
}

/// One tunnel of the pipeline: its interface, encapsulation, decapsulation and remotes.
pub(super) struct Member {
    pub(super) inside: Endpoint,
    pub(super) encap: Encapsulator,
    decap: Decapsulator,
    pub(super) remotes: Vec<IpAddr>,
    /// Index of the tunnel among those that share the outside port.
    index: usize,
    /// Index of the tunnel's first remote among the outside port's peers.
    first_peer: u16,
    fdb: Option<Fdb>,
    flood: Vec<u16>,
    gro: Option<Gro<Page>>,
    /// Whether GRO is on.
    pub(super) joins: bool,
    /// UDP ports of tunnels inside this one whose packets are joined.
    tunnels: Tunnels,
    path_mtu: PathMtu,
    probe: Option<Arc<Probe>>,
    answers: Limiter,
    errors: Limiter,
    /// Number of ICMP errors that were not sent, for the rate limit or since the interface did not take them.
    untold: u64,
    /// Ingress stage of the outbound direction.
    outward: Ingress,
    /// Ingress stage of the inbound direction.
    inward: Ingress,
    wrapped: Traffic,
    encap_drops: Counts<EncapRefusal>,
    arrivals: Arrivals,
    pub(super) split_drops: Counts<gso::Refusal>,
    /// Whether ICMP errors to inner senders are queued.
    told_senders: bool,
    /// Share of the member's summed bytes and learned addresses that the common counters already contain.
    told: ([u64; 3], u64),
    /// Whether the tunnel is in the list of tunnels with packets to deliver.
    pub(super) is_due: bool,
    /// Whether the tunnel is in the list of tunnels with packets to read.
    pub(super) is_active: bool,
    /// Whether counters may have changed since they were last published.
    moved: Cell<bool>,
}

impl Member {
    pub(super) fn new(mut parts: Parts, index: usize, first_peer: u16) -> Member {
        if let Some(remote) = parts.remotes.first() {
            parts.encap.aim(*remote, first_peer);
        }
        Member {
            inside: Endpoint::new(parts.inside_name, parts.inside),
            encap: parts.encap,
            decap: parts.decap,
            remotes: parts.remotes,
            index,
            first_peer,
            fdb: parts.fdb,
            flood: parts.flood,
            joins: parts.gro.is_some(),
            tunnels: Tunnels::NONE,
            gro: parts.gro.map(Gro::new),
            path_mtu: PathMtu::default(),
            probe: parts.probe,
            answers: Limiter::new(ANSWERS.0, ANSWERS.1, Nanos(0)),
            errors: Limiter::new(ERRORS.0, ERRORS.1, Nanos(0)),
            untold: 0,
            outward: Ingress::default(),
            inward: Ingress::default(),
            wrapped: Traffic::default(),
            encap_drops: Counts::default(),
            arrivals: Arrivals::default(),
            split_drops: Counts::default(),
            told_senders: false,
            told: ([0; 3], 0),
            is_due: false,
            is_active: false,
            moved: Cell::new(true),
        }
    }

    /// Joins what is inside of packets for the given UDP ports of tunnels, if the interface takes trains inside of
    /// tunnels. Returns whether GRO has released what it held.
    pub(super) fn join_inside(&mut self, tunnels: Tunnels) -> bool {
        // One that has refused such a train takes none any more.
        let tunnels = if self.inside.port.limits().udp_tunnel { tunnels } else { Tunnels::NONE };
        let Some(gro) = self.gro.as_mut().filter(|_| self.tunnels != tunnels) else { return false };
        self.tunnels = tunnels;
        self.inside.takes_tunnels = tunnels != Tunnels::NONE;
        gro.reconfigure(gro::Config { tunnels, ..*gro.config() });
        true
    }

    /// Reads the state of the guest or interface behind the inside port.
    pub(super) fn follow(&mut self, looks: bool) {
        self.inside.listen(looks);
        self.moved.set(true);
    }

    /// Receives at most `left` packets from the interface into the batch; `left` is reduced by as many.
    pub(super) fn receive(&mut self, common: &mut Common, now: Nanos, left: &mut usize) -> io::Result<Polled> {
        let polled = self.inside.poll(&mut common.rx, left)?;
        common.taken += common.rx.packets.len() as u64;
        if !common.rx.packets.is_empty() {
            self.moved.set(true);
            let peers = self.first_peer..self.first_peer.saturating_add(self.remotes.len() as u16);
            self.path_mtu.query(&*common.outside.port, peers, self.encap.config().overhead(), now);
        }
        Ok(polled)
    }

    /// Sends all packets of the batch through the tunnel.
    pub(super) fn send_all(&mut self, common: &mut Common, now: Nanos) -> io::Result<()> {
        // As a list, like in `GroStage::push_all`.
        let mut list = Vec::from(std::mem::take(&mut common.rx.packets));
        self.outward.share_cuts(&mut common.cuts);
        for received in list.drain(..) {
            let packet = received.parse(&mut common.rx.pool);
            self.send_parsed(packet, common, now);
        }
        self.outward.share_cuts(&mut common.cuts);
        common.rx.packets = VecDeque::from(list);
        self.tell_senders(common)?;
        common.outside.transmit(&mut common.rx, &mut self.split_drops)
    }

    /// Appends a packet or train to the outside port's batch.
    pub(super) fn send_one(&mut self, packet: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        self.outward.share_cuts(&mut common.cuts);
        self.send_parsed(packet, common, now);
        self.outward.share_cuts(&mut common.cuts);
    }

    /// Appends a packet or train like [`send_one`](Self::send_one), with the common counters of segmentation in place.
    #[inline]
    fn send_parsed(&mut self, packet: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        self.moved.set(true);
        let mut next = self.outward.enter(packet, &mut common.rx, &mut self.split_drops);
        while let Some(packet) = next {
            self.fit(packet, common, now);
            next = self.outward.more();
        }
    }

    /// Appends the packets of a train to the outside port's batch, without the first, which is dropped.
    pub(super) fn send_without_first(&mut self, train: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        self.moved.set(true);
        self.outward.share_cuts(&mut common.cuts);
        self.outward.cut(train, &mut common.rx, &mut self.split_drops);
        if let Some(first) = self.outward.more() {
            common.rx.pool.put(first);
        }
        while let Some(packet) = self.outward.more() {
            self.fit(packet, common, now);
        }
        self.outward.share_cuts(&mut common.cuts);
    }

    /// Sends the queued ICMP errors about packets that were too big.
    pub(super) fn tell_senders(&mut self, common: &mut Common) -> io::Result<()> {
        if std::mem::take(&mut self.told_senders) && !self.inside.blocked {
            self.inside.transmit(&mut common.rx, &mut self.split_drops)?;
        }
        Ok(())
    }

    /// Sends a packet in the form that fits the path.
    fn fit(&mut self, packet: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        let mut fit = self.path_mtu.inside.map_or(Fit::Fits, |mtu| encap::fit(&packet, mtu));
        if let (true, Some(fdb)) = (fit != Fit::Fits, &self.fdb) {
            fit = self.path_mtu.fit_to_remote(&packet, fdb, now).unwrap_or(fit);
        }
        match fit {
            Fit::Fits => self.wrap(packet, common, now),
            Fit::Fragment => self.wrap_in_fragments(packet, common, now),
            // It is refused under its reason. An error would lower this host's own path MTU to the remote.
            Fit::TooBig(_) if self.encap.is_own(&packet) => self.wrap(packet, common, now),
            Fit::TooBig(mtu) => {
                self.send_packet_too_big(packet, mtu, common, now);
                self.told_senders = true;
            }
        }
    }

    /// Sends a packet that exceeds the path MTU and may be fragmented, in fragments of the outer packet.
    fn wrap_in_fragments(&mut self, packet: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        self.path_mtu.fragments = true;
        self.wrap(packet, common, now);
        self.path_mtu.fragments = false;
    }

    /// Drops a packet that exceeds the path MTU and must not be fragmented, and sends an ICMP error to its sender,
    /// where the rate limit allows.
    fn send_packet_too_big(&mut self, packet: Box<Packet<Page>>, mtu: usize, common: &mut Common, now: Nanos) {
        common.drops.add_many(Dropped::PathMtu, packets(&packet));
        if icmp::kind_of(&packet, DropReason::TooBig).is_some() && !encap::is_to_group(&packet) {
            let page = self.inside.error_page(&mut common.replies).filter(|_| self.errors.take(now));
            self.untold += u64::from(page.is_none());
            if let Some(mut page) = page
                && let Some(len) = encap::too_big(&packet, mtu, page.bytes_mut())
            {
                let start = if self.encap.config().mode.is_ethernet() { Start::Ethernet } else { Start::Ip };
                let mut error = common.rx.pool.take();
                error.load(Frag::all(page.freeze(len)), start, &Tunnels::NONE);
                self.inside.push(error, &mut common.rx, &mut self.split_drops);
            }
        }
        common.rx.pool.put(packet);
    }

    /// Sends a packet through the tunnel, or a frame to each of its remotes.
    fn wrap(&mut self, packet: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        let Some(fdb) = &self.fdb else { return self.send(packet, common) };
        let to = packet.head.bytes().get(ethernet::DST).and_then(|mac| mac.first_chunk());
        match to.map_or(Destination::Flood, |mac| fdb.lookup(*mac, now)) {
            Destination::Remote(remote) => self.aim_and_send(remote, packet, common),
            Destination::Flood => {
                let flood = std::mem::take(&mut self.flood);
                if let [others @ .., last] = &flood[..] {
                    for (at, remote) in others.iter().enumerate() {
                        if common.outside.waiting() >= MOST_COPIES {
                            common.drops.add_many(Dropped::FloodFull, packets(&packet) * (others.len() - at) as u64);
                            break;
                        }
                        let mut copy = common.rx.pool.take();
                        copy.copy_from(&packet);
                        self.aim_and_send(*remote, copy, common);
                    }
                    self.aim_and_send(*last, packet, common);
                } else {
                    common.drops.add_many(Dropped::NoRemote, packets(&packet));
                    common.rx.pool.put(packet);
                }
                self.flood = flood;
            }
        }
    }

    fn aim_and_send(&mut self, remote: u16, packet: Box<Packet<Page>>, common: &mut Common) {
        if let Some(address) = self.remotes.get(usize::from(remote)) {
            self.encap.aim(*address, self.first_peer + remote);
        }
        self.send(packet, common);
    }

    fn send(&mut self, mut packet: Box<Packet<Page>>, common: &mut Common) {
        self.wrapped.add(&packet);
        match self.encap.push(&mut packet) {
            Ok(()) => {
                common.remote.sent += remotely(&packet);
                if let (true, Some(outer)) = (self.path_mtu.fragments, &mut packet.outer) {
                    outer.df = false;
                }
                common.outside.push(packet, &mut common.rx, &mut self.split_drops);
            }
            Err(why) => {
                self.encap_drops.add_many(why, packets(&packet));
                common.rx.pool.put(packet);
            }
        }
    }

    /// Decapsulates a datagram from `remote` and passes the packet to GRO, or directly to the inside port.
    pub(super) fn take(&mut self, datagram: Page, remote: u16, tos: u8, common: &mut Common, now: Nanos) {
        self.moved.set(true);
        let meta = Received { tos, csum: common.outer_csum, sum: None };
        let mut datagram = Frag::all(datagram);
        // GRO recognises most packets by a few bytes. The port inside takes parsed packets.
        if self.joins {
            match self.decap.pull_frame(datagram, &meta) {
                Ok(frame) if self.is_known_inside(&frame) => {
                    // What is known is the checksum of the tunnel's own datagram.
                    let packet = frame.parse(&Tunnels::NONE, &mut common.rx.pool);
                    return self.take_packet(packet, remote, common, now);
                }
                Ok(frame) => return self.take_frame(frame, remote, common, now),
                Err(back) => datagram = back,
            }
        }
        let mut packet = common.rx.pool.take();
        if let Err(why) = self.decap.pull(datagram, &meta, &mut packet) {
            common.decap_drops.add(why);
            self.arrivals.refuse(why);
            return common.rx.pool.put(packet);
        }
        self.take_packet(packet, remote, common, now);
    }

    /// Passes a parsed inner packet to GRO, or directly to the inside port.
    fn take_packet(&mut self, packet: Box<Packet<Page>>, remote: u16, common: &mut Common, now: Nanos) {
        self.arrivals.received += 1;
        if !self.accepts(packet.head.bytes(), remote, now) {
            common.decap_drops.add(DecapRefusal::InnerSource);
            return common.rx.pool.put(packet);
        }
        common.unwrapped.add(&packet);
        common.remote.received += u64::from(packet.offload.unit == Unit::Whole(Csum::Partial));
        match &mut self.gro {
            Some(gro) if self.joins => {
                common.joined.add(&packet);
                let is_tunnel = is_inside(&self.tunnels, &packet);
                if is_tunnel {
                    // GRO does not find it to be of the flow of a train inside that tunnel, which must not overtake it.
                    gro.flush();
                }
                gro.push(packet, now, &mut common.rx.pool);
                if is_tunnel {
                    gro.flush();
                }
            }
            _ => self.enter(packet, common, now),
        }
    }

    /// Returns whether a frame with a known checksum may be a datagram of a tunnel inside this one, whose packets GRO
    /// joins: what it takes for the checksum of the packet in that tunnel is that of the datagram.
    #[inline(always)]
    fn is_known_inside(&self, frame: &Frame<Page>) -> bool {
        if frame.csum == Csum::Unknown || self.tunnels == Tunnels::NONE {
            return false;
        }
        let bytes = frame.bytes.as_slice().unwrap_or(&[]);
        let number = match bytes.get(ethernet::LEN).map(|first| first >> 4) {
            Some(4) => bytes.get(ethernet::LEN + ipv4::PROTOCOL),
            _ => bytes.get(ethernet::LEN + ipv6::NEXT_HEADER),
        };
        number != Some(&protocol::TCP)
    }

    /// Passes an unparsed inner packet to GRO.
    #[inline(always)]
    fn take_frame(&mut self, frame: Frame<Page>, remote: u16, common: &mut Common, now: Nanos) {
        self.arrivals.received += 1;
        let is_ethernet = self.encap.config().mode.is_ethernet();
        if is_ethernet && !self.accepts(frame.bytes.as_slice().unwrap_or(&[]), remote, now) {
            return common.decap_drops.add(DecapRefusal::InnerSource);
        }
        common.unwrapped.add_frame(frame.len());
        common.remote.received += u64::from(frame.csum == Csum::Partial);
        if let Some(gro) = &mut self.gro {
            common.joined.add_frame(frame.len());
            gro.push_from(&mut Some(frame), Option::as_ref, Option::take, now, &mut common.rx.pool);
        }
    }

    /// Returns whether the tunnel can have a probe.
    pub(super) fn has_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Handles a GUE control message from `remote`: a `message` of the probe, or an unknown one.
    pub(super) fn control(&mut self, message: Option<Message>, remote: u16, common: &mut Common, now: Nanos) {
        self.moved.set(true);
        let probe = self.probe.as_ref().filter(|probe| probe.interval() != 0).map(Arc::clone);
        let (Some(message), Some(probe)) = (message, probe) else {
            common.decap_drops.add(DecapRefusal::GueControl);
            // A probe that this end does not take part in is no sign of a fault.
            if message.is_none() {
                self.arrivals.refuse(DecapRefusal::GueControl);
            }
            return;
        };
        let config = self.encap.config();
        if !config.identities().any(|own| own == message.identity) {
            let why = match (message.identity, config.mode.gre()) {
                (Identity::Gre(_, is_ethernet), Some(_)) if is_ethernet == config.mode.is_ethernet() => {
                    DecapRefusal::GreMismatch
                }
                _ => DecapRefusal::InnerProtocol,
            };
            common.decap_drops.add(why);
            return self.arrivals.refuse(why);
        }
        if message.kind == Kind::EchoReply {
            if probe.receive_reply(message.nonce) {
                self.arrivals.received += 1;
            } else {
                common.drops.add(Dropped::ProbeUnasked);
            }
            return;
        }
        self.arrivals.received += 1;
        probe.note_peer_request();
        let reply = probe::outgoing(config).map(|identity| Message { kind: Kind::EchoReply, identity, ..message });
        // It waits for a blocked port, like the packets in front of it.
        let page = common.replies.take().filter(|_| self.answers.take(now));
        match reply.zip(page) {
            Some((reply, page)) => self.send_control(&reply.bytes(), page, remote, common),
            None => common.drops.add(Dropped::ProbeLimit),
        }
    }

    /// Sends a control message to `remote`.
    fn send_control(&mut self, bytes: &[u8], mut page: PageMut, remote: u16, common: &mut Common) {
        page.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let mut packet = common.rx.pool.take();
        packet.load(Frag::all(page.freeze(bytes.len())), Start::Ip, &Tunnels::NONE);
        let tos = match self.encap.config().tos {
            Tos::Fixed(tos) => tos & 0xfc,
            Tos::Inherit => 0,
        };
        let df = self.encap.config().df != Df::Unset;
        packet.outer = Some(Outer { to: self.first_peer + remote, tos, df, ..Outer::default() });
        common.outside.push(packet, &mut common.rx, &mut self.split_drops);
    }

    /// Learns the sender of an Ethernet frame, and returns whether the frame is accepted. Returns `false` for a frame
    /// that this end has sent itself.
    fn accepts(&mut self, frame: &[u8], remote: u16, now: Nanos) -> bool {
        if self.encap.config().mode.is_ethernet()
            && let Some(source) = frame.get(ethernet::SRC).and_then(|mac| mac.first_chunk())
        {
            // As Linux's devices do: a frame that this end has sent has come back, and learning from it would be wrong.
            if self.inside.mac(now) == Some(*source) {
                return false;
            }
            if let Some(fdb) = &mut self.fdb {
                fdb.learn(*source, remote, now);
            }
        }
        true
    }

    fn enter(&mut self, packet: Box<Packet<Page>>, common: &mut Common, now: Nanos) {
        if common.queues_in {
            return common.queues.push(Direction::Inward, self.index, packet, now);
        }
        let Member { inward, inside, split_drops, .. } = self;
        inward.swap_traffic(&mut common.entered);
        inward.each(packet, &mut common.rx, split_drops, |packet, rx, drops| inside.push(packet, rx, drops));
        inward.swap_traffic(&mut common.entered);
    }

    /// Delivers a queued packet, without its first segment if that is to be dropped.
    pub(super) fn enter_waiting(
        &mut self,
        packet: Box<Packet<Page>>,
        loses_first: bool,
        common: &mut Common,
    ) -> io::Result<()> {
        self.moved.set(true);
        let Member { inward, inside, split_drops, .. } = self;
        inward.swap_traffic(&mut common.entered);
        if loses_first {
            inward.cut(packet, &mut common.rx, split_drops);
            if let Some(first) = inward.more() {
                common.rx.pool.put(first);
            }
            while let Some(packet) = inward.more() {
                inside.push(packet, &mut common.rx, split_drops);
            }
        } else {
            inward.each(packet, &mut common.rx, split_drops, |packet, rx, drops| inside.push(packet, rx, drops));
        }
        inward.swap_traffic(&mut common.entered);
        self.inside.transmit(&mut common.rx, &mut self.split_drops)
    }

    /// Delivers all packets that GRO releases, or queues them. Returns whether it holds others back.
    pub(super) fn deliver(&mut self, common: &mut Common, now: Nanos) -> io::Result<bool> {
        self.moved.set(true);
        if let Some(gro) = &mut self.gro {
            // With a hold time of 0 everything is due.
            gro.expire(now);
        }
        let Member { gro, inward, inside, split_drops, index, .. } = self;
        if let (Some(gro), true) = (&mut *gro, common.queues_in) {
            while let Some(popped) = gro.pop_unparsed() {
                let packet = match popped {
                    Popped::Packet(packet) => packet,
                    Popped::Frame(frame) => frame.parse(&Tunnels::NONE, &mut common.rx.pool),
                };
                common.queues.push(Direction::Inward, *index, packet, now);
            }
        }
        inward.swap_traffic(&mut common.entered);
        if let Some(gro) = gro {
            inside.push_released(gro, inward, &mut common.rx, split_drops);
        }
        inward.swap_traffic(&mut common.entered);
        self.inside.transmit(&mut common.rx, &mut self.split_drops)?;
        self.tell(common);
        Ok(self.deadline().is_some())
    }

    /// Adds the increments since the last call to the common counters.
    fn tell(&mut self, common: &mut Common) {
        let fdb = self.fdb.as_ref().map_or([0; 3], Fdb::counts);
        let verified = self.gro.as_ref().map_or(0, |g| g.stats().checksummed_bytes) + self.decap.checksummed_bytes();
        for (sum, (new, old)) in common.fdb.iter_mut().zip(fdb.iter().zip(&self.told.0)) {
            *sum += new - old;
        }
        common.verified += verified - self.told.1;
        self.told = (fdb, verified);
    }

    /// Ends all trains that GRO holds.
    pub(super) fn release(&mut self) {
        if let Some(gro) = &mut self.gro {
            gro.flush();
        }
    }

    /// Returns the time at which a held packet is due even without arrivals.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.gro.as_ref().and_then(Gro::deadline)
    }

    /// Returns whether the tunnel has a forwarding table.
    pub(super) fn learns(&self) -> bool {
        self.fdb.is_some()
    }

    /// Applies the settings; GRO releases what it holds.
    pub(super) fn settle(&mut self, settings: &Settings) {
        self.inside.set_egress(settings.egress[0]);
        self.inside.polls.weight = settings.sharing.weights[0] as usize;
        (self.inward.cuts, self.outward.cuts) = (settings.cuts(0), settings.cuts(1));
        if let (Some(gro), Some(wanted)) = (&mut self.gro, &settings.gro[0]) {
            self.joins = wanted.on;
            let config = wanted.config(&settings.protocols, settings.sharing.hold(wanted.hold()));
            gro.reconfigure(gro::Config { tunnels: self.tunnels, ..config });
        }
        if let Remcsum::Can(on) = settings.remcsum {
            self.encap.set_remcsum(on);
        }
        if let (Some(probe), Some(interval)) = (&self.probe, settings.probe) {
            probe.set_interval(interval);
        }
    }

    /// Writes the tunnel's counters; skips them if `count`, their number, is known and none has changed.
    pub(super) fn collect(&self, count: Option<usize>, sink: &mut Sink<'_>) {
        if !self.moved.replace(false) && count.is_some_and(|count| sink.skip(count)) {
            return;
        }
        let name = self.inside.name.as_str();
        self.inside.collect(self.inward.checksummed(), sink);
        self.outward.collect_traffic(name, sink);
        self.inward.collect_cuts(name, sink);
        self.wrapped.collect(name, Stage::Encap, sink);
        self.arrivals.collect(name, sink);
        sink.put(name, Group::Port, "icmp_errors_limited", self.untold);
        sink.reasons(name, Group::Drops, &self.encap_drops);
        sink.reasons(name, Group::Drops, &self.split_drops);
        if let Some(gro) = &self.gro {
            endpoint::collect_gro(name, gro.stats(), sink);
        }
    }
}

/// Returns the number of packets in `packet` that use remote checksum offload.
fn remotely(packet: &Packet<Page>) -> u64 {
    match (packet.offload.layers().first().and_then(|layer| layer.remote), packet.offload.unit) {
        (None, _) => 0,
        (Some(_), Unit::Whole(_)) => 1,
        (Some(_), Unit::Train { gso, .. }) => gso.segs(packet.payload.len()) as u64,
    }
}
