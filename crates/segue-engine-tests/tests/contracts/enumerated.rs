//! Tests of every sequence of up to four packets out of a set of variants, in every profile, against the contracts, and
//! of every pair of a checksum and a change. A sample of both; the whole with `SEGUE_SOAK=1` and a release build.

use segue::checksum::Field;
use segue::gro::{Config, Gro, Profile};
use segue_testkit::build::{Ip, L4, Packet, Tcp, Udp, V4, V6};
use segue_testkit::is_set;

use crate::properties::{Arrival, ByFrames, Promise, Setting, broken};

/// Payload length of a full segment, bytes.
const SIZE: usize = 24;
/// Payload length of a shorter segment, bytes.
const SHORT: usize = 10;
/// Number of variants of all enumerated types.
const VARIANTS: usize = 44;
/// Length of the longest sequence, in packets.
const LONGEST: u32 = 4;
/// Sampling interval of the sequences. It has no factor in common with the number of variants.
const SAMPLE: usize = 977;

/// Senders of the flows, whose numbers advance so that a sequence of good variants is a stream.
struct Senders {
    seq: [u32; 2],
    id: u16,
}

fn ip(is_v4: bool, id: u16) -> Ip {
    if is_v4 { Ip::V4(V4 { id, ..V4::new(1, 1, 2) }) } else { Ip::V6(V6::new(1, 1, 2)) }
}

fn v4(id: u16, change: impl FnOnce(&mut V4)) -> Ip {
    let mut header = V4 { id, ..V4::new(1, 1, 2) };
    change(&mut header);
    Ip::V4(header)
}

fn v6(change: impl FnOnce(&mut V6)) -> Ip {
    let mut header = V6::new(1, 1, 2);
    change(&mut header);
    Ip::V6(header)
}

impl Senders {
    fn new() -> Senders {
        Senders { seq: [0xffff_ffd0, 1000], id: 0xfffe }
    }

    /// Returns the next segment of one of two flows.
    fn segment(&mut self, ip: Ip, len: usize, change: impl FnOnce(&mut Tcp)) -> Vec<u8> {
        let flow = usize::from(matches!(ip, Ip::V6(_)));
        let seq = self.seq[flow];
        let options = Tcp::timestamps(7, 9);
        let (src_port, dst_port) = (4000, 80);
        let mut tcp = Tcp { src_port, dst_port, seq, ack: 5, flags: 0x10, window: 500, urgent: 0, options };
        change(&mut tcp);
        // What goes back or leaves a gap does not move the flow.
        if tcp.seq == seq {
            self.seq[flow] = seq.wrapping_add(len as u32);
        }
        let data = (0..len).map(|at| tcp.seq.wrapping_add(at as u32) as u8).collect();
        Packet { ip, l4: L4::Tcp(tcp), data }.bytes()
    }

    fn datagram(&mut self, ip: Ip, len: usize, change: impl FnOnce(&mut Udp)) -> Vec<u8> {
        let mut udp = Udp { src_port: 4000, dst_port: 53, checksum: true };
        change(&mut udp);
        Packet { ip, l4: L4::Udp(udp), data: vec![self.id as u8; len] }.bytes()
    }

