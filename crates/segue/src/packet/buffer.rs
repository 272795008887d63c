//! Memory that holds packets: the trait that the engine requires.

use core::ops::Range;

use crate::checksum::Sum;

/// Number of bytes copied out at once where they can be neither summed nor copied in place.
const CHUNK: usize = 512;

/// Memory that holds a packet or a part of one.
///
/// Every type that is `AsRef<[u8]>` is a buffer: slices, arrays, `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, `bytes::Bytes`.
/// `Arc<Vec<u8>>` and `Rc<Vec<u8>>` are not `AsRef<[u8]>`: wrap them, or share slices.
///
/// Memory that another party may write to at the same time, such as that of a guest or of a device, must never be a
/// `&[u8]`. Its owner implements this trait with volatile reads instead, which need no `unsafe` of the owner where its
/// crate has them (`vm-memory`). The engine reads each header byte once, works on the copy, and takes whatever the
/// memory says later for payload: changed bytes give a packet with other bytes, a changed size gives zeros; neither is
/// a panic.
///
/// Loading, splitting and completing work on any buffer. GRO joins buffers that are `AsRef<[u8]>`.
///
/// ```
/// use std::cell::Cell;
/// use segue::gso::{Frames, Limits, split_linear};
/// use segue::packet::{Buffer, Frag, Packet, Start, Tunnels};
///
/// /// Memory that may change at any time.
/// struct Shared<'a>(&'a [Cell<u8>]);
///
/// impl Buffer for Shared<'_> {
///     fn size(&self) -> usize {
///         self.0.len()
///     }
///     fn read(&self, offset: usize, out: &mut [u8]) -> usize {
///         let from = self.0.get(offset..).unwrap_or(&[]);
///         from.iter().zip(&mut *out).map(|(from, to)| *to = from.get()).count()
///     }
/// }
///
/// # let mut bytes = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
/// let memory = Cell::from_mut(&mut bytes[..]).as_slice_of_cells();
/// let mut packet = Packet::default();
/// packet.load(Frag::all(Shared(memory)), Start::Ip, &Tunnels::NONE);
/// let mut frames = Frames::new();
/// assert_eq!(split_linear(&packet, &Limits::NONE, &mut frames), Ok(1));
/// ```
pub trait Buffer {
    /// Returns the number of bytes.
    fn size(&self) -> usize;

    /// Copies the bytes from `offset` on to the start of `out`, as many as exist and fit, and returns their number.
    fn read(&self, offset: usize, out: &mut [u8]) -> usize;

    /// Returns the bytes, if nothing else can write to them.
    #[inline(always)]
    fn as_slice(&self) -> Option<&[u8]> {
        None
    }
}

impl<T: AsRef<[u8]>> Buffer for T {
    #[inline(always)]
    fn size(&self) -> usize {
        self.as_ref().len()
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        let from = self.as_ref().get(offset..).unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }

    #[inline(always)]
    fn as_slice(&self) -> Option<&[u8]> {
        Some(self.as_ref())
    }
}

/// Copies bytes like [`Buffer::read`]; those that the buffer does not return are zeros.
pub(super) fn read_all<B: Buffer>(buffer: &B, offset: usize, out: &mut [u8]) {
    let len = buffer.read(offset, out).min(out.len());
    out[len..].fill(0);
}

/// Returns the sum of the bytes in `range`; bytes that the buffer does not return count as zeros.
pub(super) fn sum<B: Buffer>(buffer: &B, range: Range<usize>) -> Sum {
    if let Some(bytes) = buffer.as_slice() {
        return bytes.get(range).map_or(Sum::ZERO, Sum::of);
    }
    let (mut sum, mut at, mut chunk) = (Sum::ZERO, range.start, [0; CHUNK]);
    while at < range.end {
        let len = (range.end - at).min(CHUNK);
        read_all(buffer, at, &mut chunk[..len]);
        sum.add(&chunk[..len]);
        at += len;
    }
    sum
}
