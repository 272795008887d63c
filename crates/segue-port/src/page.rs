//! Pages: memory that ports read into and that packets reference.
//!
//! A [`PagePool`] belongs to one worker. It hands out whole pages to write to ([`PageMut`]); freezing one gives a
//! [`Page`], a counted slice that can be cloned and cut but no longer written. When the last slice is gone the page is
//! free again, and the page freed last is handed out first, while it is still in the cache.
//!
//! The slots of a receive ring are pages too ([`RingPages`]): freeing one gives it back to the kernel.
//!
//! Pages may be as small as a kernel's. Reads of unknown length then continue in the next page where one ends
//! ([`Scatter`]), and a packet that crosses pages is one of several ranges; nothing is copied for that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

use segue::packet::Frag;

use crate::mmap::Memory;
use crate::sys;

/// Smallest buffer for one read, in bytes: the largest IP packet, the largest virtio-net header (24) and rounding to
/// cache lines.
pub const WINDOW: usize = 65_600;
/// Length of a page in bytes: two reads of any size fit, and after a page's first small reads there is always room for
/// another one.
pub const PAGE_LEN: usize = 2 * WINDOW;
/// Alignment of the reads in a page, bytes.
const ALIGN: usize = 64;
/// Length of the smallest page, bytes.
pub const MIN_PAGE_LEN: usize = 4096;
/// Bytes at the start of a read that always lie in one page: a virtio-net header, room for a VLAN tag, the addresses.
pub(crate) const HEADER_AREA: usize = 128;
/// Length in bytes of the longest checksum field.
pub(crate) const FIELD_LEN: usize = 4;
/// Largest number of pages of one read.
const MAX_PIECES: usize = WINDOW.div_ceil(MIN_PAGE_LEN) + 1;

#[derive(Debug)]
struct Home {
    free: RefCell<Vec<Rc<Slab>>>,
    made: Cell<usize>,
}

#[derive(Debug)]
struct Slab {
    memory: Memory,
    home: Weak<Home>,
}

/// A reference to a slab; dropping the last one returns the slab.
#[derive(Clone, Debug)]
struct Handle(Rc<Slab>);

impl std::ops::Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        if Rc::strong_count(&self.0) == 1 {
            self.release();
        }
    }
}

impl Handle {
    /// Returns the slab, of which this is the only reference.
    #[inline(never)]
    fn release(&mut self) {
        let Some(slab) = Rc::get_mut(&mut self.0) else { return };
        // At once: poll(2) reports the ring readable as long as its newest frame is not returned.
        slab.memory.release();
        if let Some(home) = slab.home.upgrade() {
            home.free.borrow_mut().push(Rc::clone(&self.0));
        }
    }
}

/// A counted slice of a page. Cloning it copies a pointer; it stays with its worker (`!Send`).
#[derive(Clone, Debug)]
pub struct Page {
    handle: Handle,
    start: u32,
    len: u32,
}

impl Page {
    /// Returns the part `range` of this slice, clamped to its length, in the same memory.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Page {
        let have = self.len as usize;
        let start = range.start.min(have);
        let len = range.end.clamp(start, have) - start;
        Page { handle: self.handle.clone(), start: self.start + start as u32, len: len as u32 }
    }

    /// Returns the length of the slice in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsRef<[u8]> for Page {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        &self.handle.0.memory.bytes()[self.start as usize..self.start as usize + self.len as usize]
    }
}

/// A whole page with one owner and no references.
#[derive(Debug)]
pub struct PageMut {
    handle: Handle,
}

impl PageMut {
    /// Returns all bytes of the page, with the content of its last use.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // The only way to a second reference is `freeze`, which consumes the page; no weak references are made.
        Rc::get_mut(&mut self.handle.0)
            .map(|slab| slab.memory.bytes_mut())
            .expect("a page being written has one reference")
    }

    /// Returns the first `len` bytes, clamped to the page, shared and read-only.
    #[inline]
    pub fn freeze(self, len: usize) -> Page {
        let len = len.min(self.handle.0.memory.bytes().len());
        Page { handle: self.handle, start: 0, len: len as u32 }
    }
}

/// The pages of one worker: at most `limit` of `page_len` bytes, allocated when first needed and freed only with the
/// pool.
#[derive(Debug)]
pub struct PagePool {
    home: Rc<Home>,
    page_len: usize,
    sharing: Sharing,
    limit: usize,
    exhausted: u64,
}

