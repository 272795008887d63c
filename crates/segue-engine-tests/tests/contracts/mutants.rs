//! Tests of deliberately broken mergers, each with one fault: a contract catches each.
//!
//! They are kept as tests: a change that makes a property blind to one of them fails here.

use segue::checksum::Field;
use segue::gro::{Config, Gro, Profile, Stats};
use segue::packet::{Csum, Kind, LayerCsum, Packet, Pool, Unit};
use segue::time::Nanos;
use segue::wire::write_u16;
use segue_testkit::oracle::{self, Ports};
use segue_testkit::{Rng, sum};

use crate::properties::{Boxed, Merger, Promise, Setting, broken};
use crate::streams::{self, Around};

/// A mutant's change of a packet; returning `None` loses the packet.
type Change = fn(Boxed) -> Option<Boxed>;

/// A broken merger: the engine, and the faults around it.
struct Mutant {
    gro: Gro<Vec<u8>>,
    /// Change applied to packets before they are pushed.
    before: Change,
    /// Change applied to packets after they are popped.
    after: Change,
    /// Packets to be released again or later.
    kept: Vec<Boxed>,
    habit: Habit,
    swallowed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// The merger has no fault.
    Plain,
    /// Two consecutive packets of a flow are swapped.
    Swap,
    /// Refused packets do not wait for held ones.
    Overtake,
    /// Every tenth packet is released twice.
    Twice,
    /// Deadlines are forgotten.
    Late,
    /// Joined packets are not counted.
    Miscount,
    /// Every acknowledgment is swallowed and counted.
    Swallow,
    /// Swallowed acknowledgments are not counted.
    Forget,
}

fn same(packet: Boxed) -> Option<Boxed> {
    Some(packet)
}

impl Mutant {
    fn new(config: Config) -> Mutant {
        Mutant { gro: Gro::new(config), before: same, after: same, kept: Vec::new(), habit: Habit::Plain, swallowed: 0 }
    }
}

impl Merger for Mutant {
    fn push(&mut self, packet: Boxed, now: Nanos, pool: &mut Pool<Vec<u8>>) {
        if self.habit == Habit::Overtake && packet.payload.is_empty() {
            self.kept.push(packet);
        } else if self.habit == Habit::Swallow && packet.payload.is_empty() {
            self.swallowed += 1;
        } else if let Some(packet) = (self.before)(packet) {
            self.gro.push(packet, now, pool);
        }
    }

    fn pop(&mut self) -> Option<Boxed> {
        if let Some(kept) = self.kept.pop() {
            return Some(kept);
        }
        let packet = loop {
            match (self.after)(self.gro.pop()?) {
                Some(packet) => break packet,
                None => continue,
            }
        };
        match self.habit {
            Habit::Swap => match self.gro.pop() {
                Some(next) if next.head.bytes()[12..20] == packet.head.bytes()[12..20] => {
                    self.kept.push(packet);
                    Some(next)
                }
                next => {
                    self.kept.extend(next);
                    Some(packet)
                }
            },
            Habit::Twice if packet.payload.len() % 10 == 3 && !matches!(packet.offload.unit, Unit::Train { .. }) => {
                let mut again = Box::<Packet<Vec<u8>>>::default();
                again.head = packet.head.clone();
                (again.layout, again.offload) = (packet.layout, packet.offload);
                packet.payload.frags().iter().for_each(|frag| again.payload.push(frag.clone()));
                self.kept.push(again);
                Some(packet)
            }
            _ => Some(packet),
        }
    }

    fn flush(&mut self) {
        self.gro.flush();
    }

