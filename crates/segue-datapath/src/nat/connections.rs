//! The TCP connections of one mapping, as far as they decide how long it lives (RFC 5382, section 5).
//!
//! An inside port may have several connections, and the mapping lives as long as the one in the most alive state. Only
//! outbound packets create a connection here: an outside host that knows the port cannot. A reset counts only with the
//! sequence number that its receiver expects (RFC 5961, section 3.2). That number is followed by what the receiver has
//! acknowledged, and by segments of the sender that come right behind; segments with other numbers do not move it, so
//! that nobody off the path can lead up to a reset. FIN is not checked: it closes a connection only with one from the
//! other side.

use segue::wire::tcp::{ACK, FIN, RST, SYN};

/// Largest number of connections of a mapping that are tracked.
const MOST: usize = 4;

/// State of a TCP mapping, which is that of its most active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// The state in which only one side has sent.
    Opening,
    /// Both sides have sent.
    Open,
    /// Both sides have sent FIN, or one has sent RST, and no further segment has followed.
    Closing,
}

/// The properties of a packet that decide how long a mapping lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedPacket {
    pub(super) remote: (u32, u16),
    /// The TCP segment; of other protocols its default.
    pub(super) segment: Segment,
    pub(super) is_outbound: bool,
}

/// The fields of a TCP segment, or of a train of them, that are followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segment {
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// Length of the data, bytes.
    pub(super) len: u32,
}

impl Segment {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the sequence number after the segment.
    fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len).wrapping_add(u32::from(self.has(SYN))).wrapping_add(u32::from(self.has(FIN)))
    }
}

/// The tracked connections of a mapping.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    tracked: [Option<Connection>; MOST],
    /// Whether further connections, which are not tracked, may be alive. Then only time ends the mapping.
    has_others: bool,
}

/// A tracked TCP connection. Pairs of flags are for the outbound and the inbound direction.
#[derive(Clone, Copy, Debug)]
struct Connection {
    remote: (u32, u16),
    stage: Stage,
    /// The sequence number that the next segment of each side should have, as far as it is known.
    next: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The sides that have sent.
    Opening([bool; 2]),
    /// Both sides have sent; the flags say which sides have closed.
    Open([bool; 2]),
    /// Both sides have closed; the flags say which sides have sent data since.
    Closed([bool; 2]),
    /// One side has reset the connection; the flags say which sides have sent anything else since.
    Reset([bool; 2]),
}

impl Connections {
    /// Returns the state of the most active connection.
    pub fn state(&self) -> TcpState {
        let mut state = None;
        for connection in self.tracked.iter().flatten() {
            match connection.stage {
                Stage::Open(_) => return TcpState::Open,
                Stage::Opening(_) => state = Some(TcpState::Opening),
                Stage::Closed(_) | Stage::Reset(_) => state = state.or(Some(TcpState::Closing)),
            }
        }
        if self.has_others { TcpState::Open } else { state.unwrap_or(TcpState::Opening) }
    }

    pub(super) fn see(&mut self, seen: ObservedPacket) {
        let tracked = self.tracked.iter_mut().flatten().find(|one| one.remote == seen.remote);
        match tracked {
            Some(connection) => connection.see(seen),
            None if seen.is_outbound && !seen.segment.has(RST) => self.add(seen),
            None => {}
        }
    }

    /// Adds a connection: in a free place, else in that of a closed one, else in that of the oldest.
    fn add(&mut self, seen: ObservedPacket) {
        let is_closed =
            |one: &Option<Connection>| one.is_none_or(|one| matches!(one.stage, Stage::Closed(_) | Stage::Reset(_)));
        let free = self.tracked.iter().position(Option::is_none).or_else(|| self.tracked.iter().position(is_closed));
        let at = free.unwrap_or_else(|| {
            self.has_others = true;
            // The oldest is given up.
            self.tracked.rotate_left(1);
            MOST - 1
        });
        let Segment { ack, .. } = seen.segment;
        let next = [Some(seen.segment.end()), seen.segment.has(ACK).then_some(ack)];
        self.tracked[at] = Some(Connection { remote: seen.remote, stage: Stage::Opening([true, false]), next });
    }
}

