//! The identity that distinguishes tunnels with the same remote on one port: GRE key, network identifier or protocol.

use core::mem::discriminant;

use super::config::{Carrier, Config, GreOptions, Mode};
use crate::wire::geneve::Geneve;
use crate::wire::gre::Gre;
use crate::wire::gue::Gue;
use crate::wire::vxlan::Vxlan;
use crate::wire::{ethertype, protocol};

/// The identity of the tunnel that a datagram belongs to. Two tunnels with the same remote and port can be
/// distinguished if they have no identity in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// The network identifier of VXLAN or Geneve.
    Network(u32),
    /// The IP protocol number of the inner packet.
    Protocol(u8),
    /// GRE with this key, or without a key; `true` for inner Ethernet.
    Gre(Option<u32>, bool),
}

impl Config {
    /// Returns every identity that received packets of the tunnel can have: one, or two if both IPv4 and IPv6 are
    /// inside without GRE.
    pub fn identities(&self) -> impl Iterator<Item = Identity> + use<> {
        let network = match self.carrier {
            Carrier::Vxlan { vni, .. } | Carrier::Geneve { vni } => Some(Identity::Network(vni)),
            Carrier::Gue { .. } | Carrier::Fou | Carrier::Bare => None,
        };
        let gre = self.mode.gre().map(|options: &GreOptions| Identity::Gre(options.ikey, self.mode.is_ethernet()));
        let one = network.or(gre);
        let protocols = if one.is_some() { &[] } else { self.mode.protocols() };
        one.into_iter().chain(protocols.iter().map(|&number| Identity::Protocol(number)))
    }

    /// Returns the identity of `datagram`, a UDP payload, for this tunnel and any that shares a port with it
    /// ([`shares`](Self::shares)); `None` if its headers are unreadable.
    pub fn identify(&self, datagram: &[u8]) -> Option<Identity> {
        let gre_at = match self.carrier {
            Carrier::Vxlan { .. } => return Vxlan::parse(datagram).ok().map(|header| Identity::Network(header.vni)),
            Carrier::Geneve { .. } => return Geneve::parse(datagram).ok().map(|header| Identity::Network(header.vni)),
            Carrier::Gue { .. } => {
                let header = Gue::parse(datagram).ok()?;
                if header.protocol != protocol::GRE {
                    return Some(Identity::Protocol(header.protocol));
                }
                header.len
            }
            Carrier::Fou | Carrier::Bare => match self.mode {
                Mode::Gre(_) | Mode::GreTap(_) => 0,
                Mode::Ethernet => return Some(Identity::Protocol(protocol::ETHERNET)),
                Mode::Ipip | Mode::Sit | Mode::Ip => {
                    return match datagram.first()? >> 4 {
                        4 => Some(Identity::Protocol(protocol::IPV4)),
                        6 => Some(Identity::Protocol(protocol::IPV6)),
                        _ => None,
                    };
                }
            },
        };
        let gre = Gre::parse(datagram.get(gre_at..)?)?;
        Some(Identity::Gre(gre.key, gre.protocol == ethertype::TEB))
    }

