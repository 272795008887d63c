//! Tests of the relay between two real hosts: datagrams that cross it show every fault type.

use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Counts, DamageArea, Family, Faults, Host, Peer, Relay, skip_this_test, unavailable};

const COUNT: u32 = 2000;
const PAYLOAD_LEN: usize = 600;
/// Number of datagrams that may be on their way at a time. The receiver's socket buffer, which holds some 160, would
/// lose others, which is no fault of the relay.
const WINDOW: u64 = 32;
/// Beginning of a datagram that is sent before there are faults.
const MARK: &[u8] = b"mark";
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn skip() -> bool {
    let why = unavailable();
    if let Some(why) = &why {
        skip_this_test(why);
    }
    why.is_some()
}

/// Opens a socket; the address may appear only after its device.
fn open(host: &Host, address: IpAddr) -> UdpSocket {
    let begin = Instant::now();
    loop {
        match host.enter(|| UdpSocket::bind((address, 0))).unwrap() {
            Ok(socket) => return socket,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{address}: {error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends marks until the last one of them arrives: frames cross the relay in order, so no earlier one is left there.
fn send_marks(sender: &UdpSocket, receiver: &UdpSocket) {
    receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (begin, mut buffer) = (Instant::now(), [0; 64]);
    for number in 0_u32.. {
        let mark = [MARK, &number.to_be_bytes()].concat();
        // An error is that of a neighbour that has not answered yet.
        let _ = sender.send(&mark);
        while let Ok(len) = receiver.recv(&mut buffer) {
            if buffer[..len] == mark {
                return;
            }
        }
        assert!(begin.elapsed() < PATIENCE, "nothing arrives without faults");
    }
}

/// Takes the datagrams that have arrived, or with `wait` all until none has arrived for 150 ms.
fn take(receiver: &UdpSocket, wait: bool, arrived: &mut Vec<u32>) {
    receiver.set_nonblocking(!wait).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    let mut buffer = [0; 2048];
    while let Ok(len) = receiver.recv(&mut buffer) {
        if buffer.starts_with(MARK) {
            continue;
        }
        let number = u32::from_be_bytes(buffer[..4].try_into().unwrap());
        assert_eq!(buffer[..len], payload(number), "a changed datagram was delivered");
        arrived.push(number);
    }
}

/// Sends numbered datagrams from A to B through the relay; returns the numbers that arrive intact, in order.
///
/// The datagrams are the only frames from A that meet faults, so the relay's counters of faults are theirs: neighbour
/// discovery and frames to groups are left alone, and A has nothing to answer.
fn cross(faults: Faults, family: Family) -> (Vec<u32>, Counts) {
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    let relay = Relay::between(&a, &b).unwrap();
    let (sender, receiver) = (open(&a, Peer::A.address(0, family)), open(&b, Peer::B.address(0, family)));
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    send_marks(&sender, &receiver);
    let [from_a, from_b] = relay.counts();
    let quiet = from_a.plus(from_b);
    assert_eq!((quiet.dropped, quiet.duplicated, quiet.reordered, quiet.damaged), (0, 0, 0, 0));
    relay.set_faults(faults);

    let mut arrived = Vec::new();
    // Waits until at most `window` of the datagrams sent, without those that do not arrive, are on their way.
    let mut settle = |sent: u32, window: u64| {
        let begin = Instant::now();
        loop {
            take(&receiver, false, &mut arrived);
            let [counts, _] = relay.counts();
            let over = arrived.len() as u64 + counts.dropped + counts.damaged;
            if u64::from(sent) + counts.duplicated <= over + window {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{} of {sent} datagrams arrived: {counts:?}", arrived.len());
            thread::sleep(Duration::from_millis(1));
        }
    };
    for number in 0..COUNT {
        sender.send(&payload(number)).unwrap();
        settle(number + 1, WINDOW);
    }
    settle(COUNT, 0);
    // A frame may be held back still, where a damaged one that was delivered all the same made up for it.
    let directions = relay.stop().unwrap();
    take(&receiver, true, &mut arrived);
    for counts in directions {
        assert_eq!(counts.sent + counts.failed, counts.received - counts.dropped + counts.duplicated);
        assert_eq!((counts.failed, counts.overruns), (0, 0));
    }
    // The way back carries only what B's stack says about what it got.
    (arrived, directions[0])
}

fn payload(number: u32) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend((4..PAYLOAD_LEN).map(|index| (index as u32 * 31 + number) as u8));
    bytes
}

fn base() -> Faults {
    Faults { seed: 2024, ..Faults::default() }
}

#[test]
fn without_faults_everything_arrives_in_order() {
    if skip() {
        return;
    }
    let (arrived, _) = cross(base(), Family::V6);
    assert_eq!(arrived, (0..COUNT).collect::<Vec<_>>());
}

#[test]
fn dropped_frames_are_missing_and_counted() {
    if skip() {
        return;
    }
    let (arrived, counts) = cross(Faults { drop: 100, ..base() }, Family::V4);
    assert!((120..280).contains(&counts.dropped), "{counts:?}");
    assert_eq!(arrived.len() as u64, u64::from(COUNT) - counts.dropped);
    assert!(arrived.is_sorted());
}

#[test]
fn duplicated_frames_arrive_twice() {
    if skip() {
        return;
    }
    let (arrived, counts) = cross(Faults { duplicate: 100, ..base() }, Family::V6);
    assert!((120..280).contains(&counts.duplicated), "{counts:?}");
    assert_eq!(arrived.len() as u64, u64::from(COUNT) + counts.duplicated);
    assert!(arrived.is_sorted());
}

#[test]
fn reordered_frames_all_arrive_out_of_order() {
    if skip() {
        return;
    }
    let (mut arrived, counts) = cross(Faults { reorder: 100, ..base() }, Family::V4);
    assert!((100..280).contains(&counts.reordered), "{counts:?}");
    assert!(!arrived.is_sorted());
    arrived.sort_unstable();
    assert_eq!(arrived, (0..COUNT).collect::<Vec<_>>());
}

#[test]
fn damage_under_a_checksum_is_never_delivered() {
    if skip() {
        return;
    }
    for family in Family::ALL {
        let (arrived, counts) = cross(Faults { damage: 200, ..base() }, *family);
        assert!((300..500).contains(&counts.damaged), "{counts:?}");
        assert_eq!(arrived.len() as u64, u64::from(COUNT) - counts.damaged);
    }
}

#[test]
fn all_faults_together_deliver_only_what_was_sent() {
    if skip() {
        return;
    }
    let faults = Faults { drop: 30, duplicate: 30, reorder: 30, damage: 30, area: DamageArea::Anywhere, ..base() };
    let (arrived, counts) = cross(faults, Family::V4);
    assert!(counts.dropped > 0 && counts.duplicated > 0 && counts.reordered > 0 && counts.damaged > 0, "{counts:?}");
    assert!(arrived.len() as u64 <= u64::from(COUNT) - counts.dropped + counts.duplicated);
}
