//! Packets of a read into several pieces of memory: each has separate headers, and payload that is not copied.

use core::fmt;

use super::splitter::{ReadError, Splitter, State};
use crate::arch::lent::{Lent, Loan};
use crate::gso::{self, Limits, Segment, SegmentCsum};
use crate::packet::remote::field_offset;
use crate::packet::{Frag, Gso, Packet};
use crate::virtio::{self, Loaded, VirtioNet};

impl Splitter {
    /// Splits a packet or train that lies in several pieces of memory, such as a descriptor chain or the chained
    /// buffers of a driver, and was received with `header`. Returns the packets for a port with `limits`, each as
    /// headers and pieces of what was given: nothing is copied.
    ///
    /// With [`Limits::csum`] a transport checksum that is owed stays owed, and primed; without it every checksum is
    /// complete.
    ///
    /// ```
    /// use segue::easy::Splitter;
    /// use segue::gso::Limits;
    /// use segue::packet::Start;
    /// use segue::virtio::VirtioNet;
    ///
    /// # let (front, rest) = ([0x45, 0, 0, 24, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18], [0, 1, 198, 18, 0, 2, 1, 2, 3, 4]);
    /// let mut splitter = Splitter::plain(Start::Ip);
    /// let chain = [&front[..], &rest[..]]; // headers may cross pieces
    /// let packets = splitter.read_pieces(&VirtioNet::default(), chain, &Limits::NONE)?;
    /// for packet in packets.iter() {
    ///     let pieces: Vec<&[u8]> = packet.pieces().collect(); // to be sent in one call
    /// #   assert_eq!(pieces, [&[&front[..], &rest[..6]].concat()[..], &rest[6..]]);
    /// }
    /// # Ok::<(), segue::easy::ReadError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Splitter::read`]. A checksum that is not that of a transport header which the engine knows cannot be
    /// completed without a copy, and is refused ([`virtio::Refusal::GsoChecksumPlace`]).
    pub fn read_pieces<'s>(
        &'s mut self,
        header: &VirtioNet,
        pieces: impl IntoIterator<Item = &'s [u8]>,
        limits: &Limits,
    ) -> Result<Scattered<'s>, ReadError> {
        let start = self.start;
        let mut loan = Loan::new(&mut self.state);
        loan.lend_all(pieces, 0, |State { packet, arena, .. }, pieces| {
            match virtio::load_ranges(header, pieces.map(Frag::all), start, packet)? {
                Loaded::Ready => {}
                Loaded::Owed(_) | Loaded::OwedSctp(_) => return Err(virtio::Refusal::GsoChecksumPlace.into()),
            }
            arena.clear();
            gso::split(packet, limits, arena)?;
            Ok::<_, ReadError>(())
        })?;
        Ok(Scattered { loan })
    }
}

/// The packets of one read in pieces ([`Splitter::read_pieces`]).
pub struct Scattered<'s> {
    loan: Loan<'s, 's, State>,
}

impl fmt::Debug for Scattered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scattered").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Scattered<'_> {
    /// Returns the number of packets in the read.
    pub fn len(&self) -> usize {
        self.loan.value().arena.segments().len()
    }

    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the packets, in the order in which they must leave.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ScatteredPacket<'_>> {
        let State { packet, arena, .. } = self.loan.value();
        arena.segments().iter().map(move |segment| ScatteredPacket { head: arena.head(segment), packet, segment })
    }
}

/// One packet, or one smaller train, of a read in pieces.
#[derive(Clone, Copy)]
pub struct ScatteredPacket<'a> {
    head: &'a [u8],
    packet: &'a Packet<Lent>,
    segment: &'a Segment,
}

impl fmt::Debug for ScatteredPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScatteredPacket").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<'a> ScatteredPacket<'a> {
    /// Returns the length of the packet, in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.segment.payload_len()
    }

    /// Returns whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the headers, which lie in the splitter until its next read.
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// Returns all bytes in pieces: the headers, then payload where it lies.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        [self.head].into_iter().filter(|head| !head.is_empty()).chain(self.segment.pieces(self.packet))
    }

    /// Returns the offsets of a transport checksum that the port completes: of the first covered byte, and of the
    /// field; `None` if every checksum is complete.
    pub fn owed(&self) -> Option<(usize, usize)> {
        let transport = self.packet.layout.transport().filter(|_| self.segment.csum == SegmentCsum::Partial)?;
        Some((transport.start(), transport.start() + field_offset(transport.kind)?))
    }

    /// Returns the segmentation that the port must do; `None` for a single packet.
    pub fn gso(&self) -> Option<Gso> {
        self.segment.gso
    }
}
