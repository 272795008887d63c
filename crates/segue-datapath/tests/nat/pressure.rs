//! Tests of a translator under attack: floods of mappings from inside, packets from outside that try to keep mappings
//! alive, and forged resets.

use segue::time::Nanos;
use segue_datapath::nat::{Config, Nat, Protocol, Refusal, TcpState};
use segue_testkit::build::L4;
use segue_testkit::oracle;

use super::{CLIENT, Endpoint, OUTSIDE, SECOND, SERVER, Talk, echo, into, judge, nat, out, tcp, udp};

const STRANGER: Endpoint = ([198, 19, 7, 7], 9999);

/// Sends a UDP packet to the server through the NAT; returns the outside port.
fn query(nat: &mut Nat, from: Endpoint, now: u64) -> Result<u16, Refusal> {
    let left = out(nat, &udp(from, SERVER, 1), now)?;
    let oracle::Report { transport, .. } = judge(&left);
    Ok(transport.unwrap().ports.0)
}

/// Sends a UDP packet to the server, which answers.
fn query_once(nat: &mut Nat, from: Endpoint, now: u64) -> Result<(), Refusal> {
    let port = query(nat, from, now)?;
    into(nat, &udp(SERVER, (OUTSIDE, port), 1), now).map(drop)
}

/// Sends a UDP packet to the server, which answers, and another one, so that the mapping is kept.
fn query_and_answer(nat: &mut Nat, from: Endpoint, now: u64) -> Result<(), Refusal> {
    query_once(nat, from, now)?;
    query(nat, from, now).map(drop)
}

#[test]
fn one_station_with_many_sources_keeps_no_other_host_from_new_flows() {
    let mut nat = nat(|_| ());
    let honest = |port| ([198, 18, 1, 1], port);
    for port in 1..=500 {
        query_and_answer(&mut nat, honest(port), 0).unwrap();
    }
    // More than there are ports, while the honest host opens a flow now and then.
    let (mut flow, mut opened) = (500, 0);
    for number in 0..100_000_u32 {
        let source = [198, 18, 0, number as u8];
        query(&mut nat, (source, (number >> 8) as u16 + 1), u64::from(number) * 100_000).unwrap();
        if number % 100 == 0 {
            flow += 1;
            opened += u32::from(query_and_answer(&mut nat, honest(flow), u64::from(number) * 100_000).is_ok());
        }
    }
    assert_eq!(opened, 1000);
    let alive = nat.mappings(Nanos(10 * SECOND)).filter(|one| one.inside.0 == 0xc612_0101).count();
    assert_eq!(alive, 1500, "no flow that was answered and went on gave way");
    assert!(nat.early_drops() > 30_000 && nat.len() <= 65_536, "{} of {}", nat.early_drops(), nat.len());
}

#[test]
fn a_flood_that_is_answered_gives_way_to_hosts_with_fewer_mappings() {
    let mut nat = nat(|config| (config.most, config.most_per_host) = (1000, 300));
    for number in 0..1000_u32 {
        let source = ([198, 18, 0, (number % 4) as u8 + 1], (number / 4) as u16 + 1);
        query_and_answer(&mut nat, source, 0).unwrap();
    }
    let honest = |port| ([198, 18, 1, 1], port);
    for port in 1..=100 {
        query_and_answer(&mut nat, honest(port), SECOND).unwrap();
    }
    let alive = nat.mappings(Nanos(SECOND)).filter(|one| one.inside.0 == 0xc612_0101).count();
    assert_eq!((alive, nat.len(), nat.early_drops()), (100, 1000, 100));
    // One of the flooding hosts has as many as the others, and they do not give way to it.
    for port in 251..=300 {
        let refused = query_and_answer(&mut nat, ([198, 18, 0, 1], port), SECOND).is_err();
        let count = |host: u32| nat.mappings(Nanos(SECOND)).filter(|one| one.inside.0 == 0xc612_0000 + host).count();
        assert!(refused || count(1) <= (2..=4).map(count).max().unwrap() + 1);
    }
}

