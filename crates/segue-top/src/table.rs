//! Lines of the screen: one for each tunnel, and one for each other instance.

use std::collections::{BTreeMap, VecDeque};

use segue_control::model::{Complaint, Flow, Instance, Port, Side};

/// Number of intervals in a history.
pub const HISTORY: usize = 240;
/// Largest number of lines with a history.
pub const MOST: usize = 4096;

/// A tunnel, or an instance without tunnels.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Name of the tunnel or instance.
    pub name: String,
    /// Name of the line's instance.
    pub instance: String,
    /// The mode of the tunnel, or the kind of the instance.
    pub kind: String,
    /// Rates of the last interval, received and sent; `None` before the second answer.
    pub rates: Option<[Rate; 2]>,
    /// Number of packets dropped since the start.
    pub drops: u64,
    /// Seconds since the last packet from the remote end.
    pub received_age_s: Option<f64>,
    /// The problems and notices, the likeliest first.
    pub health: Vec<Complaint>,
}

/// The traffic of a direction in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Bits per second.
    pub bits: f64,
    /// Number of packets of wire size per second.
    pub packets: f64,
}

impl Line {
    /// Returns the traffic of both directions, bits per second.
    pub fn bits(&self) -> f64 {
        self.rates.map_or(0.0, |rates| rates[0].bits + rates[1].bits)
    }

    /// Returns the state in a few words: `ok`, or the first problem.
    pub fn state(&self) -> &str {
        let worst = self.health.iter().find(|complaint| !complaint.notice).or(self.health.first());
        worst.map_or("ok", |complaint| complaint.what.as_str())
    }

    /// Returns whether the line has a problem; notices do not count.
    pub fn is_sick(&self) -> bool {
        self.health.iter().any(|complaint| !complaint.notice)
    }
}

/// Sort key of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Order by name, ascending.
    #[default]
    Name,
    /// The busiest first, by received bits.
    Received,
    /// The busiest first, by sent bits.
    Sent,
    /// Order by drops, descending.
    Drops,
    /// Order by health, problems first.
    Health,
}

impl Order {
    /// Every order, in the sequence that a key steps through.
    pub const ALL: &[Order] = &[Order::Name, Order::Received, Order::Sent, Order::Drops, Order::Health];

    /// Returns the order's name for the screen.
    pub fn name(self) -> &'static str {
        match self {
            Order::Name => "name",
            Order::Received => "rx",
            Order::Sent => "tx",
            Order::Drops => "drops",
            Order::Health => "health",
        }
    }

    /// Returns the next order of [`Order::ALL`], the first after the last.
    #[must_use]
    pub fn next(self) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL[(at + 1) % Order::ALL.len()]
    }
}

/// The lines of the last answers, with their histories.
#[derive(Debug, Default)]
pub struct Table {
    instances: Vec<Instance>,
    lines: Vec<Line>,
    histories: BTreeMap<String, VecDeque<[f64; 2]>>,
}

impl Table {
    /// Takes the answers of all instances.
    pub fn take(&mut self, instances: Vec<Instance>) {
        self.lines = instances.iter().flat_map(|instance| lines_of(instance, self.before(instance))).collect();
        self.histories.retain(|name, _| self.lines.iter().any(|line| line.name == *name));
        for line in self.lines.iter().take(MOST) {
            let Some([received, sent]) = line.rates else { continue };
            let history = self.histories.entry(line.name.clone()).or_default();
            history.push_back([received.bits, sent.bits]);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        self.instances = instances;
    }

    /// Returns the state of the same process at the previous interval.
    fn before(&self, instance: &Instance) -> Option<&Instance> {
        let is =
            |old: &&Instance| old.name == instance.name && old.pid == instance.pid && old.uptime_s < instance.uptime_s;
        self.instances.iter().find(is)
    }

    /// Returns the lines that a filter lets through, in an order.
    pub fn ordered(&self, order: Order, is_reversed: bool, filter: &str) -> Vec<&Line> {
        let wanted = filter.to_lowercase();
        let fits = |line: &&Line| {
            [&line.name, &line.instance, &line.kind].iter().any(|text| text.to_lowercase().contains(&wanted))
                || line.state().to_lowercase().contains(&wanted)
        };
        let mut lines: Vec<&Line> = self.lines.iter().filter(fits).collect();
        let rate = |line: &Line, at: usize| line.rates.map_or(0.0, |rates| rates[at].bits);
        lines.sort_by(|a, b| {
            let by = match order {
                Order::Name => std::cmp::Ordering::Equal,
                Order::Received => rate(b, 0).total_cmp(&rate(a, 0)),
                Order::Sent => rate(b, 1).total_cmp(&rate(a, 1)),
                Order::Drops => b.drops.cmp(&a.drops),
                Order::Health => (b.is_sick(), !b.health.is_empty()).cmp(&(a.is_sick(), !a.health.is_empty())),
            };
            by.then_with(|| a.name.cmp(&b.name))
        });
        if is_reversed {
            lines.reverse();
        }
        lines
    }

    /// Returns all lines of the table.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Returns the received and sent bits per second of the last intervals of a line, the oldest first.
    pub fn history(&self, name: &str) -> impl ExactSizeIterator<Item = [f64; 2]> + '_ {
        const NONE: &VecDeque<[f64; 2]> = &VecDeque::new();
        self.histories.get(name).unwrap_or(NONE).iter().copied()
    }

