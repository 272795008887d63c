//! Tests of the ICMP errors sent to inner senders, with an oracle that shares no code with the engine.

use segue_testkit::build::{Ethernet, Ip, V4, V6};
use segue_testkit::flow::Sender;
use segue_testkit::oracle;

use super::*;
use crate::encap::{Fit, fit, is_to_group, too_big};
use crate::packet::{Gso, GsoKind, TrainCsum};

fn loaded(bytes: &[u8], start: Start) -> Packet<Vec<u8>> {
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes.to_vec()), start, &Tunnels::NONE);
    packet
}

#[test]
fn the_error_is_well_formed_quotes_the_packet_and_goes_back() {
    let link = Ethernet { dst: [2; 6], src: [4; 6], tags: vec![(0x8100, 7)] };
    for (ip, mtu, most) in [(Ip::V4(V4::new(1, 1, 2)), 1000, 576), (Ip::V6(V6::new(1, 1, 2)), 1300, 1280)] {
        for (is_frame, len) in [(false, 1400), (true, 1400), (false, 1250)] {
            let inner = Sender::tcp(ip.clone(), 1, 1, Vec::new()).send(len, 0).bytes();
            let (bytes, start, judge) = match is_frame {
                true => (link.wrap(&inner), Start::Ethernet, oracle::Start::Ethernet),
                false => (inner.clone(), Start::Ip, oracle::Start::Ip),
            };
            let packet = loaded(&bytes, start);
            let mut out = [0xee; 2000];
            let len = too_big(&packet, mtu, &mut out).unwrap();
            let report = oracle::verify(&out[..len], judge, &oracle::Ports::default()).unwrap();
            let (src, dst) = ip.addresses();
            assert_eq!((&report.levels[0].src[..], &report.levels[0].dst[..]), (dst, src));
            let transport = report.transport.unwrap();
            assert_eq!(transport.protocol, if most == 576 { 1 } else { 58 });
            let kind = if most == 576 { [3, 4] } else { [2, 0] };
            assert_eq!(out[transport.at..transport.at + 2], kind);
            assert_eq!(u32::from_be_bytes(out[transport.at + 4..transport.at + 8].try_into().unwrap()), mtu as u32);
            assert_eq!(report.levels[0].len, most, "as long as it may be");
            assert!(inner.starts_with(&out[report.payload.clone()]), "the packet is quoted");
            if is_frame {
                assert_eq!((&out[..6], &out[6..12], &out[12..16]), (&[4; 6][..], &[2; 6][..], &bytes[12..16]));
            }
        }
    }
}

#[test]
fn which_sources_get_an_error_and_which_packets_are_fragmented() {
    let mut may = V4::new(1, 1, 2);
    may.df = false;
    for (ip, mtu, expected) in [
        (Ip::V4(V4::new(1, 1, 2)), 1040, Fit::Fits),
        (Ip::V4(V4::new(1, 1, 2)), 1039, Fit::TooBig(1039)),
        (Ip::V4(may), 1039, Fit::Fragment),
        (Ip::V6(V6::new(1, 1, 2)), 1059, Fit::Fragment),
        (Ip::V6(V6::new(1, 1, 2)), 1060, Fit::Fits),
    ] {
        let bytes = Sender::tcp(ip, 1, 1, Vec::new()).send(1000, 0).bytes();
        assert_eq!(fit(&loaded(&bytes, Start::Ip), mtu), expected);
    }
    let long = Sender::tcp(Ip::V6(V6::new(1, 1, 2)), 1, 1, Vec::new()).send(1300, 0).bytes();
    assert_eq!(fit(&loaded(&long, Start::Ip), 900), Fit::TooBig(1280));
    let no_error_for = |edit: fn(&mut Vec<u8>)| {
        let mut bytes = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 1).send(1000, 0).bytes();
        edit(&mut bytes);
        assert_eq!(too_big(&loaded(&bytes, Start::Ip), 500, &mut [0; 2000]), None);
    };
    no_error_for(|bytes| bytes[16] = 224);
    no_error_for(|bytes| bytes[12] = 0);
    no_error_for(|bytes| bytes[7] = 9);
    no_error_for(|bytes| (bytes[9], bytes[20]) = (1, 3));
    no_error_for(|bytes| (bytes[9], bytes[20]) = (1, 5));
    no_error_for(|bytes| bytes[12] = 127);
    // Queries, router discovery and extended echo are no errors (RFC 1122, section 3.2.2; RFC 1256; RFC 8335).
    for kind in [8, 9, 10, 15, 17, 42, 43] {
        let mut bytes = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 1).send(1000, 0).bytes();
        (bytes[9], bytes[20]) = (1, kind);
        assert!(too_big(&loaded(&bytes, Start::Ip), 500, &mut [0; 2000]).is_some(), "{kind}");
    }
    // ICMPv6 errors, directly after the header and after an options header, and redirect (RFC 4443, section 2.4 (e)).
    for (extensions, kind, may) in [
        (vec![], 1, false),
        (vec![], 137, false),
        (vec![], 128, true),
        (vec![(0, vec![0; 6])], 1, false),
        (vec![(0, vec![0; 6])], 128, true),
    ] {
        let at = 40 + 8 * extensions.len();
        let mut bytes = Sender::udp(Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) }), 1).send(1400, 0).bytes();
        (bytes[if at == 40 { 6 } else { 40 }], bytes[at]) = (58, kind);
        assert_eq!(too_big(&loaded(&bytes, Start::Ip), 1300, &mut [0; 2000]).is_some(), may, "{kind} at {at}");
    }
    let short = Sender::udp(Ip::V4(V4::new(1, 1, 2)), 1).send(1000, 0).bytes();
    assert_eq!(too_big(&loaded(&short, Start::Ip), 500, &mut [0; 100]), None);
}

