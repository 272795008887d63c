//! Where the profile `linux` differs from `strict`, and where it does not.

use segue::gro::{Alone, Mismatch};
use segue_testkit::build::{Gre, Ip, L4, Shim, Tunnel, V4};
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
    // The TCP checksum of the second: a word of payload makes it zero, and all ones are the other form of that.
    let second = &mut packets[1];
    second[36..38].fill(0);
    second[60..62].fill(0);
    let rest = !sum::with_pseudo(&second[12..16], &second[16..20], 6, &second[20..]);
    second[60..62].copy_from_slice(&rest.to_be_bytes());
    second[36..38].fill(0xff);
    let stream = Stream::new(packets);
    assert_eq!(stream.gives(&[1, 1]).stats.alone.of(Alone::NotCanonical), 1);
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
        assert_eq!(stream.linux().gives(&[1, 1, 1]).stats.alone.of(Alone::Tunnel), 3);
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
fn linux_lets_nothing_overtake_either() {
    let stream = between(tcp4(), |packet| packet.data.clear()).linux();
    let (_, left) = stream.run_unchecked();
    assert!(left.iter().eq(stream.packets.iter().map(|(bytes, _)| bytes)));
}

#[test]
fn linux_lets_cwr_on_a_later_segment_start_anew() {
    let mut sender = tcp4();
    let stream = Stream::new([0, 0x80, 0].map(|flags| sender.send(100, flags).bytes())).linux();
    assert_eq!(stream.gives(&[1, 2]).stats.mismatches.of(Mismatch::Cwr), 1);
}
