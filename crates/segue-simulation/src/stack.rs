//! The state of the host's network stack and program: sockets, TCP sequence numbers.

use crate::Traffic;
use crate::frames::MSS;
use crate::peer::WINDOW;

/// Largest queue length in packets between a driver without NAPI and the stack (Linux: `netdev_max_backlog`).
pub(super) const BACKLOG: usize = 1000;
/// Memory of a UDP socket for each direction (Linux: `rmem_default`, `wmem_default`), bytes.
const UDP_MEMORY: usize = 212_992;
/// Socket memory charged for a datagram that was copied into its own memory, or is to be sent, bytes.
const COPIED: usize = 2304;
/// Socket memory charged for a received datagram that shares a transfer's memory, bytes: the old form accounts for less
/// than it uses.
const SHARED: usize = 1514 + 232;
/// Size in bytes of the memory for TCP data to be sent (Linux: the maximum of `tcp_wmem`).
const TCP_SEND: u64 = 4 << 20;
/// Number of bytes that the program reads or writes in one call.
pub(super) const CHUNK: u64 = 128 << 10;
/// Number of bytes that TCP queues in the layers below (Linux: TCP small queues, a millisecond at the wire's rate).
const SMALL_QUEUE: u64 = 128 << 10;

/// The network stack of the host with one socket.
#[derive(Debug)]
pub(super) struct Stack {
    traffic: Traffic,
    /// Number of bytes of TCP received and not yet read.
    pub(super) unread: u64,
    /// Number of datagrams received and not yet read.
    datagrams: u64,
    expected: u64,
    /// Bytes received since the last acknowledgment was sent.
    unacknowledged: u64,
    written: u64,
    next: u64,
    acknowledged: u64,
    /// Number of bytes of payload that the program has read.
    pub(super) read: u64,
    pub(super) socket_drops: u64,
    /// Number of datagrams or trains passed to the driver.
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

    /// Receives a UDP datagram.
    pub(super) fn datagram(&mut self) {
        if self.unread < self.datagrams { self.unread += 1 } else { self.socket_drops += 1 }
    }

    /// Receives TCP data; returns whether an acknowledgment is due (RFC 5681, section 4.2).
    pub(super) fn data(&mut self, seq: u32, len: u64) -> bool {
        if seq != self.expected as u32 {
            return true;
        }
        self.expected += len;
        self.unread += len;
        self.unacknowledged += len;
        self.unacknowledged >= 2 * MSS as u64
    }

    /// Returns the fields of an acknowledgment: the next expected sequence number, and the window in units of 256
    /// bytes.
    pub(super) fn acknowledge(&mut self) -> (u32, u16) {
        self.unacknowledged = 0;
        let window = WINDOW.saturating_sub(self.unread) >> 8;
        (self.expected as u32, u16::try_from(window).unwrap_or(u16::MAX))
    }

    /// Processes an acknowledgment from the peer.
    pub(super) fn acknowledged(&mut self, ack: u32) {
        let fresh = u64::from(ack.wrapping_sub(self.acknowledged as u32));
        if fresh <= self.next - self.acknowledged {
            self.acknowledged += fresh;
        }
    }

    /// Returns the sequence number of a train of `full` bytes if TCP may send one, else `None`; `below` is the number
    /// of bytes still in the driver.
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

    /// Returns whether the program can run; `asleep` tells whether it sleeps, `waiting` is the number of datagrams
    /// still in the driver.
    pub(super) fn ready(&self, asleep: bool, waiting: u64) -> bool {
        match self.traffic {
            Traffic::TcpRx | Traffic::UdpRx => self.unread > 0,
            Traffic::TcpTx => {
                let held = self.written - self.acknowledged;
                // A sleeping writer is woken once a third of the memory is free.
                held + CHUNK <= if asleep { TCP_SEND / 3 * 2 } else { TCP_SEND }
            }
            Traffic::UdpTx => {
                let most = (UDP_MEMORY / COPIED) as u64;
                waiting < if asleep { most / 2 } else { most }
            }
        }
    }

    /// Reads at most a chunk from the socket for the program; returns the number of bytes.
    pub(super) fn read_stream(&mut self) -> u64 {
        let len = self.unread.min(CHUNK);
        (self.unread, self.read) = (self.unread - len, self.read + len);
        len
    }

    /// Reads one datagram for the program.
    pub(super) fn read_datagram(&mut self) {
        (self.unread, self.read) = (self.unread - 1, self.read + MSS as u64);
    }

    /// Writes one chunk for the program.
    pub(super) fn write_stream(&mut self) {
        self.written += CHUNK;
    }
}
