//! The unit that crosses the engine: one packet or one train, with its offload state.
//!
//! A [`Packet`] has all of its headers in one array with room in front ([`Head`]), and its payload as ranges of buffers
//! that it owns ([`Frag`]). The [`Layout`] says where the headers are; the [`Offload`] says which checksums are known
//! and which are owed. Packets live in boxes that a [`Pool`] reuses, so that nothing is allocated after warm-up.

mod buffer;
mod frame;
mod head;
mod offload;
mod payload;
mod pool;
pub mod remote;

pub(crate) use crate::arch::HEAD_BLOCK;
pub use buffer::Buffer;
pub use frame::Frame;
pub use head::{HEADROOM, Head};
pub use offload::{Csum, Gso, GsoKind, Layer, LayerCsum, MAX_LAYERS, Offload, TrainCsum, Unit};
pub use payload::{Frag, Payload, Pieces};
pub use pool::Pool;
pub use remote::Remote;

pub use crate::wire::parse::{Header, Kind, Layout, Start, Stop, Tunnels};

use crate::checksum::Sum;
use crate::wire::parse::MAX_HEADER_BYTES;
use crate::wire::{self, ethernet};

/// Properties of the outer headers that a datagram port sets by socket options, because it does not send these headers
/// itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// Index of the port's socket that sends the packet, one for each source port.
    pub slot: u16,
    /// Index of the port's peer to which the packet is sent; 0 is the first, and on most ports the only one.
    pub to: u16,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// TTL or hop limit of the outer header.
    pub ttl: u8,
    /// Whether the outer packet must not be fragmented.
    pub df: bool,
    /// Bytes at the front of the head that the socket generates: outer IP and UDP.
    pub skip: u16,
}

/// One packet or one train.
/// ```
/// use segue::packet::{Frag, Kind, Packet, Start, Tunnels};
///
/// # let received = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0];
/// let mut packet = Packet::default();
/// packet.load(Frag::all(received), Start::Ip, &Tunnels::NONE);
/// let (kind, header) = packet.transport().expect("a UDP header");
/// assert_eq!((kind, header.len(), packet.payload.len()), (Kind::Udp, 8, 0));
/// ```
// In this order and aligned to a cache line, so that few lines hold all that a packet without tunnels uses.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Packet<B> {
    /// The bytes that follow the headers.
    pub payload: Payload<B>,
    /// The state of the packet's checksums, and the segmentation of a train.
    pub offload: Offload,
    /// Properties of the outer headers; set by encapsulation for datagram ports.
    pub outer: Option<Outer>,
    /// The offsets of the headers in [`Packet::head`].
    pub layout: Layout,
    /// The bytes of every header that the layout lists, and nothing else.
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

impl<B: Buffer> Packet<B> {
    /// Returns the length of headers and payload, in bytes. Padding that is still in the payload counts.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Returns whether the packet has neither headers nor payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parses the packet in `frag` into this one: headers are copied to the head, the other bytes stay in place.
    ///
    /// The offload state becomes that of a received packet: checksums unknown, one layer for each tunnel found. Padding
    /// stays in the payload and leaves [`Layout::is_exact`] false.
    pub fn load(&mut self, frag: Frag<B>, start: Start, tunnels: &Tunnels) {
        if let Some(bytes) = frag.as_slice() {
            wire::parse::parse_into(&mut self.layout, bytes, start, tunnels);
            self.head.set(&bytes[..self.layout.header_len()]);
        } else {
            // Memory that may change is read once.
            let mut front = [0; MAX_HEADER_BYTES];
            let front = &mut front[..frag.len().min(MAX_HEADER_BYTES)];
            frag.copy_to(0, front);
            self.layout = wire::parse_front(front, frag.len(), start, tunnels);
            self.head.set(&front[..self.layout.header_len()]);
        }
        let header_len = self.layout.header_len();
        self.offload = Offload::received(&self.head, &self.layout);
        self.outer = None;
        self.payload.clear();
        self.payload.push(frag.skip(header_len));
    }

