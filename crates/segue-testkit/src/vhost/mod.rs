//! A front end of vhost-user without a guest, which has memory in a file, writes valid and invalid rings into it, and
//! sends messages.
//!
//! Memory is written and read through the file, and the back end has it mapped: both see the same pages.

mod sys;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Feature bits, by their numbers in virtio 1.2.
pub mod feature {
    /// Feature bit: the device accepts partial checksums from the guest.
    pub const CSUM: u64 = 1 << 0;
    /// Feature bit: the guest accepts partial checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// Feature bit: the guest accepts TCP trains over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// Feature bit: the guest accepts TCP trains over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// Feature bit: the guest accepts TCP trains with CWR.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// Feature bit: the device accepts TCP trains over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// Feature bit: the device accepts TCP trains over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// Feature bit: a received packet may span several buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Feature bit: the device logs the memory that it writes, for a live migration.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Feature bit: indirect descriptor tables.
    pub const INDIRECT: u64 = 1 << 28;
    /// Feature bit: event indexes.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Feature bit: vhost-user protocol features.
    pub const PROTOCOL: u64 = 1 << 30;
    /// Feature bit: version 1 of virtio.
    pub const VERSION_1: u64 = 1 << 32;
    /// Feature bit: addresses are translated by an IOMMU.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    /// Feature bit: the guest accepts UDP trains over IPv4.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// Feature bit: the guest accepts UDP trains over IPv6.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// Feature bit: the device accepts UDP trains.
    pub const HOST_USO: u64 = 1 << 56;
    /// The features that a recent Linux driver chooses.
    pub const USUAL: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | GUEST_ECN
        | HOST_TSO4
        | HOST_TSO6
        | MRG_RXBUF
        | INDIRECT
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1
        | GUEST_USO4
        | GUEST_USO6;
}

/// Numbers of vhost-user messages.
pub mod message {
    #![allow(missing_docs, reason = "the names are those of the protocol")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const IOTLB_MSG: u32 = 22;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// The queue by which a guest receives.
pub const TO_GUEST: u16 = 0;
/// The queue by which a guest sends.
pub const FROM_GUEST: u16 = 1;

/// Flag of a descriptor: another one follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes to it.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: it names a table of descriptors.
pub const INDIRECT_TABLE: u16 = 4;

/// Address of the memory in the guest.
pub const GUEST_BASE: u64 = 0x4000_0000;
/// Address of the memory in the front end.
pub const USER_BASE: u64 = 0x7f00_0000_0000;
/// Length of the guest's memory, bytes.
pub const MEMORY_LEN: u64 = 24 << 20;
/// Start of the buffers in the memory, after the rings and tables.
pub const BUFFERS: u64 = 0x20_0000;

/// Length of a queue's area in the memory; the following offsets are those of its rings within the area.
const QUEUE_LEN: u64 = 0x10_0000;
const AVAILABLE: u64 = 0x8_0000;
const USED: u64 = 0xa_0000;

/// A descriptor: an address of the guest, a length, flags and the next one's number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    /// Guest physical address of the buffer.
    pub address: u64,
    /// Length of the buffer, bytes.
    pub len: u32,
    /// Flags of the ring descriptor.
    pub flags: u16,
    /// Number of the next descriptor in the chain.
    pub next: u16,
}