    fn expire(&mut self, now: Nanos) {
        if self.habit != Habit::Late {
            self.gro.expire(now);
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        if self.habit == Habit::Late { None } else { self.gro.deadline() }
    }

    fn held(&self) -> usize {
        self.gro.held()
    }

    fn held_packets(&self) -> usize {
        self.gro.held_packets()
    }

    fn stats(&self) -> Stats {
        let mut stats = self.gro.stats().clone();
        if self.habit == Habit::Miscount {
            stats.segments -= stats.trains;
        }
        if self.habit == Habit::Forget {
            stats.swallowed = 0;
        }
        stats.swallowed += self.swallowed;
        stats.packets += self.swallowed;
        stats
    }
}

/// Asserts that a mutant breaks `promise` and that the engine itself does not.
fn caught(promise: Promise, around: Around, hold: u64, mutate: impl Fn(&mut Mutant)) {
    let config = Config { hold: Nanos(hold), ..Config::default() };
    let round = if hold == 0 { 50 } else { 0 };
    let setting = Setting { ports: streams::ports(), round, ..Setting::new(config) };
    let arrivals = streams::stream(&mut Rng::new(11), 12, 3000, around);
    let found = broken(&mut Mutant::new(config), &arrivals, &setting);
    assert!(found.is_empty(), "without the mutation: {found:?}");

    let mut mutant = Mutant::new(config);
    mutate(&mut mutant);
    let found = broken(&mut mutant, &arrivals, &setting);
    assert!(found.iter().any(|violation| violation.promise == promise), "{promise:?} is blind to it: {found:?}");
}

/// Asserts that a mutant is caught by a receiver that merges acknowledgments.
fn caught_receiving(promise: Promise, mutate: impl Fn(&mut Mutant)) {
    let config = Config { profile: Profile::Lro, acks: true, ..Config::default() };
    let setting = Setting { round: 50, ..Setting::new(config) };
    for arrivals in [
        streams::acknowledgments(&mut Rng::new(12), 6, 3000, Around::Nothing),
        streams::stream(&mut Rng::new(12), 12, 3000, Around::Nothing),
    ] {
        let found = broken(&mut Mutant::new(config), &arrivals, &setting);
        assert!(found.is_empty(), "without the mutation: {found:?}");
    }
    let found: Vec<_> = [
        streams::acknowledgments(&mut Rng::new(12), 6, 3000, Around::Nothing),
        streams::stream(&mut Rng::new(12), 12, 3000, Around::Nothing),
    ]
    .into_iter()
    .flat_map(|arrivals| {
        let mut mutant = Mutant::new(config);
        mutate(&mut mutant);
        broken(&mut mutant, &arrivals, &setting)
    })
    .collect();
    assert!(found.iter().any(|violation| violation.promise == promise), "{promise:?} is blind to it: {found:?}");
}

#[test]
fn mutant_that_drops_duplicate_acks_breaks_conservation() {
    caught_receiving(Promise::Conservation, |mutant| mutant.habit = Habit::Swallow);
}

#[test]
fn mutant_that_does_not_count_aggregated_acks_breaks_conservation() {
    caught_receiving(Promise::Conservation, |mutant| mutant.habit = Habit::Forget);
}

#[test]
fn an_acknowledgment_that_is_lost_breaks_conservation() {
    caught_receiving(Promise::Conservation, |mutant| {
        mutant.after =
            |packet| (packet.head.bytes().first() != Some(&0x60) || !packet.payload.is_empty()).then_some(packet);
    });
}

#[test]
fn mutant_with_a_changed_tcp_window_breaks_transparency() {
    caught_receiving(Promise::Transparency, |mutant| {
        mutant.after = |packet| {
            train(packet, |packet| {
                if let Some(header) = packet.layout.transport().copied().filter(|h| h.kind == Kind::Tcp) {
                    packet.head.bytes_mut()[header.start() + 15] ^= 1;
                }
            })
        };
    });
}

#[test]
fn mutant_with_truncated_payload_breaks_transparency() {
    caught_receiving(Promise::Transparency, |mutant| {
        mutant.after = |packet| train(packet, |packet| packet.payload.truncate(packet.payload.len() - 1));
    });
}

#[test]
fn mutant_that_marks_unverified_acks_verified_breaks_conservation() {
    caught_receiving(Promise::Conservation, |mutant| {
        mutant.before = |mut packet| {
            if packet.offload.unit == Unit::Whole(Csum::Unknown) && packet.layout.transport().is_some() {
                packet.offload.unit = Unit::Whole(Csum::Verified);
            }
            Some(packet)
        };
    });
}

#[test]
fn a_packet_that_is_lost_breaks_conservation() {
    caught(Promise::Conservation, Around::Nothing, 0, |mutant| {
        mutant.after = |packet| (packet.payload.len() != 64).then_some(packet);
    });
}

#[test]
fn a_packet_that_never_gets_in_breaks_conservation() {
    caught(Promise::Conservation, Around::Nothing, 0, |mutant| {
        mutant.before = |packet| (packet.payload.len() != 64).then_some(packet);
    });
}

#[test]
fn a_packet_that_comes_out_twice_breaks_conservation() {
    caught(Promise::Conservation, Around::Nothing, 0, |mutant| mutant.habit = Habit::Twice);
}

#[test]
fn a_wrong_counter_breaks_conservation() {
    caught(Promise::Conservation, Around::Nothing, 0, |mutant| mutant.habit = Habit::Miscount);
}

#[test]
fn two_packets_that_change_places_break_order() {
    caught(Promise::Order, Around::Nothing, 0, |mutant| mutant.habit = Habit::Swap);
}

#[test]
fn an_acknowledgment_that_overtakes_what_is_held_breaks_order() {
    caught(Promise::Order, Around::Nothing, 0, |mutant| mutant.habit = Habit::Overtake);
}

#[test]
fn a_deadline_that_passes_breaks_bounds() {
    caught(Promise::Bounds, Around::Nothing, 50_000, |mutant| mutant.habit = Habit::Late);
}

#[test]
fn a_train_over_the_limit_breaks_bounds() {
    // The limit of the setting counts, so a merger with a larger one exceeds it.
    let small = Config { max_packets: 3, ..Config::default() };
    let setting = Setting::new(small);
    let arrivals = streams::stream(&mut Rng::new(11), 12, 3000, Around::Nothing);
    assert!(broken(&mut Gro::new(small), &arrivals, &setting).is_empty());
    let found = broken(&mut Gro::new(Config::default()), &arrivals, &setting);
    assert!(found.iter().any(|violation| violation.promise == Promise::Bounds), "{found:?}");
}

#[test]
fn mutant_that_repairs_a_wrong_checksum_launders_it() {
    fn repair(mut packet: Boxed) -> Option<Boxed> {
        let whole: Vec<u8> =
            [packet.head.bytes(), &packet.payload.pieces(0..usize::MAX).collect::<Vec<_>>().concat()].concat();
        if matches!(packet.offload.unit, Unit::Whole(Csum::Unknown | Csum::Bad))
            && oracle::verify(&whole, oracle::Start::Ip, &Ports::default()).is_err()
            && let (Some(transport), Some(ip)) = (packet.layout.transport().copied(), packet.layout.inner_ip().copied())
        {
            let field = transport.start() + if transport.kind == Kind::Tcp { 16 } else { 6 };
            let protocol = if transport.kind == Kind::Tcp { 6 } else { 17 };
            let mut segment = whole[transport.start()..].to_vec();
            segment[field - transport.start()..][..2].fill(0);
            let at = ip.start() + if ip.kind == Kind::Ipv4 { 12 } else { 8 };
            let len = if ip.kind == Kind::Ipv4 { 4 } else { 16 };
            let (src, dst) = (&whole[at..at + len], &whole[at + len..at + 2 * len]);
            let checksum = !sum::with_pseudo(src, dst, protocol, &segment);
            write_u16(packet.head.bytes_mut(), field, Field::from_wire(checksum).nonzero().value());
        }
        Some(packet)
    }
    caught(Promise::NeverLaunder, Around::Nothing, 0, |mutant| mutant.after = repair);
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| mutant.after = repair);
}

