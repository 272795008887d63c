//! Tests of the packets that a tunnel with remote checksum offload sends, captured on egress at both ends of a link
//! that neither segments nor checksums after the capture, and judged by tshark and by a separate parser.

use std::collections::BTreeMap;
use std::fs;

use segue_lab::Family::{self, V4, V6};
use segue_lab::{LinkForm, Peer};
use segue_tests::Carrier::GueRemcsum;
use segue_tests::Inside::{Gre, Ipip, Sit};
use segue_tests::capture::{Capture, Directory, frames, tshark_checksums};
use segue_tests::wire::{Kind, judge_remcsum, outer};
use segue_tests::{Ground, Pair, Shape, test_name, traffic};

/// Bytes sent in each direction by TCP.
const FILE_LEN: u64 = 3 << 20;

fn is_right_on_the_wire(name: &str, shape: Shape) {
    let Some(ground) = Ground::new(name, LinkForm::Nic, &["tcpdump", "tshark", "ping"]) else { return };
    let directory = Directory::new();
    let pair = Pair::start(&ground, shape, 1);
    let captures =
        [(&ground.a, "a.pcap"), (&ground.b, "b.pcap")].map(|(host, name)| Capture::start(host, directory.file(name)));
    let before = pair.stat().map(|stat| stat.checksummed_bytes());

    for family in shape.inside.families() {
        let [a, b] = [Peer::A, Peer::B].map(|end| pair.place(end, *family));
        for (from, to) in [(a, b), (b, a)] {
            traffic::file(from, to, FILE_LEN, 11);
            traffic::datagrams(from, to, traffic::DATAGRAM_SIZES, 12);
            // A whole train in one system call, and an odd length.
            traffic::datagram_train(from, to, 1301, 40, 13);
            traffic::pings(from, to, traffic::PING_SIZES);
        }
    }

    let after = pair.stat().map(|stat| stat.checksummed_bytes());
    assert_eq!(after, before, "{shape}: payload bytes summed at A and B");
    pair.assert_nothing_dropped();
    for capture in captures {
        let path = capture.stop();
        let datagrams = judge(&fs::read(&path).unwrap(), &shape);
        let (good, rest) = tshark_checksums(&path, Shape::port(1));
        assert!(rest.is_empty(), "{shape}: tshark does not call these good: {:?}", &rest[..rest.len().min(10)]);
        assert_eq!(good, datagrams, "{shape}: tshark and the parser count differently");
    }
}

/// Checks the tunnel's datagrams in a capture; returns their number.
fn judge(file: &[u8], shape: &Shape) -> usize {
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    for (number, frame) in (1..).zip(frames(file).unwrap()) {
        let wrong = |what: String| -> ! { panic!("{shape}, frame {number}: {what}") };
        let Some(packet) = outer(frame).unwrap_or_else(|what| wrong(what)) else { continue };
        if packet.ip_len > 1500 || packet.fragment {
            wrong(format!("{} bytes, fragment: {}", packet.ip_len, packet.fragment));
        }
        let Some(udp) = packet.udp else { continue };
        if udp.destination != Shape::port(1) {
            wrong(format!("to port {}", udp.destination));
        }
        if !udp.checksum_good {
            wrong("a wrong outer checksum".into());
        }
        *kinds.entry(judge_remcsum(udp.payload).unwrap_or_else(|what| wrong(what))).or_default() += 1;
    }
    let enough = |kind: Kind, least: usize| {
        let count = kinds.get(&kind).copied().unwrap_or(0);
        assert!(count >= least, "{shape}: only {count} of {kind} in {kinds:?}");
    };
    for family in shape.inside.families() {
        let version = Family::number(*family);
        // The file in one direction, acknowledgements of the other; two trains; 2600, 9000 and 64000 bytes twice, and
        // the large pings.
        enough(Kind::Tcp(version), (FILE_LEN / 1500) as usize);
        enough(Kind::Udp(version), 40 + 2 * 6);
        enough(Kind::Fragment(version), 2 * (2 + 7 + 44) + 2 * 2);
        enough(Kind::Icmp(version), 2 * 2);
    }
    kinds.values().sum()
}

#[test]
fn gre_with_remcsum_over_ipv4_is_right_on_the_wire() {
    is_right_on_the_wire(test_name!(), Shape::new(Gre, GueRemcsum, V4));
}

#[test]
fn gre_with_remcsum_over_ipv6_is_right_on_the_wire() {
    is_right_on_the_wire(test_name!(), Shape::new(Gre, GueRemcsum, V6));
}

#[test]
fn ipip_with_remcsum_over_ipv4_is_right_on_the_wire() {
    is_right_on_the_wire(test_name!(), Shape::new(Ipip, GueRemcsum, V4));
}

#[test]
fn sit_with_remcsum_over_ipv4_is_right_on_the_wire() {
    is_right_on_the_wire(test_name!(), Shape::new(Sit, GueRemcsum, V4));
}
