//! The shares of the workers, for `segue stat -d`.

use segue_control::error::printable;
use segue_control::model::{Flow, Instance};
use segue_control::units;

use super::table::plain_table;

/// Returns a table of the packets received and sent by each worker since the start, over all ports, of instances with
/// several workers; empty where there is no such instance.
pub(super) fn table(instances: &[Instance], raw: bool) -> String {
    let several = instances.iter().filter(|instance| instance.workers.len() > 1);
    let rows = several.flat_map(|instance| {
        instance.workers.iter().map(move |worker| {
            let sum = |flow: fn(&segue_control::model::WorkerPort) -> &Flow| {
                let flows = worker.ports.values().map(flow);
                flows.fold((0, 0), |(segments, bytes), flow| (segments + flow.segments, bytes + flow.bytes))
            };
            let text = |(segments, bytes): (u64, u64)| match raw {
                true => [segments.to_string(), bytes.to_string()],
                false => [units::count(segments), units::bytes(bytes)],
            };
            let polls = worker.counters.get("polls").copied().unwrap_or(0);
            let polls = if raw { polls.to_string() } else { units::count(polls) };
            let [received, received_bytes] = text(sum(|port| &port.receive));
            let [sent, sent_bytes] = text(sum(|port| &port.transmit));
            vec![printable(&instance.name), worker.id.to_string(), polls, received, received_bytes, sent, sent_bytes]
        })
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads = ["NAME", "WORKER", "POLLS", "RX PACKETS", "RX BYTES", "TX PACKETS", "TX BYTES"];
    let numbers = [false, true, true, true, true, true, true];
    plain_table(heads.map(str::to_owned).to_vec(), rows.into_iter(), &numbers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use segue_control::model::{Worker, WorkerPort};

    use super::*;

    #[test]
    fn each_of_several_workers_has_a_line_and_a_single_one_none() {
        let flow = |segments, bytes| Flow { segments, bytes, ..Flow::default() };
        let port = |n: u64| WorkerPort { receive: flow(n, 100 * n), transmit: flow(2 * n, 200 * n) };
        let worker = |id| Worker {
            id,
            counters: BTreeMap::from([("polls".to_owned(), 7)]),
            ports: BTreeMap::from([("sg0".to_owned(), port(10)), ("udp".to_owned(), port(5))]),
        };
        let with =
            |count| Instance { name: "sg0".into(), workers: (0..count).map(worker).collect(), ..Instance::default() };
        assert_eq!(table(&[with(1)], false), "");
        let text = table(&[with(1), with(2)], true);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[2], ["sg0", "1", "7", "15", "1500", "30", "3000"]);
    }
}
