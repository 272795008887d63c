//! The transmit side that every pipeline has at each of its ports: sending the batch, splitting refused trains again,
//! and the port's counters.

use std::io;

use segue::gro::{self, Gro, Popped};
use segue::gso;
use segue::gso::{Arena, Limits, Refusal};
use segue::packet::{Frame, Gso, Kind, Packet, Tunnels, Unit};
use segue::reason::Counts;
use segue::time::Nanos;
use segue_port::{Blocked, Extra, MIN_PAGE_LEN, Page, PageMut, PagePool, Polled, Port, RxBatch, Sent, TxBatch};

use crate::board::{Group, Sink, Stage};
use crate::ingress::{Ingress, Traffic, packets};
use crate::napi::Polls;
use crate::pipeline::Interest;
use crate::tuning::{EgressSettings, is_verified_tcp, without_trains};

/// Interval at which the Ethernet address of an interface is queried while packets arrive, nanoseconds.
const MAC_QUERY_INTERVAL: u64 = 1_000_000_000;

/// Largest number of replies that wait to be sent.
const MOST_REPLIES: usize = 256;

/// Returns memory for what a tunnel sends by itself: ICMP errors, and replies to probes. One of them must not occupy a
/// page, which is as long as many packets, that packets are received into.
pub(crate) fn reply_pages() -> PagePool {
    PagePool::with_page_len(MOST_REPLIES, MIN_PAGE_LEN)
}

/// A port with the packets that wait to leave through it.
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) port: Box<dyn Port>,
    tx: TxBatch,
    /// Whether the port's queue was full at the last transmission; the remaining packets wait in `tx`.
    pub(crate) blocked: bool,
    /// Number of payload bytes that were summed to complete checksums for this port.
    completed: u64,
    /// Whether trains are sent whole only if the kernel that segments them restores the packets of which they were
    /// made. A virtio-net header cannot say that an IPv4 identification is constant: a kernel increments it.
    pub(crate) exact: bool,
    egress: EgressSettings,
    /// Length of the longest IP packet in bytes, and the treatment of longer ones, for an endpoint that enforces an
    /// MTU.
    mtu: Option<(usize, gso::Fragment)>,
    seen: Traffic,
    pub(crate) polls: Polls,
    /// Number of trains that were segmented for the port.
    cut: u64,
    made: u64,
    whole: u64,
    /// Whether trains inside of tunnels, which the port may take, are all for a device of such a tunnel: any other
    /// socket would receive one as a long datagram.
    pub(crate) takes_tunnels: bool,
    /// Memory for cutting trains whose segments do not all fit.
    arena: Arena,
    /// Whether the interface's state may have changed, or the port has begun longer work.
    told: bool,
    /// Number of parts of longer work that the port has done.
    work: u64,
    /// The error of an interface that is gone.
    gone: Option<io::Error>,
    /// The interface's own Ethernet address, and the time at which it was read.
    own: Option<(Option<[u8; 6]>, Nanos)>,
}

impl Endpoint {
    /// Returns an endpoint with an empty batch.
    pub(crate) fn new(name: String, port: Box<dyn Port>) -> Endpoint {
        Endpoint {
            name,
            port,
            tx: TxBatch::default(),
            blocked: false,
            completed: 0,
            exact: false,
            egress: EgressSettings::default(),
            mtu: None,
            seen: Traffic::default(),
            polls: Polls::default(),
            cut: 0,
            made: 0,
            whole: 0,
            takes_tunnels: false,
            arena: Arena::new(),
            told: true,
            work: 0,
            gone: None,
            own: None,
        }
    }

    /// Returns the interface's Ethernet address, which may be changed at any time.
    pub(crate) fn mac(&mut self, now: Nanos) -> Option<[u8; 6]> {
        match self.own {
            Some((mac, asked)) if now.0.saturating_sub(asked.0) < MAC_QUERY_INTERVAL => mac,
            _ => {
                let mac = self.port.mac();
                self.own = Some((mac, now));
                mac
            }
        }
    }

