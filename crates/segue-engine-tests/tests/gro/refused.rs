//! Tests of packets that stay alone: each reason by itself, amid a flow that the packet must not overtake.

use segue::gro::{Flush, RefusalReason};
use segue::packet::{Csum, Gso, GsoKind, TrainCsum, Unit};
use segue_testkit::build::{Ethernet, Gre, Ip, L4, Remcsum, Shim, Tunnel, V4};

use crate::bench::{Stream, between, between_bytes, complete, run, tcp4, tcp6, tunnel, udp4, udp6, v4, wrap};

/// Declares a test for each scenario of three packets, the second of which is refused, and a table of all scenarios.
macro_rules! refused {
    ($($name:ident: $reason:ident = $scenario:expr;)+) => {
        const REFUSED: &[(RefusalReason, fn() -> Stream)] = &[$((RefusalReason::$reason, || $scenario)),+];
        $(#[test] fn $name() {
            let outcome = Stream::gives(&$scenario, &[1, 1, 1]);
            outcome.counts(&[(RefusalReason::$reason, 1)], &[(Flush::Order, 1), (Flush::PollEnd, 1)], &[]);
        })+
    };
}

refused! {
    a_fragment_stays_alone_behind_all_that_is_held: Fragment = between(tcp4(), |packet| {
        packet.ip = Ip::V4(V4 { fragment: Some((64, true)), df: false, ..V4::new(1, 1, 2) });
        packet.l4 = L4::Raw(6);
    });
    an_atomic_ipv6_fragment_stays_alone: Fragment = between(tcp6(), |packet| {
        if let Ip::V6(ip) = &mut packet.ip { ip.fragment = Some((7, 0, false)) }
    });
    a_tcp_header_longer_than_the_packet_stays_alone: Malformed = between_bytes(tcp4(), |bytes| {
        bytes.truncate(50);
        bytes[2..4].copy_from_slice(&[0, 50]);
        bytes[32] = 0xf0;
    });
    a_udp_length_beyond_the_packet_stays_alone: Malformed = between_bytes(udp4(), |bytes| bytes[24] = 1);
    a_runt_stays_alone: Malformed = between_bytes(tcp4(), |bytes| bytes.truncate(7));
    a_padded_frame_stays_alone: Padding = {
        let mut stream = between(tcp4(), |_| {}).ethernet();
        for (packet, _) in &mut stream.packets {
            *packet = Ethernet::default().wrap(packet);
        }
        stream.packets[1].0.extend([1, 2, 3, 4]);
        stream
    };
    a_udp_length_short_of_the_packet_stays_alone: Padding = between_bytes(udp4(), |bytes| bytes[25] -= 4);
    a_pure_acknowledgment_stays_alone: NoPayload = between(tcp4(), |packet| packet.data.clear());
    an_empty_datagram_stays_alone: NoPayload = between(udp6(), |packet| packet.data.clear());
    syn_stays_alone: TcpFlags = flags(0x02);
    rst_stays_alone: TcpFlags = flags(0x04);
    urg_stays_alone: TcpFlags = flags(0x20);
    ipv4_options_stay_alone: IpOptions = between(tcp4(), |packet| {
        if let Ip::V4(ip) = &mut packet.ip { ip.options = vec![1, 1, 1, 0] }
    });
    the_reserved_flag_of_ipv4_stays_alone: ReservedFlag = between_bytes(tcp4(), |bytes| {
        bytes[6] |= 0x80;
        ipv4_checksum(bytes, 0);
    });
    a_routing_header_with_stops_to_come_stays_alone: Routing = {
        // The destination in the header is not the one that the checksum covers; here it is made to fit, so that only
        // the rule keeps the packet out.
        let mut sender = tcp6();
        if let Ip::V6(ip) = &mut sender.next.ip { ip.extensions = vec![(43, vec![4, 0, 0, 0, 0, 0])] }
        between(sender, |packet| {
            if let Ip::V6(ip) = &mut packet.ip { ip.extensions = vec![(43, vec![4, 1, 0, 0, 0, 0])] }
        })
    };
    a_home_address_stays_alone: Routing = {
        // As above, with a checksum that fits the source in the header; the others have padding in the option's place.
        let mut sender = tcp6();
        let options = |first: &[u8], byte: u8| vec![(60, [first, &[byte; 16]].concat())];
        if let Ip::V6(ip) = &mut sender.next.ip { ip.extensions = options(&[1, 2, 0, 0, 1, 16], 0) }
        between(sender, |packet| {
            if let Ip::V6(ip) = &mut packet.ip { ip.extensions = options(&[1, 2, 0, 0, 0xc9, 16], 7) }
        })
    };
    a_source_route_stays_alone: IpOptions = between(tcp4(), |packet| {
        if let Ip::V4(ip) = &mut packet.ip { ip.options = vec![131, 7, 4, 198, 18, 0, 9, 0] }
    });
    a_wrong_ipv4_header_checksum_stays_alone: IpChecksum = between_bytes(tcp4(), |bytes| bytes[10] ^= 1);
    a_datagram_without_checksum_stays_alone: NoChecksum = between(udp4(), |packet| {
        if let L4::Udp(udp) = &mut packet.l4 { udp.checksum = false }
    });
    a_packet_known_to_be_bad_stays_alone: BadChecksum =
        between_bytes(tcp4(), |bytes| bytes[70] ^= 1).unit(1, Unit::Whole(Csum::Bad));
    a_wrong_tcp_checksum_stays_alone: BadChecksum = between_bytes(tcp4(), |bytes| bytes[70] ^= 1);
    a_wrong_udp_checksum_stays_alone: BadChecksum = between_bytes(udp6(), |bytes| bytes[70] ^= 1);
    a_wrong_outer_checksum_stays_alone: BadChecksum = {
        let mut stream = tunnelled(Shim::Gue(None), None);
        stream.packets[1].0[26] ^= 1;
        stream
    };
    a_wrong_gre_checksum_stays_alone: BadChecksum = {
        // Under an outer checksum that is right over it.
        let gre = Gre { checksum: true, ..Gre::default() };
        let mut stream = tunnelled(Shim::Fou, Some(gre));
        stream.packets[1].0[32] ^= 1;
        outer_checksum(&mut stream.packets[1].0);
        stream
    };
    a_remote_checksum_that_is_not_primed_stays_alone: BadChecksum = {
        let mut stream = tunnelled(Shim::Gue(Some(Remcsum::Transport)), None);
        // IPv4, UDP, GUE with option, IPv4: the checksum of TCP.
        stream.packets[1].0[20 + 8 + 12 + 20 + 16] ^= 1;
        outer_checksum(&mut stream.packets[1].0);
        stream
    };
    a_tcp_checksum_of_all_ones_stays_alone: NotCanonical = between_bytes(tcp4(), |bytes| {
        // With the checksum as a word of payload it becomes zero, of which all ones are the other form.
        bytes[60..62].fill(0);
        tcp_checksum(bytes);
        let checksum = [bytes[36], bytes[37]];
        bytes[60..62].copy_from_slice(&checksum);
        bytes[36..38].fill(0xff);
    });
    an_ipv4_checksum_of_all_ones_stays_alone: NotCanonical = between_bytes(tcp4(), |bytes| {
        bytes[4..6].fill(0);
        ipv4_checksum(bytes, 0);
        let checksum = [bytes[10], bytes[11]];
        bytes[4..6].copy_from_slice(&checksum);
        bytes[10..12].fill(0xff);
    });
    a_gre_flag_that_is_not_known_stays_alone_behind_all_that_is_held: Tunnel = {
        let mut stream = tunnelled(Shim::Fou, Some(Gre::default()));
        // Recursion control (RFC 1701) need not begin another flow.
        stream.packets[1].0[28] |= 1;
        outer_checksum(&mut stream.packets[1].0);
        stream
    };
    a_version_of_gue_that_is_not_known_stays_alone_behind_all_that_is_held: Tunnel = {
        let mut stream = tunnelled(Shim::Gue(None), None);
        stream.packets[1].0[28] |= 0x80;
        outer_checksum(&mut stream.packets[1].0);
        stream
    };
    a_remote_gre_checksum_stays_alone: Tunnel = {
        let gre = Gre { checksum: true, ..Gre::default() };
        let plain = tunnelled(Shim::Gue(None), Some(gre));
        let remote = tunnelled(Shim::Gue(Some(Remcsum::Gre)), Some(gre));
        replace(plain, remote)
    };
    a_gre_checksum_word_with_reserved_bits_stays_alone: Tunnel = {
        let gre = Gre { checksum: true, ..Gre::default() };
        let mut stream = tunnelled(Shim::Fou, Some(gre));
        let bytes = &mut stream.packets[1].0;
        bytes[28 + 7] = 1;
        bytes[28 + 4..28 + 6].fill(0);
        let checksum = !segue_testkit::sum::fold(&bytes[28..]);
        bytes[28 + 4..28 + 6].copy_from_slice(&checksum.to_be_bytes());
        outer_checksum(bytes);
        stream
    };
    a_remote_checksum_option_that_points_nowhere_stays_alone: Tunnel = {
        let plain = tunnelled(Shim::Gue(None), None);
        let mut remote = plain.clone();
        // An option with start 2 and offset 4 before an inner packet whose own checksum is right.
        let bytes = &mut remote.packets[1].0;
        bytes[28..32].copy_from_slice(&[2, 4, 0, 1]);
        bytes.splice(32..32, [0x80, 0, 0, 0, 0, 2, 0, 4]);
        lengthen(bytes, 8);
        replace(plain, remote)
    };
    a_remote_checksum_without_outer_checksum_stays_alone: RemoteUnprotected = {
        let remote = tunnelled(Shim::Gue(Some(Remcsum::Transport)), None);
        let mut naked = remote.clone();
        naked.packets[1].0[26..28].fill(0);
        replace(remote, naked)
    };
    a_train_stays_as_it_is: AlreadyTrain = between(tcp4(), |_| {}).unit(
        1,
        Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Tcp, size: 100, fixed_ids: 0 } },
    );
}

