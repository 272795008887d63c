//! Tests of the relay between two real hosts: datagrams that cross it show every fault type.

use std::net::UdpSocket;
use std::time::Duration;

use segue_lab::{Counts, DamageArea, Family, Faults, Host, Peer, Relay, reach, skip_this_test, unavailable};

const COUNT: u32 = 2000;
const PAYLOAD_LEN: usize = 600;

#[track_caller]
fn skip() -> bool {
    let why = unavailable();
    if let Some(why) = &why {
        skip_this_test(why);
    }
    why.is_some()
}

/// Sends numbered datagrams from A to B through the relay; returns the numbers that arrive intact, in order.
fn cross(faults: Faults, family: Family) -> (Vec<u32>, Counts) {
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    let relay = Relay::between(&a, &b).unwrap();
    let (from, to) = (Peer::A.address(0, family), Peer::B.address(0, family));
    reach((&a, from), (&b, to), Duration::from_secs(5)).unwrap();
    let [from_a, from_b] = relay.counts();
    let quiet = from_a.plus(from_b);
    assert_eq!((quiet.dropped, quiet.duplicated, quiet.reordered, quiet.damaged), (0, 0, 0, 0));

    let receiver = b.enter(|| UdpSocket::bind((to, 0))).unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    let sender = a.enter(|| UdpSocket::bind((from, 0))).unwrap().unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    relay.set_faults(faults);

    let mut arrived = Vec::new();
    let mut buffer = [0; 2048];
    let mut take = |wait: bool| {
        receiver.set_nonblocking(!wait).unwrap();
        while let Ok(len) = receiver.recv(&mut buffer) {
            let number = u32::from_be_bytes(buffer[..4].try_into().unwrap());
            assert_eq!(buffer[..len], payload(number), "a changed datagram was delivered");
            arrived.push(number);
        }
    };
    for number in 0..COUNT {
        sender.send(&payload(number)).unwrap();
        // The receiver's socket buffer is the bottleneck, and a loss there would be no fault of the relay.
        if number % 32 == 31 {
            std::thread::sleep(Duration::from_millis(1));
            take(false);
        }
    }
    take(true);
    let directions = relay.stop().unwrap();
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
