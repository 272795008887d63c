//! The states of the TCP connections of one mapping, which decide the mapping's lifetime (RFC 5382, section 5).
//!
//! An inside port may have several connections, and the mapping lives as long as the one in the most alive state. Only
//! outbound packets create a connection here: an outside host that knows the port cannot. A reset counts only with the
//! sequence number that its receiver expects (RFC 5961, section 3.2). That number is followed by what the receiver has
//! acknowledged, and by segments of the sender that directly follow it; segments with other numbers do not move it, so
//! that an off-path host cannot prepare a reset. FIN is not checked: it closes a connection only with one from the
//! other side. Nor does a connection open by a segment that acknowledges something else than what the other side has
//! sent, so that one host alone cannot make a mapping that lives for hours.

use segue::wire::tcp::{ACK, FIN, RST, SYN};

/// Largest number of connections of a mapping that are tracked.
const MOST: usize = 4;

/// State of a TCP mapping, which is that of its most active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Only one side of the connection has sent.
    Opening,
    /// Both sides of the connection have sent.
    Open,
    /// Both sides have sent FIN, or one has sent RST, and no further segment has followed.
    Closing,
}

/// Properties of a packet that determine the lifetime of a mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedPacket {
    pub(super) remote: (u32, u16),
    /// Whether the remote is another inside host, behind the outside address.
    pub(super) is_hairpin: bool,
    /// TCP segment of the packet; the default for other protocols.
    pub(super) segment: Segment,
    pub(super) is_outbound: bool,
}

/// Tracked fields of a TCP segment, or of a train of segments.
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
    /// Whether an open connection is not tracked any more, and may be alive. Then only time ends the mapping.
    has_others: bool,
    /// Whether one of those is with an outside host.
    has_others_outside: bool,
}

/// A tracked TCP connection. Pairs of flags are for the outbound and the inbound direction.
#[derive(Clone, Copy, Debug)]
struct Connection {
    remote: (u32, u16),
    is_hairpin: bool,
    stage: Stage,
    /// The expected sequence number of the next segment of each side, if it is known.
    next: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The connection is being opened; the flags say which sides have sent.
    Opening([bool; 2]),
    /// Both sides have sent; the flags say which sides have closed.
    Open([bool; 2]),
    /// Both sides have closed; the flags say which sides have sent data since.
    Closed([bool; 2]),
    /// One side has reset the connection; the flags say which sides have sent another segment since.
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

    /// Returns whether a connection with an outside host is open. Inside hosts open others among themselves, as many as
    /// they like.
    pub(super) fn is_open_outside(&self) -> bool {
        self.has_others_outside || self.tracked.iter().flatten().any(Connection::is_open_outside)
    }

    pub(super) fn see(&mut self, seen: ObservedPacket) {
        let tracked = self.tracked.iter_mut().flatten().find(|one| one.remote == seen.remote);
        match tracked {
            Some(connection) => connection.see(seen),
            None if seen.is_outbound && !seen.segment.has(RST) => self.add(seen),
            None => {}
        }
    }

    /// Adds a connection in a free slot, or replaces a closed one, or else the oldest one that is being opened, or else
    /// the oldest.
    fn add(&mut self, seen: ObservedPacket) {
        let free = self.tracked.iter().position(Option::is_none);
        let closed = || self.first(|stage| matches!(stage, Stage::Closed(_) | Stage::Reset(_)));
        let at = match free.or_else(closed) {
            Some(at) => at,
            None => {
                // One that is answered later is added again with the next segment from inside. If it kept the mapping
                // alive as an open one does, a host could keep mappings with segments that no host answers.
                let opening = self.first(|stage| matches!(stage, Stage::Opening(_)));
                self.has_others |= opening.is_none();
                let oldest = self.tracked[0].filter(|_| opening.is_none());
                self.has_others_outside |= oldest.is_some_and(|one| one.is_open_outside());
                self.tracked[opening.unwrap_or(0)..].rotate_left(1);
                MOST - 1
            }
        };
        let ObservedPacket { remote, is_hairpin, segment, .. } = seen;
        let next = [Some(segment.end()), segment.has(ACK).then_some(segment.ack)];
        self.tracked[at] = Some(Connection { remote, is_hairpin, stage: Stage::Opening([true, false]), next });
    }

