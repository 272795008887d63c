//! Tests of the sequence numbers that decide which resets count (RFC 5961, section 3.2), and of the connections that a
//! mapping lives by.

use segue::time::Nanos;
use segue_datapath::nat::{Nat, TcpState};
use segue_testkit::build::{L4, Packet};
use segue_testkit::fragment::fragments;

use super::{CLIENT, Endpoint, OUTSIDE, SECOND, SERVER, Talk, into, into_bytes, nat, out, tcp};

const STRANGER: Endpoint = ([198, 19, 7, 7], 9999);
/// Initial sequence number of the client.
const MINE: u32 = 1000;
/// Initial sequence number of the server.
const ITS: u32 = 0xffff_fff0;
const SYN: u8 = 2;
const RST: u8 = 4;
const DATA: u8 = 0x18;
const ACK: u8 = 0x10;

/// A segment as it is sent inside or arrives outside: direction, flags, sequence and acknowledgment numbers relative to
/// those of the SYNs, length.
type Step = (bool, u8, u32, u32, usize);

fn segment((is_outbound, flags, seq, ack, len): Step) -> Packet {
    let (from, to) = if is_outbound { (CLIENT, SERVER) } else { (SERVER, (OUTSIDE, CLIENT.1)) };
    let (own, other) = if is_outbound { (MINE, ITS) } else { (ITS, MINE) };
    let mut packet = tcp(from, to, flags, len);
    if let L4::Tcp(header) = &mut packet.l4 {
        (header.seq, header.ack) = (own.wrapping_add(seq), other.wrapping_add(ack));
    }
    packet
}

fn send(nat: &mut Nat, step: Step, now: u64) {
    let packet = segment(step);
    if step.0 {
        out(nat, &packet, now).unwrap()
    } else {
        into(nat, &packet, now).unwrap()
    };
}

fn state(nat: &Nat) -> TcpState {
    nat.mappings(Nanos(0)).next().unwrap().connections.state()
}

/// Steps that open a connection without data.
const OPEN: [Step; 3] = [(true, SYN, 0, 0, 0), (false, 0x12, 0, 1, 0), (true, ACK, 1, 1, 0)];

/// Checks whether a reset counts as the last of these steps.
#[track_caller]
fn assert_reset(steps: &[Step], counts: bool) {
    let mut nat = nat(|_| ());
    steps.iter().for_each(|step| send(&mut nat, *step, 0));
    assert_eq!(state(&nat) == TcpState::Closing, counts, "{steps:?}");
}

/// Tests that a connection opens if both ends send a SYN before either one has seen the other's (RFC 5382, REQ-2 a; RFC
/// 9293, section 3.5).
#[test]
fn a_connection_that_both_ends_begin_at_once_opens() {
    let mut nat = nat(|_| ());
    let begin: [Step; 4] =
        [(true, SYN, 0, 0, 0), (false, SYN, 0, 0, 0), (true, SYN | ACK, 0, 1, 0), (false, SYN | ACK, 0, 1, 0)];
    for step in begin {
        send(&mut nat, step, 0);
        assert_eq!(state(&nat), TcpState::Opening, "{step:?}");
    }
    send(&mut nat, (true, DATA, 1, 1, 100), 0);
    assert_eq!(state(&nat), TcpState::Open);
    // Its answer may come as late as in a connection that one end began.
    send(&mut nat, (false, DATA, 1, 101, 100), 7440 * SECOND);
}

#[test]
fn a_reset_from_inside_counts_up_to_a_mebibyte_off() {
    let most = 1 << 20;
    for (seq, counts) in
        [(1 + most, true), (2 + most, false), (1_u32.wrapping_sub(most), true), (0_u32.wrapping_sub(most), false)]
    {
        assert_reset(&[&OPEN[..], &[(true, RST, seq, 0, 0)]].concat(), counts);
    }
    // The client's own segments move what is expected; one that is sent again does not move it back.
    let data: Vec<Step> = (0..40).map(|number| (true, DATA, 1 + number * 60_000, 1, 60_000)).collect();
    let end = 1 + 40 * 60_000;
    assert_reset(&[&OPEN[..], &data, &[(true, RST, end, 0, 0)]].concat(), true);
    assert_reset(&[&OPEN[..], &data, &[(true, DATA, 1, 1, 60_000), (true, RST, end, 0, 0)]].concat(), true);
    assert_reset(&[&OPEN[..], &data, &[(true, RST, 1, 0, 0)]].concat(), false);
}

