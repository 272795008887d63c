//! Boxes for packets, handed out again and again.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Packet;

/// Ranges that a fresh packet has room for: a train of 64 kB in segments of an Ethernet's size.
const TRAIN_FRAGS: usize = 48;

/// Packets that wait to be used again. Owned by one worker.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "the boxes are what is pooled: a packet moves through the stages as a pointer")]
pub struct Pool<B> {
    free: Vec<Box<Packet<B>>>,
    keep: usize,
}

impl<B: AsRef<[u8]>> Pool<B> {
    /// An empty pool that keeps at most `keep` unused packets.
    pub fn new(keep: usize) -> Pool<B> {
        Pool { free: Vec::with_capacity(keep), keep }
    }

    /// An empty packet; a fresh one where none waits.
    #[inline]
    pub fn take(&mut self) -> Box<Packet<B>> {
        self.free.pop().unwrap_or_else(|| {
            let mut packet = Box::<Packet<B>>::default();
            packet.payload.reserve(TRAIN_FRAGS);
            packet
        })
    }

    /// Takes a packet back and gives its buffers up.
    #[inline]
    pub fn put(&mut self, mut packet: Box<Packet<B>>) {
        if self.free.len() < self.keep {
            packet.clear();
            self.free.push(packet);
        }
    }
}