    /// Returns a packet of the given variant.
    fn packet(&mut self, variant: usize) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let id = self.id;
        let good = ip(true, id);
        let wrong = |mut bytes: Vec<u8>, at: usize| {
            bytes[at] ^= 0x40;
            bytes
        };
        let flags = |flags: u8| move |tcp: &mut Tcp| tcp.flags |= flags;
        match variant {
            0 => self.segment(good, SIZE, |_| ()),
            1 => self.segment(good, SHORT, |_| ()),
            2 => self.segment(good, SIZE + 8, |_| ()),
            3 => self.segment(good, 0, |_| ()),
            4 => self.segment(good, SIZE, |tcp| tcp.seq = tcp.seq.wrapping_add(5)),
            5 => self.segment(good, SIZE, |tcp| tcp.seq = tcp.seq.wrapping_sub(SIZE as u32)),
            6 => self.segment(good, SIZE, flags(8)),
            7 => self.segment(good, SIZE, flags(1)),
            8 => self.segment(good, 0, |tcp| tcp.flags = 2),
            9 => self.segment(good, 0, |tcp| tcp.flags = 4),
            10 => self.segment(good, SIZE, flags(0x20)),
            11 => self.segment(good, SIZE, flags(0x80)),
            12 => self.segment(good, SIZE, flags(0x40)),
            13 => self.segment(good, SIZE, |tcp| tcp.ack += 1),
            14 => self.segment(good, SIZE, |tcp| tcp.window += 1),
            15 => self.segment(good, SIZE, |tcp| tcp.options = Tcp::timestamps(8, 9)),
            16 => self.segment(good, SIZE, |tcp| tcp.options = Tcp::timestamps(6, 9)),
            17 => self.segment(good, SIZE, |tcp| tcp.options.clear()),
            18 => self.segment(good, SIZE, |tcp| tcp.options = vec![5, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
            19 => self.segment(good, SIZE, |tcp| tcp.src_port += 1),
            20 => self.segment(good, 0, |tcp| tcp.ack += 1000),
            21 => self.segment(v4(id, |ip| ip.ttl -= 1), SIZE, |_| ()),
            22 => self.segment(v4(id, |ip| ip.tos ^= 0x20), SIZE, |_| ()),
            23 => self.segment(v4(id, |ip| ip.tos |= 3), SIZE, |_| ()),
            24 => self.segment(v4(id, |ip| ip.df = !ip.df), SIZE, |_| ()),
            25 => self.segment(v4(id.wrapping_sub(1), |_| ()), SIZE, |_| ()),
            26 => self.segment(v4(id, |ip| ip.options = vec![0x94, 4, 0, 0]), SIZE, |_| ()),
            27 => self.segment(v4(id, |ip| ip.fragment = Some((0, true))), SIZE, |_| ()),
            28 => wrong(self.segment(good, SIZE, |_| ()), 60),
            29 => wrong(self.segment(good, SIZE, |_| ()), 10),
            30 => [self.segment(good, SHORT, |_| ()), vec![0xaa; 6]].concat(),
            31 => self.segment(ip(false, id), SIZE, |_| ()),
            32 => self.segment(ip(false, id), SHORT, |_| ()),
            33 => self.segment(v6(|ip| ip.label = 7), SIZE, |_| ()),
            34 => self.segment(v6(|ip| ip.hop_limit -= 1), SIZE, |_| ()),
            35 => self.segment(v6(|ip| ip.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])]), SIZE, |_| ()),
            36 => wrong(self.segment(ip(false, id), SIZE, |_| ()), 80),
            37 => self.datagram(good, SIZE, |_| ()),
            38 => self.datagram(good, SHORT, |_| ()),
            39 => self.datagram(good, SIZE, |udp| udp.checksum = false),
            40 => wrong(self.datagram(good, SIZE, |_| ()), 26),
            41 => self.datagram(ip(false, id), SIZE, |_| ()),
            42 => Packet { ip: good, l4: L4::Icmp(8, 0, [0, 1, 0, 2]), data: vec![1; 8] }.bytes(),
            _ => self.segment(good, SIZE, |_| ())[..SIZE].to_vec(),
        }
    }
}

/// Checks a sequence of variants, as packets and as frames, in one profile.
#[track_caller]
fn assert_holds(variants: &[usize], profile: Profile) {
    let mut senders = Senders::new();
    let arrivals: Vec<Arrival> = variants.iter().map(|variant| Arrival::new(senders.packet(*variant))).collect();
    let config = Config { profile, acks: true, ..Config::default() };
    let setting = Setting::new(config);
    let mut found = broken(&mut ByFrames::new(config, &setting), &arrivals, &setting);
    found.extend(broken(&mut Gro::new(config), &arrivals, &setting));
    // Linux loses fields that it does not compare.
    let is_linux = matches!(profile, Profile::Linux(_));
    found.retain(|violation| !is_linux || violation.promise != Promise::Transparency);
    assert!(found.is_empty(), "{variants:?} {profile:?}: {found:?}");
}

