//! The contracts across a tunnel: packets are merged, encapsulated, split, decapsulated, and merged again.

use std::net::IpAddr;

use proptest::prelude::*;
use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, GreOptions, Mode, SourcePorts};
use segue::gro::{self, Gro, Stats};
use segue::packet::{Frag, Packet, Pool, Start, Tunnels};
use segue::time::Nanos;
use segue_testkit::Rng;
use segue_testkit::oracle::{self, Ports, verify};

use crate::properties::{Boxed, Merger, Setting, check, cut};
use crate::streams::{self, Around};

/// Two hosts with a tunnel between them.
struct Through {
    near: Gro<Vec<u8>>,
    encap: Encapsulator,
    decap: Decapsulator,
    far: Gro<Vec<u8>>,
    pool: Pool<Vec<u8>>,
    ports: Ports,
    lost: u64,
}

impl Through {
    fn new(config: Config, setting: &Setting) -> Through {
        let back = Config { local: config.remote, remote: config.local, ..config };
        let fou = |protocol| Ports { fou: vec![(config.dport, protocol)], ..Ports::default() };
        let ports = match (config.carrier, config.mode) {
            (Carrier::Gue { .. }, _) => Ports { gue: vec![config.dport], ..Ports::default() },
            (Carrier::Fou, Mode::Gre(_)) => fou(47),
            // Either IP version; the oracle is told which when it is asked.
            (Carrier::Fou, Mode::GreTap(_)) => fou(47),
            (Carrier::Fou, Mode::Ethernet) => fou(143),
            (Carrier::Fou, _) => fou(4),
            (Carrier::Vxlan { .. }, _) => Ports { vxlan: vec![config.dport], ..Ports::default() },
            (Carrier::Geneve { .. }, _) => Ports { geneve: vec![config.dport], ..Ports::default() },
            (Carrier::Bare, _) => Ports::default(),
        };
        Through {
            near: Gro::new(setting.config),
            encap: Encapsulator::new(config).unwrap(),
            decap: Decapsulator::new(back).unwrap(),
            far: Gro::new(setting.config),
            pool: Pool::new(64),
            ports,
            lost: 0,
        }
    }

    /// Moves every ready packet from the sending host to the receiving host.
    fn carry(&mut self, now: Nanos) {
        while let Some(mut packet) = self.near.pop() {
            if self.encap.push(&mut packet).is_err() {
                self.lost += 1;
                continue;
            }
            let datagrams = cut(&packet).unwrap();
            self.pool.put(packet);
            for datagram in datagrams {
                self.judge(&datagram);
                let mut inside = self.pool.take();
                match self.decap.pull_packet(Frag::all(datagram), &mut inside) {
                    Ok(()) => self.far.push(inside, now, &mut self.pool),
                    Err(_) => self.lost += 1,
                }
            }
        }
    }

    /// Checks all outer lengths and checksums, regardless of the inner packet.
    fn judge(&self, datagram: &[u8]) {
        let mut ports = self.ports.clone();
        let inner_at = if datagram[0] >> 4 == 4 { 28 } else { 48 };
        for (_, protocol) in ports.fou.iter_mut().filter(|fou| fou.1 == 4) {
            *protocol = if datagram[inner_at] >> 4 == 4 { 4 } else { 41 };
        }
        if let Err(what) = verify(datagram, oracle::Start::Ip, &ports) {
            // Errors inside pass through unchanged.
            let outside = ["outer UDP", "IPv4 header", "IP length", "GRE", "GUE", "remote", "extension"];
            assert!(!outside.iter().any(|part| what.starts_with(part)), "{what}: {datagram:02x?}");
        }
    }
}

impl Merger for Through {
    fn push(&mut self, packet: Boxed, now: Nanos, pool: &mut Pool<Vec<u8>>) {
        self.near.push(packet, now, pool);
        self.carry(now);
    }
    fn pop(&mut self) -> Option<Boxed> {
        self.far.pop()
    }
    fn flush(&mut self) {
        self.near.flush();
        self.carry(Nanos(0));
        self.far.flush();
    }
    fn expire(&mut self, _: Nanos) {}
    fn deadline(&self) -> Option<Nanos> {
        None
    }
    fn held(&self) -> usize {
        self.far.held()
    }
    fn held_packets(&self) -> usize {
        self.far.held_packets()
    }
    fn stats(&self) -> Stats {
        let mut stats = self.far.stats().clone();
        stats.packets += self.lost;
        stats.checksummed_bytes += self.near.stats().checksummed_bytes + self.decap.checksummed_bytes();
        stats
    }
}

