//! Outside ports in use by mappings.

use std::ops::RangeInclusive;

use super::config::Protocol;

/// Number of ports in one word of the bit map.
const BITS: u32 = u64::BITS;

/// A bit map of ports for each protocol.
#[derive(Debug)]
pub(super) struct Ports([Box<[u64]>; 3]);

impl Ports {
    pub(super) fn new() -> Ports {
        Ports([(); 3].map(|()| vec![0; (1 << 16) / BITS as usize].into()))
    }

    pub(super) fn take(&mut self, protocol: Protocol, port: u16) {
        self.0[protocol as usize][usize::from(port) / BITS as usize] |= 1 << (u32::from(port) % BITS);
    }

    pub(super) fn give(&mut self, protocol: Protocol, port: u16) {
        self.0[protocol as usize][usize::from(port) / BITS as usize] &= !(1 << (u32::from(port) % BITS));
    }

    /// Returns the first free port of a range, searching from its port number `start` and wrapping around its end.
    pub(super) fn free(&self, protocol: Protocol, (first, last): (u16, u16), start: u16) -> Option<u16> {
        let start = u32::from(first) + u32::from(start);
        let taken = &self.0[protocol as usize];
        find(taken, start..=last.into()).or_else(|| find(taken, first.into()..=start.min(last.into())))
    }
}

fn find(taken: &[u64], range: RangeInclusive<u32>) -> Option<u16> {
    let (from, to) = range.into_inner();
    let mut at = from;
    while at <= to {
        // Bits below `at` are cleared.
        let free = !taken[(at / BITS) as usize] >> (at % BITS) << (at % BITS);
        let word = at - at % BITS;
        if free != 0 {
            let port = word + free.trailing_zeros();
            return u16::try_from(port).ok().filter(|_| port <= to);
        }
        at = word + BITS;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use segue_testkit::Rng;

    use super::*;

    #[test]
    fn a_port_is_taken_until_it_is_given_however_often() {
        let mut ports = Ports::new();
        for _ in 0..2 {
            ports.take(Protocol::Udp, 100);
            assert_eq!(ports.free(Protocol::Udp, (100, 100), 0), None);
        }
        for _ in 0..2 {
            ports.give(Protocol::Udp, 100);
            assert_eq!(ports.free(Protocol::Udp, (100, 100), 0), Some(100));
        }
    }

    #[test]
    fn the_next_free_port_is_found_around_the_end() {
        for (first, last) in [(1024, 65_535), (5000, 5002), (64, 127), (100, 100), (0, 65_535)] {
            let mut ports = Ports::new();
            let (udp, span) = (Protocol::Udp, last - first);
            // Ports of other protocols do not matter.
            ports.take(Protocol::Tcp, first);
            for start in [0, span / 2, span] {
                assert_eq!(ports.free(udp, (first, last), start), Some(first + start));
            }
            (first..=last).for_each(|port| ports.take(udp, port));
            assert_eq!(ports.free(udp, (first, last), span / 3), None);
            for free in [first, first + span / 2, last] {
                ports.give(udp, free);
                for start in [0, span / 2, span] {
                    assert_eq!(ports.free(udp, (first, last), start), Some(free), "{first} to {last}, from {start}");
                }
                ports.take(udp, free);
            }
        }
    }

    #[test]
    fn the_next_free_port_is_the_one_of_a_search_port_by_port() {
        let (mut ports, udp, mut rng) = (Ports::new(), Protocol::Udp, Rng::new(3));
        (0..=u16::MAX).for_each(|port| ports.take(udp, port));
        for _ in 0..20_000 {
            let first = rng.below(1 << 16);
            // Ranges of all orders of magnitude, of which each may reach the end of the numbers.
            let order = 1 << rng.below(17);
            let last = (first + rng.below(order)).min(usize::from(u16::MAX));
            let start = first + rng.below(last - first + 1);
            let [first, last, start] = [first, last, start].map(|port| port as u16);
            let near = |rng: &mut Rng| first.wrapping_add(rng.below(2 * order) as u16).wrapping_sub(order as u16 / 2);
            let free: BTreeSet<u16> = (0..rng.below(6)).map(|_| near(&mut rng)).collect();
            free.iter().for_each(|&port| ports.give(udp, port));
            let wanted = free.range(start..=last).next().or_else(|| free.range(first..=last).next()).copied();
            let found = ports.free(udp, (first, last), start - first);
            assert_eq!(found, wanted, "{first} to {last} from {start}: {free:?}");
            free.iter().for_each(|&port| ports.take(udp, port));
        }
    }
}
