//! A pool of packet boxes that are reused.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Buffer, Packet};

/// Number of payload ranges that a fresh packet has room for: a train of 64 kB in segments of Ethernet size.
const TRAIN_FRAGS: usize = 48;

/// A pool of unused packets, owned by one worker.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "the boxes are what is pooled: a packet moves through the stages as a pointer")]
pub struct Pool<B> {
    free: Vec<Box<Packet<B>>>,
    keep: usize,
}

impl<B: Buffer> Pool<B> {
    /// Creates an empty pool that keeps at most `keep` unused packets.
    pub fn new(keep: usize) -> Pool<B> {
        Pool { free: Vec::with_capacity(keep), keep }
    }

    /// Returns an empty packet; allocates one if the pool is empty.
    #[inline]
    pub fn take(&mut self) -> Box<Packet<B>> {
        let mut packet = self.take_used();
        packet.reset();
        packet
    }

    /// Returns a packet without payload; the caller must overwrite everything else.
    #[inline]
    pub(crate) fn take_used(&mut self) -> Box<Packet<B>> {
        self.free.pop().unwrap_or_else(|| {
            let mut packet = Box::<Packet<B>>::default();
            packet.payload.reserve(TRAIN_FRAGS);
            packet
        })
    }

    /// Takes back any number of packets, like [`Pool::put`].
    pub fn put_all(&mut self, packets: impl IntoIterator<Item = Box<Packet<B>>>) {
        packets.into_iter().for_each(|packet| self.put(packet));
    }

    /// Takes a packet back and releases its buffers.
    #[inline]
    pub fn put(&mut self, mut packet: Box<Packet<B>>) {
        if self.free.len() < self.keep {
            packet.payload.clear();
            self.free.push(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Frag, Layer, Outer, Start, Tunnels};

    #[test]
    fn what_is_taken_is_empty_whatever_was_put_back() {
        let mut pool: Pool<&[u8]> = Pool::new(1);
        let mut packet = pool.take();
        packet.load(Frag::all(&[0x45; 60][..]), Start::Ip, &Tunnels::NONE);
        packet.offload.push_outer(Layer::NONE);
        packet.outer = Some(Outer::default());
        pool.put(packet);
        assert_eq!(format!("{:?}", pool.take()), format!("{:?}", Packet::<&[u8]>::default()));
    }
}
