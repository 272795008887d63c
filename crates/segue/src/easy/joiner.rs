//! The joiner: joins the packets of one batch into trains for a device.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::{fmt, mem};

use super::write::{self, Short};
use crate::arch::lent::{Borrower, Lent, Loan};
use crate::checksum::Sum;
use crate::gro::{Config, Gro, Popped, Stats};
use crate::gso::{self, Arena, Limits, Refusal, Segment, SegmentCsum};
use crate::hash::Key;
use crate::packet::{Csum, Frag, Frame, Head, Packet, Pieces, Pool, Start, Tunnels, Unit};
use crate::reason::Counts;
use crate::time::Nanos;
use crate::virtio::{self, Form, VirtioNet};
use crate::wire::Stop;

/// Number of packets that a joiner's pool keeps: trains and lone packets that are ready at a time.
const POOL: usize = 256;

/// A joiner of the packets of a batch into trains. The packets are borrowed for the batch; the joiner's own memory is
/// kept.
///
/// The rules are those of [`Gro`]: only verified segments of one flow join, in order, and what does not fit is passed
/// on as it is. A batch holds nothing back: it ends with every packet given out.
///
/// ```
/// use segue::easy::Joiner;
/// use segue::hash::Key;
///
/// # let received = [vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]];
/// # let mut written = 0;
/// let mut joiner = Joiner::plain(Key([1, 2])); // two random numbers
/// let mut batch = joiner.batch();
/// for packet in &received {
///     batch.push(packet);
/// }
/// while let Some(train) = batch.pop() {
///     written += train.pieces().map(<[u8]>::len).sum::<usize>();
/// }
/// # assert_eq!(written, 20);
/// ```
pub struct Joiner {
    state: State,
    start: Start,
}

struct State {
    gro: Gro<Lent>,
    pool: Pool<Lent>,
    arena: Arena,
    limits: Limits,
    /// The form of the virtio-net header; `None` for none.
    form: Option<Form>,
    /// The train that is being returned, and the next segment of a packet.
    current: Current,
    next: usize,
    /// The virtio-net header and the headers of the train that was popped last.
    front: Vec<u8>,
    header_len: usize,
    /// The virtio-net header of a packet that was not joined.
    lone: [u8; 24],
    refused: Counts<gso::Refusal>,
    /// Number of packets pushed in this batch.
    count: u32,
    is_lent: bool,
}

/// The train that was popped last.
#[derive(Debug, Default)]
enum Current {
    #[default]
    Nothing,
    /// A packet, in the segments of the arena.
    Packet(Box<Packet<Lent>>),
    /// A packet that nothing joined, as it was pushed.
    Lone(Frag<Lent>),
}

impl Borrower for State {
    fn is_stale(&self) -> bool {
        self.is_lent
    }

    fn renew(&mut self) {
        self.gro = Gro::new(*self.gro.config());
        (self.pool, self.current) = (Pool::new(POOL), Current::Nothing);
    }

    fn begin(&mut self) {
        (self.is_lent, self.count, self.next) = (true, 0, 0);
        self.arena.clear();
    }

    fn end(&mut self) {
        self.put_back();
        self.gro.flush();
        while let Some(popped) = self.gro.pop_unparsed() {
            if let Popped::Packet(packet) = popped {
                self.pool.put(packet);
            }
        }
        self.is_lent = false;
    }
}

impl Joiner {
    /// Creates a joiner with the given rules, for a device that accepts trains within `limits`, with a virtio-net
    /// header of the given form. [`Config::hold`] is not used: a batch ends with everything given out.
    pub fn virtio(config: Config, limits: Limits, form: Form) -> Joiner {
        Joiner::new(config, limits, Some(form))
    }

    /// Creates a joiner for a TUN device of Linux with a virtio-net header of 10 bytes, of which the kernel has
    /// accepted the offloads `bits` ([`Limits::tun`]), with the rules for a VPN ([`Config::vpn`]). `key` must be
    /// random.
    pub fn tun(key: Key, bits: u32) -> Joiner {
        Joiner::virtio(Config::vpn(key), Limits::tun(bits), Form::Basic)
    }

    /// Creates a joiner for an interface without virtio-net headers, such as WinTUN, utun or a TUN device opened
    /// plainly: a train is one IP packet of up to 65,535 bytes with its checksum in place ([`Limits::plain`]). `key`
    /// must be random.
    ///
    /// Only for traffic that this host terminates: to forward so large a packet it would have to fragment it.
    pub fn plain(key: Key) -> Joiner {
        Joiner::plain_with(Config::vpn(key))
    }

