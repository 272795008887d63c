//! The flows of fragmented packets. Only the first fragment of a packet has ports; the later ones follow it, so that
//! they take the same way as the whole packets of the flow and are not overtaken by them.

use alloc::boxed::Box;

/// Number of packets whose flow is remembered: of so many the fragments may alternate. They are searched one by one.
const MOST: usize = 64;

/// The flows of the packets whose first fragments came last. It takes memory with the first one.
#[derive(Clone, Debug, Default)]
pub(super) struct FragmentFlows(Option<Box<Recent>>);

#[derive(Clone, Debug)]
struct Recent {
    /// Keys and flows, of which the first `used` are in use.
    flows: [(u64, u64); MOST],
    used: usize,
    /// Index of the next one to be replaced.
    oldest: usize,
}

impl FragmentFlows {
    /// Returns the flow of a fragment of the packet `key`: its own `flow` if it is the first one, that of the first one
    /// if it is among the last, otherwise its own too.
    #[cold]
    pub(super) fn follow(&mut self, key: u64, flow: u64, is_first: bool) -> u64 {
        if is_first {
            let new = || Box::new(Recent { flows: [(0, 0); MOST], used: 0, oldest: 0 });
            self.0.get_or_insert_with(new).remember(key, flow);
            return flow;
        }
        let known = self.0.as_ref().and_then(|recent| recent.position(key).map(|at| recent.flows[at].1));
        known.unwrap_or(flow)
    }
}

impl Recent {
    fn position(&self, key: u64) -> Option<usize> {
        self.flows[..self.used].iter().position(|(known, _)| *known == key)
    }

    fn remember(&mut self, key: u64, flow: u64) {
        let at = match self.position(key) {
            Some(at) => at,
            None => {
                let at = self.oldest;
                self.oldest = (at + 1) % MOST;
                self.used = self.used.max(at + 1);
                at
            }
        };
        self.flows[at] = (key, flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_fragments_have_the_flow_of_the_first() {
        let mut flows = FragmentFlows::default();
        assert_eq!(flows.follow(1, 10, false), 10, "the first one has not come");
        assert!(flows.0.is_none(), "it takes no memory");
        for key in 0..MOST as u64 {
            assert_eq!(flows.follow(key, 100 + key, true), 100 + key);
        }
        (0..MOST as u64).for_each(|key| assert_eq!(flows.follow(key, 10, false), 100 + key));
        // An identification that comes again is another packet's, and takes no second place.
        assert_eq!((flows.follow(3, 7, true), flows.follow(3, 10, false)), (7, 7));
        // The oldest ones make room.
        for key in 1000..1003 {
            assert_eq!((flows.follow(key, key, true), flows.follow(key, 10, false)), (key, key));
        }
        let known = |key| flows.clone().follow(key, 10, false);
        assert_eq!([0, 1, 2, 3, 4].map(known), [10, 10, 10, 7, 104]);
    }
}