#[test]
fn mutant_that_skips_verification_launders_a_checksum() {
    fn believe(mut packet: Boxed) -> Option<Boxed> {
        if packet.offload.unit == Unit::Whole(Csum::Unknown) && packet.layout.transport().is_some() {
            packet.offload.unit = Unit::Whole(Csum::Verified);
        }
        Some(packet)
    }
    caught(Promise::NeverLaunder, Around::Nothing, 0, |mutant| mutant.before = believe);
}

#[test]
fn mutant_that_skips_outer_verification_launders_a_checksum() {
    fn believe(mut packet: Boxed) -> Option<Boxed> {
        for layer in packet.offload.layers_mut() {
            if layer.udp == LayerCsum::Unknown {
                layer.udp = LayerCsum::Done;
            }
        }
        Some(packet)
    }
    caught(Promise::NeverLaunder, Around::Tunnels, 0, |mutant| mutant.before = believe);
}

#[test]
fn mutant_that_marks_output_verified_launders_checksums() {
    caught(Promise::NeverLaunder, Around::Nothing, 0, |mutant| {
        mutant.after = |mut packet| {
            if packet.offload.unit == Unit::Whole(Csum::Unknown) {
                packet.offload.unit = Unit::Whole(Csum::Verified);
            }
            Some(packet)
        };
    });
}