#[test]
fn a_reset_right_behind_the_first_answer_counts() {
    assert_reset(&[OPEN[0], OPEN[1], (false, RST, 1, 0, 0)], true);
    assert_reset(&[OPEN[0], OPEN[1], (false, RST, 2, 0, 0)], false);
    // Both sides open at once.
    assert_reset(&[OPEN[0], (false, SYN, 0, 0, 0), (false, RST, 1, 0, 0)], true);
    // An answer with an acknowledgment of something else is forged, and so is data without a SYN.
    assert_reset(&[OPEN[0], (false, 0x12, 70, 2, 0), (false, RST, 71, 2, 0)], false);
    assert_reset(&[OPEN[0], (false, ACK, 70, 2, 10), (false, RST, 80, 2, 0)], false);
}

#[test]
fn a_forged_syn_does_not_lead_up_to_a_reset() {
    for flags in [SYN, 0x12, DATA] {
        let behind = 0x7777 + 10 + u32::from(flags & SYN) / 2;
        assert_reset(&[&OPEN[..], &[(false, flags, 0x7777, 1, 10), (false, RST, behind, 1, 0)]].concat(), false);
    }
}

#[test]
fn what_the_server_sends_is_followed_whatever_it_acknowledges() {
    let sent = [(true, DATA, 1, 1, 90), (false, DATA, 1, 1, 500)];
    assert_reset(&[&OPEN[..], &sent, &[(false, RST, 501, 1, 0)]].concat(), true);
    assert_reset(&[&OPEN[..], &sent, &[(false, RST, 1, 1, 0)]].concat(), false);
}

#[test]
fn acknowledgments_that_are_late_or_none_do_not_move_what_is_expected() {
    let sent = [(false, DATA, 1, 1, 500), (true, ACK, 1, 501, 0)];
    for late in [(true, ACK, 1, 1, 0), (true, 8, 1, 0x5555_5555, 20)] {
        assert_reset(&[&OPEN[..], &sent, &[late, (false, RST, 501, 1, 0)]].concat(), true);
    }
    // One that is ahead moves it: segments were lost in front of the translator.
    assert_reset(&[&OPEN[..], &sent, &[(true, ACK, 1, 9000, 0), (false, RST, 9000, 1, 0)]].concat(), true);
    // The oldest that is late, and one that is older still, which is believed.
    let most = 1 << 24;
    for (back, counts) in [(most, true), (most + 1, false)] {
        let late = (true, ACK, 1, 501_u32.wrapping_sub(back), 0);
        assert_reset(&[&OPEN[..], &sent, &[late, (false, RST, 501, 1, 0)]].concat(), counts);
    }
}

#[test]
fn the_data_of_a_first_fragment_counts_without_its_header() {
    let mut nat = nat(|_| ());
    OPEN.iter().for_each(|step| send(&mut nat, *step, 0));
    let whole = segment((false, DATA, 1, 1, 3000)).bytes();
    let first = &fragments(&whole, 1500, 0)[0];
    into_bytes(&mut nat, first, 0).unwrap();
    // IPv4 and TCP headers without options.
    let data = first.len() as u32 - 40;
    send(&mut nat, (false, RST, 1 + data + 20, 1, 0), 0);
    assert_eq!(state(&nat), TcpState::Open);
    send(&mut nat, (false, RST, 1 + data, 1, 0), 0);
    assert_eq!(state(&nat), TcpState::Closing);
}

#[test]
fn strangers_and_resets_add_no_connection() {
    let closed = [&OPEN[..], &[(true, 0x11, 1, 1, 0), (false, 0x11, 1, 2, 0), (true, ACK, 2, 2, 0)]].concat();
    let mut nat = nat(|_| ());
    closed.iter().for_each(|step| send(&mut nat, *step, 0));
    assert_eq!(state(&nat), TcpState::Closing);
    for flags in [SYN, ACK, DATA, RST] {
        into(&mut nat, &tcp(STRANGER, (OUTSIDE, CLIENT.1), flags, 5), 0).unwrap();
        assert_eq!(state(&nat), TcpState::Closing, "{flags:x}");
    }
    out(&mut nat, &tcp(CLIENT, STRANGER, RST, 0), 0).unwrap();
    assert_eq!(state(&nat), TcpState::Closing);
    out(&mut nat, &tcp(CLIENT, STRANGER, SYN, 0), 0).unwrap();
    assert_eq!(state(&nat), TcpState::Opening);
}

