//! Trains that a kernel's own tunnel devices encapsulate, up to two of them, and the expected packets.

use super::carrier::{FOU_PORTS, Feature, GENEVE_PORT, GUE_PORT, VXLAN_PORT, VXLAN_REMOTE_PORT};
use super::vectors::{Vector, tcp, vector};
use crate::build::{Ethernet, Gre, Ip, L4, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6, primed};
use crate::fragment::fragments;

/// Name of the device that tunnels leave by. It has 198.18.0.1 and 2001:db8::1; the remote addresses end in 2.
pub const UNDERLAY: &str = "d0";
/// Name of the innermost tunnel device, which takes packets.
pub const ENTRY: &str = "i0";
const OUTSIDE: Ethernet = Ethernet { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], tags: Vec::new() };
const INSIDE: Ethernet = Ethernet { dst: [2, 0, 0, 0, 1, 1], src: [2, 0, 0, 0, 1, 2], tags: Vec::new() };
/// MTU of the device that tunnels leave by, in bytes.
const ENTRY_MTU: usize = 1500;
/// Bytes that parse as a UDP datagram with a checksum.
const MARKER: [u8; 28] =
    [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 1, 1, 198, 18, 1, 2, 3, 232, 7, 208, 0, 8, 1, 1];

/// A tunnel device, or two stacked ones.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name, from the outermost header inwards.
    pub name: String,
    /// Kernel feature that the device needs in addition to IP tunnels: [`Feature::Vxlan`] for VXLAN alone.
    pub feature: Feature,
    /// Commands that make the device, as lines for `ip -batch`.
    pub lines: String,
    /// Tunnels of the device, outermost first.
    pub tunnels: Vec<Tunnel>,
}

/// A train that enters a device.
#[derive(Clone, Debug)]
pub struct Entering {
    /// Name of the device, for messages.
    pub name: String,
    /// The train from the inner Ethernet header on, even if the device does not carry Ethernet.
    pub inner: Vector,
}

impl Device {
    /// Returns whether the device takes Ethernet frames, not IP packets.
    pub fn is_bridged(&self) -> bool {
        self.tunnels.last().is_some_and(|tunnel| tunnel.ethernet.is_some())
    }

