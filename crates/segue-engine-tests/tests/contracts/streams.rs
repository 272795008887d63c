//! Random streams for the contract tests: many flows of every kind, with loss, reordering and other faults of a
//! network.

use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::{self, Faults, Sent, What};
use segue_testkit::oracle::{self, Ports};

use crate::properties::{Arrival, PortCsum};

pub(crate) use segue_testkit::strategy::{FOU_PORTS as FOU, GUE_PORT as GUE, port_of, ports};

/// Headers around the packets of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    /// No headers around the packet.
    Nothing,
    /// Ethernet, sometimes with one or two VLAN tags; short frames are padded.
    Link,
    /// A tunnel or none for each flow.
    Tunnels,
}

/// Returns a stream of `count` packets in their order of arrival.
pub(crate) fn stream(rng: &mut Rng, flows: usize, count: usize, around: Around) -> Vec<Arrival> {
    let sent = flow::mixed(rng, flows, count);
    carry(rng, flows, sent, around)
}

/// Returns a stream of `count` packets, most of them pure acknowledgments, in their order of arrival.
pub(crate) fn acknowledgments(rng: &mut Rng, flows: usize, count: usize, around: Around) -> Vec<Arrival> {
    let sent = flow::acknowledging(rng, flows, count);
    carry(rng, flows, sent, around)
}

fn carry(rng: &mut Rng, flows: usize, mut sent: Vec<Sent>, around: Around) -> Vec<Arrival> {
    let faults = Faults { loss: 10, duplicate: 10, reorder: 15, corrupt: 15 };
    damage_inside(rng, &mut sent);
    match around {
        Around::Nothing => {
            let habits: Vec<usize> = (0..flows.max(1)).map(|_| rng.below(8)).collect();
            let arrived = flow::disturb(rng, sent, faults);
            arrived.into_iter().map(|packet| arrival(rng, &packet, habits[packet.flow])).collect()
        }
        Around::Link => {
            let links: Vec<Ethernet> = (0..flows.max(1)).map(|flow| link(rng, flow)).collect();
            let arrived = flow::disturb(rng, sent, faults);
            arrived.into_iter().map(|packet| Arrival::new(frame(rng, &links[packet.flow], &packet.bytes))).collect()
        }
        Around::Tunnels => {
            let mut tunnels: Vec<Option<(Tunnel, u16)>> = (0..flows.max(1)).map(|_| tunnel(rng)).collect();
            for packet in &mut sent {
                if let Some((tunnel, step)) = &mut tunnels[packet.flow] {
                    packet.bytes = wrap(tunnel, &packet.bytes);
                    if let Ip::V4(ip) = &mut tunnel.ip {
                        ip.id = ip.id.wrapping_add(*step);
                    }
                }
            }
            flow::disturb(rng, sent, faults).into_iter().map(|packet| Arrival::new(packet.bytes)).collect()
        }
    }
}

/// Flips the last bit of some packets before any header is put around them, so that an outer checksum is right.
fn damage_inside(rng: &mut Rng, sent: &mut [Sent]) {
    for packet in sent {
        if rng.chance(15) && packet.what == What::InOrder && build::primed(&packet.bytes).is_some() {
            *packet.bytes.last_mut().expect("a packet has bytes") ^= 1;
        }
    }
}

fn arrival(rng: &mut Rng, packet: &Sent, habit: usize) -> Arrival {
    let bytes = packet.bytes.clone();
    let has_transport = build::primed(&bytes).is_some();
    let is_good = oracle::verify(&bytes, oracle::Start::Ip, &Ports::default()).is_ok();
    // A port reports much the same for all packets of a flow.
    let port_csum = match if rng.chance(950) { habit } else { rng.below(8) } {
        5 if is_good && has_transport => PortCsum::Verified,
        6 if has_transport => PortCsum::Sum,
        7 if is_good && has_transport => PortCsum::Owed,
        _ => PortCsum::Nothing,
    };
    if port_csum != PortCsum::Owed {
        return Arrival { bytes, port_csum };
    }
    let mut bytes = build::prime(&bytes).unwrap_or(bytes);
    if rng.chance(10) {
        // Primed with another value, so that completing it gives a wrong checksum.
        let (_, field, _) = build::primed(&packet.bytes).expect("it has a transport header");
        bytes[field] ^= 0x10;
    }
    Arrival { bytes, port_csum }
}

