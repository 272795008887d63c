//! Random streams for the contract tests: many flows of every kind, with loss, reordering and other faults of a
//! network.

use segue_testkit::Rng;
use segue_testkit::build::{self, Ethernet, Gre, Ip, L4, Packet, Remcsum, Shim, Tunnel, Udp, V4, V6};
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

/// The faults of the network.
const FAULTS: Faults = Faults { loss: 10, duplicate: 10, reorder: 15, corrupt: 15 };

/// Returns a stream of `count` packets inside of tunnels on Ethernet, over UDP, in GRE or right in IP, in their order
/// of arrival; most of them are pure acknowledgments if `is_acks`. Each packet comes in two tunnels, some of which
/// differ in a GRE checksum alone; of some flows the transport header is right behind a tunnel header. Of some flows
/// the port knows the checksums.
pub(crate) fn tunnelled(rng: &mut Rng, flows: usize, count: usize, is_acks: bool) -> Vec<Arrival> {
    let flows = flows.max(1);
    let mut sent = if is_acks { flow::acknowledging(rng, flows, count) } else { flow::mixed(rng, flows, count) };
    damage_inside(rng, &mut sent);
    let is_bare: Vec<bool> = (0..flows).map(|_| rng.chance(100)).collect();
    for packet in sent.iter_mut().filter(|packet| is_bare[packet.flow]) {
        packet.bytes = bare(&packet.bytes).unwrap_or_default();
    }
    sent.retain(|packet| !packet.bytes.is_empty());
    let mut around: Vec<(Tunnel, u16)> = (0..flows).map(|_| any_tunnel(rng)).collect();
    for flow in 0..flows {
        let other = with_other_sum(&around[flow]).unwrap_or_else(|| any_tunnel(rng));
        around.push(other);
    }
    let links: Vec<Ethernet> = (0..flows).map(|flow| link(rng, flow)).collect();
    let habits: Vec<usize> = around.iter().map(|_| rng.below(4)).collect();
    let both = |packet: Sent| [Sent { flow: packet.flow + flows, ..packet.clone() }, packet];
    let mut sent: Vec<Sent> = sent.into_iter().flat_map(both).take(count).collect();
    for packet in &mut sent {
        let (tunnel, step) = &mut around[packet.flow];
        packet.bytes = wrap(tunnel, &packet.bytes);
        if let Ip::V4(ip) = &mut tunnel.ip {
            ip.id = ip.id.wrapping_add(*step);
        }
    }
    let arrived = flow::disturb(rng, sent, FAULTS);
    let arrival = |packet: Sent| {
        let is_good = oracle::verify(&packet.bytes, oracle::Start::Ip, &ports()).is_ok();
        let port_csum = match habits[packet.flow] {
            2 if is_good => PortCsum::Verified,
            3 => PortCsum::Sum,
            _ => PortCsum::Nothing,
        };
        Arrival { bytes: links[packet.flow % flows].wrap(&packet.bytes), port_csum }
    };
    arrived.into_iter().map(arrival).collect()
}

/// Returns a random tunnel, not always over UDP.
fn any_tunnel(rng: &mut Rng) -> (Tunnel, u16) {
    loop {
        let Some((mut tunnel, step)) = tunnel(rng) else { continue };
        if rng.chance(300) {
            tunnel.udp = None;
        }
        return (tunnel, step);
    }
}

/// Returns the same tunnel with a GRE checksum if it has none, or without; `None` if it has no GRE header, or a remote
/// checksum that is GRE's.
fn with_other_sum((tunnel, step): &(Tunnel, u16)) -> Option<(Tunnel, u16)> {
    let gre = tunnel.gre.filter(|_| !matches!(tunnel.udp, Some((_, Shim::Gue(Some(Remcsum::Gre))))))?;
    Some((Tunnel { gre: Some(Gre { checksum: !gre.checksum, ..gre }), ..tunnel.clone() }, *step))
}

/// Returns a datagram of GUE with the transport header and the payload of a packet, without its IP header; `None` for a
/// packet without a transport header.
fn bare(packet: &[u8]) -> Option<Vec<u8>> {
    let (start, field, _) = build::primed(packet)?;
    let protocol = if field - start == 16 { 6 } else { 17 };
    let l4 = L4::Udp(Udp { src_port: 50_000, dst_port: GUE, checksum: true });
    let data = [&[0, protocol, 0, 0][..], &packet[start..]].concat();
    Some(Packet { ip: Ip::V4(V4::new(2, 1, 2)), l4, data }.bytes())
}

fn carry(rng: &mut Rng, flows: usize, mut sent: Vec<Sent>, around: Around) -> Vec<Arrival> {
    damage_inside(rng, &mut sent);
    match around {
        Around::Nothing => {
            let habits: Vec<usize> = (0..flows.max(1)).map(|_| rng.below(8)).collect();
            let arrived = flow::disturb(rng, sent, FAULTS);
            arrived.into_iter().map(|packet| arrival(rng, &packet, habits[packet.flow])).collect()
        }
        Around::Link => {
            let links: Vec<Ethernet> = (0..flows.max(1)).map(|flow| link(rng, flow)).collect();
            let arrived = flow::disturb(rng, sent, FAULTS);
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
            flow::disturb(rng, sent, FAULTS).into_iter().map(|packet| Arrival::new(packet.bytes)).collect()
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