/// Declares a test for each scenario of packets that are refused regardless of held ones, so that none of their flow is
/// ever held.
macro_rules! refused_flow {
    ($($name:ident: $reason:ident = $scenario:expr;)+) => {
        const REFUSED_FLOWS: &[(RefusalReason, fn() -> Stream)] = &[$((RefusalReason::$reason, || $scenario)),+];
        $(#[test] fn $name() {
            let outcome = Stream::gives(&$scenario, &[1]);
            outcome.counts(&[(RefusalReason::$reason, 1)], &[], &[]);
        })+
    };
}

refused_flow! {
    icmp_stays_alone: Protocol = {
        let mut packet = tcp4().send(100, 0);
        packet.l4 = L4::Icmp(8, 0, [0, 1, 0, 2]);
        Stream::new([packet.bytes()])
    };
    pptp_stays_alone: Protocol = Stream::new([pptp()]);
    three_ip_levels_stay_alone: TooDeep = {
        let ipip = Tunnel { ip: Ip::V4(V4::new(2, 1, 2)), udp: None, gre: None, ethernet: None };
        Stream::new([ipip.wrap(&ipip.wrap(&run(&mut tcp4(), 1)[0]))])
    };
    twenty_ip_levels_stay_alone: TooDeep = {
        let ipip = Tunnel { ip: Ip::V4(V4::new(2, 1, 2)), udp: None, gre: None, ethernet: None };
        Stream::new([(0..20).fold(run(&mut tcp4(), 1).remove(0), |packet, _| ipip.wrap(&packet))])
    };
    a_gre_sequence_number_stays_alone: Tunnel = {
        let mut stream = tunnelled(Shim::Gue(None), Some(Gre { seq: Some(1), ..Gre::default() }));
        stream.packets.truncate(1);
        stream
    };
    a_transport_that_is_not_inside_ip_stays_alone: Tunnel = {
        // TCP directly after GUE, with a checksum that is right under the outer addresses.
        let mut packet = tunnelled(Shim::Gue(None), None).packets.remove(0).0;
        packet.drain(32..52);
        packet[29] = 6;
        packet[2..4].copy_from_slice(&[0, 152]);
        packet[24..26].copy_from_slice(&[0, 132]);
        packet[48..50].fill(0);
        let checksum = !segue_testkit::sum::with_pseudo(&packet[12..16], &packet[16..20], 6, &packet[32..]);
        packet[48..50].copy_from_slice(&checksum.to_be_bytes());
        ipv4_checksum(&mut packet, 0);
        outer_checksum(&mut packet);
        Stream::new([packet])
    };
    a_tiny_segment_with_a_pending_checksum_stays_alone: Tiny = {
        let packet = segue_testkit::build::prime(&tcp4().send(7, 0).bytes()).unwrap();
        Stream::new([packet]).unit(0, Unit::Whole(Csum::Partial))
    };
}

