//! The two bulk engines: one moves frames from the receive FIFO into the host's transfers, the other parses the host's
//! stream of commands and frames for the MAC.

use segue::time::Nanos;

use crate::frame::rx::Header;
use crate::frame::tx::{COMMAND_LEN, Command, padding};
use crate::regs::{self, fct, hw_cfg, mac_tx, usb_cfg0};
use crate::usb::Error;

use super::{Completion, Fault, Model, Outcome};

/// Number of bytes of memory that an incomplete command keeps: twice the longest one.
const MAX_REST: usize = 2 << 20;

/// The result of parsing one command of the stream.
enum Step {
    /// A command, and the range of its frame.
    Frame(Command, std::ops::Range<usize>),
    /// The stream has too few bytes for a command with its frame.
    Incomplete,
    /// Bytes that are no valid command.
    Nonsense,
}

fn step(stream: &[u8], at: usize) -> Step {
    let Some(bytes) = stream.get(at..at + COMMAND_LEN) else { return Step::Incomplete };
    let Some(command) = Command::parse(bytes) else { return Step::Nonsense };
    let frame = at + COMMAND_LEN..at + COMMAND_LEN + command.len as usize;
    if frame.end > stream.len() { Step::Incomplete } else { Step::Frame(command, frame) }
}

impl Model {
    /// Fills the host's bulk-in transfers from the FIFO.
    pub(super) fn pump_in(&mut self) {
        while !self.bulk_in.halted
            && let Some(&(id, len)) = self.bulk_in.pending.front()
        {
            if self.in_fault(id, len) {
                continue;
            }
            let burst = self.burst_cap();
            let cap = burst.min(len);
            let many = self.register(regs::HW_CFG) & hw_cfg::MEF != 0;
            let is_open = |model: &Model| !model.bulk_in.open.bytes.is_empty();
            let mut full = false;
            if self.bulk_in.open.bytes.len() > len {
                // The transfer that was being filled was cancelled, and the next one is smaller: its frames are lost.
                self.notes.unfit += self.bulk_in.drop_open();
                self.overflow_in(id);
                continue;
            }
            let mut babble = false;
            while let Some(next) = self.bulk_in.fifo.front() {
                let needed = self.bulk_in.open.len_with(next.bytes.len());
                if needed > cap {
                    if is_open(self) {
                        full = true;
                        break;
                    }
                    let Some(lost) = self.bulk_in.fifo.pop_front() else { break };
                    self.bulk_in.used -= lost.room();
                    self.notes.unfit += 1;
                    if needed > burst {
                        continue;
                    }
                    babble = true;
                    break;
                }
                let Some(next) = self.bulk_in.fifo.pop_front() else { break };
                self.bulk_in.used -= next.room();
                let at = self.bulk_in.open.bytes.len().next_multiple_of(4);
                self.bulk_in.open.push(next.header, &next.bytes);
                self.bulk_in.open_frames += 1;
                self.bulk_in.open_bytes += next.bytes.len() as u64;
                if let Some(said) = next.said_len {
                    let header = Header { len: said, ..next.header }.emit();
                    self.bulk_in.open.bytes[at..at + header.len()].copy_from_slice(&header);
                }
                if self.defects.shifted_frames && self.bulk_in.open.bytes.len() + 2 <= cap {
                    let behind = at + crate::frame::rx::HEADER_LEN;
                    self.bulk_in.open.bytes.splice(behind..behind, [0, 0]);
                }
                self.bulk_in.closes_at = self.now.after(self.bulk_in_delay());
                if !many || needed == cap {
                    full = true;
                    break;
                }
            }
            if babble {
                self.overflow_in(id);
                continue;
            }
            if !is_open(self) {
                let nak = self.register(regs::USB_CFG0) & usb_cfg0::BIR != 0;
                let runs = self.register(regs::FCT_RX_CTL) & fct::EN != 0;
                if nak || !runs || self.now < self.bulk_in.next_empty {
                    return;
                }
                self.bulk_in.next_empty = self.now.after(self.empty_interval());
            } else if !full && self.now < self.bulk_in.closes_at {
                return;
            }
            self.bulk_in.pending.pop_front();
            let bytes = std::mem::take(&mut self.bulk_in.open.bytes);
            self.finish_in(id, bytes);
        }
    }

    /// Completes the next transfer with an overflow: the device has sent more than it can hold.
    fn overflow_in(&mut self, id: u32) {
        self.bulk_in.pending.pop_front();
        self.notes.bulk_in += 1;
        self.complete(id, Err(Error::Overflow));
    }