    /// Creates a joiner like [`Joiner::plain`] with the given rules; with [`Config::max_packets`] below 2, each packet
    /// stays alone.
    pub fn plain_with(config: Config) -> Joiner {
        Joiner::new(config, Limits::plain(), None)
    }

    fn new(config: Config, limits: Limits, form: Option<Form>) -> Joiner {
        let state = State {
            gro: Gro::new(Config { hold: Nanos::ZERO, ..config }),
            pool: Pool::new(POOL),
            arena: Arena::new(),
            limits: described(limits, form),
            form,
            current: Current::Nothing,
            next: 0,
            front: Vec::new(),
            header_len: form.map_or(0, Form::len),
            lone: VirtioNet { num_buffers: 1, ..VirtioNet::default() }.emit(form.unwrap_or(Form::Basic)),
            refused: Counts::default(),
            count: 0,
            is_lent: false,
        };
        Joiner { state, start: Start::Ip }
    }

    /// Returns the joiner changed for packets that begin with the given header, by default an IP header.
    #[must_use]
    pub fn starting_with(mut self, start: Start) -> Joiner {
        self.start = start;
        self
    }

    /// Begins a batch of packets for the joiner. Packets pushed into it are borrowed as long as it lives.
    pub fn batch<'b>(&mut self) -> Batch<'_, 'b> {
        Batch { start: self.start, loan: Loan::new(&mut self.state) }
    }

    /// Changes the limits of the device, after a refused train; the new limits apply to the next batches.
    pub fn set_limits(&mut self, limits: Limits) {
        self.state.limits = described(limits, self.state.form);
    }

    /// Returns the limits of the device.
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }

    /// Returns the counters of joining: how many packets went into how many trains, and why others stayed alone.
    pub fn stats(&self) -> &Stats {
        self.state.gro.stats()
    }

    /// Returns how many packets and trains were dropped because the limits do not allow them, by reason. With limits
    /// without an MTU none is.
    pub fn refused(&self) -> &Counts<gso::Refusal> {
        &self.state.refused
    }
}

impl fmt::Debug for Joiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { limits, form, .. } = &self.state;
        f.debug_struct("Joiner").field("limits", limits).field("form", form).finish_non_exhaustive()
    }
}

/// A batch of packets, each borrowed for `'b`, and the trains into which they are joined.
///
/// Push the packets of one receive call, in the order of their arrival, then pop until nothing comes. Dropping a batch
/// drops what was not popped.
pub struct Batch<'j, 'b> {
    loan: Loan<'j, 'b, State>,
    start: Start,
}

impl fmt::Debug for Batch<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("packets", &self.loan.value().count).finish_non_exhaustive()
    }
}

impl<'b> Batch<'_, 'b> {
    /// Pushes a packet with an unverified checksum, as received from a tunnel or a link. It is verified before anything
    /// joins it. Returns its number in the batch, from 0 on.
    ///
    /// That a cipher has authenticated the packet says nothing about its checksum: the sender may have sealed a packet
    /// with a wrong one, and a train would repair it.
    #[inline]
    pub fn push(&mut self, packet: &'b [u8]) -> usize {
        self.push_with(packet, Csum::Unknown)
    }

    /// Takes a packet with the given state of its checksum: [`Csum::Partial`] if it is owed and the field primed
    /// ([`gso::prime`]), as from a stack that leaves checksums to its device; [`Csum::Verified`] if it was checked. A
    /// packet of another protocol than TCP and UDP, such as ICMP, and a fragment owe nothing that a device completes,
    /// and are passed on as they are: a checksum of SCTP must be right. TCP and UDP behind more headers than are
    /// parsed, or with wrong lengths, are refused.
    #[inline]
    pub fn push_with(&mut self, packet: &'b [u8], csum: Csum) -> usize {
        let start = self.start;
        let number = self.loan.value().count;
        self.loan.lend(packet, number, |state, bytes| {
            state.count += 1;
            let frame = Frame { bytes: Frag::all(bytes), start, csum };
            // The headers are judged while the payload comes nearer.
            frame.prefetch();
            state.gro.push_frame(frame, Nanos::ZERO, &mut state.pool);
        });
        number as usize
    }

    /// Pushes a packet that lies in several pieces of memory, such as chained buffers of a driver. Its headers may
    /// cross pieces. [`Train::sources`] then has an entry for each piece.
    ///
    /// ```
    /// # use segue::{easy::Joiner, hash::Key, packet::Csum};
    /// # let mut joiner = Joiner::plain(Key([1, 2]));
    /// # let (front, rest) = ([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18], [0, 1, 198, 18, 0, 2]);
    /// let mut batch = joiner.batch();
    /// batch.push_pieces([&front[..], &rest[..]], Csum::Unknown);
    /// assert_eq!(batch.pop().map(|train| train.len()), Some(20));
    /// ```
    pub fn push_pieces(&mut self, pieces: impl IntoIterator<Item = &'b [u8]>, csum: Csum) -> usize {
        let start = self.start;
        let number = self.loan.value().count;
        self.loan.lend_all(pieces, number, |state, pieces| {
            state.count += 1;
            let State { gro, pool, .. } = state;
            let mut packet = pool.take();
            packet.load_ranges(pieces.map(Frag::all), start, &Tunnels::NONE);
            if csum != Csum::Unknown {
                packet.offload.unit = Unit::Whole(csum);
            }
            gro.push(packet, Nanos::ZERO, pool);
        });
        number as usize
    }

    /// Returns the next packet or train for the device, or `None` when all have been returned. The packets of
    /// a flow come in the order in which they were pushed.
    #[inline]
    pub fn pop(&mut self) -> Option<Train<'_>> {
        if !self.loan.value_mut().advance() {
            return None;
        }
        let State { current, arena, front, header_len, lone, next, .. } = self.loan.value();
        let (body, front) = match current {
            Current::Nothing => return None,
            Current::Packet(packet) => (Body::Segment(packet, arena.segments().get(*next - 1)?), &front[..]),
            Current::Lone(bytes) => (Body::Lone(bytes), &lone[..*header_len]),
        };
        Some(Train { body, front, header_len: *header_len })
    }
}