/// Number of reads per page of a [`PagePool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A page takes as many reads as fit.
    Many,
    /// The page holds one read.
    One,
}

impl PagePool {
    /// Returns a pool of at most `limit` pages of [`PAGE_LEN`] bytes.
    pub fn new(limit: usize) -> PagePool {
        PagePool::with_page_len(limit, PAGE_LEN)
    }

    /// Returns a pool of at most `limit` pages of `page_len` bytes, at least [`MIN_PAGE_LEN`] and below 2 GiB. UDP
    /// ports need pages of at least [`WINDOW`]; reads of packet ports cross smaller ones.
    pub fn with_page_len(limit: usize, page_len: usize) -> PagePool {
        PagePool::of(limit, page_len.clamp(MIN_PAGE_LEN, i32::MAX as usize), Sharing::Many)
    }

    /// Returns a pool of at most `limit` buffers, each for one packet of any size.
    pub fn of_frames(limit: usize) -> PagePool {
        PagePool::of(limit, WINDOW, Sharing::One)
    }

    /// Returns a pool of pieces of `len` bytes, for checksum fields that packet ports complete.
    pub(crate) fn of_pieces(limit: usize, len: usize) -> PagePool {
        PagePool::of(limit, len, Sharing::One)
    }

    fn of(limit: usize, page_len: usize, sharing: Sharing) -> PagePool {
        let home = Home { free: RefCell::new(Vec::with_capacity(limit)), made: Cell::new(0) };
        PagePool { home: Rc::new(home), page_len, sharing, limit, exhausted: 0 }
    }

    /// Returns the number of reads that share one page.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Returns a free page, preferably the one freed last. `None`, which is counted, where all are in use.
    pub fn take(&mut self) -> Option<PageMut> {
        let free = self.home.free.borrow_mut().pop();
        let slab = match free {
            Some(slab) => slab,
            None if self.home.made.get() < self.limit => {
                self.home.made.set(self.home.made.get() + 1);
                let memory = Memory::allocate(self.page_len);
                Rc::new(Slab { memory, home: Rc::downgrade(&self.home) })
            }
            None => {
                self.exhausted += 1;
                return None;
            }
        };
        Some(PageMut { handle: Handle(slab) })
    }

    /// Returns the length of each page in bytes.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Returns the number of pages that are in use.
    pub fn in_use(&self) -> usize {
        self.home.made.get() - self.home.free.borrow().len()
    }

    /// Returns the number of times that [`PagePool::take`] found no page.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }
}

/// The slots of a receive ring, as pages. A freed page goes back to the kernel at once, in any order; the kernel fills
/// the slots in order and stops at one that is still in use.
#[derive(Debug)]
pub(crate) struct RingPages {
    home: Rc<Home>,
    /// Unreferenced slots, filled or not, which belong to the kernel.
    slots: Box<[Option<Rc<Slab>>]>,
    next: usize,
    /// Whether the slot half a ring ahead of the last one was found still in use.
    is_held_up: bool,
}

