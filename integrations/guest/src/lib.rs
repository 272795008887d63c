//! Descriptor chains of guest memory on rust-vmm's `vm-memory`: a guest's packets and trains are checked and split for
//! the host, and trains are written to the guest's receive buffers. The guest may write to all of it at any time.

use segue::easy::Train;
use segue::gso::{self, Frames, Limits};
use segue::packet::{Buffer, Frag, Packet, Start};
use segue::virtio::{self, Form, Loaded, VirtioNet};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

/// A part of a guest's memory.
pub struct Guest<'a>(VolatileSlice<'a>);

impl Buffer for Guest<'_> {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        self.0.read(out, offset).unwrap_or(0)
    }
}

/// A descriptor: a range of the guest's memory.
pub type Descriptor = (GuestAddress, usize);

/// Takes a chain from the transmit queue, which begins with the header of a modern virtio device, and appends its
/// packets to `frames`, for a host with the given `limits`.
pub fn transmit(
    memory: &GuestMemoryMmap,
    chain: &[Descriptor],
    limits: &Limits,
    frames: &mut Frames,
) -> Result<(), Error> {
    let mut header = [0; Form::Buffers.len()];
    let mut ranges = Vec::new();
    let mut skip = header.len();
    for &(address, len) in chain {
        let part = Frag::all(Guest(memory.get_slice(address, len).map_err(|_| Error::Memory)?));
        let of_header = skip.min(part.len());
        let at = header.len() - skip;
        part.copy_to(0, &mut header[at..at + of_header]);
        skip -= of_header;
        ranges.push(part.skip(of_header));
    }
    let header = VirtioNet::parse(&header, Form::Buffers).filter(|_| skip == 0).ok_or(Error::Memory)?;
    let mut packet = Packet::default();
    match virtio::load_ranges(&header, ranges, Start::Ethernet, &mut packet).map_err(Error::Header)? {
        Loaded::Ready => gso::split_linear(&packet, limits, frames).map(drop).map_err(Error::Split),
        Loaded::Owed(_) | Loaded::OwedSctp(_) => Err(Error::Header(virtio::Refusal::GsoChecksumPlace)),
    }
}

/// Writes a train, with its header, to a chain from the receive queue. Returns its length, for the used ring.
pub fn receive(memory: &GuestMemoryMmap, chain: &[Descriptor], train: &Train<'_>) -> Result<usize, Error> {
    let mut places = chain.iter().copied();
    let mut place = places.next();
    for mut piece in train.pieces() {
        while !piece.is_empty() {
            let (address, room) = place.ok_or(Error::Memory)?;
            let len = room.min(piece.len());
            memory.write_slice(&piece[..len], address).map_err(|_| Error::Memory)?;
            piece = &piece[len..];
            place = if len == room { places.next() } else { Some((GuestAddress(address.0 + len as u64), room - len)) };
        }
    }
    Ok(train.len())
}

/// The reason why a chain is not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The chain is too short, or not in the guest's memory.
    Memory,
    /// The packet contradicts its header.
    Header(virtio::Refusal),
    /// The packet cannot be split.
    Split(gso::Refusal),
}