    /// Returns the trains that enter the device.
    pub fn trains(&self) -> Vec<Entering> {
        let inners = [
            ("4", Ip::V4(V4 { id: 0xffff, tos: 0x2a, ..V4::new(1, 1, 2) })),
            ("6", Ip::V6(V6 { label: 0xabcde, class: 0x2a, ..V6::new(1, 1, 2) })),
        ];
        let transports = [
            ("tcp-psh", tcp(0x18, Tcp::timestamps(5, 6))),
            ("tcp-fin-ece-cwr", tcp(0xd1, Vec::new())),
            ("udp", L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true })),
        ];
        let mut all = Vec::new();
        for (ip_name, ip) in inners.iter().filter(|(name, _)| self.name.ends_with(name) || self.name.ends_with("any")) {
            for (l4_name, l4) in &transports {
                for (size, total) in [(1000, 1001), (999, 3333), (1360, 20_000)] {
                    let name = format!("{} {ip_name}/{l4_name} {total} by {size}", self.name);
                    let inner = vector(name.clone(), &INSIDE, ip, l4, size, total);
                    all.push(Entering { name, inner });
                }
            }
        }
        all
    }

    /// Returns the overhead of the tunnels around an IP packet in bytes.
    pub fn overhead(&self) -> usize {
        wrap(&self.tunnels, &MARKER).len() - 14 - MARKER.len()
    }

    /// Returns the MTU of the innermost device in bytes.
    pub fn mtu(&self) -> usize {
        ENTRY_MTU
    }

    /// Returns the train inside the tunnels, its innermost transport checksum primed.
    pub fn frame(&self, train: &Entering) -> Vec<u8> {
        let packet = &train.inner.frame[14..];
        let mut frame = wrap(&self.tunnels, packet);
        let (_, field, prime) = primed(packet).expect("TCP or UDP with a checksum");
        let at = frame.len() - packet.len() + field;
        frame[at..at + 2].copy_from_slice(&prime.to_be_bytes());
        frame
    }

    /// Returns the packets that must leave, with complete checksums and encapsulated in `tunnels` instead of the
    /// device's own.
    pub fn segments(&self, train: &Entering, tunnels: &[Tunnel]) -> Vec<Vec<u8>> {
        let segments = train.inner.segments.iter().enumerate().map(|(number, segment)| {
            let mut tunnels = tunnels.to_vec();
            for tunnel in &mut tunnels {
                if let Ip::V4(ip) = &mut tunnel.ip {
                    ip.id = ip.id.wrapping_add(number as u16);
                }
            }
            wrap(&tunnels, &segment[14..])
        });
        segments.collect()
    }

    /// Returns whether the device takes IPv4 packets.
    pub fn takes_v4(&self) -> bool {
        self.name.ends_with('4') || self.name.ends_with("any")
    }

    /// Returns a socket's train of IPv4 datagrams of `size` bytes, `total` bytes in all, with the identification in
    /// `first`, a frame that has left the device.
    pub fn datagrams(&self, size: usize, total: usize, first: &[u8]) -> Entering {
        let at = wrap(&self.tunnels, &MARKER).len() - MARKER.len() + 4;
        let id = first.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        let udp = L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true });
        let name = format!("{} 4/socket {total} by {size}", self.name);
        let ip = Ip::V4(V4 { id, df: false, ..V4::new(1, 1, 2) });
        Entering { inner: vector(name.clone(), &INSIDE, &ip, &udp, size, total), name }
    }

    /// Returns the packets for a socket's IPv4 datagram of `size` bytes: inner fragments, each encapsulated by itself
    /// and without a remote checksum. Identifications and ports are those of `frames`, which a kernel has sent and of
    /// which there are as many as are needed.
    pub fn fragments(&self, size: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut device = self.clone();
        for tunnel in &mut device.tunnels {
            match &mut tunnel.udp {
                Some((_, Shim::Gue(option))) => *option = None,
                Some((_, Shim::Vxlan(_, is_remote))) => *is_remote = false,
                _ => {}
            }
        }
        let first = frames.first().map_or(&[][..], |frame| frame);
        let whole = device.datagrams(size, size, first).inner.segments.remove(0);
        let parts = fragments(&whole[14..], ENTRY_MTU, 0);
        let frame = |number: usize| frames.get(number).map_or(&[][..], |frame| frame);
        parts.iter().enumerate().map(|(number, part)| wrap(&device.tunnels_of(frame(number)), part)).collect()
    }

    /// Returns the tunnels with the values that a kernel chose, read from its frame `first`: identifications, flow
    /// labels, DSCP and ECN, and UDP source ports.
    pub fn tunnels_of(&self, first: &[u8]) -> Vec<Tunnel> {
        let mut tunnels = self.tunnels.clone();
        let number = |at: usize| first.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        for level in 0..tunnels.len() {
            // Where the level begins: after its outer headers.
            let at = wrap(&tunnels[..level], &MARKER).len() - MARKER.len();
            let tunnel = &mut tunnels[level];
            let header_len = match &mut tunnel.ip {
                Ip::V4(ip) => {
                    (ip.tos, ip.id) = (number(at) as u8, number(at + 4));
                    20
                }
                Ip::V6(ip) => {
                    ip.class = (number(at) >> 4) as u8;
                    ip.label = u32::from(number(at) & 0xf) << 16 | u32::from(number(at + 2));
                    40
                }
            };
            if let Some((udp, _)) = &mut tunnel.udp {
                udp.src_port = number(at + header_len);
            }
        }
        tunnels
    }
}

fn wrap(tunnels: &[Tunnel], packet: &[u8]) -> Vec<u8> {
    OUTSIDE.wrap(&tunnels.iter().rev().fold(packet.to_vec(), |packet, tunnel| tunnel.wrap(&packet)))
}