    /// Sets the headers of a packet without payload whose form is known: the headers are the first `header_len` bytes
    /// of `front`, at the offsets in `layout`, and the whole packet has `total` bytes, is exact and has no
    /// tunnels. The payload is to be pushed afterwards.
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
        self.layout.set_short(layout, total, total);
        self.head.set_block(front, header_len);
        self.offload = Offload::plain(Unit::Whole(csum));
        self.outer = None;
    }

    /// Sets headers and payload to those of `frag`, an exact packet whose layout and offload state are known.
    pub(crate) fn load_exact(&mut self, frag: Frag<B>, layout: &Layout, offload: Offload) {
        let header_len = layout.header_len();
        self.layout = *layout;
        self.layout.set_end(frag.len());
        self.head.set(frag.as_slice().and_then(|bytes| bytes.get(..header_len)).unwrap_or(&[]));
        (self.offload, self.outer) = (offload, None);
        self.payload.clear();
        self.payload.push(frag.skip(header_len));
    }

    /// Parses the packet like [`Packet::load`], for a packet in several ranges, such as one that crosses pages.
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

    /// Cuts off the bytes after the outermost IP packet, the padding of a short Ethernet frame, across ranges; a known
    /// sum of the packet is kept right. Returns `false`, and changes nothing, if there is no padding, or if a length
    /// further inside disagrees as well ([`Layout::is_padded`]).
    pub fn trim(&mut self) -> bool {
        self.layout.is_padded() && self.cut_padding()
    }

    /// Cuts off the bytes after the outermost IP packet as [`Packet::trim`] does, also where a length further inside
    /// disagrees. Returns whether there were any.
    fn cut_padding(&mut self) -> bool {
        let keep = self.layout.end().checked_sub(self.head.len());
        let Some(keep) = keep.filter(|keep| self.layout.has_padding() && *keep < self.payload.len()) else {
            return false;
        };
        if let Unit::Whole(Csum::Complete(sum)) = &mut self.offload.unit {
            let l3 = self.layout.outer_ip().map_or(0, Header::start);
            let len = self.layout.end() - l3;
            // At an odd offset the padding's first word begins with the byte before it, counted as zero.
            let mut padding = Sum::ZERO;
            padding.append(Sum::ZERO, len % 2);
            padding.append(self.payload.sum(keep..usize::MAX), self.payload.len() - keep);
            let mut rest = *sum;
            rest.remove(padding);
            *sum = Sum::ZERO;
            sum.append(rest, len);
        }
        self.payload.truncate(keep);
        self.layout.trimmed();
        true
    }

    /// Replaces everything before the outermost IP header, VLAN tags included, by the Ethernet header `link`, or
    /// by nothing. Padding after the IP packet is cut off too. Returns `false`, and touches no header, if there is no
    /// IP header or no room.
    pub fn relink(&mut self, link: Option<&[u8; ethernet::LEN]>) -> bool {
        let Some(count) = self.layout.outer_ip_index() else { return false };
        let front = self.layout.headers()[count].start();
        if self.layout.has_padding() {
            self.cut_padding();
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
                    // The bytes that were pulled are still in the array.
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

    /// Returns the kind and the bytes of the innermost transport header, if the parser reached it.
    #[inline]
    pub fn transport(&self) -> Option<(Kind, &[u8])> {
        let header = self.layout.transport()?;
        Some((header.kind, self.head.bytes().get(header.start()..header.end())?))
    }

    /// Makes this packet a copy of `other`: the headers are copied, the payload is shared.
    pub fn copy_from(&mut self, other: &Packet<B>)
    where
        B: Clone,
    {
        self.head.clone_from(&other.head);
        self.payload.clear();
        other.payload.frags().iter().for_each(|frag| self.payload.push(frag.clone()));
        (self.layout, self.offload, self.outer) = (other.layout, other.offload, other.outer);
    }

    /// Resets the packet to an empty one, keeping its memory.
    #[inline]
    pub fn clear(&mut self) {
        self.payload.clear();
        self.reset();
    }

    /// Resets all fields except the payload.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.head.set(&[]);
        self.layout.clear();
        self.offload = Offload::UNKNOWN;
        self.outer = None;
    }
}
