//! A split virtqueue (virtio 1.2, section 2.7), from the device's side.
//!
//! Everything in it may change at any time: a descriptor is copied once, judged and used from the copy. Indexes of the
//! guest are compared with those of this side, which are never read back from the guest's memory.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use vm_memory::VolatileMemory;

use super::memory::{Memory, Place};
use super::reasons::Stop;
use super::sys::prefetch;

/// Largest size of a queue (virtio 1.2, section 2.7).
const MOST_SIZE: u32 = 32_768;
/// Largest number of descriptors of a chain, an indirect table included.
pub(super) const MOST_DESCRIPTORS: usize = 1024;
/// Length of a descriptor in bytes.
const DESCRIPTOR_LEN: usize = 16;
/// Number of chains by which a descriptor, and by which its buffer, is asked for ahead. The other end's processor has
/// written to their cache lines last, and each takes as long to come as a packet takes to be handled.
const DESCRIPTORS_AHEAD: u16 = 16;
const BUFFERS_AHEAD: u16 = 6;
/// Largest number of bytes of one buffer that are asked for ahead: a frame of Ethernet's usual size and its header.
const BYTES_AHEAD: usize = 1600;
/// Flags of a ring descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Offsets in the available and the used ring: flags, index, entries.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// Flag of the used ring: the guest need not kick. Flag of the available ring: the guest need not be called.
const QUIET: u16 = 1;

/// Negotiated features of the rings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingFeatures {
    pub(super) indirect: bool,
    pub(super) event_idx: bool,
}

/// The addresses of a ring's parts in the front end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// The parts of a ring in mapped memory.
#[derive(Debug)]
struct Parts {
    descriptors: Place,
    available: Place,
    used: Place,
    generation: u64,
}

/// The guest buffer of one descriptor: `addr` and `len` (virtio 1.2, section 2.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
}

/// Direction of a queue, which determines the side that writes to its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Transmit queue of the guest; the device reads.
    FromGuest,
    /// Receive queue of the guest; the device writes.
    ToGuest,
}

/// One ring, with the descriptors by which its two sides wake each other.
#[derive(Debug)]
pub(super) struct Ring {
    flow: Flow,
    size: u16,
    addresses: Option<Addresses>,
    parts: Option<Parts>,
    /// Whether the index of the used ring has still to be read from the guest's memory.
    is_new: bool,
    pub(super) features: RingFeatures,
    /// Index in the available ring of the next descriptor chain to take.
    next: u16,
    /// Index of the available ring when it was last read: the chains before it are available.
    available: u16,
    /// Index in the used ring of the next descriptor chain to return.
    used: u16,
    /// Index of the used ring that the guest sees.
    shown: u16,
    /// Value of `used` when the guest was last notified or needed no notification.
    told: u16,
    /// Number of all available chains, and of their bytes, where a search found too few.
    short: Option<(u16, usize)>,
    /// Whether the guest is to be notified once, although no chain was returned.
    owes_call: bool,
    pub(super) enabled: bool,
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
}

impl Ring {
    pub(super) fn new(flow: Flow) -> Ring {
        Ring {
            flow,
            size: 0,
            addresses: None,
            parts: None,
            is_new: false,
            features: RingFeatures::default(),
            next: 0,
            available: 0,
            used: 0,
            shown: 0,
            told: 0,
            short: None,
            owes_call: false,
            enabled: false,
            kick: None,
            call: None,
        }
    }

    pub(super) fn set_size(&mut self, size: u32) -> Result<(), Stop> {
        if !size.is_power_of_two() || size > MOST_SIZE {
            return Err(Stop::QueueSize);
        }
        self.parts = None;
        self.size = size as u16;
        Ok(())
    }

    /// Sets the number of the next chain.
    pub(super) fn set_base(&mut self, next: u32) {
        self.next = next as u16;
        self.available = self.next;
        self.short = None;
    }

    /// Returns the number of the next chain.
    pub(super) fn base(&self) -> u32 {
        u32::from(self.next)
    }

    /// Sets the addresses of the ring's parts. Chains are returned in the order in which they were taken, so that the
    /// guest's own count of those returned is where this side continues.
    pub(super) fn set_addresses(&mut self, addresses: Addresses, memory: &Memory) -> Result<(), Stop> {
        let Addresses { descriptors, available, used } = addresses;
        if descriptors % DESCRIPTOR_LEN as u64 != 0 || available % 2 != 0 || used % 4 != 0 {
            return Err(Stop::QueueAddress);
        }
        self.addresses = Some(addresses);
        (self.parts, self.is_new) = (None, true);
        self.locate(memory)
    }

