//! Pure acknowledgments, and the rules by which a newer one may swallow them (profile `lro`).
//!
//! A sender counts acknowledged bytes, so if the second of two acknowledgments acknowledges more, the sender loses
//! nothing but pacing when it sees only the second (RFC 9293, section 3.10.7.4; RFC 5681, section 3.1, counts bytes in
//! RFC 3465's way). But it counts *duplicates* (RFC 5681, section 2), and reads window, ECN flags (RFC 3168; RFC 9768)
//! and SACK option (RFC 2018) of each. So an acknowledgment is swallowed only if it has no payload, no flag but ACK, no
//! options but timestamps in the usual layout, and acknowledged more than the one before it; and only by one that again
//! acknowledges more, does not shrink the window and does not go back in time. The newest one is kept byte for byte, so
//! that its number, window, timestamp and echo belong together.
//!
//! Whether an acknowledgment is a duplicate depends on the one before it, which may have left long ago: [`Memory`]
//! keeps the last one of as many flows as fit. The first acknowledgment of a flow that is not in it stays alone, and so
//! does the first one after anything that a sender has to see: a duplicate, a window update, other flags or options,
//! data.

use alloc::vec::Vec;

use super::rules::RefusalReason;
use super::stamps::{Stamps, distance, stamps};
use crate::wire::{read_u16, read_u32, tcp};

/// The fields of a pure acknowledgment.
#[derive(Clone, Copy, Debug, Default)]
struct Ack {
    number: u32,
    window: u16,
    stamps: Option<Stamps>,
}

impl Ack {
    /// Reads the TCP header of a packet without payload; fails with the reason why the sender must see it.
    fn read(header: &[u8]) -> Result<Ack, RefusalReason> {
        let (&[offset, flags], Some(number), Some(window)) = (
            header.get(tcp::OFFSET..).and_then(|h| h.first_chunk()).ok_or(RefusalReason::Malformed)?,
            read_u32(header, tcp::ACK_NUMBER),
            read_u16(header, tcp::WINDOW),
        ) else {
            return Err(RefusalReason::Malformed);
        };
        // The lower half of the offset byte is AE and reserved bits.
        if flags != tcp::ACK || offset & 0x0f != 0 {
            return Err(RefusalReason::AckFlags);
        }
        let stamps = stamps(header);
        if header.len() != tcp::MIN_LEN && stamps.is_none() {
            return Err(RefusalReason::AckOptions);
        }
        Ok(Ack { number, window, stamps })
    }
}

/// Largest distance in bytes at which an older acknowledgment number counts as reordered by data. The numbers of data
/// are not verified, and a wrong one must not persist: it is hardly ever this near.
const NEAR: i32 = 1 << 20;

/// The state of the acknowledgments of one flow.
#[derive(Clone, Copy, Debug)]
struct AckState {
    hash: u64,
    last: Ack,
    /// Acknowledgment number of the last data segment, ignoring overtaken ones.
    with_data: Option<u32>,
    /// Window scale of the flow's SYN, or the largest one.
    scale: u8,
    /// Whether `last` holds a number.
    is_known: bool,
    /// Whether the next acknowledgment must not be replaced either.
    is_guarded: bool,
}

const NO_STATE: AckState = AckState {
    hash: 0,
    last: Ack { number: 0, window: 0, stamps: None },
    with_data: None,
    scale: tcp::MAX_WINDOW_SCALE,
    is_known: false,
    is_guarded: false,
};

/// Number of flows in a set of [`Memory`].
const SET_LEN: usize = 4;
/// Smallest number of sets in the table.
const MIN_SETS: usize = 256;

/// The last acknowledgment of each of many flows, in sets by hash, the most recently used of a set in front. Hashes are
/// keyed; the next acknowledgment of a flow whose entry was replaced is passed on alone.
#[derive(Debug)]
pub(super) struct Memory {
    /// The sets of acknowledgments: a power of two of them, or none.
    sets: Vec<[AckState; SET_LEN]>,
}

impl Memory {
    /// Creates a memory for about `flows` flows; with 0 it stores nothing.
    pub(super) fn new(flows: usize) -> Memory {
        let count = if flows == 0 { 0 } else { flows.next_power_of_two().max(MIN_SETS) };
        Memory { sets: alloc::vec![[NO_STATE; SET_LEN]; count] }
    }