    /// Returns the place of the first connection in such a stage.
    fn first(&self, is_such: fn(Stage) -> bool) -> Option<usize> {
        self.tracked.iter().position(|one| one.is_some_and(|one| is_such(one.stage)))
    }
}

/// Distance in bytes by which an acknowledgment from inside may be lower than one seen earlier.
const REORDERED: i32 = 1 << 24;
/// Distance in bytes between the sequence number of a reset from inside and the expected one, and between the
/// acknowledgment by which a connection opens and the expected one: segments may have been lost before the NAT.
const LOST: i32 = 1 << 20;

impl Connection {
    fn is_open_outside(&self) -> bool {
        !self.is_hairpin && matches!(self.stage, Stage::Open(_))
    }

    fn see(&mut self, seen: ObservedPacket) {
        let segment = &seen.segment;
        if segment.has(RST) && !self.expects_reset(&seen) {
            return;
        }
        if let Stage::Opening(sent) = self.stage
            && segment.flags & (SYN | RST) == 0
            && !self.may_open(sent, &seen)
        {
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

    /// Returns whether a segment without SYN may be of a connection that opens, of which the sides `sent` have sent:
    /// whether it acknowledges about what the other side has sent. That is not known where a SYN with data was
    /// acknowledged without them (RFC 7413).
    fn may_open(&self, sent: [bool; 2], seen: &ObservedPacket) -> bool {
        let (segment, other) = (&seen.segment, usize::from(seen.is_outbound));
        self.next[other].map_or(sent[other], |next| {
            segment.has(ACK) && (segment.ack.wrapping_sub(next) as i32).unsigned_abs() <= LOST.unsigned_abs()
        })
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
    /// outside, only segments right after the last one count, and while the connection opens, each answer to the SYN of
    /// the inside: another one may have another number, such as that of a server that has begun anew.
    fn follow(&mut self, seen: &ObservedPacket) {
        let is_opening = matches!(self.stage, Stage::Opening(_));
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
        } else {
            let is_answer = segment.has(ACK) && *inside == Some(segment.ack);
            let may_begin = match outside {
                None => is_answer || inside.is_none() || !segment.has(ACK),
                Some(_) => is_answer && is_opening,
            };
            if *outside == Some(segment.seq) || segment.has(SYN) && may_begin {
                *outside = Some(segment.end());
            }
        }
    }
}

impl Stage {
    fn after(self, seen: ObservedPacket) -> Stage {
        let has = |flag: u8| seen.segment.has(flag);
        let (own, other) = if seen.is_outbound { (0, 1) } else { (1, 0) };
        let with_own = |mut flags: [bool; 2]| {
            flags[own] = true;
            flags
        };
        if has(RST) {
            return Stage::Reset([false; 2]);
        }
        match self {
            Stage::Closed(_) | Stage::Reset(_) if has(SYN) => Stage::Opening(with_own([false; 2])),
            Stage::Opening(sent) if has(SYN) || !sent[other] => Stage::Opening(with_own(sent)),
            Stage::Opening(_) | Stage::Open(_) if has(FIN) => {
                let closed = with_own(if let Stage::Open(closed) = self { closed } else { [false; 2] });
                if closed == [true; 2] { Stage::Closed([false; 2]) } else { Stage::Open(closed) }
            }
            Stage::Opening(_) => Stage::Open([false; 2]),
            Stage::Open(closed) => Stage::Open(closed),
            // The last acknowledgements, and retransmissions of one side.
            Stage::Closed(since) if has(FIN) || seen.segment.len == 0 => Stage::Closed(since),
            Stage::Reset(since) if has(FIN) => Stage::Reset(since),
            Stage::Closed(since) | Stage::Reset(since) if with_own(since) == [true; 2] => Stage::Open([false; 2]),
            Stage::Closed(since) => Stage::Closed(with_own(since)),
            Stage::Reset(since) => Stage::Reset(with_own(since)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: (u32, u16) = (7, 80);
    const OUTBOUND: bool = true;
    const INBOUND: bool = false;

    fn packet(is_outbound: bool, flags: u8, seq: u32, ack: u32, len: u32) -> ObservedPacket {
        ObservedPacket { remote: REMOTE, is_hairpin: false, segment: Segment { flags, seq, ack, len }, is_outbound }
    }

    fn connection(stage: Stage, next: [Option<u32>; 2]) -> Connection {
        Connection { remote: REMOTE, is_hairpin: false, stage, next }
    }

    /// Tests that SYN and FIN take one sequence number each, and that the numbers wrap around (RFC 9293, section 3.4).
    #[test]
    fn syn_fin_and_each_byte_of_data_take_a_sequence_number() {
        for (flags, len, end) in [
            (0, 0, u32::MAX - 1),
            (ACK, 0, u32::MAX - 1),
            (SYN, 0, u32::MAX),
            (FIN | ACK, 0, u32::MAX),
            (SYN | FIN, 0, 0),
            (ACK, 3, 1),
            (FIN | ACK, 3, 2),
            (SYN | FIN, 3, 3),
        ] {
            assert_eq!(packet(OUTBOUND, flags, u32::MAX - 1, 0, len).segment.end(), end, "{flags:#x} {len}");
        }
    }

    /// Tests that the mapping has the state of its most active connection (RFC 5382, section 5).
    #[test]
    fn a_mapping_is_as_active_as_its_most_active_connection() {
        let (opening, open) = (Stage::Opening([true, false]), Stage::Open([false; 2]));
        let (closed, reset) = (Stage::Closed([false; 2]), Stage::Reset([false; 2]));
        for (stages, has_others, expected) in [
            (&[][..], false, TcpState::Opening),
            (&[], true, TcpState::Open),
            (&[opening], false, TcpState::Opening),
            (&[opening], true, TcpState::Open),
            (&[open], false, TcpState::Open),
            (&[closed], false, TcpState::Closing),
            (&[reset], false, TcpState::Closing),
            (&[closed, reset], false, TcpState::Closing),
            (&[closed, opening], false, TcpState::Opening),
            (&[opening, closed], false, TcpState::Opening),
            (&[opening, reset], false, TcpState::Opening),
            (&[closed, reset, opening, open], false, TcpState::Open),
            (&[closed, reset], true, TcpState::Open),
        ] {
            let mut connections = Connections { has_others, ..Connections::default() };
            for (place, stage) in connections.tracked.iter_mut().zip(stages) {
                *place = Some(connection(*stage, [None; 2]));
            }
            assert_eq!(connections.state(), expected, "{stages:?} {has_others}");
        }
    }

    #[test]
    fn a_connection_takes_a_free_place_then_that_of_a_closed_one_of_one_being_opened_and_of_the_oldest() {
        let from =
            |port: u16, flags: u8, seq: u32| ObservedPacket { remote: (7, port), ..packet(OUTBOUND, flags, seq, 0, 0) };
        let answer = |port: u16| ObservedPacket { remote: (7, port), ..packet(INBOUND, ACK, 0, 101, 0) };
        let ports = |connections: &Connections| -> Vec<u16> {
            connections.tracked.iter().flatten().map(|one| one.remote.1).collect()
        };
        let mut connections = Connections::default();
        // Nothing from outside creates one, and no reset does.
        connections.see(packet(INBOUND, SYN, 9, 0, 0));
        connections.see(from(9, RST, 9));
        assert!(ports(&connections).is_empty());
        for port in 1..=4 {
            connections.see(from(port, SYN, 100));
        }
        assert_eq!(ports(&connections), [1, 2, 3, 4]);
        connections.see(from(2, RST, 101));
        connections.see(from(5, SYN, 100));
        assert_eq!(ports(&connections), [1, 5, 3, 4]);
        connections.see(answer(1));
        connections.see(from(6, SYN, 100));
        assert_eq!((ports(&connections), connections.has_others), (vec![1, 3, 4, 6], false));
        for port in [3, 4, 6] {
            connections.see(answer(port));
        }
        connections.see(from(7, SYN, 100));
        assert_eq!((ports(&connections), connections.has_others), (vec![3, 4, 6, 7], true));
        for port in [3, 4, 6] {
            connections.see(from(port, RST, 101));
        }
        assert_eq!(connections.state(), TcpState::Open, "the one that was given up may be open");
    }

    #[test]
    fn open_connections_among_inside_hosts_are_none_with_an_outside_host_however_many_they_are() {
        let open = |connections: &mut Connections, port: u16, is_hairpin: bool| {
            for is_outbound in [OUTBOUND, INBOUND] {
                let seen = packet(is_outbound, ACK, 100, 100, 0);
                connections.see(ObservedPacket { remote: (7, port), is_hairpin, ..seen });
            }
        };
        let mut connections = Connections::default();
        (1..=9).for_each(|port| open(&mut connections, port, true));
        assert_eq!((connections.state(), connections.is_open_outside()), (TcpState::Open, false));
        open(&mut connections, 10, false);
        assert!(connections.is_open_outside());
        // It is no longer tracked.
        (11..=19).for_each(|port| open(&mut connections, port, true));
        assert!(connections.tracked.iter().flatten().all(|one| one.is_hairpin) && connections.is_open_outside());
    }

    /// Tests that no number of connections that nothing answers makes a mapping one of an open connection, which is
    /// kept for hours.
    #[test]
    fn connections_that_no_host_answers_are_being_opened_however_many_they_are() {
        let mut connections = Connections::default();
        for port in 1..=9 {
            for flags in [SYN, ACK] {
                connections.see(ObservedPacket { remote: (7, port), ..packet(OUTBOUND, flags, 100, 0, 0) });
            }
            assert_eq!(connections.state(), TcpState::Opening, "{port} remotes");
        }
        // One of them that was given up is answered after all.
        connections.see(packet(OUTBOUND, ACK, 100, 0, 0));
        connections.see(packet(INBOUND, ACK, 0, 100, 0));
        assert_eq!(connections.state(), TcpState::Open);
    }

    /// Tests that the first segment sets both expected sequence numbers: after its own SYN, and its acknowledgment
    /// number (RFC 9293, section 3.4).
    #[test]
    fn a_new_connection_expects_what_follows_its_first_segment() {
        for (flags, ack, next) in [(SYN, 77, [Some(101), None]), (SYN | ACK, 77, [Some(101), Some(77)])] {
            let mut connections = Connections::default();
            connections.see(packet(OUTBOUND, flags, 100, ack, 0));
            assert_eq!(connections.tracked[0].unwrap().next, next, "{flags:#x}");
            assert_eq!(connections.state(), TcpState::Opening);
        }
    }

    /// Tests that a RST is accepted only with the expected sequence number: exactly that number from outside (RFC 5961,
    /// section 3.2), within a tolerance for lost segments from inside, and, as the answer to a SYN, by its
    /// acknowledgment number (RFC 9293, section 3.10.7.3).
    #[test]
    fn a_reset_is_expected_at_the_next_number_or_as_the_answer_to_a_syn() {
        let open = connection(Stage::Open([false; 2]), [Some(1000), Some(5000)]);
        let opening = connection(Stage::Opening([true, false]), open.next);
        let lost = LOST.unsigned_abs();
        for (connection, is_outbound, flags, seq, ack, expected) in [
            (open, OUTBOUND, RST, 1000, 0, true),
            (open, OUTBOUND, RST, 1000 + lost, 0, true),
            (open, OUTBOUND, RST, 1001 + lost, 0, false),
            (open, OUTBOUND, RST, 1000_u32.wrapping_sub(lost), 0, true),
            (open, OUTBOUND, RST, 999_u32.wrapping_sub(lost), 0, false),
            (open, INBOUND, RST, 5000, 0, true),
            (open, INBOUND, RST, 5001, 0, false),
            (open, INBOUND, RST, 4999, 0, false),
            (open, INBOUND, RST, 1000, 0, false),
            (open, INBOUND, RST | ACK, 0, 1000, false),
            (opening, INBOUND, RST | ACK, 0, 1000, true),
            (opening, INBOUND, RST | ACK, 0, 999, false),
            (opening, INBOUND, RST, 0, 1000, false),
            (opening, OUTBOUND, RST | ACK, 1 << 31, 5000, true),
            (opening, OUTBOUND, RST | ACK, 1 << 31, 1000, false),
        ] {
            let seen = packet(is_outbound, flags, seq, ack, 0);
            assert_eq!(connection.expects_reset(&seen), expected, "{:?} {seen:?}", connection.stage);
        }
        let unknown = connection(Stage::Open([false; 2]), [None; 2]);
        assert!([OUTBOUND, INBOUND].iter().all(|side| !unknown.expects_reset(&packet(*side, RST | ACK, 0, 0, 0))));
    }

    #[test]
    fn the_next_number_of_the_inside_goes_forward_and_begins_anew_with_a_syn() {
        for (before, flags, seq, len, after) in [
            (None, ACK, 70, 5, 75),
            (Some(1000), ACK, 1000, 10, 1010),
            (Some(1000), ACK, 2000, 0, 2000),
            (Some(1000), ACK, 900, 100, 1000),
            (Some(1000), ACK, 900, 101, 1001),
            (Some(1000), ACK, 900, 50, 1000),
            (Some(u32::MAX), ACK, u32::MAX, 2, 1),
            (Some(1000), SYN, 5, 0, 6),
        ] {
            let mut connection = connection(Stage::Open([false; 2]), [before, None]);
            connection.follow(&packet(OUTBOUND, flags, seq, 0, len));
            assert_eq!(connection.next[0], Some(after), "{before:?} {flags:#x} {seq} {len}");
        }
    }

    #[test]
    fn an_acknowledgment_from_inside_says_what_is_expected_from_outside_unless_it_is_old() {
        let old = 5000_u32.wrapping_sub(REORDERED.unsigned_abs());
        for (before, flags, ack, after) in [
            (None, ACK, 70, Some(70)),
            (None, 0, 70, None),
            (Some(5000), ACK, 5001, Some(5001)),
            (Some(5000), ACK, 4999, Some(5000)),
            (Some(5000), ACK, old, Some(5000)),
            (Some(5000), ACK, old.wrapping_sub(1), Some(old.wrapping_sub(1))),
            (Some(5000), 0, 6000, Some(5000)),
        ] {
            let mut connection = connection(Stage::Open([false; 2]), [None, before]);
            connection.follow(&packet(OUTBOUND, flags, 1, ack, 0));
            assert_eq!(connection.next[1], after, "{before:?} {flags:#x} {ack}");
        }
    }

    /// Tests that an off-path host cannot move the expected sequence number so that its reset is accepted: only a
    /// segment with exactly that number moves it, or a SYN that acknowledges what the inside has sent.
    #[test]
    fn segments_from_outside_count_only_right_after_the_last_one() {
        for (next, flags, seq, ack, len, after) in [
            ([Some(1000), Some(5000)], ACK, 5000, 0, 7, Some(5007)),
            ([Some(1000), Some(5000)], ACK, 5001, 0, 7, Some(5000)),
            ([Some(1000), Some(5000)], ACK, 4999, 0, 7, Some(5000)),
            ([Some(1000), Some(5000)], SYN, 70, 0, 0, Some(5000)),
            ([Some(1000), None], ACK, 70, 1000, 7, None),
            ([Some(1000), None], SYN | ACK, 70, 1000, 0, Some(71)),
            ([Some(1000), None], SYN | ACK, 70, 1001, 0, None),
            ([Some(1000), None], SYN, 70, 0, 0, Some(71)),
            ([None, None], SYN | ACK, 70, 1001, 0, Some(71)),
        ] {
            let mut connection = connection(Stage::Open([false; 2]), next);
            connection.follow(&packet(INBOUND, flags, seq, ack, len));
            assert_eq!(connection.next, [next[0], after], "{next:?} {flags:#x} {seq} {ack} {len}");
        }
        // While the connection opens, another answer to the SYN counts, and nothing else.
        for (flags, ack, after) in
            [(SYN | ACK, 1000, 71), (SYN | ACK, 1001, 5000), (SYN, 1000, 5000), (ACK, 1000, 5000)]
        {
            let mut connection = connection(Stage::Opening([true; 2]), [Some(1000), Some(5000)]);
            connection.follow(&packet(INBOUND, flags, 70, ack, 0));
            assert_eq!(connection.next, [Some(1000), Some(after)], "{flags:#x} {ack}");
        }
    }

    /// Tests that each segment moves a connection to the right state (RFC 5382, section 5); the flags in a stage are
    /// for inside and outside.
    #[test]
    fn each_stage_is_followed_by_the_right_one() {
        use Stage::{Closed, Open, Opening, Reset};
        const NO: [bool; 2] = [false; 2];
        const IN: [bool; 2] = [true, false];
        const OUT: [bool; 2] = [false, true];
        const BOTH: [bool; 2] = [true; 2];
        for (before, is_outbound, flags, len, after) in [
            (Opening(IN), OUTBOUND, ACK, 0, Opening(IN)),
            (Opening(IN), OUTBOUND, SYN, 0, Opening(IN)),
            (Opening(IN), INBOUND, SYN | ACK, 0, Opening(BOTH)),
            (Opening(IN), INBOUND, ACK, 0, Open(NO)),
            (Opening(BOTH), OUTBOUND, ACK, 0, Open(NO)),
            (Opening(BOTH), OUTBOUND, SYN, 0, Opening(BOTH)),
            (Opening(BOTH), INBOUND, FIN | ACK, 0, Open(OUT)),
            (Opening(OUT), INBOUND, FIN | ACK, 0, Opening(OUT)),
            (Open(NO), OUTBOUND, ACK, 9, Open(NO)),
            (Open(NO), OUTBOUND, FIN | ACK, 0, Open(IN)),
            (Open(IN), OUTBOUND, FIN | ACK, 0, Open(IN)),
            (Open(IN), INBOUND, ACK, 9, Open(IN)),
            (Open(IN), INBOUND, FIN | ACK, 0, Closed(NO)),
            (Open(OUT), OUTBOUND, FIN | ACK, 0, Closed(NO)),
            (Open(NO), OUTBOUND, SYN, 0, Open(NO)),
            (Open(NO), INBOUND, RST, 0, Reset(NO)),
            (Opening(IN), INBOUND, RST | ACK, 0, Reset(NO)),
            (Closed(IN), OUTBOUND, RST, 0, Reset(NO)),
            (Closed(NO), OUTBOUND, ACK, 0, Closed(NO)),
            (Closed(NO), OUTBOUND, FIN | ACK, 9, Closed(NO)),
            (Closed(NO), OUTBOUND, ACK, 1, Closed(IN)),
            (Closed(IN), OUTBOUND, ACK, 1, Closed(IN)),
            (Closed(IN), INBOUND, ACK, 1, Open(NO)),
            (Closed(NO), OUTBOUND, SYN, 0, Opening(IN)),
            (Reset(NO), INBOUND, ACK, 0, Reset(OUT)),
            (Reset(OUT), INBOUND, ACK, 0, Reset(OUT)),
            (Reset(OUT), OUTBOUND, ACK, 0, Open(NO)),
            (Reset(OUT), OUTBOUND, FIN | ACK, 0, Reset(OUT)),
            (Reset(BOTH), INBOUND, SYN, 0, Opening(OUT)),
        ] {
            let found = before.after(packet(is_outbound, flags, 0, 0, len));
            assert_eq!(format!("{found:?}"), format!("{after:?}"), "{before:?} {is_outbound} {flags:#x} {len}");
        }
    }

    /// Tests that a segment opens a connection only if it acknowledges what the other side has sent, or a mebibyte more
    /// or less at most, and not before the other side has sent, whatever its own number is.
    #[test]
    fn a_connection_opens_by_an_acknowledgment_of_what_the_other_side_has_sent() {
        let lost = LOST.unsigned_abs();
        let (begun, answered) = ([true, false], [true; 2]);
        let (syn, both) = ([Some(1000), None], [Some(1000), Some(5000)]);
        for (sent, next, is_outbound, flags, ack, is_open) in [
            (answered, both, OUTBOUND, ACK, 5000, true),
            (answered, both, OUTBOUND, FIN | ACK, 5000, true),
            (answered, both, OUTBOUND, ACK, 5000 + lost, true),
            (answered, both, OUTBOUND, ACK, 5001 + lost, false),
            (answered, both, OUTBOUND, ACK, 5000_u32.wrapping_sub(lost), true),
            (answered, both, OUTBOUND, ACK, 4999_u32.wrapping_sub(lost), false),
            (answered, both, OUTBOUND, 0, 5000, false),
            (answered, both, INBOUND, ACK, 1000, true),
            (answered, both, INBOUND, ACK, 1 << 31, false),
            (begun, both, INBOUND, ACK, 1000, true),
            (begun, both, INBOUND, FIN | ACK, 1 << 31, false),
            (begun, syn, INBOUND, ACK, 1000, true),
            (begun, syn, OUTBOUND, ACK, 5000, false),
            // The answer was to something else than what is known here.
            (answered, syn, OUTBOUND, ACK, 5000, true),
        ] {
            let mut connection = connection(Stage::Opening(sent), next);
            connection.see(packet(is_outbound, flags, 70, ack, 0));
            let found = matches!(connection.stage, Stage::Open(_));
            assert_eq!(found, is_open, "{sent:?} {next:?} {is_outbound} {flags:#x} {ack}");
            assert!(is_open || connection.next == next, "nothing is learned from others");
        }
    }

    #[test]
    fn only_an_expected_reset_changes_a_connection_and_a_syn_after_the_end_begins_a_new_one() {
        let open = connection(Stage::Open([false; 2]), [Some(1000), Some(5000)]);
        for (seq, is_reset) in [(5000, true), (5001, false)] {
            let mut connection = open;
            connection.see(packet(INBOUND, RST, seq, 0, 0));
            assert_eq!(matches!(connection.stage, Stage::Reset(_)), is_reset);
            assert_eq!(connection.next, open.next, "a reset has no next number");
        }
        for stage in [Stage::Closed([false; 2]), Stage::Reset([false; 2])] {
            let mut connection = connection(stage, open.next);
            connection.see(packet(OUTBOUND, SYN, 9, 0, 0));
            assert_eq!(connection.next, [Some(10), None], "{stage:?}");
            assert!(matches!(connection.stage, Stage::Opening([true, false])), "{stage:?}");
        }
        let mut connection = open;
        connection.see(packet(OUTBOUND, SYN, 9, 0, 0));
        assert_eq!(connection.next, [Some(10), Some(5000)], "no end was seen");
    }
}