#[test]
fn another_protocol_of_the_same_hosts_does_not_part_a_train() {
    let icmp = between(tcp4(), |packet| packet.l4 = L4::Icmp(8, 0, [0, 1, 0, 2]));
    let gre = between_bytes(tcp4(), |bytes| *bytes = pptp());
    for stream in [icmp, gre] {
        stream.gives(&[1, 2]).counts(&[(RefusalReason::Protocol, 1)], &[(Flush::PollEnd, 1)], &[]);
    }
}

/// Returns data of PPTP, which uses GRE of version 1 (RFC 2637, section 4.1).
fn pptp() -> Vec<u8> {
    let mut packet = tcp4().send(100, 0);
    packet.l4 = L4::Raw(47);
    packet.data = [&[0x30, 0x81, 0x88, 0x0b, 0, 4, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2][..], &[0xff, 3, 0, 0x21]].concat();
    packet.bytes()
}

#[test]
fn a_tiny_end_joins_a_train_whose_checksum_is_pending() {
    let mut sender = tcp4();
    let packets = [sender.send(100, 0), sender.send(7, 0)];
    let primed = packets.map(|packet| segue_testkit::build::prime(&packet.bytes()).unwrap());
    let stream = Stream::new(primed).unit(0, Unit::Whole(Csum::Partial)).unit(1, Unit::Whole(Csum::Partial));
    stream.gives(&[2]).counts(&[], &[(Flush::Short, 1)], &[]);
}