fn tunnel() -> impl Strategy<Value = Config> {
    let carrier = prop_oneof![
        1 => Just(Carrier::Fou),
        1 => Just(Carrier::Bare),
        1 => (0_u32..1 << 24).prop_map(|vni| Carrier::Geneve { vni }),
        2 => (0_u32..1 << 24, any::<bool>()).prop_map(|(vni, remcsum)| {
            Carrier::Vxlan { vni, remcsum, takes_remcsum: true }
        }),
        1 => Just(Carrier::Gue { remcsum: false }),
        2 => Just(Carrier::Gue { remcsum: true }),
    ];
    let gre = (any::<Option<u32>>(), any::<bool>(), any::<bool>()).prop_map(|(key, csum, seq)| GreOptions {
        ikey: key,
        okey: key,
        icsum: csum,
        ocsum: csum,
        iseq: seq,
        oseq: seq,
    });
    let mode =
        prop_oneof![Just(Mode::Ip), Just(Mode::Ethernet), gre.clone().prop_map(Mode::Gre), gre.prop_map(Mode::GreTap)];
    (carrier, mode, any::<bool>(), any::<bool>(), 1_u16..99).prop_map(|(carrier, mode, is_v4, csum, slots)| {
        let (local, remote): (IpAddr, IpAddr) = match is_v4 {
            true => ("198.18.0.1".parse().unwrap(), "198.18.0.2".parse().unwrap()),
            false => ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()),
        };
        let remcsum = matches!(carrier, Carrier::Gue { remcsum: true } | Carrier::Vxlan { remcsum: true, .. });
        let csum = csum || remcsum;
        let mode = match (carrier, mode) {
            (Carrier::Vxlan { .. } | Carrier::Geneve { .. }, _) => Mode::Ethernet,
            (Carrier::Bare, Mode::Ethernet) => Mode::Ip,
            (_, mode) => mode,
        };
        Config {
            csum,
            zero_csum6: !csum,
            slots: SourcePorts::Slots(slots),
            ..Config::new(mode, carrier, local, remote)
        }
    })
}

/// Returns the kind of the inner packets' first header, and the headers in front of IP.
fn begins(config: &Config) -> (Start, Around) {
    if config.mode.is_ethernet() { (Start::Ethernet, Around::Link) } else { (Start::Ip, Around::Nothing) }
}

proptest! {
    #[test]
    fn every_promise_holds_from_end_to_end(
        seed: u64, flows in 1_usize..12, count in 1_usize..200, config in tunnel(), round in 1_usize..90,
    ) {
        let (start, around) = begins(&config);
        let setting = Setting { round, start, ..Setting::new(gro::Config::default()) };
        let arrivals = streams::stream(&mut Rng::new(seed), flows, count, around);
        if let Err(violation) = check(&mut Through::new(config, &setting), &arrivals, &setting) {
            return Err(TestCaseError::fail(format!("{violation:?}")));
        }
    }

    #[test]
    fn a_flipped_bit_in_a_datagram_is_never_delivered(seed: u64, config in tunnel(), at: usize, bit in 0_u8..8) {
        // Without UDP no outer checksum covers the packet.
        prop_assume!(config.carrier != Carrier::Bare);
        let config = Config { csum: true, ..config };
        let (start, around) = begins(&config);
        let back = Config { local: config.remote, remote: config.local, ..config };
        let mut rng = Rng::new(seed);
        let mut encap = Encapsulator::new(config).unwrap();
        let mut pool = Pool::new(64);
        let mut near = Gro::new(gro::Config::default());
        for arrival in streams::stream(&mut rng, 2, 20, around) {
            let mut packet = pool.take();
            packet.load(Frag::all(arrival.bytes), start, &Tunnels::NONE);
            near.push(packet, Nanos(0), &mut pool);
        }
        near.flush();
        while let Some(mut packet) = near.pop() {
            if encap.push(&mut packet).is_err() {
                continue;
            }
            for mut datagram in cut(&packet).unwrap() {
                // IPv6 has no header checksum; from UDP on everything is covered.
                let from = if datagram[0] >> 4 == 4 { 0 } else { 40 };
                let at = from + at % (datagram.len() - from);
                datagram[at] ^= 1 << bit;
                if datagram[0] >> 4 == 4 && datagram[26..28] == [0, 0] {
                    // A checksum with one bit set, and that bit cleared: UDP over IPv4 cannot tell this from no
                    // checksum.
                    continue;
                }
                let mut inside = Packet::default();
                let result = Decapsulator::new(back).unwrap().pull_packet(Frag::all(datagram), &mut inside);
                prop_assert!(result.is_err(), "byte {} bit {}", at, bit);
                prop_assert!(inside.is_empty());
            }
        }
    }
}

#[test]
fn the_fast_path_out_of_a_tunnel_gives_what_the_slow_one_gives() {
    let mut rng = Rng::new(11);
    let decapsulators = crate::decap::decapsulators();
    let mut short = vec![0; decapsulators.len()];
    for _ in 0..60 {
        for arrival in streams::stream(&mut rng, 6, 40, Around::Tunnels) {
            for (decap, short) in decapsulators.iter().zip(&mut short) {
                *short += crate::decap::by_fast_path(decap, &arrival.bytes).unwrap_or_else(|what| panic!("{what}"));
            }
        }
    }
    // Other identifiers, and GRE checksums, keep it from the others.
    let taken = short.iter().filter(|&&count| count > 0).count();
    assert!(taken >= 12, "{short:?}");
}
