//! The path MTU to the remotes, as the kernel has learned it.

use std::ops::Range;

use segue::encap::{self, Destination, Fdb, Fit};
use segue::packet::Packet;
use segue::time::Nanos;
use segue::wire::ethernet;
use segue_port::{Page, Port};

/// Interval at which the path MTU is queried from the outside port, nanoseconds: shorter than any TCP retransmission
/// timeout.
const QUERY_INTERVAL: u64 = 100_000_000;

/// The path MTU of one tunnel.
#[derive(Debug, Default)]
pub(super) struct PathMtu {
    asked: Option<Nanos>,
    /// Largest inner IP packet that fits the path to each remote, bytes. The interface's own MTU may be larger, by
    /// configuration or because the path MTU has decreased since.
    pub(super) inside: Option<usize>,
    /// Largest inner IP packet that fits the path to each single remote, bytes.
    each: Vec<Option<usize>>,
    /// Whether the outer packet of the current packet is to be fragmented.
    pub(super) fragments: bool,
}

impl PathMtu {
    /// Queries the path MTU to the given peers of the port, the tunnel's remotes.
    pub(super) fn query(&mut self, port: &dyn Port, peers: Range<u16>, overhead: usize, now: Nanos) {
        if self.asked.is_some_and(|asked| now.0.saturating_sub(asked.0) < QUERY_INTERVAL) {
            return;
        }
        self.asked = Some(now);
        self.each.clear();
        self.each.extend(peers.map(|peer| port.path_mtu(peer).map(|mtu| mtu.saturating_sub(overhead))));
        self.inside = self.each.iter().flatten().min().copied();
    }

    /// Returns the relation of a frame that does not fit the narrowest path to that of its own remote; `None` for one
    /// that goes to several.
    #[cold]
    pub(super) fn fit_to_remote(&self, frame: &Packet<Page>, fdb: &Fdb, now: Nanos) -> Option<Fit> {
        let to = frame.head.bytes().get(ethernet::DST)?.first_chunk()?;
        let Destination::Remote(remote) = fdb.lookup(*to, now) else { return None };
        let inside = self.each.get(usize::from(remote)).copied().flatten();
        Some(inside.map_or(Fit::Fits, |mtu| encap::fit(frame, mtu)))
    }
}
