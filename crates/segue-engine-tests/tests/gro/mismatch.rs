//! Tests of packets that do not match the train of their flow: each difference by itself. The second packet starts a
//! new train.

use segue::gro::{Flush, Mismatch, RefusalReason};
use segue::packet::{Csum, Unit};
use segue_testkit::build::{Ethernet, Ip, L4, Remcsum, Shim, Tcp, V4, prime};
use segue_testkit::flow::Sender;

use crate::bench::{Stream, complete, frames, run, tcp4, tcp6, then, tunnel, udp4, udp6, v4, v6, wrap};

/// Declares a test for each scenario of two packets, which do not join, and a table of all scenarios.
macro_rules! mismatch {
    ($($name:ident: $reason:ident = $scenario:expr;)+) => {
        const MISMATCHES: &[(Mismatch, fn() -> Stream)] = &[$((Mismatch::$reason, || $scenario)),+];
        $(#[test] fn $name() {
            let outcome = Stream::gives(&$scenario, &[1, 1]);
            outcome.counts(&[], &[(Flush::Mismatch, 1), (Flush::PollEnd, 1)], &[(Mismatch::$reason, 1)]);
        })+
    };
}

mismatch! {
    another_length_of_options_starts_anew: Headers = tcp_field(tcp4(), |tcp| tcp.options = Tcp::timestamps(1, 2));
    another_source_mac_starts_anew: Link = {
        let link = Ethernet { src: [2, 0, 0, 0, 0, 1], ..Ethernet::default() };
        let mut stream = Stream::new(frames(&link, run(&mut tcp4(), 2))).ethernet();
        stream.packets[1].0[11] = 7;
        stream
    };
    another_vlan_priority_starts_anew: Link = {
        let link = Ethernet { tags: vec![(0x8100, 0x6005)], ..Ethernet::default() };
        let mut stream = Stream::new(frames(&link, run(&mut tcp6(), 2))).ethernet();
        stream.packets[1].0[14] = 0x40;
        stream
    };
    another_tag_protocol_starts_anew: Link = {
        let link = Ethernet { tags: vec![(0x8100, 5)], ..Ethernet::default() };
        let mut stream = Stream::new(frames(&link, run(&mut tcp6(), 2))).ethernet();
        stream.packets[1].0[12..14].copy_from_slice(&[0x88, 0xa8]);
        stream
    };
    another_dscp_starts_anew: Tos = v4_field(|ip| ip.tos = 0x20);
    congestion_experienced_starts_anew: Tos = v4_field(|ip| ip.tos = 3);
    another_traffic_class_starts_anew: Tos = v6_field(|ip| if let Ip::V6(ip) = ip { ip.class = 0x03 });
    another_upper_half_of_the_traffic_class_starts_anew: Tos = v6_field(|ip| if let Ip::V6(ip) = ip { ip.class = 0x40 });
    another_ttl_starts_anew: Ttl = v4_field(|ip| ip.ttl = 63);
    another_hop_limit_starts_anew: Ttl = v6_field(|ip| if let Ip::V6(ip) = ip { ip.hop_limit = 63 });
    another_df_flag_starts_anew: Fragment = v4_field(|ip| ip.df = false);
    another_flow_label_starts_anew: FlowLabel = v6_field(|ip| if let Ip::V6(ip) = ip { ip.label = 5 });
    another_upper_half_of_the_flow_label_starts_anew: FlowLabel =
        v6_field(|ip| if let Ip::V6(ip) = ip { ip.label = 0x5_0000 });
    other_bytes_of_an_extension_header_start_anew: Extensions = extended(|ip| {
        if let Ip::V6(ip) = ip { ip.extensions[0].1 = vec![1, 4, 0, 0, 0, 9] }
    });
    another_kind_of_extension_header_starts_anew: Extensions = extended(|ip| {
        if let Ip::V6(ip) = ip { ip.extensions[0].0 = 60 }
    });
    an_identification_that_jumps_starts_anew: IpId = v4_field(|ip| ip.id = 9);
    an_identification_that_goes_back_starts_anew: IpId = v4_field(|ip| ip.id = 0xffff);
    other_bytes_of_the_gue_header_start_anew: TunnelHeader = {
        // A surplus word after the base header, with other bytes in it.
        let outer = Ip::V4(V4 { ..V4::new(0, 1, 2) });
        let mut stream = Stream::new(wrap(&tunnel(outer, Shim::Gue(None), None, &v4()), run(&mut tcp4(), 2)));
        for (index, (bytes, _)) in stream.packets.iter_mut().enumerate() {
            bytes[28] = 1;
            bytes.splice(32..32, [0, 0, 0, index as u8]);
            crate::refused::lengthen(bytes, 4);
        }
        stream
    };
    a_gap_starts_anew: Sequence = tcp_field(tcp4(), |tcp| tcp.seq += 1);
    an_overlap_starts_anew: Sequence = tcp_field(tcp6(), |tcp| tcp.seq -= 1);
    a_retransmission_starts_anew: Sequence = tcp_field(tcp4(), |tcp| tcp.seq -= 100);
    another_acknowledgment_number_starts_anew: AckNumber = tcp_field(tcp4(), |tcp| tcp.ack += 1);
    ece_starts_anew: TcpFlags = tcp_field(tcp4(), |tcp| tcp.flags |= 0x40);
    a_missing_ack_flag_starts_anew: TcpFlags = tcp_field(tcp6(), |tcp| tcp.flags &= !0x10);
    accurate_ecn_starts_anew: TcpFlags = {
        let mut stream = tcp_field(tcp4(), |_| {});
        let bytes = &mut stream.packets[1].0;
        bytes[32] |= 1;
        crate::refused::tcp_checksum(bytes);
        stream
    };
    cwr_on_a_later_segment_starts_anew: Cwr = tcp_field(tcp4(), |tcp| tcp.flags |= 0x80);
    cwr_on_every_segment_starts_anew: Cwr = {
        let mut sender = tcp4();
        Stream::new([sender.send(100, 0x80).bytes(), sender.send(100, 0x80).bytes()])
    };
    another_window_starts_anew: Window = tcp_field(tcp4(), |tcp| tcp.window += 1);
    another_urgent_pointer_starts_anew: Urgent = tcp_field(tcp4(), |tcp| tcp.urgent = 1);
    another_timestamp_starts_anew: Options =
        tcp_field(Sender::tcp(v6(), 1, 1, Tcp::timestamps(1, 2)), |tcp| tcp.options = Tcp::timestamps(2, 2));
    another_echo_starts_anew: Options =
        tcp_field(Sender::tcp(v4(), 1, 1, Tcp::timestamps(1, 2)), |tcp| tcp.options = Tcp::timestamps(1, 3));
    another_order_of_options_starts_anew: Options = tcp_field(Sender::tcp(v4(), 1, 1, Tcp::timestamps(1, 2)), |tcp| {
        tcp.options.rotate_left(2);
    });
    a_larger_segment_starts_anew: Larger = then(tcp4(), |packet| packet.data.push(1));
    a_larger_datagram_starts_anew: Larger = then(udp6(), |packet| packet.data.push(1));
    an_owed_checksum_does_not_join_a_complete_one: ChecksumKind = {
        let packets = run(&mut udp4(), 2);
        Stream::new([packets[0].clone(), prime(&packets[1]).unwrap()]).unit(1, Unit::Whole(Csum::Partial))
    };
    an_absent_outer_checksum_does_not_join_one_that_is_there: ChecksumKind = {
        let outer = tunnel(v4(), Shim::Gue(None), None, &v4());
        let mut stream = Stream::new(wrap(&outer, run(&mut tcp4(), 2)));
        stream.packets[1].0[26..28].fill(0);
        stream
    };
}