/// Applies a change to every released train.
fn train(mut packet: Boxed, change: impl Fn(&mut Packet<Vec<u8>>)) -> Option<Boxed> {
    if let Unit::Train { .. } = packet.offload.unit {
        change(&mut packet);
    }
    Some(packet)
}

#[test]
fn a_psh_that_is_dropped_breaks_transparency() {
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| {
        mutant.after = |packet| {
            train(packet, |packet| {
                if let Some(header) = packet.layout.transport().copied().filter(|h| h.kind == Kind::Tcp) {
                    packet.head.bytes_mut()[header.start() + 13] &= !0x08;
                }
            })
        };
    });
}

#[test]
fn an_identification_mode_that_is_forgotten_breaks_transparency() {
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| {
        mutant.after = |packet| {
            train(packet, |packet| {
                if let Unit::Train { gso, .. } = &mut packet.offload.unit {
                    gso.fixed_ids = 0;
                }
            })
        };
    });
}

#[test]
fn an_outer_identification_mode_that_is_forgotten_breaks_transparency() {
    caught(Promise::Transparency, Around::Tunnels, 0, |mutant| {
        mutant.after = |packet| {
            train(packet, |packet| {
                if let Unit::Train { gso, .. } = &mut packet.offload.unit {
                    gso.fixed_ids &= !1;
                }
            })
        };
    });
}

#[test]
fn another_segment_size_breaks_transparency() {
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| {
        mutant.after = |packet| {
            train(packet, |packet| {
                if let Unit::Train { gso, .. } = &mut packet.offload.unit {
                    gso.size += 1;
                }
            })
        };
    });
}

#[test]
fn a_reordered_payload_breaks_transparency() {
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| {
        mutant.after = |packet| {
            train(packet, |packet| {
                let frags: Vec<_> = packet.payload.frags().iter().rev().cloned().collect();
                packet.payload.clear();
                frags.into_iter().for_each(|frag| packet.payload.push(frag));
            })
        };
    });
}

#[test]
fn merging_what_differs_in_a_field_breaks_transparency() {
    // Simulates a field that is not compared: all packets get the value of the first.
    fn level(mut packet: Boxed) -> Option<Boxed> {
        if let Some(header) = packet.layout.transport().copied().filter(|h| h.kind == Kind::Tcp && h.len == 32) {
            // Changes the timestamp, with the checksum unknown, so that the checksum is not what keeps the packets
            // apart.
            packet.head.bytes_mut()[header.start() + 24..header.start() + 28].fill(7);
            packet.offload.unit = Unit::Whole(Csum::Verified);
        }
        Some(packet)
    }
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| mutant.before = level);
    // The flow label represents the fields of IP.
    fn relabel(mut packet: Boxed) -> Option<Boxed> {
        if let Some(header) = packet.layout.inner_ip().copied().filter(|h| h.kind == Kind::Ipv6) {
            packet.head.bytes_mut()[header.start() + 3] = 1;
        }
        Some(packet)
    }
    caught(Promise::Transparency, Around::Nothing, 0, |mutant| mutant.before = relabel);
}
