//! Copies of packets between a guest's buffers and pages.

use segue::virtio::{Form, NEEDS_CSUM, VirtioNet};

use super::memory::Memory;
use super::reasons::Stop;
use super::ring::Piece;
use crate::page::Scatter;

/// Copies the header and the following bytes from a guest's buffers to the memory of the next read. Of the header's
/// flags those remain that a driver may set (virtio 1.2, section 5.1.6.2.1): a guest cannot vouch for its checksums.
pub(super) fn copy_in(memory: &Memory, pieces: &[Piece], form: Form, scatter: &mut Scatter) -> Result<VirtioNet, Stop> {
    let mut header = [0; 24];
    let mut skip = form.len();
    let mut rooms = scatter.pieces();
    let mut room: &mut [u8] = &mut [];
    for piece in pieces {
        let (mut address, mut len) = (piece.address, piece.len as usize);
        if skip > 0 {
            let now = skip.min(len);
            let at = form.len() - skip;
            memory.read(address, &mut header[at..at + now])?;
            (address, len, skip) = (address + now as u64, len - now, skip - now);
        }
        while len > 0 {
            if room.is_empty() {
                // There is room for every packet of the length that was checked.
                room = rooms.next().ok_or(Stop::RingLoop)?;
            }
            let now = len.min(room.len());
            let (into, rest) = std::mem::take(&mut room).split_at_mut(now);
            memory.read(address, into)?;
            (room, address, len) = (rest, address + now as u64, len - now);
        }
    }
    let mut header = VirtioNet::parse(&header, form).unwrap_or_default();
    header.flags &= NEEDS_CSUM;
    Ok(header)
}

/// Copies bytes to a guest's buffers.
pub(super) fn copy_out<'a>(
    memory: &Memory,
    pieces: &[Piece],
    parts: impl Iterator<Item = &'a [u8]>,
) -> Result<(), Stop> {
    let mut pieces = pieces.iter();
    let mut place = Piece { address: 0, len: 0 };
    for mut part in parts {
        while !part.is_empty() {
            if place.len == 0 {
                let Some(next) = pieces.next() else { return Ok(()) };
                place = *next;
            }
            let (now, rest) = part.split_at(part.len().min(place.len as usize));
            memory.write(place.address, now)?;
            place = Piece { address: place.address + now.len() as u64, len: place.len - now.len() as u32 };
            part = rest;
        }
    }
    Ok(())
}
