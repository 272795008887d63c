//! The client: a device on another machine as a [`Transport`].

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use segue::time::Nanos;
use segue_port::Interest;

use crate::regs::endpoint;
use crate::sys;
use crate::usb::{Done, Error, Guard, Lent, Request, Setup, Speed, Transfer, Transport};

use super::greeting::{Greeting, ImportError, request_operation};
use super::wire::{self, HEADER_LEN, Header, MAX_TRANSFER, RECORD_LEN, Record, command, flag, op};

/// Timeout of a control request, nanoseconds, as in Linux.
const CONTROL_TIMEOUT: u64 = 5_000_000_000;
/// Pause after a read from the connection that returned nothing although poll(2) reported it ready.
const FAILED_PAUSE: Duration = Duration::from_millis(5);
/// Largest number of UNLINK requests without an answer. An honest server answers each, and the driver has fewer
/// transfers.
const MAX_UNLINKS: usize = 1024;
/// Interval of the interrupt endpoint, in frames of 1 ms, or above full speed in microframes of 125 us. Linux's server
/// drops the connection if it is 0.
const INTERRUPT_INTERVAL: u32 = 8;
/// Largest number of transfers that ended by the reply to their UNLINK and whose own reply is still recognized.
const MAX_ENDED: usize = 256;

/// A request without a reply so far.
#[derive(Debug)]
enum Waiting {
    /// A transfer, and whether its cancellation was requested.
    Transfer(Transfer<Lent>, bool),
    /// A control request, with the largest length of its reply.
    Control(usize),
    /// A request to cancel a transfer.
    Unlink(u32),
    /// A control request that has timed out, or a transfer that ended by the reply to its UNLINK, with the largest
    /// length of its reply, which is ignored.
    Forgotten(usize),
}

/// A device on another machine, imported by USB/IP.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    record: Record,
    speed: Speed,
    next: u32,
    waiting: HashMap<u32, Waiting>,
    /// Sequence numbers of transfers in the order of submission.
    order: VecDeque<u32>,
    /// Sequence numbers of the last transfers that ended by the reply to their UNLINK.
    ended: VecDeque<u32>,
    done: VecDeque<Transfer<Done>>,
    /// The reply to the control request in progress.
    answer: Option<Result<Vec<u8>, Error>>,
    input: Vec<u8>,
    gone: bool,
    guard: Option<Arc<Guard>>,
}

