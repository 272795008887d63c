//! Tests of the differences between the profiles `linux` and `strict`.

use segue::gro::{Generation, Mismatch, Profile, RefusalReason};
use segue::packet::{Gso, Unit};
use segue_testkit::build::{Gre, Ip, L4, Shim, Tunnel, V4};
use segue_testkit::flow::{Ids, Sender};
use segue_testkit::sum;

use crate::bench::{Stream, between, every, run, tcp4, then, tunnel, v4, wrap};

#[test]
fn linux_joins_what_differs_in_an_urgent_pointer_that_is_not_meant() {
    let stream = then(tcp4(), |packet| {
        if let L4::Tcp(tcp) = &mut packet.l4 {
            tcp.urgent = 9;
        }
    });
    assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::Urgent), 1);
    let (outcome, left) = stream.clone().linux().run_unchecked();
    assert_eq!(outcome.sizes, [2]);
    assert_ne!(left[1], stream.packets[1].0, "the second pointer is lost");
}

#[test]
fn linux_joins_checksums_that_are_not_canonical() {
    let mut packets = run(&mut tcp4(), 2);
    // The TCP checksum of the second packet: a word of payload makes it zero, and all ones are the other representation
    // of zero.
    let second = &mut packets[1];
    second[36..38].fill(0);
    second[60..62].fill(0);
    let rest = !sum::with_pseudo(&second[12..16], &second[16..20], 6, &second[20..]);
    second[60..62].copy_from_slice(&rest.to_be_bytes());
    second[36..38].fill(0xff);
    let stream = Stream::new(packets);
    assert_eq!(stream.gives(&[1, 1]).stats.alone.of(RefusalReason::NotCanonical), 1);
    let (outcome, left) = stream.clone().linux().run_unchecked();
    assert_eq!((outcome.sizes, left[1][36..38].to_vec()), (vec![2], vec![0, 0]));
}

#[test]
fn linux_does_not_join_gre_with_a_checksum_inside_udp() {
    let outer = Ip::V4(V4::new(0, 1, 2));
    for shim in [Shim::Fou, Shim::Gue(None)] {
        let gre = Gre { checksum: true, ..Gre::default() };
        let stream = Stream::new(wrap(&tunnel(outer.clone(), shim, Some(gre), &v4()), run(&mut tcp4(), 3)));
        stream.joins();
        assert_eq!(stream.linux().gives(&[1, 1, 1]).stats.alone.of(RefusalReason::Tunnel), 3);
    }
}

#[test]
fn linux_joins_gre_with_a_checksum_right_in_ip() {
    let gre = Gre { checksum: true, ..Gre::default() };
    let tunnel = Tunnel { ip: Ip::V4(V4::new(0, 1, 2)), udp: None, gre: Some(gre), ethernet: None };
    Stream::new(wrap(&tunnel, run(&mut tcp4(), 3))).linux().joins();
}

#[test]
fn linux_joins_what_strict_joins() {
    for mut sender in every() {
        Stream::new(run(&mut sender, 4)).linux().joins();
    }
}

#[test]
fn linux_profile_preserves_packet_order() {
    let stream = between(tcp4(), |packet| packet.data.clear()).linux();
    let (_, left) = stream.run_unchecked();
    assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)));
}

#[test]
fn linux_lets_cwr_on_a_later_segment_start_anew() {
    let mut sender = tcp4();
    let stream = Stream::new([0, 0x80, 0].map(|flags| sender.send(100, flags).bytes())).linux();
    assert_eq!(stream.clone().profile(V6_12).gives(&[1, 2]).stats.mismatches.of(Mismatch::Cwr), 1);
    // From 6.18 on the flag is compared too, so no segment without it may follow.
    assert_eq!(stream.gives(&[1, 1, 1]).stats.mismatches.of(Mismatch::TcpFlags), 2);
}

const V6_12: Profile = Profile::Linux(Generation::V6_12);
const V6_18: Profile = Profile::Linux(Generation::V6_18);
const V7: Profile = Profile::Linux(Generation::V7);

#[test]
fn linux_without_a_generation_is_6_18() {
    assert_eq!((Profile::linux(), Profile::Linux(Generation::default())), (V6_18, V6_18));
}

