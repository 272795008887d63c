//! The header array of a packet: a fixed buffer with headroom.

use crate::arch::HEAD_BLOCK;
use crate::wire::parse::MAX_HEADER_BYTES;

/// Headroom of a freshly loaded head, in bytes: IPv6, UDP, GUE with remote checksum and GRE with all options take
/// 76.
pub const HEADROOM: usize = 80;

/// All headers of one packet, contiguous, with up to [`HEADROOM`] bytes of headroom.
// In this order, so that few cache lines hold all that a packet without tunnels uses.
#[derive(Clone)]
#[repr(C)]
pub struct Head {
    start: u16,
    end: u16,
    buf: [u8; HEADROOM + MAX_HEADER_BYTES],
}

impl Default for Head {
    fn default() -> Self {
        Head { buf: [0; HEADROOM + MAX_HEADER_BYTES], start: HEADROOM as u16, end: HEADROOM as u16 }
    }
}

impl core::fmt::Debug for Head {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Head({:02x?})", self.bytes())
    }
}

impl Head {
    /// Returns the length of the headers, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Returns whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes of the headers.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buf[usize::from(self.start)..usize::from(self.end)]
    }

    /// Returns the bytes of the headers for modification.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[usize::from(self.start)..usize::from(self.end)]
    }

    /// Replaces the content and restores the headroom. Bytes past the capacity of 256, which is also the parser's
    /// limit, are ignored.
    pub fn set(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(MAX_HEADER_BYTES)];
        self.start = HEADROOM as u16;
        self.end = self.start + bytes.len() as u16;
        self.bytes_mut().copy_from_slice(bytes);
    }

    /// Replaces the headers by the first `len` bytes of `block`, like [`Head::set`], by a copy of constant length.
    #[inline(always)]
    pub(crate) fn set_block(&mut self, block: &[u8; HEAD_BLOCK], len: usize) {
        self.start = HEADROOM as u16;
        self.end = (HEADROOM + len.min(HEAD_BLOCK)) as u16;
        // Bytes after the end are never exposed. Most headers end in the first part.
        const FIRST: usize = 80;
        self.buf[HEADROOM..HEADROOM + FIRST].copy_from_slice(&block[..FIRST]);
        if len > FIRST {
            self.buf[HEADROOM + FIRST..HEADROOM + HEAD_BLOCK].copy_from_slice(&block[FIRST..]);
        }
    }

    /// Returns the headers and the following bytes in the array, if a whole block is present.
    #[inline(always)]
    pub(crate) fn block(&self) -> Option<&[u8; HEAD_BLOCK]> {
        self.buf.get(usize::from(self.start)..)?.first_chunk()
    }

    /// Prepends `len` bytes and returns them, or `None` if there is too little headroom.
    pub fn push_front(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = usize::from(self.start).checked_sub(len)?;
        self.start = start as u16;
        Some(&mut self.buf[start..start + len])
    }

    /// Removes `len` bytes from the front; all of them if there are fewer.
    pub fn pull_front(&mut self, len: usize) {
        self.start += len.min(self.len()) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_pushed_in_front_until_the_room_is_used() {
        let mut head = Head::default();
        head.set(b"tcp");
        head.push_front(2).unwrap().copy_from_slice(b"ip");
        assert_eq!(head.bytes(), b"iptcp");
        assert!(head.push_front(HEADROOM - 1).is_none());
        assert_eq!(head.push_front(HEADROOM - 2).map(|b| b.len()), Some(HEADROOM - 2));
        head.pull_front(HEADROOM);
        assert_eq!(head.bytes(), b"tcp");
        head.pull_front(99);
        assert!(head.is_empty());
    }
}
