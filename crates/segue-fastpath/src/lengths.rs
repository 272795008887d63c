//! Lengths of a map's prefixes, as a list that programs can read while it changes.
//!
//! A change is one word of one entry, so that a lookup that walks the list meets every length that was there before
//! and is there afterwards.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::layout::length;
use crate::map::Map;
use crate::sys::MapKind;

/// List of the prefix lengths of one IP version.
pub(crate) struct Lengths {
    map: Map,
    /// Number of bits of an address.
    bits: u8,
    /// Numbers of prefixes by their lengths.
    counts: BTreeMap<u8, u32>,
}

impl Lengths {
    /// Creates an empty list for addresses of `bits` bits.
    pub(crate) fn create(bits: u8, name: &str) -> io::Result<Lengths> {
        let map = Map::create(MapKind::Array, 4, length::LEN, u32::from(bits) + 1, name)?;
        let lengths = Lengths { map, bits, counts: BTreeMap::new() };
        (0..=bits).try_for_each(|len| lengths.write(len, None))?;
        Ok(lengths)
    }

    /// Counts a prefix of the given length before it is added. That of a whole address is no matter of the list.
    pub(crate) fn add(&mut self, len: u8) -> io::Result<()> {
        if len >= self.bits {
            return Ok(());
        }
        if !self.counts.contains_key(&len) {
            self.write(len, self.next(len))?;
            self.write(self.before(len), Some(len))?;
        }
        *self.counts.entry(len).or_default() += 1;
        Ok(())
    }

    /// Records the removal of a prefix of the given length. A length that stays in the list for nothing only costs
    /// time, so that a failure is none of the caller's.
    pub(crate) fn remove(&mut self, len: u8) {
        let Some(count) = self.counts.get_mut(&len) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&len);
            // A lookup at this length continues from there.
            let _ = self.write(self.before(len), self.next(len));
        }
    }

    /// Returns the length that precedes the given one in the list.
    fn before(&self, len: u8) -> u8 {
        self.counts.range(len + 1..).next().map_or(self.bits, |(len, _)| *len)
    }

    fn next(&self, len: u8) -> Option<u8> {
        self.counts.range(..len).next_back().map(|(len, _)| *len)
    }

    fn write(&self, len: u8, next: Option<u8>) -> io::Result<()> {
        let mut value = [0; length::LEN];
        let next = next.map_or(length::END, u32::from);
        value[length::NEXT as usize..][..4].copy_from_slice(&next.to_ne_bytes());
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0).to_be_bytes();
        value[length::MASK as usize..][..16].copy_from_slice(&mask);
        self.map.set(&u32::from(len).to_ne_bytes(), &value)
    }
}

impl AsFd for Lengths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