fn link(rng: &mut Rng, flow: usize) -> Ethernet {
    let tags = match rng.below(3) {
        0 => Vec::new(),
        1 => vec![(0x8100, 0x2000 | flow as u16)],
        _ => vec![(0x88a8, 7), (0x8100, flow as u16)],
    };
    Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags }
}

fn frame(rng: &mut Rng, link: &Ethernet, packet: &[u8]) -> Vec<u8> {
    let mut link = link.clone();
    if rng.chance(10) {
        link.src[5] = 9;
    }
    if rng.chance(10)
        && let Some((_, tag)) = link.tags.last_mut()
    {
        *tag ^= 0x4000;
    }
    let mut frame = link.wrap(packet);
    if frame.len() < 60 {
        let padding = rng.bytes(60 - frame.len());
        frame.extend(padding);
    }
    frame
}

/// Returns a random tunnel, and the progression of its IPv4 identification.
fn tunnel(rng: &mut Rng) -> Option<(Tunnel, u16)> {
    let mut ip = if rng.chance(500) { Ip::V4(V4::new(0, 1, 2)) } else { Ip::V6(V6::new(0, 1, 2)) };
    if let Ip::V4(ip) = &mut ip {
        ip.id = 0xfff0;
        ip.df = rng.chance(500);
    }
    let vni = [5, 0xff_fffe][rng.below(2)];
    let shim = match rng.below(13) {
        0 => return None,
        1 | 2 => Shim::Fou,
        3 => Shim::GueBare,
        4 | 5 => Shim::Gue(None),
        6 => Shim::Gue(Some(Remcsum::Gre)),
        9 | 10 => Shim::Vxlan(vni, rng.chance(500)),
        11 | 12 => Shim::Geneve(vni, rng.below(4) as u8),
        _ => Shim::Gue(Some(Remcsum::Transport)),
    };
    let is_remote = matches!(shim, Shim::Gue(Some(_)) | Shim::Vxlan(_, true));
    let wants_gre = shim == Shim::Gue(Some(Remcsum::Gre));
    let gre = (wants_gre || rng.chance(500) && matches!(shim, Shim::Fou | Shim::Gue(_))).then(|| Gre {
        checksum: wants_gre || rng.chance(500),
        key: rng.chance(500).then_some(42),
        seq: rng.chance(100).then_some(9),
    });
    let udp = Udp { src_port: 50_000 + rng.below(9) as u16, dst_port: GUE, checksum: is_remote || rng.chance(800) };
    let is_bridge = matches!(shim, Shim::Vxlan(..)) || shim != Shim::GueBare && !wants_gre && rng.chance(300);
    let ethernet = is_bridge.then(|| link(rng, 3));
    Some((Tunnel { ip, udp: Some((udp, shim)), gre, ethernet }, rng.below(2) as u16))
}

fn wrap(tunnel: &Tunnel, inner: &[u8]) -> Vec<u8> {
    let mut tunnel = tunnel.clone();
    if let Some((udp, shim)) = &mut tunnel.udp {
        udp.dst_port = port_of(*shim, tunnel.gre.is_some(), tunnel.ethernet.is_some(), inner[0] >> 4 == 4);
    }
    // Only pending checksums can be left to the far end; a damaged packet has a complete one.
    let is_good = oracle::verify(inner, oracle::Start::Ip, &Ports::default()).is_ok();
    if let Some((_, shim)) = &mut tunnel.udp
        && !is_good
    {
        match shim {
            Shim::Gue(remote) if *remote == Some(Remcsum::Transport) => *remote = None,
            Shim::Vxlan(_, is_remote) => *is_remote = false,
            _ => {}
        }
    }
    tunnel.wrap(inner)
}
