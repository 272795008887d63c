use segue::easy::Joiner;
use segue::gro::{Config, Generation, Gro, Profile};
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Csum, Kind, Pool, Start};
use segue::time::Nanos;
use segue::virtio::Form;
use segue::wire::{ipv4, ipv6};
use segue_testkit::build;

use crate::input::Input;
use crate::paths::disagreement;
use crate::properties::{Arrival, PortCsum, Promise, Setting, broken_engine, load};
use crate::resources::bounded;
use crate::streams;

/// Number of bytes that the paths through the engine may hold without frames.
const FREE: usize = 4 << 20;

/// Runs GRO on a sequence of arbitrary frames: every contract of the engine holds, for parsed packets and for frames,
/// the fast path gives the same output as the slow path, and nothing is lost where the rules change between two frames
/// or the frames of a batch are borrowed.
///
/// The first byte says where frames begin (bit 0: with IP), which profile is used (bit 1: Linux; with bit 5 LRO, or
/// older and newer kernels), how small the limits are (bits 2 to 4), and whether the port reports checksums (bit 7).
/// Then each frame has two bytes of length before it; a length larger than the rest takes the rest. A length with the
/// highest bit set means that the frame repeats the one before it, with the rest of its bytes laid over it from the
/// offset that another two bytes name, so that frames of one flow are likely. Where the port reports checksums, the two
/// bits below the highest say what it reports of the frame.
pub fn gro(data: &[u8]) {
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

    let arrivals = frames(input, how & 128 != 0);
    // Four bytes of the input may repeat a frame. What the engine reads are the frames.
    let len: usize = arrivals.iter().map(|arrival| arrival.bytes.len()).sum();
    bounded(len, FREE, || joined(arrivals, config, setting));
}

/// Passes the frames through every path, and checks the contracts.
fn joined(mut arrivals: Vec<Arrival>, config: Config, setting: Setting) {
    arrivals.iter_mut().for_each(|arrival| report(arrival, &setting));
    let mut found = broken_engine(config, &arrivals, &setting);
    // Linux loses fields that it does not compare: a frame that has lost some may be taken for another one or for none,
    // so that its order cannot be judged either.
    let is_linux = matches!(config.profile, Profile::Linux(_));
    found.retain(|violation| !is_linux || !matches!(violation.promise, Promise::Transparency | Promise::Order));
    assert!(found.is_empty(), "{found:?}");
    let what = disagreement(&arrivals, &setting);
    assert!(what.is_none(), "{}", what.unwrap_or_default());
    reconfigured(&arrivals, &setting);
    let limits = Limits { csum: true, tso4: true, tso6: true, uso: true, max_segs: 3, ..Limits::NONE };
    borrowed(Joiner::virtio(config, limits, Form::Buffers), &arrivals, &setting);
    borrowed(Joiner::plain(Key([1, 2])), &arrivals, &Setting { config: Config::default(), ..setting });
}

fn frames(mut input: Input<'_>, has_reports: bool) -> Vec<Arrival> {
    let mut arrivals: Vec<Arrival> = Vec::new();
    while !input.is_empty() && arrivals.len() < 100 {
        let mut len = input.u16();
        let again = len & 0x8000 != 0;
        let mut port_csum = PortCsum::Nothing;
        if has_reports {
            let reports = [PortCsum::Nothing, PortCsum::Verified, PortCsum::Sum, PortCsum::Owed];
            port_csum = reports[usize::from(len >> 13 & 3)];
            len &= 0x1fff;
        }
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
        arrivals.push(Arrival { bytes, port_csum });
    }
    arrivals
}

