//! What the packets of a case travel in.

use super::{On, Rules};
use crate::build::{Ethernet, Gre, Ip, Remcsum, Shim, Tunnel, Udp, V4, V6};
use crate::sum::with_pseudo;

/// The GUE port.
pub const GUE_PORT: u16 = 6080;
/// The FOU ports over IPv4, each with its IP protocol.
pub const FOU_PORTS: [(u16, u8); 3] = [(5554, 4), (5541, 41), (5547, 47)];
/// The FOU ports over IPv6.
pub const FOU6_PORTS: [(u16, u8); 1] = [(5564, 4)];
/// The VXLAN port (RFC 7348, section 8).
pub const VXLAN_PORT: u16 = 4789;
/// The Geneve port (RFC 8926, section 7).
pub const GENEVE_PORT: u16 = 6081;

/// What a kernel must have to join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Nothing but GRO.
    Plain,
    /// IP in IP, of either version in either.
    Ipip,
    /// GRE right in IP.
    Gre,
    /// VXLAN, by a device.
    Vxlan,
    /// VLAN tags in the frame.
    Vlan,
    /// FOU, by a port.
    Fou,
    /// GUE, by a port.
    Gue,
    /// Geneve, by a device.
    Geneve,
}

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 8] = [
        Feature::Plain,
        Feature::Ipip,
        Feature::Gre,
        Feature::Vxlan,
        Feature::Vlan,
        Feature::Fou,
        Feature::Gue,
        Feature::Geneve,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Plain => "plain",
            Feature::Ipip => "ipip",
            Feature::Gre => "gre",
            Feature::Vxlan => "vxlan",
            Feature::Vlan => "vlan",
            Feature::Fou => "fou",
            Feature::Gue => "gue",
            Feature::Geneve => "geneve",
        }
    }
}

/// Whose rules join anything in a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joins {
    All,
    Nobody,
    AllButLinux,
}

impl Joins {
    pub(super) fn has(self, rules: Rules) -> bool {
        match self {
            Joins::All => true,
            Joins::Nobody => false,
            Joins::AllButLinux => matches!(rules, Rules::Strict | Rules::Lro),
        }
    }
}

/// Headers around an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Around {
    Tunnel(Tunnel),
    /// UDP, a header that ends in a network identifier, and Ethernet.
    Vni {
        ip: Ip,
        udp: Udp,
        header: Vec<u8>,
        ethernet: Ethernet,
    },
}

impl Around {
    pub(super) fn wrap(&self, inner: &[u8]) -> Vec<u8> {
        match self {
            Around::Tunnel(tunnel) => tunnel.wrap(inner),
            Around::Vni { ip, udp, header, ethernet } => {
                let inside = [&header[..], &ethernet.wrap(inner)].concat();
                let length = u16::try_from(8 + inside.len()).expect("a UDP datagram has at most 65535 bytes");
                let ports = [udp.src_port.to_be_bytes(), udp.dst_port.to_be_bytes()].concat();
                let mut datagram = [&ports[..], &length.to_be_bytes(), &[0, 0], &inside].concat();
                if udp.checksum {
                    let (src, dst) = ip.addresses();
                    let checksum = !with_pseudo(src, dst, 17, &datagram);
                    let checksum = if checksum == 0 { 0xffff } else { checksum };
                    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
                }
                [ip.header(17, datagram.len()), datagram].concat()
            }
        }
    }

    pub(super) fn ip(&self) -> &Ip {
        match self {
            Around::Tunnel(Tunnel { ip, .. }) | Around::Vni { ip, .. } => ip,
        }
    }

    pub(super) fn ip_mut(&mut self) -> &mut Ip {
        match self {
            Around::Tunnel(Tunnel { ip, .. }) | Around::Vni { ip, .. } => ip,
        }
    }

    pub(super) fn udp(&self) -> Option<Udp> {
        match self {
            Around::Tunnel(tunnel) => tunnel.udp.map(|(udp, _)| udp),
            Around::Vni { udp, .. } => Some(*udp),
        }
    }

    /// Bytes between the GRE header and the inner IP packet, GRE included, where there is GRE with a checksum.
    pub(super) fn gre_checksum(&self) -> Option<usize> {
        let Around::Tunnel(Tunnel { gre: Some(gre), ethernet, .. }) = self else { return None };
        let len = 4 + 4 + 4 * usize::from(gre.key.is_some()) + 4 * usize::from(gre.seq.is_some());
        let inside = ethernet.as_ref().map_or(0, |ethernet| 14 + 4 * ethernet.tags.len());
        gre.checksum.then_some(len + inside)
    }
}

/// What the packets of a case travel in.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// Its name, from the outside to the inside.
    pub name: String,
    /// What a kernel needs for it.
    pub feature: Feature,
    pub(super) around: Option<Around>,
    pub(super) link: Ethernet,
    pub(super) inner: Ip,
    pub(super) joins: Joins,
}

