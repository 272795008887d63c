//! The server side of one connection, without its I/O.

use std::collections::HashMap;

use crate::model::descriptors::{BCD_DEVICE, CLASS};
use crate::model::{Model, Outcome, TransferRequest};
use crate::regs::{VENDOR, endpoint};
use crate::usb::{Error, Setup, Speed};

use super::wire::{self, BUS_ID_LEN, ECONNRESET, HEADER_LEN, Header, MAX_TRANSFER, OP_LEN, Record, command, flag, op};

/// Largest number of pending transfers of one client.
const MAX_WAITING: usize = 4096;
/// Largest number of bytes in the pending transfers of one client. The kernel's usbfs gives one process 16 MiB by
/// default; like there, a transfer beyond the limit fails for lack of memory.
const MAX_HELD: usize = 64 << 20;
/// Number of bytes of memory for replies that are kept after they have been sent.
const KEPT_OUTPUT: usize = 1 << 20;

/// The state of the exported device.
#[derive(Clone, Debug)]
pub struct Exported {
    /// Bus id under which the device is exported.
    pub bus_id: String,
    /// Whether a client has the device.
    pub is_taken: bool,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection is open, and no device was imported yet.
    Greeting,
    /// The client has the device.
    Attached,
    /// The connection is to be closed once all output was sent.
    Over,
}

/// The server side of one connection.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Number of bytes of the output that were sent.
    sent: usize,
    /// Sequence numbers of pending transfers, with their lengths.
    waiting: HashMap<u32, usize>,
    /// Sum of the lengths of pending transfers.
    held: usize,
    /// Whether this connection has imported the device, until it is closed.
    owns: bool,
}

impl Default for Session {
    fn default() -> Session {
        Session {
            phase: Phase::Greeting,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            waiting: HashMap::new(),
            held: 0,
            owns: false,
        }
    }
}

fn record(model: &Model, exported: &Exported) -> Record {
    let config = model.config();
    let speed = match config.speed {
        Speed::Full => 2,
        Speed::High => 3,
        Speed::Super => 5,
    };
    Record {
        bus_id: exported.bus_id.clone(),
        bus: 1,
        device: 2,
        speed,
        identity: (VENDOR, config.chip.product()),
        release: BCD_DEVICE,
        class: CLASS,
        interfaces: 1,
    }
}

impl Session {
    /// Returns the phase of the connection.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the output to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Removes `len` bytes of output that were sent.
    pub fn sent(&mut self, len: usize) {
        self.sent = self.sent.saturating_add(len).min(self.output.len());
        if self.sent == self.output.len() {
            self.sent = 0;
            self.output.clear();
            self.output.shrink_to(KEPT_OUTPUT);
        } else if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Processes bytes from the client, in pieces of any length. Input that makes no sense ends the connection.
    pub fn feed(&mut self, bytes: &[u8], model: &mut Model, exported: &mut Exported) {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let used = match self.phase {
                Phase::Greeting => self.greet(at, model, exported),
                Phase::Attached => self.transfer(at, model),
                Phase::Over => {
                    self.input.clear();
                    return;
                }
            };
            match used {
                0 => break,
                used => at += used,
            }
        }
        self.input.drain(..at);
    }

    /// Executes an operation; returns the number of bytes consumed, 0 while it is incomplete.
    fn greet(&mut self, at: usize, model: &Model, exported: &mut Exported) -> usize {
        let bytes = &self.input[at..];
        if bytes.len() < OP_LEN {
            return 0;
        }
        match (wire::half(bytes, 0) == wire::VERSION, wire::half(bytes, 2)) {
            (true, op::REQ_DEVLIST) => {
                self.answer(op::REP_DEVLIST, 0);
                let count = u32::from(!model.is_gone());
                self.output.extend_from_slice(&count.to_be_bytes());
                if count > 0 {
                    record(model, exported).emit(&mut self.output);
                    self.output.extend(CLASS);
                    self.output.push(0);
                }
                self.phase = Phase::Over;
                OP_LEN
            }
            (true, op::REQ_IMPORT) => {
                let Some(name) = bytes.get(OP_LEN..OP_LEN + BUS_ID_LEN) else { return 0 };
                let is_known = name == wire::bus_id_bytes(&exported.bus_id) && !model.is_gone();
                if is_known && !exported.is_taken {
                    (exported.is_taken, self.owns) = (true, true);
                    self.answer(op::REP_IMPORT, 0);
                    record(model, exported).emit(&mut self.output);
                    self.phase = Phase::Attached;
                } else {
                    self.answer(op::REP_IMPORT, 1);
                    self.phase = Phase::Over;
                }
                OP_LEN + BUS_ID_LEN
            }
            _ => {
                self.phase = Phase::Over;
                OP_LEN
            }
        }
    }