/// Distance in bytes by which an acknowledgment from inside may lie behind a later one that was seen before it.
const REORDERED: i32 = 1 << 24;
/// Distance in bytes between the sequence number of a reset from inside and the expected one: segments of the sender
/// may have been lost before they were seen here.
const LOST: i32 = 1 << 20;

impl Connection {
    fn see(&mut self, seen: ObservedPacket) {
        let segment = &seen.segment;
        if segment.has(RST) && !self.expects_reset(&seen) {
            return;
        }
        let is_over = matches!(self.stage, Stage::Closed(_) | Stage::Reset(_));
        if is_over && segment.has(SYN) {
            // A new connection between the same ports.
            self.next = [None; 2];
        }
        self.stage = self.stage.after(seen);
        if !segment.has(RST) {
            self.follow(&seen);
        }
    }

    /// Returns whether a segment with RST has the sequence number that its receiver expects, or answers the SYN of its
    /// receiver (RFC 9293, section 3.10.7.3).
    fn expects_reset(&self, seen: &ObservedPacket) -> bool {
        let segment = &seen.segment;
        let (own, other) = if seen.is_outbound { (0, 1) } else { (1, 0) };
        let is_next = self.next[own].is_some_and(|next| match seen.is_outbound {
            true => (segment.seq.wrapping_sub(next) as i32).unsigned_abs() <= LOST.unsigned_abs(),
            false => segment.seq == next,
        });
        let is_opening = matches!(self.stage, Stage::Opening(_));
        is_next || is_opening && segment.has(ACK) && self.next[other] == Some(segment.ack)
    }

    /// Follows the sequence numbers of both sides. An acknowledgment from inside says what is expected from outside;
    /// outside, only segments right after the last one count.
    fn follow(&mut self, seen: &ObservedPacket) {
        let (segment, [inside, outside]) = (&seen.segment, &mut self.next);
        if seen.is_outbound {
            let is_ahead = |next: u32| segment.end().wrapping_sub(next) as i32 > 0;
            if inside.is_none_or(|next| is_ahead(next) || segment.has(SYN)) {
                *inside = Some(segment.end());
            }
            let is_old = |next: u32| (-REORDERED..=0).contains(&(segment.ack.wrapping_sub(next) as i32));
            if segment.has(ACK) && !outside.is_some_and(is_old) {
                *outside = Some(segment.ack);
            }
        } else if *outside == Some(segment.seq) || outside.is_none() && segment.has(SYN) {
            let is_answer = !segment.has(ACK) || inside.is_none_or(|next| next == segment.ack);
            if outside.is_some() || is_answer {
                *outside = Some(segment.end());
            }
        }
    }
}

impl Stage {
    fn after(self, seen: ObservedPacket) -> Stage {
        let has = |flag: u8| seen.segment.has(flag);
        let (own, other) = if seen.is_outbound { (0, 1) } else { (1, 0) };
        let and_own = |mut sides: [bool; 2]| {
            sides[own] = true;
            sides
        };
        if has(RST) {
            return Stage::Reset([false; 2]);
        }
        match self {
            Stage::Closed(_) | Stage::Reset(_) if has(SYN) => Stage::Opening(and_own([false; 2])),
            Stage::Opening(sides) if has(SYN) || !sides[other] => Stage::Opening(and_own(sides)),
            Stage::Opening(_) | Stage::Open(_) if has(FIN) => {
                let closed = and_own(if let Stage::Open(closed) = self { closed } else { [false; 2] });
                if closed == [true; 2] { Stage::Closed([false; 2]) } else { Stage::Open(closed) }
            }
            Stage::Opening(_) => Stage::Open([false; 2]),
            Stage::Open(closed) => Stage::Open(closed),
            // The last acknowledgements, and retransmissions of one side.
            Stage::Closed(since) if has(FIN) || seen.segment.len == 0 => Stage::Closed(since),
            Stage::Reset(since) if has(FIN) => Stage::Reset(since),
            Stage::Closed(since) | Stage::Reset(since) if and_own(since) == [true; 2] => Stage::Open([false; 2]),
            Stage::Closed(since) => Stage::Closed(and_own(since)),
            Stage::Reset(since) => Stage::Reset(and_own(since)),
        }
    }
}