    /// Returns whether no packet is queued to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.tx.is_empty()
    }

    /// Returns the number of queued packets and trains.
    pub(crate) fn waiting(&self) -> usize {
        self.tx.len()
    }

    /// Drops the packets that wait to be sent. Returns the number of packets.
    pub(crate) fn drop_waiting(&mut self, rx: &mut RxBatch) -> u64 {
        let packets = self.tx.units().map(|unit| unit.segments() as u64).sum();
        self.tx.sent(self.tx.len());
        self.tx.recycle(&mut rx.pool);
        self.blocked = false;
        packets
    }

    /// Sets the segmentation and limits for packets that leave from now on.
    pub(crate) fn set_egress(&mut self, egress: EgressSettings) {
        self.egress = egress;
        self.port.limit_burst(egress.burst());
    }

    /// Returns the limits of the packets and trains that the port accepts.
    fn limits(&self) -> Limits {
        let mut limits = self.egress.narrow(*self.port.limits());
        if !self.takes_tunnels {
            limits.refuse_tunnels();
        }
        match self.mtu {
            // A port that follows its interface has the interface's MTU, which may have changed since.
            Some((mtu, fragment)) if limits.mtu == usize::MAX => Limits { mtu, fragment, ..limits },
            Some((_, fragment)) => Limits { fragment, ..limits },
            None => limits,
        }
    }

    /// Sets how packets longer than `mtu`, in bytes of IP, are fragmented; where the port follows its interface, the
    /// interface's MTU applies instead.
    pub(crate) fn fragment_to(&mut self, mtu: usize, how: gso::Fragment) {
        self.mtu = Some((mtu, how));
    }

    /// Sets the key by which fragments are numbered; it should be random.
    pub(crate) fn number_fragments(&mut self, key: segue::hash::Key) {
        self.tx.number_fragments(key);
    }

    /// Reads the interface's state, if it may have changed or `looks` is true. Once the interface is gone,
    /// [`poll`](Self::poll) and [`transmit`](Self::transmit) fail.
    pub(crate) fn listen(&mut self, looks: bool) {
        if self.told || looks {
            if let Err(error) = self.port.listen() {
                self.gone = Some(error);
            }
            self.told = self.port.is_busy();
            self.work += u64::from(self.told);
        }
    }

    /// Receives at most the port's weight and at most `left` packets, and reduces `left` by as many.
    pub(crate) fn poll(&mut self, rx: &mut RxBatch, left: &mut usize) -> io::Result<Polled> {
        self.gone.take().map_or(Ok(()), Err)?;
        self.polls.poll(&mut *self.port, rx, left)
    }

    /// Transmits the batch by the port. Trains that it refuses are split again and sent at once.
    pub(crate) fn transmit(&mut self, rx: &mut RxBatch, drops: &mut Counts<gso::Refusal>) -> io::Result<()> {
        self.gone.take().map_or(Ok(()), Err)?;
        if self.tx.is_empty() {
            return Ok(());
        }
        loop {
            match self.port.transmit(&mut self.tx)? {
                Sent::All => self.blocked = false,
                Sent::Blocked => self.blocked = true,
                Sent::Narrowed => {
                    let limits = self.limits();
                    // Rare: once or twice in the life of a port. Not every train of the batch needs it.
                    let limits = if self.exact { Limits { csum: false, ..without_trains(limits) } } else { limits };
                    self.tx.resplit(&limits, |packet, why| {
                        drops.add_many(why, packets(&packet));
                        rx.pool.put(packet);
                    });
                    continue;
                }
            }
            break;
        }
        self.completed += self.tx.take_checksummed();
        self.tx.recycle(&mut rx.pool);
        Ok(())
    }

    /// Splits a packet for the port and appends it to the batch.
    pub(crate) fn push(&mut self, packet: Box<Packet<Page>>, rx: &mut RxBatch, drops: &mut Counts<gso::Refusal>) {
        self.push_within(packet, usize::MAX, rx, drops);
    }

    /// Appends everything that GRO has released to the batch, through the ingress of the path to this port. Frames that
    /// stayed alone are not parsed for it.
    pub(crate) fn push_released(
        &mut self,
        gro: &mut Gro<Page>,
        ingress: &mut Ingress,
        rx: &mut RxBatch,
        drops: &mut Counts<gso::Refusal>,
    ) {
        // They change when the port sends, or reads the state of its interface.
        let limits = self.limits();
        gro.drain_unparsed(|popped| match popped {
            Popped::Packet(packet) => {
                ingress.each(packet, rx, drops, |packet, rx, drops| self.push(packet, rx, drops));
            }
            Popped::Frame(frame) => {
                ingress.pass(frame.len());
                self.push_frame_within(frame, &limits, rx, drops);
            }
        });
    }

    /// Appends a frame to the batch; it is parsed only if it may need fragmentation, or if a few bytes do not tell
    /// where the checksum is that it owes.
    pub(crate) fn push_frame(&mut self, frame: Frame<Page>, rx: &mut RxBatch, drops: &mut Counts<gso::Refusal>) {
        self.push_frame_within(frame, &self.limits(), rx, drops);
    }

    /// Appends a frame like [`push_frame`](Self::push_frame), with the limits of the port as the caller has them.
    #[inline(always)]
    fn push_frame_within(
        &mut self,
        frame: Frame<Page>,
        limits: &Limits,
        rx: &mut RxBatch,
        drops: &mut Counts<gso::Refusal>,
    ) {
        let len = frame.len();
        match self.tx.push_frame(frame, limits) {
            None => self.seen.add_frame(len),
            Some(frame) => {
                let packet = frame.parse(&Tunnels::NONE, &mut rx.pool);
                self.push(packet, rx, drops);
            }
        }
    }

    /// Returns a page for an ICMP error that leaves through this port; `None` where too many of them wait, or none is
    /// taken since the port is blocked.
    pub(crate) fn error_page(&self, pages: &mut PagePool) -> Option<PageMut> {
        if self.blocked { None } else { pages.take() }
    }

    /// Queues a packet like [`push`](Self::push), with a path MTU that may be below the link's.
    pub(crate) fn push_within(
        &mut self,
        packet: Box<Packet<Page>>,
        mtu: usize,
        rx: &mut RxBatch,
        drops: &mut Counts<gso::Refusal>,
    ) {
        self.seen.add(&packet);
        let mut limits = self.limits();
        limits.mtu = limits.mtu.min(mtu);
        let mut is_train = false;
        if let Unit::Train { gso, csum } = packet.offload.unit {
            is_train = true;
            if self.exact && gso.fixed_ids != 0 {
                limits = without_trains(limits);
            }
            if self.exact && is_verified_tcp(csum, gso) && !is_taken(&packet, gso, &limits) {
                limits = Limits { csum: false, ..without_trains(limits) };
            }
        }
        match self.tx.push(packet, &limits) {
            Ok(1) if is_train => self.whole += 1,
            Ok(made) if is_train => {
                self.cut += 1;
                self.made += made as u64;
            }
            Ok(_) => {}
            Err((train, Refusal::TooBig)) if is_train => self.push_segments(train, &limits, rx, drops),
            Err((packet, why)) => {
                drops.add_many(why, packets(&packet));
                rx.pool.put(packet);
            }
        }
    }

    /// Segments a train whose segments exceed the MTU and appends its packets to the batch one by one: each is
    /// fragmented or refused by itself, as if it had been received alone, and a shorter last one passes.
    fn push_segments(
        &mut self,
        train: Box<Packet<Page>>,
        limits: &Limits,
        rx: &mut RxBatch,
        drops: &mut Counts<Refusal>,
    ) {
        let Endpoint { tx, arena, cut, made, exact, completed, .. } = self;
        let finishes = *exact && matches!(train.offload.unit, Unit::Train { csum, gso } if is_verified_tcp(csum, gso));
        let done = gso::cut(&train, arena, &mut rx.pool, |mut packet, pool| {
            if finishes {
                *completed += gso::finish(&mut packet).unwrap_or(0);
            }
            match tx.push(packet, limits) {
                Ok(units) => *made += units as u64,
                Err((packet, why)) => {
                    drops.add(why);
                    pool.put(packet);
                }
            }
        });
        match done {
            Ok(_) => *cut += 1,
            Err(why) => drops.add_many(why, packets(&train)),
        }
        self.completed += self.arena.take_checksummed();
        rx.pool.put(train);
    }

    /// Returns the number of units that the port has sent, of packets that it has dropped, and of parts of longer work
    /// that it has done.
    pub(crate) fn sent(&self) -> u64 {
        let counters = self.port.counters();
        counters.tx.packets + counters.drops.total() + self.work
    }

    /// Writes the port's counters; `verified` is the number of payload bytes that GRO and cutting on entry summed for
    /// it.
    pub(crate) fn collect(&self, verified: u64, sink: &mut Sink<'_>) {
        let (name, counters) = (self.name.as_str(), self.port.counters());
        for (group, direction) in [(Group::Receive, &counters.rx), (Group::Transmit, &counters.tx)] {
            sink.put(name, group, "packets", direction.packets);
            sink.put(name, group, "bytes", direction.bytes);
            sink.put(name, group, "trains", direction.trains);
            sink.put(name, group, "segments", direction.segments);
            sink.put(name, group, "calls", direction.calls);
        }
        let checksummed = counters.checksummed_bytes + self.completed + verified;
        sink.put(name, Group::Port, "checksummed_bytes", checksummed);
        sink.put(name, Group::Port, "blocked", counters.blocked);
        self.polls.collect(name, sink);
        self.seen.collect(name, Stage::Gso, sink);
        sink.put(name, Group::Gso, "trains_whole", self.whole);
        sink.put(name, Group::Gso, "trains_cut", self.cut);
        sink.put(name, Group::Gso, "packets_made", self.made);
        sink.reasons(name, Group::Drops, &counters.drops);
        sink.reasons(name, Group::Fallbacks, &counters.fallbacks);
        if let Some(link) = self.port.link() {
            sink.put(name, Group::Port, LINK_DOWN, u64::from(!link.is_up && !link.is_gone));
        }
        self.port.extras(&mut |kind, key, value| {
            let group = match kind {
                Extra::Drop => Group::Drops,
                Extra::Number => Group::Port,
            };
            sink.put(name, group, key, value);
        });
    }

    /// Records that one of the endpoint's interests woke the loop; 0 is the interest in reading.
    pub(crate) fn woken(&mut self, interest: usize) {
        self.polls.wake_ups += u64::from(interest == 0);
        self.told |= interest == LINK_INTEREST;
    }

    /// Passes the endpoint's three interests to `wait`: reading, unless the egress port is blocked, so that a slow port
    /// holds back its source; writing while blocked; and the interface's state.
    pub(crate) fn interests(&self, other_blocked: bool, wait: &mut dyn FnMut(Interest<'_>)) {
        self.wait_to_read(other_blocked, wait);
        self.wait_to_write(wait);
        self.wait_for_link(wait);
    }

    pub(crate) fn wait_for_link(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let link = self.port.link_fd();
        wait(Interest { fd: link.unwrap_or(self.port.fd()), read: link.is_some(), write: false });
    }

    /// Records that the state of the interface may have changed.
    pub(crate) fn woken_by_link(&mut self) {
        self.told = true;
    }

    pub(crate) fn wait_to_read(&self, other_blocked: bool, wait: &mut dyn FnMut(Interest<'_>)) {
        wait(Interest { fd: self.port.fd(), read: !other_blocked, write: false });
    }

    /// Passes on the interest in the end of a blockade. It is one in writing also if the event is of reading, so that
    /// the loop knows it from one in packets: such a descriptor is never writable.
    pub(crate) fn wait_to_write(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        let is_readable = self.port.blocked_event() == Blocked::Readable;
        wait(Interest { fd: self.port.blocked_fd(), read: self.blocked && is_readable, write: self.blocked });
    }
}

/// Returns whether a port with these limits accepts a TCP train, whole or as smaller trains.
fn is_taken(train: &Packet<Page>, gso: Gso, limits: &Limits) -> bool {
    let is_v4 = train.layout.inner_ip().is_some_and(|ip| ip.kind == Kind::Ipv4);
    let takes = if is_v4 { limits.tso4 } else { limits.tso6 };
    takes
        && limits.csum
        && train.offload.layers().is_empty()
        && !gso.is_cwr_on_all()
        && limits.max_segs > 1
        && train.head.len() + 2 * usize::from(gso.size) <= limits.max_bytes
}

/// Writes the counters of GRO under the port `name`.
pub(crate) fn collect_gro(name: &str, stats: &gro::Stats, sink: &mut Sink<'_>) {
    sink.put(name, Group::Port, "swallowed", stats.swallowed);
    sink.put(name, Group::Port, "trimmed", stats.trimmed);
    sink.reasons(name, Group::Flushes, &stats.flushes);
    sink.reasons(name, Group::Alone, &stats.alone);
    sink.reasons(name, Group::Mismatches, &stats.mismatches);
}

/// Number of interests that [`Endpoint::interests`] passes on: reading, writing, and the interface's state.
pub(crate) const INTERESTS: usize = 3;
const LINK_INTEREST: usize = 2;
/// Key of the link-down counter, which is 1 while the interface of a port is down.
pub const LINK_DOWN: &str = "link_down";

/// Records that the interest with the index `place`, counted over both endpoints, woke the loop.
pub(crate) fn woken(ends: &mut [Endpoint; 2], place: usize) {
    for (at, end) in ends.iter_mut().enumerate() {
        end.woken(place.wrapping_sub(at * INTERESTS));
    }
}