impl RingPages {
    /// Returns all slots of a ring, in the kernel's order.
    pub(crate) fn new(slots: Vec<Memory>) -> RingPages {
        let home = Rc::new(Home { free: RefCell::new(Vec::with_capacity(slots.len())), made: Cell::new(slots.len()) });
        let slab = |memory| Rc::new(Slab { memory, home: Rc::downgrade(&home) });
        RingPages { slots: slots.into_iter().map(slab).map(Some).collect(), home, next: 0, is_held_up: false }
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the next slot filled by the kernel.
    #[inline]
    pub(crate) fn claim(&mut self) -> Option<PageMut> {
        self.find(self.next);
        let place = self.slots.get_mut(self.next)?;
        if !Rc::get_mut(place.as_mut()?)?.memory.claim() {
            return None;
        }
        let slab = place.take()?;
        let len = self.slots.len();
        self.next = if self.next + 1 == len { 0 } else { self.next + 1 };
        // Each slot is passed once a round. The kernel stops at one that is still in use when it comes to it.
        let ahead = self.next + len / 2;
        self.is_held_up |= !self.find(if ahead < len { ahead } else { ahead - len });
        Some(PageMut { handle: Handle(slab) })
    }

    /// Returns whether the slot is unreferenced. Freed slots are put back only for one that seems in use, so that most
    /// frames need no look at the list of freed ones.
    #[inline]
    fn find(&mut self, index: usize) -> bool {
        let is_here = |ring: &RingPages| ring.slots.get(index).is_some_and(Option::is_some);
        if !is_here(self) {
            self.reclaim();
        }
        is_here(self)
    }

    /// Returns whether the kernel has all slots, and has filled none.
    pub(crate) fn is_unused(&mut self) -> bool {
        self.reclaim();
        let is_unused = |slot: &Option<Rc<Slab>>| slot.as_ref().is_some_and(|slab| !slab.memory.is_filled());
        self.slots.iter().all(is_unused)
    }

    /// Returns whether a slot's frame was kept for half a round of the ring since the last call.
    pub(crate) fn take_held_up(&mut self) -> bool {
        std::mem::take(&mut self.is_held_up)
    }

    #[inline(never)]
    fn reclaim(&mut self) {
        for slab in self.home.free.borrow_mut().drain(..) {
            if let Some(index) = slab.memory.slot() {
                self.slots[index] = Some(slab);
            }
        }
    }
}

/// Divides one page into reads. Each read is kept with a note and handed out when the page is frozen.
#[derive(Debug)]
pub(crate) struct Carver<T> {
    page: Option<PageMut>,
    cursor: usize,
    reads: Vec<(Range<usize>, T)>,
}

impl<T> Default for Carver<T> {
    fn default() -> Self {
        Carver { page: None, cursor: 0, reads: Vec::new() }
    }
}

impl<T> Carver<T> {
    /// Returns the memory for the next read, at least [`WINDOW`] bytes; `None` if a new page is needed.
    pub(crate) fn window(&mut self) -> Option<&mut [u8]> {
        let rest = self.page.as_mut()?.bytes_mut().get_mut(self.cursor..)?;
        if rest.len() >= WINDOW { Some(rest) } else { None }
    }

    /// Sets a fresh page; the preceding one must have been flushed.
    pub(crate) fn set_page(&mut self, page: PageMut) {
        debug_assert!(self.reads.is_empty());
        self.page = Some(page);
        self.cursor = 0;
    }

    #[cfg(test)]
    pub(crate) fn has_page(&self) -> bool {
        self.page.is_some()
    }

    /// Records that `range` of the memory was filled, and advances past it.
    pub(crate) fn commit(&mut self, range: Range<usize>, note: T) {
        let at = self.cursor;
        self.reads.push((at + range.start..at + range.end, note));
        self.cursor = (at + range.end).next_multiple_of(ALIGN);
    }

    /// Freezes the page and passes every read to `each`. A page without reads is kept for the next call.
    pub(crate) fn flush(&mut self, mut each: impl FnMut(&Page, Range<usize>, T)) {
        if self.reads.is_empty() {
            return;
        }
        if let Some(page) = self.page.take() {
            let page = page.freeze(self.cursor);
            for (range, note) in self.reads.drain(..) {
                each(&page, range, note);
            }
        }
    }
}

/// A reader of packets of unknown length into pages of any size: a read that exceeds the rest of a page continues in
/// the next one. Where a page has room for every read, none is divided.
#[derive(Debug, Default)]
pub(crate) struct Scatter {
    pages: VecDeque<PageMut>,
    page_len: usize,
    /// Offset of the next read, counted over all pages.
    cursor: usize,
    frozen: Vec<Page>,
    /// Whether memory for the next read is prepared.
    is_ready: bool,
}

impl Scatter {
    /// Prepares memory for a read of [`WINDOW`] bytes. `false` where no page is free.
    #[inline]
    pub(crate) fn make_room(&mut self, pool: &mut PagePool) -> bool {
        (self.is_ready && self.page_len == pool.page_len()) || self.make_new_room(pool)
    }

    fn make_new_room(&mut self, pool: &mut PagePool) -> bool {
        if self.page_len != pool.page_len() {
            // Another pool: pages kept for the next read are returned to their own.
            debug_assert!(self.cursor == 0);
            self.pages.clear();
            self.page_len = pool.page_len();
        }
        let into = self.cursor % self.page_len;
        let must_fit = if self.page_len >= WINDOW { WINDOW } else { HEADER_AREA };
        if into > 0 && (pool.sharing() == Sharing::One || self.page_len - into < must_fit) {
            self.cursor += self.page_len - into;
        }
        while self.pages.len() * self.page_len < self.cursor + WINDOW {
            match pool.take() {
                Some(page) => self.pages.push_back(page),
                None => return false,
            }
        }
        self.is_ready = true;
        true
    }