    /// Returns whether one port can receive for both tunnels, whose datagrams must carry their identity at the same
    /// offset.
    pub fn shares(&self, other: &Config) -> bool {
        let says = matches!(self.carrier, Carrier::Gue { .. } | Carrier::Vxlan { .. } | Carrier::Geneve { .. });
        let inside = |mode: Mode| (mode.gre().is_some(), mode.gre().is_none() && mode.is_ethernet());
        discriminant(&self.carrier) == discriminant(&other.carrier) && (says || inside(self.mode) == inside(other.mode))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::encap::{Decapsulator, Encapsulator, OuterCsum, Received};
    use crate::packet::{Frag, Packet, Start, Tunnels};

    const GUE: Carrier = Carrier::Gue { remcsum: false };

    fn tunnels() -> Vec<Config> {
        let gre = |key| GreOptions { ikey: key, okey: key, ..GreOptions::default() };
        let vxlan = |vni| Carrier::Vxlan { vni, remcsum: false, takes_remcsum: false };
        let all = [
            (Mode::Ipip, GUE),
            (Mode::Sit, GUE),
            (Mode::Ethernet, GUE),
            (Mode::Gre(gre(None)), GUE),
            (Mode::Gre(gre(Some(0))), GUE),
            (Mode::Gre(gre(Some(7))), GUE),
            (Mode::GreTap(gre(Some(7))), GUE),
            (Mode::Ip, Carrier::Fou),
            (Mode::Gre(gre(Some(1))), Carrier::Bare),
            (Mode::GreTap(gre(None)), Carrier::Bare),
            (Mode::Ethernet, vxlan(0)),
            (Mode::Ethernet, vxlan(0x00ff_ffff)),
            (Mode::Ethernet, Carrier::Geneve { vni: 1 }),
        ];
        let address = |text: &str| text.parse().unwrap();
        all.map(|(mode, carrier)| Config::new(mode, carrier, address("198.18.0.1"), address("198.18.0.2"))).to_vec()
    }

    /// Returns the bytes that a tunnel with `config` sends for a packet that it carries, without outer IP and UDP.
    fn sent(config: &Config) -> Vec<u8> {
        use segue_testkit::build::{Ip, V4, V6};
        let ip = if config.mode == Mode::Sit { Ip::V6(V6::new(1, 1, 2)) } else { Ip::V4(V4::new(1, 1, 2)) };
        let mut bytes = segue_testkit::flow::Sender::tcp(ip, 0, 1000, Vec::new()).send(100, 0).bytes();
        let mut start = Start::Ip;
        if config.mode.is_ethernet() {
            bytes.splice(0..0, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
            start = Start::Ethernet;
        }
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), start, &Tunnels::NONE);
        Encapsulator::new(*config).unwrap().push(&mut packet).unwrap();
        let mut all = packet.head.bytes()[usize::from(packet.outer.unwrap().skip)..].to_vec();
        packet.payload.frags().iter().for_each(|frag| all.extend_from_slice(frag.bytes()));
        all
    }

    #[test]
    fn a_datagram_has_the_identity_of_the_one_tunnel_that_takes_it() {
        let tunnels = tunnels();
        for from in &tunnels {
            let datagram = sent(from);
            for to in tunnels.iter().filter(|to| to.shares(from)) {
                let meta = Received { tos: 0, csum: OuterCsum::Verified, sum: None };
                let mut into = Packet::default();
                let takes = Decapsulator::new(*to).unwrap().pull(Frag::all(&datagram[..]), &meta, &mut into).is_ok();
                let identity = to.identify(&datagram).unwrap();
                assert_eq!(identity, from.identify(&datagram).unwrap(), "whoever reads it");
                assert_eq!(takes, to.identities().any(|own| own == identity), "{from:?} to {to:?}");
                assert_eq!(takes, from == to, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn tunnels_whose_datagrams_say_nothing_in_the_same_place_share_no_port() {
        let [gre, ip, gue] = [(1, Carrier::Fou), (0, Carrier::Fou), (0, GUE)].map(|(mode, carrier)| Config {
            mode: [Mode::Ipip, Mode::Gre(GreOptions::default())][mode],
            carrier,
            ..tunnels()[0]
        });
        assert!(!gre.shares(&ip) && !ip.shares(&gue) && ip.shares(&Config { mode: Mode::Sit, ..ip }));
        assert!(gre.shares(&Config { mode: Mode::GreTap(GreOptions::default()), ..gre }));
        assert!(gue.shares(&Config { mode: Mode::Ethernet, ..gue }));
    }

    #[test]
    fn what_cannot_be_read_has_no_identity() {
        for config in tunnels().iter().filter(|config| config.mode != Mode::Ethernet || config.carrier != Carrier::Fou)
        {
            assert_eq!(config.identify(&[]), None, "{config:?}");
            assert_eq!(config.identify(&[0xff; 40]), None, "{config:?}");
        }
    }

    #[test]
    fn a_packet_in_udp_alone_is_identified_by_its_version() {
        let fou = Config { mode: Mode::Ip, carrier: Carrier::Fou, ..tunnels()[0] };
        let [v4, v6] = [protocol::IPV4, protocol::IPV6].map(|number| Some(Identity::Protocol(number)));
        for (first, expected) in [(0x45, v4), (0x60, v6), (0x6f, v6), (0x50, None), (0x04, None)] {
            assert_eq!(fou.identify(&[first]), expected, "{first:x}");
        }
    }
}
