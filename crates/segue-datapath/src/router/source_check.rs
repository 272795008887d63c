//! The check of source addresses from inside against the routes back to them (BCP 38, RFC 3704; `rp_filter` in Linux),
//! so that no station can exhaust resources that are limited per host.

use std::net::IpAddr;

use crate::route::{Action, Routes};

/// Modes of the check; the knob's value is an index into this list.
pub(super) const MODES: &[&str] = &["off", "strict", "loose"];
const OFF: u64 = 0;
const STRICT: u64 = 1;
/// Number of results that are cached; a further one replaces another.
const REMEMBERED: usize = 256;

/// A check of source addresses, with cached results.
#[derive(Debug)]
pub(super) struct SourceCheck {
    /// Index of the mode in [`MODES`].
    pub(super) mode: u64,
    results: Box<[Option<(IpAddr, bool)>; REMEMBERED]>,
    seed: u64,
}

impl SourceCheck {
    /// Creates a source check in strict mode. `seed` should be random: it decides which sources share a place.
    pub(super) fn new(seed: u64) -> SourceCheck {
        SourceCheck { mode: STRICT, results: Box::new([None; REMEMBERED]), seed: seed | 1 }
    }

    /// Clears the cached results, after a change of the routes or of the mode.
    pub(super) fn forget(&mut self) {
        self.results.fill(None);
    }

    /// Returns whether a packet from `source` may be received on `port`: in strict mode if the route to the source
    /// leaves by that port, in loose mode if there is a route at all.
    #[inline]
    pub(super) fn allows(&mut self, routes: &Routes, port: u16, source: IpAddr) -> bool {
        if self.mode == OFF {
            return true;
        }
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
                    Some(Action::Forward { port: back, .. }) => self.mode != STRICT || back == port,
                    _ => false,
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
    fn a_source_must_be_routed_by_its_port_or_by_any() {
        let mut routes = Routes::new(9);
        let to = |port| Action::Forward { port, via: None, mtu: 1500 };
        for (prefix, len, action) in [
            ("198.18.1.0", 24, to(0)),
            ("198.18.2.0", 24, to(1)),
            ("198.19.0.0", 16, Action::Unreachable),
            ("2001:db8:1::", 64, to(0)),
            ("::", 0, to(1)),
        ] {
            routes.insert(Table::Main, prefix.parse().unwrap(), len, action).unwrap();
        }
        let mut check = SourceCheck::new(7);
        for (source, strict, loose) in [
            ("198.18.1.9", true, true),
            ("198.18.2.9", false, true),
            ("198.19.1.1", false, false),
            ("203.0.113.1", false, false),
            ("2001:db8:1::7", true, true),
            ("2001:db8:2::7", false, true),
        ] {
            let source = source.parse().unwrap();
            for (mode, allowed) in [true, strict, loose].into_iter().enumerate() {
                (check.mode, _) = (mode as u64, check.forget());
                // The second answer is the remembered one.
                assert_eq!(
                    [(); 2].map(|()| check.allows(&routes, 0, source)),
                    [allowed; 2],
                    "{source}, {}",
                    MODES[mode]
                );
            }
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