impl Carrier {
    pub(super) fn takes(&self, on: On) -> bool {
        let (mut has_checksum, mut has_key, mut has_ethernet, mut is_remote) = (false, false, false, false);
        if let Some(Around::Tunnel(tunnel)) = &self.around {
            has_checksum = tunnel.gre.is_some_and(|gre| gre.checksum);
            has_key = tunnel.gre.is_some_and(|gre| gre.key.is_some());
            is_remote = matches!(tunnel.udp, Some((_, Shim::Gue(Some(_)))));
            has_ethernet = tunnel.ethernet.is_some();
        }
        let outer = self.around.as_ref().map(Around::ip);
        let is_vni = matches!(self.around, Some(Around::Vni { .. }));
        match on {
            On::Any => true,
            On::V4 => matches!(self.inner, Ip::V4(_)),
            On::V6 => matches!(self.inner, Ip::V6(_)),
            On::Plain => self.feature == Feature::Plain,
            On::Outer4 => matches!(outer, Some(Ip::V4(_))),
            On::Outer6 => matches!(outer, Some(Ip::V6(_))),
            On::OwnChecksum => !is_remote,
            On::RemoteChecksum => is_remote,
            On::OuterUdp => self.around.as_ref().and_then(Around::udp).is_some_and(|udp| udp.checksum),
            On::GreChecksum => has_checksum,
            On::GreKey => has_key,
            On::Tagged => !self.link.tags.is_empty(),
            On::InnerEthernet => has_ethernet || is_vni,
            On::Vni => is_vni,
        }
    }

    fn joins(mut self, joins: Joins) -> Carrier {
        self.joins = joins;
        self
    }

    fn tags(mut self, tags: &[(u16, u16)]) -> Carrier {
        self.link.tags = tags.to_vec();
        self
    }
}

fn carrier(name: impl Into<String>, feature: Feature, around: Option<Around>, inner: Ip) -> Carrier {
    // Addressed to another host, so that no stack answers.
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: Vec::new() };
    Carrier { name: name.into(), feature, around, link, inner, joins: Joins::All }
}

fn tunnel(ip: Ip, udp: Option<(Udp, Shim)>, gre: Option<Gre>) -> Around {
    Around::Tunnel(Tunnel { ip, udp, gre, ethernet: None })
}

fn udp(dst_port: u16, checksum: bool) -> Udp {
    Udp { src_port: 50_000, dst_port, checksum }
}

const INSIDE: Ethernet = Ethernet { dst: [2, 0, 0, 0, 1, 1], src: [2, 0, 0, 0, 1, 2], tags: Vec::new() };
/// VNI 42.
const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 42, 0];
/// VNI 42, Ethernet inside, one option of four bytes that nobody must understand.
const GENEVE: [u8; 16] = [2, 0, 0x65, 0x58, 0, 0, 42, 0, 1, 1, 5, 1, 1, 2, 3, 4];