impl Batch<'_, '_> {
    /// Takes back the train that was popped last, because the device refused it, and sets other limits: the train is
    /// returned again, segmented within the new limits, which also apply to all later trains and batches. Returns
    /// `false`, and takes nothing back, if it was a single packet.
    ///
    /// A kernel that refuses a train (`EINVAL`) has usually refused the kind, see the table in docs/adopting.md.
    pub fn refuse(&mut self, limits: Limits) -> bool {
        let state = self.loan.value_mut();
        let limits = described(limits, state.form);
        state.limits = limits;
        let Some(at) = state.next.checked_sub(1) else { return false };
        let (Current::Packet(packet), Some(last)) = (&state.current, state.arena.segments().get(at)) else {
            return false;
        };
        let sent = last.payload.start;
        if last.gso.is_none() {
            return false;
        }
        state.arena.clear();
        if let Err(reason) = gso::split(packet, &limits, &mut state.arena) {
            state.refused.add(reason);
        }
        // Segments begin at the same places, whatever the limits.
        state.next = state.arena.segments().partition_point(|segment| segment.payload.start < sent);
        true
    }
}

impl Batch<'_, '_> {
    /// Refuses trains of the kind of the one that was popped last, or those inside a UDP tunnel if it was in one:
    /// [`Batch::refuse`] with the present limits less these. Returns `false`, and changes nothing, if it was a single
    /// packet.
    pub fn narrow(&mut self) -> bool {
        let state = self.loan.value();
        let last = state.next.checked_sub(1).and_then(|at| state.arena.segments().get(at));
        let (Current::Packet(packet), Some(gso)) = (&state.current, last.and_then(|segment| segment.gso)) else {
            return false;
        };
        let mut limits = state.limits;
        if packet.layout.ip_levels() > 1 {
            limits.refuse_tunnels();
        } else {
            limits.refuse(gso.kind);
        }
        self.refuse(limits)
    }
}

impl State {
    /// Returns the train that was popped last to the pool.
    fn put_back(&mut self) {
        if !matches!(self.current, Current::Packet(_)) {
            self.current = Current::Nothing;
        } else if let Current::Packet(packet) = mem::take(&mut self.current) {
            self.pool.put(packet);
            self.arena.clear();
            self.next = 0;
        }
    }

