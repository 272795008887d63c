//! The filtering database of a bridge (IEEE 802.1Q): the port of each learned Ethernet address.
//!
//! Unlike the forwarding table of a tunnel ([`segue::encap::Fdb`]), which evicts the oldest of a few entries, each port
//! has a number of stations of its own: no port can have those of another one forgotten.

use segue::encap::Mac;
use segue::time::Nanos;

use crate::slots::SlotMap;

/// Shortest interval between two searches for stations that have been silent for too long, nanoseconds.
const SWEEP: u64 = 1_000_000_000;

/// Stations of a bridge: learned ones and the host's own interfaces.
#[derive(Debug)]
pub(super) struct Stations {
    map: SlotMap<Mac, Station>,
    /// Number of learned stations of each port.
    learned: Vec<usize>,
    /// Largest number of learned stations of each port.
    limits: Vec<usize>,
    /// Nanoseconds of silence after which a station is forgotten.
    ageing: u64,
    swept: Nanos,
    /// The generation of the table, which changes whenever a station is added, moved or removed.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Station {
    port: u16,
    /// Whether the address is that of this host's interface at the port: such an entry never moves or ages.
    is_own: bool,
    seen: Nanos,
}

/// The result of learning an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// The station is in the table with this port.
    Unchanged,
    /// The station was unknown and has been learned.
    New,
    /// The station was at another port before.
    Moved,
    /// The port has the largest permitted number of stations.
    Full,
    /// The address is that of this host's interface at another port.
    Own,
}

impl Stations {
    pub(super) fn new(ports: usize) -> Stations {
        Stations {
            map: SlotMap::default(),
            learned: vec![0; ports],
            limits: vec![0; ports],
            ageing: u64::MAX,
            swept: Nanos::ZERO,
            generation: 0,
        }
    }

    /// Sets the ageing time, nanoseconds, and the largest number of learned stations of each port.
    pub(super) fn limit(&mut self, ageing: u64, limits: impl Iterator<Item = usize>) {
        self.ageing = ageing;
        for (limit, new) in self.limits.iter_mut().zip(limits) {
            *limit = new;
        }
        self.generation += 1;
    }

    /// Returns the generation of the table, which changes whenever a station is added, moved or removed.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of stations that were learned at a port.
    pub(super) fn learned_at(&self, port: usize) -> usize {
        self.learned.get(port).copied().unwrap_or(0)
    }

    /// Sets the address of this host's interface at a port, which replaces an earlier one.
    pub(super) fn own(&mut self, mac: Mac, port: usize, now: Nanos) {
        let station = Station { port: port as u16, is_own: true, seen: now };
        if self.map.get(&mac).is_some_and(|found| found.is_own) {
            return;
        }
        self.retain(|station| !(station.is_own && usize::from(station.port) == port));
        if let (_, Some(old)) = self.map.insert(mac, station) {
            self.learned[usize::from(old.port)] -= 1;
        }
        self.generation += 1;
    }

    /// Returns the port on which an address was learned.
    pub(super) fn lookup(&self, mac: Mac, now: Nanos) -> Option<usize> {
        let found = self.map.get(&mac)?;
        (found.is_own || !self.is_old(found, now)).then_some(usize::from(found.port))
    }

    /// Records that a frame from the unicast address `mac` was received on `port`.
    pub(super) fn learn(&mut self, mac: Mac, port: usize, now: Nanos) -> Learned {
        if let Some(found) = self.map.get_mut(&mac) {
            let from = usize::from(found.port);
            if from == port {
                found.seen = now;
                return Learned::Unchanged;
            }
            if found.is_own {
                return Learned::Own;
            }
            if self.learned[port] >= self.limits[port] {
                return Learned::Full;
            }
            (found.port, found.seen) = (port as u16, now);
            self.learned[from] -= 1;
            self.learned[port] += 1;
            self.generation += 1;
            return Learned::Moved;
        }
        if self.learned[port] >= self.limits[port] {
            self.sweep(now);
            if self.learned[port] >= self.limits[port] {
                return Learned::Full;
            }
        }
        self.map.insert(mac, Station { port: port as u16, is_own: false, seen: now });
        self.learned[port] += 1;
        self.generation += 1;
        Learned::New
    }

    /// Removes the addresses learned on a port, which is down.
    pub(super) fn forget(&mut self, port: usize) {
        if self.learned_at(port) > 0 {
            self.retain(|station| station.is_own || usize::from(station.port) != port);
        }
    }

