use segue::gro::{Config, Generation, Gro, Profile};
use segue::packet::Start;
use segue::time::Nanos;

use crate::input::Input;
use crate::paths::disagreement;
use crate::properties::{Arrival, Promise, Setting, broken};
use crate::streams;

/// Runs GRO on a sequence of arbitrary frames: every contract of the engine holds, and the fast path gives the same
/// output as the slow path.
///
/// The first byte says where frames begin (bit 0: with IP), which profile is used (bit 1: Linux; with bit 5 LRO, or
/// older and newer kernels), and how small the limits are (bits 2 to 4). Then each frame has two bytes of length before
/// it; a length larger than the rest takes the rest. A length with the highest bit set means that the frame repeats the
/// one before it, with the rest of its bytes laid over it from the offset that another two bytes name, so that frames
/// of one flow are likely.
pub(crate) fn gro(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let start = if how & 1 == 0 { Start::Ethernet } else { Start::Ip };
    let profile = match (how & 2 != 0, how & 32 != 0) {
        (false, false) => Profile::Strict,
        (true, false) => Profile::linux(),
        (false, true) => Profile::Lro,
        (true, true) => Profile::Linux(if how & 64 == 0 { Generation::V6_12 } else { Generation::V7 }),
    };
    let mut config = Config { profile, acks: true, ..Config::default() };
    if how & 4 != 0 {
        (config.max_packets, config.max_udp_packets) = (3, 2);
    }
    if how & 8 != 0 {
        config.max_bytes = 300;
    }
    if how & 16 != 0 {
        (config.max_flows, config.hold) = (2, Nanos(5));
    }
    let round = if config.hold == Nanos::ZERO { 16 } else { 0 };
    let setting = Setting { start, ports: streams::ports(), round, step: 2, ..Setting::new(config) };

    let arrivals = frames(input);
    let mut found = broken(&mut Gro::new(config), &arrivals, &setting);
    // Linux loses fields that it does not compare; if a frame cannot be recognised as one that arrived, its order
    // cannot be judged.
    let is_linux = matches!(profile, Profile::Linux(_));
    found.retain(|violation| !is_linux || violation.promise != Promise::Transparency);
    assert!(found.is_empty(), "{found:?}");
    let what = disagreement(&arrivals, &setting);
    assert!(what.is_none(), "{}", what.unwrap_or_default());
}

fn frames(mut input: Input<'_>) -> Vec<Arrival> {
    let mut arrivals: Vec<Arrival> = Vec::new();
    while !input.is_empty() && arrivals.len() < 100 {
        let len = input.u16();
        let again = len & 0x8000 != 0;
        let bytes = match arrivals.last() {
            Some(before) if again => {
                let mut bytes = before.bytes.clone();
                let at = usize::from(input.u16());
                for (place, change) in bytes.iter_mut().skip(at).zip(input.take(usize::from(len & 0xff))) {
                    *place = *change;
                }
                bytes
            }
            _ => input.take(usize::from(len & 0x7fff)).to_vec(),
        };
        arrivals.push(Arrival::new(bytes));
    }
    arrivals
}
