use std::net::Ipv4Addr;

use segue::wire::tcp::{ACK, SYN};

use super::super::connections::Segment;
use super::*;

/// Addresses of three inside hosts and of an outside server.
const A: u32 = 1;
const B: u32 = 2;
const C: u32 = 3;
const SERVER: u32 = 77;
/// The usual range of outside ports.
const PORTS: (u16, u16) = (1024, 65_535);

fn new(most: usize, most_per_host: usize, ports: (u16, u16)) -> Table {
    Table::new(Config { most, most_per_host, ports, ..Config::new(Ipv4Addr::new(198, 19, 9, 9), 7) })
}

fn seen(is_outbound: bool, flags: u8, seq: u32, ack: u32) -> ObservedPacket {
    ObservedPacket {
        remote: (SERVER, 80),
        is_hairpin: false,
        segment: Segment { flags, seq, ack, len: 0 },
        is_outbound,
    }
}

/// Sends a datagram from inside, which the server answers at once if `is_answered`, and then another one.
fn udp(table: &mut Table, inside: (u32, u16), now: u64, is_answered: bool) -> Result<u16, Refusal> {
    let port = table.outbound(Protocol::Udp, inside, seen(true, 0, 0, 0), Nanos(now))?;
    if is_answered {
        assert!(table.by_outside(Protocol::Udp, port, Nanos(now), Some(seen(false, 0, 0, 0))).is_some());
        assert_eq!(table.outbound(Protocol::Udp, inside, seen(true, 0, 0, 0), Nanos(now)), Ok(port));
    }
    Ok(port)
}

/// Opens a TCP connection from inside.
fn open(table: &mut Table, inside: (u32, u16), now: u64) -> u16 {
    let port = table.outbound(Protocol::Tcp, inside, seen(true, SYN, 100, 0), Nanos(now)).unwrap();
    assert!(table.by_outside(Protocol::Tcp, port, Nanos(now), Some(seen(false, SYN | ACK, 500, 101))).is_some());
    assert_eq!(table.outbound(Protocol::Tcp, inside, seen(true, ACK, 101, 501), Nanos(now)), Ok(port));
    port
}

fn insides(table: &Table, now: u64) -> Vec<(u32, u16)> {
    let mut all: Vec<(u32, u16)> = table.all(Nanos(now)).map(|mapping| mapping.inside).collect();
    all.sort_unstable();
    all
}

/// Tests that mappings end a nanosecond after the timeout of their protocol and state (RFC 4787, REQ-5; RFC 5382,
/// REQ-5; RFC 5508, REQ-2).
#[test]
fn a_mapping_lives_as_long_as_its_timeout_and_a_configured_one_for_ever() {
    let timeouts = Config::new(Ipv4Addr::UNSPECIFIED, 0).timeouts;
    for (protocol, flags, life) in [
        (Protocol::Udp, 0, timeouts.udp),
        (Protocol::Icmp, 0, timeouts.icmp),
        (Protocol::Tcp, SYN, timeouts.tcp_transitory),
    ] {
        let mut table = new(9, 9, PORTS);
        let port = table.outbound(protocol, (A, 5000), seen(true, flags, 100, 0), Nanos(3)).unwrap();
        for (now, is_there) in [(3 + life, true), (4 + life, false)] {
            assert_eq!(table.by_inside(protocol, (A, 5000), Nanos(now)).is_some(), is_there, "{protocol:?} {now}");
            assert_eq!(table.all(Nanos(now)).count(), usize::from(is_there), "{protocol:?} {now}");
            assert_eq!(table.by_outside(protocol, port, Nanos(now), None).is_some(), is_there, "{protocol:?} {now}");
        }
        assert_eq!(table.len(), 0, "what is over is removed where it is found");
    }
    let mut table = new(9, 9, PORTS);
    open(&mut table, (A, 5000), 3);
    table.forward(Protocol::Udp, 53, (A, 53)).unwrap();
    assert_eq!(insides(&table, 3 + timeouts.tcp_open), [(A, 53), (A, 5000)]);
    assert_eq!(insides(&table, 4 + timeouts.tcp_open), [(A, 53)]);
    assert_eq!(insides(&table, u64::MAX), [(A, 53)]);
}

