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

pub(crate) use crate::arch::HEAD_BLOCK;
pub use head::{HEADROOM, Head};
pub use offload::{Csum, Gso, GsoKind, Layer, LayerCsum, MAX_LAYERS, Offload, TrainCsum, Unit};
pub use payload::{Frag, Payload, Pieces};
pub use pool::Pool;
pub use remote::Remote;

pub use crate::wire::parse::{Header, Kind, Layout, Start, Stop, Tunnels};

use crate::checksum::Sum;
use crate::wire::parse::MAX_HEADER_BYTES;
use crate::wire::{self, ethernet};

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
// In this order and at the start of a cache line, so that few of them hold all that a packet without tunnels uses.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Packet<B> {
    /// What follows the headers.
    pub payload: Payload<B>,
    /// What is known and owed.
    pub offload: Offload,
    /// Set by encapsulation for datagram ports.
    pub outer: Option<Outer>,
    /// Where the headers are in [`Packet::head`].
    pub layout: Layout,
    /// Every header that the layout lists, and nothing else.
    pub head: Head,
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
    #[inline]
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

    /// Makes a packet without payload one of `total` bytes, exact and without tunnels, whose headers are known: they are the
    /// first `header_len` bytes of `front`, and where they are is what `layout` says. The payload is still to come.
    #[inline(always)]
    pub(crate) fn load_known(
        &mut self,
        front: &[u8; HEAD_BLOCK],
        header_len: usize,
        total: usize,
        layout: &Layout,
        csum: Csum,
    ) {
        debug_assert_eq!(header_len, layout.header_len());
        debug_assert!(self.payload.is_empty());
        self.layout.set_short(layout, total);
        self.head.set_block(front, header_len);
        self.offload = Offload::plain(Unit::Whole(csum));
        self.outer = None;
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
            let l3 = self.layout.outer_ip().map_or(0, Header::start);
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

    /// Puts an Ethernet header, or nothing, in the place of all that stands in front of the outermost IP header, tags included.
    /// Padding behind the IP packet goes too. `false`, and no header is touched, where there is no IP header or no room.
    pub fn relink(&mut self, link: Option<&[u8; ethernet::LEN]>) -> bool {
        let Some(count) = self.layout.headers().iter().position(Header::is_ip) else { return false };
        let front = self.layout.headers()[count].start();
        if self.layout.is_padded() {
            self.trim();
        }
        match link {
            None if count == 0 => return true,
            Some(link) if count == 1 && self.layout.headers()[0].kind == Kind::Ethernet => {
                self.head.bytes_mut()[..ethernet::LEN].copy_from_slice(link);
                return true;
            }
            _ => {}
        }
        let mut layout = self.layout;
        layout.remove_front(count);
        let mut gone = Layout::empty(Stop::Protocol);
        gone.push(Kind::Ethernet, ethernet::LEN);
        if link.is_some() && !layout.prepend(&gone) {
            return false;
        }
        self.head.pull_front(front);
        if let Some(link) = link {
            match self.head.push_front(ethernet::LEN) {
                Some(place) => place.copy_from_slice(link),
                None => {
                    // What was pulled is still there.
                    let _ = self.head.push_front(front);
                    return false;
                }
            }
        }
        self.layout = layout;
        if let Unit::Train { gso, .. } = &mut self.offload.unit {
            *gso = gso.without(count).behind(usize::from(link.is_some()));
        }
        true
    }

    /// The innermost transport header's bytes and kind, where parsing got there.
    #[inline]
    pub fn transport(&self) -> Option<(Kind, &[u8])> {
        let header = self.layout.transport()?;
        Some((header.kind, self.head.bytes().get(header.start()..header.end())?))
    }

    /// Becomes a copy of `other`: the headers are copied, the payload is shared.
    pub fn copy_from(&mut self, other: &Packet<B>)
    where
        B: Clone,
    {
        self.head.clone_from(&other.head);
        self.payload.clear();
        other.payload.frags().iter().for_each(|frag| self.payload.push(frag.clone()));
        (self.layout, self.offload, self.outer) = (other.layout, other.offload, other.outer);
    }

    /// Forgets everything, keeping the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.payload.clear();
        self.reset();
    }

    /// Forgets everything but the payload.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.head.set(&[]);
        self.layout.clear();
        self.offload = Offload::UNKNOWN;
        self.outer = None;
    }
}