/// Checks the state of a mapping after these steps.
#[track_caller]
fn assert_state(steps: &[Step], expected: TcpState) {
    let mut nat = nat(|_| ());
    steps.iter().for_each(|step| send(&mut nat, *step, 0));
    assert_eq!(state(&nat), expected, "{steps:?}");
}

/// Tests that neither side alone opens a connection, which its mapping would live by for hours: neither a host inside
/// that has not seen the answer to its SYN, nor a forged segment from outside.
#[test]
fn a_connection_opens_with_the_numbers_of_both_sides_alone() {
    let blind = (true, ACK, 1, 0x4000_0000, 0);
    let forged = (false, DATA, 70, 0x4000_0000, 10);
    for steps in [
        &[OPEN[0], OPEN[1], blind][..],
        &[OPEN[0], blind, OPEN[1], blind],
        &[blind, OPEN[0], OPEN[1], blind],
        &[OPEN[0], forged],
        &[OPEN[0], OPEN[1], forged],
    ] {
        assert_state(steps, TcpState::Opening);
        let expected = if steps.contains(&OPEN[1]) { TcpState::Open } else { TcpState::Opening };
        assert_state(&[steps, &OPEN[2..]].concat(), expected);
    }
}

/// Tests that a connection opens by the number of the last answer to the last SYN: where the server begins anew, or the
/// client, before the first answer has come through.
#[test]
fn a_connection_opens_after_another_answer_or_another_syn() {
    let other = 0x5555_0000;
    let again = (false, SYN | ACK, other, 1, 0);
    assert_state(&[OPEN[0], OPEN[1], OPEN[0], again, (true, ACK, 1, other + 1, 0)], TcpState::Open);
    // One that answers another SYN is forged.
    let forged = (false, SYN | ACK, other, 2, 0);
    assert_state(&[OPEN[0], OPEN[1], forged, (true, ACK, 1, other + 1, 0)], TcpState::Opening);
    assert_state(&[OPEN[0], OPEN[1], forged, OPEN[2]], TcpState::Open);
    let (mine, its) = (0x3000_0000, (false, SYN | ACK, other, 0x3000_0001, 0));
    let anew = [(true, SYN, mine, 0, 0), its, (true, ACK, mine + 1, other + 1, 0)];
    assert_state(&[&OPEN[..2], &anew].concat(), TcpState::Open);
    // The server acknowledges a SYN without the data that it carries (RFC 7413).
    let data = (true, SYN, 0, 0, 500);
    assert_state(&[data, OPEN[1], OPEN[2]], TcpState::Open);
}

#[test]
fn a_reset_connection_stays_so_whatever_closes_it_again() {
    let steps = [(false, RST, 1, 1, 0), (true, 0x11, 1, 1, 0), (false, 0x11, 1, 2, 0)];
    assert_reset(&[&OPEN[..], &steps].concat(), true);
}

#[test]
fn packets_from_inside_keep_a_connection_and_resets_do_not() {
    for (flags, is_kept) in [(DATA, true), (ACK, true), (RST, false)] {
        let mut nat = nat(|_| ());
        OPEN.iter().for_each(|step| send(&mut nat, *step, 0));
        // A reset outside the expected sequence.
        let seq = if flags == RST { 0x4000_0000 } else { 1 };
        send(&mut nat, (true, flags, seq, 1, 0), 7000 * SECOND);
        let late = into(&mut nat, &segment((false, ACK, 1, 1, 0)), 8000 * SECOND);
        assert_eq!(late.is_ok(), is_kept, "{flags:x}");
        let end = into(&mut nat, &segment((false, ACK, 1, 1, 0)), (7000 + 7441) * SECOND);
        assert!(end.is_err());
    }
}

#[test]
fn packets_are_counted_in_both_directions() {
    let (mut nat, mut talk) = (nat(|_| ()), Talk::default());
    for (is_outbound, flags) in [(true, SYN), (false, 0x12), (true, ACK), (true, DATA)] {
        talk.send(&mut nat, is_outbound, SERVER, flags, 0, 0).unwrap();
    }
    assert_eq!(nat.mappings(Nanos(0)).next().unwrap().packets, [3, 1]);
}