    /// Finds the parts of the ring in the current memory. Does nothing before size and addresses are known.
    pub(super) fn locate(&mut self, memory: &Memory) -> Result<(), Stop> {
        if self.parts.as_ref().is_some_and(|parts| parts.generation == memory.generation()) {
            return Ok(());
        }
        (self.parts, self.short) = (None, None);
        let Some(Addresses { descriptors, available, used }) = self.addresses.filter(|_| self.size > 0) else {
            return Ok(());
        };
        if memory.is_empty() {
            return Ok(());
        }
        let size = usize::from(self.size);
        let place = |user, len| memory.place(user, len).ok_or(Stop::QueueAddress);
        self.parts = Some(Parts {
            descriptors: place(descriptors, DESCRIPTOR_LEN * size)?,
            // Two bytes after the entries belong to event indexes, agreed on or not.
            available: place(available, ENTRIES + 2 * size + 2)?,
            used: place(used, ENTRIES + 8 * size + 2)?,
            generation: memory.generation(),
        });
        if std::mem::take(&mut self.is_new) {
            self.used = load(&self.parts()?.used, INDEX, Ordering::Acquire)?;
            (self.told, self.shown) = (self.used, self.used);
            self.owes_call = true;
        }
        Ok(())
    }

    /// Sets the descriptor by which the guest is notified.
    pub(super) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        self.owes_call = true;
    }

    /// Returns, once after a start and after a change of the call, whether the guest is to be notified: an earlier back
    /// end may have ended between chains that it returned and their notification, for which the guest waits.
    pub(super) fn take_first_call(&mut self) -> bool {
        self.is_ready() && std::mem::take(&mut self.owes_call)
    }

    /// Stops the ring and closes its descriptors, which the caller must no longer wait for.
    pub(super) fn stop(&mut self) {
        (self.parts, self.addresses) = (None, None);
        (self.kick, self.call) = (None, None);
    }

    /// Returns whether the ring may be used.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.enabled && self.kick.is_some() && self.parts.is_some()
    }

    #[inline]
    fn parts(&self) -> Result<&Parts, Stop> {
        self.parts.as_ref().ok_or(Stop::QueueAddress)
    }

    /// Returns the number of available chains. The guest's index is read, whose cache line the guest writes to.
    fn look(&mut self) -> Result<u16, Stop> {
        // Acquire: entries and descriptors that the guest wrote before its index are visible after it.
        let index = load(&self.parts()?.available, INDEX, Ordering::Acquire)?;
        let count = index.wrapping_sub(self.next);
        if count > self.size {
            return Err(Stop::RingIndex);
        }
        self.available = index;
        Ok(count)
    }

    /// Returns the number of available chains beyond the first `ahead` ones, as far as is known; if none is, after a
    /// look.
    #[inline]
    pub(super) fn waiting(&mut self, ahead: u16) -> Result<u16, Stop> {
        match self.available.wrapping_sub(self.next).saturating_sub(ahead) {
            0 => Ok(self.look()?.saturating_sub(ahead)),
            known => Ok(known),
        }
    }

    /// Records that the available chains, `count` in number, have only `bytes` bytes.
    pub(super) fn found_too_few(&mut self, count: u16, bytes: usize) {
        self.short = Some((count, bytes));
    }

    /// Returns the number of available chains if they were found to have fewer than `len` bytes: without more of them
    /// there is no need to read them again.
    #[inline]
    pub(super) fn too_few_for(&self, len: usize) -> Option<u16> {
        self.short.filter(|(_, bytes)| *bytes < len).map(|(count, _)| count)
    }

    /// Returns whether `count` chains are all that the ring can hold.
    #[inline]
    pub(super) fn is_full_with(&self, count: u16) -> bool {
        count >= self.size
    }

    /// Requests the cache lines of chains that are known to be available after the first `ahead` ones, and of at most
    /// the first `most` bytes of a buffer. What is read here is a hint alone: the chain is read again when its turn
    /// comes.
    #[inline]
    pub(super) fn prefetch(&self, ahead: u16, memory: &Memory, most: usize) {
        let known = self.available.wrapping_sub(self.next);
        let later = |distance: u16| {
            let at = ahead.checked_add(distance).filter(|at| *at < known)?;
            let parts = self.parts.as_ref()?;
            let slot = usize::from(self.next.wrapping_add(at) & (self.size - 1));
            let head = load(&parts.available, ENTRIES + 2 * slot, Ordering::Relaxed).ok()?;
            parts.descriptors.slice().ok()?.subslice(usize::from(head) * DESCRIPTOR_LEN, DESCRIPTOR_LEN).ok()
        };
        if let Some(descriptor) = later(DESCRIPTORS_AHEAD) {
            prefetch(&descriptor);
        }
        if let Some(descriptor) = later(BUFFERS_AHEAD) {
            let mut bytes = [0; DESCRIPTOR_LEN];
            descriptor.copy_to(&mut bytes);
            let Piece { address, len } = Descriptor::parse(bytes).piece;
            memory.prefetch(address, most.min(len as usize).min(BYTES_AHEAD));
        }
    }

    /// Reads the chain after the first `ahead` available ones, which [`Ring::waiting`] has reported: its pieces replace
    /// those in `pieces`. Returns its number, and how many descriptors it has.
    #[inline]
    pub(super) fn chain(&self, ahead: u16, memory: &Memory, pieces: &mut Vec<Piece>) -> Result<(u16, usize), Stop> {
        pieces.clear();
        let parts = self.parts()?;
        let slot = usize::from(self.next.wrapping_add(ahead) & (self.size - 1));
        let head = load(&parts.available, ENTRIES + 2 * slot, Ordering::Relaxed)?;
        let (mut at, mut count) = (head, 0);
        loop {
            if at >= self.size {
                return Err(Stop::RingHead);
            }
            let mut bytes = [0; DESCRIPTOR_LEN];
            let table = parts.descriptors.slice()?;
            let descriptor = table.subslice(usize::from(at) * DESCRIPTOR_LEN, DESCRIPTOR_LEN);
            descriptor.map_err(|_| Stop::RingHead)?.copy_to(&mut bytes);
            let descriptor = Descriptor::parse(bytes);
            count += 1;
            // A chain can hold each descriptor of the table once.
            if count > usize::from(self.size).min(MOST_DESCRIPTORS) {
                return Err(Stop::RingLoop);
            }
            if descriptor.flags & INDIRECT != 0 {
                if !self.features.indirect || descriptor.flags & NEXT != 0 {
                    return Err(Stop::RingIndirect);
                }
                count += self.table(&descriptor, memory, pieces)?;
                return Ok((head, count));
            }
            self.piece(&descriptor, memory, pieces)?;
            if descriptor.flags & NEXT == 0 {
                return Ok((head, count));
            }
            at = descriptor.next;
        }
    }

    /// Reads the chain in an indirect table. Returns how many descriptors it has.
    fn table(&self, table: &Descriptor, memory: &Memory, pieces: &mut Vec<Piece>) -> Result<usize, Stop> {
        let len = table.piece.len as usize;
        let size = len / DESCRIPTOR_LEN;
        if !len.is_multiple_of(DESCRIPTOR_LEN) || size == 0 || size > usize::from(u16::MAX) + 1 {
            return Err(Stop::RingIndirect);
        }
        let (mut at, mut count) = (0usize, 0);
        loop {
            if at >= size {
                return Err(Stop::RingHead);
            }
            count += 1;
            if count > size.min(MOST_DESCRIPTORS) {
                return Err(Stop::RingLoop);
            }
            let address = table.piece.address.checked_add((at * DESCRIPTOR_LEN) as u64).ok_or(Stop::RingAddress)?;
            let mut bytes = [0; DESCRIPTOR_LEN];
            memory.read(address, &mut bytes)?;
            let descriptor = Descriptor::parse(bytes);
            if descriptor.flags & INDIRECT != 0 {
                return Err(Stop::RingIndirect);
            }
            self.piece(&descriptor, memory, pieces)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(count);
            }
            at = usize::from(descriptor.next);
        }
    }

    #[inline]
    fn piece(&self, descriptor: &Descriptor, memory: &Memory, pieces: &mut Vec<Piece>) -> Result<(), Stop> {
        let flow = if descriptor.flags & WRITE != 0 { Flow::ToGuest } else { Flow::FromGuest };
        if flow != self.flow {
            return Err(Stop::RingDirection);
        }
        let piece = descriptor.piece;
        if piece.len > 0 {
            if !memory.holds(piece.address, piece.len) {
                return Err(Stop::RingAddress);
            }
            pieces.push(piece);
        } else if self.flow == Flow::ToGuest {
            // A ring full of these would be read for each packet.
            return Err(Stop::RingAddress);
        }
        Ok(())
    }

    /// Writes the used entry of a chain to return after the first `ahead` ones; the guest sees it after
    /// [`Ring::publish`] and [`Ring::show`].
    #[inline]
    pub(super) fn put(&self, ahead: u16, head: u16, written: u32) -> Result<(), Stop> {
        let used = &self.parts()?.used;
        let slot = usize::from(self.used.wrapping_add(ahead) & (self.size - 1));
        let entry = u64::from(head) | u64::from(written) << 32;
        let place = used.slice()?.subslice(ENTRIES + 8 * slot, 8).map_err(|_| Stop::QueueAddress)?;
        place.copy_from(&entry.to_le_bytes());
        Ok(())
    }

    /// Returns the next `count` chains, whose entries were written. The guest sees them after [`Ring::show`].
    #[inline]
    pub(super) fn publish(&mut self, count: u16) {
        self.short = None;
        self.next = self.next.wrapping_add(count);
        self.used = self.used.wrapping_add(count);
    }

    /// Shows the guest all chains that were returned, with one store: a packet in several buffers appears whole.
    #[inline]
    pub(super) fn show(&mut self) -> Result<(), Stop> {
        if self.shown == self.used {
            return Ok(());
        }
        self.shown = self.used;
        // Release: entries and bytes are visible before the index.
        store(&self.parts()?.used, INDEX, self.used, Ordering::Release)
    }

    /// Requests a kick for the chain after the `have` available ones. Returns whether that chain came meanwhile: then
    /// there may be no kick.
    pub(super) fn listen(&mut self, have: u16) -> Result<bool, Stop> {
        self.show()?;
        let used = &self.parts()?.used;
        if self.features.event_idx {
            let event = self.next.wrapping_add(have);
            store(used, ENTRIES + 8 * usize::from(self.size), event, Ordering::Relaxed)?;
        } else {
            store(used, FLAGS, 0, Ordering::Relaxed)?;
        }
        // The request is visible before the guest's index is read again.
        fence(Ordering::SeqCst);
        Ok(self.look()? > have)
    }

    /// Suppresses kicks of the guest. With event indexes nothing is written: the old request is over.
    pub(super) fn ignore(&self) -> Result<(), Stop> {
        if self.features.event_idx { Ok(()) } else { store(&self.parts()?.used, FLAGS, QUIET, Ordering::Relaxed) }
    }

    /// Returns whether the guest wants a notification of the chains returned since the last call.
    pub(super) fn take_call(&mut self) -> Result<bool, Stop> {
        self.show()?;
        let (before, now) = (self.told, self.used);
        if before == now {
            return Ok(false);
        }
        self.told = now;
        // The index is visible before the guest's wish is read.
        fence(Ordering::SeqCst);
        let available = &self.parts()?.available;
        if self.features.event_idx {
            let event = load(available, ENTRIES + 2 * usize::from(self.size), Ordering::Relaxed)?;
            // Whether the index passed the event (virtio 1.2, section 2.7.10).
            return Ok(now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before));
        }
        Ok(load(available, FLAGS, Ordering::Relaxed)? & QUIET == 0)
    }
}

/// A copy of a descriptor.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    piece: Piece,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    fn parse(bytes: [u8; DESCRIPTOR_LEN]) -> Descriptor {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let piece = Piece { address, len: u32::from_le_bytes([i, j, k, l]) };
        Descriptor { piece, flags: u16::from_le_bytes([m, n]), next: u16::from_le_bytes([o, p]) }
    }
}

#[inline]
fn load(place: &Place, at: usize, order: Ordering) -> Result<u16, Stop> {
    let slice = place.slice()?;
    slice.get_atomic_ref::<AtomicU16>(at).map(|word| u16::from_le(word.load(order))).map_err(|_| Stop::QueueAddress)
}

#[inline]
fn store(place: &Place, at: usize, value: u16, order: Ordering) -> Result<(), Stop> {
    let slice = place.slice()?;
    let word = slice.get_atomic_ref::<AtomicU16>(at).map_err(|_| Stop::QueueAddress)?;
    word.store(value.to_le(), order);
    Ok(())
}