#[test]
fn fixed_identifications_without_df_join_from_6_18_on() {
    let stream = |df, ids| {
        let mut sender = Sender::tcp(Ip::V4(V4 { id: 7, df, ..V4::new(1, 1, 2) }), 1, 1, Vec::new());
        sender.ids = ids;
        Stream::new(run(&mut sender, 3))
    };
    assert_eq!(stream(false, Ids::Fixed).profile(V6_12).gives(&[1, 1, 1]).stats.mismatches.of(Mismatch::IpId), 2);
    for profile in [V6_18, V7, Profile::Strict] {
        stream(false, Ids::Fixed).profile(profile).joins();
    }
    for profile in [V6_12, V6_18, V7] {
        stream(true, Ids::Fixed).profile(profile).joins();
        stream(false, Ids::Counting).profile(profile).joins();
        stream(true, Ids::Counting).profile(profile).joins();
    }
}

#[test]
fn the_identification_outside_a_tunnel_is_looked_at_from_6_18_on() {
    let stream = |df| {
        let packets = run(&mut tcp4(), 3);
        let mut ids = [5, 900, 2].into_iter();
        let wrapped = packets.iter().map(|packet| {
            let ip = Ip::V4(V4 { id: ids.next().unwrap(), df, ..V4::new(0, 1, 2) });
            tunnel(ip, Shim::Fou, None, &v4()).wrap(packet)
        });
        Stream::new(wrapped.collect::<Vec<_>>())
    };
    let (outcome, left) = stream(true).profile(V6_12).run_unchecked();
    assert_eq!(outcome.sizes, [3]);
    assert_ne!(left[1], stream(true).packets[1].0, "the second identification is lost");
    for (df, profile) in [(false, V6_12), (true, V6_18), (true, V7), (true, Profile::Strict)] {
        assert_eq!(stream(df).profile(profile).gives(&[1, 1, 1]).stats.mismatches.of(Mismatch::IpId), 2);
    }
    // The identification of the inner header always is.
    let packets = run(&mut tcp4(), 2);
    let far = between(tcp4(), |packet| {
        if let Ip::V4(ip) = &mut packet.ip {
            ip.id = 77;
        }
    });
    let inner = [packets[0].clone(), far.packets[1].0.clone()];
    let around = tunnel(Ip::V4(V4::new(0, 1, 2)), Shim::Fou, None, &v4());
    let stream = Stream::new(wrap(&around, inner)).profile(V6_12);
    assert_eq!(stream.gives(&[1, 1]).stats.mismatches.of(Mismatch::IpId), 1);
}

#[test]
fn cwr_on_every_segment_joins_from_7_on_and_stays_on_every_segment() {
    let stream = |flags: [u8; 3]| {
        let mut sender = tcp4();
        Stream::new(flags.map(|flags| sender.send(100, flags).bytes()))
    };
    let outcome = stream([0x80; 3]).profile(V7).joins();
    let Unit::Train { gso, .. } = outcome.trains[0].offload.unit else { panic!("a train") };
    assert_eq!(gso.fixed_ids, Gso::CWR);
    let outcome = stream([0; 3]).profile(V7).joins();
    let Unit::Train { gso, .. } = outcome.trains[0].offload.unit else { panic!("a train") };
    assert_eq!(gso.fixed_ids, 0, "no segment has it");
    for profile in [V6_12, V6_18] {
        assert_eq!(stream([0x80; 3]).profile(profile).gives(&[1, 1, 1]).stats.mismatches.of(Mismatch::Cwr), 2);
    }
    // If it is not set on all, later kernels start a new train where 6.12 continues.
    for profile in [V6_18, V7] {
        assert_eq!(stream([0x80, 0, 0]).profile(profile).gives(&[1, 2]).stats.mismatches.of(Mismatch::TcpFlags), 1);
    }
    stream([0x80, 0, 0]).profile(V6_12).joins();
    stream([0, 0x80, 0x80]).profile(V7).gives(&[1, 2]);
    for profile in [V6_12, V6_18] {
        stream([0, 0x80, 0x80]).profile(profile).gives(&[1, 1, 1]);
    }
}

#[test]
fn no_kernel_swallows_acknowledgments() {
    let mut sender = tcp4();
    let packets: Vec<_> = (0..4)
        .map(|_| {
            if let L4::Tcp(tcp) = &mut sender.next.l4 {
                tcp.ack += 1448;
            }
            sender.send(0, 0).bytes()
        })
        .collect();
    for profile in [V6_12, V6_18, V7, Profile::Strict] {
        let outcome = Stream::new(packets.clone()).profile(profile).config(|c| c.acks = true).gives(&[1; 4]);
        assert_eq!((outcome.stats.swallowed, outcome.stats.alone.of(RefusalReason::NoPayload)), (0, 4));
    }
}
