//! Batches: the packets that one call to a port receives or sends.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use segue::gso::{self, Arena, FragmentIds, Limits, Segment, SegmentCsum};
use segue::hash::Key;
use segue::packet::remote::field_offset;
use segue::packet::{Csum, Frame, Gso, Layout, Outer, Packet, Pieces, Pool, Start, Stop, Tunnels, Unit};
use segue::wire::ethernet;

use crate::page::{FIELD_LEN, Page, PagePool};

/// Datagrams that a datagram port received in one piece: one, or several of equal length from one sender.
#[derive(Clone, Debug)]
pub struct Burst {
    /// UDP payloads of all datagrams, in sequence. Never empty.
    pub page: Page,
    /// Length of each datagram in bytes; the last one may be shorter. Equal to the page's length for one datagram,
    /// never 0.
    pub segment_len: usize,
    /// Address of the sender of the datagrams.
    pub peer: SocketAddr,
    /// Local destination address, on ports that listen on more than one.
    pub local: Option<IpAddr>,
    /// DSCP and ECN byte, the same for all datagrams of the burst.
    pub tos: u8,
    /// Time to live or hop limit, for ports opened to read it.
    pub ttl: Option<u8>,
}

impl Burst {
    /// Returns the number of datagrams.
    pub fn segments(&self) -> usize {
        self.page.len().div_ceil(self.segment_len.max(1))
    }

    /// Returns the datagrams, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = Page> + '_ {
        let len = self.segment_len.max(1);
        (0..self.page.len()).step_by(len).map(move |at| self.page.slice(at..at + len))
    }
}

/// One packet or train, as a packet port received it.
#[derive(Debug)]
pub enum Received {
    /// An unparsed packet in one range of memory.
    Frame(Frame<Page>),
    /// A train, a packet in several ranges, or one of which a few bytes do not tell the state of its checksum; the port
    /// has parsed it.
    Packet(Box<Packet<Page>>),
}

impl Received {
    /// Returns the length in bytes, padding included.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Received::Frame(frame) => frame.len(),
            Received::Packet(packet) => packet.len(),
        }
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the offload state, if the port has parsed the packet.
    #[inline]
    pub fn unit(&self) -> Option<Unit> {
        match self {
            Received::Frame(_) => None,
            Received::Packet(packet) => Some(packet.offload.unit),
        }
    }

    /// Returns whether the packet is a frame with a checksum of unknown state.
    #[inline]
    pub fn is_unverified(&self) -> bool {
        matches!(self, Received::Frame(frame) if frame.csum == Csum::Unknown)
    }

    /// Parses the received bytes into a packet. UDP is taken for a transport whatever its port.
    #[inline]
    pub fn parse(self, pool: &mut Pool<Page>) -> Box<Packet<Page>> {
        match self {
            Received::Frame(frame) => frame.parse(&Tunnels::NONE, pool),
            Received::Packet(packet) => packet,
        }
    }

    /// Returns the bytes of the packet as ordered pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (front, rest) = match self {
            Received::Frame(frame) => (frame.bytes.bytes(), None),
            Received::Packet(packet) => (packet.head.bytes(), Some(packet.payload.pieces(0..packet.payload.len()))),
        };
        std::iter::once(front).chain(rest.into_iter().flatten())
    }
}

/// The packets and bursts that a poll receives, and the memory for them.
#[derive(Debug)]
pub struct RxBatch {
    /// Packets and trains of packet ports, in the order of their arrival.
    pub packets: VecDeque<Received>,
    /// Bursts of datagram ports, in the order of their arrival.
    pub bursts: VecDeque<Burst>,
    /// Pool of boxes for parsed packets.
    pub pool: Pool<Page>,
    /// Pages that packets are read into.
    pub pages: PagePool,
    /// Memory for checksum fields that a packet port completes.
    pub(crate) fields: PagePool,
}

/// Largest number of packets at a time whose checksum field a port has completed.
const MAX_FIELDS: usize = 1 << 14;

impl RxBatch {
    /// Returns an empty batch over at most `pages` pages.
    pub fn new(pages: usize) -> RxBatch {
        RxBatch::over(PagePool::new(pages))
    }