    fn answer(&mut self, code: u16, status: u32) {
        self.output.extend_from_slice(&wire::VERSION.to_be_bytes());
        self.output.extend_from_slice(&code.to_be_bytes());
        self.output.extend_from_slice(&status.to_be_bytes());
    }

    /// Executes one message about a transfer; returns the number of bytes consumed, 0 while it is incomplete.
    fn transfer(&mut self, at: usize, model: &mut Model) -> usize {
        let Some(header) = Header::parse(&self.input[at..]) else { return 0 };
        match header.command {
            command::SUBMIT => self.submit(at, &header, model),
            command::UNLINK => {
                // The completion of a transfer precedes the reply to its UNLINK: the client ignores one that follows.
                self.collect(model);
                let target = header.words[0];
                let was_waiting = self.forget(target) && model.cancel(target);
                let status = if was_waiting { ECONNRESET } else { 0 };
                self.reply(command::RET_UNLINK, header.seqnum, [status as u32, 0, 0, 0, 0]);
                HEADER_LEN
            }
            _ => {
                self.phase = Phase::Over;
                HEADER_LEN
            }
        }
    }

    fn submit(&mut self, at: usize, header: &Header, model: &mut Model) -> usize {
        let [flags, len, .., interval] = header.words;
        let len = len as usize;
        let is_in = header.direction == 1;
        if len > MAX_TRANSFER || header.direction > 1 || header.ep > 15 {
            self.phase = Phase::Over;
            return HEADER_LEN;
        }
        let body = at + HEADER_LEN;
        let data = if is_in { 0..0 } else { body..body + len };
        let Some(data) = self.input.get(data.clone()).map(<[u8]>::to_vec) else { return 0 };
        let used = HEADER_LEN + data.len();
        if header.ep == 0 {
            let setup = Setup::parse(header.setup);
            let result = if setup.is_in() == is_in || setup.length == 0 {
                model.control(Setup { length: setup.length.min(len as u16), ..setup }, &data)
            } else {
                Err(Error::Protocol)
            };
            let result = result.map(|bytes| if is_in { Outcome::Received(bytes) } else { Outcome::Sent(len) });
            self.finish(header.seqnum, len, result);
            return used;
        }
        let address = header.ep as u8 | if is_in { 0x80 } else { 0 };
        if address == endpoint::INTERRUPT && interval as i32 <= 0 {
            // Linux's server drops such a connection too: usb_submit_urb refuses the interval.
            self.phase = Phase::Over;
            return used;
        }
        let wanted =
            if is_in { TransferRequest::In(len) } else { TransferRequest::Out(data, flags & flag::ZERO_PACKET != 0) };
        if self.waiting.contains_key(&header.seqnum) {
            // Two transfers with one sequence number cannot be distinguished.
            self.phase = Phase::Over;
            return used;
        }
        if self.waiting.len() >= MAX_WAITING || self.held + len > MAX_HELD {
            self.finish(header.seqnum, 0, Err(Error::Memory));
            return used;
        }
        self.waiting.insert(header.seqnum, len);
        self.held += len;
        model.submit(header.seqnum, address, wanted);
        used
    }

    fn forget(&mut self, number: u32) -> bool {
        let len = self.waiting.remove(&number);
        self.held -= len.unwrap_or(0);
        len.is_some()
    }

    /// Sends the completions that occurred since the last call.
    pub fn collect(&mut self, model: &mut Model) {
        while let Some(done) = model.done() {
            if self.forget(done.id) {
                self.finish(done.id, usize::MAX, done.result);
            } else {
                // Transfers left over from an earlier connection have no client.
                model.lose(&done);
            }
        }
        if model.is_gone() {
            self.phase = Phase::Over;
        }
    }

    fn finish(&mut self, number: u32, most: usize, result: Result<Outcome, Error>) {
        let (status, len, data) = match result {
            Ok(Outcome::Received(mut bytes)) => {
                bytes.truncate(most);
                (0, bytes.len(), bytes)
            }
            Ok(Outcome::Sent(len)) => (0, len, Vec::new()),
            Err(error) => (wire::number_of(error), 0, Vec::new()),
        };
        self.reply(command::RET_SUBMIT, number, [status as u32, len as u32, 0, 0, 0]);
        self.output.extend_from_slice(&data);
    }

    fn reply(&mut self, command: u32, seqnum: u32, words: [u32; 5]) {
        Header { command, seqnum, devid: 0, direction: 0, ep: 0, words, setup: [0; 8] }.emit(&mut self.output);
    }

    /// Ends the connection and cancels its pending transfers.
    pub fn close(&mut self, model: &mut Model, exported: &mut Exported) {
        self.waiting.clear();
        self.held = 0;
        if std::mem::take(&mut self.owns) {
            // No other connection has submitted any transfers.
            model.cancel_all();
            exported.is_taken = false;
        }
        self.phase = Phase::Over;
    }
}
