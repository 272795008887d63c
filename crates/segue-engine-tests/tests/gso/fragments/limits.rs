//! Tests of how much payload is summed for fragments, and of packets at the limits of what is read and written.

use super::*;

/// Tests that the payload of fragments is summed only for a checksum that covers it.
#[test]
fn the_payload_of_fragments_is_summed_only_for_a_checksum_that_covers_it() {
    let gre = |checksum| Some(Gre { checksum, key: None, seq: None });
    let bare = |gre| Some(Tunnel { ip: v4(0, 1), udp: None, gre, ethernet: None });
    let udp = |shim, gre, checksum| Some(over_udp(v4(0, 1), shim, gre, checksum, true));
    for (tunnel, csum, summed) in [
        (None, Csum::Partial, 3000),
        (None, Csum::Verified, 0),
        (bare(None), Csum::Partial, 3000),
        (bare(None), Csum::Verified, 0),
        (bare(gre(false)), Csum::Verified, 0),
        (bare(gre(true)), Csum::Verified, 3000),
        (udp(Shim::Fou, None, false), Csum::Verified, 0),
        (udp(Shim::Fou, gre(false), false), Csum::Verified, 0),
        (udp(Shim::Fou, None, true), Csum::Verified, 3000),
        (udp(Shim::Gue(Some(Remcsum::Gre)), gre(true), true), Csum::Verified, 3000),
    ] {
        let tunnels: Vec<Tunnel> = tunnel.into_iter().collect();
        let cut = packet(&datagram(free(1, 3), 3000), &tunnels, None, csum);
        let (out, found) = split_both(&cut, &limits(1500, SENDER)).unwrap();
        assert_eq!((out.len() > 1, found), (true, summed), "{tunnels:?} {csum:?}");
    }
}

/// Tests that all bytes of a packet that was not parsed count.
#[test]
fn a_packet_without_a_layout_is_as_long_as_its_bytes() {
    let mut unknown = Packet::default();
    unknown.payload.push(Frag::all(vec![0; 2000]));
    for policy in [Fragment::Never, SENDER] {
        assert_eq!(refusal_of(&unknown, 1500, policy), Refusal::TooBig);
    }
}

/// Tests that an IPv6 packet is not cut where headers that are not listed may belong to each fragment, and is where all
/// extension headers are listed and only the transport is too deep.
#[test]
fn what_is_too_deep_is_cut_where_all_extension_headers_are_known() {
    let options = |count| vec![(60, vec![1, 4, 0, 0, 0, 0]); count];
    let with = |count| inner(Ip::V6(V6 { extensions: options(count), ..V6::new(1, 1, 2) }), true, 3000).bytes();
    // Six are followed.
    assert_eq!(refusal(&with(7), 1500, SENDER), Refusal::TooBig);
    // A GUE header of 128 bytes leaves no room for the TCP header: 20 + 8 + 128 + 88 + 32.
    let mut bytes = over_udp(v4(0, 1), Shim::Gue(None), None, false, false).wrap(&with(6));
    bytes[28] += 31;
    bytes.splice(32..32, [0; 124]);
    let total = bytes.len();
    bytes[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    bytes[24..26].copy_from_slice(&((total - 20) as u16).to_be_bytes());
    bytes[10..12].fill(0);
    let checksum = !segue_testkit::sum::fold(&bytes[..20]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    let packet = load(&bytes, Start::Ip);
    assert_eq!((packet.layout.stop(), packet.layout.headers().len()), (segue::packet::Stop::TooDeep, 4));
    // 3080 bytes after the fixed header, of which each fragment holds 1500 - 156 - 40 - 8.
    let (out, _) = split_both(&packet, &limits(1500, SENDER)).unwrap();
    assert_eq!(out.iter().map(|out| out.bytes.len()).collect::<Vec<_>>(), [1500, 1500, 204 + 3080 - 2 * 1296]);
}

#[test]
fn an_ipv6_packet_longer_than_its_length_field_can_say_is_not_cut() {
    let mut bytes = vec![0; 70_000];
    (bytes[0], bytes[6], bytes[7], bytes[40 + 12]) = (0x60, 6, 64, 0x50);
    assert_eq!(refusal(&bytes, 1500, SENDER), Refusal::Length);
}