/// Tests that only packets from inside, except resets, keep a mapping alive (RFC 4787, REQ-6).
#[test]
fn packets_from_outside_and_resets_are_counted_and_keep_nothing() {
    let mut table = new(9, 9, PORTS);
    let port = table.outbound(Protocol::Tcp, (A, 5000), seen(true, SYN, 100, 0), Nanos(1)).unwrap();
    let state = |table: &Table| {
        let mapping = table.by_inside(Protocol::Tcp, (A, 5000), Nanos(9)).unwrap();
        (mapping.last.0, mapping.packets)
    };
    assert_eq!(state(&table), (1, [1, 0]));
    table.by_outside(Protocol::Tcp, port, Nanos(5), Some(seen(false, SYN | ACK, 500, 101)));
    assert_eq!(state(&table), (1, [1, 1]));
    table.outbound(Protocol::Tcp, (A, 5000), seen(true, ACK, 101, 501), Nanos(6)).unwrap();
    assert_eq!(state(&table), (6, [2, 1]));
    table.outbound(Protocol::Tcp, (A, 5000), seen(true, RST, 101, 0), Nanos(9)).unwrap();
    assert_eq!(state(&table), (6, [3, 1]));
    // A look is no packet.
    table.by_outside(Protocol::Tcp, port, Nanos(9), None);
    assert_eq!(state(&table), (6, [3, 1]));
}

/// Tests that a host at its limit of mappings loses the least recently used one without a reply, as with Linux's
/// `early_drop`.
#[test]
fn a_host_at_its_limit_gives_up_its_own_oldest_mapping_that_nobody_answered() {
    let mut table = new(99, 2, PORTS);
    for (at, inside) in [(A, 2001), (A, 2002), (B, 2003), (A, 2001)].into_iter().enumerate() {
        udp(&mut table, inside, at as u64, false).unwrap();
    }
    udp(&mut table, (A, 2004), 4, false).unwrap();
    assert_eq!((insides(&table, 4), table.early_drops()), (vec![(A, 2001), (A, 2004), (B, 2003)], 1));
    for port in [2001, 2004] {
        udp(&mut table, (A, port), 5, true).unwrap();
    }
    assert_eq!(udp(&mut table, (A, 2005), 6, false), Err(Refusal::HostFull));
    assert_eq!(udp(&mut table, (B, 2005), 6, false), Ok(2005));
    assert_eq!((table.len(), table.early_drops()), (4, 1));
}

#[test]
fn a_full_table_gives_up_the_oldest_of_all_that_nobody_answered_and_then_one_of_a_host_with_more() {
    let mut table = new(2, 9, PORTS);
    for (at, host) in [A, B, C].into_iter().enumerate() {
        udp(&mut table, (host, 2001), at as u64, false).unwrap();
    }
    assert_eq!((insides(&table, 2), table.early_drops()), (vec![(B, 2001), (C, 2001)], 1));
    for host in [B, C] {
        udp(&mut table, (host, 2001), 3, true).unwrap();
    }
    // Both hosts have one: neither has more than the other, and both have more than a new one.
    assert_eq!(udp(&mut table, (B, 2002), 4, false), Err(Refusal::Full));
    assert_eq!((table.len(), table.early_drops()), (2, 1));
    assert!(udp(&mut table, (A, 2002), 5, false).is_ok());
    assert_eq!((table.len(), table.early_drops()), (2, 2));
}

/// Tests that neither an open TCP connection (RFC 5382, REQ-5) nor a configured mapping is evicted.
#[test]
fn connections_and_configured_mappings_give_way_to_nothing() {
    let mut table = new(1, 9, PORTS);
    open(&mut table, (A, 5000), 0);
    assert_eq!(udp(&mut table, (B, 2001), 1, false), Err(Refusal::Full));
    let mut table = new(1, 9, PORTS);
    table.forward(Protocol::Udp, 53, (A, 53)).unwrap();
    assert_eq!(udp(&mut table, (B, 2001), 1, false), Err(Refusal::Full));
    assert_eq!(table.forward(Protocol::Udp, 54, (A, 54)), Err(Refusal::Full));
    assert_eq!(table.forward(Protocol::Udp, 53, (A, 54)), Err(Refusal::Ports), "the outside port is taken");
    assert_eq!(table.forward(Protocol::Udp, 54, (A, 53)), Err(Refusal::Ports), "the inside port is taken");
    assert_eq!((table.len(), table.early_drops()), (1, 0));
}

