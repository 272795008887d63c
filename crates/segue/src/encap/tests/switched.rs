//! Tests of what changes while a tunnel runs: sequence numbers, remote checksum offload and the remote address.

use super::*;

/// A TCP segment from 198.18.1.1 to 198.18.1.2 with a primed checksum.
const TCP_PRIMED: &str =
    "4500002c000040004006aca4c6120101c6120102 03e80050 00000001 00000001 50182000 8e460000 47455420";

fn sent(tunnel: &mut Encapsulator) -> Packet<Vec<u8>> {
    let mut packet = load_partial(&hex(TCP_PRIMED));
    tunnel.push(&mut packet).unwrap();
    packet
}

/// Tests that the sequence number follows the outer headers and the first word of GRE (RFC 2890, section 2).
#[test]
fn sequence_numbers_go_on_where_they_are_told_to() {
    let numbered = Mode::Gre(GreOptions { oseq: true, ..GreOptions::default() });
    let mut tunnel = Encapsulator::new(sender(numbered, Carrier::Fou)).unwrap();
    for expected in [0_u32, 1] {
        assert_eq!(tunnel.sequence(), Some(expected));
        assert_eq!(bytes_of(&sent(&mut tunnel))[32..36], expected.to_be_bytes());
    }
    tunnel.go_on(u32::MAX);
    assert_eq!(tunnel.sequence(), Some(u32::MAX));
    assert_eq!(bytes_of(&sent(&mut tunnel))[32..36], [0xff; 4]);
    assert_eq!(tunnel.sequence(), Some(0));
    let plain = sender(Mode::Gre(GreOptions::default()), Carrier::Fou);
    assert_eq!(Encapsulator::new(plain).unwrap().sequence(), None);
}

#[test]
fn remote_checksum_offload_is_switched_only_where_it_was_configured() {
    let [on, off] = [true, false].map(|remcsum| Carrier::Gue { remcsum });
    let mut tunnel = Encapsulator::new(sender(Mode::Ipip, on)).unwrap();
    for (is_on, carrier, remote) in [(false, off, None), (true, on, Some(Remote::Transport))] {
        assert!(tunnel.set_remcsum(is_on));
        assert_eq!(tunnel.config().carrier, carrier);
        assert_eq!(sent(&mut tunnel).offload.layers()[0].remote, remote);
    }
    let mut plain = Encapsulator::new(sender(Mode::Ipip, off)).unwrap();
    assert!(!plain.set_remcsum(true));
    assert_eq!(plain.config().carrier, off);
    assert_eq!(sent(&mut plain).offload.layers()[0].remote, None);
    let [on, off] = [true, false].map(|remcsum| Carrier::Vxlan { vni: 5, remcsum, takes_remcsum: false });
    let mut frames = Encapsulator::new(sender(Mode::Ethernet, on)).unwrap();
    assert!(frames.set_remcsum(false));
    assert_eq!(frames.config().carrier, off);
}

#[test]
fn a_tunnel_is_aimed_at_addresses_of_its_own_family() {
    let config = sender(Mode::Ipip, Carrier::Fou);
    let mut tunnel = Encapsulator::new(config).unwrap();
    assert_eq!(sent(&mut tunnel).outer.unwrap().to, 0);
    for (to, number) in [("198.18.0.7", 3), ("2001:db8::1", 4)] {
        tunnel.aim(address(to), number);
        let packet = sent(&mut tunnel);
        assert_eq!(packet.head.bytes()[16..20], [198, 18, 0, 7], "{to}");
        assert_eq!(packet.head.bytes()[22..24], config.dport.to_be_bytes(), "{to}");
        assert_eq!((packet.outer.unwrap().to, tunnel.config().remote), (3, address("198.18.0.7")), "{to}");
    }
}
