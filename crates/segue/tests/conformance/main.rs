//! The conformance list of GRO (`segue_testkit::conformance`), through the engine: every case under every profile.
//!
//! `crates/segue-tests/tests/conformance.rs` sends the same cases through kernels.

use std::collections::BTreeMap;

use segue::gro::{Config, Generation, Gro, Profile};
use segue::packet::{Frag, GsoKind, Kind, Packet, Pool, Start, Tunnels, Unit};
use segue::time::Nanos;
use segue::wire::tcp;
use segue_testkit::conformance::{self, Case, Feature, Gso, Out, Rules};

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
    let ports = conformance::FOU_PORTS.iter().chain(&conformance::FOU6_PORTS);
    ports.fold(Tunnels::NONE.with_gue(conformance::GUE_PORT), |tunnels, &(port, protocol)| {
        tunnels.with_fou(port, protocol)
    })
}

/// What the engine makes of a case.
fn run(case: &Case, rules: Rules) -> Vec<Out> {
    let config = Config { profile: profile(rules), acks: true, ..Config::default() };
    let (mut gro, mut pool, tunnels) = (Gro::new(config), Pool::new(4), tunnels());
    let mut outs = Vec::new();
    for frame in &case.frames {
        let mut packet = pool.take();
        packet.load(Frag::all(frame.bytes.clone()), Start::Ethernet, &tunnels);
        gro.deliver(packet, Nanos(frame.at), &mut pool, |packet, _| outs.push(out(&packet)));
    }
    gro.end_poll(Nanos(0), &mut pool, |packet, _| outs.push(out(&packet)));
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
    let mut wrong: BTreeMap<String, BTreeMap<String, Vec<Rules>>> = BTreeMap::new();
    let is_known = |case: &Case| !matches!(case.carrier.feature, Feature::Vxlan | Feature::Geneve);
    for case in conformance::cases().into_iter().filter(is_known) {
        for rules in Rules::ALL {
            if let Err(difference) = case.judge(rules, &run(&case, rules)) {
                let places = wrong.entry(format!("{}: {difference}", case.row.name)).or_default();
                places.entry(case.carrier.name.clone()).or_default().push(rules);
            }
        }
    }
    let lines: Vec<String> = wrong.iter().map(|(what, places)| format!("{what}\n    {places:?}")).collect();
    assert!(wrong.is_empty(), "{} faults:\n{}", lines.len(), lines.join("\n"));
}
