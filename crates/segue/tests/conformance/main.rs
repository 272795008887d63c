//! The conformance list of GRO (`segue_testkit::conformance`), through the engine: every case under every profile.
//!
//! `crates/segue-tests/tests/conformance.rs` sends the same cases through kernels.

use std::collections::BTreeMap;

use segue::gro::{Config, Frame, Generation, Gro, Profile};
use segue::packet::{Csum, Frag, GsoKind, Kind, Packet, Pool, Start, Tunnels, Unit};
use segue::time::Nanos;
use segue::wire::tcp;
use segue_testkit::conformance::{self, Case, Gso, Out, Rules};

fn profile(rules: Rules) -> Profile {
    match rules {
        Rules::Strict => Profile::Strict,
        Rules::V6_12 => Profile::Linux(Generation::V6_12),
        Rules::V6_18 => Profile::Linux(Generation::V6_18),
        Rules::V7 => Profile::Linux(Generation::V7),
        Rules::Lro => Profile::Lro,
    }
}

fn tunnels() -> Tunnels {
    let mut tunnels = Tunnels::NONE.with_gue(conformance::GUE_PORT).with(conformance::GENEVE_PORT, Kind::Geneve);
    for port in [conformance::VXLAN_PORT, conformance::VXLAN_REMOTE_PORT] {
        tunnels = tunnels.with(port, Kind::Vxlan);
    }
    for (port, protocol) in conformance::FOU_PORTS.into_iter().chain(conformance::FOU6_PORTS) {
        tunnels = tunnels.with_fou(port, protocol);
    }
    tunnels
}

/// How frames get into the engine.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// As frames, most of which are not parsed.
    Frames,
    /// As packets.
    Packets,
    /// As packets, of which each is judged by every rule.
    Long,
}

/// What the engine makes of a case.
fn run(case: &Case, rules: Rules, way: Way) -> Vec<Out> {
    let config = Config { profile: profile(rules), acks: true, tunnels: tunnels(), ..Config::default() };
    let mut gro = if matches!(way, Way::Long) { Gro::without_short_way(config) } else { Gro::new(config) };
    let mut pool = Pool::new(4);
    let mut outs = Vec::new();
    for frame in &case.frames {
        let bytes = Frag::all(frame.bytes.clone());
        if matches!(way, Way::Frames) {
            gro.push_frame(Frame { bytes, start: Start::Ethernet, csum: Csum::Unknown }, Nanos(frame.at), &mut pool);
        } else {
            let mut packet = pool.take();
            packet.load(bytes, Start::Ethernet, &config.tunnels);
            gro.push(packet, Nanos(frame.at), &mut pool);
        }
        outs.extend(std::iter::from_fn(|| gro.pop()).map(|packet| out(&packet)));
    }
    gro.flush();
    outs.extend(std::iter::from_fn(|| gro.pop()).map(|packet| out(&packet)));
    outs
}

fn out(packet: &Packet<Vec<u8>>) -> Out {
    let payload = packet.payload.pieces(0..packet.payload.len()).collect::<Vec<_>>().concat();
    let bytes = [packet.head.bytes(), &payload].concat();
    let Unit::Train { gso, .. } = packet.offload.unit else { return Out { bytes, gso: None } };
    let is_v4 = packet.layout.inner_ip().is_some_and(|ip| ip.kind == Kind::Ipv4);
    let (kind, has_cwr) = match (gso.kind, packet.transport()) {
        (GsoKind::Tcp, Some((_, header))) => (
            if is_v4 { conformance::GsoKind::Tcp4 } else { conformance::GsoKind::Tcp6 },
            header[tcp::FLAGS] & tcp::CWR != 0,
        ),
        _ => (conformance::GsoKind::Udp, false),
    };
    Out { bytes, gso: Some(Gso { kind, size: usize::from(gso.size), has_cwr }) }
}

#[test]
fn every_case_gives_the_trains_of_the_table_in_every_profile() {
    let mut wrong: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for case in conformance::cases() {
        for rules in Rules::ALL {
            for way in [Way::Frames, Way::Packets, Way::Long] {
                if let Err(difference) = case.judge(rules, &run(&case, rules, way)) {
                    let places = wrong.entry(format!("{}: {difference}", case.row.name)).or_default();
                    places.entry(case.carrier.name.clone()).or_default().push(format!("{rules:?}, {way:?}"));
                }
            }
        }
    }
    let lines: Vec<String> = wrong.iter().map(|(what, places)| format!("{what}\n    {places:?}")).collect();
    assert!(wrong.is_empty(), "{} faults:\n{}", lines.len(), lines.join("\n"));
}