/// Tests that the inside port is kept where it is in the range and free (RFC 4787, section 4.2.1).
#[test]
fn the_inside_port_is_kept_where_it_can_be() {
    let mut table = new(99, 99, (5000, 5001));
    assert_eq!(udp(&mut table, (A, 5001), 0, true), Ok(5001));
    assert_eq!(udp(&mut table, (B, 5001), 0, true), Ok(5000));
    assert_eq!(udp(&mut table, (A, 5002), 0, false), Err(Refusal::Ports), "both are in use, and no host has more");
    let over = Config::new(Ipv4Addr::UNSPECIFIED, 0).timeouts.udp + 1;
    assert_eq!(udp(&mut table, (C, 5001), over, false), Ok(5001));
    for port in [4999, 5002] {
        let mut table = new(99, 99, (5000, 5001));
        let found = udp(&mut table, (A, port), 0, false).unwrap();
        assert!((5000..=5001).contains(&found), "{found} for {port}");
        // The only one that is left, and then that of the mapping without an answer.
        let other = udp(&mut table, (B, port), 1, true).unwrap();
        assert_eq!(other, 10_001 - found);
        assert_eq!((udp(&mut table, (C, port), 2, false), table.early_drops()), (Ok(found), 1));
    }
    assert_eq!(udp(&mut new(99, 99, (5001, 5000)), (A, 5000), 0, false), Err(Refusal::Ports), "no port at all");
}

#[test]
fn a_sweep_looks_at_as_many_places_as_it_may_and_goes_on_where_it_ended() {
    let life = Config::new(Ipv4Addr::UNSPECIFIED, 0).timeouts.udp;
    let mut table = new(9, 9, PORTS);
    table.sweep(Nanos(0), 5);
    for port in [2001, 2002, 2003] {
        udp(&mut table, (A, port), 0, false).unwrap();
    }
    for (now, count, left) in [(life, 99, 3), (life + 1, 0, 3), (life + 1, 1, 2), (life + 1, 1, 1), (life + 1, 9, 0)] {
        table.sweep(Nanos(now), count);
        assert_eq!(table.len(), left, "{count} at {now}");
    }
    assert!(table.hosts.is_empty() && table.inside.is_empty() && table.outside.is_empty());
}

/// Tests that a flood of packets that find no room, in a table of connections that never give way, examines the table
/// no more often than a single packet.
#[test]
fn packets_that_find_no_room_look_for_ended_mappings_once_in_a_millisecond() {
    let life = Config::new(Ipv4Addr::UNSPECIFIED, 0).timeouts.tcp_open;
    let mut table = new(300, 999, PORTS);
    for port in 2000..2300 {
        open(&mut table, (A, port), 0);
    }
    for (now, cursor) in [(5, 256), (4 + SWEEP_INTERVAL, 256), (5 + SWEEP_INTERVAL, 2 * 256 - 300)] {
        for port in 1..=1000 {
            assert_eq!(udp(&mut table, (B, port), now, false), Err(Refusal::Full));
        }
        assert_eq!(table.cursor, cursor, "{now}");
    }
    // What has ended makes room for more than one.
    for port in 1..=256 {
        assert!(udp(&mut table, (B, port), life + 1, false).is_ok(), "{port}");
    }
    assert_eq!((table.len(), table.early_drops()), (300, 0));
}

/// Tests that keys with the same hash of 32 bits are told apart: among so many ports there are some.
#[test]
fn mappings_whose_keys_have_the_same_hash_are_told_apart() {
    let all = |first: u16| {
        let ports = move |protocol| (first..=u16::MAX).step_by(2).map(move |port| (protocol, port));
        [Protocol::Tcp, Protocol::Udp, Protocol::Icmp].into_iter().flat_map(ports)
    };
    loop {
        let mut table = new(usize::MAX, usize::MAX, PORTS);
        all(0).for_each(|(protocol, port)| table.forward(protocol, port, (A, port)).unwrap());
        let is_of = |slot: u32, protocol| {
            let mapping = table.slots[slot as usize].as_ref();
            mapping.is_some_and(|one| one.protocol == protocol)
        };
        let outside = all(1).find(|key| table.outside.find(key, |slot| is_of(slot, key.0)).is_some());
        // One in about 130,000.
        let mut others = (B..).flat_map(|host| (0..=u16::MAX).map(move |port| (Protocol::Udp, (host, port))));
        let inside = others.find(|key| table.inside.find(key, |slot| is_of(slot, key.0)).is_some());
        // About every second table has both.
        let (Some((protocol, port)), Some((_, host))) = (outside, inside) else { continue };
        assert_eq!((table.slot_outside(protocol, port), table.slot_inside(Protocol::Udp, host)), (None, None));
        break;
    }
}
