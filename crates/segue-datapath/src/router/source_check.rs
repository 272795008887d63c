//! The check of source addresses against the routes back to them (BCP 38, RFC 3704; `rp_filter` in Linux): from inside,
//! so that no station can exhaust resources that are limited per host, and from outside, so that no host there passes
//! for one inside (RFC 6092, REC-6).

use std::net::IpAddr;

use crate::route::{Action, Routes};

/// Modes of the check; the knob's value is an index into this list.
pub(super) const MODES: &[&str] = &["off", "strict", "loose", "inside"];
const OFF: u64 = 0;
const STRICT: u64 = 1;
const INSIDE_ALONE: u64 = 3;
/// Index of the port on the inside.
const INSIDE: u16 = 0;
/// Number of results that are cached; a further one replaces another.
const REMEMBERED: usize = 256;

/// A check of source addresses, with cached results.
#[derive(Debug)]
pub(super) struct SourceCheck {
    /// Index of the mode in [`MODES`].
    pub(super) mode: u64,
    results: Box<[Option<(IpAddr, Back)>; REMEMBERED]>,
    seed: u64,
}

/// Where the route back to a source leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    Port(u16),
    /// The source is an address of this host, or a broadcast address.
    Local,
    /// No packets are forwarded there.
    None,
}

impl SourceCheck {
    /// Creates a source check in strict mode. `seed` should be random: it decides which sources share a place.
    pub(super) fn new(seed: u64) -> SourceCheck {
        SourceCheck { mode: STRICT, results: Box::new([None; REMEMBERED]), seed: seed | 1 }
    }

    /// Clears the cached results, after a change of the routes.
    pub(super) fn forget(&mut self) {
        self.results.fill(None);
    }

    /// Returns whether a packet from `source` may be received on `port`: on the inside in strict mode, and in the one
    /// that checks the inside alone, if the route to the source leaves by that port, in loose mode if there is a route
    /// at all. On the outside in strict mode unless the source is an address of this host, or the route to it leaves by
    /// the other port; there may be none, since outside hosts need no route to send.
    #[inline]
    pub(super) fn allows(&mut self, routes: &Routes, port: u16, source: IpAddr) -> bool {
        let is_inside = port == INSIDE;
        let is_strict = self.mode == STRICT || self.mode == INSIDE_ALONE && is_inside;
        if self.mode == OFF || !is_strict && !is_inside {
            return true;
        }
        match self.back(routes, source) {
            Back::Port(back) => !is_strict || back == port,
            Back::Local => false,
            Back::None => !is_inside,
        }
    }

    #[inline]
    fn back(&mut self, routes: &Routes, source: IpAddr) -> Back {
        let (bits, is_v4) = match source {
            IpAddr::V4(source) => (source.to_bits().into(), true),
            IpAddr::V6(source) => (source.to_bits(), false),
        };
        let folded = (bits as u64 ^ (bits >> 64) as u64).wrapping_mul(self.seed);
        let place = &mut self.results[(folded >> 56) as usize % REMEMBERED];
        match place {
            Some((known, result)) if *known == source => *result,
            _ => {
                let result = match routes.lookup(bits, is_v4) {
                    Some(Action::Forward { port, .. }) => Back::Port(port),
                    Some(Action::Local) => Back::Local,
                    _ => Back::None,
                };
                *place = Some((source, result));
                result
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Table;

    #[test]
    fn a_source_inside_must_be_routed_by_its_port_or_by_any_and_one_outside_by_no_other() {
        let mut routes = Routes::new(9);
        let to = |port| Action::Forward { port, via: None, mtu: 1500 };
        for (prefix, len, action) in [
            ("198.18.1.0", 24, to(0)),
            ("198.18.2.0", 24, to(1)),
            ("198.19.0.0", 16, Action::Unreachable),
            ("192.0.2.1", 32, Action::Local),
            ("2001:db8:1::", 64, to(0)),
            ("::", 0, to(1)),
        ] {
            routes.insert(Table::Main, prefix.parse().unwrap(), len, action).unwrap();
        }
        let mut check = SourceCheck::new(7);
        // From inside in strict and in loose mode, and from outside in strict mode.
        for (source, strict, loose, outside) in [
            ("198.18.1.9", true, true, false),
            ("198.18.2.9", false, true, true),
            ("198.19.1.1", false, false, true),
            ("203.0.113.1", false, false, true),
            ("192.0.2.1", false, false, false),
            ("2001:db8:1::7", true, true, false),
            ("2001:db8:2::7", false, true, true),
        ] {
            let source = source.parse().unwrap();
            let modes = [[true; 2], [strict, outside], [loose, true], [strict, true]];
            for (mode, allowed) in modes.into_iter().enumerate() {
                check.mode = mode as u64;
                // The second answer is the remembered one.
                for again in [false, true] {
                    let found = [0, 1].map(|port| check.allows(&routes, port, source));
                    assert_eq!(found, allowed, "{source}, {}, {again}", MODES[mode]);
                }
            }
            check.forget();
        }
    }

    #[test]
    fn many_sources_that_share_places_are_told_apart() {
        let mut routes = Routes::new(9);
        let action = Action::Forward { port: 0, via: None, mtu: 1500 };
        routes.insert(Table::Main, "198.18.0.0".parse().unwrap(), 17, action).unwrap();
        let mut check = SourceCheck::new(0x9e37_79b9_7f4a_7c15);
        for round in 0..3 {
            for host in 0..4096_u32 {
                let source = std::net::Ipv4Addr::from_bits(0xc612_0000 + host * 16);
                let allowed = check.allows(&routes, 0, source.into());
                assert_eq!(allowed, host * 16 < 0x8000, "{source} in round {round}");
            }
        }
    }
}
