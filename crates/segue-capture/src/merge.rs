//! Merge: joins the packets of a capture into trains, by the rules of GRO.
//!
//! A train has the position and the time of its first packet, so that the file stays in order of time and no
//! acknowledgment comes before what it acknowledges. Packets wait in a window until everything in front of them is
//! decided; the window is bounded, and when it is full all trains end.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::rc::Rc;

use segue::gso;
use segue::packet::{Csum, LayerCsum, TrainCsum, Tunnels, Unit};

use crate::error::CaptureError;
use crate::file::undo_notes::{self, Member, filtered};
use crate::file::{
    Block, BlockKind, Form, Format, Interface, Item, MAX_SNAPLEN, Order, Outgoing, ReadError, Reader, Record, Writer,
    fits_block, is_unusual_tail, options,
};
use crate::lanes::{self, Lanes, RecordBytes, WINDOW, WINDOW_BYTES, place_of};
pub use crate::lanes::{GroCounts, MergeRules};
use crate::stream::{each_item, section_options};

/// Configuration of [`merge`].
#[derive(Clone, Debug)]
pub struct MergeConfig {
    /// Rules of joining, and the limits of a train.
    pub rules: MergeRules,
    /// UDP ports that carry tunnels.
    pub tunnels: Tunnels,
    /// Whether each packet gets a comment with the reason for its form; pcapng only.
    pub explain: bool,
}

impl Default for MergeConfig {
    /// Returns the default: default rules, no tunnel on a UDP port, no comments.
    fn default() -> MergeConfig {
        MergeConfig { rules: MergeRules::default(), tunnels: Tunnels::NONE, explain: false }
    }
}

/// Counters of [`merge`].
#[derive(Debug)]
pub struct MergeReport {
    /// Number of packets read.
    pub packets_in: u64,
    /// Number of packets written, a train counting as one.
    pub packets_out: u64,
    /// Counters of GRO. Packets that were not offered to it are in [`GroCounts::alone`] too.
    pub gro: GroCounts,
    /// Number of trains that could not be written as one packet and were left as single packets.
    pub unwritten: u64,
    /// Whether [`undo`](crate::undo::undo) restores the input: the output is pcapng and no acknowledgment was replaced.
    pub can_undo: bool,
    /// The position at which the input is truncated or damaged; all packets before it were merged.
    pub fault: Option<ReadError>,
}

/// Joins the packets of each flow into trains. Into pcapng each train carries a note by which
/// [`undo`](crate::undo::undo) restores its packets exactly; pcap has no place for it.
///
/// # Errors
/// [`CaptureError::NoComments`] before anything is read; [`CaptureError::Read`] and [`CaptureError::Write`].
pub fn merge<R: Read, W: Write>(
    reader: &mut Reader<R>,
    writer: &mut Writer<W>,
    config: &MergeConfig,
) -> Result<MergeReport, CaptureError> {
    let notes = writer.format() == Format::Pcapng;
    if config.explain && !notes {
        return Err(CaptureError::NoComments);
    }
    let before = writer.packets();
    let mut work = Merger {
        window: Window { slots: VecDeque::new(), base: 0, bytes: 0, notes, explain: config.explain, refused: 0 },
        lanes: Lanes::new(config.rules.gro(), config.tunnels),
        sink: writer,
        bypassed: BTreeMap::new(),
        order: reader.order(),
        last_ticks: 0,
    };
    if let Some((head, raw)) = reader.pcap_header() {
        let mut whole = *head;
        whole.snaplen = whole.snaplen.max(MAX_SNAPLEN);
        let mut list = section_options();
        undo_notes::push(&mut list, Order::NATIVE, undo_notes::NoteKind::Pcap, true, raw);
        if notes {
            work.order = Order::NATIVE;
        }
        work.sink.begin_pcap(&whole, raw, &list).map_err(CaptureError::Write)?;
    }
    let fault = each_item(reader, |item| {
        match item {
            Item::Packet(record) => work.packet(&record),
            Item::Block(block) => work.block(&block),
        }
        .map_err(CaptureError::Write)
    })?;
    work.flush().map_err(CaptureError::Write)?;
    let mut gro = work.lanes.tally();
    for (name, n) in &work.bypassed {
        *gro.alone.entry(name).or_default() += n;
    }
    Ok(MergeReport {
        packets_in: reader.packets(),
        packets_out: work.sink.packets() - before,
        unwritten: work.window.refused,
        can_undo: notes && gro.swallowed == 0,
        gro,
        fault,
    })
}

/// A record that waits to be written, with its bytes.
#[derive(Clone, Debug)]
struct Entry {
    record: Record<'static>,
    raw: Rc<[u8]>,
}