    fn set(&mut self, hash: u64) -> Option<&mut [AckState; SET_LEN]> {
        let mask = self.sets.len().wrapping_sub(1);
        // The lower bits select the bucket of the table; these are independent of them.
        self.sets.get_mut((hash >> 32) as usize & mask)
    }

    fn find(&mut self, hash: u64) -> Option<&mut AckState> {
        let set = self.set(hash)?;
        let at = set.iter().position(|state| state.hash == hash)?;
        set[..=at].rotate_right(1);
        set.first_mut()
    }

    /// Resets the state of a flow, or evicts the least recently used entry of its set for it.
    fn begin(&mut self, hash: u64) -> Option<&mut AckState> {
        if self.find(hash).is_none() {
            self.set(hash)?.rotate_right(1);
        }
        let state = self.set(hash)?.first_mut()?;
        *state = AckState { hash, ..NO_STATE };
        Some(state)
    }

    /// Checks whether the acknowledgment with the given TCP header, whose checksum is right, may be swallowed by a
    /// newer one, and may itself swallow the preceding one.
    pub(super) fn judge(&mut self, hash: u64, header: &[u8]) -> Result<(), RefusalReason> {
        let ack = match Ack::read(header) {
            Ok(ack) => ack,
            Err(why) => {
                self.other(hash, header, true);
                if header.get(tcp::FLAGS).is_some_and(|flags| flags & tcp::SYN != 0)
                    && let Some(state) = self.find(hash)
                {
                    state.scale = window_scale(header);
                }
                return Err(why);
            }
        };
        if self.find(hash).is_none() {
            self.begin(hash);
        }
        let Some(state) = self.find(hash) else { return Err(RefusalReason::AckFirst) };
        if !state.is_known {
            *state = AckState { last: ack, is_known: true, is_guarded: false, ..*state };
            return Err(RefusalReason::AckFirst);
        }
        let last = state.last;
        let more = distance(last.number, ack.number);
        // The window's right edge may stay, but not move back (RFC 9293, section 3.8.6).
        let taken_back = u64::from(last.window.saturating_sub(ack.window)) << state.scale;
        let in_time = match (last.stamps, ack.stamps) {
            (Some(before), Some(stamps)) => stamps.may_follow(before),
            (None, None) => true,
            _ => false,
        };
        let behind_data = state.with_data.map(|number| distance(number, ack.number));
        let why = match more {
            ..0 => Some(RefusalReason::AckOld),
            0 if last.window != ack.window => Some(RefusalReason::AckWindow),
            0 => Some(RefusalReason::AckDuplicate),
            _ if behind_data == Some(0) => Some(RefusalReason::AckDuplicate),
            _ if behind_data.is_some_and(|by| (-NEAR..0).contains(&by)) => Some(RefusalReason::AckOld),
            more if taken_back > more as u64 => Some(RefusalReason::AckWindow),
            _ if !in_time => Some(RefusalReason::AckTimestamp),
            _ => None,
        };
        if more >= 0 {
            state.last = ack;
        }
        match why {
            Some(why) => {
                state.is_guarded = true;
                Err(why)
            }
            None if state.is_guarded => {
                state.is_guarded = false;
                Err(RefusalReason::AckFirst)
            }
            None => Ok(()),
        }
    }

    /// Records another packet of the flow. Only one whose checksum `is_right` begins or ends a connection: the receiver
    /// does not see a wrong one.
    pub(super) fn other(&mut self, hash: u64, header: &[u8], is_right: bool) {
        let Some(&flags) = header.get(tcp::FLAGS) else { return };
        let flags = if is_right { flags } else { flags & !(tcp::SYN | tcp::FIN | tcp::RST) };
        if flags & tcp::SYN != 0 || self.find(hash).is_none() {
            self.begin(hash);
        }
        let Some(state) = self.find(hash).filter(|_| flags & tcp::SYN == 0) else { return };
        state.is_guarded = true;
        state.is_known &= flags & (tcp::FIN | tcp::RST) == 0;
        let number = read_u32(header, tcp::ACK_NUMBER);
        let was_overtaken = state.with_data.zip(number).is_some_and(|(a, b)| (-NEAR..0).contains(&distance(a, b)));
        if !was_overtaken {
            state.with_data = number;
        }
    }
}

