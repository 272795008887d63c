//! The TCP connections of one mapping, as far as they decide how long it lives (RFC 5382, section 5).
//!
//! An inside port may have several connections, and the mapping lives as long as the one in the most alive state. Only
//! outbound packets create a connection here: an outside host that knows the port cannot. Sequence numbers are not
//! tracked, so a forged segment may close a live connection here; it is open again as soon as both sides have sent
//! more.

use segue::wire::tcp::{FIN, RST, SYN};

/// Largest number of connections of a mapping that are tracked.
const MOST: usize = 4;

/// State of a TCP mapping, which is that of its most active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// The state in which only one side has sent.
    Opening,
    /// Both sides have sent.
    Open,
    /// Both sides have sent FIN, or one RST, and the connection has not gone on since.
    Closing,
}

/// The properties of a packet that decide how long a mapping lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedPacket {
    pub(super) remote: (u32, u16),
    /// TCP flags, and whether the packet carries data.
    pub(super) tcp: u8,
    pub(super) has_data: bool,
    pub(super) is_outbound: bool,
}

/// The tracked connections of a mapping.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    known: [Option<Connection>; MOST],
    /// Whether further connections, which are not tracked, may be alive. Then only time ends the mapping.
    has_others: bool,
}

/// A tracked TCP connection. Pairs of flags are for the outbound and the inbound direction.
#[derive(Clone, Copy, Debug)]
struct Connection {
    remote: (u32, u16),
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The sides that have sent.
    Opening([bool; 2]),
    /// Both sides have sent; those that have closed.
    Open([bool; 2]),
    /// Both sides have closed; those that have sent data since.
    Closed([bool; 2]),
    /// One side has reset the connection; the sides that have sent anything else since.
    Reset([bool; 2]),
}

impl Connections {
    /// Returns the state of the most alive connection.
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

    /// Adds a connection: in a free place, else in that of a closed one, else in that of the oldest.
    fn add(&mut self, seen: ObservedPacket) {
        let is_closed =
            |one: &Option<Connection>| one.is_none_or(|one| matches!(one.stage, Stage::Closed(_) | Stage::Reset(_)));
        let free = self.known.iter().position(Option::is_none).or_else(|| self.known.iter().position(is_closed));
        let at = free.unwrap_or_else(|| {
            self.has_others = true;
            // The oldest is given up.
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
            // The last acknowledgements, and retransmissions of one side.
            Stage::Closed(since) if has(FIN) || !seen.has_data => Stage::Closed(since),
            Stage::Reset(since) if has(FIN) => Stage::Reset(since),
            Stage::Closed(since) | Stage::Reset(since) if and_own(since) == [true; 2] => Stage::Open([false; 2]),
            Stage::Closed(since) => Stage::Closed(and_own(since)),
            Stage::Reset(since) => Stage::Reset(and_own(since)),
        }
    }
}