/// Checks every `step`th of the sequences whose number has the remainder `part` modulo `parts`, in one profile; with a
/// step of 1 in all. Returns how many there were.
fn check_sequences(step: usize, (part, parts): (usize, usize)) -> usize {
    let profiles = [Profile::Strict, Profile::linux(), Profile::Lro];
    let (is_whole, mut checked) = (step == 1, 0);
    for len in 1..=LONGEST {
        // All of the short ones.
        let step = if len < 3 { 1 } else { step };
        let numbers = (0..VARIANTS.pow(len)).step_by(step).enumerate();
        for (_, number) in numbers.filter(|(at, _)| at % parts == part) {
            let variants: Vec<usize> = (0..len).map(|at| number / VARIANTS.pow(at) % VARIANTS).collect();
            let chosen = profiles.iter().enumerate().filter(|(at, _)| is_whole || (number + at) % 3 == 0);
            chosen.for_each(|(_, profile)| assert_holds(&variants, *profile));
            checked += 1;
        }
    }
    checked
}

#[test]
fn every_sequence_of_up_to_four_packets_keeps_the_contracts() {
    let step = if is_set("SEGUE_SOAK") { 1 } else { SAMPLE };
    let parts = std::thread::available_parallelism().map_or(1, usize::from);
    let checked: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..parts).map(|part| scope.spawn(move || check_sequences(step, (part, parts)))).collect();
        all.into_iter().map(|thread| thread.join().expect("the contracts hold")).sum()
    });
    println!("{checked} sequences");
    let all: usize = (1..=LONGEST).map(|len| VARIANTS.pow(len)).sum();
    assert!(if step == 1 { checked == all } else { checked > 5000 }, "{checked} of {all}");
}

#[test]
fn a_last_segment_that_fits_makes_a_train_of_the_longest_length() {
    // 16 segments of 4000 bytes, and a last one that fills an IP packet of 65,535 bytes. Linux 6.12 builds one, too.
    let (lens, headers) = ([4000; 16].into_iter().chain([1495 - 12]), 20 + 20 + 12);
    for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
        let mut senders = Senders::new();
        let arrivals: Vec<Arrival> = (lens.clone())
            .map(|len| {
                senders.id = senders.id.wrapping_add(1);
                let id = senders.id;
                Arrival::new(senders.segment(ip(true, id), len, |_| ()))
            })
            .collect();
        let config = Config { profile, ..Config::default() };
        let setting = Setting::new(config);
        let run = crate::properties::check(&mut Gro::new(config), &arrivals, &setting).unwrap();
        assert_eq!(run.released.len(), 1, "{profile:?}");
        assert_eq!(run.released[0].packet.len(), 16 * 4000 + 1495 - 12 + headers, "{profile:?}");
    }
}

#[test]
fn every_change_of_a_checksum_is_that_of_equation_3_of_rfc_1624() {
    // Each step divides 0xffff, so that both forms of zero are among the fields and the words.
    let steps = if is_set("SEGUE_SOAK") {
        [(0x5a5a, 1), (0, 15), (0xffff, 15)]
    } else {
        [0x5a5a, 0, 0xffff].map(|old| (old, 257))
    };
    // The sum of three words without its carries, as a remainder: zero is that of zeros alone, and of all others whose
    // sum is a multiple of 0xffff it is 0xffff. So it is known which of its two zeros a field has.
    let folded = |sum: u32| if sum == 0 { 0 } else { (sum - 1) % 0xffff + 1 };
    let check = |old: u16, field: u16, step: usize| {
        for new in (0..=u16::MAX).step_by(step) {
            let expected = 0xffff - folded(u32::from(!field) + u32::from(!old) + u32::from(new));
            let came = Field::from_wire(field).update(old, new).value();
            assert_eq!(u32::from(came), expected, "{field:#06x}: {old:#06x} -> {new:#06x}");
        }
    };
    let (check, parts) = (&check, std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for part in 0..parts {
            scope.spawn(move || {
                for (old, step) in steps {
                    (0..=u16::MAX).step_by(step).skip(part).step_by(parts).for_each(|field| check(old, field, step));
                }
            });
        }
    });
}