/// Returns the window scale that a SYN announces, or a larger one: without the option it is 0, and a scale over 14
/// counts as 14 (RFC 7323, section 2.3).
fn window_scale(header: &[u8]) -> u8 {
    let mut options = header.get(tcp::OPTIONS..).unwrap_or(&[]);
    loop {
        options = match *options {
            [] | [0, ..] => return 0,
            [1, ref rest @ ..] => rest,
            [tcp::WINDOW_SCALE, 3, scale, ..] => return scale.min(tcp::MAX_WINDOW_SCALE),
            [_, len, ..] if len >= 2 && usize::from(len) <= options.len() => &options[usize::from(len)..],
            // How the peer reads a malformed option is unknown.
            _ => return tcp::MAX_WINDOW_SCALE,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn(options: &[u8]) -> Vec<u8> {
        let mut header = alloc::vec![0; 20];
        header[tcp::FLAGS] = tcp::SYN;
        header.extend(options);
        header
    }

    #[test]
    fn the_window_scale_is_found_among_other_options() {
        assert_eq!(window_scale(&syn(&[2, 4, 5, 0xb4, 1, 3, 3, 7])), 7);
        assert_eq!(window_scale(&syn(&[1, 1, 1, 1])), 0);
        assert_eq!(window_scale(&syn(&[])), 0);
        assert_eq!(window_scale(&syn(&[0, 3, 3, 7])), 0, "behind the end of the list");
        assert_eq!(window_scale(&syn(&[3, 3, 200, 0])), 14);
        for broken in [&[3][..], &[3, 3], &[3, 2, 7], &[5, 0, 3, 3], &[5, 1, 0, 0], &[5, 200, 0, 0]] {
            assert_eq!(window_scale(&syn(broken)), 14, "{broken:?}");
        }
    }

    /// Returns the header of a segment without options.
    fn segment(flags: u8, number: u32, window: u16) -> [u8; 20] {
        let mut header = [0; 20];
        header[8..12].copy_from_slice(&number.to_be_bytes());
        header[14..16].copy_from_slice(&window.to_be_bytes());
        (header[12], header[13]) = (0x50, flags);
        header
    }

    /// Tests that an acknowledgment is swallowed only if it acknowledges more and takes back no window (RFC 5681,
    /// section 2; RFC 9293, section 3.8.6). The scale of the window is not known, and the largest counts.
    #[test]
    fn an_acknowledgment_that_a_sender_must_see_is_refused_by_name() {
        use RefusalReason::{AckDuplicate, AckOld, AckWindow};
        const UNIT: u32 = 1 << tcp::MAX_WINDOW_SCALE;
        for (number, window, expected) in [
            (999, 500, Err(AckOld)),
            (1000_u32.wrapping_sub(1 << 31), 500, Err(AckOld)),
            (1000, 500, Err(AckDuplicate)),
            (1000, 501, Err(AckWindow)),
            (1000, 499, Err(AckWindow)),
            (1001, 500, Ok(())),
            (1001, 501, Ok(())),
            (1001, 499, Err(AckWindow)),
            (999 + UNIT, 499, Err(AckWindow)),
            (1000 + UNIT, 499, Ok(())),
            (999 + 2 * UNIT, 498, Err(AckWindow)),
            (1000 + 2 * UNIT, 498, Ok(())),
        ] {
            let mut memory = Memory::new(1);
            assert_eq!(memory.judge(7, &segment(tcp::ACK, 1000, 500)), Err(RefusalReason::AckFirst));
            assert_eq!(memory.judge(7, &segment(tcp::ACK, number, window)), expected, "{number} {window}");
        }
        // After one that the sender must see the next one stays too; an older one is not the last.
        let mut memory = Memory::new(1);
        for (number, window, expected) in [
            (1000, 500, Err(RefusalReason::AckFirst)),
            (999, 500, Err(AckOld)),
            (1000, 500, Err(AckDuplicate)),
            (1000, 400, Err(AckWindow)),
            (1001, 400, Err(RefusalReason::AckFirst)),
            (1002, 400, Ok(())),
        ] {
            assert_eq!(memory.judge(7, &segment(tcp::ACK, number, window)), expected, "{number} {window}");
        }
    }

    /// Tests that the acknowledgment numbers of data count as seen, except overtaken ones, and that the end of a
    /// connection begins its flow anew, if the checksum of what ends it is right.
    #[test]
    fn what_data_acknowledged_is_acknowledged_no_second_time() {
        const FAR: u32 = NEAR.unsigned_abs();
        for (data, number, expected) in [
            (&[2000_u32][..], 2000, Err(RefusalReason::AckDuplicate)),
            (&[2000], 1999, Err(RefusalReason::AckOld)),
            (&[2000], 2001, Ok(())),
            // An older number is that of an overtaken segment.
            (&[2000, 1999], 2000, Err(RefusalReason::AckDuplicate)),
            (&[2000, 2001], 2001, Err(RefusalReason::AckDuplicate)),
            (&[1000 + FAR + 5], 1004, Ok(())),
            (&[1000 + FAR + 5], 1005, Err(RefusalReason::AckOld)),
        ] {
            let mut memory = Memory::new(1);
            for at in [999, 1000] {
                let _ = memory.judge(7, &segment(tcp::ACK, at, 500));
            }
            data.iter().for_each(|at| memory.other(7, &segment(tcp::ACK | tcp::PSH, *at, 500), false));
            // The first one after data stays in any case.
            let first = memory.judge(7, &segment(tcp::ACK, number, 500));
            assert_eq!(first.err(), Some(expected.err().unwrap_or(RefusalReason::AckFirst)), "{data:?} {number}");
        }
        for (flags, is_right, expected) in [
            (tcp::FIN | tcp::ACK, true, RefusalReason::AckFirst),
            (tcp::RST, true, RefusalReason::AckFirst),
            (tcp::SYN | tcp::ACK, true, RefusalReason::AckFirst),
            (tcp::PSH | tcp::ACK, true, RefusalReason::AckOld),
            (tcp::FIN | tcp::ACK, false, RefusalReason::AckOld),
            (tcp::RST, false, RefusalReason::AckOld),
            (tcp::SYN | tcp::ACK, false, RefusalReason::AckOld),
        ] {
            let mut memory = Memory::new(1);
            let _ = memory.judge(7, &segment(tcp::ACK, 1000, 500));
            memory.other(7, &segment(flags, 1000, 500), is_right);
            assert_eq!(memory.judge(7, &segment(tcp::ACK, 900, 500)), Err(expected), "{flags:#x} {is_right}");
        }
    }

    #[test]
    fn a_flow_whose_entry_was_replaced_begins_anew() {
        let mut memory = Memory::new(1);
        let ack = |number: u32| {
            let mut header = [0; 20];
            header[8..12].copy_from_slice(&number.to_be_bytes());
            (header[12], header[13]) = (0x50, tcp::ACK);
            header
        };
        let flow = |number: u64| (number * MIN_SETS as u64) << 32;
        // Fills one set, with one flow too many.
        for other in 1..5 {
            assert_eq!(memory.judge(flow(other), &ack(1)), Err(RefusalReason::AckFirst));
            assert_eq!(memory.judge(flow(other), &ack(2)), Ok(()));
            assert_eq!(memory.judge(flow(1), &ack(2 + other as u32)), Ok(()));
        }
        assert_eq!(memory.judge(flow(5), &ack(1)), Err(RefusalReason::AckFirst));
        assert_eq!(memory.judge(flow(1), &ack(9)), Ok(()));
        assert_eq!(memory.judge(flow(2), &ack(3)), Err(RefusalReason::AckFirst), "it was quiet longest");
        assert_eq!(memory.judge(flow(2), &ack(4)), Ok(()));
        assert_eq!(Memory::new(0).judge(1, &ack(1)), Err(RefusalReason::AckFirst));
    }

    /// Tests that the first acknowledgment of a flow is the only one that data before it keeps.
    #[test]
    fn the_second_acknowledgment_after_data_may_be_swallowed() {
        let mut memory = Memory::new(1);
        memory.other(7, &segment(tcp::ACK | tcp::PSH, 1000, 500), true);
        assert_eq!(memory.judge(7, &segment(tcp::ACK, 1001, 500)), Err(RefusalReason::AckFirst));
        assert_eq!(memory.judge(7, &segment(tcp::ACK, 1002, 500)), Ok(()));
    }

    /// Tests that another segment that is refused does not say the scale of the window: 0 without the option.
    #[test]
    fn the_scale_of_the_window_is_said_by_a_syn_alone() {
        for (flags, expected) in [(tcp::ECE, RefusalReason::AckWindow), (tcp::SYN, RefusalReason::AckFirst)] {
            let mut memory = Memory::new(1);
            assert_eq!(memory.judge(7, &segment(tcp::ACK, 1000, 500)), Err(RefusalReason::AckFirst));
            assert_eq!(memory.judge(7, &segment(tcp::ACK | flags, 1001, 500)), Err(RefusalReason::AckFlags));
            assert_eq!(memory.judge(7, &segment(tcp::ACK, 1003, 499)), Err(expected), "{flags:#x}");
        }
    }
}
