//! Tests of every train of up to five segments with every set of options, for every kind of port, against frames that
//! the testkit builds one by one and its oracle judges. A sample; the whole with `SEGUE_SOAK=1` and a release build.

use segue::gso::Limits;
use segue::packet::{LayerCsum, TrainCsum};
use segue_testkit::build::{self, Ethernet, Ip, L4, Tcp, Tunnel, Udp, V4, V6};
use segue_testkit::{Rng, is_set};

use crate::case::*;
use crate::device::check_parts;

/// Largest number of segments of a train.
const MOST: usize = 5;
/// Sampling intervals for trains in tunnels and for the others: primes, so that the sample has every value of an option
/// with every value of the other options.
const SAMPLE: [usize; 2] = [4001, 307];

/// Flags of TCP: plain, the ones of the last segment, those of the first, and all that a train may have.
const FLAGS: [u8; 4] = [0x10, 0x19, 0x90, 0xf9];
/// Sizes of segments, even and odd.
const SIZES: [usize; 2] = [24, 9];
/// Numbers of bytes by which the last segment is shorter than the others.
const SHORTER: [usize; 2] = [0, 7];

/// The digits of the number of a train, one for each option, the last one first.
struct Digits(usize);

impl Digits {
    fn below(&mut self, count: usize) -> usize {
        let digit = self.0 % count;
        self.0 /= count;
        digit
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

/// All options, each with its values.
struct Options {
    ips: [Ip; 4],
    /// The tunnels around IPv4 and around IPv6, or none.
    tunnels: [Vec<Option<Tunnel>>; 2],
    links: [Option<Ethernet>; 2],
    l4s: Vec<(L4, bool)>,
    ports: Vec<Limits>,
}

impl Options {
    /// Creates the options for trains in tunnels, or for trains without one.
    fn new(is_tunnelled: bool) -> Options {
        let extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
        let ips = [
            v4(1, 0xfffd),
            Ip::V4(V4 { id: 7, df: false, options: vec![0x94, 4, 0, 0], ..V4::new(1, 1, 2) }),
            v6(1),
            Ip::V6(V6 { extensions, ..V6::new(1, 1, 2) }),
        ];
        let tunnels = |is_v4| match is_tunnelled {
            true => every_tunnel(is_v4).into_iter().map(Some).collect(),
            false => vec![None],
        };
        let tags = |tags: &[(u16, u16)]| Some(Ethernet { tags: tags.to_vec(), ..Ethernet::default() });
        let tcp = |flags, options| {
            let (src_port, dst_port, seq, ack) = (1000, 80, 0xffff_fff0, 0x1234_5678);
            L4::Tcp(Tcp { src_port, dst_port, seq, ack, flags, window: 9, urgent: 3, options })
        };
        let timestamps = Tcp::timestamps(7, 8);
        let mut l4s: Vec<_> = FLAGS.map(|flags| (tcp(flags, Vec::new()), false)).into();
        l4s.extend([(tcp(0xf9, timestamps.clone()), false), (tcp(0xf9, timestamps), true)]);
        l4s.push((L4::Udp(Udp { src_port: 1000, dst_port: 2000, checksum: true }), false));
        // Ports of single packets; of plain trains, too: all kinds but one, and so many segments; of trains in tunnels.
        let mut ports = vec![Limits::NONE, PORT_CSUM, PORT_OUTER, PORT_BOTH, PORT_TSO];
        if is_tunnelled {
            ports.extend([PORT_TUNNEL, PORT_TUNNEL_CSUM]);
            ports.extend([2, 3].map(|segs| Limits { max_segs: segs, max_udp_segs: MOST - segs, ..PORT_TUNNEL_CSUM }));
        }
        if !is_tunnelled {
            ports.push(Limits { tso4: false, ..PORT_TSO });
            ports.push(Limits { tso6: false, ..PORT_TSO });
            ports.push(Limits { uso: false, ..PORT_TSO });
            ports.extend((1..MOST).map(|segs| Limits { max_segs: segs, max_udp_segs: MOST - segs, ..PORT_TSO }));
        }
        let links = [None, tags(&[(0x88a8, 1), (0x8100, 2)])];
        Options { ips, tunnels: [tunnels(true), tunnels(false)], links, l4s, ports }
    }

    /// Returns the number of trains.
    fn count(&self) -> usize {
        let options = [self.ips.len(), self.tunnels[0].len(), self.links.len(), self.l4s.len(), self.ports.len()];
        options.iter().product::<usize>() * MOST * SIZES.len() * SHORTER.len() * 2 * 4 * 2
    }

    /// Returns the train with the given number, and its port.
    fn train(&self, number: usize) -> (Case, Limits) {
        let mut digits = Digits(number);
        let limits = digits.of(&self.ports);
        let ip = digits.of(&self.ips);
        let tunnel = digits.of(&self.tunnels[usize::from(matches!(ip, Ip::V6(_)))]);
        let (l4, keeps_cwr) = digits.of(&self.l4s);
        let (size, segments) = (digits.of(&SIZES), 1 + digits.below(MOST));
        let len = segments * size - digits.of(&SHORTER);
        let inner = build::Packet { ip, l4, data: Rng::new(number as u64).bytes(len) };
        let mut case = Case { keeps_cwr, ..Case::new(inner, size) };
        case.tunnels.extend(tunnel);
        case.ethernet = digits.of(&self.links);
        case.csum = digits.of(&[TrainCsum::Partial, TrainCsum::Stale]);
        case.fixed = digits.below(4) as u16;
        case.outer = digits.of(&[LayerCsum::Owed, LayerCsum::Done]);
        (case, limits)
    }
}

/// Returns the number of segments per train that a port accepts; 1 if it accepts none.
fn taken(case: &Case, limits: &Limits) -> usize {
    let (takes, segs) = match (&case.inner.l4, &case.inner.ip) {
        (L4::Tcp(_), Ip::V4(_)) => (limits.tso4, limits.max_segs),
        (L4::Tcp(_), Ip::V6(_)) => (limits.tso6, limits.max_segs),
        _ => (limits.uso, limits.max_udp_segs),
    };
    let takes = takes && case.tunnels.iter().all(|tunnel| is_taken(tunnel, limits));
    if takes && !case.keeps_cwr { segs } else { 1 }
}

/// Checks the trains for a port that takes trains of `segs` segments: each equals one that was built as one packet,
/// with the checksum of its pseudo-header.
#[track_caller]
fn assert_parts(case: &Case, limits: &Limits, segs: usize) {
    let out = split_both(&case.train(), limits).unwrap_or_else(|reason| panic!("{reason:?}: {case:?}")).0;
    let (total, link) = (case.inner.data.len(), case.ethernet.as_ref().map_or(0, |link| 14 + 4 * link.tags.len()));
    let mut at = 0;
    for out in &out {
        let end = (at + segs * case.size).min(total);
        let expected = case.expected(at..end);
        let primed = build::prime(&expected[link..]).expect("a transport header");
        assert!(out.bytes == [&expected[..link], &primed].concat(), "{at} to {end} for {limits:?}: {case:?}");
        assert_eq!(out.gso.map(|gso| usize::from(gso.size)), (end - at > case.size).then_some(case.size));
        at = end;
    }
    assert_eq!(at, total, "{case:?}");
}

/// Checks every `step`th train whose number has the remainder `part` modulo `parts`; returns their number.
fn check_trains(is_tunnelled: bool, step: usize, (part, parts): (usize, usize)) -> usize {
    let options = Options::new(is_tunnelled);
    let mut checked = 0;
    for number in (part * step..options.count()).step_by(parts * step) {
        let (case, limits) = options.train(number);
        match taken(&case, &limits) {
            1 => drop(check_case(&case, &limits)),
            segs if is_tunnelled => {
                // A virtio-net header does not say that identifications stay the same.
                let case = Case { fixed: 0, ..case };
                let out = check_parts(&case, &case.train(), &limits);
                assert_eq!(out.len(), case.ranges().len().div_ceil(segs), "{limits:?}: {case:?}");
            }
            segs => assert_parts(&case, &limits, segs.min(MOST)),
        }
        checked += 1;
    }
    checked
}

#[test]
fn every_train_of_up_to_five_segments_with_every_set_of_options_is_what_would_have_been_built() {
    let is_whole = is_set("SEGUE_SOAK");
    let parts = std::thread::available_parallelism().map_or(1, usize::from);
    let checked: usize = std::thread::scope(|scope| {
        let all = (0..parts).flat_map(|part| [true, false].map(|is_tunnelled| (part, is_tunnelled)));
        let all = all.map(|(part, is_tunnelled)| {
            let step = if is_whole { 1 } else { SAMPLE[usize::from(!is_tunnelled)] };
            scope.spawn(move || check_trains(is_tunnelled, step, (part, parts)))
        });
        let all: Vec<_> = all.collect();
        all.into_iter().map(|thread| thread.join().expect("each train is what would have been built")).sum()
    });
    println!("{checked} trains");
    let all = [true, false].map(|is_tunnelled| Options::new(is_tunnelled).count()).iter().sum::<usize>();
    assert!(if is_whole { checked == all } else { checked > 4000 }, "{checked} of {all}");
}