impl Entry {
    fn of(record: &Record<'_>) -> Entry {
        let (data, options) = (record.data.clone(), record.options.clone());
        Entry { record: Record { raw: &[], data, options, ..*record }, raw: record.raw.into() }
    }

    fn record(&self) -> Record<'_> {
        let (data, options) = (self.record.data.clone(), self.record.options.clone());
        Record { raw: &self.raw, data, options, ..self.record }
    }
}

/// An item of the file that waits to be written.
enum Slot {
    /// A packet that GRO still holds.
    Waiting(Entry),
    /// A packet that is written unchanged.
    Alone(Entry, Remark),
    /// A packet that is part of a train in front.
    Absorbed,
    /// A train, stored at its first packet.
    Train(Entry, Train),
    /// A block that is not a packet.
    Block(BlockKind, Vec<u8>, Order, Option<Interface>),
}

/// Remarks on a packet that is written unchanged.
#[derive(Clone, Debug, Default)]
struct Remark {
    /// Comment with the reason why the packet is not merged.
    why: Option<String>,
    /// Number of acknowledgments that the packet replaces.
    swallowed: usize,
}

struct Train {
    frame: Vec<u8>,
    /// Options of the first packet and the note, without an end.
    options: Vec<u8>,
    ticks: u64,
}

impl Train {
    fn len(&self) -> usize {
        self.frame.len() + self.options.len()
    }
}

/// Items of the output file that are not written yet.
struct Window {
    slots: VecDeque<Slot>,
    /// Position of the first slot.
    base: u64,
    bytes: usize,
    /// Whether trains get undo notes.
    notes: bool,
    /// Whether packets get comments.
    explain: bool,
    /// Number of trains that could not be written as one packet and were left as single packets.
    refused: u64,
}

struct Merger<'w, W: Write> {
    window: Window,
    lanes: Lanes,
    sink: &'w mut Writer<W>,
    bypassed: BTreeMap<&'static str, u64>,
    order: Order,
    last_ticks: u64,
}

impl<W: Write> Merger<'_, W> {
    fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let entry = Entry::of(record);
        let raw = Rc::clone(&entry.raw);
        let index = self.window.push(Slot::Waiting(entry), raw.len());
        self.last_ticks = record.ticks.unwrap_or(self.last_ticks);
        let mut done = Vec::new();
        let taken = self.lanes.push(record, &raw, index, |out| done.push(out));
        for out in done {
            let packet = self.window.settle(out, self.order, self.last_ticks);
            self.lanes.give_back(packet);
        }
        if let Err(why) = taken {
            *self.bypassed.entry(why.name()).or_default() += 1;
            let remark = Remark { why: self.window.explain.then(|| alone_because(&[why.name()])), swallowed: 0 };
            self.window.alone(index, remark);
        }
        self.proceed()
    }

    fn block(&mut self, block: &Block<'_>) -> io::Result<()> {
        let Block { kind, raw, order, interface } = *block;
        if kind == BlockKind::Section {
            self.flush()?;
            self.lanes.forget(|_| {});
            self.order = order;
            self.last_ticks = 0;
        }
        let raw = if self.window.notes { undo_notes::annotated(kind, raw, order) } else { raw.to_vec() };
        let len = raw.len();
        self.window.push(Slot::Block(kind, raw, order, interface.cloned()), len);
        self.proceed()
    }

    /// Writes what is decided; with as much waiting as may wait, all trains end first. Blocks count too: no time passes
    /// between them, so that any number of them may follow a packet that GRO holds.
    fn proceed(&mut self) -> io::Result<()> {
        if self.window.slots.len() >= WINDOW || self.window.bytes >= WINDOW_BYTES { self.flush() } else { self.emit() }
    }

    /// Ends all trains and writes all items.
    fn flush(&mut self) -> io::Result<()> {
        let mut done = Vec::new();
        self.lanes.flush(|out| done.push(out));
        for out in done {
            let packet = self.window.settle(out, self.order, self.last_ticks);
            self.lanes.give_back(packet);
        }
        self.emit()
    }

    /// Writes items up to the first packet that GRO holds.
    fn emit(&mut self) -> io::Result<()> {
        while let Some(slot) = self.window.slots.front() {
            if matches!(slot, Slot::Waiting(..)) {
                break;
            }
            let Some(slot) = self.window.pop() else { break };
            match slot {
                Slot::Alone(entry, remark) => self.alone(&entry, &remark)?,
                Slot::Train(entry, train) => self.sink.packet(&Outgoing {
                    interface: entry.record.interface,
                    ticks: Some(train.ticks),
                    len: train.frame.len() as u32,
                    data: &[&train.frame],
                    options: &train.options,
                })?,
                Slot::Block(kind, raw, order, interface) => {
                    self.sink.block(&Block { kind, raw: &raw, order, interface: interface.as_ref() })?;
                }
                Slot::Absorbed | Slot::Waiting(..) => {}
            }
        }
        Ok(())
    }

    fn alone(&mut self, entry: &Entry, remark: &Remark) -> io::Result<()> {
        let record = entry.record();
        let has_note = record.form == Form::Enhanced && undo_notes::find(record.options(), self.order).is_some();
        // How much of a simple packet block is there says the snap length, which is raised.
        let is_cut_by_snaplen = record.form == Form::Simple && record.is_cut();
        let needs_note = has_note || is_cut_by_snaplen || remark.swallowed > 0;
        let is_plain = !needs_note && remark.why.is_none();
        if is_plain || !self.window.notes || record.form == Form::Obsolete {
            return self.sink.record(&record);
        }
        // The comment or note added here must be removable, and the note of an earlier merge must not be taken for
        // one of this merge: so the packet is noted as a train of one.
        let list = filtered(record.options(), self.order, |_| true);
        let data = record.data();
        let head_len = data.len().min(64);
        let tail = unusual_tail(&record, self.order, &list);
        let member = Member {
            position: 0,
            ticks: record.ticks,
            len: record.len,
            head: data[..head_len].to_vec(),
            payload: head_len..data.len(),
            trailer: Vec::new(),
            options: if tail.is_some() { None } else { Some(list) },
            tail,
        };
        let ticks = record.ticks.unwrap_or(self.last_ticks);
        let mut carried = filtered(record.options(), self.order, |code| code != undo_notes::OPTION);
        if let Some(why) = &remark.why {
            options::push(&mut carried, self.order, options::COMMENT, why.as_bytes());
        }
        let (about, note) = match remark.swallowed {
            0 => (undo_notes::NoteKind::Members, undo_notes::encode(&data[..head_len], ticks, &[member])),
            count => (undo_notes::NoteKind::Swallowed, undo_notes::swallowed(count as u64)),
        };
        undo_notes::push(&mut carried, self.order, about, false, &note);
        if !needs_note && !fits_block(data.len(), carried.len()) {
            // There is no room for the comment.
            return self.sink.record(&record);
        }
        self.sink.packet(&Outgoing {
            interface: record.interface,
            ticks: Some(ticks),
            len: record.len,
            data: &[data],
            options: &carried,
        })
    }
}