#[test]
fn every_refusal_is_provoked() {
    let all = || REFUSED.iter().chain(REFUSED_FLOWS).chain(crate::acks::REFUSED);
    complete(all().map(|(reason, _)| *reason));
    for (reason, scenario) in all() {
        assert_eq!(scenario().run().stats.alone.of(*reason), 1);
    }
}

#[test]
fn refused_packets_keep_the_order_of_their_flow() {
    for (reason, scenario) in REFUSED {
        let stream = scenario();
        let (_, left) = stream.run_unchecked();
        if stream.packets.iter().all(|(_, unit)| unit.is_none()) {
            assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)), "{reason:?}");
        }
    }
}

#[test]
fn a_bad_checksum_is_found_wherever_it_is_in_a_train() {
    for bad in 0..5 {
        let mut packets = run(&mut tcp4(), 5);
        packets[bad][100] ^= 0x40;
        let (outcome, left) = Stream::new(packets.clone()).run_unchecked();
        assert_eq!(left, packets);
        // The first one is held before it is verified.
        let wrong = outcome.stats.alone.of(RefusalReason::BadChecksum) + outcome.stats.flushes.of(Flush::BadChecksum);
        assert_eq!(wrong, 1, "{bad}: {:?}", outcome.stats);
        assert!(outcome.sizes.iter().sum::<usize>() == 5 && outcome.sizes.contains(&1), "{:?}", outcome.sizes);
    }
}

fn flags(flags: u8) -> Stream {
    between(tcp4(), |packet| {
        if let L4::Tcp(tcp) = &mut packet.l4 {
            tcp.flags |= flags;
        }
    })
}

/// Returns three packets in a tunnel over IPv4.
fn tunnelled(shim: Shim, gre: Option<Gre>) -> Stream {
    let outer = Ip::V4(V4::new(0, 1, 2));
    Stream::new(wrap(&tunnel(outer, shim, gre, &v4()), run(&mut tcp4(), 3)))
}

/// Returns `stream` with the second packet of `other`.
fn replace(mut stream: Stream, other: Stream) -> Stream {
    stream.packets[1] = other.packets[1].clone();
    stream
}

fn ipv4_checksum(bytes: &mut [u8], at: usize) {
    bytes[at + 10..at + 12].fill(0);
    let checksum = !segue_testkit::sum::fold(&bytes[at..at + 20]);
    bytes[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
}

pub(crate) fn tcp_checksum(bytes: &mut [u8]) {
    bytes[36..38].fill(0);
    let checksum = !segue_testkit::sum::with_pseudo(&bytes[12..16], &bytes[16..20], 6, &bytes[20..]);
    bytes[36..38].copy_from_slice(&checksum.to_be_bytes());
}

/// Corrects the UDP checksum after an IPv4 header.
fn outer_checksum(bytes: &mut [u8]) {
    bytes[26..28].fill(0);
    let checksum = !segue_testkit::sum::with_pseudo(&bytes[12..16], &bytes[16..20], 17, &bytes[20..]);
    bytes[26..28].copy_from_slice(&checksum.to_be_bytes());
}

/// Increases the lengths of IPv4 and UDP by `more` bytes.
pub(crate) fn lengthen(bytes: &mut [u8], more: u16) {
    for at in [2, 24] {
        let len = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + more;
        bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }
    ipv4_checksum(bytes, 0);
    outer_checksum(bytes);
}

#[test]
fn segments_of_eight_bytes_with_a_pending_checksum_join() {
    let mut sender = tcp4();
    let primed = [8, 8].map(|len| segue_testkit::build::prime(&sender.send(len, 0).bytes()).unwrap());
    let stream = Stream::new(primed).unit(0, Unit::Whole(Csum::Partial)).unit(1, Unit::Whole(Csum::Partial));
    stream.gives(&[2]).counts(&[], &[(Flush::PollEnd, 1)], &[]);
}