    /// Moves to the next segment or lone packet and prepares its headers. Returns whether there is one.
    fn advance(&mut self) -> bool {
        loop {
            if let (Current::Packet(packet), Some(segment)) = (&self.current, self.arena.segments().get(self.next)) {
                self.next += 1;
                let head = self.arena.head(segment);
                self.front.clear();
                if let Some(form) = self.form {
                    // A segment that the engine made is always described.
                    let header = virtio::describe(segment, head, &packet.layout).unwrap_or_default().emit(form);
                    self.front.extend_from_slice(&header[..form.len()]);
                }
                self.front.extend_from_slice(head);
                if self.form.is_none()
                    && segment.csum == SegmentCsum::Partial
                    && let Some(owed) = write::Owed::of(&packet.layout)
                {
                    let mut sum = Sum::ZERO;
                    segment.pieces(packet).for_each(|piece| sum.add(piece));
                    owed.complete(&mut self.front, sum, segment.payload_len());
                }
                return true;
            }
            self.put_back();
            if !self.gro.has_ready() {
                self.gro.flush();
            }
            let State { gro, current, limits, .. } = self;
            let popped = match gro.pop_lone(|bytes, start, verified| {
                if verified || bytes.len() > limits.mtu {
                    let csum = if verified { Csum::Verified } else { Csum::Unknown };
                    return Some(Popped::Frame(Frame { bytes, start, csum }));
                }
                // Nothing of it changes on the way, and there is nothing else to do.
                *current = Current::Lone(bytes);
                None
            }) {
                Some(None) => return true,
                Some(popped) => popped,
                None => gro.pop_unparsed(),
            };
            let mut packet = match popped {
                None if gro.has_ready() => continue,
                None => return false,
                Some(Popped::Packet(packet)) => packet,
                Some(Popped::Frame(frame)) if frame.csum == Csum::Unknown && frame.len() <= self.limits.mtu => {
                    self.current = Current::Lone(frame.bytes);
                    return true;
                }
                Some(Popped::Frame(frame)) => frame.parse(&Tunnels::NONE, &mut self.pool),
            };
            // Most trains leave as they are. GRO has made their headers: nothing is to be checked or changed.
            if let Some(form) = self.form
                && gso::push_joined(&packet, &self.limits, &mut self.arena)
                && let Some(segment) = self.arena.segments().first()
            {
                let header = virtio::describe(segment, packet.head.bytes(), &packet.layout).unwrap_or_default();
                set_front(&mut self.front, &header.emit(form), form.len(), &packet.head);
                (self.current, self.next) = (Current::Packet(packet), 1);
                return true;
            }
            let split = gso::split(&packet, &self.limits, &mut self.arena);
            match split.or_else(|reason| self.split_as_is(&mut packet, reason)) {
                Ok(_) => self.current = Current::Packet(packet),
                Err(reason) => {
                    self.refused.add(reason);
                    self.pool.put(packet);
                }
            }
        }
    }

    /// Splits a packet that was refused for `reason` again, as one that owes nothing, if that is an owed checksum
    /// without a field for it.
    #[cold]
    fn split_as_is(&mut self, packet: &mut Packet<Lent>, reason: Refusal) -> Result<usize, Refusal> {
        // Behind more headers than are parsed, or with wrong lengths, TCP and UDP have a field, too.
        let is_foreign = matches!(packet.layout.stop(), Stop::Protocol | Stop::Fragment);
        if !is_foreign
            || !matches!(reason, Refusal::Transport | Refusal::Fragment)
            || packet.offload.unit != Unit::Whole(Csum::Partial)
        {
            return Err(reason);
        }
        packet.offload.unit = Unit::Whole(Csum::Unknown);
        gso::split(packet, &self.limits, &mut self.arena)
    }
}

/// Returns `limits` without the trains that a header of this form cannot describe: only the longest one has the fields
/// of a UDP tunnel.
fn described(mut limits: Limits, form: Option<Form>) -> Limits {
    if form != Some(Form::Tunnel) {
        limits.refuse_tunnels();
    }
    limits
}

/// Sets `front` to a virtio-net header of `len` bytes and the headers of a packet, most of which are copied by moves of
/// constant length.
#[inline(always)]
fn set_front(front: &mut Vec<u8>, header: &[u8; 24], len: usize, head: &Head) {
    const MOVE: usize = 80;
    front.clear();
    front.extend_from_slice(header);
    front.truncate(len);
    match head.block() {
        Some(block) if head.len() <= MOVE => {
            front.extend_from_slice(&block[..MOVE]);
            front.truncate(len + head.len());
        }
        _ => front.extend_from_slice(head.bytes()),
    }
}

/// Content of a train: a segment of a packet, or all of a packet that was not joined.
#[derive(Clone, Copy)]
enum Body<'a> {
    Segment(&'a Packet<Lent>, &'a Segment),
    Lone(&'a Frag<Lent>),
}

