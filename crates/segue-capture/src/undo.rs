//! Undo: restores the packets that a merge joined.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use crate::error::CaptureError;
use crate::file::undo_notes::{self, Decoder, Member, NoteKind};
use crate::file::{
    Block, BlockKind, Form, Format, Item, Order, Outgoing, PcapHeader, ReadError, Reader, Record, Writer, is_whole,
};
use crate::stream::each_item;

/// Maximum number of bytes of merged packets whose packets wait for their position. Files of [`merge`](crate::merge)
/// need less than a tenth of it.
const MOST_WAITING: usize = 256 << 20;
/// Number of bytes of memory that a waiting train takes in addition to its packet and its note.
const OVERHEAD: usize = 512;

/// Counters of [`undo`].
#[derive(Debug)]
#[non_exhaustive]
pub struct UndoReport {
    /// Number of packets read.
    pub packets_in: u64,
    /// Number of packets written.
    pub packets_out: u64,
    /// Number of trains that were split again.
    pub trains: u64,
    /// Number of packets and blocks left as they are because their note did not match them; blocks lose it.
    pub unreadable: u64,
    /// Number of positions, in packets and blocks, that nothing in the file has although later ones are taken: what was
    /// there is gone, and what follows may be in another order. Of what is gone behind all trains nothing can be said.
    pub missing: u64,
    /// The position at which the input is truncated or damaged; all packets before it were restored.
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
        trains: 0,
        bytes: 0,
        notes: 0,
        merged: 0,
        unreadable: 0,
        missing: 0,
    };
    let fault = each_item(reader, |item| match item {
        Item::Packet(record) => work.packet(&record),
        Item::Block(block) => work.block(&block).map_err(CaptureError::Write),
    })?;
    work.settle().map_err(CaptureError::Write)?;
    if work.notes == 0 && work.unreadable == 0 && fault.is_none() {
        return Err(CaptureError::NothingToUndo);
    }
    Ok(UndoReport {
        packets_in: reader.packets(),
        packets_out: work.sink.packets() - before,
        trains: work.merged,
        unreadable: work.unreadable,
        missing: work.missing,
        fault,
    })
}

/// A train with packets that wait for their position in the file. Only the next one of them is decoded.
struct Waiting {
    frame: Vec<u8>,
    note: Vec<u8>,
    /// Options that all packets of the train share.
    carried: Vec<u8>,
    interface: u32,
    /// Position of the train's first packet.
    first: u64,
    decoder: Decoder,
    next: Member,
}

struct Undoer<'w, W: Write> {
    sink: &'w mut Writer<W>,
    order: Order,
    /// Position of the next item; all items before it are written.
    next: u64,
    /// Trains by the position of their next packet. Two packets have the same one only in a damaged file; they are
    /// written in the order of their trains.
    waiting: BTreeMap<(u64, u64), Waiting>,
    /// Number of trains read.
    trains: u64,
    bytes: usize,
    notes: u64,
    merged: u64,
    unreadable: u64,
    missing: u64,
}

impl<W: Write> Undoer<'_, W> {
    fn packet(&mut self, record: &Record<'_>) -> Result<(), CaptureError> {
        let is_enhanced = record.form == Form::Enhanced;
        let note = if is_enhanced { undo_notes::find(record.options(), self.order) } else { None };
        match note {
            Some((NoteKind::Members, note)) => self.members(record, note),
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
    fn members(&mut self, record: &Record<'_>, note: Vec<u8>) -> io::Result<()> {
        let carried = undo_notes::filtered(record.options(), self.order, |code| code != undo_notes::OPTION);
        let decoder = Decoder::new(&note, record.ticks.unwrap_or(0), record.data(), carried.len());
        let next = decoder.and_then(|mut decoder| Some((decoder.next(&note, record.data())?, decoder)));
        let Some((next, decoder)) = next else {
            self.unreadable += 1;
            return self.unchanged(record);
        };
        self.notes += 1;
        self.merged += u64::from(decoder.has_more());
        self.trains += 1;
        let (first, interface, frame) = (self.next, record.interface, record.data().to_vec());
        self.bytes += frame.len() + note.len() + carried.len() + OVERHEAD;
        let place = first.saturating_add(next.position);
        let train = Waiting { frame, note, carried, interface, first, decoder, next };
        self.waiting.insert((place, self.trains), train);
        self.due()?;
        if self.bytes > MOST_WAITING { self.settle() } else { Ok(()) }
    }

    fn block(&mut self, block: &Block<'_>) -> io::Result<()> {
        let Block { kind, raw, order, .. } = *block;
        if kind == BlockKind::Section {
            self.settle()?;
            // Positions are relative, and a crafted one may have been the last of all.
            (self.order, self.next) = (order, 0);
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
            Some((NoteKind::Block, original)) if is_whole(kind, original, order) => {
                self.notes += 1;
                Some(original.clone())
            }
            // Written as it is, it would take what follows in the file with it.
            Some((NoteKind::Block, _)) => {
                self.unreadable += 1;
                Some(undo_notes::unannotated(kind, raw, order))
            }
            _ => None,
        };
        self.sink.block(&Block { raw: original.as_deref().unwrap_or(raw), ..*block })?;
        self.advance()
    }

    /// Counts a written item, and writes the packets that waited for the positions after it.
    fn advance(&mut self) -> io::Result<()> {
        self.next = self.next.saturating_add(1);
        self.due()
    }

    /// Writes the packets whose position is the next one.
    fn due(&mut self) -> io::Result<()> {
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 <= self.next) {
            let ((_, number), train) = entry.remove_entry();
            self.write(number, train)?;
            self.next = self.next.saturating_add(1);
        }
        Ok(())
    }

    /// Writes all packets that wait, in order: at the end, or if packets are missing from the file.
    fn settle(&mut self) -> io::Result<()> {
        while let Some(((place, number), train)) = self.waiting.pop_first() {
            self.missing = self.missing.saturating_add(place.saturating_sub(self.next));
            self.next = self.next.max(place).saturating_add(1);
            self.write(number, train)?;
        }
        Ok(())
    }

    /// Writes the next packet of a train, which then waits with the one that follows.
    fn write(&mut self, number: u64, mut train: Waiting) -> io::Result<()> {
        let Waiting { frame, note, carried, interface, first, decoder, next: member } = &mut train;
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
        }?;
        match decoder.next(note, frame) {
            Some(next) => {
                let place = first.saturating_add(next.position);
                *member = next;
                self.waiting.insert((place, number), train);
            }
            None => self.bytes -= (frame.len() + note.len() + carried.len() + OVERHEAD).min(self.bytes),
        }
        Ok(())
    }
}