/// Every carrier.
pub fn carriers() -> Vec<Carrier> {
    let v4 = || Ip::V4(V4::new(1, 1, 2));
    let v6 = || Ip::V6(V6::new(1, 1, 2));
    let out4 = || Ip::V4(V4::new(0, 1, 2));
    let out6 = || Ip::V6(V6::new(0, 1, 2));
    let mut all = vec![carrier("4", Feature::Plain, None, v4()), carrier("6", Feature::Plain, None, v6())];

    for (outer, inner, name) in
        [(out4(), v4(), "4/4"), (out6(), v6(), "6/6"), (out4(), v6(), "4/6"), (out6(), v4(), "6/4")]
    {
        all.push(carrier(name, Feature::Ipip, Some(tunnel(outer.clone(), None, None)), inner.clone()));
    }

    let gres = [
        ("gre", Gre::default()),
        ("gre-key", Gre { key: Some(42), ..Gre::default() }),
        ("gre-csum", Gre { checksum: true, ..Gre::default() }),
        ("gre-key-csum", Gre { checksum: true, key: Some(7), seq: None }),
        ("gre-seq", Gre { seq: Some(9), ..Gre::default() }),
    ];
    for (name, gre) in gres {
        for (outer, inner, ips) in [
            (out4(), v4(), ["4", "4"]),
            (out4(), v6(), ["4", "6"]),
            (out6(), v4(), ["6", "4"]),
            (out6(), v6(), ["6", "6"]),
        ] {
            let [out, inside] = ips;
            let around = tunnel(outer, None, Some(gre));
            let joins = if gre.seq.is_some() { Joins::Nobody } else { Joins::All };
            all.push(carrier(format!("{out}/{name}/{inside}"), Feature::Gre, Some(around), inner).joins(joins));
        }
    }
    for (name, inner) in [("4/gre/eth/4", v4()), ("4/gre/eth/6", v6())] {
        let around = Tunnel { ip: out4(), udp: None, gre: Some(Gre::default()), ethernet: Some(INSIDE) };
        all.push(carrier(name, Feature::Gre, Some(Around::Tunnel(around)), inner));
    }

    for (feature, port, header) in
        [(Feature::Vxlan, VXLAN_PORT, &VXLAN[..]), (Feature::Geneve, GENEVE_PORT, &GENEVE[..])]
    {
        for (outer, inner, checksum, ips) in [
            (out4(), v4(), true, ["4", "4"]),
            (out4(), v6(), true, ["4", "6"]),
            (out4(), v4(), false, ["4", "4"]),
            (out6(), v4(), true, ["6", "4"]),
            (out6(), v6(), true, ["6", "6"]),
        ] {
            let bare = if checksum { "" } else { "-nocsum" };
            let name = format!("{}/{}{bare}/{}", ips[0], feature.name(), ips[1]);
            let around = Around::Vni { ip: outer, udp: udp(port, checksum), header: header.to_vec(), ethernet: INSIDE };
            all.push(carrier(name, feature, Some(around), inner));
        }
    }

    let fou = |port, checksum| Some((udp(port, checksum), Shim::Fou));
    let [ipip, sit, gre] = FOU_PORTS.map(|(port, _)| port);
    all.push(carrier("4/fou/4", Feature::Fou, Some(tunnel(out4(), fou(ipip, true), None)), v4()));
    all.push(carrier("4/fou-nocsum/4", Feature::Fou, Some(tunnel(out4(), fou(ipip, false), None)), v4()));
    all.push(carrier("4/fou/6", Feature::Fou, Some(tunnel(out4(), fou(sit, true), None)), v6()));
    all.push(carrier("6/fou/4", Feature::Fou, Some(tunnel(out6(), fou(FOU6_PORTS[0].0, true), None)), v4()));
    let keyed = Gre { key: Some(42), ..Gre::default() };
    let summed = Gre { checksum: true, ..Gre::default() };
    all.push(carrier("4/fou/gre-key/4", Feature::Fou, Some(tunnel(out4(), fou(gre, true), Some(keyed))), v4()));
    let around = tunnel(out4(), fou(gre, true), Some(summed));
    all.push(carrier("4/fou/gre-csum/4", Feature::Fou, Some(around), v4()).joins(Joins::AllButLinux));

    let gue = |shim, checksum| Some((udp(GUE_PORT, checksum), shim));
    let remote = Shim::Gue(Some(Remcsum::Transport));
    for (name, outer, outside, gre, inner) in [
        ("4/gue/4", out4(), gue(Shim::Gue(None), true), None, v4()),
        ("4/gue-nocsum/4", out4(), gue(Shim::Gue(None), false), None, v4()),
        ("4/gue/6", out4(), gue(Shim::Gue(None), true), None, v6()),
        ("6/gue/4", out6(), gue(Shim::Gue(None), true), None, v4()),
        ("6/gue/6", out6(), gue(Shim::Gue(None), true), None, v6()),
        ("4/gue1/4", out4(), gue(Shim::GueBare, true), None, v4()),
        ("4/gue1/6", out4(), gue(Shim::GueBare, true), None, v6()),
        ("4/gue/gre/4", out4(), gue(Shim::Gue(None), true), Some(Gre::default()), v4()),
        ("4/gue/gre-key/6", out4(), gue(Shim::Gue(None), true), Some(keyed), v6()),
        ("4/gue-rco/4", out4(), gue(remote, true), None, v4()),
        ("4/gue-rco/6", out4(), gue(remote, true), None, v6()),
        ("6/gue-rco/4", out6(), gue(remote, true), None, v4()),
        ("4/gue-rco/gre/4", out4(), gue(remote, true), Some(Gre::default()), v4()),
    ] {
        all.push(carrier(name, Feature::Gue, Some(tunnel(outer, outside, gre)), inner));
    }
    let around = tunnel(out4(), gue(Shim::Gue(None), true), Some(summed));
    all.push(carrier("4/gue/gre-csum/4", Feature::Gue, Some(around), v4()).joins(Joins::AllButLinux));

    // Priority 5, VLAN 5; and a service tag around it.
    let tags = [(0x88a8, 3), (0x8100, 0xa005)];
    all.push(carrier("vlan/4", Feature::Vlan, None, v4()).tags(&tags[1..]));
    all.push(carrier("vlan/6", Feature::Vlan, None, v6()).tags(&tags[1..]));
    all.push(carrier("vlan/vlan/4", Feature::Vlan, None, v4()).tags(&tags));
    all.push(carrier("vlan/4/4", Feature::Vlan, Some(tunnel(out4(), None, None)), v4()).tags(&tags[1..]));
    all.push(
        carrier("vlan/4/gre/6", Feature::Vlan, Some(tunnel(out4(), None, Some(Gre::default()))), v6()).tags(&tags[1..]),
    );
    all
}