    /// Returns the instance of a line.
    pub fn instance(&self, line: &Line) -> Option<&Instance> {
        self.instances.iter().find(|instance| instance.name == line.instance)
    }
}

/// Returns the traffic of a line: for a tunnel that of its interface, for any other instance that of its outside.
fn traffic(ports: &BTreeMap<String, Port>, inside: Option<&str>) -> [Flow; 2] {
    if let Some(port) = inside.and_then(|name| ports.get(name)) {
        return [port.transmit, port.receive];
    }
    let mut sum = [Flow::default(); 2];
    for port in ports.values().filter(|port| port.side == Side::Outside) {
        for (sum, flow) in sum.iter_mut().zip([port.receive, port.transmit]) {
            sum.bytes += flow.bytes;
            sum.segments += flow.segments;
        }
    }
    sum
}

/// Returns the lines of an instance; `before` is its preceding answer.
fn lines_of(instance: &Instance, before: Option<&Instance>) -> Vec<Line> {
    let recent = before.map(|before| instance.recent_since(before, instance.uptime_s - before.uptime_s));
    let line = |name: &str, inside: Option<&str>| {
        let rates = recent.as_ref().filter(|recent| recent.interval_s > 0.0).map(|recent| {
            traffic(&recent.ports, inside).map(|flow| Rate {
                bits: flow.bytes as f64 * 8.0 / recent.interval_s,
                packets: flow.wire_packets() as f64 / recent.interval_s,
            })
        });
        let tunnel = inside.and_then(|name| instance.tunnels.get(name));
        let own: Option<u64> = instance.ports.get(name).map(|port| port.drops.values().sum());
        let concerns = |complaint: &&Complaint| {
            inside.is_none() || complaint.tunnels.is_empty() || complaint.tunnels.iter().any(|of| of == name)
        };
        Line {
            name: name.to_owned(),
            instance: instance.name.clone(),
            kind: tunnel.map_or(&instance.kind, |tunnel| &tunnel.mode).clone(),
            rates,
            drops: if instance.tunnels.len() > 1 { own.unwrap_or(0) } else { instance.drops },
            received_age_s: tunnel.and_then(|tunnel| tunnel.received_age_s),
            health: instance.health.iter().filter(concerns).cloned().collect(),
        }
    };
    if instance.tunnels.is_empty() {
        return vec![line(&instance.name, None)];
    }
    instance.tunnels.keys().map(|name| line(name, Some(name))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use segue_control::model::Tunnel;

    use super::*;

    /// Returns a test instance after `uptime_s` with tunnels, each with the bytes that its interface has delivered.
    pub(crate) fn instance(name: &str, uptime_s: f64, tunnels: &[(&str, u64)]) -> Instance {
        let mut made = Instance { name: name.into(), kind: "tunnel".into(), pid: 7, uptime_s, ..Instance::default() };
        for (dev, bytes) in tunnels {
            let transmit = Flow { bytes: *bytes, segments: *bytes / 1000, ..Flow::default() };
            let tunnel = Tunnel { mode: "gre in GUE".into(), remote: "198.18.0.2:6080".into(), ..Tunnel::default() };
            made.tunnels.insert((*dev).into(), tunnel);
            made.ports.insert((*dev).into(), Port { transmit, ..Port::default() });
        }
        made
    }

    #[test]
    fn rates_are_those_between_two_answers_and_each_tunnel_has_its_own() {
        let mut table = Table::default();
        table.take(vec![instance("a", 10.0, &[("a", 0), ("b", 1_000_000)])]);
        assert_eq!(table.lines().iter().map(|line| line.rates).collect::<Vec<_>>(), [None, None]);
        table.take(vec![instance("a", 12.0, &[("a", 2_000_000), ("b", 1_000_000)])]);
        let rates: Vec<f64> = table.lines().iter().map(|line| line.rates.unwrap()[0].bits).collect();
        assert_eq!(rates, [8_000_000.0, 0.0]);
        assert_eq!(table.history("a").collect::<Vec<_>>(), [[8_000_000.0, 0.0]]);
        // A process that has started again has no rate until its second answer.
        table.take(vec![instance("a", 1.0, &[("a", 500)])]);
        assert!(table.lines()[0].rates.is_none() && table.history("b").len() == 0);
    }

    #[test]
    fn lines_are_ordered_and_filtered() {
        let mut table = Table::default();
        let mut later = instance("a", 2.0, &[("a", 10), ("b", 30), ("c", 20)]);
        later.health = vec![Complaint { what: "refuses".into(), tunnels: vec!["c".into()], ..Complaint::default() }];
        table.take(vec![instance("a", 1.0, &[("a", 0), ("b", 0), ("c", 0)])]);
        table.take(vec![later]);
        let names = |order, is_reversed, filter| -> String {
            table.ordered(order, is_reversed, filter).iter().map(|line| line.name.as_str()).collect()
        };
        assert_eq!(names(Order::Name, false, ""), "abc");
        assert_eq!(names(Order::Received, false, ""), "bca");
        assert_eq!(names(Order::Received, true, ""), "acb");
        assert_eq!(names(Order::Health, false, ""), "cab");
        assert_eq!((names(Order::Name, false, "REFUSES"), names(Order::Name, false, "zz")), ("c".into(), "".into()));
    }
}
