//! The memory of pages: allocated here, or the slots of a packet socket's receive ring, which the kernel and this
//! process write alternately.
#![allow(unsafe_code, reason = "mapped memory has no safe form in the standard library")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

/// Status word of a slot that belongs to the kernel, which may fill it (`TP_STATUS_KERNEL`).
const KERNELS: u32 = 0;
/// Status bit of a slot that belongs to this process (`TP_STATUS_USER`).
const OURS: u32 = 1;

/// A mapping shared by many slots and unmapped when the last of them is dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `fd`, or of no file (`MAP_ANONYMOUS`).
    fn new(flags: libc::c_int, fd: RawFd, len: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place; the mapping is of memory that nothing else in this process refers to.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of a successful mmap, and no slot is left that refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The memory of one page: allocated here, or the place of one frame in a ring whose slots begin with a status word
/// (`TPACKET_V2`).
///
/// The bytes of a slot are accessible only between [`Memory::claim`] and [`Memory::release`], when the kernel does not
/// touch them. Both methods take the memory exclusively, so that no borrow of the bytes outlives its turn.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The first byte: of a slot, in its mapping, or of a boxed slice of `len` bytes, which belongs to this value.
    first: NonNull<u8>,
    /// Number of bytes that are accessible: all of them, or none while the kernel owns the slot.
    open: usize,
    len: usize,
    /// The mapping of a slot, and the slot's index in the ring.
    ring: Option<(Rc<Mapping>, usize)>,
}

impl Memory {
    /// Allocates `len` bytes, which are zeros.
    pub(crate) fn allocate(len: usize) -> Memory {
        // With its type: a cast follows, and `drop` frees bytes.
        let bytes: &mut [u8] = Box::leak(vec![0_u8; len].into_boxed_slice());
        Memory { first: NonNull::from(bytes).cast(), open: len, len, ring: None }
    }

    /// Maps `blocks` blocks of `block_len` bytes of the ring of `fd`, each of which holds as many slots of `slot_len`
    /// bytes as fit. The kernel requires a slot length that is a multiple of 16.
    pub(crate) fn map(fd: BorrowedFd<'_>, blocks: usize, block_len: usize, slot_len: usize) -> io::Result<Vec<Memory>> {
        Memory::slots(libc::MAP_SHARED, fd.as_raw_fd(), blocks, block_len, slot_len)
    }

    /// Maps the slots of a ring with the flags of mmap(2), of which Miri knows an anonymous mapping only.
    fn slots(
        flags: libc::c_int,
        fd: RawFd,
        blocks: usize,
        block_len: usize,
        slot_len: usize,
    ) -> io::Result<Vec<Memory>> {
        let len = blocks.checked_mul(block_len).filter(|len| *len > 0 && slot_len >= 16 && slot_len.is_multiple_of(16));
        let len = len.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mapping = Rc::new(Mapping::new(flags, fd, len)?);
        let in_block = block_len / slot_len;
        let place = |index: usize| index / in_block.max(1) * block_len + index % in_block.max(1) * slot_len;
        let slot = |index| {
            // SAFETY: the place is in the mapping, whose blocks hold as many slots.
            let first = unsafe { mapping.base.add(place(index)) };
            Memory { first, open: 0, len: slot_len, ring: Some((Rc::clone(&mapping), index)) }
        };
        Ok((0..blocks * in_block).map(slot).collect())
    }