impl Window {
    fn push(&mut self, slot: Slot, len: usize) -> u64 {
        self.bytes += len;
        self.slots.push_back(slot);
        self.base + self.slots.len() as u64 - 1
    }

    fn pop(&mut self) -> Option<Slot> {
        let slot = self.slots.pop_front()?;
        self.base += 1;
        self.bytes -= match &slot {
            Slot::Alone(entry, _) | Slot::Waiting(entry) => entry.raw.len(),
            Slot::Block(_, raw, ..) => raw.len(),
            Slot::Train(_, train) => train.len(),
            // Its bytes were moved to the train or dropped.
            Slot::Absorbed => 0,
        };
        Some(slot)
    }

    fn alone(&mut self, index: u64, remark: Remark) {
        if let Some(slot) = self.slots.get_mut((index - self.base) as usize)
            && let Slot::Waiting(entry) = slot
        {
            *slot = Slot::Alone(entry.clone(), remark);
        }
    }

    /// Removes a packet from the output file.
    fn absorb(&mut self, index: u64) {
        let Some(slot) = self.slots.get_mut((index - self.base) as usize) else { return };
        if let Slot::Waiting(entry) = std::mem::replace(slot, Slot::Absorbed) {
            self.bytes -= entry.raw.len();
        }
    }

    /// Stores a packet or train that GRO released at its position; returns the box.
    fn settle(
        &mut self,
        out: lanes::Released,
        order: Order,
        last_ticks: u64,
    ) -> Box<segue::packet::Packet<RecordBytes>> {
        let lanes::Released { mut packet, members, swallowed, why } = out;
        if members.len() > 1
            && let Some((entry, train)) = self.train(&mut packet, &members, &why, order, last_ticks)
        {
            members.iter().for_each(|index| self.absorb(*index));
            self.bytes += train.len();
            self.slots[(members[0] - self.base) as usize] = Slot::Train(entry, train);
            return packet;
        }
        if members.len() > 1 {
            self.refused += 1;
        }
        let why = self.explain.then(|| match swallowed.len() {
            0 => alone_because(&why),
            count => format!("segue: stands for {} ACKs, ended: {}", count + 1, spoken(&why)),
        });
        swallowed.iter().for_each(|index| self.absorb(*index));
        let remark = Remark { why, swallowed: swallowed.len() };
        for index in members {
            self.alone(index, remark.clone());
        }
        packet
    }

