//! Counters of the in-kernel path, added to those of the ports.

use segue_control::model::{self, Flow, Instance};
use segue_fastpath::{Counts, Traffic};

/// Adds the counters of one tunnel to its port and to the outside port.
pub(super) fn add(instance: &mut Instance, dev: &str, outside: &str, counts: &Counts, overhead: u64) {
    if let Some(port) = instance.ports.get_mut(dev) {
        add_flow(&mut port.receive, &counts.sent, 0);
        add_flow(&mut port.transmit, &counts.received, 0);
        *port.fastpath.entry("sent".to_owned()).or_default() += counts.sent.segments;
        *port.fastpath.entry("received".to_owned()).or_default() += counts.received.segments;
        if counts.no_memory > 0 {
            *port.drops.entry("no_memory".to_owned()).or_default() += counts.no_memory;
        }
        put_left(port, counts);
    }
    if let Some(port) = instance.ports.get_mut(outside) {
        add_flow(&mut port.transmit, &counts.sent, overhead);
        add_flow(&mut port.receive, &counts.received, overhead);
    }
}

fn add_flow(flow: &mut Flow, traffic: &Traffic, overhead: u64) {
    flow.packets += traffic.units;
    flow.bytes += traffic.bytes + overhead * traffic.segments;
    flow.trains += traffic.trains;
    flow.segments += traffic.segments;
}

/// Adds the packets dropped by the in-kernel path on behalf of the daemon to those of the outside port, which has
/// received them.
pub(super) fn put_dropped(port: &mut model::Port, dropped: &[(&str, u64)]) {
    for (reason, count) in dropped {
        *port.drops.entry((*reason).to_owned()).or_default() += count;
        port.receive.packets += count;
        port.receive.segments += count;
    }
}

/// Adds the packets left to the daemon to those of a port.
pub(super) fn put_left(port: &mut model::Port, counts: &Counts) {
    for (reason, count) in counts.left.iter().filter(|(_, count)| *count > 0) {
        *port.left.entry((*reason).to_owned()).or_default() += count;
    }
}
