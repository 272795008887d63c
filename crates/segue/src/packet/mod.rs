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

pub use head::{HEADROOM, Head};
pub use offload::{Csum, Gso, GsoKind, Layer, LayerCsum, MAX_LAYERS, Offload, Remote, TrainCsum, Unit};
pub use payload::{Frag, Payload, Pieces};
pub use pool::Pool;

pub use crate::wire::parse::{Header, Kind, Layout, Start, Stop, Tunnels};

use crate::wire;

/// What a datagram port needs to know of the outer headers, which it does not send itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// Which of the port's sockets sends it: the flow's source port.
    pub slot: u16,
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

    /// The innermost transport header's bytes and kind, where parsing got there.
    pub fn transport(&self) -> Option<(Kind, &[u8])> {
        let header = self.layout.transport()?;
        Some((header.kind, self.head.bytes().get(header.start()..header.end())?))
    }

    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.head.set(&[]);
        self.payload.clear();
        self.layout = Layout::empty(Stop::Protocol);
        self.offload = Offload::UNKNOWN;
        self.outer = None;
    }
}
