//! The headers that the packets of a case travel in: a link, and perhaps a tunnel.

use super::{On, Rules};
use crate::build::{Ethernet, Gre, Ip, Remcsum, Shim, Tunnel, Udp, V4, V6};

/// UDP port of GUE in the list.
pub const GUE_PORT: u16 = 6080;
/// FOU ports over IPv4, each with its IP protocol.
pub const FOU_PORTS: [(u16, u8); 3] = [(5554, 4), (5541, 41), (5547, 47)];
/// The FOU ports over IPv6.
pub const FOU6_PORTS: [(u16, u8); 1] = [(5564, 4)];
/// The VXLAN port (RFC 7348, section 8).
pub const VXLAN_PORT: u16 = 4789;
/// UDP port of VXLAN whose receiver accepts remote checksums.
pub const VXLAN_REMOTE_PORT: u16 = 4790;
/// The Geneve port (RFC 8926, section 7).
pub const GENEVE_PORT: u16 = 6081;

/// A kernel feature that is needed to join the packets of a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// GRO of packets without tunnels and tags.
    Plain,
    /// IP in IP, in all four combinations of versions.
    Ipip,
    /// The carrier uses GRE directly over IP.
    Gre,
    /// VXLAN, implemented by a network device.
    Vxlan,
    /// The carrier tags its frames with VLANs.
    Vlan,
    /// FOU, by a configured UDP port.
    Fou,
    /// GUE, by a configured UDP port.
    Gue,
    /// Geneve, implemented by a network device.
    Geneve,
}

impl Feature {
    /// All features of carriers.
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

    /// Returns the name of the feature.
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

/// The rules under which packets in a carrier are joined at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joins {
    All,
    Never,
    AllButLinux,
}

impl Joins {
    pub(super) fn has(self, rules: Rules) -> bool {
        match self {
            Joins::All => true,
            Joins::Never => false,
            Joins::AllButLinux => matches!(rules, Rules::Strict | Rules::Lro),
        }
    }
}

/// Returns the distance from the GRE checksum to the inner IP packet in bytes, or `None` without a GRE checksum.
pub(super) fn behind_gre_checksum(around: &Tunnel) -> Option<usize> {
    let gre = around.gre.filter(|gre| gre.checksum)?;
    let inside = around.ethernet.as_ref().map_or(0, |ethernet| 14 + 4 * ethernet.tags.len());
    Some(4 + 4 * usize::from(gre.key.is_some()) + 4 * usize::from(gre.seq.is_some()) + inside)
}

/// The headers that the packets of a case travel in: a link, and perhaps a tunnel.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// Name of the carrier, from the outermost header inwards.
    pub name: String,
    /// Feature that a kernel needs for the carrier.
    pub feature: Feature,
    pub(super) around: Option<Tunnel>,
    pub(super) link: Ethernet,
    pub(super) inner: Ip,
    pub(super) joins: Joins,
}

impl Carrier {
    pub(super) fn takes(&self, on: On) -> bool {
        let gre = self.around.as_ref().and_then(|around| around.gre);
        let udp = self.around.as_ref().and_then(|around| around.udp);
        let outer = self.around.as_ref().map(|around| &around.ip);
        match on {
            On::Any => true,
            On::V4 => matches!(self.inner, Ip::V4(_)),
            On::V6 => matches!(self.inner, Ip::V6(_)),
            On::Plain => self.feature == Feature::Plain,
            On::Outer4 => matches!(outer, Some(Ip::V4(_))),
            On::Outer6 => matches!(outer, Some(Ip::V6(_))),
            On::OwnChecksum => !self.is_remote(),
            On::RemoteChecksum => self.is_remote(),
            On::OuterUdp => udp.is_some_and(|(udp, _)| udp.checksum),
            On::GreChecksum => gre.is_some_and(|gre| gre.checksum),
            On::GreKey => gre.is_some_and(|gre| gre.key.is_some()),
            On::Tagged => !self.link.tags.is_empty(),
            On::InnerEthernet => self.around.as_ref().is_some_and(|around| around.ethernet.is_some()),
            On::Vni => matches!(udp, Some((_, Shim::Vxlan(..) | Shim::Geneve(..)))),
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        let shim = self.around.as_ref().and_then(|around| around.udp).map(|(_, shim)| shim);
        matches!(shim, Some(Shim::Gue(Some(_)) | Shim::Vxlan(_, true)))
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

fn carrier(name: impl Into<String>, feature: Feature, around: Option<Tunnel>, inner: Ip) -> Carrier {
    // Addressed to another host, so that no stack answers.
    let link = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: Vec::new() };
    Carrier { name: name.into(), feature, around, link, inner, joins: Joins::All }
}

fn tunnel(ip: Ip, udp: Option<(Udp, Shim)>, gre: Option<Gre>) -> Tunnel {
    Tunnel { ip, udp, gre, ethernet: None }
}

fn udp(dst_port: u16, checksum: bool) -> Udp {
    Udp { src_port: 50_000, dst_port, checksum }
}

const INSIDE: Ethernet = Ethernet { dst: [2, 0, 0, 0, 1, 1], src: [2, 0, 0, 0, 1, 2], tags: Vec::new() };
/// Returns all carriers of the vectors.
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
            let joins = if gre.seq.is_some() { Joins::Never } else { Joins::All };
            all.push(carrier(format!("{out}/{name}/{inside}"), Feature::Gre, Some(around), inner).joins(joins));
        }
    }
    for (name, inner) in [("4/gre/eth/4", v4()), ("4/gre/eth/6", v6())] {
        let around = Tunnel { ip: out4(), udp: None, gre: Some(Gre::default()), ethernet: Some(INSIDE) };
        all.push(carrier(name, Feature::Gre, Some(around), inner));
    }

    // Network 42; Geneve with one option of a word.
    let vxlan = (Feature::Vxlan, VXLAN_PORT, Shim::Vxlan(42, false));
    for (feature, port, shim) in [vxlan, (Feature::Geneve, GENEVE_PORT, Shim::Geneve(42, 1))] {
        for (outer, inner, checksum, ips) in [
            (out4(), v4(), true, ["4", "4"]),
            (out4(), v6(), true, ["4", "6"]),
            (out4(), v4(), false, ["4", "4"]),
            (out6(), v4(), true, ["6", "4"]),
            (out6(), v6(), true, ["6", "6"]),
        ] {
            let bare = if checksum { "" } else { "-nocsum" };
            let name = format!("{}/{}{bare}/{}", ips[0], feature.name(), ips[1]);
            let around =
                Tunnel { ip: outer, udp: Some((udp(port, checksum), shim)), gre: None, ethernet: Some(INSIDE) };
            all.push(carrier(name, feature, Some(around), inner));
        }
    }
    for (name, inner) in [("4/vxlan-rco/4", v4()), ("4/vxlan-rco/6", v6())] {
        let outside = Some((udp(VXLAN_REMOTE_PORT, true), Shim::Vxlan(42, true)));
        let around = Tunnel { ip: out4(), udp: outside, gre: None, ethernet: Some(INSIDE) };
        all.push(carrier(name, Feature::Vxlan, Some(around), inner));
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