    /// Returns the memory for the next read, piece by piece; the first [`HEADER_AREA`] bytes are in the first piece.
    pub(crate) fn pieces(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (page_len, cursor) = (self.page_len.max(1), self.cursor);
        let last = cursor + WINDOW;
        self.pages.iter_mut().enumerate().skip(cursor / page_len).filter_map(move |(index, page)| {
            let base = index * page_len;
            let end = last.saturating_sub(base).min(page_len);
            page.bytes_mut().get_mut(cursor.saturating_sub(base)..end).filter(|piece| !piece.is_empty())
        })
    }

    /// Returns the first piece, for headers that must be contiguous.
    pub(crate) fn front(&mut self) -> &mut [u8] {
        self.pieces().next().unwrap_or(&mut [])
    }

    /// Reads one packet from `fd` into the pieces, after their first `skip` bytes. Returns its length.
    pub(crate) fn read(&mut self, fd: BorrowedFd<'_>, skip: usize) -> io::Result<usize> {
        let mut slices: [IoSliceMut<'_>; MAX_PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            let skip = if count == 0 { skip.min(piece.len()) } else { 0 };
            *slice = IoSliceMut::new(&mut piece[skip..]);
            count += 1;
        }
        sys::read_pieces(fd, &mut slices[..count])
    }

    /// Records that `range` of the pieces was filled, and returns the positions for [`Scatter::frags`].
    pub(crate) fn commit(&mut self, range: Range<usize>) -> Range<usize> {
        let at = self.cursor;
        self.is_ready = false;
        self.cursor = (at + range.end).next_multiple_of(ALIGN);
        at + range.start..at + range.end
    }

    /// Freezes the pages that hold reads.
    pub(crate) fn freeze(&mut self) {
        // The pages of the next read stay where nothing was read.
        self.is_ready &= self.cursor == 0;
        let used = self.cursor.div_ceil(self.page_len.max(1));
        self.frozen.extend(self.pages.drain(..used.min(self.pages.len())).map(|page| page.freeze(self.page_len)));
        self.cursor = 0;
    }

    /// Returns the pieces of the read in `range`.
    pub(crate) fn frags(&self, range: Range<usize>) -> impl Iterator<Item = Frag<Page>> + Clone + '_ {
        let page_len = self.page_len.max(1);
        let indexes = range.start / page_len..range.end.div_ceil(page_len);
        indexes.filter_map(move |index| {
            let base = index * page_len;
            let part = range.start.saturating_sub(base)..(range.end - base).min(page_len);
            Some(Frag::new(self.frozen.get(index)?.clone(), part))
        })
    }

    /// Discards reads that were recorded but not delivered.
    #[cfg(feature = "vhost-user")]
    pub(crate) fn forget(&mut self) {
        self.cursor = 0;
        self.frozen.clear();
    }

