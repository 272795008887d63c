//! Tests of the ICMP errors sent to inner senders, with an oracle that shares no code with the engine.

use segue_testkit::build::{Ethernet, Ip, V4, V6};
use segue_testkit::flow::Sender;
use segue_testkit::oracle;

use super::*;
use crate::encap::{Fit, fit, too_big};

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
