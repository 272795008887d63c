//! `segue pcap split --undo`: the packets that `segue pcap merge` put together, as they were.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use segue_capture::file::undo_notes::{self, About, Member};
use segue_capture::file::{Block, BlockKind, Form, Format, Item, Order, Outgoing, PcapHead, Record};
use segue_control::error::{Error, Kind};
use serde_json::json;

use super::args::Split;
use super::files::{End, Job, Sink};
use crate::out::Out;

/// Most bytes that wait for their place. A merge of ours keeps less than a tenth of this apart.
const MOST_WAITING: usize = 256 << 20;

/// Runs it.
pub(super) fn run(args: &Split, out: &Out) -> Result<(), Error> {
    let (job, mut reader) = Job::open_to(&args.input, &args.output, "split", out)?;
    let nothing = |job: &Job| {
        Error::new(
            Kind::NotFound,
            format!("there is nothing to undo in {}", job.name),
            format!("segue pcap split {} OUT           cuts by the MTU", job.name),
        )
        .why("no packet carries the note that segue pcap merge leaves in pcapng files")
    };
    if reader.format() == Format::Pcap {
        return Err(nothing(&job));
    }
    let sink = job.create(&args.output, reader.format(), out)?;
    let mut work = Work {
        sink,
        order: reader.order(),
        next: 0,
        waiting: BTreeMap::new(),
        bytes: 0,
        notes: 0,
        merged: 0,
        unreadable: 0,
        swallowed: None,
    };
    let mut end = End::default();
    loop {
        match reader.next() {
            Ok(None) => break,
            Ok(Some(Item::Packet(record))) => work.packet(&record).map_err(|error| job.write_failed(&error))?,
            Ok(Some(Item::Block(block))) => work.block(&block).map_err(|error| job.write_failed(&error))?,
            Err(error) => job.fault(&error, &mut end)?,
        }
        if let Some(number) = work.swallowed {
            job.erase();
            let text = format!("the merge that made {} cannot be undone", job.name);
            return Err(Error::new(Kind::Conflict, text, "segue pcap merge --profile strict          can be undone")
                .why(format!("packet {number} stands for acknowledgments that profile lro swallowed")));
        }
    }
    work.settle().map_err(|error| job.write_failed(&error))?;
    if work.notes == 0 && end.fault.is_none() {
        job.erase();
        return Err(nothing(&job));
    }
    let summary = json!({
        "schema": "segue.pcap.split/1",
        "undo": true,
        "packets_in": reader.packets(),
        "packets_out": work.sink.packets(),
        "trains_cut": work.merged,
        "notes_unreadable": work.unreadable,
        "cut": end.fault.as_ref().map(|(what, _)| what),
    });
    let (merged, unreadable, units) = (work.merged, work.unreadable, work.sink.packets());
    job.finish(work.sink)?;
    job.erase();
    if unreadable > 0 {
        out.warn(&format!("note: {} with a note that does not fit; left as they are", super::packets(unreadable)));
    }
    if out.json {
        return super::show_json(out, summary, &job, &end);
    }
    out.note(&format!("{} packets -> {units} packets ({merged} trains undone)", reader.packets()));
    job.verdict(&end, out)
}

/// A packet of a train whose place has not come.
struct Waiting {
    frame: Rc<[u8]>,
    member: Member,
    interface: u32,
    carried: Rc<[u8]>,
}

struct Work {
    sink: Sink,
    order: Order,
    /// The place of the next item; everything in front of it is written.
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    bytes: usize,
    notes: u64,
    merged: u64,
    unreadable: u64,
    /// The number of a packet that stands for others which are gone.
    swallowed: Option<u64>,
}

impl Work {
    fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let order = self.order;
        let note = if record.form == Form::Enhanced { undo_notes::find(record.options(), order) } else { None };
        let note = match note {
            Some((About::Members, note)) => note,
            Some((About::Swallowed, _)) => {
                self.swallowed = Some(record.number);
                return Ok(());
            }
            _ => {
                self.sink.record(record)?;
                return self.advance();
            }
        };
        let ticks = record.ticks.unwrap_or(0);
        let Some(members) = undo_notes::decode(&note, ticks, record.data()).filter(|members| !members.is_empty())
        else {
            self.unreadable += 1;
            self.sink.record(record)?;
            return self.advance();
        };
        self.notes += 1;
        self.merged += u64::from(members.len() > 1);
        let frame: Rc<[u8]> = record.data().into();
        let carried: Rc<[u8]> = undo_notes::filtered(record.options(), order, |code| code != undo_notes::OPTION).into();
        let first = self.next;
        for member in members {
            // Where a place is taken, which no file of ours has, the next free one does.
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
            Some((About::Pcap, head)) => {
                self.notes += 1;
                let head: Option<&[u8; 24]> = head.first_chunk();
                if let (Some(raw), Format::Pcap) = (head, self.sink.format())
                    && let Some(head) = PcapHead::parse(raw)
                {
                    self.sink.begin_pcap(&head, raw, &[])?;
                }
                Some(undo_notes::unannotated(kind, raw, order))
            }
            Some((About::Block, original)) => {
                self.notes += 1;
                Some(original.clone())
            }
            _ => None,
        };
        self.sink.block(&Block { raw: original.as_deref().unwrap_or(raw), ..*block })?;
        self.advance()
    }

    /// One item more stands at its place.
    fn advance(&mut self) -> io::Result<()> {
        self.next += 1;
        self.due()
    }

    /// Writes what waits for the place that has come.
    fn due(&mut self) -> io::Result<()> {
        while let Some(waiting) = self.waiting.remove(&self.next) {
            self.write(&waiting)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Writes all that waits, in order: the end, or a file from which packets are missing.
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