#[test]
fn open_tcp_connections_and_configured_ports_never_give_way() {
    let mut nat = nat(|config| (config.most, config.most_per_host) = (50, 49));
    nat.forward(Protocol::Udp, 53, (std::net::Ipv4Addr::from(CLIENT.0), 53)).unwrap();
    for port in 1..=49 {
        let (client, outside) = ((CLIENT.0, port + 100), (OUTSIDE, port + 1100));
        let left = out(&mut nat, &tcp(client, SERVER, 2, 0), 0);
        let Ok(left) = left else {
            assert_eq!((left.err(), port), (Some(Refusal::HostFull), 49));
            continue;
        };
        let outside = (outside.0, judge(&left).transport.unwrap().ports.0);
        let mut answer = tcp(SERVER, outside, 0x12, 0);
        if let L4::Tcp(header) = &mut answer.l4 {
            header.ack = 8;
        }
        into(&mut nat, &answer, 0).unwrap();
        out(&mut nat, &tcp(client, SERVER, 0x10, 0), 0).unwrap();
    }
    let open = |nat: &Nat| {
        let tcp = nat.mappings(Nanos(SECOND)).filter(|one| one.protocol == Protocol::Tcp);
        tcp.filter(|one| one.connections.state() == TcpState::Open).count()
    };
    assert_eq!((open(&nat), nat.len()), (48, 49));
    // The last place is for the flows of all others, one after the other.
    for port in 1..=9 {
        query(&mut nat, ([198, 18, 0, 9], port), SECOND).unwrap();
    }
    assert_eq!((open(&nat), nat.len(), nat.early_drops()), (48, 50, 8));
    assert_eq!(nat.mappings(Nanos(SECOND)).filter(|one| one.is_static).count(), 1);
    query_and_answer(&mut nat, ([198, 18, 0, 9], 9), SECOND).unwrap();
    assert_eq!(query(&mut nat, ([198, 18, 0, 9], 10), SECOND), Err(Refusal::Full));
}

/// Sends a TCP segment from one inside host to another by the outside address, or to the server.
fn segment(nat: &mut Nat, from: Endpoint, to: Endpoint, flags: u8) -> Result<u16, Refusal> {
    let mut packet = super::load(&tcp(from, to, flags, 0).bytes());
    nat.outbound(&mut packet, Nanos(0), &mut super::copy)?;
    let bytes = super::bytes(&packet);
    Ok(u16::from_be_bytes([bytes[20], bytes[21]]))
}

/// Opens a TCP connection between two inside hosts by their outside ports.
fn hairpin(nat: &mut Nat, [(one, port), (other, other_port)]: [(Endpoint, u16); 2]) {
    for (from, to, flags) in [(one, other_port, 2), (other, port, 0x12), (one, other_port, 0x10)] {
        segment(nat, from, (OUTSIDE, to), flags).unwrap();
    }
}

/// Opens a TCP connection to the server.
fn connect(nat: &mut Nat, from: Endpoint) -> Result<(), Refusal> {
    let port = segment(nat, from, SERVER, 2)?;
    into(nat, &tcp(SERVER, (OUTSIDE, port), 0x12, 0), 0)?;
    segment(nat, from, SERVER, 0x10).map(drop)
}

fn open_of(nat: &Nat, host: [u8; 4]) -> usize {
    let of_host = nat.mappings(Nanos(0)).filter(|one| one.inside.0 == u32::from_be_bytes(host));
    of_host.filter(|one| one.connections.state() == TcpState::Open).count()
}

/// Tests that one station with eight addresses, which are as many hosts as the table has room for, cannot take the
/// table or all ports of TCP with connections among its own addresses, however many of them belong to one mapping.
#[test]
fn connections_among_inside_hosts_give_way_to_hosts_with_fewer_mappings() {
    const PER_HOST: u16 = 50;
    let most = 8 * usize::from(PER_HOST);
    for (most, last) in [(most, u16::MAX), (2 * most, 1023 + most as u16)] {
        let mut nat = nat(|config| {
            (config.most, config.most_per_host, config.ports) = (most, usize::from(PER_HOST), (1024, last));
        });
        for port in 1..=PER_HOST {
            let hosts = [1, 2, 3, 4, 5, 6, 7, 8].map(|host| ([198, 18, 0, host], port));
            let hosts = hosts.map(|host| (host, segment(&mut nat, host, SERVER, 2).unwrap()));
            // Each has more connections than are tracked.
            for (at, one) in hosts.iter().enumerate() {
                hosts[..at].iter().for_each(|other| hairpin(&mut nat, [*one, *other]));
            }
        }
        assert_eq!(nat.len(), 8 * usize::from(PER_HOST), "all are in use");
        assert_eq!((1..=8).map(|host| open_of(&nat, [198, 18, 0, host])).sum::<usize>(), nat.len());
        let honest = [198, 18, 1, 1];
        for port in 1..=20 {
            connect(&mut nat, (honest, port)).unwrap();
        }
        query_and_answer(&mut nat, (honest, 21), 0).unwrap();
        assert_eq!(open_of(&nat, honest), 20);
        // A host with as many as the others takes none from them, and none takes an open one to the outside.
        for host in 1..=8 {
            for port in 1001..=1100 {
                let _ = connect(&mut nat, ([198, 18, 0, host], port));
            }
        }
        assert_eq!(open_of(&nat, honest), 20);
    }
}