    /// Builds the single packet of a train with its note; `None` if the engine cannot write it, or if it could not be
    /// undone or read.
    fn train(
        &self,
        packet: &mut segue::packet::Packet<RecordBytes>,
        members: &[u64],
        why: &[&'static str],
        order: Order,
        last_ticks: u64,
    ) -> Option<(Entry, Train)> {
        finish(packet)?;
        let at = |index: u64| match self.slots.get((index - self.base) as usize) {
            Some(Slot::Waiting(entry)) => Some(entry),
            _ => None,
        };
        let first = at(members[0])?;
        let head = first.record();
        let frag = &packet.payload.frags()[0];
        // Link header, then the train's own headers, which are as long as those of its first packet.
        let prefix =
            (place_of(&frag.clone().into_inner(), frag.bytes()) - head.data.start).checked_sub(packet.head.len())?;
        let mut frame = head.data()[..prefix].to_vec();
        frame.extend_from_slice(packet.head.bytes());
        let head_len = frame.len();
        let ticks = head.ticks.unwrap_or(last_ticks);
        // A hash of the bytes is no longer right, and a note of an earlier merge belongs to the packet inside.
        let keep = |code| code != options::EPB_HASH && code != undo_notes::OPTION;
        let mut carried = filtered(head.options(), order, keep);
        if self.explain {
            let text = format!("segue: train of {} packets, ended: {}", members.len(), spoken(why));
            options::push(&mut carried, order, options::COMMENT, text.as_bytes());
        }
        let mut list = Vec::with_capacity(members.len());
        for frag in packet.payload.frags() {
            let buf = frag.clone().into_inner();
            let record = at(buf.index)?.record();
            let from = place_of(&buf, frag.bytes());
            let payload = frame.len()..frame.len() + frag.len();
            frame.extend_from_slice(frag.bytes());
            if self.notes {
                let own = filtered(record.options(), order, |_| true);
                let tail = unusual_tail(&record, order, &own);
                list.push(Member {
                    position: buf.index - members[0],
                    ticks: record.ticks,
                    len: record.len,
                    head: record.raw[record.data.start..from].to_vec(),
                    payload,
                    trailer: record.raw[from + frag.len()..record.data.end].to_vec(),
                    options: (tail.is_none() && own != carried).then_some(own),
                    tail,
                });
            }
        }
        let mut options = carried;
        if self.notes {
            let note = undo_notes::encode(&frame[..head_len], ticks, &list);
            // What could not be undone is not merged.
            undo_notes::is_modest(&list, note.len() + frame.len(), options.len()).then_some(())?;
            undo_notes::push(&mut options, order, undo_notes::NoteKind::Members, false, &note);
            fits_block(frame.len(), options.len()).then_some(())?;
        }
        Some((first.clone(), Train { frame, options, ticks }))
    }
}

/// Returns the bytes after a packet in its pcapng block, if a writer would write others for its options `own`.
fn unusual_tail(record: &Record<'_>, order: Order, own: &[u8]) -> Option<Vec<u8>> {
    if record.form == Form::Pcap {
        return None;
    }
    let tail = record.raw.get(record.data.end..record.raw.len().checked_sub(4)?)?;
    is_unusual_tail(tail, record.data.end, order, own).then(|| tail.to_vec())
}

/// Returns the comment on a packet that is not merged.
fn alone_because(why: &[&'static str]) -> String {
    format!("segue: alone: {}", spoken(why))
}

/// Formats reasons as text, in the form of the comments.
fn spoken(why: &[&'static str]) -> String {
    why.iter().map(|reason| reason.replace('_', " ")).collect::<Vec<_>>().join(", ")
}

/// Makes one packet of a train. Its checksums are right if those of its segments were; an unfinished one stays
/// unfinished.
fn finish(packet: &mut segue::packet::Packet<RecordBytes>) -> Option<()> {
    let Unit::Train { csum, .. } = packet.offload.unit else { return None };
    // The field holds the sum of the pseudo header over the whole.
    packet.offload.unit = match csum {
        TrainCsum::Stale => Unit::Whole(Csum::Partial),
        // Whatever covers it from outside covers it as it stands, unless the far end of the tunnel finishes it.
        TrainCsum::Partial if packet.offload.layers().iter().any(|layer| layer.remote.is_some()) => {
            Unit::Whole(Csum::Partial)
        }
        TrainCsum::Partial => Unit::Whole(Csum::Unknown),
    };
    debug_assert!(packet.offload.layers().iter().all(|layer| layer.udp != LayerCsum::Unknown));
    gso::finish(packet).ok().map(|_| ())
}
