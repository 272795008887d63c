//! The splitter: splits a train read from a device into single packets in the caller's memory.

use alloc::vec::Vec;
use core::fmt;

use super::write::{self, Short};
use crate::arch::lent::{Borrower, Lent, Loan};
use crate::gso::{self, Arena, Limits, SegmentCsum};
use crate::packet::{Csum, Frag, Packet, Start, Unit};
use crate::virtio::{self, Form, Loaded, Place, SctpPlace, VirtioNet};

/// A splitter of packets and trains read from a device into single packets with complete checksums.
///
/// It keeps nothing between two reads but memory, and may be used for several devices.
///
/// ```
/// use segue::easy::Splitter;
/// use segue::packet::Start;
/// use segue::virtio::Form;
///
/// # let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
/// # let read = [&[0; 10][..], &packet].concat();
/// let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
/// let mut memory = [0; 2048];
/// for packet in splitter.read(&read)?.iter() {
///     let len = packet.write_to(&mut memory[64..])?; // room for what a cipher puts in front
/// #   assert_eq!(len, 20);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Splitter {
    form: Option<Form>,
    pub(super) start: Start,
    pub(super) state: State,
}

/// A checksum that is completed when the packet is written, besides those of TCP and UDP.
#[derive(Clone, Copy, Debug, Default)]
enum Foreign {
    #[default]
    Nothing,
    Sum(Place),
    Sctp(SctpPlace),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) packet: Packet<Lent>,
    pub(super) arena: Arena,
    /// The offsets of the transport checksum.
    transport: Option<write::Owed>,
    /// The checksum of what was read, where it is not that of a transport header that is split.
    owed: Foreign,
    is_lent: bool,
}

impl Borrower for State {
    fn is_stale(&self) -> bool {
        self.is_lent
    }

    fn renew(&mut self) {
        *self = State::default();
    }

    fn begin(&mut self) {
        self.is_lent = true;
    }

    fn end(&mut self) {
        self.packet.payload.clear();
        self.is_lent = false;
    }
}

impl Splitter {
    /// Creates a splitter for reads that begin with a virtio-net header of this form, followed by a packet or train
    /// that begins with the header that `start` names.
    pub fn virtio(form: Form, start: Start) -> Splitter {
        Splitter { form: Some(form), start, state: State::default() }
    }

    /// Creates a splitter for reads of single packets without a virtio-net header. They are passed on as they are.
    pub fn plain(start: Start) -> Splitter {
        Splitter { form: None, start, state: State::default() }
    }

    /// Splits the result of one read, header included, and returns its packets. Nothing is copied yet.
    ///
    /// A train's segments each get their own lengths, sequence numbers, identifications, flags and checksums. A single
    /// packet is itself, with its checksum completed if it was owed.
    ///
    /// # Errors
    /// [`ReadError`] for a packet that contradicts its header or that cannot be split. It is to be dropped and counted.
    pub fn read<'s>(&'s mut self, buffer: &'s [u8]) -> Result<Packets<'s>, ReadError> {
        let (header, body) = self.parts(buffer);
        self.read_with(&header, body)
    }

    /// Splits the result of one read like [`Splitter::read`], but returns no packets where that is an error, which
    /// `refused` gets, for a loop that goes on.
    ///
    /// ```
    /// use segue::easy::Splitter;
    /// use segue::packet::Start;
    /// use segue::virtio::Form;
    ///
    /// let (mut splitter, mut refused) = (Splitter::virtio(Form::Basic, Start::Ip), 0);
    /// assert!(splitter.read_or(&[0; 10], |_reason| refused += 1).is_empty()); // a header without a packet
    /// assert_eq!(refused, 1);
    /// ```
    pub fn read_or<'s>(&'s mut self, buffer: &'s [u8], refused: impl FnOnce(ReadError)) -> Packets<'s> {
        let (header, body) = self.parts(buffer);
        let (packets, result) = self.split(&header, body);
        result.unwrap_or_else(refused);
        packets
    }

    /// Returns the header of a read and what follows it, which is empty if the header is not whole.
    fn parts<'s>(&self, buffer: &'s [u8]) -> (VirtioNet, &'s [u8]) {
        let Some(form) = self.form else { return (VirtioNet::default(), buffer) };
        VirtioNet::parse(buffer, form).zip(buffer.get(form.len()..)).unwrap_or_default()
    }

    /// Splits a packet or train that was received with `header`, for headers that do not directly precede their
    /// packets, such as those in the machine's byte order ([`VirtioNet::parse_native`]).
    ///
    /// # Errors
    /// As for [`Splitter::read`].
    pub fn read_with<'s>(&'s mut self, header: &VirtioNet, packet: &'s [u8]) -> Result<Packets<'s>, ReadError> {
        let (packets, result) = self.split(header, packet);
        result.map(|()| packets)
    }

    /// Splits a packet or train; where it cannot be split, no packets are returned beside the reason.
    #[inline]
    fn split<'s>(&'s mut self, header: &VirtioNet, packet: &'s [u8]) -> (Packets<'s>, Result<(), ReadError>) {
        let start = self.start;
        let mut loan = Loan::new(&mut self.state);
        let result = loan.lend(packet, 0, |state, bytes| {
            let State { packet, arena, transport, owed, .. } = state;
            arena.clear();
            *owed = match virtio::load(header, Frag::all(bytes), start, packet)? {
                Loaded::Ready => Foreign::Nothing,
                Loaded::Owed(place) => Foreign::Sum(place),
                Loaded::OwedSctp(place) => Foreign::Sctp(place),
            };
            *transport = write::Owed::of(&packet.layout);
            // Transport checksums are completed when the packet is written, in the pass that copies its payload.
            gso::split(packet, &Limits { csum: true, ..Limits::NONE }, arena)?;
            Ok(())
        });
        (Packets { loan }, result)
    }
}