    /// Removes stations that have been silent for the ageing time, at most once in [`SWEEP`] nanoseconds.
    pub(super) fn sweep(&mut self, now: Nanos) {
        if now.0.saturating_sub(self.swept.0) >= SWEEP {
            self.swept = now;
            let ageing = self.ageing;
            self.retain(|station| station.is_own || now.0.saturating_sub(station.seen.0) < ageing);
        }
    }

    fn is_old(&self, station: &Station, now: Nanos) -> bool {
        now.0.saturating_sub(station.seen.0) >= self.ageing
    }

    fn retain(&mut self, keeps: impl Fn(&Station) -> bool) {
        let Stations { map, learned, generation, .. } = self;
        map.retain(|_, station| {
            let keeps = keeps(station);
            if !keeps && !station.is_own {
                learned[usize::from(station.port)] -= 1;
            }
            *generation += u64::from(!keeps);
            keeps
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];
    const C: Mac = [2, 0, 0, 0, 0, 3];
    const S: u64 = 1_000_000_000;

    fn stations(limit: usize) -> Stations {
        let mut made = Stations::new(3);
        made.limit(300 * S, [limit; 3].into_iter());
        made
    }

    #[test]
    fn a_station_is_known_where_it_was_seen_last_until_it_is_silent_for_too_long() {
        let mut stations = stations(8);
        assert_eq!(stations.lookup(A, Nanos(0)), None);
        assert_eq!(stations.learn(A, 1, Nanos(0)), Learned::New);
        assert_eq!(stations.lookup(A, Nanos(299 * S)), Some(1));
        assert_eq!(stations.lookup(A, Nanos(300 * S)), None);
        assert_eq!(stations.learn(A, 1, Nanos(300 * S)), Learned::Unchanged);
        let before = stations.generation();
        assert_eq!(stations.learn(A, 2, Nanos(301 * S)), Learned::Moved);
        assert_eq!(stations.lookup(A, Nanos(400 * S)), Some(2));
        assert_eq!([0, 1, 2].map(|port| stations.learned_at(port)), [0, 0, 1]);
        assert_ne!(stations.generation(), before);
        stations.sweep(Nanos(601 * S));
        assert_eq!((stations.learned_at(2), stations.map.len()), (0, 0));
    }

    #[test]
    fn a_port_that_has_its_number_of_stations_learns_no_more_and_costs_no_other_any() {
        let mut stations = stations(2);
        assert_eq!(stations.learn(A, 0, Nanos(0)), Learned::New);
        let mac = |n: u16| [2, 1, 0, 0, (n >> 8) as u8, n as u8];
        for n in 0..1000 {
            let wanted = if n < 2 { Learned::New } else { Learned::Full };
            assert_eq!(stations.learn(mac(n), 1, Nanos(1)), wanted, "{n}");
        }
        assert_eq!((stations.lookup(A, Nanos(2)), stations.map.len()), (Some(0), 3));
        // Nor can it take one over.
        assert_eq!((stations.learn(A, 1, Nanos(2)), stations.lookup(A, Nanos(2))), (Learned::Full, Some(0)));
        // Silent ones make room.
        assert_eq!(stations.learn(B, 1, Nanos(301 * S)), Learned::New);
        assert_eq!((stations.learned_at(0), stations.learned_at(1)), (0, 1));
    }

    #[test]
    fn an_address_of_this_host_stays_at_its_port() {
        let mut stations = stations(2);
        assert_eq!(stations.learn(A, 1, Nanos(0)), Learned::New);
        stations.own(A, 0, Nanos(0));
        assert_eq!((stations.learned_at(1), stations.lookup(A, Nanos(900 * S))), (0, Some(0)));
        assert_eq!(stations.learn(A, 1, Nanos(1)), Learned::Own);
        assert_eq!(stations.learn(A, 0, Nanos(1)), Learned::Unchanged);
        // Another address replaces it, and one that two ports have stays at the first.
        stations.own(B, 0, Nanos(2));
        assert_eq!((stations.lookup(A, Nanos(2)), stations.lookup(B, Nanos(2))), (None, Some(0)));
        stations.own(B, 2, Nanos(3));
        assert_eq!(stations.lookup(B, Nanos(3)), Some(0));
        assert_eq!([0, 1, 2].map(|port| stations.learned_at(port)), [0; 3]);
    }

    #[test]
    fn the_stations_of_a_port_that_went_down_are_forgotten() {
        let mut stations = stations(8);
        for (mac, port) in [(A, 0), (B, 1), (C, 1)] {
            stations.learn(mac, port, Nanos(0));
        }
        stations.forget(1);
        assert_eq!([A, B, C].map(|mac| stations.lookup(mac, Nanos(1))), [Some(0), None, None]);
        assert_eq!((stations.learned_at(1), stations.map.len()), (0, 1));
    }
}