    /// Drops the frozen pages; packets keep references to those they need.
    pub(crate) fn release(&mut self) {
        self.frozen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cross_small_pages_and_come_back_byte_for_byte() {
        let data: Vec<u8> = (0..WINDOW).map(|at| (at * 7 + at / 251) as u8).collect();
        for (mut pool, crosses) in [
            (PagePool::with_page_len(200, 4096), true),
            (PagePool::with_page_len(100, 8192), true),
            (PagePool::with_page_len(50, 32_768), true),
            (PagePool::new(50), false),
            (PagePool::of_frames(50), false),
        ] {
            let mut scatter = Scatter::default();
            for _ in 0..2 {
                let mut ranges = Vec::new();
                for len in [1, 64, 3_000, 1_514, 9_000, 65_535, 60, 4_096, 40_000] {
                    assert!(scatter.make_room(&mut pool));
                    assert!(scatter.front().len() >= HEADER_AREA);
                    assert!(scatter.pieces().map(|piece| piece.len()).sum::<usize>() >= WINDOW);
                    let mut rest = &data[..len];
                    for piece in scatter.pieces() {
                        let (now, later) = rest.split_at(piece.len().min(rest.len()));
                        piece[..now.len()].copy_from_slice(now);
                        rest = later;
                    }
                    ranges.push(scatter.commit(0..len));
                }
                scatter.freeze();
                for range in ranges {
                    let frags: Vec<_> = scatter.frags(range.clone()).collect();
                    let bytes: Vec<u8> = frags.iter().flat_map(|frag| frag.bytes().to_vec()).collect();
                    assert!(bytes == data[..range.len()], "{}: {} bytes", pool.page_len(), range.len());
                    assert!(frags.len() == 1 || crosses);
                }
                scatter.release();
            }
            drop(scatter);
            assert_eq!(pool.in_use(), 0);
        }
    }

    #[test]
    fn many_small_reads_share_a_page_unless_each_is_to_have_its_own() {
        for (mut pool, pages) in [(PagePool::with_page_len(50, 4096), 2), (PagePool::of_frames(50), 40)] {
            let mut scatter = Scatter::default();
            for _ in 0..40 {
                assert!(scatter.make_room(&mut pool));
                scatter.commit(0..100);
            }
            scatter.freeze();
            assert_eq!(scatter.frozen.len(), pages);
        }
    }

    #[test]
    fn without_a_free_page_there_is_no_room_and_nothing_is_lost() {
        let mut pool = PagePool::with_page_len(20, 4096);
        let mut scatter = Scatter::default();
        assert!(scatter.make_room(&mut pool));
        let first = scatter.commit(0..20_000);
        assert!(!scatter.make_room(&mut pool));
        scatter.freeze();
        assert_eq!(scatter.frags(first.clone()).map(|frag| frag.len()).sum::<usize>(), 20_000);
        scatter.release();
        assert!(scatter.make_room(&mut pool), "they are free again");
    }

    #[test]
    fn a_page_comes_back_when_its_last_slice_is_gone() {
        let mut pool = PagePool::new(2);
        let mut page = pool.take().unwrap();
        page.bytes_mut()[..3].copy_from_slice(b"abc");
        let page = page.freeze(3);
        let tail = page.slice(1..9);
        let end = tail.slice(1..2);
        assert_eq!((page.as_ref(), tail.as_ref(), end.as_ref()), (&b"abc"[..], &b"bc"[..], &b"c"[..]));
        drop(page);
        drop(tail);
        assert_eq!(pool.in_use(), 1);
        assert_eq!(end.as_ref(), b"c");
        drop(end);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn the_page_freed_last_is_handed_out_first() {
        let mut pool = PagePool::new(3);
        let address = |page: &mut PageMut| page.bytes_mut().as_ptr() as usize;
        let mut pages: Vec<PageMut> = (0..3).map(|_| pool.take().unwrap()).collect();
        let warm = address(&mut pages[1]);
        drop(pages.remove(2));
        drop(pages.remove(1));
        assert_eq!(address(&mut pool.take().unwrap()), warm);
    }

    #[test]
    fn an_exhausted_pool_says_so_and_never_lends_a_page_in_use() {
        let mut pool = PagePool::new(2);
        let held = pool.take().unwrap().freeze(10);
        let other = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert_eq!((pool.exhausted(), pool.in_use()), (1, 2));
        drop(other);
        let mut again = pool.take().unwrap();
        assert_ne!(again.bytes_mut().as_ptr(), held.as_ref().as_ptr());
    }

    #[test]
    fn slices_outlive_their_pool() {
        let mut pool = PagePool::new(1);
        let mut page = pool.take().unwrap();
        page.bytes_mut()[0] = 7;
        let page = page.freeze(1);
        drop(pool);
        assert_eq!(page.as_ref(), [7]);
    }

    #[test]
    fn small_reads_share_a_page_and_a_full_one_asks_for_the_next() {
        let mut pool = PagePool::new(1);
        let mut carver = Carver::<u8>::default();
        assert!(carver.window().is_none());
        carver.set_page(pool.take().unwrap());
        let mut reads = 0;
        while let Some(window) = carver.window() {
            window[..1000].fill(reads);
            carver.commit(10..1000, reads);
            reads += 1;
        }
        assert_eq!(usize::from(reads), WINDOW / 1024 + 1);
        let mut seen = 0;
        carver.flush(|page, range, note| {
            assert_eq!(page.slice(range).as_ref(), [note; 990]);
            seen += 1;
        });
        assert_eq!((seen, pool.in_use()), (reads, 0));
    }
}