    /// Returns an empty batch that uses the given pages.
    pub fn over(pages: PagePool) -> RxBatch {
        RxBatch {
            packets: VecDeque::new(),
            bursts: VecDeque::new(),
            pool: Pool::new(1024),
            pages,
            fields: PagePool::of_pieces(MAX_FIELDS, FIELD_LEN),
        }
    }

    /// Removes the oldest packet from the batch and returns it parsed.
    #[inline]
    pub fn pop_packet(&mut self) -> Option<Box<Packet<Page>>> {
        let received = self.packets.pop_front()?;
        Some(received.parse(&mut self.pool))
    }
}

/// Content of a batch entry.
#[derive(Debug)]
enum Content {
    Packet(Box<Packet<Page>>),
    /// A frame that is sent unchanged, without a box; if it owes its transport checksum, its headers are in the arena.
    /// It is never a train.
    Frame(Frame<Page>),
}

#[derive(Debug)]
struct Entry {
    content: Content,
    /// Fragment numbering at the time of the split, which a second split must reproduce.
    ids: FragmentIds,
    first: u32,
    next: u32,
    end: u32,
    /// MTU for which the packet was split: path MTUs of packets differ.
    mtu: usize,
}

/// Packets that wait to be sent through one port, split for it.
#[derive(Debug, Default)]
pub struct TxBatch {
    entries: Vec<Entry>,
    arena: Arena,
    waiting: usize,
    checksummed: u64,
}

impl TxBatch {
    /// Creates an empty transmit batch.
    pub fn new() -> TxBatch {
        TxBatch::default()
    }

    /// Sets the key by which fragments are numbered; it should be random (RFC 7739, section 3).
    pub fn number_fragments(&mut self, key: Key) {
        self.arena.ids = FragmentIds::new(key);
    }

    /// Splits `packet` for a port with `limits` and appends it. Returns the number of units that it became.
    ///
    /// # Errors
    /// The packet, with the reason for which it cannot be split.
    pub fn push(
        &mut self,
        packet: Box<Packet<Page>>,
        limits: &Limits,
    ) -> Result<usize, (Box<Packet<Page>>, gso::Refusal)> {
        let first = self.arena.segments().len() as u32;
        let ids = self.arena.ids;
        if let Err(reason) = gso::split(&packet, limits, &mut self.arena) {
            return Err((packet, reason));
        }
        let end = self.arena.segments().len() as u32;
        self.entries.push(Entry { content: Content::Packet(packet), ids, first, next: first, end, mtu: limits.mtu });
        let units = (end - first) as usize;
        self.waiting += units;
        Ok(units)
    }

    /// Appends a frame to send unchanged but for an owed checksum, for a packet port whose MTU it does not exceed.
    /// Returns it if it has to be parsed to know that, or to find the checksum that it owes.
    #[inline]
    pub fn push_frame(&mut self, frame: Frame<Page>, limits: &Limits) -> Option<Frame<Page>> {
        // The Ethernet header does not count towards the MTU; tags may.
        let link_len = if frame.start == Start::Ethernet { ethernet::LEN } else { 0 };
        if frame.len().saturating_sub(link_len) > limits.mtu {
            return Some(frame);
        }
        let (first, ids) = (self.arena.segments().len() as u32, self.arena.ids);
        if append(&frame, limits, &mut self.arena).is_err() {
            return Some(frame);
        }
        let content = Content::Frame(frame);
        self.entries.push(Entry { content, ids, first, next: first, end: first + 1, mtu: limits.mtu });
        self.waiting += 1;
        None
    }

    /// Returns the number of unsent units.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Returns whether all units were sent. Sent packets may still have to be recycled.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the unsent units, in the order of their packets.
    pub fn units(&self) -> impl Iterator<Item = TxUnit<'_>> + '_ {
        (0..self.entries.len()).flat_map(|entry| self.units_of(entry))
    }

    /// Marks the first `n` unsent units as done.
    pub fn sent(&mut self, mut n: usize) {
        for entry in &mut self.entries {
            let done = n.min((entry.end - entry.next) as usize);
            entry.next += done as u32;
            self.waiting -= done;
            n -= done;
            if n == 0 {
                break;
            }
        }
    }

