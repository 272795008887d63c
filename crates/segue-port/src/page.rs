//! Pages: the memory that ports read into and packets point into.
//!
//! A [`PagePool`] belongs to one worker. It hands out whole pages to write to ([`PageMut`]); freezing one gives a
//! [`Page`], a counted slice that can be cloned and cut but no longer written. When the last slice is gone the page is
//! free again, and the page freed last is handed out first, while it is still in the cache.
//!
//! The slots of a receive ring are pages too ([`RingPages`]): freeing one gives it back to the kernel.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use crate::mmap::Slot;

/// Bytes that one read needs: the largest IP packet, the largest virtio-net header (24) and rounding to cache lines.
pub const WINDOW: usize = 65_600;
/// Bytes of a page: two reads of any size fit, and behind a page's first small reads there is always room for one more.
pub const PAGE_LEN: usize = 2 * WINDOW;
/// Reads into one page start at multiples of this.
const ALIGN: usize = 64;

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

#[derive(Debug)]
enum Memory {
    Own(Box<[u8]>),
    /// Of the ring, and its index there.
    Slot(Slot, usize),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Slot(slot, _) => slot.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Slot(slot, _) => slot.bytes_mut(),
        }
    }
}

/// One reference to a slab; the last one to go takes the slab home.
#[derive(Clone, Debug)]
struct Handle(Rc<Slab>);

impl std::ops::Drop for Handle {
    fn drop(&mut self) {
        let Some(slab) = Rc::get_mut(&mut self.0) else { return };
        if let Memory::Slot(slot, _) = &mut slab.memory {
            // At once: a poll finds the ring readable for as long as its newest frame is ours.
            slot.release();
        }
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
    /// The part `range` of this slice, cut to what there is; the same memory.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Page {
        let have = self.len as usize;
        let start = range.start.min(have);
        let len = range.end.clamp(start, have) - start;
        Page { handle: self.handle.clone(), start: self.start + start as u32, len: len as u32 }
    }

    /// Bytes of the slice.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.handle.0.memory.bytes()[self.start as usize..(self.start + self.len) as usize]
    }
}

/// A whole page that nobody else refers to.
#[derive(Debug)]
pub struct PageMut {
    handle: Handle,
}

impl PageMut {
    /// All of its bytes; what they hold is left over from earlier.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // The only way to a second reference is `freeze`, which consumes the page; no weak references are made.
        Rc::get_mut(&mut self.handle.0)
            .map(|slab| slab.memory.bytes_mut())
            .expect("a page being written has one reference")
    }

    /// The first `len` bytes, cut to the page, from here on shared and read-only.
    pub fn freeze(self, len: usize) -> Page {
        let len = len.min(self.handle.0.memory.bytes().len());
        Page { handle: self.handle, start: 0, len: len as u32 }
    }
}

/// The pages of one worker: at most `limit` of `page_len` bytes, made when first needed and never given back to the
/// system while the pool lives.
#[derive(Debug)]
pub struct PagePool {
    home: Rc<Home>,
    page_len: usize,
    limit: usize,
    exhausted: u64,
}

impl PagePool {
    /// A pool of at most `limit` pages of [`PAGE_LEN`] bytes.
    pub fn new(limit: usize) -> PagePool {
        PagePool::with_page_len(limit, PAGE_LEN)
    }

    /// A pool of at most `limit` pages of `page_len` bytes, at least [`WINDOW`] and below 2 GiB.
    pub fn with_page_len(limit: usize, page_len: usize) -> PagePool {
        let home = Home { free: RefCell::new(Vec::with_capacity(limit)), made: Cell::new(0) };
        PagePool { home: Rc::new(home), page_len: page_len.clamp(WINDOW, i32::MAX as usize), limit, exhausted: 0 }
    }

    /// A page of one's own, the one freed last if there is one; `None`, counted, where all are in use.
    pub fn take(&mut self) -> Option<PageMut> {
        let free = self.home.free.borrow_mut().pop();
        let slab = match free {
            Some(slab) => slab,
            None if self.home.made.get() < self.limit => {
                self.home.made.set(self.home.made.get() + 1);
                let memory = Memory::Own(vec![0; self.page_len].into_boxed_slice());
                Rc::new(Slab { memory, home: Rc::downgrade(&self.home) })
            }
            None => {
                self.exhausted += 1;
                return None;
            }
        };
        Some(PageMut { handle: Handle(slab) })
    }

    /// Bytes of each page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Pages that somebody holds.
    pub fn in_use(&self) -> usize {
        self.home.made.get() - self.home.free.borrow().len()
    }

    /// How often [`PagePool::take`] found no page.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }
}

/// The slots of a receive ring, as pages. A page that is freed goes back to the kernel at once, in any order; the kernel
/// fills them in order and stops at one that is still ours.
#[derive(Debug)]
pub(crate) struct RingPages {
    home: Rc<Home>,
    /// Those that nobody refers to: the kernel's, whether filled or not.
    slots: Box<[Option<Rc<Slab>>]>,
    next: usize,
}

impl RingPages {
    /// All slots of a ring, in the kernel's order.
    pub(crate) fn new(slots: Vec<Slot>) -> RingPages {
        let home = Rc::new(Home { free: RefCell::new(Vec::with_capacity(slots.len())), made: Cell::new(slots.len()) });
        let slab = |(index, slot)| Rc::new(Slab { memory: Memory::Slot(slot, index), home: Rc::downgrade(&home) });
        RingPages { slots: slots.into_iter().enumerate().map(slab).map(Some).collect(), home, next: 0 }
    }

    /// Slots in all.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The next slot that the kernel has filled.
    pub(crate) fn claim(&mut self) -> Option<PageMut> {
        self.reclaim();
        let place = self.slots.get_mut(self.next)?;
        let Memory::Slot(slot, _) = &mut Rc::get_mut(place.as_mut()?)?.memory else { return None };
        if !slot.claim() {
            return None;
        }
        let slab = place.take()?;
        self.next = (self.next + 1) % self.slots.len();
        Some(PageMut { handle: Handle(slab) })
    }

    fn reclaim(&mut self) {
        for slab in self.home.free.borrow_mut().drain(..) {
            if let Memory::Slot(_, index) = slab.memory {
                self.slots[index] = Some(slab);
            }
        }
    }
}

/// Carves one page into reads. What was read is remembered with a note and handed out when the page is frozen.
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
    /// The place for the next read, [`WINDOW`] bytes or more; `None` where a new page is needed.
    pub(crate) fn window(&mut self) -> Option<&mut [u8]> {
        let rest = self.page.as_mut()?.bytes_mut().get_mut(self.cursor..)?;
        if rest.len() >= WINDOW { Some(rest) } else { None }
    }

    /// Takes a fresh page; the one before must have been flushed.
    pub(crate) fn set_page(&mut self, page: PageMut) {
        debug_assert!(self.reads.is_empty());
        self.page = Some(page);
        self.cursor = 0;
    }

    #[cfg(test)]
    pub(crate) fn has_page(&self) -> bool {
        self.page.is_some()
    }

    /// Remembers that `range` of the window was filled and moves past it.
    pub(crate) fn commit(&mut self, range: Range<usize>, note: T) {
        let at = self.cursor;
        self.reads.push((at + range.start..at + range.end, note));
        self.cursor = (at + range.end).next_multiple_of(ALIGN);
    }

    /// Freezes the page and gives every read to `each`. A page without reads is kept for the next call.
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

#[cfg(test)]
mod tests {
    use super::*;

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