#[test]
fn the_tags_of_a_frame_take_their_share_of_the_path_mtu() {
    const MTU: usize = 1462;
    let may = V4 { df: false, ..V4::new(1, 1, 2) };
    for tags in [vec![], vec![(0x8100, 5)], vec![(0x88a8, 5), (0x8100, 6)]] {
        let left = MTU - 4 * tags.len();
        let link = Ethernet { dst: [2; 6], src: [4; 6], tags };
        for size in [MTU, MTU - 3, MTU - 4, MTU - 8, MTU + 1] {
            let frame = |ip: Ip, header: usize| link.wrap(&Sender::udp(ip, 1).send(size - header - 8, 0).bytes());
            let fits = |frame: &[u8], mtu| fit(&loaded(frame, Start::Ethernet), mtu);
            for (ip, header, otherwise) in [
                (Ip::V4(V4::new(1, 1, 2)), 20, Fit::TooBig(left)),
                (Ip::V4(may.clone()), 20, Fit::Fragment),
                (Ip::V6(V6::new(1, 1, 2)), 40, Fit::TooBig(left)),
            ] {
                let expected = if size <= left { Fit::Fits } else { otherwise };
                assert_eq!(fits(&frame(ip, header), MTU), expected, "{size} behind {:?}", link.tags);
            }
            // What an IPv6 sender must be allowed to send is fragmented outside.
            assert_eq!(fits(&frame(Ip::V6(V6::new(1, 1, 2)), 40), 1280), Fit::TooBig(1280), "{:?}", link.tags);
        }
    }
}

#[test]
fn no_error_is_sent_about_a_packet_in_a_frame_to_a_group() {
    for (dst, may) in [([2; 6], true), ([0xff; 6], false), ([1, 0, 0x5e, 0, 0, 1], false), ([0x33; 6], false)] {
        for ip in [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))] {
            let packet = Sender::udp(ip, 1).send(1400, 0).bytes();
            for tags in [vec![], vec![(0x8100, 5)]] {
                let frame = loaded(&Ethernet { dst, src: [4; 6], tags }.wrap(&packet), Start::Ethernet);
                assert_eq!(is_to_group(&frame), !may, "{dst:x?}");
                assert_eq!(too_big(&frame, 1300, &mut [0; 2000]).is_some(), may, "{dst:x?}");
            }
            // Without an Ethernet header there is no such address: an IPv4 packet may begin with an odd byte.
            assert!(!is_to_group(&loaded(&packet, Start::Ip)));
        }
    }
}

/// Tests that a packet shorter than what an error may quote is quoted whole, and nothing behind it.
#[test]
fn a_short_packet_is_quoted_whole() {
    let link = Ethernet { dst: [2; 6], src: [4; 6], tags: vec![(0x8100, 7)] };
    for (ip, header) in [(Ip::V4(V4::new(1, 1, 2)), 20), (Ip::V6(V6::new(1, 1, 2)), 40)] {
        let inner = Sender::udp(ip, 1).send(300, 0).bytes();
        for (bytes, start, l3) in [(inner.clone(), Start::Ip, 0), (link.wrap(&inner), Start::Ethernet, 18)] {
            let mut out = [0xee; 2000];
            let (from, end) = (l3 + header + 8, l3 + header + 8 + inner.len());
            assert_eq!(too_big(&loaded(&bytes, start), 200, &mut out), Some(end));
            assert_eq!((&out[from..end], out[end]), (&inner[..], 0xee));
        }
    }
}

/// Tests that of a train the length of each segment counts, without its link headers but with their tags.
#[test]
fn a_train_fits_where_its_segments_do() {
    for (ip, headers) in [(Ip::V4(V4::new(1, 1, 2)), 40), (Ip::V6(V6::new(1, 1, 2)), 60)] {
        let inner = Sender::tcp(ip, 1, 1, Vec::new()).send(3000, 0).bytes();
        for tags in [None, Some(vec![]), Some(vec![(0x8100, 5)])] {
            let counted = 4 * tags.as_ref().map_or(0, Vec::len);
            let mut packet = match tags {
                None => loaded(&inner, Start::Ip),
                Some(tags) => loaded(&Ethernet { dst: [2; 6], src: [4; 6], tags }.wrap(&inner), Start::Ethernet),
            };
            let gso = Gso { kind: GsoKind::Tcp, size: 1300, fixed_ids: 0 };
            packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
            assert_eq!(fit(&packet, headers + 1300 + counted), Fit::Fits, "{counted}");
            assert_eq!(fit(&packet, headers + 1299 + counted), Fit::TooBig(headers + 1299), "{counted}");
        }
    }
}