impl Client {
    /// Imports the device `bus_id` of a server.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(server: impl ToSocketAddrs, bus_id: &str) -> Result<Client, ImportError> {
        Client::import_guarded(server, bus_id, None)
    }

    /// Imports a device under a guard, which the client keeps; see [`Transport::guard`].
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import_guarded(
        server: impl ToSocketAddrs,
        bus_id: &str,
        guard: Option<Arc<Guard>>,
    ) -> Result<Client, ImportError> {
        Client::import_accepted(server, bus_id, guard, &|_| true)
    }

    /// Imports a device under a guard if `accepts` accepts the vendor and product id that the server names. A device
    /// that is not accepted is given back before any request is sent to it.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import_accepted(
        server: impl ToSocketAddrs,
        bus_id: &str,
        guard: Option<Arc<Guard>>,
        accepts: &dyn Fn((u16, u16)) -> bool,
    ) -> Result<Client, ImportError> {
        let mut stream = Greeting::connect(server, guard.as_deref())?;
        if request_operation(&mut stream, op::REQ_IMPORT, &wire::bus_id_bytes(bus_id), op::REP_IMPORT)? != 0 {
            return Err(ImportError::Refused);
        }
        let mut bytes = [0; RECORD_LEN];
        stream.read_exact(&mut bytes)?;
        let record = Record::parse(&bytes).ok_or(ImportError::Protocol)?;
        if !accepts(record.identity) {
            return Err(ImportError::Other(record.identity));
        }
        let mut client = Client { guard: guard.clone(), ..Client::of(stream.stream, record)? };
        // The server does not configure the device.
        const SET_CONFIGURATION: u8 = 9;
        let setup = Setup { request_type: 0, request: SET_CONFIGURATION, value: 1, index: 0, length: 0 };
        client.control_out(setup, &[]).map_err(ImportError::Configuration)?;
        Ok(client)
    }

    /// Creates a client for a device that was imported but not used yet, possibly by another process; see
    /// [`Client::into_parts`].
    ///
    /// # Errors
    /// [`ImportError::Speed`] for a device with a speed that no adapter has.
    pub fn of(stream: TcpStream, record: Record) -> Result<Client, ImportError> {
        let speed = record.usb_speed().ok_or(ImportError::Speed(record.speed))?;
        Ok(Client {
            stream,
            record,
            speed,
            next: 1,
            waiting: HashMap::new(),
            order: VecDeque::new(),
            ended: VecDeque::new(),
            done: VecDeque::new(),
            answer: None,
            input: Vec::new(),
            gone: false,
            guard: None,
        })
    }

    /// Returns the connection and the device's record, for another process. Only valid while nothing was submitted.
    pub fn into_parts(self) -> (TcpStream, Record) {
        (self.stream, self.record)
    }

    /// Returns the next sequence number. One that still waits for its reply is skipped: the transfer of the interrupt
    /// endpoint may wait while all others are used.
    fn number(&mut self) -> u32 {
        while self.waiting.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1).max(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        number
    }

    fn lose(&mut self) {
        self.gone = true;
        self.answer.get_or_insert(Err(Error::Gone));
        for number in std::mem::take(&mut self.order) {
            if let Some(Waiting::Transfer(transfer, _)) = self.waiting.remove(&number) {
                self.done.push_back(transfer.complete(Err(Error::Gone)));
            }
        }
        self.waiting.clear();
    }

    /// Closes the connection if the guard has stopped.
    fn check_guard(&mut self) {
        if self.guard.as_ref().is_some_and(|guard| guard.verdict().is_some()) {
            self.lose();
        }
    }

    /// Sends a USB/IP message. While the connection's send buffer is full, waits and reads, so that both ends cannot
    /// block each other.
    fn send(&mut self, bytes: &[u8]) {
        let (mut at, mut is_again) = (0, false);
        let until = segue_port::now().after(CONTROL_TIMEOUT);
        while at < bytes.len() && !self.gone {
            match self.stream.write(&bytes[at..]) {
                Ok(0) => self.lose(),
                Ok(len) => (at, is_again) = (at + len, false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && segue_port::now() < until => {
                    let interest = Interest { fd: self.stream.as_fd(), read: true, write: true };
                    let _ = sys::wait(&[interest], Some(Duration::from_millis(100)));
                    // A wait that ends at once, again and again, costs no processor time.
                    if !self.listen() && std::mem::replace(&mut is_again, true) {
                        std::thread::sleep(FAILED_PAUSE);
                    }
                    self.check_guard();
                }
                Err(_) => self.lose(),
            }
        }
    }

    /// Reads messages of the server. Returns whether there was anything to read.
    fn listen(&mut self) -> bool {
        let mut buffer = [0; 65536];
        let mut has_read = false;
        while !self.gone {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.lose(),
                Ok(len) => {
                    has_read = true;
                    self.input.extend_from_slice(&buffer[..len]);
                    if self.process_input().is_none() {
                        self.lose();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.lose(),
            }
        }
        has_read
    }

    /// Processes the complete messages in the buffer; `None` for an invalid one.
    fn process_input(&mut self) -> Option<()> {
        let mut at = 0;
        while let Some(header) = Header::parse(&self.input[at..]) {
            match header.command {
                command::RET_SUBMIT => {
                    let Some(len) = self.submitted(&header, at + HEADER_LEN)? else { break };
                    at += HEADER_LEN + len;
                }
                command::RET_UNLINK => {
                    // A transfer that has the number stays, and comes back when the device is given up.
                    let Some(Waiting::Unlink(target)) = self.waiting.get(&header.seqnum) else { return None };
                    let target = *target;
                    self.waiting.remove(&header.seqnum);
                    self.unlinked(target, wire::error_of(header.words[0] as i32));
                    at += HEADER_LEN;
                }
                _ => return None,
            }
        }
        self.input.drain(..at);
        Some(())
    }

    /// Ends a transfer that still waits for its reply when that to its UNLINK arrives. Linux's server sends no other if
    /// the transfer completed before it could be cancelled, and says how (0 for a success, without the data). Other
    /// servers may still send the transfer's own reply.
    fn unlinked(&mut self, number: u32, error: Option<Error>) {
        let Some(Waiting::Transfer(transfer, _)) = self.waiting.get(&number) else { return };
        let Request { endpoint, len, .. } = transfer.request();
        self.finish(number, Err(error.unwrap_or(Error::Cancelled)));
        if error == Some(Error::Cancelled) {
            return;
        }
        self.waiting.insert(number, Waiting::Forgotten(if endpoint & 0x80 != 0 { len } else { 0 }));
        self.ended.push_back(number);
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
            && let Some(Waiting::Forgotten(_)) = self.waiting.get(&oldest)
        {
            self.waiting.remove(&oldest);
        }
    }

    /// Processes the reply to a transfer. Returns the length of its data, or `Some(None)` while they are incomplete.
    #[expect(clippy::option_option, reason = "nonsense, not yet, and done are three answers")]
    fn submitted(&mut self, header: &Header, body: usize) -> Option<Option<usize>> {
        let (status, len) = (header.words[0] as i32, header.words[1] as usize);
        let result = wire::error_of(status).map_or(Ok(len), Err);
        match self.waiting.get_mut(&header.seqnum)? {
            Waiting::Transfer(transfer, _) => {
                let request = transfer.request();
                if len > request.len.min(MAX_TRANSFER) {
                    return None;
                }
                let mut data = 0;
                if request.endpoint & 0x80 != 0 {
                    let Some(bytes) = self.input.get(body..body + len) else { return Some(None) };
                    transfer.incoming()[..len].copy_from_slice(bytes);
                    data = len;
                }
                self.finish(header.seqnum, result);
                Some(Some(data))
            }
            waiting @ (Waiting::Control(_) | Waiting::Forgotten(_)) => {
                let is_wanted = matches!(waiting, Waiting::Control(_));
                let (Waiting::Control(most) | Waiting::Forgotten(most)) = *waiting else { return None };
                // The reply to a request with outgoing data has no data.
                let data = if most == 0 { 0 } else { len };
                if data > most {
                    return None;
                }
                let Some(bytes) = self.input.get(body..body + data) else { return Some(None) };
                if is_wanted {
                    self.answer = Some(result.map(|_| bytes.to_vec()));
                }
                self.waiting.remove(&header.seqnum);
                Some(Some(data))
            }
            Waiting::Unlink(_) => None,
        }
    }

    fn finish(&mut self, number: u32, result: Result<usize, Error>) {
        if let Some(Waiting::Transfer(transfer, _)) = self.waiting.remove(&number) {
            self.order.retain(|waiting| *waiting != number);
            self.done.push_back(transfer.complete(result));
        }
    }

    fn header(&self, number: u32, endpoint: u8, words: [u32; 5], setup: [u8; 8]) -> Header {
        Header {
            command: command::SUBMIT,
            seqnum: number,
            devid: self.record.bus << 16 | self.record.device,
            direction: u32::from(endpoint >> 7),
            ep: u32::from(endpoint & 0x7f),
            words,
            setup,
        }
    }

    fn control(&mut self, setup: Setup, data: &[u8]) -> Result<Vec<u8>, Error> {
        self.check_guard();
        if self.gone {
            return Err(Error::Gone);
        }
        let number = self.number();
        let (endpoint, flags, most) =
            if setup.is_in() { (0x80, flag::DIR_IN, usize::from(setup.length)) } else { (0, 0, 0) };
        let mut message = Vec::with_capacity(HEADER_LEN + data.len());
        self.header(number, endpoint, [flags, u32::from(setup.length), 0, 0, 0], setup.emit()).emit(&mut message);
        message.extend_from_slice(data);
        self.waiting.insert(number, Waiting::Control(most));
        self.answer = None;
        self.send(&message);
        let until = segue_port::now().after(CONTROL_TIMEOUT);
        let mut is_ready = false;
        loop {
            if !self.listen() && is_ready {
                std::thread::sleep(FAILED_PAUSE);
            }
            if let Some(answer) = self.answer.take() {
                return answer;
            }
            let left = until.0.saturating_sub(segue_port::now().0);
            if left == 0 {
                // The reply may still come.
                self.waiting.insert(number, Waiting::Forgotten(most));
                return Err(Error::Timeout);
            }
            let mut left = Duration::from_nanos(left);
            let mut interests = vec![Interest::read(self.stream.as_fd())];
            if let Some(guard) = &self.guard {
                left = left.min(guard.left());
                interests.push(guard.interest());
            }
            // A wait that fails ends at once too.
            is_ready = sys::wait(&interests, Some(left)).map_or(true, |ready| ready.first() == Some(&true));
            self.check_guard();
        }
    }
}

impl Transport for Client {
    fn identity(&self) -> (u16, u16) {
        self.record.identity
    }

    fn speed(&self) -> Speed {
        self.speed
    }

    fn control_in(&mut self, setup: Setup, into: &mut [u8]) -> Result<usize, Error> {
        let answer = self.control(setup, &[])?;
        let len = answer.len().min(into.len());
        into[..len].copy_from_slice(&answer[..len]);
        Ok(len)
    }

    fn control_out(&mut self, setup: Setup, data: &[u8]) -> Result<(), Error> {
        self.control(setup, data).map(drop)
    }

    fn submit(&mut self, transfer: Transfer<Lent>) {
        if self.gone {
            return self.done.push_back(transfer.complete(Err(Error::Gone)));
        }
        let request = transfer.request();
        let number = self.number();
        let is_in = request.endpoint & 0x80 != 0;
        let mut flags = if is_in { flag::DIR_IN } else { 0 };
        if request.zero_packet {
            flags |= flag::ZERO_PACKET;
        }
        let outgoing = if is_in { &[][..] } else { transfer.outgoing() };
        let interval = if request.endpoint == endpoint::INTERRUPT { INTERRUPT_INTERVAL } else { 0 };
        let mut message = Vec::with_capacity(HEADER_LEN + outgoing.len());
        self.header(number, request.endpoint, [flags, request.len as u32, 0, 0, interval], [0; 8]).emit(&mut message);
        message.extend_from_slice(outgoing);
        self.waiting.insert(number, Waiting::Transfer(transfer, false));
        self.order.push_back(number);
        self.send(&message);
    }

    fn reap(&mut self) -> Option<Transfer<Done>> {
        if self.done.is_empty() {
            self.listen();
        }
        self.done.pop_front()
    }

    fn cancel(&mut self, endpoint: u8) {
        let mut targets = Vec::new();
        for number in &self.order {
            if let Some(Waiting::Transfer(transfer, is_cancelled)) = self.waiting.get_mut(number)
                && transfer.request().endpoint == endpoint
                && !std::mem::replace(is_cancelled, true)
            {
                targets.push(*number);
            }
        }
        let unanswered = self.waiting.values().filter(|waiting| matches!(waiting, Waiting::Unlink(_))).count();
        if !targets.is_empty() && unanswered + targets.len() > MAX_UNLINKS {
            return self.lose();
        }
        // In one message, so that the time to send it is that of one.
        let mut message = Vec::with_capacity(targets.len() * HEADER_LEN);
        for target in targets {
            let number = self.number();
            let mut header = self.header(number, endpoint, [target, 0, 0, 0, 0], [0; 8]);
            header.command = command::UNLINK;
            header.emit(&mut message);
            self.waiting.insert(number, Waiting::Unlink(target));
        }
        self.send(&message);
    }

    fn clear_halt(&mut self, endpoint: u8) -> Result<(), Error> {
        const CLEAR_FEATURE: u8 = 1;
        let index = u16::from(endpoint);
        self.control_out(Setup { request_type: 2, request: CLEAR_FEATURE, value: 0, index, length: 0 }, &[])
    }

    fn guard(&mut self, guard: Option<Arc<Guard>>) {
        self.guard = guard;
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn release(&mut self) {
        // The connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.lose();
    }

    fn now(&self) -> Nanos {
        segue_port::now()
    }

    fn sleep(&mut self, nanos: u64) {
        std::thread::sleep(Duration::from_nanos(nanos));
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }

    fn deadline(&self) -> Option<Nanos> {
        // Messages read during a control request make no descriptor readable.
        (!self.done.is_empty()).then_some(Nanos(0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_sequence_number_that_waits_for_its_reply_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let record = Record {
            bus_id: "1-1".into(),
            bus: 1,
            device: 2,
            speed: 5,
            identity: (0x0424, 0x7800),
            release: 0,
            class: [0; 3],
            interfaces: 0,
        };
        let mut client = Client::of(stream, record).unwrap();
        let lend = |client: &mut Client, endpoint| {
            let request = Request { endpoint, tag: 0, len: 64, zero_packet: false };
            client.submit(Transfer::allocate(64).unwrap().lend(request));
        };
        lend(&mut client, endpoint::INTERRUPT);
        client.next = u32::MAX;
        (0..2).for_each(|_| lend(&mut client, endpoint::BULK_IN));
        let mut numbers: Vec<u32> = client.waiting.keys().copied().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, u32::MAX]);
    }
}