impl<'a> Body<'a> {
    fn pieces(self) -> Pieces<'a, Lent> {
        match self {
            Body::Segment(packet, segment) => segment.pieces(packet),
            Body::Lone(bytes) => bytes.pieces(),
        }
    }

    fn len(self) -> usize {
        match self {
            Body::Segment(_, segment) => segment.payload_len(),
            Body::Lone(bytes) => bytes.len(),
        }
    }
}

/// One packet or train for the device, in pieces.
pub struct Train<'a> {
    body: Body<'a>,
    /// The virtio-net header, and all headers of a train.
    front: &'a [u8],
    header_len: usize,
}

impl fmt::Debug for Train<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Train").field("len", &self.len()).field("segments", &self.segments()).finish_non_exhaustive()
    }
}

impl<'a> Train<'a> {
    /// Returns all bytes to be written in one call, in pieces: the virtio-net header, if any, with the headers of a
    /// train, then payload in place. A packet that nothing joined lies where it was pushed, headers included.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        core::iter::once(self.front).filter(|front| !front.is_empty()).chain(self.body.pieces())
    }

    /// Writes the pieces into `places`, each converted by `wrap`, for a call with a slice of slices (`IoSlice::new`);
    /// returns the used part of `places`, or `None` if there are too few: a train has at most one piece more than
    /// packets.
    ///
    /// ```
    /// use std::io::{IoSlice, Write};
    /// # use segue::{easy::Joiner, hash::Key};
    /// # fn main() -> std::io::Result<()> {
    /// # let mut joiner = Joiner::plain(Key([1, 2]));
    /// # let (mut batch, mut tun) = (joiner.batch(), Vec::new());
    /// # batch.push(&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    /// # let train = batch.pop().unwrap();
    /// let mut places = [IoSlice::new(&[]); 1001]; // headers, and the 1,000 packets that `Config::vpn` joins
    /// if let Some(pieces) = train.gather(&mut places, IoSlice::new) {
    ///     tun.write_vectored(pieces)?;
    /// }
    /// # assert_eq!(tun.len(), 20);
    /// # Ok(()) }
    /// ```
    pub fn gather<'p, T>(&self, places: &'p mut [T], wrap: impl Fn(&'a [u8]) -> T) -> Option<&'p [T]> {
        let mut count = 0;
        for piece in self.pieces() {
            *places.get_mut(count)? = wrap(piece);
            count += 1;
        }
        places.get(..count)
    }

    /// Returns the numbers of the packets in the train, in order, each with the range of its bytes that the train
    /// contains: its payload, or the whole packet if it was not joined. A packet without payload may be missing.
    pub fn sources(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a> {
        let (frags, range) = match self.body {
            Body::Segment(packet, segment) => {
                (packet.payload.frags(), segment.payload.start as usize..segment.payload.end as usize)
            }
            Body::Lone(bytes) => (core::slice::from_ref(bytes), 0..bytes.len()),
        };
        let mut at = 0;
        frags.iter().filter_map(move |frag| {
            let (from, to) = (range.start.max(at), range.end.min(at + frag.len()));
            let place = frag.range().start;
            let found = (from < to).then(|| (frag.buffer().number() as usize, place + from - at..place + to - at));
            at += frag.len();
            found
        })
    }

    /// Returns the bytes before the payload: the virtio-net header, if any, and the headers of a train. Those of a
    /// packet that nothing joined are with its payload.
    pub fn front(&self) -> &'a [u8] {
        self.front
    }

    /// Returns the virtio-net header; empty for a device without one.
    pub fn header(&self) -> &'a [u8] {
        &self.front[..self.header_len]
    }

    /// Returns the number of bytes to be written.
    pub fn len(&self) -> usize {
        self.front.len() + self.body.len()
    }

    /// Returns whether the train has no bytes, which never happens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of packets that were joined, at least 1.
    pub fn segments(&self) -> usize {
        match self.body {
            Body::Segment(_, segment) => segment.gso.map_or(1, |gso| gso.segs(segment.payload_len())),
            Body::Lone(_) => 1,
        }
    }

    /// Copies all bytes to the start of `out`, for a device that needs one contiguous buffer, and returns their number.
    ///
    /// # Errors
    /// [`Short`] where `out` is shorter than [`Train::len`]; nothing was written.
    pub fn write_to(&self, out: &mut [u8]) -> Result<usize, Short> {
        let (needed, given) = (self.len(), out.len());
        let mut rest = out.get_mut(..needed).ok_or(Short { needed, given })?;
        for piece in self.pieces() {
            let Some((place, behind)) = rest.split_at_mut_checked(piece.len()) else { break };
            place.copy_from_slice(piece);
            rest = behind;
        }
        Ok(needed)
    }
}
