//! The functions of `segue.h` for packets in several pieces of memory.
#![allow(unsafe_code, reason = "pointers from C")]

use segue::easy::ScatteredPacket;
use segue::gso::Limits;
use segue::virtio::VirtioNet;

use crate::abi::{SegueJoiner, SegueSplitter, csum_of, guarded, header_of, list, many, many_mut};
use crate::error::{ARGUMENT, Code, NULL, ROOM};
use crate::structs::{SegueChain, SeguePiece, SegueTrain};

/// Returns the bytes of a piece; an empty slice for a null pointer.
///
/// # Safety
/// As for [`many`].
unsafe fn bytes<'a>(piece: &SeguePiece) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { many(piece.base, piece.len) }.unwrap_or(&[])
}

/// Checks that each piece has memory.
fn are_there(pieces: &[SeguePiece]) -> Result<(), isize> {
    match pieces.iter().any(|piece| piece.base.is_null() && piece.len != 0) {
        true => Err(NULL),
        false => Ok(()),
    }
}

/// Splits a packet or train in several pieces, and lists the packets with their pieces: headers in the splitter's
/// memory (valid until its next call), payload in the caller's. Returns the number of packets. Two pieces per packet,
/// and those of the chain, are always enough.
///
/// # Safety
/// `header` must point to `header_len` bytes, `chain`, `packets` and `pieces` to as many values as are said, each piece
/// to its bytes.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no slices")]
pub unsafe extern "C" fn segue_split_chain(
    splitter: *mut SegueSplitter,
    header: *const u8,
    header_len: usize,
    chain: *const SegueChain,
    packets: *mut SegueTrain,
    packet_count: usize,
    pieces: *mut SeguePiece,
    piece_count: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (splitter, header, chain) =
            unsafe { (splitter.as_mut().ok_or(NULL)?, many(header, header_len)?, chain.as_ref().ok_or(NULL)?) };
        // SAFETY: as above.
        let (packets, pieces) = unsafe { (many_mut(packets, packet_count)?, many_mut(pieces, piece_count)?) };
        let header = if header.is_empty() { VirtioNet::default() } else { header_of(header)? };
        // SAFETY: as above.
        let given = unsafe { many(chain.pieces, chain.count)? };
        are_there(given)?;
        let limits = match chain.csum {
            0 => Limits::NONE,
            2 => Limits { csum: true, ..Limits::NONE },
            _ => return Err(ARGUMENT),
        };
        // SAFETY: as above; the pieces are lent for this call.
        let given = given.iter().map(|piece| unsafe { bytes(piece) });
        let made = splitter.0.read_pieces(&header, given, &limits).map_err(Code::code)?;
        let needed: usize = made.iter().map(|packet| packet.pieces().count()).sum();
        if made.len() > packets.len() || needed > pieces.len() {
            return Err(ROOM);
        }
        let mut at = 0;
        for (packet, place) in made.iter().zip(packets) {
            let first = at;
            for (piece, place) in packet.pieces().zip(&mut pieces[first..]) {
                *place = SeguePiece { base: piece.as_ptr(), len: piece.len() };
                at += 1;
            }
            *place = SegueTrain { first, count: at - first, len: ScatteredPacket::len(&packet), segments: 1 };
        }
        Ok(made.len())
    })
}

/// Joins packets in several pieces each, as [`segue_join`](crate::abi::segue_join) does contiguous ones. One train per
/// packet, and one piece per packet besides the given ones, are always enough.
///
/// # Safety
/// `packets`, `trains` and `pieces` must point to as many values as are said, each packet to its pieces, and these to
/// their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn segue_join_chains(
    joiner: *mut SegueJoiner,
    packets: *const SegueChain,
    count: usize,
    trains: *mut SegueTrain,
    train_count: usize,
    pieces: *mut SeguePiece,
    piece_count: usize,
) -> isize {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (joiner, packets) = unsafe { (joiner.as_mut().ok_or(NULL)?, many(packets, count)?) };
        // SAFETY: as above.
        let (trains, pieces) = unsafe { (many_mut(trains, train_count)?, many_mut(pieces, piece_count)?) };
        let given = packets.iter().try_fold(count, |sum, packet| sum.checked_add(packet.count)).ok_or(ARGUMENT)?;
        if trains.len() < count || pieces.len() < given {
            return Err(ROOM);
        }
        let SegueJoiner { joiner, fronts, fronts_at, .. } = joiner;
        let mut batch = joiner.batch();
        for packet in packets {
            // SAFETY: as above.
            let parts = unsafe { many(packet.pieces, packet.count)? };
            are_there(parts)?;
            // SAFETY: as above; the batch ends with this call.
            batch.push_pieces(parts.iter().map(|piece| unsafe { bytes(piece) }), csum_of(packet.csum)?);
        }
        list(batch, fronts, fronts_at, trains, pieces)
    })
}
