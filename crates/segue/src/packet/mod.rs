//! The unit that crosses the engine: one packet or one train, with its offload state.
//!
//! A [`Packet`] has all of its headers in one array with room in front ([`Head`]), and its payload as ranges of buffers
//! that it owns ([`Frag`]). The [`Layout`] says where the headers are, the [`Offload`] says what is known and what is
//! owed. Packets live in boxes that a [`Pool`] hands out again, so that after warm-up nothing is allocated.

mod head;
mod offload;
mod payload;
mod pool;
pub mod remote;

pub(crate) use head::BLOCK;
pub use head::{HEADROOM, Head};
pub use offload::{Csum, Gso, GsoKind, Layer, LayerCsum, MAX_LAYERS, Offload, Remote, TrainCsum, Unit};
pub use payload::{Frag, Payload, Pieces};
pub use pool::Pool;

pub use crate::wire::parse::{Header, Kind, Layout, Start, Stop, Tunnels};

use crate::checksum::Sum;
use crate::wire;
use crate::wire::parse::MAX_HEADER_BYTES;

/// What a datagram port needs to know of the outer headers, which it does not send itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// Which of the port's sockets sends it: the flow's source port.
    pub slot: u16,
    /// Which of the port's peers it goes to; 0 is the first, and the only one of most.
    pub to: u16,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Don't fragment.
    pub df: bool,
    /// Bytes of the head that the socket makes itself: outer IP and UDP.
    pub skip: u16,
}

/// One packet or one train.
#[derive(Debug)]
pub struct Packet<B> {
    /// Every header that the layout lists, and nothing else.
    pub head: Head,
    /// What follows the headers.
    pub payload: Payload<B>,
    /// Where the headers are in [`Packet::head`].
    pub layout: Layout,
    /// What is known and owed.
    pub offload: Offload,
    /// Set by encapsulation for datagram ports.
    pub outer: Option<Outer>,
}

impl<B> Default for Packet<B> {
    fn default() -> Self {
        Packet {
            head: Head::default(),
            payload: Payload::default(),
            layout: Layout::empty(Stop::Protocol),
            offload: Offload::UNKNOWN,
            outer: None,
        }
    }
}

impl<B: AsRef<[u8]>> Packet<B> {
    /// Bytes in all, padding left out.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the packet in `frag` apart: headers are copied to the head, the rest stays where it is.
    ///
    /// The offload state becomes what a packet from a wire has: checksums unknown, one layer for each tunnel found.
    /// Padding stays in the payload and leaves [`Layout::is_exact`] false.
    pub fn load(&mut self, frag: Frag<B>, start: Start, tunnels: &Tunnels) {
        self.layout = wire::parse(frag.bytes(), start, tunnels);
        let header_len = self.layout.header_len();
        self.head.set(&frag.bytes()[..header_len]);
        self.offload = Offload::received(&self.head, &self.layout);
        self.outer = None;
        self.payload.clear();
        self.payload.push(frag.skip(header_len));
    }

    /// Makes an empty packet one of `total` bytes, exact and without tunnels, whose headers are known: they are the first
    /// bytes of `front`, and where they are is what `layout` says. The payload is still to come.
    #[inline(always)]
    pub(crate) fn load_known(&mut self, front: &[u8; BLOCK], total: usize, layout: &Layout, csum: Csum) {
        self.layout = layout.ending(total);
        self.head.set_block(front, layout.header_len());
        self.offload = Offload::plain(Unit::Whole(csum));
        self.outer = None;
        self.payload.clear();
    }

    /// As [`Packet::load`], for a packet that lies in several ranges, as one that crosses pages does.
    ///
    /// Headers may cross ranges too; they are copied, payload is not.
    pub fn load_ranges(&mut self, ranges: impl IntoIterator<Item = Frag<B>>, start: Start, tunnels: &Tunnels) {
        self.outer = None;
        self.payload.clear();
        ranges.into_iter().for_each(|frag| self.payload.push(frag));
        let mut front = [0; MAX_HEADER_BYTES];
        let front_len = self.payload.copy_to(0..MAX_HEADER_BYTES, &mut front);
        let front = &front[..front_len];
        self.layout = wire::parse_front(front, self.payload.len(), start, tunnels);
        let header_len = self.layout.header_len();
        self.head.set(&front[..header_len]);
        self.offload = Offload::received(&self.head, &self.layout);
        self.payload.advance(header_len);
    }

    /// Cuts off what follows the outermost IP packet, the padding of a short Ethernet frame, whatever its bytes and ranges;
    /// a known sum of the packet is kept right. `false`, and nothing is done, where there is none, or where a length further
    /// inside disagrees as well ([`Layout::is_padded`]).
    pub fn trim(&mut self) -> bool {
        let keep = self.layout.end().saturating_sub(self.head.len());
        if !self.layout.is_padded() || keep >= self.payload.len() {
            return false;
        }
        if let Unit::Whole(Csum::Complete(sum)) = &mut self.offload.unit {
            let l3 = self.layout.headers().iter().find(|h| h.is_ip()).map_or(0, Header::start);
            let len = self.layout.end() - l3;
            // At an odd place the part begins with the byte before it, as zero.
            let mut padding = Sum::ZERO;
            padding.append(Sum::ZERO, len % 2);
            self.payload.pieces(keep..usize::MAX).for_each(|piece| padding.add(piece));
            let mut rest = *sum;
            rest.remove(padding);
            *sum = Sum::ZERO;
            sum.append(rest, len);
        }
        self.payload.truncate(keep);
        self.layout.trimmed();
        true
    }

    /// The innermost transport header's bytes and kind, where parsing got there.
    pub fn transport(&self) -> Option<(Kind, &[u8])> {
        let header = self.layout.transport()?;
        Some((header.kind, self.head.bytes().get(header.start()..header.end())?))
    }

    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.head.set(&[]);
        self.payload.clear();
        self.layout.clear();
        self.offload = Offload::UNKNOWN;
        self.outer = None;
    }
}