/// The packets of one read.
pub struct Packets<'s> {
    loan: Loan<'s, 's, State>,
}

impl fmt::Debug for Packets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Packets<'_> {
    /// Returns the number of packets in the read.
    pub fn len(&self) -> usize {
        self.loan.value().arena.segments().len()
    }

    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Verifies the transport checksum of what was read, and returns its state, for a stack that verifies none itself.
    ///
    /// It is [`Csum::Verified`] at no cost where the device vouches for it: for a train, for a packet that owes it
    /// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`), which is completed as it is written, and for one that the device has verified
    /// (`VIRTIO_NET_HDR_F_DATA_VALID`). The checksum of a packet with neither flag, such as one forwarded from
    /// elsewhere, must not be relied on (virtio 1.2, section 5.1.6.4.2): the payload is summed here.
    ///
    /// [`Csum::Bad`], which includes UDP without a checksum over IPv6 (RFC 8200, section 8.1), is to be dropped where
    /// the connection ends; a program that forwards passes it on. [`Csum::Unknown`] is a packet without such a
    /// checksum: of another protocol, a fragment, in a tunnel.
    ///
    /// ```
    /// use segue::easy::Splitter;
    /// use segue::packet::{Csum, Start};
    ///
    /// // A UDP datagram with a wrong checksum, from a device that vouches for none.
    /// let packet = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 9, 9];
    /// assert_eq!(Splitter::plain(Start::Ip).read(&packet)?.verify(), Csum::Bad);
    /// # Ok::<(), segue::easy::ReadError>(())
    /// ```
    pub fn verify(&self) -> Csum {
        let State { packet, owed, .. } = self.loan.value();
        match packet.offload.unit {
            _ if !matches!(owed, Foreign::Nothing) => Csum::Unknown,
            Unit::Train { .. } | Unit::Whole(Csum::Partial | Csum::Verified) => Csum::Verified,
            Unit::Whole(_) => gso::verify(packet),
        }
    }

    /// Returns the packets, in the order in which they must leave.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SplitPacket<'_>> {
        let State { packet, arena, transport, owed, .. } = self.loan.value();
        // What was read is one range of bytes, and so is the payload.
        let payload = packet.payload.frags().first().map_or(&[][..], Frag::bytes);
        let transport = transport.as_ref();
        arena.segments().iter().map(move |segment| SplitPacket {
            head: arena.head(segment),
            payload: payload.get(segment.payload.start as usize..segment.payload.end as usize).unwrap_or(&[]),
            transport: transport.filter(|_| segment.csum == SegmentCsum::Partial),
            owed,
        })
    }
}

/// One packet of a read, not written yet.
#[derive(Clone, Copy)]
pub struct SplitPacket<'a> {
    head: &'a [u8],
    payload: &'a [u8],
    /// The checksum that is completed when the packet is written.
    transport: Option<&'a write::Owed>,
    owed: &'a Foreign,
}

impl fmt::Debug for SplitPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitPacket").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl SplitPacket<'_> {
    /// Returns the length of the packet, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Returns whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the packet to the start of `out`, complete, and returns its length. Bytes after it are not touched.
    ///
    /// The payload is copied and summed in one pass, which costs little more than the copy.
    ///
    /// # Errors
    /// [`Short`] where `out` is shorter than [`SplitPacket::len`].
    #[inline]
    pub fn write_to(&self, out: &mut [u8]) -> Result<usize, Short> {
        let (needed, given) = (self.len(), out.len());
        let place = out.get_mut(..needed).ok_or(Short { needed, given })?;
        write::packet(self.head, self.payload, self.transport, place);
        match *self.owed {
            Foreign::Nothing => {}
            Foreign::Sum(owed) => owed.fill(place),
            Foreign::Sctp(owed) => owed.fill(place),
        }
        Ok(needed)
    }

    /// Appends the packet to `out`, with `room.0` zeros before it and `room.1` after it, for a cipher's additions.
    ///
    /// ```
    /// use segue::easy::Splitter;
    /// use segue::packet::Start;
    ///
    /// let mut splitter = Splitter::plain(Start::Ip);
    /// let packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    /// let mut out = Vec::new();
    /// splitter.read(&packet)?.iter().for_each(|packet| packet.append_to(&mut out, (4, 2)));
    /// assert_eq!((out.len(), &out[4..24]), (4 + 20 + 2, &packet[..]));
    /// # Ok::<(), segue::easy::ReadError>(())
    /// ```
    pub fn append_to(&self, out: &mut Vec<u8>, room: (usize, usize)) {
        let start = out.len() + room.0;
        let end = start + self.len();
        out.resize(end + room.1, 0);
        // The range was just made, with the length of the packet.
        let _ = out.get_mut(start..end).map(|place| self.write_to(place));
    }
}

/// The reason why a read could not be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The packet contradicts its virtio-net header.
    Header(virtio::Refusal),
    /// The packet or train cannot be split.
    Split(gso::Refusal),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Header(reason) => reason.fmt(f),
            ReadError::Split(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for ReadError {}

impl From<virtio::Refusal> for ReadError {
    fn from(reason: virtio::Refusal) -> ReadError {
        ReadError::Header(reason)
    }
}

impl From<gso::Refusal> for ReadError {
    fn from(reason: gso::Refusal) -> ReadError {
        ReadError::Split(reason)
    }
}
