//! The transmit side: packs frames into transfers.

use segue::checksum::{Field, Sum};
use segue::gso::{self, Limits, SegmentCsum};
use segue::packet::{Frag, Kind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue::wire::{ethernet, ethertype, ipv6, read_u16, write_u16};
use segue_port::{Drop, Sent, TxBatch, TxUnit};

use crate::frame::tx::{COMMAND_LEN, Command, MAX_MSS, MIN_MSS, Tag, needs_zero_packet, padding};
use crate::frame::{ETHERNET_LEN, MAX_MTU, VLAN_LEN};
use crate::regs::endpoint;
use crate::usb::{self, Done, Request, Transfer, Transport};

use super::transmitter::{OpenTransfer, Transmitter};
use super::{Driver, Kick};

/// Length in bytes of the largest frame that the chip sends uncut, without FCS and with two tags: that of the largest
/// MTU. The chip has to hold such a frame in its 12 KiB FIFO as a whole.
const LARGEST_FRAME: usize = MAX_MTU + ETHERNET_LEN + 2 * VLAN_LEN;

/// Command for a frame, and whether its VLAN tag is removed for the chip to insert.
struct ChipOffload {
    command: Command,
    tagged: bool,
}

/// Returns the offload that the chip can do for a unit, or `None` if checksum or segmentation is left to software.
///
/// The chip finds a TCP or UDP header directly after IPv4, or after IPv6 without extension headers. It does not parse
/// VLAN tags, but can insert one of 802.1Q.
fn chip_offload(unit: &TxUnit<'_>) -> Option<ChipOffload> {
    let len = unit.len();
    let owed = unit.csum() == SegmentCsum::Partial;
    let plain = ChipOffload { command: Command::plain(u32::try_from(len).ok()?), tagged: false };
    if !owed && unit.gso().is_none() {
        return Some(plain);
    }
    let (tag, ip, transport) = match unit.layout().headers() {
        [link, ip, transport] if link.kind == Kind::Ethernet => (None, ip, transport),
        [link, tag, ip, transport] if link.kind == Kind::Ethernet && tag.kind == Kind::Vlan => {
            (Some(tag), ip, transport)
        }
        _ => return None,
    };
    let head = unit.head();
    let tag = match tag {
        Some(_) if read_u16(head, ethernet::TYPE)? != ethertype::VLAN => return None,
        Some(tag) => Tag::Insert(read_u16(head, tag.start())?),
        None => Tag::Keep,
    };
    let is_plain_ip = ip.kind == Kind::Ipv4 || ip.kind == Kind::Ipv6 && usize::from(ip.len) == ipv6::LEN;
    if !is_plain_ip || !matches!(transport.kind, Kind::Tcp | Kind::Udp) {
        return None;
    }
    let mss = match unit.gso() {
        None => None,
        Some(gso) if (MIN_MSS..=MAX_MSS).contains(&gso.size) && transport.kind == Kind::Tcp => Some(gso.size),
        Some(_) => return None,
    };
    let tagged = tag != Tag::Keep;
    let len = plain.command.len - if tagged { VLAN_LEN as u32 } else { 0 };
    let command = Command { len, tag, transport_csum: true, ip_csum: true, mss, ..plain.command };
    Some(ChipOffload { command, tagged })
}

/// Returns the pieces of a unit's frame; with `tagged`, its first tag is left out.
fn pieces<'a>(unit: &TxUnit<'a>, tagged: bool) -> impl Iterator<Item = &'a [u8]> {
    let head = unit.head();
    let (front, rest) = match tagged {
        true => (&head[..ethernet::TYPE], &head[ethernet::TYPE + VLAN_LEN..]),
        false => (head, &head[..0]),
    };
    [front, rest].into_iter().chain(unit.pieces())
}

