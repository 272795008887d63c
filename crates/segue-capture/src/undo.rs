//! Undo: restores the packets that a merge joined.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::rc::Rc;

use crate::error::CaptureError;
use crate::file::undo_notes::{self, Member, NoteKind};
use crate::file::{
    Block, BlockKind, Form, Format, Item, Order, Outgoing, PcapHeader, ReadError, Reader, Record, Writer,
};
use crate::stream::each_item;

/// Most bytes of packets that wait for their position. Files of [`merge`](crate::merge) need less than a tenth of it.
const MOST_WAITING: usize = 256 << 20;

/// Counters of [`undo`].
#[derive(Debug)]
pub struct UndoReport {
    /// Number of packets read.
    pub packets_in: u64,
    /// Number of packets written.
    pub packets_out: u64,
    /// Number of trains that were split again.
    pub trains: u64,
    /// Number of packets left unchanged because their note did not match them.
    pub unreadable: u64,
    /// The place where the input is cut or damaged; all packets in front of it were restored.
    pub fault: Option<ReadError>,
}

/// Restores the packets that [`merge`](crate::merge::merge) joined, by its notes in a pcapng file.
///
/// # Errors
/// [`CaptureError::NothingToUndo`] for a pcap file, before anything is written, and for a file without notes;
/// [`CaptureError::Swallowed`] at the first packet that stands for others; [`CaptureError::Read`] and
/// [`CaptureError::Write`]. After an error the output is of no use.
pub fn undo<R: Read, W: Write>(reader: &mut Reader<R>, writer: &mut Writer<W>) -> Result<UndoReport, CaptureError> {
    if reader.format() == Format::Pcap {
        return Err(CaptureError::NothingToUndo);
    }
    let before = writer.packets();
    let mut work = Undoer {
        sink: writer,
        order: reader.order(),
        next: 0,
        waiting: BTreeMap::new(),
        bytes: 0,
        notes: 0,
        merged: 0,
        unreadable: 0,
    };
    let fault = each_item(reader, |item| match item {
        Item::Packet(record) => work.packet(&record),
        Item::Block(block) => work.block(&block).map_err(CaptureError::Write),
    })?;
    work.settle().map_err(CaptureError::Write)?;
    if work.notes == 0 && fault.is_none() {
        return Err(CaptureError::NothingToUndo);
    }
    Ok(UndoReport {
        packets_in: reader.packets(),
        packets_out: work.sink.packets() - before,
        trains: work.merged,
        unreadable: work.unreadable,
        fault,
    })
}

/// A packet of a train that waits for its position in the file.
struct Waiting {
    frame: Rc<[u8]>,
    member: Member,
    interface: u32,
    carried: Rc<[u8]>,
}

struct Undoer<'w, W: Write> {
    sink: &'w mut Writer<W>,
    order: Order,
    /// Position of the next item; all items in front of it are written.
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    bytes: usize,
    notes: u64,
    merged: u64,
    unreadable: u64,
}

impl<W: Write> Undoer<'_, W> {
    fn packet(&mut self, record: &Record<'_>) -> Result<(), CaptureError> {
        let is_enhanced = record.form == Form::Enhanced;
        let note = if is_enhanced { undo_notes::find(record.options(), self.order) } else { None };
        match note {
            Some((NoteKind::Members, note)) => self.members(record, &note),
            Some((NoteKind::Swallowed, _)) => return Err(CaptureError::Swallowed { packet: record.number }),
            _ => self.unchanged(record),
        }
        .map_err(CaptureError::Write)
    }

    /// Writes a packet without a note unchanged.
    fn unchanged(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.sink.record(record)?;
        self.advance()
    }

    /// Restores the packets in `note` to their original positions.
    fn members(&mut self, record: &Record<'_>, note: &[u8]) -> io::Result<()> {
        let order = self.order;
        let ticks = record.ticks.unwrap_or(0);
        let Some(members) = undo_notes::decode(note, ticks, record.data()).filter(|members| !members.is_empty()) else {
            self.unreadable += 1;
            return self.unchanged(record);
        };
        self.notes += 1;
        self.merged += u64::from(members.len() > 1);
        let frame: Rc<[u8]> = record.data().into();
        let carried: Rc<[u8]> = undo_notes::filtered(record.options(), order, |code| code != undo_notes::OPTION).into();
        let first = self.next;
        for member in members {
            // A position may be taken only in a damaged file; then the next free one is used.
            let mut place = first.saturating_add(member.position);
            while self.waiting.contains_key(&place) {
                place = place.saturating_add(1);
            }
            self.bytes += member.head.len() + member.payload.len() + 200;
            let waiting =
                Waiting { frame: Rc::clone(&frame), member, interface: record.interface, carried: Rc::clone(&carried) };
            self.waiting.insert(place, waiting);
        }
        self.due()?;
        if self.bytes > MOST_WAITING { self.settle() } else { Ok(()) }
    }

    fn block(&mut self, block: &Block<'_>) -> io::Result<()> {
        let Block { kind, raw, order, .. } = *block;
        if kind == BlockKind::Section {
            self.settle()?;
            self.order = order;
        }
        let noted = undo_notes::noted(kind, raw, order);
        let original = match &noted {
            Some((NoteKind::Pcap, head)) => {
                self.notes += 1;
                let head: Option<&[u8; 24]> = head.first_chunk();
                if let (Some(raw), Format::Pcap) = (head, self.sink.format())
                    && let Some(head) = PcapHeader::parse(raw)
                {
                    self.sink.begin_pcap(&head, raw, &[])?;
                }
                Some(undo_notes::unannotated(kind, raw, order))
            }
            Some((NoteKind::Block, original)) => {
                self.notes += 1;
                Some(original.clone())
            }
            _ => None,
        };
        self.sink.block(&Block { raw: original.as_deref().unwrap_or(raw), ..*block })?;
        self.advance()
    }

    /// Counts a written item, and writes the packets that waited for the positions behind it.
    fn advance(&mut self) -> io::Result<()> {
        self.next += 1;
        self.due()
    }

    /// Writes the packets whose position is the next one.
    fn due(&mut self) -> io::Result<()> {
        while let Some(waiting) = self.waiting.remove(&self.next) {
            self.write(&waiting)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Writes all packets that wait, in order: at the end, or if packets are missing from the file.
    fn settle(&mut self) -> io::Result<()> {
        while let Some((place, waiting)) = self.waiting.pop_first() {
            self.next = place + 1;
            self.write(&waiting)?;
        }
        Ok(())
    }

    fn write(&mut self, waiting: &Waiting) -> io::Result<()> {
        let Waiting { frame, member, interface, carried } = waiting;
        self.bytes -= (member.head.len() + member.payload.len() + 200).min(self.bytes);
        let packet = Outgoing {
            interface: *interface,
            ticks: member.ticks,
            len: member.len,
            data: &[&member.head, &frame[member.payload.clone()], &member.trailer],
            options: member.options.as_deref().unwrap_or(carried),
        };
        match &member.tail {
            Some(tail) => self.sink.packet_with_tail(&packet, tail),
            None => self.sink.packet(&packet),
        }
    }
}
