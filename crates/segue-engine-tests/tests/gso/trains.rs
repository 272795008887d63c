//! Tests of trains: every form, every size, for every port.

use segue::gso::{Limits, SegmentCsum};
use segue::packet::{Frag, Gso, Kind, LayerCsum, Start, TrainCsum, Tunnels, Unit};
use segue::wire::{tcp, write_u16};
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Remcsum, Shim, Tunnel, V4};
use segue_testkit::oracle::{self, Ports, verify};

use crate::case::*;

#[test]
fn every_tunnel_form_gives_the_frames_that_were_built_one_by_one() {
    let mut cases = 0;
    for is_tcp in [true, false] {
        for ip in [v4(1, 0xfffe), v6(1)] {
            for tunnel in every_tunnel(matches!(ip, Ip::V4(_))) {
                for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
                    for (total, size) in [(3 * 100 + 33, 100), (2 * 101, 101), (257, 51)] {
                        check_case(&Case::new(inner(ip.clone(), is_tcp, total), size).within(tunnel.clone()), &limits);
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 2000);
}

#[test]
fn plain_trains_behind_ethernet_and_vlan_tags() {
    for is_tcp in [true, false] {
        for ip in [v4(1, 0xfffe), v6(1)] {
            for tags in [vec![], vec![(0x8100, 7)], vec![(0x88a8, 1), (0x8100, 2)]] {
                for limits in [Limits::NONE, PORT_CSUM] {
                    let mut case = Case::new(inner(ip.clone(), is_tcp, 5000), 1448);
                    case.ethernet = Some(Ethernet { tags: tags.clone(), ..Ethernet::default() });
                    check_case(&case, &limits);
                }
            }
        }
    }
}

#[test]
fn sizes_around_multiples_and_odd_ones() {
    for is_tcp in [true, false] {
        for size in [8, 9, 100, 1447, 1448] {
            for total in [1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 7 * size + 3] {
                check_case(&Case::new(inner(v4(1, 1), is_tcp, total), size), &Limits::NONE);
                let tunnel = over_udp(v6(0), Shim::Gue(Some(Remcsum::Transport)), None, true, true);
                check_case(&Case::new(inner(v4(1, 1), is_tcp, total), size).within(tunnel), &Limits::NONE);
            }
        }
    }
}

#[test]
fn identifications_stay_fixed_where_the_train_says_so() {
    for fixed in 0..4 {
        let gre = Gre { checksum: true, ..Gre::default() };
        let tunnel = over_udp(v4(0, 0xfffe), Shim::Gue(None), Some(gre), true, true);
        let mut case = Case::new(inner(v4(1, 0xffff), true, 500), 100).within(tunnel);
        case.fixed = fixed;
        check_case(&case, &Limits::NONE);
    }
}

#[test]
fn identifications_count_at_each_level_of_ipv4_where_they_are_not_fixed() {
    let direct = |net, id| Tunnel { ip: v4(net, id), udp: None, gre: None, ethernet: None };
    let over_udp = |shim, checksum| over_udp(v4(0, 0xfffe), shim, None, checksum, true);
    for tunnels in [
        vec![direct(0, 0xfffe)],
        vec![direct(0, 0xfffe), direct(2, 7)],
        vec![over_udp(Shim::Fou, false)],
        vec![over_udp(Shim::Fou, true)],
        vec![over_udp(Shim::Gue(None), true)],
        vec![over_udp(Shim::Gue(Some(Remcsum::Transport)), true)],
    ] {
        for (fixed, total) in (0..2_u16 << tunnels.len()).flat_map(|fixed| [(fixed, 500), (fixed, 533)]) {
            for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
                let train = Case::new(inner(v4(1, 0xffff), true, total), 100);
                check_case(&Case { tunnels: tunnels.clone(), fixed, ..train }, &limits);
            }
        }
    }
}

#[test]
fn outer_checksums_in_every_state_are_made_new_when_a_train_is_cut() {
    for outer in [LayerCsum::Owed, LayerCsum::Done, LayerCsum::Unknown] {
        for checksum in [true, false] {
            let gre = Gre { checksum: true, key: Some(1), seq: None };
            let tunnel = over_udp(v4(0, 9), Shim::Fou, Some(gre), checksum, false);
            let mut case = Case::new(inner(v6(1), true, 500), 150).within(tunnel);
            (case.outer, case.csum) = (outer, TrainCsum::Stale);
            check_case(&case, &Limits::NONE);
        }
    }
    // With nothing known of a checksum and none in the header, none is added.
    let mut case = Case::new(inner(v4(1, 1), true, 300), 100);
    case = case.within(over_udp(v4(0, 9), Shim::Fou, None, false, true));
    let mut train = case.train();
    train.offload.layers_mut()[0].udp = LayerCsum::Unknown;
    for out in split_both(&train, &Limits::NONE).unwrap().0 {
        assert!(!verify(&out.bytes, oracle::Start::Ip, &ports()).unwrap().levels[0].has_udp_checksum);
    }
}

#[test]
fn two_tunnel_levels_with_checksums_at_both() {
    let gre = |seq| Some(Gre { checksum: true, key: None, seq });
    for shim in [Shim::Fou, Shim::Gue(None), Shim::Gue(Some(Remcsum::Transport)), Shim::Gue(Some(Remcsum::Gre))] {
        for limits in [Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH] {
            for is_tcp in [true, false] {
                let near = over_udp(v6(2), shim, gre(Some(5)), true, true);
                let far = over_udp(v4(0, 0xffff), Shim::Gue(None), gre(None), true, false);
                let case = Case::new(inner(v4(1, 0xffff), is_tcp, 1001), 250).within(near).within(far);
                check_case(&case, &limits);
            }
        }
    }
}

#[test]
fn a_remote_checksum_of_the_outer_level_reaches_through_a_checksummed_inner_level() {
    // The far end of the outer tunnel completes the innermost header; only then the inner level's checksums are right.
    for limits in [Limits::NONE, PORT_OUTER] {
        let gre = Some(Gre { checksum: true, key: None, seq: Some(1) });
        let near = over_udp(v4(2, 1), Shim::Fou, gre, true, true);
        let far = over_udp(v4(0, 1), Shim::Gue(Some(Remcsum::Transport)), gre, true, true);
        let mut train = Case::new(inner(v4(1, 1), true, 1000), 300).within(near).within(far).train();
        // The builder points the option at the inner level's UDP header.
        let gue = *train.layout.headers().iter().find(|h| h.kind == Kind::Gue).unwrap();
        let start = train.layout.transport().unwrap().start() - gue.end();
        write_u16(train.head.bytes_mut(), gue.start() + 8, start as u16);
        write_u16(train.head.bytes_mut(), gue.start() + 10, (start + tcp::CHECKSUM) as u16);
        for out in split_both(&train, &limits).unwrap().0 {
            let (_, report) = complete_as_port(&out, &limits, oracle::Start::Ip);
            assert!(report.levels.iter().take(2).all(|l| l.has_udp_checksum && l.has_gre_checksum));
            assert_eq!(report.transport.unwrap().csum, oracle::Csum::Remote);
        }
    }
}

#[test]
fn the_worked_example_of_primed_values() {
    // Computed by hand: pseudo headers of 198.18.1.1 -> 198.18.1.2 with lengths 1480, 1480 and 136.
    let case = Case::new(inner(Ip::V4(V4::new(1, 1, 2)), true, 3000), 1448);
    let case = case.within(over_udp(Ip::V4(V4::new(0, 1, 2)), Shim::Gue(Some(Remcsum::Transport)), None, true, true));
    for limits in [Limits::NONE, PORT_BOTH] {
        let out = split_both(&case.train(), &limits).unwrap().0;
        let primed: Vec<_> = out.iter().map(|o| [o.bytes[60 + 16], o.bytes[60 + 17]]).collect();
        assert_eq!(primed, [[0x93, 0xf6], [0x93, 0xf6], [0x8e, 0xb6]]);
        assert!(out.iter().all(|o| o.bytes[28..40] == [2, 4, 0, 1, 0x80, 0, 0, 0, 0, 20, 0, 36]));
    }
}

#[test]
fn payload_is_summed_only_without_checksum_offload() {
    let inner = inner(v4(1, 1), true, 3000);
    let plain = Case::new(inner.clone(), 1000);
    assert_eq!(check_case(&plain, &Limits::NONE), 3000);
    assert_eq!(check_case(&plain, &PORT_CSUM), 0);
    let gre = Some(Gre { checksum: true, ..Gre::default() });
    let local = plain.clone().within(over_udp(v4(0, 1), Shim::Gue(None), gre, true, true));
    assert_eq!(check_case(&local, &Limits::NONE), 3000);
    assert_eq!(check_case(&local, &PORT_CSUM), 0, "GRE and outer UDP checksums come from the inner pseudo header");
    let remote = plain.within(over_udp(v4(0, 1), Shim::Gue(Some(Remcsum::Transport)), gre, true, true));
    assert_eq!(check_case(&remote, &Limits::NONE), 3000);
    assert_eq!(check_case(&remote, &PORT_OUTER), 0);
}

#[test]
fn a_train_goes_whole_to_a_port_that_takes_it() {
    for is_tcp in [true, false] {
        for ip in [v4(1, 7), v6(1)] {
            for csum in [TrainCsum::Partial, TrainCsum::Stale] {
                let case = Case { csum, ..Case::new(inner(ip.clone(), is_tcp, 10_000), 1448) };
                let (out, summed) = split_both(&case.train(), &PORT_TSO).unwrap();
                assert_eq!((out.len(), summed), (1, 0));
                assert_eq!(out[0].csum, SegmentCsum::Partial);
                assert_eq!(out[0].gso.map(|g| usize::from(g.size)), Some(1448));
                assert_eq!(out[0].bytes, build::prime(&case.expected(0..10_000)).unwrap());
            }
        }
    }
}

#[test]
fn each_kind_of_train_needs_its_own_offload_and_checksums() {
    let cut = |is_tcp, ip, limits: Limits| {
        let case = Case::new(inner(ip, is_tcp, 10_000), 1448);
        split_both(&case.train(), &limits).unwrap().0.len()
    };
    assert_eq!(cut(true, v4(1, 1), Limits { tso4: false, ..PORT_TSO }), 7);
    assert_eq!(cut(true, v6(1), Limits { tso6: false, ..PORT_TSO }), 7);
    assert_eq!(cut(false, v4(1, 1), Limits { uso: false, ..PORT_TSO }), 7);
    assert_eq!(cut(true, v4(1, 1), Limits { csum: false, ..PORT_TSO }), 7);
    assert_eq!(cut(true, v4(1, 1), Limits { tso6: false, uso: false, ..PORT_TSO }), 1);
    let tunnelled = Case::new(inner(v4(1, 1), true, 10_000), 1448);
    let tunnelled = tunnelled.within(over_udp(v4(0, 1), Shim::Fou, None, true, true));
    assert_eq!(check_case(&tunnelled, &PORT_TSO), 0, "a train in a tunnel needs an offload of its own");
}

#[test]
fn a_train_that_is_too_large_is_cut_into_smaller_trains_first() {
    let head = 20 + 32;
    for (is_tcp, limits, per_part) in [
        (true, Limits { max_bytes: head + 5 * 1448, ..PORT_TSO }, 5),
        (true, Limits { max_bytes: head + 5 * 1448 - 1, ..PORT_TSO }, 4),
        (true, Limits { max_segs: 3, ..PORT_TSO }, 3),
        (false, Limits { max_udp_segs: 6, max_segs: 1, ..PORT_TSO }, 6),
        (true, Limits { max_segs: 1, ..PORT_TSO }, 1),
        (true, Limits { max_bytes: 10, ..PORT_TSO }, 1),
    ] {
        let case = Case::new(inner(v4(1, 0xfffd), is_tcp, 13 * 1448 + 5), 1448);
        let (out, summed) = split_both(&case.train(), &limits).unwrap();
        assert_eq!((out.len(), summed), (14_usize.div_ceil(per_part), 0));
        let mut at = 0;
        for out in out {
            let end = (at + per_part * 1448).min(13 * 1448 + 5);
            assert_eq!(out.bytes, build::prime(&case.expected(at..end)).unwrap());
            assert_eq!(out.gso.is_some(), end - at > 1448, "a part of one segment is no train");
            assert_eq!(out.csum, SegmentCsum::Partial);
            at = end;
        }
    }
}

#[test]
fn a_short_end_stays_with_the_last_train_where_it_fits() {
    let case = Case::new(inner(v4(1, 1), true, 3 * 1000 + 1), 1000);
    let limits = Limits { max_bytes: 52 + 3001, ..PORT_TSO };
    assert_eq!(split_both(&case.train(), &limits).unwrap().0.len(), 1);
    let limits = Limits { max_bytes: 52 + 3000, ..PORT_TSO };
    assert_eq!(split_both(&case.train(), &limits).unwrap().0.len(), 2);
}

#[test]
fn a_train_is_cut_where_its_pieces_are_too_many_for_the_port() {
    let case = Case::new(inner(v6(1), true, 20_000), 1000);
    let mut train = case.train();
    let frags = train.payload.frags().len();
    assert_eq!(split_both(&train, &Limits { max_pieces: frags + 1, ..PORT_TSO }).unwrap().0.len(), 1);
    for max_pieces in [0, 1, 2, 4, 7, frags] {
        let limits = Limits { max_pieces, ..PORT_TSO };
        let out = split_both(&train, &limits).unwrap().0;
        let mut at = 0;
        for out in out {
            let len = out.bytes.len() - 72;
            assert_eq!(out.bytes, build::prime(&case.expected(at..at + len)).unwrap());
            let pieces = train.payload.pieces(at..at + len).count() + 1;
            assert!(pieces <= max_pieces || len == 1000, "{pieces} pieces for {max_pieces}");
            at += len;
        }
        assert_eq!(at, 20_000);
    }
    // Pieces that are segments, as a receiver makes them: as many are combined as the port takes.
    train.payload.clear();
    (0..20).for_each(|i| train.payload.push(Frag::new(case.inner.data.clone(), i * 1000..(i + 1) * 1000)));
    let out = split_both(&train, &Limits { max_pieces: 6, ..PORT_TSO }).unwrap().0;
    assert_eq!(out.iter().map(|o| o.bytes.len() - 72).collect::<Vec<_>>(), [5000; 4]);
}

#[test]
fn a_train_longer_than_an_ip_packet_is_cut_even_for_a_port_without_limits() {
    let mut case = Case::new(inner(v4(1, 1), true, 200_000), 1448);
    for max_bytes in [65_535, 65_535 + 256] {
        let out = split_both(&case.train(), &Limits { max_bytes, ..PORT_TSO }).unwrap().0;
        assert_eq!(out.len(), 4);
        assert!(out.iter().all(|o| o.bytes.len() <= 65_535 && o.gso.is_some()));
    }
    case.size = 1000;
    check_case(&case, &Limits::NONE);
}

#[test]
fn a_port_that_takes_more_than_an_ip_packet_gets_tcp_trains_with_a_length_of_zero() {
    for (ip, length_at) in [(v4(1, 1), 2), (v6(1), 4)] {
        let case = Case::new(inner(ip.clone(), true, 200_000), 1448);
        let out = split_both(&case.train(), &Limits { max_bytes: 500_000, ..PORT_TSO }).unwrap().0;
        let whole = &out[0].bytes;
        assert_eq!((out.len(), whole.len()), (1, case.train().len()));
        assert_eq!(whole[length_at..length_at + 2], [0, 0]);
        // The result can be parsed again.
        let layout = segue::wire::parse(whole, Start::Ip, &Tunnels::NONE);
        assert!(layout.is_exact() && layout.transport().is_some() && layout.end() == whole.len());
        let out = split_both(&case.train(), &Limits { max_bytes: 100_000, ..PORT_TSO }).unwrap().0;
        assert_eq!(out.len(), 3);
        assert!(out.iter().all(|o| o.bytes.len() <= 100_000));
        // Datagrams have no such form.
        let case = Case::new(inner(ip, false, 100_000), 1400);
        let out = split_both(&case.train(), &Limits { max_bytes: 500_000, ..PORT_TSO }).unwrap().0;
        assert!(out.len() > 1 && out.iter().all(|o| o.bytes.len() <= 65_535));
    }
}

#[test]
fn cwr_on_all_segments_is_put_on_all_and_left_to_no_port() {
    let mut case = Case::new(inner(v4(1, 1), true, 5000), 1448);
    if let L4::Tcp(tcp) = &mut case.inner.l4 {
        tcp.flags |= 0x80;
    }
    for (cwr, sizes) in [(0, 1), (Gso::CWR, 4)] {
        let mut train = case.train();
        let Unit::Train { gso, .. } = &mut train.offload.unit else { panic!("a train") };
        gso.fixed_ids |= cwr;
        assert_eq!(split_both(&train, &PORT_TSO).unwrap().0.len(), sizes);
        let out = split_both(&train, &Limits::NONE).unwrap().0;
        let flags: Vec<_> = out.iter().map(|o| o.bytes[33] & 0x80 != 0).collect();
        assert_eq!(flags, [true, cwr != 0, cwr != 0, cwr != 0]);
        for segment in &out {
            oracle::verify(&segment.bytes, oracle::Start::Ip, &Ports::default()).unwrap();
        }
    }
}

#[test]
fn tiny_segments_are_kept_where_they_came_in_and_raised_where_they_were_only_asked_for() {
    let mut case = Case::new(inner(v4(1, 1), true, 20), 3);
    case.csum = TrainCsum::Stale;
    check_case(&case, &Limits::NONE);
    case.csum = TrainCsum::Partial;
    let out = split_both(&case.train(), &Limits::NONE).unwrap().0;
    assert_eq!(out.iter().map(|o| o.bytes.len() - 52).collect::<Vec<_>>(), [8, 8, 4]);
    check_case(&Case::new(inner(v4(1, 1), false, 7), 1), &Limits::NONE);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    // 198.18.1.1:1000 -> 198.18.1.2:2000 with this payload sums to ffff.
    let data = [[0x65, 0xfa], [0x65, 0xfa], [0x65, 0xfb]].concat();
    let packet = build::Packet { data, ..inner(Ip::V4(V4::new(1, 1, 2)), false, 0) };
    let case = Case::new(packet, 2);
    check_case(&case, &Limits::NONE);
    let out = split_both(&case.train(), &Limits::NONE).unwrap().0;
    assert_eq!(
        out.iter().map(|o| [o.bytes[26], o.bytes[27]]).collect::<Vec<_>>(),
        [[255, 255], [255, 255], [255, 254]]
    );
}

/// Tests that an outer UDP checksum that comes out as zero is sent as all ones, over IPv6 (RFC 6935, section 5) as over
/// IPv4, in every tunnel form.
#[test]
fn an_outer_udp_checksum_of_zero_is_sent_as_all_ones() {
    let mut over = [0, 0];
    for (is_tcp, ip) in [(true, v4(1, 7)), (false, v6(1))] {
        for mut tunnel in every_tunnel(matches!(ip, Ip::V4(_))) {
            let is_v6 = matches!(tunnel.ip, Ip::V6(_));
            let field = if is_v6 { 46..48 } else { 26..28 };
            let of = |tunnel: &Tunnel| Case::new(inner(ip.clone(), is_tcp, 300), 100).within(tunnel.clone());
            let found = of(&tunnel).expected(0..100)[field.clone()].try_into().map(u16::from_be_bytes).unwrap();
            let Some((udp, _)) = tunnel.udp.as_mut().filter(|(udp, _)| udp.checksum) else { continue };
            // With this source port the sum of the first segment is all ones.
            let (port, carry) = udp.src_port.overflowing_add(found);
            udp.src_port = port + u16::from(carry);
            let case = of(&tunnel);
            for limits in [Limits::NONE, PORT_CSUM] {
                check_case(&case, &limits);
                let out = split_both(&case.train(), &limits).unwrap().0;
                assert_eq!(out[0].bytes[field.clone()], [0xff, 0xff], "{case:?}");
            }
            over[usize::from(is_v6)] += 1;
        }
    }
    assert!(over.iter().all(|count| *count > 40), "{over:?}");
}

#[test]
fn a_port_takes_more_than_an_ip_packet_only_if_it_takes_more_than_one_and_the_longest_headers() {
    // Whole it has 65,652 bytes.
    let case = Case::new(inner(v4(1, 1), true, 65_600), 1448);
    for (max_bytes, parts) in [(65_535, 2), (65_535 + 256, 2), (65_535 + 257, 1)] {
        let out = split_both(&case.train(), &Limits { max_bytes, ..PORT_TSO }).unwrap().0;
        assert_eq!(out.len(), parts, "{max_bytes}");
    }
}
