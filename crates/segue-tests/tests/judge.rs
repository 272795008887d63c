//! Tests of the parser that checks packets in the wire tests: it accepts packets of a Linux kernel, and rejects every
//! deviation from them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use segue_tests::capture::frames;
use segue_tests::wire::{self, Kind, judge_remcsum, outer};

fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

/// Returns the GUE datagrams of a capture.
fn datagrams(name: &str, port: u16) -> Vec<Vec<u8>> {
    let file = fs::read(captures().join(name)).unwrap();
    let outers = frames(&file).unwrap().into_iter().filter_map(|frame| outer(frame).unwrap());
    let udp = outers.filter_map(|outer| outer.udp).filter(|udp| udp.destination == port);
    udp.inspect(|udp| assert!(udp.checksum_good, "{name}")).map(|udp| udp.payload.to_vec()).collect()
}

#[test]
fn every_frame_of_a_linux_sender_with_remote_checksums_is_accepted() {
    let mut kinds = BTreeMap::new();
    let mut files = 0;
    for entry in fs::read_dir(captures()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !(name.starts_with("gue") && name.contains("remcsum")) {
            continue;
        }
        files += 1;
        let port = if name.starts_with("gue6") { 6086 } else { 6080 };
        for datagram in datagrams(&name, port) {
            let kind = judge_remcsum(&datagram).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            *kinds.entry(kind).or_insert(0) += 1;
        }
    }
    assert_eq!(files, 18);
    for kind in [Kind::Tcp(4), Kind::Tcp(6), Kind::Udp(4), Kind::Udp(6), Kind::Icmp(4), Kind::Icmp(6)] {
        assert!(kinds.get(&kind).is_some_and(|count| *count >= 18), "{kind}: {kinds:?}");
    }
    assert!(kinds[&Kind::Fragment(4)] >= 8 && kinds[&Kind::Fragment(6)] >= 8, "{kinds:?}");
}

#[test]
fn a_sender_without_remote_checksums_is_found_out() {
    for (name, least) in [("gue-gre-csum-inner4-tcp.pcap", 60), ("gue-ipip-nocsum-tcp.pcap", 60)] {
        let file = fs::read(captures().join(name)).unwrap();
        let outers = frames(&file).unwrap().into_iter().filter_map(|frame| outer(frame).unwrap());
        let payloads = outers.filter_map(|outer| outer.udp).filter(|udp| udp.destination == 6080);
        let wrong = payloads.map(|udp| judge_remcsum(udp.payload).unwrap_err()).collect::<Vec<_>>();
        assert!(
            wrong.len() >= least && wrong.iter().all(|wrong| wrong.contains("without an option")),
            "{name}: {wrong:?}"
        );
    }
}

#[test]
fn every_flipped_bit_in_the_headers_of_a_segment_is_found_out() {
    for name in ["gue-gre-remcsum-inner4-tcp.pcap", "gue-ipip-remcsum-udp.pcap", "gue-sit-remcsum-tcp.pcap"] {
        let datagram = datagrams(name, 6080).into_iter().find(|d| d.len() > 200 && d[0] == 2).unwrap();
        judge_remcsum(&datagram).unwrap();
        let gre_len = if datagram[1] == 47 { 4 } else { 0 };
        let inner = 12 + gre_len;
        let v4 = datagram[inner] >> 4 == 4;
        let start = usize::from(datagram[8]) << 8 | usize::from(datagram[9]);
        let offset = usize::from(datagram[10]) << 8 | usize::from(datagram[11]);
        // GUE, GRE, addresses, and the primed field itself; of IPv4 the whole header.
        let addresses = if v4 { inner..12 + start } else { inner + 4..12 + start };
        for place in (0..12 + gre_len).chain(addresses).chain(12 + offset..12 + offset + 2) {
            // The hop limit of IPv6 is covered by nothing.
            if !v4 && place == inner + 7 {
                continue;
            }
            for bit in 0..8 {
                let mut wrong = datagram.clone();
                wrong[place] ^= 1 << bit;
                assert!(judge_remcsum(&wrong).is_err(), "{name}: bit {bit} of byte {place} of {datagram:02x?}");
            }
        }
    }
}

#[test]
fn an_option_on_icmp_is_found_out() {
    let icmp = datagrams("gue-ipip-remcsum-icmp.pcap", 6080).remove(0);
    judge_remcsum(&icmp).unwrap();
    let with = wire::gue_remcsum(icmp[1], 20, 22, &icmp[4..]);
    assert!(judge_remcsum(&with).unwrap_err().contains("with an option"));
    let mut wrong = icmp.clone();
    *wrong.last_mut().unwrap() ^= 1;
    assert!(judge_remcsum(&wrong).unwrap_err().contains("ICMP checksum"));
}

#[test]
fn the_builder_makes_what_the_judge_accepts() {
    for (from, to, protocol) in [("198.19.1.1", "198.19.1.2", 4), ("2001:db8:1::1", "2001:db8:1::2", 41)] {
        let primed = wire::udp_packet((from.parse().unwrap(), 1000), (to.parse().unwrap(), 2000), b"hi", 0, true);
        let datagram = wire::gue_remcsum(protocol, primed.start, primed.offset, &primed.packet);
        assert!(matches!(judge_remcsum(&datagram), Ok(Kind::Udp(_))));
    }
    // Computed by hand: c612 + 0101 + c612 + 0102 + 0011 + 000a = 18e42, folded 8e43.
    let primed =
        wire::udp_packet(("198.18.1.1".parse().unwrap(), 1), ("198.18.1.2".parse().unwrap(), 2), b"hi", 0, true);
    assert_eq!(primed.packet[26..28], [0x8e, 0x43]);
}

#[test]
fn an_oversized_or_fragmented_frame_is_seen_as_such() {
    let file = fs::read(captures().join("gue-ipip-remcsum-tcp.pcap")).unwrap();
    let frame = frames(&file).unwrap().into_iter().find(|frame| frame.len() == 1514).unwrap();
    let seen = outer(frame).unwrap().unwrap();
    assert_eq!((seen.ip_len, seen.fragment), (1500, false));
    let mut cut = frame.to_vec();
    cut[20] = 0x20;
    let checksum = {
        cut[24..26].fill(0);
        !wire::sum(&cut[14..34])
    };
    cut[24..26].copy_from_slice(&checksum.to_be_bytes());
    let seen = outer(&cut).unwrap().unwrap();
    assert!(seen.fragment && seen.udp.is_none());
    let mut bad = frame.to_vec();
    bad[200] ^= 4;
    assert!(!outer(&bad).unwrap().unwrap().udp.unwrap().checksum_good);
}