    /// Returns the index of the slot in its ring, if the memory is one.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.ring.as_ref().map(|(_, index)| *index)
    }

    /// Returns whether the kernel has filled the slot.
    pub(crate) fn is_filled(&self) -> bool {
        self.open != 0 || self.ring.is_some() && self.status().load(Ordering::Acquire) & OURS != 0
    }

    /// Claims the slot if the kernel has filled it; returns whether it belongs to this process.
    #[inline]
    pub(crate) fn claim(&mut self) -> bool {
        // Acquire: what the kernel wrote before the word is visible after it.
        if self.open == 0 && self.ring.is_some() && self.status().load(Ordering::Acquire) & OURS != 0 {
            self.open = self.len;
        }
        self.open != 0
    }

    /// Returns the slot to the kernel, if this process owns it. Does nothing to memory that was allocated.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.ring.is_some() && std::mem::take(&mut self.open) != 0 {
            // Release: reads and writes of this process stay before the word.
            self.status().store(KERNELS, Ordering::Release);
        }
    }

    /// Returns the accessible bytes, of a slot including the status word; none while the kernel owns it.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes follow the first: those allocated here, or those of a slot inside the mapping, which
        // lives as long as `self`. While bytes are open the kernel does not write to the slot, and `release`, which
        // ends that, needs `self` exclusively.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.open) }
    }

    /// Returns the bytes for writing, like [`Memory::bytes`].
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; slots do not overlap, and this one is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.open) }
    }

    #[inline]
    fn status(&self) -> &AtomicU32 {
        // SAFETY: only slots are asked. The word is the first of the slot, which is inside the mapping and aligned to
        // 16; the kernel writes it with single stores.
        unsafe { AtomicU32::from_ptr(self.first.as_ptr().cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.ring.is_none() {
            let bytes = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.len);
            // SAFETY: `allocate` leaked a boxed slice of this length, and nothing refers to it any more.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length of a block that holds three slots and no fourth one; two are whole pages of 4096 bytes.
    const BLOCK_LEN: usize = 4096;
    const SLOT_LEN: usize = 1360;

    /// Fills a slot and gives it to this process, as the kernel does.
    fn fill(slot: &mut Memory, byte: u8) {
        slot.open = slot.len;
        slot.bytes_mut()[size_of::<u32>()..].fill(byte);
        slot.open = 0;
        slot.status().store(OURS, Ordering::Release);
    }

    /// Miri interprets this test (`tools/miri`): a slot beyond the mapping or an access after its end fails there.
    #[test]
    fn slots_are_apart_are_claimed_and_returned_and_keep_their_mapping() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut slots = Memory::slots(flags, -1, 2, BLOCK_LEN, SLOT_LEN).unwrap();
        assert_eq!(slots.iter().filter_map(Memory::slot).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        for slot in &mut slots {
            assert!(!slot.claim(), "the kernel has filled none");
            assert!(slot.bytes().is_empty() && slot.bytes_mut().is_empty());
        }
        for (byte, slot) in (1_u8..).zip(&mut slots) {
            fill(slot, byte);
        }
        let mut last = slots.pop().unwrap();
        for (byte, slot) in (1_u8..).zip(&mut slots) {
            assert!(slot.claim());
            assert!(slot.claim(), "it stays claimed");
            assert_eq!(slot.bytes().len(), SLOT_LEN);
            assert_eq!(slot.bytes().first_chunk::<4>(), Some(&OURS.to_ne_bytes()));
            assert!(slot.bytes()[size_of::<u32>()..] == [byte; SLOT_LEN - size_of::<u32>()], "another slot's byte");
            slot.bytes_mut()[size_of::<u32>()..].fill(0);
            slot.release();
            assert!(slot.bytes().is_empty() && !slot.claim(), "it is the kernel's");
        }
        drop(slots);
        assert!(last.claim(), "the mapping lives as long as a slot");
        assert!(last.bytes()[size_of::<u32>()..] == [6; SLOT_LEN - size_of::<u32>()]);
    }

    #[test]
    fn allocated_memory_is_zero_at_first_and_always_open() {
        let mut memory = Memory::allocate(100);
        assert_eq!(memory.slot(), None);
        assert_eq!(memory.bytes(), [0; 100]);
        memory.bytes_mut()[99] = 7;
        memory.release();
        assert!(memory.claim());
        assert_eq!((memory.bytes().len(), memory.bytes()[99]), (100, 7));
        assert!(Memory::allocate(0).bytes().is_empty());
    }
}