#[test]
fn every_mismatch_is_provoked() {
    complete(MISMATCHES.iter().map(|(reason, _)| *reason));
    for (reason, scenario) in MISMATCHES {
        assert_eq!(scenario().run().stats.mismatches.of(*reason), 1);
    }
}

#[test]
fn what_starts_anew_is_joined_by_what_follows_it() {
    let mut sender = tcp4();
    let mut packets = run(&mut sender, 2);
    if let L4::Tcp(tcp) = &mut sender.next.l4 {
        tcp.window = 9;
    }
    packets.extend(run(&mut sender, 3));
    let outcome = Stream::new(packets).gives(&[2, 3]);
    outcome.counts(&[], &[(Flush::Mismatch, 1), (Flush::PollEnd, 1)], &[(Mismatch::Window, 1)]);
}

#[test]
fn a_tunnel_with_a_remote_checksum_does_not_join_one_without() {
    let outer = Ip::V4(V4::new(0, 1, 2));
    let packets = run(&mut tcp4(), 2);
    let remote = tunnel(outer.clone(), Shim::Gue(Some(Remcsum::Transport)), None, &v4());
    let mut stream = Stream::new(wrap(&remote, packets.clone()));
    stream.packets[1].0 = wrap(&tunnel(outer, Shim::Gue(None), None, &v4()), packets).remove(1);
    assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::Headers), 1);
}

