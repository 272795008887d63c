//! The state of GRO, and its functions that take packets.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::acks;
use super::config::Config;
use super::fast_path_rules::FastPathRules;
use super::form::Forms;
use super::key::Hasher;
use super::ready::Ready;
use super::rules::{Flush, Masks};
use super::stats::Stats;
use super::table::{FrameMatch, Table};
use super::tunnel_form::TunnelForms;
use crate::arch::{self, Kernel};
use crate::packet::{Csum, Frame, Packet, Pool};
use crate::time::Nanos;

/// A GRO instance: it holds packets by flow and joins them into trains, by the rules of the module's documentation.
/// ```
/// use segue::gro::{Config, Frame, Gro};
/// use segue::hash::Key;
/// use segue::packet::{Csum, Frag, Pool, Start};
/// use segue::time::Nanos;
///
/// let (mut gro, mut pool) = (Gro::new(Config::vpn(Key([1, 2]))), Pool::new(64));
/// # let received = [vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]];
/// for packet in received {
///     let frame = Frame { bytes: Frag::all(packet), start: Start::Ip, csum: Csum::Unknown };
///     gro.push_frame(frame, Nanos::ZERO, &mut pool);
/// }
/// gro.flush();
/// while let Some(train) = gro.pop_from(&mut pool) {
///     pool.put(train); // after it was sent: gso::split, virtio::describe
/// }
/// # assert_eq!(gro.stats().packets, 1);
/// ```
///
/// The packets of one batch may be borrowed instead: [`Joiner`](crate::easy::Joiner).
#[derive(Debug)]
pub struct Gro<B> {
    pub(super) config: Config,
    pub(super) masks: Masks,
    pub(super) forms: Forms,
    pub(super) hasher: Hasher,
    pub(super) rules: FastPathRules,
    /// The implementation that compares headers.
    pub(super) kernel: Kernel,
    pub(super) has_fast_path: bool,
    pub(super) table: Table<B>,
    pub(super) tunnel_forms: TunnelForms,
    pub(super) memory: acks::Memory,
    pub(super) ready: VecDeque<Ready<B>>,
    /// Number of rounds whose flows are still in their slots, ready to be popped.
    pub(super) waiting_rounds: usize,
    /// Number of packets in the table; of held acknowledgments one for each flow.
    pub(super) held_packets: usize,
    /// Number of trains of at least two packets in the table.
    pub(super) held_trains: usize,
    pub(super) stats: Stats,
    /// Numbers of packets that took the slow path and of those judged field by field, which tests of the fast path
    /// check.
    #[cfg(test)]
    pub(super) effort: (usize, usize),
    /// Number of frames that were parsed.
    #[cfg(test)]
    pub(super) parsed: usize,
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Creates an empty engine; limits out of range are brought into their ranges.
    pub fn new(config: Config) -> Gro<B> {
        let config = config.in_range();
        let masks = Masks::new(config.profile);
        Gro {
            forms: Forms::new(&masks),
            masks,
            hasher: Hasher::new(config.key),
            rules: FastPathRules::new(&config),
            kernel: arch::chosen(),
            has_fast_path: true,
            table: Table::new(config.max_flows),
            tunnel_forms: TunnelForms::new(),
            memory: acks::Memory::new(if config.acks { config.max_flows } else { 0 }),
            ready: VecDeque::with_capacity(config.max_flows.max(64)),
            waiting_rounds: 0,
            held_packets: 0,
            held_trains: 0,
            stats: Stats::default(),
            #[cfg(test)]
            effort: (0, 0),
            #[cfg(test)]
            parsed: 0,
            config,
        }
    }