impl<T: Transport> Driver<T> {
    pub(super) fn reap_out(&mut self, transfer: Transfer<Done>) {
        let tag = transfer.request().tag;
        let place = self.tx.lent.iter().position(|(lent, _)| *lent == tag);
        let frames = place.map_or(0, |place| self.tx.lent.remove(place).1);
        self.tx.since = Some(self.chip.usb.now());
        match transfer.result() {
            Ok(_) => (self.tx.timed_out, self.tx.clears) = (false, 0),
            Err(error) => {
                self.numbers.tx_errors += u64::from(frames);
                match error {
                    usb::Error::Gone => self.lose(),
                    usb::Error::Stall => self.tx.halted = true,
                    _ => {}
                }
            }
        }
        if !self.config.tx_fresh && self.tx.idle.len() < self.tx.total {
            self.tx.idle.push(transfer.recycle());
        }
    }

    /// Submits the transfer that is being filled, unless it has to wait for another one under way.
    pub(super) fn kick(&mut self) {
        let waits = self.config.kick == Kick::WhenIdle && !self.tx.lent.is_empty();
        if !waits && self.tx.open.is_some() {
            self.submit_open();
        }
    }

    fn submit_open(&mut self) -> bool {
        if self.tx.halted || self.gone || !self.is_up || self.tx.lent.len() >= self.tx.total || self.chip.is_late() {
            return false;
        }
        let Some(open) = self.tx.open.take() else { return false };
        let tag = self.tx.next_tag;
        self.tx.next_tag = tag.wrapping_add(1);
        if self.tx.lent.is_empty() {
            self.tx.since = Some(self.chip.usb.now());
        }
        self.tx.lent.push((tag, open.frames));
        self.numbers.tx_transfers += 1;
        self.counters.tx.calls += 1;
        let zero_packet = needs_zero_packet(open.len, self.chip.usb.speed().max_packet());
        let request = Request { endpoint: endpoint::BULK_OUT, tag, len: open.len, zero_packet };
        self.chip.usb.submit(open.memory.lend(request));
        true
    }

    /// Reserves room for a command and a frame of `len` bytes; `None` if every transfer is under way, or there is no
    /// time to submit a full one.
    fn room(&mut self, len: usize, alone: bool) -> Option<&mut [u8]> {
        let fits = |open: &OpenTransfer, limit: usize| {
            !(open.closed || alone && open.len > 0) && open.len.next_multiple_of(4) + COMMAND_LEN + len <= limit
        };
        let limit = self.config.tx_transfer_len;
        if self.tx.open.as_ref().is_some_and(|open| open.len > 0 && !fits(open, limit.min(open.memory.capacity())))
            && !self.submit_open()
        {
            return None;
        }
        if self.tx.open.is_none() {
            let memory = self.tx.memory(&self.config, COMMAND_LEN + len);
            self.numbers.no_memory += u64::from(self.tx.starved);
            let memory = memory?;
            self.tx.open = Some(OpenTransfer { memory, len: 0, frames: 0, closed: false });
        }
        let open = self.tx.open.as_mut()?;
        let start = open.len + padding(open.len);
        let end = start + COMMAND_LEN + len;
        let memory = open.memory.bytes_mut();
        if end > memory.len() {
            return None;
        }
        memory[open.len..start].fill(0);
        open.len = end;
        open.frames += 1;
        open.closed = alone;
        memory.get_mut(start..end)
    }

    /// Returns the length in bytes of the largest train, without its command.
    fn largest_train(&self) -> usize {
        self.config.tx_transfer_len.max(LARGEST_FRAME + COMMAND_LEN) - COMMAND_LEN
    }

    /// Packs the units of the batch into transfers.
    pub(super) fn pack(&mut self, batch: &mut TxBatch) -> Sent {
        loop {
            if !self.finish_cut() {
                return Sent::Blocked;
            }
            let Some(unit) = batch.units().next() else { return Sent::All };
            let (len, segments) = (unit.len(), unit.segments());
            let offload = chip_offload(&unit);
            let dropped = if self.is_too_big(&unit, offload.as_ref()) {
                Some(Drop::TooBig)
            } else if let Some(offload) = offload {
                if !self.place(&unit, &offload) {
                    return Sent::Blocked;
                }
                None
            } else {
                self.cut_in_software(&unit).err()
            };
            if let Some(reason) = dropped {
                self.counters.drops.add_many(reason, segments as u64);
            } else {
                let tx = &mut self.counters.tx;
                tx.packets += 1;
                tx.bytes += len as u64;
                tx.segments += segments as u64;
                tx.trains += u64::from(segments > 1);
            }
            batch.sent(1);
        }
    }

