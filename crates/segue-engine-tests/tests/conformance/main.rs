//! Runs the conformance list of GRO and GSO (`segue_testkit::conformance`) through the engine: every case under every
//! profile, and every train and datagram to be split.
//!
//! `crates/segue-tests/tests/conformance.rs` and `segmentation.rs` send the same through kernels.

use std::collections::BTreeMap;

use segue::gro::{Config, Frame, Generation, Gro, Profile};
use segue::gso::{Arena, Fragment, Frames, Limits, split, split_linear};
use segue::packet::{
    Csum, Frag, GsoKind, Kind, Layer, LayerCsum, Offload, Packet, Pool, Remote, Start, TrainCsum, Tunnels, Unit,
};
use segue::time::Nanos;
use segue::wire::tcp;
use segue_testkit::build::{Remcsum, Shim, Tunnel};
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

/// Form in which frames are pushed into GRO, which selects a path.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// Packets are pushed as frames, most of which are not parsed.
    Frames,
    /// Packets are pushed parsed.
    Packets,
    /// Packets are pushed parsed, and take the slow path.
    Slow,
}

/// Returns the engine's output for a case.
fn run(case: &Case, rules: Rules, path: Path) -> Vec<Out> {
    let config = Config { profile: profile(rules), acks: true, tunnels: tunnels(), ..Config::default() };
    let mut gro = if matches!(path, Path::Slow) { Gro::slow_path_only(config) } else { Gro::new(config) };
    let mut pool = Pool::new(4);
    let mut outs = Vec::new();
    for frame in &case.frames {
        let bytes = Frag::all(frame.bytes.clone());
        if matches!(path, Path::Frames) {
            gro.push_frame(Frame { bytes, start: Start::Ethernet, csum: Csum::Unknown }, Nanos(frame.at), &mut pool);
        } else {
            let mut packet = pool.take();
            packet.load(bytes, Start::Ethernet, &config.tunnels);
            gro.push(packet, Nanos(frame.at), &mut pool);
        }
        outs.extend(std::iter::from_fn(|| gro.pop_from(&mut pool)).map(|packet| out(&packet)));
    }
    gro.flush();
    outs.extend(std::iter::from_fn(|| gro.pop_from(&mut pool)).map(|packet| out(&packet)));
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

/// Returns the frames that a port without offloads gets from the engine's output for a case.
fn run_and_split(case: &Case, rules: Rules) -> Vec<Vec<u8>> {
    let config = Config { profile: profile(rules), tunnels: tunnels(), ..Config::default() };
    let (mut gro, mut pool, mut frames) = (Gro::new(config), Pool::new(4), Vec::new());
    for frame in &case.frames {
        let bytes = Frag::all(frame.bytes.clone());
        gro.push_frame(Frame { bytes, start: Start::Ethernet, csum: Csum::Unknown }, Nanos(frame.at), &mut pool);
    }
    gro.flush();
    while let Some(packet) = gro.pop_from(&mut pool) {
        let mut linear = Frames::new();
        split_linear(&packet, &Limits::NONE, &mut linear).expect("what came in can leave");
        frames.extend(linear.frames().iter().map(|frame| linear.bytes(frame).to_vec()));
    }
    frames
}

/// Tests that each case gives the expected trains in each profile, over one of the paths in turn, so that each case
/// takes all of them; with `SEGUE_FULL=1`, over all of them.
#[test]
fn every_case_gives_the_trains_of_the_table_in_every_profile() {
    let is_full = segue_testkit::is_set("SEGUE_FULL");
    let mut wrong: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (number, case) in conformance::cases().into_iter().enumerate() {
        for (turn, rules) in Rules::ALL.into_iter().enumerate() {
            let paths = [Path::Frames, Path::Packets, Path::Slow];
            let chosen = if is_full { &paths[..] } else { &paths[(number + turn) % paths.len()..][..1] };
            for &path in chosen {
                if let Err(difference) = case.judge(rules, &run(&case, rules, path)) {
                    let places = wrong.entry(format!("{}: {difference}", case.row.name)).or_default();
                    places.entry(case.carrier.name.clone()).or_default().push(format!("{rules:?}, {path:?}"));
                }
            }
        }
    }
    let lines: Vec<String> = wrong.iter().map(|(what, places)| format!("{what}\n    {places:?}")).collect();
    assert!(wrong.is_empty(), "{} faults:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn the_trains_of_every_case_split_into_what_the_table_restores() {
    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in conformance::cases() {
        for rules in [Rules::Strict, Rules::V6_12, Rules::V6_18, Rules::V7] {
            if let Err(difference) = case.judge_split(&case.trains(rules), &run_and_split(&case, rules)) {
                let places = wrong.entry(format!("{}: {difference}", case.row.name)).or_default();
                places.push(format!("{} {rules:?}", case.carrier.name));
            }
        }
    }
    let lines: Vec<String> = wrong.iter().map(|(what, places)| format!("{what}\n    {places:?}")).collect();
    assert!(wrong.is_empty(), "{} faults:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn what_strict_joined_is_restored_byte_for_byte() {
    for case in conformance::cases() {
        let mut sent: Vec<Vec<u8>> = case.frames.iter().map(|frame| frame.bytes.clone()).collect();
        let mut came = run_and_split(&case, Rules::Strict);
        sent.sort_unstable();
        came.sort_unstable();
        assert!(sent == came, "{}", case.name());
    }
}

#[test]
fn every_vector_leaves_as_the_table_says_in_both_forms() {
    let odd = conformance::odd_vectors().into_iter().map(|odd| odd.vector);
    for vector in conformance::vectors().into_iter().chain(odd) {
        let mut packet = Packet::default();
        packet.load(Frag::all(vector.frame.clone()), Start::Ethernet, &Tunnels::NONE);
        packet.offload.unit = train(vector.gso);
        check(&packet, &Limits::NONE, &vector.segments, &vector.name);
    }
}

#[test]
fn every_vector_in_a_tunnel_leaves_as_the_table_says_in_both_forms() {
    for wrapped in conformance::wrapped() {
        let mut packet = Packet::default();
        packet.load(Frag::all(wrapped.frame.clone()), Start::Ethernet, &tunnels());
        packet.offload = Offload::plain(train(wrapped.inner.gso));
        assert!(packet.offload.push_outer(Layer::NONE));
        check(&packet, &Limits::NONE, &wrapped.segments, &wrapped.name);
    }
}

#[test]
fn every_train_leaves_as_the_tunnel_devices_of_the_table_send_it_in_both_forms() {
    for device in conformance::devices() {
        for train_in in device.trains() {
            let mut packet = Packet::default();
            packet.load(Frag::all(device.frame(&train_in)), Start::Ethernet, &tunnels());
            packet.offload = Offload::plain(train(train_in.inner.gso));
            for tunnel in device.tunnels.iter().rev() {
                assert!(packet.offload.push_outer(layer_of(tunnel)));
            }
            check(&packet, &Limits::NONE, &device.segments(&train_in, &device.tunnels), &train_in.name);
        }
    }
}

/// Tests that segue fragments long datagrams inside a tunnel as Linux's tunnel devices do, with one difference: Linux
/// writes no remote checksum option around a fragment; segue, which finds one there, clears its flag and leaves its 8
/// bytes in the GUE header, where they have no meaning (`tests/gso/fragments.rs` compares them).
#[test]
fn every_long_datagram_leaves_in_fragments_inside_as_the_tunnel_devices_of_the_table_send_it() {
    for device in conformance::devices().iter().filter(|device| device.takes_v4()) {
        for size in [1473, 3000, 9001] {
            let whole = device.datagrams(size, size, &[]);
            let mut packet = Packet::default();
            packet.load(Frag::all(device.frame(&whole)), Start::Ethernet, &tunnels());
            packet.offload = Offload::plain(Unit::Whole(Csum::Partial));
            for tunnel in device.tunnels.iter().rev() {
                assert!(packet.offload.push_outer(layer_of(tunnel)));
            }
            let mtu = device.mtu() + device.overhead();
            let limits = Limits { mtu, fragment: Fragment::Sender { clears_df: false }, ..Limits::NONE };
            let mut linear = Frames::new();
            split_linear(&packet, &limits, &mut linear).unwrap_or_else(|why| panic!("{}: {why:?}", whole.name));
            let frames: Vec<Vec<u8>> = linear.frames().iter().map(|frame| linear.bytes(frame).to_vec()).collect();
            let expected = device.fragments(size, &frames);
            if device.name.contains("/gue-rco/") {
                assert!(frames.iter().map(Vec::len).eq(expected.iter().map(|frame| frame.len() + 8)), "{}", whole.name);
            } else {
                check(&packet, &limits, &expected, &whole.name);
            }
        }
    }
}

/// Returns the offload state of a tunnel level whose present checksums are all owed.
fn layer_of(tunnel: &Tunnel) -> Layer {
    let owed = |is_there| if is_there { LayerCsum::Owed } else { LayerCsum::Absent };
    let remote = match tunnel.udp {
        Some((_, Shim::Gue(Some(Remcsum::Transport)) | Shim::Vxlan(_, true))) => Some(Remote::Transport),
        Some((_, Shim::Gue(Some(Remcsum::Gre)))) => Some(Remote::Gre),
        _ => None,
    };
    let udp = owed(tunnel.udp.is_some_and(|(udp, _)| udp.checksum));
    Layer { udp, gre: owed(tunnel.gre.is_some_and(|gre| gre.checksum)), remote }
}

#[test]
fn every_datagram_leaves_in_the_fragments_of_the_table_in_both_forms() {
    for datagram in conformance::datagrams() {
        for (is_primed, csum) in [(true, Csum::Partial), (false, Csum::Unknown)] {
            for policy in [Fragment::Sender { clears_df: false }, Fragment::Router] {
                if policy == Fragment::Router && !datagram.is_v4() {
                    continue;
                }
                let mut packet = Packet::default();
                packet.load(Frag::all(datagram.frame(is_primed)), Start::Ethernet, &Tunnels::NONE);
                packet.offload.unit = Unit::Whole(csum);
                let limits = Limits { mtu: datagram.mtu, fragment: policy, ..Limits::NONE };
                let mut frames = Frames::new();
                split_linear(&packet, &limits, &mut frames).unwrap_or_else(|why| panic!("{}: {why:?}", datagram.name));
                let id = datagram.id_of(frames.bytes(&frames.frames()[0]));
                check(&packet, &limits, &datagram.fragments(id), &datagram.name);
            }
        }
    }
}

fn train(gso: Gso) -> Unit {
    let kind = if gso.kind == conformance::GsoKind::Udp { GsoKind::Udp } else { GsoKind::Tcp };
    Unit::Train { csum: TrainCsum::Partial, gso: segue::packet::Gso { kind, size: gso.size as u16, fixed_ids: 0 } }
}

/// Splits a vector in both forms, and compares the frames.
fn check(packet: &Packet<Vec<u8>>, limits: &Limits, expected: &[Vec<u8>], name: &str) {
    let (mut linear, mut arena) = (Frames::new(), Arena::new());
    split_linear(packet, limits, &mut linear).unwrap_or_else(|why| panic!("{name}: {why:?}"));
    let frames: Vec<Vec<u8>> = linear.frames().iter().map(|frame| linear.bytes(frame).to_vec()).collect();
    assert!(frames == expected, "{name}");
    split(packet, limits, &mut arena).unwrap_or_else(|why| panic!("{name}: {why:?}"));
    for (segment, expected) in arena.segments().iter().zip(expected) {
        let payload = packet.payload.pieces(segment.payload.start as usize..segment.payload.end as usize);
        let bytes = [arena.head(segment), &payload.collect::<Vec<_>>().concat()].concat();
        assert!(bytes == *expected, "{name}");
    }
    assert_eq!(arena.segments().len(), expected.len(), "{name}");
}
