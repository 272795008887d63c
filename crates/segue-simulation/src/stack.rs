//! What a host's network stack and its program keep: sockets, TCP's numbers.

use crate::Traffic;
use crate::frames::MSS;
use crate::peer::WINDOW;

/// Packets that wait between a driver without NAPI and the stack (Linux: `netdev_max_backlog`).
pub(super) const BACKLOG: usize = 1000;
/// Memory of a UDP socket each way (Linux: `rmem_default`, `wmem_default`), bytes.
const UDP_MEMORY: usize = 212_992;
/// What of that a datagram takes which was copied to memory of its own, or is to be sent.
const COPIED: usize = 2304;
/// The same where it shares a transfer's memory: the older form said less than that takes.
const SHARED: usize = 1514 + 232;
/// Memory for TCP data to be sent (Linux: the largest of `tcp_wmem`).
const TCP_SEND: u64 = 4 << 20;
/// What the program reads or writes in one call.
pub(super) const CHUNK: u64 = 128 << 10;
/// Bytes that TCP leaves with the layers below (Linux: small queues, a millisecond at the wire's rate).
const SMALL_QUEUE: u64 = 128 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Stack {
    traffic: Traffic,
    /// Received and not read: bytes of TCP, or datagrams.
    pub(super) unread: u64,
    datagrams: u64,
    expected: u64,
    /// Received since the last acknowledgment.
    unacknowledged: u64,
    written: u64,
    next: u64,
    acknowledged: u64,
    /// What the program has read, bytes of payload.
    pub(super) read: u64,
    pub(super) socket_drops: u64,
    /// Datagrams or trains handed to the driver.
    pub(super) pushed: u64,
}

impl Stack {
    pub(super) fn new(traffic: Traffic, shared: bool) -> Stack {
        Stack {
            traffic,
            unread: 0,
            datagrams: (UDP_MEMORY / if shared { SHARED } else { COPIED }) as u64,
            expected: 0,
            unacknowledged: 0,
            written: 0,
            next: 0,
            acknowledged: 0,
            read: 0,
            socket_drops: 0,
            pushed: 0,
        }
    }

    /// A datagram.
    pub(super) fn datagram(&mut self) {
        if self.unread < self.datagrams { self.unread += 1 } else { self.socket_drops += 1 }
    }

    /// TCP data; whether an acknowledgment is due (RFC 5681, 4.2).
    pub(super) fn data(&mut self, seq: u32, len: u64) -> bool {
        if seq != self.expected as u32 {
            return true;
        }
        self.expected += len;
        self.unread += len;
        self.unacknowledged += len;
        self.unacknowledged >= 2 * MSS as u64
    }

    /// What an acknowledgment says: the next byte, and the window in units of 256 bytes.
    pub(super) fn acknowledge(&mut self) -> (u32, u16) {
        self.unacknowledged = 0;
        let window = WINDOW.saturating_sub(self.unread) >> 8;
        (self.expected as u32, u16::try_from(window).unwrap_or(u16::MAX))
    }

    /// An acknowledgment from the far end.
    pub(super) fn acknowledged(&mut self, ack: u32) {
        let fresh = u64::from(ack.wrapping_sub(self.acknowledged as u32));
        if fresh <= self.next - self.acknowledged {
            self.acknowledged += fresh;
        }
    }

    /// Sequence number of a train of `full` bytes that may leave now; `below` is how much waits with the driver.
    pub(super) fn train(&mut self, full: u64, below: u64) -> Option<u32> {
        let fits = self.next - self.acknowledged + full <= WINDOW && self.next + full <= self.written;
        if !fits || below >= SMALL_QUEUE {
            return None;
        }
        let seq = self.next as u32;
        self.next += full;
        self.pushed += 1;
        Some(seq)
    }

    /// Whether the program can go on; `asleep` if it waits, `waiting` datagrams are with the driver.
    pub(super) fn ready(&self, asleep: bool, waiting: u64) -> bool {
        match self.traffic {
            Traffic::TcpRx | Traffic::UdpRx => self.unread > 0,
            Traffic::TcpTx => {
                let held = self.written - self.acknowledged;
                // A sleeper is woken once a third is free.
                held + CHUNK <= if asleep { TCP_SEND / 3 * 2 } else { TCP_SEND }
            }
            Traffic::UdpTx => {
                let most = (UDP_MEMORY / COPIED) as u64;
                waiting < if asleep { most / 2 } else { most }
            }
        }
    }

    /// The program reads what there is, up to a chunk. How many bytes.
    pub(super) fn read_stream(&mut self) -> u64 {
        let len = self.unread.min(CHUNK);
        (self.unread, self.read) = (self.unread - len, self.read + len);
        len
    }

    /// The program reads a datagram.
    pub(super) fn read_datagram(&mut self) {
        (self.unread, self.read) = (self.unread - 1, self.read + MSS as u64);
    }

    /// The program writes a chunk.
    pub(super) fn write_stream(&mut self) {
        self.written += CHUNK;
    }
}