    /// Returns packets to `pool` once all of their units are done.
    pub fn recycle(&mut self, pool: &mut Pool<Page>) {
        if self.waiting == 0 {
            self.entries.drain(..).for_each(|entry| entry.recycle(pool));
            self.arena.clear();
        } else {
            self.entries.extract_if(.., |e| e.next == e.end).for_each(|entry| entry.recycle(pool));
        }
    }

    /// Splits the unsent packets again, for narrower `limits`, each for the MTU of its first split. The part of a
    /// packet that was sent is not sent twice.
    ///
    /// Packets that cannot be split for the new limits are handed to `refused`.
    pub fn resplit(&mut self, limits: &Limits, mut refused: impl FnMut(Box<Packet<Page>>, gso::Refusal)) {
        let mut before = std::mem::take(&mut self.arena);
        self.checksummed += before.take_checksummed();
        self.waiting = 0;
        let ids = before.ids;
        for mut entry in std::mem::take(&mut self.entries) {
            let sent_to = before
                .segments()
                .get(entry.first as usize..entry.next as usize)
                .and_then(|done| done.last())
                .map_or(0, |last| last.payload.end);
            // All of it was sent, perhaps before an earlier call.
            if entry.next == entry.end {
                (entry.first, entry.next, entry.end) = (0, 0, 0);
                self.entries.push(entry);
                continue;
            }
            entry.first = self.arena.segments().len() as u32;
            self.arena.ids = entry.ids;
            let split = match &entry.content {
                Content::Packet(packet) => gso::split(packet, &Limits { mtu: entry.mtu, ..*limits }, &mut self.arena),
                Content::Frame(frame) => append(frame, limits, &mut self.arena).map(|()| 1),
            };
            match (split, entry.content) {
                (Err(reason), Content::Packet(packet)) => refused(packet, reason),
                // The arena had room for it before.
                (Err(_), Content::Frame(_)) => {}
                (Ok(_), content) => {
                    let made = &self.arena.segments()[entry.first as usize..];
                    entry.end = entry.first + made.len() as u32;
                    let done = if sent_to == 0 { 0 } else { made.partition_point(|s| s.payload.end <= sent_to) };
                    entry.next = entry.first + done as u32;
                    self.waiting += (entry.end - entry.next) as usize;
                    self.entries.push(Entry { content, ..entry });
                }
            }
        }
        self.arena.ids = ids;
    }

    /// Returns the number of payload bytes over which splitting computed transport checksums since the last call.
    pub fn take_checksummed(&mut self) -> u64 {
        std::mem::take(&mut self.checksummed) + self.arena.take_checksummed()
    }

    /// Returns the number of packets in the batch, those sent but not yet recycled included.
    pub(crate) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the outer header fields of the packet with the given index, if they fit its headers.
    pub(crate) fn outer(&self, entry: usize) -> Option<Outer> {
        match &self.entries[entry].content {
            Content::Packet(packet) => packet.outer.filter(|outer| usize::from(outer.skip) <= packet.head.len()),
            Content::Frame(_) => None,
        }
    }

    /// Returns the unsent units of one packet.
    pub(crate) fn units_of(&self, entry: usize) -> impl Iterator<Item = TxUnit<'_>> + '_ {
        let entry = &self.entries[entry];
        self.range(entry, entry.next..entry.end)
    }

    /// Returns the position of a packet's first unsent unit, counted over the whole batch.
    pub(crate) fn position(&self, entry: usize) -> u32 {
        self.entries[entry].next
    }

    /// Returns the units of one packet from `position` on that are done.
    pub(crate) fn done_since(&self, entry: usize, position: u32) -> impl Iterator<Item = TxUnit<'_>> + '_ {
        let entry = &self.entries[entry];
        self.range(entry, position..entry.next)
    }

    /// Marks the first `n` unsent units of one packet as done.
    pub(crate) fn sent_of(&mut self, entry: usize, n: usize) {
        let entry = &mut self.entries[entry];
        let done = n.min((entry.end - entry.next) as usize);
        entry.next += done as u32;
        self.waiting -= done;
    }