#[test]
fn a_connection_between_inside_hosts_stays_while_there_is_room() {
    let mut nat = nat(|config| config.most = 50);
    let (one, other) = (CLIENT, ([198, 18, 0, 2], 2000));
    let [port, other_port] = [one, other].map(|host| segment(&mut nat, host, SERVER, 2).unwrap());
    hairpin(&mut nat, [(one, port), (other, other_port)]);
    for number in 1..=200 {
        query(&mut nat, ([198, 18, 0, number], 9), 0).unwrap();
    }
    assert_eq!((open_of(&nat, one.0), open_of(&nat, other.0)), (1, 1));
    assert_eq!(segment(&mut nat, one, (OUTSIDE, other_port), 0x18), Ok(port));
    assert_eq!(segment(&mut nat, other, (OUTSIDE, port), 0x18), Ok(other_port));
}

#[test]
fn limits_may_change_while_mappings_are_there() {
    let mut nat = nat(|_| ());
    for port in 1..=100 {
        query(&mut nat, (CLIENT.0, port), 0).unwrap();
    }
    nat.limit(50, 10);
    query(&mut nat, (CLIENT.0, 200), 0).unwrap();
    assert!(nat.len() <= 100, "{}", nat.len());
    nat.limit(200, 200);
    for port in 300..=350 {
        query(&mut nat, (CLIENT.0, port), 0).unwrap();
    }
    assert!(nat.len() > 140, "{}", nat.len());
}

#[test]
fn inbound_packets_do_not_refresh_a_mapping() {
    // The server itself, and a stranger, try it all the time (RFC 4787, REQ-6).
    for from in [SERVER, STRANGER] {
        let mut nat = nat(|_| ());
        query(&mut nat, CLIENT, 0).unwrap();
        let knock = udp(from, (OUTSIDE, CLIENT.1), 1);
        let last = (1..1000).take_while(|second| into(&mut nat, &knock, second * SECOND).is_ok()).last();
        assert_eq!(last, Some(300));
    }
    // A TCP mapping that is open, closed by both sides, and reset. The inside host answers strangers by resets.
    let begin = [(true, 2), (false, 0x12), (true, 0x10)];
    for (more, seconds) in
        [(&[][..], 7440), (&[(true, 0x11), (false, 0x11), (true, 0x10)], 240), (&[(false, 0x14)], 240)]
    {
        for (from, flags) in [(STRANGER, 0x10), (STRANGER, 2), (SERVER, 2), (SERVER, 0x18), (SERVER, 0x14)] {
            let (mut nat, mut talk) = (nat(|_| ()), Talk::default());
            for (is_outbound, flags) in begin.iter().chain(more) {
                talk.send(&mut nat, *is_outbound, SERVER, *flags, 0, 0).unwrap();
            }
            let mut knock = tcp(from, (OUTSIDE, CLIENT.1), flags, 5);
            if let L4::Tcp(header) = &mut knock.l4 {
                header.seq = 0x7777_7777;
            }
            let mut last = 0;
            for second in (10..8000).step_by(10) {
                if into(&mut nat, &knock, second * SECOND).is_err() {
                    break;
                }
                last = second;
                let mut reset = tcp(CLIENT, from, 4, 0);
                if let L4::Tcp(header) = &mut reset.l4 {
                    header.seq = 0x5555_5555;
                }
                out(&mut nat, &reset, second * SECOND).unwrap();
            }
            assert_eq!(last, seconds, "{flags:x} from {from:?} after {more:x?}");
        }
    }
}

