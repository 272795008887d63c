//! Frames inside of tunnels, for the tests of their forms.

use segue_testkit::build::{Ethernet, Gre, Ip, L4, Packet as Built, Remcsum, Shim, Tcp, Tunnel, Udp, V4, V6};

use super::*;
use crate::checksum::Sum;
use crate::packet::{Csum, Frag, Kind, Packet, Start, Tunnels};

pub(super) const SIZE: usize = 100;
pub(super) const STAMPS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
pub(super) const PORTS: [u16; 3] = [4789, 6081, 6080];
/// Ports of FOU for IPv4, IPv6 and GRE.
const FOU: [u16; 3] = [5555, 5556, 5557];
pub(super) const PROFILES: [Profile; 5] = [
    Profile::Strict,
    Profile::Linux(Generation::V6_12),
    Profile::Linux(Generation::V6_18),
    Profile::Linux(Generation::V7),
    Profile::Lro,
];

/// A form of frames inside a tunnel.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Headers around the inner packet. The identification of an IPv4 header among them counts up.
    pub(super) around: Tunnel,
    /// The Ethernet header of the whole, with tags.
    pub(super) link: Option<Ethernet>,
    pub(super) is_v6: bool,
    pub(super) is_tcp: bool,
    pub(super) options: &'static [u8],
}

pub(super) fn tunnels() -> Tunnels {
    Tunnels::NONE
        .with(PORTS[0], Kind::Vxlan)
        .with(PORTS[1], Kind::Geneve)
        .with_gue(PORTS[2])
        .with_fou(FOU[0], 4)
        .with_fou(FOU[1], 41)
        .with_fou(FOU[2], 47)
}

/// Returns the tunnels that are joined by the short path, for inner packets of this version.
fn arounds(is_v6: bool) -> Vec<(&'static str, Tunnel)> {
    let udp = |port, checksum| Udp { src_port: 50_000, dst_port: port, checksum };
    let link = |tags| Some(Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags });
    let bare = Tunnel { ip: Ip::V4(V4::new(0, 1, 2)), udp: None, gre: None, ethernet: None };
    let [vxlan, geneve, gue] = PORTS;
    let in_udp = |port, checksum, shim, ethernet| {
        let udp = Some((udp(port, checksum), shim));
        Tunnel { udp, ethernet, ..bare.clone() }
    };
    let key = Gre { key: Some(0x0102_0304), ..Gre::default() };
    vec![
        ("VXLAN", in_udp(vxlan, true, Shim::Vxlan(66_051, false), link(Vec::new()))),
        ("VXLAN without checksum", in_udp(vxlan, false, Shim::Vxlan(7, false), link(vec![(0x8100, 0x2005)]))),
        ("Geneve", in_udp(geneve, true, Shim::Geneve(7, 3), link(Vec::new()))),
        ("Geneve, IP inside", in_udp(geneve, false, Shim::Geneve(7, 0), None)),
        ("GUE", in_udp(gue, true, Shim::Gue(None), None)),
        ("GUE version 1", in_udp(gue, true, Shim::GueBare, None)),
        ("GUE with a remote checksum", in_udp(gue, true, Shim::Gue(Some(Remcsum::Transport)), None)),
        ("FOU", in_udp(if is_v6 { FOU[1] } else { FOU[0] }, true, Shim::Fou, None)),
        ("GRE in FOU", Tunnel { gre: Some(key), ..in_udp(FOU[2], true, Shim::Fou, None) }),
        ("GRE", Tunnel { gre: Some(Gre::default()), ..bare.clone() }),
        ("GRE with a key", Tunnel { gre: Some(key), ..bare.clone() }),
        ("GRE with Ethernet", Tunnel { gre: Some(key), ethernet: link(Vec::new()), ..bare.clone() }),
        ("IP in IP", bare.clone()),
    ]
}

pub(super) fn shapes() -> Vec<Shape> {
    let transports: [(bool, &[u8]); 3] = [(true, STAMPS), (true, &[]), (false, &[])];
    let mut shapes = Vec::new();
    for (is_v6, (is_tcp, options)) in [false, true].into_iter().flat_map(|is_v6| transports.map(|l4| (is_v6, l4))) {
        for (index, (name, around)) in arounds(is_v6).into_iter().enumerate() {
            let link = [
                None,
                Some(Ethernet::default()),
                Some(Ethernet { tags: vec![(0x88a8, 7), (0x8100, 0x6fff)], ..Ethernet::default() }),
            ];
            let shape = Shape { name, around, link: link[index % 3].clone(), is_v6, is_tcp, options };
            let outer_v6 = Tunnel { ip: Ip::V6(V6::new(0, 1, 2)), ..shape.around.clone() };
            shapes.push(Shape { around: outer_v6, ..shape.clone() });
            shapes.push(shape);
        }
    }
    shapes
}