    /// Returns the unsent unit at the given position.
    pub(crate) fn unit_at(&self, entry: usize, position: u32) -> TxUnit<'_> {
        let segment = &self.arena.segments()[position as usize];
        TxUnit { content: &self.entries[entry].content, segment, head: self.arena.head(segment) }
    }

    fn range<'a>(&'a self, entry: &'a Entry, range: std::ops::Range<u32>) -> impl Iterator<Item = TxUnit<'a>> + 'a {
        let segments = self.arena.segments().get(range.start as usize..range.end as usize).unwrap_or(&[]);
        segments.iter().map(|segment| TxUnit { content: &entry.content, segment, head: self.arena.head(segment) })
    }
}

impl Entry {
    /// Returns the box of a packet to `pool`.
    #[inline]
    fn recycle(self, pool: &mut Pool<Page>) {
        match self.content {
            Content::Packet(packet) => pool.put(packet),
            Content::Frame(frame) => drop(frame),
        }
    }
}

/// Returns whether the port may declare a frame's checksum verified to its receiver.
fn is_verified(frame: &Frame<Page>) -> bool {
    frame.csum == Csum::Verified
}

/// Appends the only segment of a frame: without headers, unless it owes a checksum.
#[inline(always)]
fn append(frame: &Frame<Page>, limits: &Limits, arena: &mut Arena) -> Result<(), gso::Refusal> {
    match frame.csum {
        Csum::Partial => gso::push_owing(frame, limits, arena).map(|_| ()).ok_or(gso::Refusal::Full),
        _ => arena.push_frame(frame.len(), is_verified(frame)),
    }
}

/// Layout of an unparsed frame.
static UNKNOWN: Layout = Layout::empty(Stop::Protocol);

/// A packet or train in the form in which the port sends it.
#[derive(Clone, Copy, Debug)]
pub struct TxUnit<'a> {
    content: &'a Content,
    segment: &'a Segment,
    head: &'a [u8],
}