impl Descriptor {
    /// Returns the bytes as they lie in a table.
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// A ring of the front end.
#[derive(Debug)]
struct Ring {
    kick: File,
    call: File,
    /// Number of chains that were offered.
    offered: u16,
    /// Number of chains that were returned.
    returned: u16,
}

/// A vhost-user front end of the tests.
#[derive(Debug)]
pub struct Frontend {
    /// The connection to the back end.
    pub stream: UnixStream,
    /// The memory of the guest, a file.
    pub memory: File,
    /// Number of entries of each queue.
    pub size: u16,
    features: u64,
    rings: [Ring; 2],
    /// Length of a buffer for receiving.
    buffer_len: u32,
}

impl Frontend {
    /// Connects to a back end at `path`, and waits until it listens.
    pub fn connect(path: &Path, features: u64) -> Frontend {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Frontend::over(stream, features),
                Err(error) if begin.elapsed() > PATIENCE => panic!("nobody listens at {}: {error}", path.display()),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Returns a front end on a connection, with queues of 256. Nothing is sent yet.
    pub fn over(stream: UnixStream, features: u64) -> Frontend {
        let memory = sys::memory_file().expect("memory");
        memory.set_len(MEMORY_LEN).expect("memory");
        Frontend::with_memory(stream, features, memory)
    }

    /// Creates a front end with the memory of an earlier one, like a guest that reconnects to a new back end.
    pub fn with_memory(stream: UnixStream, features: u64, memory: File) -> Frontend {
        let ring = || Ring {
            kick: sys::event_counter().expect("an event counter"),
            call: sys::event_counter().expect("an event counter"),
            offered: 0,
            returned: 0,
        };
        Frontend { stream, memory, size: 256, features, rings: [ring(), ring()], buffer_len: 0 }
    }

    /// Sends a message without descriptors.
    pub fn send(&mut self, number: u32, payload: &[u8]) {
        self.send_with(number, 1, payload, &[]);
    }

    /// Sends a message with these flags and descriptors. A connection that the back end has closed is no error.
    pub fn send_with(&mut self, number: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let words = [number, flags, payload.len() as u32];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect();
        let _ = sys::send(&self.stream, &bytes, fds);
    }

    /// Sends bytes that need not be a message.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = (&self.stream).write_all(bytes);
    }

    /// Reads the next reply: its number and its payload; `None` if there is none.
    pub fn reply(&mut self) -> Option<(u32, Vec<u8>)> {
        self.stream.set_nonblocking(true).expect("a socket");
        let mut header = [0; 12];
        let got = (&self.stream).read(&mut header);
        self.stream.set_nonblocking(false).expect("a socket");
        match got {
            Ok(12) => {}
            Ok(_) => return None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => return None,
        }
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut payload = vec![0; word(8) as usize];
        (&self.stream).read_exact(&mut payload).ok()?;
        Some((word(0), payload))
    }

    /// Returns whether the back end has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let mut byte = [0; 256];
        let closed = match (&self.stream).read(&mut byte) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        self.stream.set_nonblocking(false).expect("a socket");
        closed
    }

    /// Sends all messages that make the device ready: features, memory, both queues.
    pub fn start(&mut self) {
        self.send(message::SET_OWNER, &[]);
        self.agree();
        self.send_memory();
        self.start_queue(TO_GUEST);
        self.start_queue(FROM_GUEST);
    }

    /// Acknowledges the back end's features.
    pub fn agree(&mut self) {
        let features = self.features;
        self.send(message::SET_FEATURES, &features.to_le_bytes());
        if features & feature::PROTOCOL != 0 {
            // Acknowledgments, reset of the device, memory by single regions.
            self.send(message::SET_PROTOCOL_FEATURES, &(1u64 << 3 | 1 << 13 | 1 << 15).to_le_bytes());
        }
    }

    /// Sends the memory as a table of one region.
    pub fn send_memory(&mut self) {
        let memory = self.memory.try_clone().expect("a descriptor");
        let payload = [&1u32.to_le_bytes()[..], &[0; 4], &region(GUEST_BASE, MEMORY_LEN, USER_BASE, 0)].concat();
        self.send_with(message::SET_MEM_TABLE, 1, &payload, &[memory.as_fd()]);
    }

    /// Sends all set-up messages of one queue, which continues at the index in the guest's memory.
    pub fn start_queue(&mut self, queue: u16) {
        let used = self.half(self.at(queue, USED + 2));
        let ring = &mut self.rings[usize::from(queue)];
        ring.returned = used;
        let size = u32::from(self.size);
        self.send(message::SET_VRING_NUM, &state(queue, size));
        self.send(message::SET_VRING_BASE, &state(queue, u32::from(used)));
        self.send_addresses(queue);
        let ring = &self.rings[usize::from(queue)];
        let (call, kick) = (ring.call.try_clone().expect("a descriptor"), ring.kick.try_clone().expect("a descriptor"));
        self.send_with(message::SET_VRING_CALL, 1, &u64::from(queue).to_le_bytes(), &[call.as_fd()]);
        self.send_with(message::SET_VRING_KICK, 1, &u64::from(queue).to_le_bytes(), &[kick.as_fd()]);
        if self.features & feature::PROTOCOL != 0 {
            self.send(message::SET_VRING_ENABLE, &state(queue, 1));
        }
    }

