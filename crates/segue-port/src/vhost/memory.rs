//! A guest's memory: files of another process, mapped here while that process and its guest write to them.
//!
//! The mappings and every access to them are those of the crate vm-memory, which copies to or from memory of this
//! process by volatile accesses; no reference into a guest's memory exists. A file that becomes shorter than its
//! mapping is caught ([`Guard`]).

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MemoryRegionAddress, VolatileSlice,
};

use super::message::Region;
use super::reasons::Stop;
use super::sys::{self, Guard, MOST_GUARDS};

/// Largest number of regions of one guest.
pub(super) const MOST_REGIONS: usize = 64;
const _: () = assert!(MOST_GUARDS >= 128 * MOST_REGIONS, "each of the ports of a bridge may have as many");
/// Largest memory of one guest, all its regions together, bytes. A file without content may have any length, and all
/// guests of a gateway share the 47 bits of addresses that a process has.
pub(super) const MOST_MEMORY: u64 = 1 << 40;
/// Number of bytes that are unmapped at once: pages of 4 kB, all of them touched, take half a millisecond (AMD EPYC,
/// Linux 6.18).
pub(super) const UNMAPPED_AT_ONCE: u64 = 8 << 20;

/// The memory of a guest.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The regions by their guest addresses.
    regions: Vec<Mapped>,
    /// Regions that were removed and are still to be unmapped, and how much of the first one has no pages any more.
    gone: VecDeque<Arc<GuestRegionMmap>>,
    emptied: u64,
    all: GuestMemoryMmap,
    /// Generation number of the current set of regions.
    generation: u64,
}

/// A mapped region of guest memory. Its guard is dropped before the mapping.
#[derive(Debug)]
struct Mapped {
    guard: Guard,
    guest: u64,
    user: u64,
    region: Arc<GuestRegionMmap>,
}

/// A range of a guest's memory within one region, which stays mapped meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Place {
    region: Arc<GuestRegionMmap>,
    offset: u64,
    len: usize,
}

impl Place {
    /// Returns the bytes of the range.
    #[inline]
    pub(super) fn slice(&self) -> Result<VolatileSlice<'_>, Stop> {
        self.region.get_slice(MemoryRegionAddress(self.offset), self.len).map_err(|_| Stop::QueueAddress)
    }
}

impl Memory {
    /// Replaces all mapped regions.
    pub(super) fn replace(&mut self, regions: Vec<(Region, OwnedFd)>) -> Result<(), Stop> {
        self.clear();
        regions.into_iter().try_for_each(|(region, fd)| self.add(&region, fd))
    }

    /// Removes all mapped regions, which [`Memory::unmap`] unmaps.
    pub(super) fn clear(&mut self) {
        self.all = GuestMemoryMmap::new();
        self.gone.extend(self.regions.drain(..).map(|mapped| mapped.region));
        self.generation += 1;
    }

    /// Unmaps regions that were removed, for about the time `left`, and reduces it by as much. Returns whether none
    /// remains.
    pub(super) fn unmap(&mut self, left: &mut Duration) -> bool {
        while let Some(region) = self.gone.front().filter(|_| !left.is_zero()) {
            let begin = Instant::now();
            let len = UNMAPPED_AT_ONCE.min(region.len() - self.emptied);
            if let Ok(slice) = region.get_slice(MemoryRegionAddress(self.emptied), len as usize) {
                sys::drop_pages(&slice);
            }
            self.emptied += len;
            if self.emptied == region.len() {
                self.gone.pop_front();
                self.emptied = 0;
            }
            *left = left.saturating_sub(begin.elapsed());
        }
        self.gone.is_empty()
    }

    /// Maps a region of the file `fd`.
    pub(super) fn add(&mut self, region: &Region, fd: OwnedFd) -> Result<(), Stop> {
        let len = usize::try_from(region.len).ok().filter(|len| *len > 0).ok_or(Stop::MemoryLength)?;
        let end = region.offset.checked_add(region.len).filter(|end| i64::try_from(*end).is_ok());
        if end.is_none() || region.guest.checked_add(region.len).is_none() {
            return Err(Stop::MemoryLength);
        }
        let user_end = region.user.checked_add(region.len).ok_or(Stop::MemoryLength)?;
        let overlaps = |other: &Mapped| region.user < other.user + other.region.len() && other.user < user_end;
        if self.regions.len() >= MOST_REGIONS || self.regions.iter().any(overlaps) {
            return Err(Stop::MemoryRegions);
        }
        let mapped: u64 = self.regions.iter().map(|mapped| mapped.region.len()).sum();
        if region.len > MOST_MEMORY - mapped {
            return Err(Stop::MemoryLength);
        }
        let mapping = MmapRegionBuilder::new(len)
            .with_file_offset(FileOffset::new(File::from(fd), region.offset))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()
            .map_err(|_| Stop::MemoryMapping)?;
        let guard = Guard::new(mapping.as_ptr(), len).ok_or(Stop::MemoryRegions)?;
        let mapped = GuestRegionMmap::new(mapping, GuestAddress(region.guest)).ok_or(Stop::MemoryLength)?;
        let mapped = Mapped { guard, guest: region.guest, user: region.user, region: Arc::new(mapped) };
        self.all = self.all.insert_region(Arc::clone(&mapped.region)).map_err(|_| Stop::MemoryRegions)?;
        self.regions.insert(self.place_of(region.guest), mapped);
        self.generation += 1;
        Ok(())
    }