#[test]
fn other_ports_addresses_vlans_and_keys_are_other_flows() {
    let streams = [
        [run(&mut tcp4(), 1), run(&mut Sender::tcp(v4(), 2, 1100, Vec::new()), 1)].concat(),
        [run(&mut tcp4(), 1), run(&mut Sender::tcp(Ip::V4(V4::new(1, 1, 3)), 1, 1100, Vec::new()), 1)].concat(),
        [run(&mut tcp6(), 1), run(&mut udp6(), 1)].concat(),
        [run(&mut tcp4(), 1), run(&mut tcp6(), 1)].concat(),
    ];
    for packets in streams {
        let outcome = Stream::new(packets).gives(&[1, 1]);
        outcome.counts(&[], &[(Flush::PollEnd, 2)], &[]);
    }
    let packets = run(&mut tcp4(), 2);
    let vlan = |id| Ethernet { tags: vec![(0x8100, id)], ..Ethernet::default() };
    let framed = [vlan(1).wrap(&packets[0]), vlan(2).wrap(&packets[1])];
    Stream::new(framed).ethernet().gives(&[1, 1]).counts(&[], &[(Flush::PollEnd, 2)], &[]);
    let keyed = |key| {
        let gre = segue_testkit::build::Gre { key: Some(key), ..Default::default() };
        tunnel(Ip::V4(V4::new(0, 1, 2)), Shim::Fou, Some(gre), &v4())
    };
    let tunnelled = [keyed(1).wrap(&packets[0]), keyed(2).wrap(&packets[1])];
    Stream::new(tunnelled).gives(&[1, 1]).counts(&[], &[(Flush::PollEnd, 2)], &[]);
}

#[test]
fn a_flow_keeps_its_order_when_its_mac_addresses_change() {
    // The acknowledgment stays after the data that another gateway forwarded.
    let link = |last| Ethernet { src: [2, 0, 0, 0, 0, last], ..Ethernet::default() };
    let mut sender = tcp4();
    let frames = [link(1).wrap(&sender.send(100, 0).bytes()), link(2).wrap(&sender.send(0, 0).bytes())];
    let mut stream = Stream::new(frames).ethernet();
    stream.packets[1].0.truncate(54);
    let (outcome, left) = stream.run_unchecked();
    assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)));
    outcome.counts(&[(RefusalReason::NoPayload, 1)], &[(Flush::Order, 1)], &[]);
}

fn tcp_field(sender: Sender, edit: impl FnOnce(&mut Tcp)) -> Stream {
    then(sender, |packet| {
        if let L4::Tcp(tcp) = &mut packet.l4 {
            edit(tcp);
        }
    })
}

fn v4_field(edit: impl FnOnce(&mut V4)) -> Stream {
    then(tcp4(), |packet| {
        if let Ip::V4(ip) = &mut packet.ip {
            edit(ip);
        }
    })
}

fn v6_field(edit: impl FnOnce(&mut Ip)) -> Stream {
    then(udp6(), |packet| edit(&mut packet.ip))
}

fn extended(edit: impl FnOnce(&mut Ip)) -> Stream {
    let mut ip = v6();
    if let Ip::V6(ip) = &mut ip {
        ip.extensions = vec![(0, vec![1, 4, 0, 0, 0, 0])];
    }
    then(Sender::tcp(ip, 1, 1, Vec::new()), |packet| edit(&mut packet.ip))
}