    /// Sends the set-up messages of one queue if `is_whole`, that is, if the memory is complete.
    pub fn start_queue_if(&mut self, queue: u16, is_whole: bool) {
        if is_whole {
            self.start_queue(queue);
        }
    }

    /// Sends the addresses of a queue's rings.
    pub fn send_addresses(&mut self, queue: u16) {
        let base = USER_BASE + u64::from(queue) * QUEUE_LEN;
        let payload = addresses(queue, [base, base + USED, base + AVAILABLE]);
        self.send(message::SET_VRING_ADDR, &payload);
    }

    /// Returns the memory offset of `offset` in a queue's area.
    fn at(&self, queue: u16, offset: u64) -> u64 {
        u64::from(queue) * QUEUE_LEN + offset
    }

    fn half(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, at).expect("memory");
        u16::from_le_bytes(bytes)
    }

    fn set_half(&self, at: u64, value: u16) {
        self.memory.write_all_at(&value.to_le_bytes(), at).expect("memory");
    }

    /// Writes bytes to the memory, at an address of the guest.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address - GUEST_BASE).expect("memory");
    }

    /// Reads bytes of the memory, at an address of the guest.
    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, address - GUEST_BASE).expect("memory");
        bytes
    }

    /// Writes a descriptor into the table of a queue.
    pub fn describe(&self, queue: u16, number: u16, descriptor: &Descriptor) {
        let at = self.at(queue, 16 * u64::from(number));
        self.memory.write_all_at(&descriptor.bytes(), at).expect("memory");
    }

    /// Offers the chain that begins with this descriptor.
    pub fn offer(&mut self, queue: u16, head: u16) {
        let ring = &mut self.rings[usize::from(queue)];
        let slot = ring.offered % self.size;
        ring.offered = ring.offered.wrapping_add(1);
        let offered = ring.offered;
        self.set_half(self.at(queue, AVAILABLE + 4 + 2 * u64::from(slot)), head);
        self.set_half(self.at(queue, AVAILABLE + 2), offered);
    }

    /// Sets the index of the available ring to any value.
    pub fn set_offered(&mut self, queue: u16, index: u16) {
        self.rings[usize::from(queue)].offered = index;
        self.set_half(self.at(queue, AVAILABLE + 2), index);
    }

    /// Sets the index at which both rings begin, before the start of the queue.
    pub fn begin_at(&mut self, queue: u16, index: u16) {
        let ring = &mut self.rings[usize::from(queue)];
        (ring.offered, ring.returned) = (index, index);
        self.set_half(self.at(queue, AVAILABLE + 2), index);
        self.set_half(self.at(queue, USED + 2), index);
    }

    /// Continues with the indexes of an earlier front end that had the same memory.
    pub fn resume(&mut self, queue: u16) {
        let offered = self.half(self.at(queue, AVAILABLE + 2));
        self.rings[usize::from(queue)].offered = offered;
    }

    /// Notifies the back end of a queue.
    pub fn kick(&mut self, queue: u16) {
        (&self.rings[usize::from(queue)].kick).write_all(&1u64.to_ne_bytes()).expect("an event counter");
    }

    /// Returns how often the back end has signalled the call event counter (`VHOST_USER_SET_VRING_CALL`) of a queue
    /// since the last query.
    pub fn calls(&mut self, queue: u16) -> u64 {
        let mut bytes = [0; 8];
        match (&self.rings[usize::from(queue)].call).read(&mut bytes) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => 0,
        }
    }

    /// Fills the event counter of a queue's calls and makes it blocking: a write then waits until it is read.
    pub fn fill_calls(&mut self, queue: u16) {
        let _ = self.calls(queue);
        sys::fill(&self.rings[usize::from(queue)].call).expect("an event counter");
    }

    /// Returns the counter of a queue's calls.
    pub fn call_counter(&self, queue: u16) -> File {
        self.rings[usize::from(queue)].call.try_clone().expect("a descriptor")
    }

    /// Returns `idx` of the used ring (virtio 1.2, section 2.7.8).
    pub fn used_index(&self, queue: u16) -> u16 {
        self.half(self.at(queue, USED + 2))
    }

    /// Returns the flags of the used ring, and the index after which the back end wants a kick.
    pub fn suppression(&self, queue: u16) -> (u16, u16) {
        let event = self.at(queue, USED + 4 + 8 * u64::from(self.size));
        (self.half(self.at(queue, USED)), self.half(event))
    }

    /// Sets the flags of the available ring, and the index after which the guest wants a call.
    pub fn set_suppression(&mut self, queue: u16, flags: u16, event: u16) {
        self.set_half(self.at(queue, AVAILABLE), flags);
        self.set_half(self.at(queue, AVAILABLE + 4 + 2 * u64::from(self.size)), event);
    }

    /// Returns the chains returned since the last call: the number of each, and the bytes written to it.
    pub fn returned(&mut self, queue: u16) -> Vec<(u32, u32)> {
        let index = self.used_index(queue);
        let mut found = Vec::new();
        while self.rings[usize::from(queue)].returned != index {
            let slot = self.rings[usize::from(queue)].returned % self.size;
            let mut entry = [0; 8];
            self.memory.read_exact_at(&mut entry, self.at(queue, USED + 4 + 8 * u64::from(slot))).expect("memory");
            let value = u64::from_le_bytes(entry);
            found.push((value as u32, (value >> 32) as u32));
            let ring = &mut self.rings[usize::from(queue)];
            ring.returned = ring.returned.wrapping_add(1);
        }
        found
    }

    /// Returns the length of the header in front of each packet.
    pub fn header_len(&self) -> usize {
        if self.features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Returns the address of the `n`th slot for a packet to be sent, each of 68 KiB.
    pub fn slot(&self, n: u16) -> u64 {
        GUEST_BASE + BUFFERS + (u64::from(n) % 64) * (68 << 10)
    }

    /// Offers a packet for sending, in descriptors of the given lengths; the last one takes the remaining bytes.
    /// `header` has the 10 basic bytes. The descriptors begin with the number `first`.
    pub fn send_packet(&mut self, first: u16, header: &[u8; 10], packet: &[u8], lens: &[usize]) {
        let bytes = self.with_header(header, packet);
        let slot = self.slot(first);
        self.write(slot, &bytes);
        let pieces = cut(bytes.len(), lens);
        let last = pieces.len() - 1;
        for (n, piece) in pieces.iter().enumerate() {
            let number = (first + n as u16) % self.size;
            let flags = if n < last { NEXT } else { 0 };
            let next = (number + 1) % self.size;
            let address = slot + piece.start as u64;
            self.describe(FROM_GUEST, number, &Descriptor { address, len: piece.len() as u32, flags, next });
        }
        self.offer(FROM_GUEST, first);
    }

    /// Offers a packet to be sent in an indirect table of descriptors of these lengths.
    pub fn send_indirect(&mut self, first: u16, header: &[u8; 10], packet: &[u8], lens: &[usize]) {
        let bytes = self.with_header(header, packet);
        let slot = self.slot(first);
        self.write(slot, &bytes);
        let pieces = cut(bytes.len(), lens);
        let table = GUEST_BASE + BUFFERS - 0x1_0000 + 0x400 * (u64::from(first) % 64);
        for (n, piece) in pieces.iter().enumerate() {
            let flags = if n + 1 < pieces.len() { NEXT } else { 0 };
            let address = slot + piece.start as u64;
            let descriptor = Descriptor { address, len: piece.len() as u32, flags, next: n as u16 + 1 };
            self.write(table + 16 * n as u64, &descriptor.bytes());
        }
        let len = 16 * pieces.len() as u32;
        self.describe(FROM_GUEST, first, &Descriptor { address: table, len, flags: INDIRECT_TABLE, next: 0 });
        self.offer(FROM_GUEST, first);
    }

    fn with_header(&self, header: &[u8; 10], packet: &[u8]) -> Vec<u8> {
        let mut bytes = header.to_vec();
        bytes.resize(self.header_len(), 0);
        bytes.extend_from_slice(packet);
        bytes
    }

    /// Offers every descriptor of the receive queue as a buffer of `len` bytes.
    pub fn offer_buffers(&mut self, len: u32) {
        self.offer_some(len, self.size);
    }

    /// Offers the first `count` descriptors of the receive queue as buffers of `len` bytes.
    pub fn offer_some(&mut self, len: u32, count: u16) {
        self.buffer_len = len;
        for number in 0..count {
            self.offer_buffer(number);
        }
    }

    /// Adopts the buffers of `len` bytes that an earlier front end with the same memory has offered.
    pub fn adopt_buffers(&mut self, len: u32) {
        self.buffer_len = len;
    }

    /// Offers one descriptor of the receive queue again.
    pub fn offer_buffer(&mut self, number: u16) {
        let address = self.buffer(number);
        let descriptor = Descriptor { address, len: self.buffer_len, flags: WRITE, next: 0 };
        self.describe(TO_GUEST, number, &descriptor);
        self.offer(TO_GUEST, number);
    }

    fn buffer(&self, number: u16) -> u64 {
        GUEST_BASE + BUFFERS + (8 << 20) + u64::from(number) * u64::from(self.buffer_len)
    }

    /// Returns the received packets, each with its header, and offers their buffers again.
    ///
    /// A packet whose buffers did not all appear at once is a fault of the back end, and so is a number of buffers that
    /// is not that of the header.
    pub fn received(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        let returned = self.returned(TO_GUEST);
        let mut entries = returned.iter().copied();
        while let Some((number, len)) = entries.next() {
            let header_len = self.header_len();
            let mut bytes = self.read(self.buffer(number as u16), len as usize);
            assert!(bytes.len() > header_len, "{len} bytes in a buffer");
            let merges = self.features & feature::MRG_RXBUF != 0;
            let count = if merges { u16::from_le_bytes([bytes[10], bytes[11]]) } else { 1 };
            assert!(count > 0, "a packet in no buffer");
            for _ in 1..count {
                let (number, len) = entries.next().expect("all buffers of a packet appear at once");
                bytes.extend(self.read(self.buffer(number as u16), len as usize));
            }
            found.push((bytes[..header_len].to_vec(), bytes[header_len..].to_vec()));
        }
        for (number, _) in returned {
            self.offer_buffer(number as u16);
        }
        found
    }
}