    /// Returns the limits and rules in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces limits and rules, treating them as [`Gro::new`] does; counters are kept. Everything held becomes ready
    /// first, so that no train is made under two sets of rules. The table keeps its size: `max_flows` has no effect.
    pub fn reconfigure(&mut self, config: Config) {
        self.flush();
        self.spill();
        let fresh = Config { max_flows: self.config.max_flows, ..config }.in_range();
        if fresh.acks != self.config.acks {
            self.memory = acks::Memory::new(if fresh.acks { fresh.max_flows } else { 0 });
        }
        if fresh.profile != self.config.profile {
            self.masks = Masks::new(fresh.profile);
            self.forms = Forms::new(&self.masks);
        }
        self.hasher = Hasher::new(fresh.key);
        self.rules = FastPathRules::new(&fresh);
        // They were learned with the ports of tunnels that were in force.
        self.tunnel_forms.clear();
        self.config = fresh;
    }

    /// Returns an instance in which every packet takes the slow path, through the parser and each rule by itself. The
    /// output is that of [`Gro::new`], packet for packet and count for count; tests compare both paths.
    pub fn slow_path_only(config: Config) -> Gro<B> {
        Gro { has_fast_path: false, ..Gro::new(config) }
    }

    /// Returns the counters of this instance.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the number of flows held.
    pub fn held(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of packets held: those of trains, and one for each flow with a held acknowledgment.
    pub fn held_packets(&self) -> usize {
        self.held_packets
    }

    /// Pushes a packet, whose layout must match its bytes. Boxes that are no longer needed are put into `pool`.
    #[inline]
    pub fn push(&mut self, packet: Box<Packet<B>>, now: Nanos, pool: &mut Pool<B>) {
        let left = if self.has_fast_path { self.take_packet_fast(packet, now, pool) } else { Some(packet) };
        if let Some(packet) = left {
            self.take(packet, now, pool);
        }
        self.relieve();
    }

    /// Takes a frame of a batch. The result is the same as parsing it into a packet of `pool` and
    /// [`push`](Gro::push)ing that, but most frames are recognised without being parsed, and only the first of a train
    /// takes a box.
    ///
    /// ```
    /// # use segue::{gro::{Config, Frame, Gro}, packet::{Csum, Frag, Pool, Start}, time::Nanos};
    /// # let (mut gro, mut pool, now) = (Gro::new(Config::default()), Pool::new(64), Nanos::ZERO);
    /// # let received = vec![0x60; 40];
    /// let frame = Frame { bytes: Frag::all(received), start: Start::Ip, csum: Csum::Unknown };
    /// gro.push_frame(frame, now, &mut pool);
    /// assert_eq!(gro.pop_from(&mut pool).map(|packet| packet.len()), Some(40)); // nothing could follow it
    /// ```
    #[inline]
    pub fn push_frame(&mut self, frame: Frame<B>, now: Nanos, pool: &mut Pool<B>) {
        self.push_seen(frame, FrameMatch::Unknown, now, pool);
    }

    /// Takes the next frame of a queue, with the result of [`Gro::push_frame`]. `front` returns the frame, and `take`
    /// removes exactly that one and returns it; a queue without a frame is left as it is. The next segment of a train
    /// is recognised where it lies, and of it only the range of its payload is moved. Where `take` returns another
    /// frame or none, the payload of that train is wrong; debug builds panic.
    ///
    /// ```
    /// # use segue::{gro::{Config, Frame, Gro}, packet::{Csum, Frag, Pool, Start}, time::Nanos};
    /// # let (mut gro, mut pool, now) = (Gro::new(Config::default()), Pool::new(64), Nanos::ZERO);
    /// # let received = vec![0x60; 40];
    /// # let frame = Frame { bytes: Frag::all(received), start: Start::Ip, csum: Csum::Unknown };
    /// let mut queue = std::collections::VecDeque::from([frame]);
    /// gro.push_from(&mut queue, |queue| queue.front(), |queue| queue.pop_front(), now, &mut pool);
    /// assert!(queue.is_empty() && gro.pop_from(&mut pool).is_some());
    /// ```
    #[inline(always)]
    pub fn push_from<Q>(
        &mut self,
        queue: &mut Q,
        front: impl FnOnce(&Q) -> Option<&Frame<B>>,
        take: impl FnOnce(&mut Q) -> Option<Frame<B>>,
        now: Nanos,
        pool: &mut Pool<B>,
    ) {
        let Some((len, found)) = front(queue).map(|frame| (frame.len(), self.recognise(frame))) else { return };
        // Taken out in each case by itself: of a frame that continues or begins a train only a part is needed.
        match found {
            FrameMatch::Continues(idx, header_len) => {
                let taken = take(queue);
                debug_assert_eq!(taken.as_ref().map(Frame::len), Some(len), "another frame was taken than was shown");
                let Some(frame) = taken else { return };
                self.table.get_mut(idx).packet.payload.push(frame.bytes.skip(usize::from(header_len)));
                self.relieve();
            }
            FrameMatch::Starts(first) => {
                let taken = take(queue);
                debug_assert_eq!(taken.as_ref().map(Frame::len), Some(len), "another frame was taken than was shown");
                let Some(frame) = taken else { return };
                let verified = matches!(frame.csum, Csum::Verified);
                self.keep_first(frame.bytes, first, verified, now);
                self.relieve();
            }
            FrameMatch::Plain(..) | FrameMatch::Unknown => {
                let Some(frame) = take(queue) else { return };
                self.push_seen(frame, found, now, pool);
            }
        }
    }

    /// Takes a frame with what was recognised of it.
    #[inline(always)]
    fn push_seen(&mut self, frame: Frame<B>, found: FrameMatch, now: Nanos, pool: &mut Pool<B>) {
        let left = if self.has_fast_path { self.take_frame_fast(frame, found, now, pool) } else { Some(frame) };
        if let Some(frame) = left {
            self.push_unknown(frame, now, pool);
        }
        self.relieve();
    }

    /// Takes a frame that is not recognised as a packet outside tunnels.
    #[inline(never)]
    fn push_unknown(&mut self, frame: Frame<B>, now: Nanos, pool: &mut Pool<B>) {
        let left = if self.has_fast_path { self.take_tunnelled(frame, now, pool) } else { Some(frame) };
        if let Some(frame) = left {
            #[cfg(test)]
            {
                self.parsed += 1;
            }
            let packet = frame.parse(&self.config.tunnels, pool);
            if self.has_fast_path {
                self.tunnel_forms.learn(&packet, &self.masks);
            }
            self.take(packet, now, pool);
        }
    }

    /// Makes trains ready, oldest first, until the limit on held packets is kept.
    #[inline]
    fn relieve(&mut self) {
        while self.held_packets > self.config.max_held_packets
            && let Some(oldest) = self.table.oldest()
        {
            self.finish(oldest, Flush::Pressure);
        }
    }

    /// Pushes a packet like [`Gro::push`], and passes every ready packet to `each`, with the pool to which it may
    /// return boxes.
    pub fn deliver(
        &mut self,
        packet: Box<Packet<B>>,
        now: Nanos,
        pool: &mut Pool<B>,
        each: impl FnMut(Box<Packet<B>>, &mut Pool<B>),
    ) {
        self.push(packet, now, pool);
        self.drain(pool, each);
    }

    /// Expires trains like [`Gro::expire`] at the end of a poll round or of an interrupt, and passes every ready packet
    /// to `each`.
    pub fn end_poll(&mut self, now: Nanos, pool: &mut Pool<B>, each: impl FnMut(Box<Packet<B>>, &mut Pool<B>)) {
        self.expire(now);
        self.drain(pool, each);
    }

    fn drain(&mut self, pool: &mut Pool<B>, mut each: impl FnMut(Box<Packet<B>>, &mut Pool<B>)) {
        while let Some(packet) = self.pop_from(pool) {
            each(packet, pool);
        }
    }
}