    /// Returns whether a frame of the unit is longer than the chip sends, or does not fit into a transfer.
    fn is_too_big(&self, unit: &TxUnit<'_>, offload: Option<&ChipOffload>) -> bool {
        let whole = offload.map_or(unit.len(), |offload| offload.command.len as usize);
        let frame = unit.gso().map_or(whole, |gso| whole.min(unit.head().len() + usize::from(gso.size)));
        // The chip gets a train as a whole, and the frames of software one by one.
        let body = if offload.is_some() { whole } else { frame };
        frame > LARGEST_FRAME
            || body > self.largest_train()
            || !self.config.tx_fresh && body + COMMAND_LEN > self.config.tx_transfer_len
    }

    /// Copies a unit into a transfer, behind its command; `false` while there is no room.
    fn place(&mut self, unit: &TxUnit<'_>, ChipOffload { command, tagged }: &ChipOffload) -> bool {
        let alone = command.mss.is_some() && !self.config.pack_trains;
        let Some(room) = self.room(command.len as usize, alone) else { return false };
        let (front, mut rest) = room.split_at_mut(COMMAND_LEN);
        front.copy_from_slice(&command.emit());
        for piece in pieces(unit, *tagged) {
            let (here, behind) = rest.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = behind;
        }
        self.numbers.lso += u64::from(command.mss.is_some());
        self.numbers.tx_csum += u64::from(command.transport_csum);
        true
    }

    /// Completes the checksum of a unit, or segments it, in software; its frames wait in `cut`.
    fn cut_in_software(&mut self, unit: &TxUnit<'_>) -> Result<(), Drop> {
        let Transmitter { scratch, cut, left, .. } = &mut self.tx;
        scratch.clear();
        pieces(unit, false).for_each(|piece| scratch.extend_from_slice(piece));
        cut.clear();
        *left = 0;
        if unit.gso().is_none()
            && let Some((start, offset)) = unit.checksum_place()
        {
            // As in Linux, a zero becomes all ones in every such field, since zero would mean no checksum (RFC 768).
            let sum = scratch.get(start..).map_or(Sum::ZERO, Sum::of);
            write_u16(scratch, start + offset, Field::complete_udp(sum).value());
            self.counters.checksummed_bytes += (scratch.len().saturating_sub(start)) as u64;
        }
        let mut packet = Packet::<&[u8]>::default();
        packet.load(Frag::all(&scratch[..]), Start::Ethernet, &Tunnels::NONE);
        packet.offload.unit = match unit.gso() {
            Some(gso) => Unit::Train { csum: TrainCsum::Partial, gso },
            None => Unit::Whole(segue::packet::Csum::Unknown),
        };
        if gso::split_linear(&packet, &Limits::NONE, cut).is_err() {
            cut.clear();
            return Err(Drop::GsoHeaders);
        }
        self.counters.checksummed_bytes += cut.take_checksummed();
        self.numbers.software += 1;
        Ok(())
    }

    /// Packs the frames that were segmented in software; `false` while there is no room.
    fn finish_cut(&mut self) -> bool {
        loop {
            let mut cut = std::mem::take(&mut self.tx.cut);
            let place = self.tx.left;
            let Some(frame) = cut.frames().get(place).map(|frame| cut.bytes(frame)) else {
                cut.clear();
                (self.tx.cut, self.tx.left) = (cut, 0);
                return true;
            };
            let room = self.room(frame.len(), false);
            let is_placed = room.is_some();
            if let Some(room) = room {
                let (front, rest) = room.split_at_mut(COMMAND_LEN);
                front.copy_from_slice(&Command::plain(frame.len() as u32).emit());
                rest.copy_from_slice(frame);
            }
            self.tx.cut = cut;
            if !is_placed {
                return false;
            }
            self.tx.left += 1;
        }
    }
}