/// Returns a pair of sockets that preserve message boundaries.
///
/// # Errors
/// Where the kernel has no descriptors left.
pub fn message_pair() -> io::Result<(UnixStream, OwnedFd)> {
    sys::message_pair()
}

/// Sends a connection in a message of one byte.
pub fn hand_over(supply: &UnixStream, connection: &UnixStream) {
    sys::send(supply, &[1], &[connection.as_fd()]).expect("a socket");
}

/// Longest wait for a back end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the payload of a message about one queue with a number.
pub fn state(queue: u16, value: u32) -> Vec<u8> {
    [u32::from(queue).to_le_bytes(), value.to_le_bytes()].concat()
}

/// Returns the payload of a message with the addresses of descriptors, used and available ring.
pub fn addresses(queue: u16, [descriptors, used, available]: [u64; 3]) -> Vec<u8> {
    let words = [descriptors, used, available, 0];
    [u32::from(queue).to_le_bytes().to_vec(), vec![0; 4], words.map(u64::to_le_bytes).concat()].concat()
}

/// Returns a region of memory in the form that messages have.
pub fn region(guest: u64, len: u64, user: u64, offset: u64) -> Vec<u8> {
    [guest, len, user, offset].map(u64::to_le_bytes).concat()
}

/// Cuts `len` bytes into pieces of the given lengths; the last one takes the remaining bytes.
fn cut(len: usize, lens: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    for piece in lens {
        if at + piece >= len {
            break;
        }
        pieces.push(at..at + piece);
        at += piece;
    }
    pieces.push(at..len);
    pieces
}