/// Tests that an outside host can neither keep a mapping of ICMP queries by queries of its own, which the inside host
/// would answer, nor make one by queries to the inside host's own address (RFC 5508, REQ-1: queries come from inside).
#[test]
fn queries_from_outside_are_refused_and_replies_from_inside_make_and_keep_no_mapping() {
    // Echo and timestamp.
    for (query, reply) in [(8, 0), (13, 14)] {
        let mut nat = nat(|_| ());
        assert_eq!(out(&mut nat, &echo(CLIENT.0, STRANGER.0, reply, 7777), 0), Err(Refusal::NoMapping));
        assert_eq!(nat.len(), 0);
        out(&mut nat, &echo(CLIENT.0, SERVER.0, query, 7777), 0).unwrap();
        let mut last = 0;
        for second in (10..1000).step_by(10) {
            let now = second * SECOND;
            for from in [SERVER.0, STRANGER.0] {
                assert_eq!(into(&mut nat, &echo(from, OUTSIDE, query, 7777), now), Err(Refusal::NoMapping), "{query}");
                assert_eq!(out(&mut nat, &echo(CLIENT.0, from, reply, 7777), now), Err(Refusal::NoMapping), "{reply}");
            }
            if into(&mut nat, &echo(SERVER.0, OUTSIDE, reply, 7777), now).is_ok() {
                last = second;
            }
        }
        assert_eq!(last, 60, "{query}");
    }
}

/// Tests that a reset, which may answer what came to the inside host's own address, makes no mapping, and passes where
/// there is one.
#[test]
fn a_reset_makes_no_mapping() {
    let mut nat = nat(|_| ());
    for flags in [4, 0x14] {
        for to in [STRANGER, (OUTSIDE, 9)] {
            assert_eq!(out(&mut nat, &tcp(CLIENT, to, flags, 0), 0), Err(Refusal::NoMapping), "{flags:x} {to:?}");
        }
    }
    assert_eq!(nat.len(), 0);
    out(&mut nat, &tcp(CLIENT, SERVER, 2, 0), 0).unwrap();
    assert!(out(&mut nat, &tcp(CLIENT, SERVER, 0x14, 0), 0).is_ok());
    // Of one that has ended it makes no new one.
    assert_eq!(out(&mut nat, &tcp(CLIENT, SERVER, 4, 0), 241 * SECOND), Err(Refusal::NoMapping));
}

/// Tests that a host with very many single queries, such as a resolver, never comes to its limit, and that they take no
/// flow that goes on.
#[test]
fn a_query_of_udp_that_was_answered_gives_way_and_a_flow_that_goes_on_does_not() {
    for (most, most_per_host) in [(100, 4), (4, 100)] {
        let mut nat = nat(|config| (config.most, config.most_per_host) = (most, most_per_host));
        query_and_answer(&mut nat, CLIENT, 0).unwrap();
        for port in 1..=20 {
            query_once(&mut nat, (CLIENT.0, port), u64::from(port)).unwrap();
        }
        let mut ports: Vec<u16> = nat.mappings(Nanos(20)).map(|mapping| mapping.inside.1).collect();
        ports.sort_unstable();
        assert_eq!((ports, nat.early_drops()), (vec![18, 19, 20, CLIENT.1], 17), "{most} {most_per_host}");
    }
}

/// Tests that queries that were answered take no flow of UDP from their host, or from others, however many there are.
#[test]
fn answered_icmp_queries_give_way_to_new_mappings() {
    for (most, most_per_host) in [(100, 4), (4, 100)] {
        let mut nat = nat(|config| (config.most, config.most_per_host) = (most, most_per_host));
        for id in 1..=9 {
            let left = out(&mut nat, &echo(CLIENT.0, SERVER.0, 8, id), u64::from(id)).unwrap();
            let outside = u16::from_be_bytes([left[24], left[25]]);
            into(&mut nat, &echo(SERVER.0, OUTSIDE, 0, outside), u64::from(id)).unwrap();
            out(&mut nat, &echo(CLIENT.0, SERVER.0, 8, id), u64::from(id)).unwrap();
        }
        assert_eq!((nat.len(), nat.early_drops()), (4, 5), "{most} {most_per_host}");
        query(&mut nat, CLIENT, 10).unwrap();
        assert_eq!((nat.len(), nat.early_drops()), (4, 6), "{most} {most_per_host}");
    }
}

/// Returns a NAT with an open connection to the server.
fn opened() -> (Nat, Talk) {
    let (mut nat, mut talk) = (nat(|_| ()), Talk::default());
    for (is_outbound, flags, len) in
        [(true, 2, 0), (false, 0x12, 0), (true, 0x10, 0), (true, 0x18, 90), (false, 0x18, 4000)]
    {
        talk.send(&mut nat, is_outbound, SERVER, flags, len, 0).unwrap();
    }
    (nat, talk)
}

