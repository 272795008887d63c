//! Frames that are pushed without having been parsed.

use crate::packet::{Csum, Frag, Packet, Start, Tunnels, Unit};

/// A packet as a port receives it, not parsed yet.
#[derive(Debug)]
pub struct Frame<B> {
    /// All of its bytes, padding included.
    pub bytes: Frag<B>,
    /// The kind of header that it begins with.
    pub start: Start,
    /// What the port knows of the innermost transport checksum. With [`Csum::Unknown`] the headers say whether there is
    /// a checksum, or whether it is owed.
    pub csum: Csum,
}

impl<B: AsRef<[u8]>> Frame<B> {
    /// Parses the frame into a packet.
    pub(super) fn load(self, tunnels: &Tunnels, into: &mut Packet<B>) {
        into.load(self.bytes, self.start, tunnels);
        if self.csum != Csum::Unknown {
            into.offload.unit = Unit::Whole(self.csum);
        }
    }
}