/// Makes the port's report about a frame one that a port can give: of a packet with one IP header and all its bytes,
/// and only of a right checksum that it is verified or owed. The field of an owed one is primed.
fn report(arrival: &mut Arrival, setting: &Setting) {
    let wanted = std::mem::replace(&mut arrival.port_csum, PortCsum::Nothing);
    if wanted == PortCsum::Nothing {
        return;
    }
    let layout = segue::wire::parse(&arrival.bytes, setting.start, &setting.tunnels());
    let [.., ip, transport] = layout.headers() else { return };
    let is_plain = match ip.kind {
        Kind::Ipv4 => usize::from(ip.len) == ipv4::MIN_LEN,
        Kind::Ipv6 => usize::from(ip.len) == ipv6::LEN,
        _ => false,
    };
    let is_whole = layout.is_exact() && layout.ip_levels() == 1 && layout.transport() == Some(transport);
    let from = ip.start();
    if !is_plain || !is_whole || build::primed(&arrival.bytes[from..]).is_none() {
        return;
    }
    let is_good = setting.judge(&arrival.bytes, PortCsum::Nothing).is_ok();
    match wanted {
        PortCsum::Owed if is_good => {
            let Some(primed) = build::prime(&arrival.bytes[from..]) else { return };
            arrival.bytes[from..].copy_from_slice(&primed);
        }
        PortCsum::Verified if is_good => {}
        PortCsum::Sum => {}
        _ => return,
    }
    arrival.port_csum = wanted;
}

/// Passes the frames through one engine whose rules change between them: every packet is released or counted.
fn reconfigured(arrivals: &[Arrival], setting: &Setting) {
    let config = setting.config;
    let others = [
        Config { profile: Profile::Lro, max_held_packets: 3, max_acks: 2, ..config },
        Config { profile: Profile::linux(), hold: Nanos::ZERO, ..config },
        config,
    ];
    let (mut gro, mut pool, mut released) = (Gro::new(config), Pool::new(8), 0);
    for (index, arrival) in arrivals.iter().enumerate() {
        let now = Nanos(index as u64);
        let packet = load(arrival, setting, &setting.tunnels(), &mut pool);
        gro.deliver(packet, now, &mut pool, |packet, pool| {
            released += 1;
            pool.put(packet);
        });
        if index % 8 == 7 {
            gro.reconfigure(others[index / 8 % others.len()]);
            assert_eq!((gro.held(), gro.held_packets()), (0, 0));
            assert_eq!(gro.config().max_flows, config.max_flows, "the table keeps its size");
        }
        if index % 6 == 5 {
            gro.end_poll(now, &mut pool, |packet, pool| {
                released += 1;
                pool.put(packet);
            });
        }
    }
    gro.flush();
    gro.end_poll(Nanos(u64::MAX), &mut pool, |_, _| released += 1);
    let stats = gro.stats();
    let single = stats.flushes.total() - stats.trains;
    assert_eq!(stats.packets, arrivals.len() as u64);
    assert_eq!(stats.alone.total() + single + stats.segments + stats.swallowed, stats.packets, "{stats:?}");
    assert_eq!(stats.alone.total() + stats.flushes.total(), released, "{stats:?}");
    assert_eq!((gro.held(), gro.held_packets()), (0, 0));
}

/// Joins the borrowed frames of a batch for a device that refuses its first train. In profile `strict` as many packets
/// leave as came.
fn borrowed(joiner: Joiner, arrivals: &[Arrival], setting: &Setting) {
    let mut joiner = joiner.starting_with(setting.start);
    let mut batch = joiner.batch();
    for arrival in arrivals {
        let csum = match arrival.port_csum {
            PortCsum::Verified => Csum::Verified,
            PortCsum::Owed => Csum::Partial,
            PortCsum::Nothing | PortCsum::Sum => Csum::Unknown,
        };
        batch.push_with(&arrival.bytes, csum);
    }
    let mut left = 0;
    while let Some(train) = batch.pop() {
        let segments = train.segments();
        assert_eq!(train.pieces().map(<[u8]>::len).sum::<usize>(), train.len());
        left += segments;
        if segments > 1 && batch.narrow() {
            left -= segments;
        }
    }
    drop(batch);
    assert_eq!(joiner.refused().total(), 0, "{joiner:?}");
    if setting.config.profile == Profile::Strict {
        assert_eq!(left, arrivals.len(), "{joiner:?}");
    }
}