fn state(nat: &Nat) -> TcpState {
    nat.mappings(Nanos(0)).next().unwrap().connections.state()
}

#[test]
fn a_reset_counts_only_with_the_number_that_its_receiver_expects() {
    // From outside (RFC 5961, section 3.2): the number directly after what was sent, or what the client has
    // acknowledged.
    let (_, talk) = opened();
    let [_, next] = talk.0[&SERVER];
    for (seq, is_right) in [
        (next, true),
        (next.wrapping_sub(1), false),
        (next.wrapping_add(1), false),
        (0, false),
        (next ^ 0x8000_0000, false),
    ] {
        for flags in [4, 0x14] {
            let (mut nat, _) = opened();
            let mut reset = tcp(SERVER, (OUTSIDE, CLIENT.1), flags, 0);
            if let L4::Tcp(header) = &mut reset.l4 {
                (header.seq, header.ack) = (seq, 1091);
            }
            into(&mut nat, &reset, 0).unwrap();
            let expected = if is_right { TcpState::Closing } else { TcpState::Open };
            assert_eq!(state(&nat), expected, "{seq:x}, expected {next:x}");
        }
    }
    // A forged segment does not lead up to a reset that follows it.
    let (mut nat, _) = opened();
    for (flags, seq, len) in [(0x18, 0x7777_0000_u32, 100), (4, 0x7777_0000 + 100, 0)] {
        let mut forged = tcp(SERVER, (OUTSIDE, CLIENT.1), flags, len);
        if let L4::Tcp(header) = &mut forged.l4 {
            header.seq = seq;
        }
        into(&mut nat, &forged, 0).unwrap();
        assert_eq!(state(&nat), TcpState::Open);
    }
    // Segments were lost in front of the translator: the client's acknowledgment says what is expected.
    let (mut nat, mut talk) = opened();
    drop(talk.segment(false, SERVER, 0x18, 3000));
    talk.send(&mut nat, false, SERVER, 0x18, 3000, 0).unwrap();
    let mut reset = talk.segment(false, SERVER, 0x14, 0);
    into(&mut nat, &reset, 0).unwrap();
    assert_eq!(state(&nat), TcpState::Open);
    talk.send(&mut nat, true, SERVER, 0x10, 0, 0).unwrap();
    into(&mut nat, &reset, 0).unwrap();
    assert_eq!(state(&nat), TcpState::Closing);
    // From inside, the client's own number, also where the translator has missed some of its segments.
    let (mut nat, mut talk) = opened();
    drop(talk.segment(true, SERVER, 0x18, 3000));
    reset = talk.segment(true, SERVER, 0x14, 0);
    if let L4::Tcp(header) = &mut reset.l4 {
        header.seq ^= 0x4000_0000;
    }
    out(&mut nat, &reset, 0).unwrap();
    assert_eq!(state(&nat), TcpState::Open);
    talk.send(&mut nat, true, SERVER, 0x14, 0, 0).unwrap();
    assert_eq!(state(&nat), TcpState::Closing);
}

#[test]
fn a_refused_connection_is_closed_by_the_answer_to_its_syn() {
    for (ack, expected) in [(1001, TcpState::Closing), (1000, TcpState::Opening), (7, TcpState::Opening)] {
        let (mut nat, mut talk) = (nat(|_| ()), Talk::default());
        talk.send(&mut nat, true, SERVER, 2, 0, 0).unwrap();
        let mut refusal = tcp(SERVER, (OUTSIDE, CLIENT.1), 0x14, 0);
        if let L4::Tcp(header) = &mut refusal.l4 {
            (header.seq, header.ack) = (0, ack);
        }
        into(&mut nat, &refusal, 0).unwrap();
        assert_eq!(state(&nat), expected, "{ack}");
    }
}

/// Tests that ranges of one, two and three ports are used to their last port, wherever the search begins.
#[test]
fn every_port_of_a_small_range_is_found() {
    for (count, seed) in (1..=3_u16).flat_map(|count| (0..8).map(move |seed| (count, seed))) {
        let ports = (40_000, 39_999 + count);
        let mut nat = Nat::new(Config { ports, ..Config::new(OUTSIDE.into(), seed) });
        let mut seen: Vec<u16> =
            (0..count).map(|host| query(&mut nat, ([198, 18, 0, 1 + host as u8], 5555), 0).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (40_000..40_000 + count).collect::<Vec<_>>(), "seed {seed}");
    }
}