/// Returns all tunnel devices of the list. Names end in the inner IP version, or in `any`.
pub fn devices() -> Vec<Device> {
    let out4 = || Ip::V4(V4::new(0, 1, 2));
    let out6 = || Ip::V6(V6::new(0, 1, 2));
    let bare = |ip: Ip, gre: Option<Gre>| Tunnel { ip, udp: None, gre, ethernet: None };
    let over = |ip: Ip, dst_port, checksum, shim, gre: Option<Gre>| {
        let udp = Udp { src_port: 0, dst_port, checksum };
        Tunnel { ip, udp: Some((udp, shim)), gre, ethernet: None }
    };
    let bridged = |tunnel: Tunnel| Tunnel { ethernet: Some(INSIDE), ..tunnel };
    let keyed = Gre { key: Some(42), ..Gre::default() };
    let summed = Gre { checksum: true, ..Gre::default() };
    let both = Gre { checksum: true, key: Some(42), seq: None };
    let remote = Shim::Gue(Some(Remcsum::Transport));
    let [fou4, fou6, fou_gre] = FOU_PORTS.map(|(port, _)| port);
    let mut all = Vec::new();
    let mut add = |name: &str, feature, words: String, tunnel: Tunnel| {
        let ends = match &tunnel.ip {
            Ip::V4(_) => "local 198.18.0.1 remote 198.18.0.2",
            Ip::V6(_) => "local 2001:db8::1 remote 2001:db8::2",
        };
        // A Geneve device has no address of its own.
        let ends = if words.contains("geneve") { ends.split_once(" remote").map_or("", |(_, to)| to) } else { ends };
        let remote = if words.contains("geneve") { "remote" } else { "" };
        let lines = format!("link add {ENTRY} mtu {ENTRY_MTU} type {words} {remote} {ends}\nlink set {ENTRY} up\n");
        all.push(Device { name: name.into(), feature, lines, tunnels: vec![tunnel] });
    };

    let vxlan = |options: &str, port: u16| format!("vxlan id 42 ttl 64 dev {UNDERLAY} dstport {port} {options}");
    let vni = Shim::Vxlan(42, false);
    let df = "df set";
    add(
        "4/vxlan/any",
        Feature::Vxlan,
        vxlan(&format!("udpcsum {df}"), VXLAN_PORT),
        bridged(over(out4(), VXLAN_PORT, true, vni, None)),
    );
    add(
        "4/vxlan-nocsum/any",
        Feature::Vxlan,
        vxlan(&format!("noudpcsum {df}"), VXLAN_PORT),
        bridged(over(out4(), VXLAN_PORT, false, vni, None)),
    );
    add("6/vxlan/any", Feature::Vxlan, vxlan("", VXLAN_PORT), bridged(over(out6(), VXLAN_PORT, true, vni, None)));
    add(
        "6/vxlan-nocsum/any",
        Feature::Vxlan,
        vxlan("udp6zerocsumtx", VXLAN_PORT),
        bridged(over(out6(), VXLAN_PORT, false, vni, None)),
    );
    let rco = Shim::Vxlan(42, true);
    add(
        "4/vxlan-rco/any",
        Feature::Vxlan,
        vxlan(&format!("udpcsum remcsumtx {df}"), VXLAN_REMOTE_PORT),
        bridged(over(out4(), VXLAN_REMOTE_PORT, true, rco, None)),
    );
    add(
        "6/vxlan-rco/any",
        Feature::Vxlan,
        vxlan("remcsumtx", VXLAN_REMOTE_PORT),
        bridged(over(out6(), VXLAN_REMOTE_PORT, true, rco, None)),
    );

    let geneve = |options: &str| format!("geneve id 42 ttl 64 dstport {GENEVE_PORT} {options}");
    let vni = Shim::Geneve(42, 0);
    add(
        "4/geneve/any",
        Feature::Geneve,
        geneve(&format!("udpcsum {df}")),
        bridged(over(out4(), GENEVE_PORT, true, vni, None)),
    );
    add("6/geneve/any", Feature::Geneve, geneve(""), bridged(over(out6(), GENEVE_PORT, true, vni, None)));
    add(
        "4/geneve-nocsum/any",
        Feature::Geneve,
        geneve(&format!("noudpcsum {df}")),
        bridged(over(out4(), GENEVE_PORT, false, vni, None)),
    );

    add("4/4", Feature::Ipip, "ipip ttl 64".into(), bare(out4(), None));
    add("4/6", Feature::Ipip, "sit ttl 64".into(), bare(out4(), None));
    add("6/any", Feature::Ipip, "ip6tnl mode any hoplimit 64 encaplimit none".into(), bare(out6(), None));
    for (name, options, gre) in [
        ("gre", "", Gre::default()),
        ("gre-key", "okey 42", keyed),
        ("gre-csum", "ocsum", summed),
        ("gre-key-csum", "okey 42 ocsum", both),
    ] {
        add(&format!("4/{name}/any"), Feature::Gre, format!("gre ttl 64 {options}"), bare(out4(), Some(gre)));
        let words = format!("ip6gre hoplimit 64 encaplimit none {options}");
        add(&format!("6/{name}/any"), Feature::Gre, words, bare(out6(), Some(gre)));
        add(
            &format!("4/{name}/eth/any"),
            Feature::Gre,
            format!("gretap ttl 64 {options}"),
            bridged(bare(out4(), Some(gre))),
        );
    }

    let gue = |kind: &str, options: &str| {
        format!("{kind} ttl 64 encap gue encap-sport 50000 encap-dport {GUE_PORT} {options}")
    };
    let fou = |kind: &str, port: u16, options: &str| {
        format!("{kind} ttl 64 encap fou encap-sport 50000 encap-dport {port} {options}")
    };
    add("4/fou/4", Feature::Fou, fou("ipip", fou4, "encap-csum"), over(out4(), fou4, true, Shim::Fou, None));
    add("4/fou-nocsum/4", Feature::Fou, fou("ipip", fou4, ""), over(out4(), fou4, false, Shim::Fou, None));
    add("4/fou/6", Feature::Fou, fou("sit", fou6, "encap-csum"), over(out4(), fou6, true, Shim::Fou, None));
    add(
        "4/fou/gre-key/any",
        Feature::Fou,
        fou("gre okey 42", fou_gre, "encap-csum"),
        over(out4(), fou_gre, true, Shim::Fou, Some(keyed)),
    );
    let bare_gue = Shim::Gue(None);
    add("4/gue/4", Feature::Gue, gue("ipip", "encap-csum"), over(out4(), GUE_PORT, true, bare_gue, None));
    add("4/gue-nocsum/4", Feature::Gue, gue("ipip", ""), over(out4(), GUE_PORT, false, bare_gue, None));
    add("4/gue/6", Feature::Gue, gue("sit", "encap-csum"), over(out4(), GUE_PORT, true, bare_gue, None));
    add(
        "4/gue/gre/any",
        Feature::Gue,
        gue("gre", "encap-csum"),
        over(out4(), GUE_PORT, true, bare_gue, Some(Gre::default())),
    );
    add(
        "4/gue-rco/4",
        Feature::Gue,
        gue("ipip", "encap-csum encap-remcsum"),
        over(out4(), GUE_PORT, true, remote, None),
    );
    add(
        "4/gue-rco/6",
        Feature::Gue,
        gue("sit", "encap-csum encap-remcsum"),
        over(out4(), GUE_PORT, true, remote, None),
    );
    add(
        "4/gue-rco/gre/any",
        Feature::Gue,
        gue("gre", "encap-csum encap-remcsum"),
        over(out4(), GUE_PORT, true, remote, Some(Gre::default())),
    );
    let words = format!(
        "ip6tnl mode any hoplimit 64 encaplimit none encap gue encap-sport 50000 encap-dport {GUE_PORT} encap-csum"
    );
    add("6/gue/any", Feature::Gue, words, over(out6(), GUE_PORT, true, bare_gue, None));

    // One on top of another, 198.18.2.1 to 198.18.2.2.
    let middle = || Ip::V4(V4::new(2, 1, 2));
    let mut stack = |name: &str, outer: (String, Tunnel), inner: (&str, Tunnel)| {
        let lines = format!(
            "link add o0 mtu 2000 type {} local 198.18.0.1 remote 198.18.0.2\nlink set o0 up\naddr add 198.18.2.1/24 dev o0\n\
             link add {ENTRY} mtu {ENTRY_MTU} type {} ttl 64 local 198.18.2.1 remote 198.18.2.2\nlink set {ENTRY} up\n",
            outer.0, inner.0
        );
        all.push(Device { name: name.into(), feature: Feature::Gue, lines, tunnels: vec![outer.1, inner.1] });
    };
    let ipip = || ("ipip ttl 64".to_string(), bare(out4(), None));
    let gre = || ("gre ttl 64 okey 42".to_string(), bare(out4(), Some(keyed)));
    let gue_of = |kind: &str, shim, inside, options| (gue(kind, options), over(out4(), GUE_PORT, true, shim, inside));
    stack("4/4/4", ipip(), ("ipip", bare(middle(), None)));
    stack("4/4/6", ipip(), ("sit", bare(middle(), None)));
    stack("4/4/gre/any", ipip(), ("gre", bare(middle(), Some(Gre::default()))));
    stack("4/gre-key/4/4", gre(), ("ipip", bare(middle(), None)));
    stack("4/gre-key/4/6", gre(), ("sit", bare(middle(), None)));
    stack("4/gue/4/4", gue_of("ipip", bare_gue, None, "encap-csum"), ("ipip", bare(middle(), None)));
    stack(
        "4/gue/4/gre/any",
        gue_of("ipip", bare_gue, None, "encap-csum"),
        ("gre", bare(middle(), Some(Gre::default()))),
    );
    stack("4/gue/gre/4/4", gue_of("gre", bare_gue, Some(Gre::default()), "encap-csum"), ("ipip", bare(middle(), None)));
    let vxlan = bridged(over(middle(), VXLAN_PORT, true, Shim::Vxlan(42, false), None));
    stack("4/4/vxlan/any", ipip(), ("vxlan id 42 dstport 4789 udpcsum df set", vxlan.clone()));
    stack("4/gre-key/4/vxlan/any", gre(), ("vxlan id 42 dstport 4789 udpcsum df set", vxlan));
    all
}