impl<'a> TxUnit<'a> {
    /// Returns all headers, including outer ones; nothing for an unparsed frame, whose bytes are all payload. The
    /// headers of an unparsed frame that owes its checksum end before the options of TCP.
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// Returns the payload after the headers, as pieces of memory.
    pub fn pieces(&self) -> Pieces<'a, Page> {
        let range = self.segment.payload.start as usize..self.segment.payload.end as usize;
        match self.content {
            Content::Packet(packet) => packet.payload.pieces(range),
            Content::Frame(frame) => frame.bytes.pieces_from(self.head.len()),
        }
    }

    /// Returns whether the packet's payload is one range.
    pub(crate) fn is_in_one_piece(&self) -> bool {
        self.packet().is_none_or(|packet| packet.payload.frags().len() <= 1)
    }

    /// Returns the length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        (self.segment.payload.end - self.segment.payload.start) as usize
    }

    /// Returns the length of headers and payload in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload_len()
    }

    /// Returns whether headers and payload are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the state of the innermost transport checksum.
    pub fn csum(&self) -> SegmentCsum {
        self.segment.csum
    }

    /// Returns the segmentation of a train; `None` for a single packet.
    pub fn gso(&self) -> Option<Gso> {
        self.segment.gso
    }

    /// Returns the number of packets on the wire that the unit represents.
    pub fn segments(&self) -> usize {
        self.segment.gso.map_or(1, |gso| gso.segs(self.payload_len()))
    }

    /// Returns the outer header fields that a datagram port needs.
    pub fn outer(&self) -> Option<Outer> {
        self.packet()?.outer
    }

    /// Returns the layout of [`TxUnit::head`].
    pub fn layout(&self) -> &'a Layout {
        match self.content {
            Content::Packet(packet) => &packet.layout,
            Content::Frame(frame) if frame.csum == Csum::Partial => frame.exact_layout().unwrap_or(&UNKNOWN),
            Content::Frame(_) => &UNKNOWN,
        }
    }

    fn packet(&self) -> Option<&'a Packet<Page>> {
        match self.content {
            Content::Packet(packet) => Some(packet),
            Content::Frame(_) => None,
        }
    }

    /// Returns the engine's segment behind the unit.
    pub(crate) fn segment(&self) -> &'a Segment {
        self.segment
    }

    /// Returns the start of the innermost transport header and the offset of the checksum within that header, in bytes.
    pub fn checksum_place(&self) -> Option<(usize, usize)> {
        let header = self.layout().transport()?;
        Some((header.start(), field_offset(header.kind)?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use segue::packet::{GsoKind, TrainCsum, Unit};

    use super::*;
    use crate::testing::{self, Fill, bytes};

    fn train(pages: &mut PagePool, seed: usize) -> Box<Packet<Page>> {
        let ends: [IpAddr; 2] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let bytes = testing::ip_packet((ends[0], ends[1]), 17, 6, &testing::udp(1, 2, &bytes(950, seed)), Fill::Primed);
        let mut packet = testing::load(pages, &bytes);
        let gso = Gso { kind: GsoKind::Udp, size: 100, fixed_ids: 0 };
        packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
        packet
    }

    fn payload(unit: &TxUnit<'_>) -> Vec<u8> {
        unit.pieces().flatten().copied().collect()
    }

    #[test]
    fn what_was_sent_of_a_train_is_not_sent_again_after_a_new_split() {
        let wide = Limits { csum: true, uso: true, max_udp_segs: 3, ..Limits::NONE };
        for sent in 0..9 {
            let (mut pages, mut batch, mut pool) = (PagePool::new(4), TxBatch::new(), Pool::new(4));
            for seed in 0..2 {
                // Ten segments in trains of three: four units.
                assert_eq!(batch.push(train(&mut pages, seed), &wide).unwrap(), 4);
            }
            let before: Vec<u8> = batch.units().take(sent).flat_map(|unit| payload(&unit)).collect();
            batch.sent(sent);
            // A port may narrow twice before anything is recycled.
            for _ in 0..2 {
                batch.resplit(&Limits { uso: false, ..wide }, |_, reason| panic!("{reason:?}"));
            }
            let after: Vec<u8> = batch.units().flat_map(|unit| payload(&unit)).collect();
            assert_eq!([before, after].concat(), [bytes(950, 0), bytes(950, 1)].concat(), "{sent} sent");
            assert!(batch.units().all(|unit| unit.gso().is_none() && unit.csum() == SegmentCsum::Partial));
            assert_eq!(batch.units().count(), batch.len());
            assert_eq!(batch.is_empty(), sent == 8);
            let waiting = batch.len();
            batch.sent(waiting);
            batch.recycle(&mut pool);
            assert_eq!(pages.in_use(), 0, "every packet went back");
        }
    }

    #[test]
    fn a_packet_that_cannot_be_split_comes_back() {
        let mut pages = PagePool::new(1);
        let mut batch = TxBatch::new();
        let mut packet = train(&mut pages, 0);
        packet.layout = segue::packet::Layout::empty(segue::packet::Stop::Protocol);
        let (packet, reason) = batch.push(packet, &Limits::NONE).unwrap_err();
        assert_eq!((packet.payload.len(), reason), (950, gso::Refusal::Transport));
        assert!(batch.is_empty() && batch.units().next().is_none());
    }

    #[test]
    fn packets_leave_the_batch_as_soon_as_all_of_their_units_are_sent() {
        let (mut pages, mut batch, mut pool) = (PagePool::new(4), TxBatch::new(), Pool::new(4));
        for seed in 0..3 {
            batch.push(train(&mut pages, seed), &Limits::NONE).unwrap();
        }
        assert_eq!((batch.len(), batch.take_checksummed(), batch.take_checksummed()), (30, 3 * 950, 0));
        batch.sent_of(1, 10);
        batch.sent(4);
        batch.recycle(&mut pool);
        assert_eq!((batch.len(), batch.entries(), pages.in_use()), (16, 2, 2));
        let rest: Vec<u8> = batch.units().flat_map(|unit| payload(&unit)).collect();
        assert_eq!(rest, [&bytes(950, 0)[400..], &bytes(950, 2)[..]].concat());
    }
}