    /// Removes a region, which [`Memory::unmap`] unmaps.
    pub(super) fn remove(&mut self, region: &Region) -> Result<(), Stop> {
        let is_it = |mapped: &Mapped| {
            mapped.user == region.user && mapped.guest == region.guest && mapped.region.len() == region.len
        };
        let at = self.regions.iter().position(is_it).ok_or(Stop::MemoryRegions)?;
        self.all = match self.all.remove_region(GuestAddress(region.guest), region.len) {
            Ok((rest, _)) => rest,
            Err(_) => return Err(Stop::MemoryRegions),
        };
        self.gone.push_back(self.regions.remove(at).region);
        self.generation += 1;
        Ok(())
    }

    /// Returns the generation number of the current set of regions; places of an earlier one must be looked up again.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the `len` bytes at an address of the front end, if they lie in one region.
    pub(super) fn place(&self, user: u64, len: usize) -> Option<Place> {
        let holds = |mapped: &&Mapped| {
            user.checked_sub(mapped.user)
                .and_then(|offset| offset.checked_add(len as u64))
                .is_some_and(|end| end <= mapped.region.len())
        };
        let mapped = self.regions.iter().find(holds)?;
        Some(Place { region: Arc::clone(&mapped.region), offset: user - mapped.user, len })
    }

    /// Returns the bytes of a range of guest addresses, if they lie in one region.
    #[inline]
    fn slice(&self, guest: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let Mapped { guest: start, region, .. } = self.regions.get(self.place_of(guest).checked_sub(1)?)?;
        region.get_slice(MemoryRegionAddress(guest - start), len).ok()
    }

    /// Returns the number of regions that begin at a guest address or before it.
    #[inline]
    fn place_of(&self, guest: u64) -> usize {
        self.regions.partition_point(|mapped| mapped.guest <= guest)
    }

    /// Copies bytes from the guest's memory.
    #[inline]
    pub(super) fn read(&self, guest: u64, into: &mut [u8]) -> Result<(), Stop> {
        match self.slice(guest, into.len()) {
            Some(slice) => {
                slice.copy_to(into);
                Ok(())
            }
            // Regions may adjoin.
            None => self.all.read_slice(into, GuestAddress(guest)).map_err(|_| Stop::RingAddress),
        }
    }

    /// Copies bytes to the guest's memory.
    #[inline]
    pub(super) fn write(&self, guest: u64, bytes: &[u8]) -> Result<(), Stop> {
        match self.slice(guest, bytes.len()) {
            Some(slice) => {
                slice.copy_from(bytes);
                Ok(())
            }
            None => self.all.write_slice(bytes, GuestAddress(guest)).map_err(|_| Stop::RingAddress),
        }
    }

    /// Requests the cache lines of a range of guest addresses, if it lies in one region.
    #[inline]
    pub(super) fn prefetch(&self, guest: u64, len: usize) {
        if let Some(slice) = self.slice(guest, len) {
            sys::prefetch(&slice);
        }
    }

    /// Returns whether a range of guest addresses lies in the guest's memory.
    #[inline]
    pub(super) fn holds(&self, guest: u64, len: u32) -> bool {
        self.slice(guest, len as usize).is_some() || self.all.check_range(GuestAddress(guest), len as usize)
    }

    /// Returns whether a file was shortened while it was used.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.regions.iter().any(|mapped| mapped.guard.is_lost())
    }

    /// Returns whether there is no region.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use segue_testkit::vhost::Frontend;

    use super::*;

    #[test]
    fn regions_that_come_in_any_order_are_found() {
        let file = Frontend::over(UnixStream::pair().unwrap().0, 0).memory;
        let mut memory = Memory::default();
        let region = |guest: u64| Region { guest, len: 0x2000, user: guest << 8, offset: 0x2000 };
        let starts = [0x9000_2000, 0x1000_0000, 0x9000_0000, 0xf000_0000, 0x2000_0000];
        for guest in starts {
            memory.add(&region(guest), file.try_clone().unwrap().into()).unwrap();
        }
        for guest in starts {
            assert!([0, 0x1000].into_iter().all(|at| memory.slice(guest + at, 0x1000).is_some()), "{guest:#x}");
            assert!(memory.slice(guest - 1, 2).is_none() && memory.slice(guest + 0x1fff, 2).is_none(), "{guest:#x}");
        }
        assert!(memory.holds(0x9000_1fff, 2), "regions that adjoin");
        memory.remove(&region(0x2000_0000)).unwrap();
        let left: Vec<bool> = starts.iter().map(|&guest| memory.slice(guest, 1).is_some()).collect();
        assert_eq!(left, [true, true, true, true, false]);
    }
}