/// Returns the shape of TCP with timestamps over IPv4 inside a tunnel with this name, over IPv4 too.
pub(super) fn shape(name: &str) -> Shape {
    let is_it = |shape: &Shape| shape.name == name && shape.is_tcp && matches!(shape.around.ip, Ip::V4(_));
    shapes().into_iter().find(is_it).expect("there is one")
}

/// Parameters of the inner packet before it is built: its headers, and the length of its payload.
pub(super) struct Plan {
    pub(super) ip: Ip,
    pub(super) l4: L4,
    pub(super) len: usize,
}

impl Shape {
    pub(super) fn start(&self) -> Start {
        if self.link.is_some() { Start::Ethernet } else { Start::Ip }
    }

    pub(super) fn is_remote(&self) -> bool {
        matches!(self.around.udp, Some((_, Shim::Gue(Some(_)))))
    }

    /// Returns the shape without a checksum of UDP around the inner packet.
    pub(super) fn without_outer_sum(&self) -> Shape {
        let udp = self.around.udp.map(|(udp, shim)| (Udp { checksum: false, ..udp }, shim));
        Shape { around: Tunnel { udp, ..self.around.clone() }, ..self.clone() }
    }

    /// Returns the frame with the given number of a flow, whose inner packet is changed.
    pub(super) fn frame(&self, flow: u16, number: usize, change: impl FnOnce(&mut Plan)) -> Vec<u8> {
        let ip = match self.is_v6 {
            true => Ip::V6(V6::new(1, 1, 2)),
            false => Ip::V4(V4 { id: number as u16, ..V4::new(1, 1, 2) }),
        };
        let (src_port, dst_port, options) = (4000 + flow, 80, self.options.to_vec());
        let seq = (number * SIZE) as u32;
        let l4 = match self.is_tcp {
            true => L4::Tcp(Tcp { src_port, dst_port, seq, ack: 1, flags: 0x10, window: 9, urgent: 0, options }),
            false => L4::Udp(Udp { src_port, dst_port, checksum: true }),
        };
        let mut plan = Plan { ip, l4, len: SIZE };
        change(&mut plan);
        self.wrap(number, &Built { ip: plan.ip, l4: plan.l4, data: vec![number as u8; plan.len] }.bytes())
    }

    /// Returns the frame with the given number of the tunnel, around this packet.
    pub(super) fn wrap(&self, number: usize, inner: &[u8]) -> Vec<u8> {
        let mut around = self.around.clone();
        if let Ip::V4(ip) = &mut around.ip {
            ip.id = number as u16;
        }
        let packet = around.wrap(inner);
        match &self.link {
            Some(link) => link.wrap(&packet),
            None => packet,
        }
    }
}

pub(super) fn tcp(plan: &mut Plan, change: impl FnOnce(&mut Tcp)) {
    if let L4::Tcp(tcp) = &mut plan.l4 {
        change(tcp);
    }
}

pub(super) fn frame(shape: &Shape, bytes: Vec<u8>, csum: Csum) -> Frame<Vec<u8>> {
    Frame { bytes: Frag::all(bytes), start: shape.start(), csum }
}

/// The states of a checksum that a port may report, for a frame.
pub(super) fn states(shape: &Shape, bytes: &[u8]) -> Vec<Csum> {
    let l3 = shape.link.as_ref().map_or(0, |link| 14 + 4 * link.tags.len());
    let mut states = vec![Csum::Unknown];
    if !shape.is_remote() {
        states.extend([Csum::Verified, Csum::Complete(Sum::of(&bytes[l3..]))]);
    }
    states
}

pub(super) fn image(packet: &Packet<Vec<u8>>) -> String {
    let ranges: Vec<&[u8]> = packet.payload.frags().iter().map(|frag| frag.bytes()).collect();
    let Packet { layout, offload, head, .. } = packet;
    format!("{layout:?} {} {} {offload:?} {head:?} {ranges:02x?}", layout.is_exact(), layout.end())
}
