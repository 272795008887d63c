//! The counters of an instance with several workers.

use std::sync::Arc;

use crate::board::{Board, Group, Name};
use crate::endpoint::LINK_DOWN;
use crate::tunnel::REFUSED_FOR;

/// Numbers of a port that are states, not counts. The metrics have the same ones as gauges, except the reasons of the
/// last refused packet and of the last stop, which are no metric.
const STATES: [&str; 25] = [
    LINK_DOWN,
    "gone",
    "stranger",
    "interface_down",
    "mtu",
    "refused_mtu",
    "link_mbit",
    "peer_table_round_ns",
    "fdb_entries",
    "address_local",
    "address_conflict",
    segue_port::udp::UDP_SEGMENT_ON,
    "trace_failed",
    "trace_full",
    "guest_connected",
    "guest_ready",
    "guest_stalled",
    "guest_csum",
    "guest_tso4",
    "guest_tso6",
    "guest_uso",
    "guest_mergeable",
    "guest_event_idx",
    "last_stop",
    REFUSED_FOR,
];

/// The boards of the workers of one instance, whose pipelines have the same counters.
#[derive(Clone, Debug)]
pub struct Boards(Vec<Arc<Board>>);

impl Boards {
    /// Returns the boards of `workers` workers, the first of which has `first`.
    pub fn new(first: Arc<Board>, workers: usize) -> Boards {
        let more: Vec<_> = (1..workers).map(|_| Arc::new(first.like())).collect();
        Boards(std::iter::once(first).chain(more).collect())
    }

    /// Returns the boards, that of the first worker first.
    pub fn each(&self) -> &[Arc<Board>] {
        &self.0
    }

    /// Returns every counter's name, in the order of the positions.
    pub fn names(&self) -> &[Name] {
        self.0.first().map_or(&[], |board| board.names())
    }

    /// Returns the value of the counter at this position over all workers: the sum, or the largest for a state.
    pub fn value(&self, position: usize) -> u64 {
        if let [only] = &self.0[..] {
            return only.value(position);
        }
        let values = self.0.iter().map(|board| board.value(position));
        if self.names().get(position).is_some_and(is_state) { values.max().unwrap_or(0) } else { values.sum() }
    }

    /// Returns every counter's name with its value over all workers, in the order of the positions.
    pub fn read(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.names().iter().enumerate().map(|(position, name)| (name, self.value(position)))
    }
}

/// Returns whether the number is a gauge, such as a switch, and not a count of events.
fn is_state(name: &Name) -> bool {
    name.group == Group::Port && STATES.contains(&name.key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Sink;

    #[test]
    fn the_boards_of_several_workers_are_summed_except_for_states() {
        let collect = |values: [u64; 2]| {
            move |sink: &mut Sink<'_>| {
                sink.put("udp", Group::Port, segue_port::udp::UDP_SEGMENT_ON, values[0]);
                sink.put("udp", Group::Receive, "packets", values[1]);
            }
        };
        let boards = Boards::new(Arc::new(Board::new(collect([0; 2]))), 3);
        for (board, packets) in boards.each().iter().zip([5, 7, 0]) {
            board.publish(collect([1, packets]));
        }
        assert_eq!(boards.read().map(|(_, value)| value).collect::<Vec<_>>(), [1, 12]);
        assert_eq!((boards.each()[1].value(1), boards.value(1), boards.value(9)), (7, 12, 0));
    }
}