    fn finish_in(&mut self, id: u32, mut bytes: Vec<u8>) {
        if let Some(Fault::ShortTransfer(len)) = self.take_fault(|fault| matches!(fault, Fault::ShortTransfer(_))) {
            bytes.truncate(len);
        }
        self.notes.bulk_in += 1;
        let frames = std::mem::take(&mut self.bulk_in.open_frames);
        self.notes.bulk_in_frames += frames;
        self.notes.bulk_in_bytes += std::mem::take(&mut self.bulk_in.open_bytes);
        self.completions.push_back(Completion { id, result: Ok(Outcome::Received(bytes)), frames });
    }

    /// Applies an injected fault to the transfer `id`; returns whether there was one.
    fn in_fault(&mut self, id: u32, len: usize) -> bool {
        let is_meant =
            |fault: &Fault| matches!(fault, Fault::BulkInStall | Fault::EmptyTransfer | Fault::RawTransfer(_));
        let Some(fault) = self.take_fault(is_meant) else { return false };
        self.bulk_in.pending.pop_front();
        self.notes.bulk_in += 1;
        let result = match fault {
            Fault::RawTransfer(mut bytes) => {
                bytes.truncate(len);
                Ok(Outcome::Received(bytes))
            }
            Fault::BulkInStall => {
                self.bulk_in.halted = true;
                Err(Error::Stall)
            }
            _ => Ok(Outcome::Received(Vec::new())),
        };
        self.complete(id, result);
        true
    }

    pub(super) fn in_deadline(&self) -> Option<Nanos> {
        let side = &self.bulk_in;
        if side.pending.is_empty() || side.halted {
            return None;
        }
        if !side.open.bytes.is_empty() {
            return Some(side.closes_at);
        }
        let nak = self.register(regs::USB_CFG0) & usb_cfg0::BIR != 0;
        let runs = self.register(regs::FCT_RX_CTL) & fct::EN != 0;
        (!nak && runs).then_some(side.next_empty)
    }

    /// Processes the host's bulk-out transfers until the MAC accepts no more frames.
    pub(super) fn pump_out(&mut self) {
        let runs = self.register(regs::FCT_TX_CTL) & fct::EN != 0 && self.register(regs::MAC_TX) & mac_tx::TXEN != 0;
        if !self.bulk_out.pending.is_empty() {
            self.catch_up_out();
        }
        while runs && !self.bulk_out.halted && self.mac_takes_more() {
            let Some((id, data, zero)) = self.bulk_out.pending.pop_front() else { break };
            self.notes.bulk_out += 1;
            let stalled = self.take_fault(|fault| matches!(fault, Fault::BulkOutStall)).is_some();
            let packet = self.config.speed.max_packet();
            let ends_short = zero || data.len() % packet != 0 || data.is_empty();
            if !stalled && !ends_short {
                self.notes.unterminated += 1;
            }
            let len = data.len();
            if stalled || !self.take_stream(data, ends_short) {
                let stays = !stalled && self.register(regs::USB_CFG0) & usb_cfg0::NO_STALL != 0;
                self.bulk_out.restart();
                if !stays {
                    self.bulk_out.halted = true;
                    self.complete(id, Err(Error::Stall));
                    break;
                }
            }
            self.complete(id, Ok(Outcome::Sent(len)));
        }
        let could = runs && !self.bulk_out.halted && !self.is_paused();
        self.mac.waited_out = could && !self.bulk_out.pending.is_empty();
    }

    /// Executes the commands in a part of the stream; `false` at a loss of sync.
    fn take_stream(&mut self, data: Vec<u8>, ends_short: bool) -> bool {
        let mut stream = std::mem::take(&mut self.bulk_out.rest);
        if stream.is_empty() {
            stream = data;
        } else {
            stream.extend_from_slice(&data);
        }
        let offset = self.bulk_out.offset;
        let mut at = 0;
        while at < stream.len() {
            match step(&stream, at) {
                Step::Frame(command, frame) => {
                    at = frame.end;
                    self.send(&command, stream[frame].to_vec());
                    // Padding is present only if another command follows.
                    at = (at + padding(offset + at)).min(stream.len());
                }
                Step::Incomplete if !ends_short => break,
                Step::Incomplete | Step::Nonsense => {
                    self.notes.lost_sync += 1;
                    self.raise(regs::int::TXE);
                    return false;
                }
            }
        }
        if ends_short {
            self.bulk_out.restart();
        } else {
            self.bulk_out.offset = (offset + at) % crate::frame::tx::ALIGN;
            // In place: a command may come in very many transfers.
            stream.drain(..at);
            stream.shrink_to(MAX_REST);
            self.bulk_out.rest = stream;
        }
        true
    }
}
