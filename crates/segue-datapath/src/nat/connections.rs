//! The TCP connections of one mapping, as far as they tell how long it lives (RFC 5382, section 5).
//!
//! An inside port may have several, and the mapping lives for the most alive of them. Only what leaves makes one known here: a
//! stranger who knows the outside port changes nothing by what he sends. Sequence numbers are not followed, so a forged segment
//! may close a connection here that lives; it is open again as soon as both sides have gone on.

use segue::wire::tcp::{FIN, RST, SYN};

/// Most connections of a mapping that are told apart.
const MOST: usize = 4;

/// How far the connections of a TCP mapping are: what the most alive of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Only one side has talked.
    Opening,
    /// Both have.
    Open,
    /// Both sides have closed it, or one has reset it, and they have not gone on since.
    Closing,
}

/// A packet, as far as it tells how long a mapping lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedPacket {
    pub(super) remote: (u32, u16),
    /// TCP flags, and whether there are data.
    pub(super) tcp: u8,
    pub(super) has_data: bool,
    pub(super) is_outbound: bool,
}

/// What is known of the connections of a mapping.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    known: [Option<Connection>; MOST],
    /// There were more that may live. Then only time ends the mapping.
    has_others: bool,
}

/// Pairs are for the way out and the way in.
#[derive(Clone, Copy, Debug)]
struct Connection {
    remote: (u32, u16),
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Which sides have talked.
    Opening([bool; 2]),
    /// Both have; which of them have closed.
    Open([bool; 2]),
    /// Both have closed; which of them have sent data since.
    Closed([bool; 2]),
    /// One has reset it; which of them have sent anything else since.
    Reset([bool; 2]),
}

impl Connections {
    /// The state of the most alive.
    pub fn state(&self) -> TcpState {
        let mut state = None;
        for connection in self.known.iter().flatten() {
            match connection.stage {
                Stage::Open(_) => return TcpState::Open,
                Stage::Opening(_) => state = Some(TcpState::Opening),
                Stage::Closed(_) | Stage::Reset(_) => state = state.or(Some(TcpState::Closing)),
            }
        }
        if self.has_others { TcpState::Open } else { state.unwrap_or(TcpState::Opening) }
    }

    pub(super) fn see(&mut self, seen: ObservedPacket) {
        let known = self.known.iter_mut().flatten().find(|one| one.remote == seen.remote);
        match known {
            Some(connection) => connection.stage = connection.stage.after(seen),
            None if seen.is_outbound && seen.tcp & RST == 0 => self.add(seen),
            None => {}
        }
    }

    /// A new one, in the place of one that is closed where no other is free.
    fn add(&mut self, seen: ObservedPacket) {
        let is_closed =
            |one: &Option<Connection>| one.is_none_or(|one| matches!(one.stage, Stage::Closed(_) | Stage::Reset(_)));
        let free = self.known.iter().position(Option::is_none).or_else(|| self.known.iter().position(is_closed));
        let at = free.unwrap_or_else(|| {
            self.has_others = true;
            // The oldest.
            self.known.rotate_left(1);
            MOST - 1
        });
        self.known[at] = Some(Connection { remote: seen.remote, stage: Stage::Opening([true, false]) });
    }
}

impl Stage {
    fn after(self, seen: ObservedPacket) -> Stage {
        let has = |flag: u8| seen.tcp & flag != 0;
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
            // The last acknowledgements, and what is sent once more by one side.
            Stage::Closed(since) if has(FIN) || !seen.has_data => Stage::Closed(since),
            Stage::Reset(since) if has(FIN) => Stage::Reset(since),
            Stage::Closed(since) | Stage::Reset(since) if and_own(since) == [true; 2] => Stage::Open([false; 2]),
            Stage::Closed(since) => Stage::Closed(and_own(since)),
            Stage::Reset(since) => Stage::Reset(and_own(since)),
        }
    }
}
