//! `segue stat`: running instances as a table, as an explanation of their counters (`--why`), or as JSON.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};
use segue_control::client;
use segue_control::error::{Error, Kind, is_hidden, printable};
use segue_control::model::{Document, Fastpath, Flow, Instance, OUTER_CSUM, Port, SCHEMA, Side};
use segue_control::units;
use segue_host::sys;
use serde_json::json;

use crate::args::Stat;
use crate::grammar::help::wrapped;
use crate::out::Out;

/// Maximum width of the table in columns without `--details`.
const WIDTH: usize = 80;
/// Stages that a packet passes after it was received on a port, in that order.
const STAGES: &[&str] = &["decap", "gro", "entry", "nat_in", "route", "nat_out", "encap"];
/// Maximum number of reasons that a list shows.
const REASONS: usize = 8;

/// Runs `segue stat`.
pub(crate) fn run(args: &Stat, out: &Out) -> Result<(), Error> {
    sys::exit_130_on_interrupt();
    loop {
        let document = ask(args, out)?;
        if args.health {
            return health(&document, out);
        }
        show(&document, args, out);
        match args.watch {
            None => return Ok(()),
            Some(seconds) => std::thread::sleep(Duration::from_secs(u64::from(seconds))),
        }
    }
}

fn ask(args: &Stat, out: &Out) -> Result<Document, Error> {
    let instances = match &args.name {
        Some(name) => vec![client::one(name)?],
        None => {
            let found = client::all();
            match (found.instances.is_empty(), found.failed.first()) {
                (true, Some(error)) => return Err(error.clone()),
                _ => {
                    found.failed.iter().for_each(|error| out.warn(&format!("note: {}", error.message)));
                    found.instances
                }
            }
        }
    };
    Ok(Document { schema: SCHEMA.to_owned(), t: units::rfc3339(SystemTime::now()), instances })
}

fn show(document: &Document, args: &Stat, out: &Out) {
    if out.json {
        // With `--watch` each object is one line, even with `--pretty`.
        let out = Out { pretty: out.pretty && args.watch.is_none(), ..*out };
        out.value(&json!(document));
        return;
    }
    if document.instances.is_empty() {
        out.note("nothing runs; segue help tunnel says how to start one");
        return;
    }
    if args.why {
        for instance in &document.instances {
            out.data(&why(instance, args.raw));
        }
    } else {
        out.data(&table(&document.instances, args.raw, args.details));
    }
    if let (Some(name), [instance]) = (&args.name, &document.instances[..])
        && let Some(note) = of_several(name, instance)
    {
        out.note(&note);
    }
}

/// Returns a note if `name` is one of several tunnels of an instance, whose figures are summed over all of them.
fn of_several(name: &str, instance: &Instance) -> Option<String> {
    let is_one = *name != instance.name && instance.ports.contains_key(name);
    is_one.then(|| {
        format!(
            "note: {name} shares its port with {}: the figures are sums over all of them; its own are in `segue stat {name} -j` under ports.{name}",
            instance.name
        )
    })
}

fn health(document: &Document, out: &Out) -> Result<(), Error> {
    let sick: Vec<String> = document
        .instances
        .iter()
        .flat_map(|instance| instance.health.iter().map(move |note| (instance, note)))
        .map(|(instance, note)| {
            let why = note.why.as_ref().map(|why| format!(" ({})", printable_line(why))).unwrap_or_default();
            format!("{}: {}{why}", printable(&instance.name), printable_line(&note.what))
        })
        .collect();
    match (document.instances.is_empty(), sick.is_empty()) {
        (true, _) => {
            Err(Error::new(Kind::Unhealthy, "nothing runs", "segue tunnel --help").why("no control socket answers"))
        }
        (false, true) => {
            if out.json {
                out.value(&json!(document));
            }
            Ok(())
        }
        (false, false) if out.json => {
            let hint = "segue stat --why";
            Err(Error::new(Kind::Unhealthy, sick.join("; "), hint).why("the instance reports it"))
        }
        (false, false) => {
            out.data(&(sick.join("\n") + "\n"));
            Err(Error::new(Kind::Unhealthy, format!("{} not well", things(sick.len())), "segue stat --why")
                .why("the instance reports it"))
        }
    }
}

fn things(n: usize) -> String {
    if n == 1 { "1 thing is".to_owned() } else { format!("{n} things are") }
}

/// A column of the table: its heading, whether it holds numbers, and how early it is dropped from a table that is too
/// wide.
struct Column {
    head: &'static str,
    number: bool,
    /// Rank for dropping the column: the highest is dropped first, 0 never.
    spare: u8,
    cell: fn(&Instance) -> String,
}

const COLUMNS: &[Column] = &[
    Column { head: "NAME", number: false, spare: 0, cell: |i| printable(&i.name) },
    Column { head: "KIND", number: false, spare: 4, cell: |i| printable(&i.kind) },
    Column { head: "UP", number: true, spare: 3, cell: |i| units::short_duration(i.uptime_s as u64) },
    Column { head: "RX Gbit/s", number: true, spare: 0, cell: |i| gbit(i, |r| r.receive_bits_per_s) },
    Column { head: "TX Gbit/s", number: true, spare: 0, cell: |i| gbit(i, |r| r.transmit_bits_per_s) },
    Column { head: "TRAIN rx/tx", number: true, spare: 2, cell: trains },
    Column { head: "CPU", number: true, spare: 1, cell: cpu },
    Column { head: "DROPS", number: true, spare: 0, cell: |i| i.drops.to_string() },
    Column { head: "HEALTH", number: false, spare: 0, cell: healthy },
];

const RAW: &[Column] = &[
    Column { head: "NAME", number: false, spare: 0, cell: |i| printable(&i.name) },
    Column { head: "KIND", number: false, spare: 4, cell: |i| printable(&i.kind) },
    Column { head: "UP s", number: true, spare: 3, cell: |i| format!("{:.0}", i.uptime_s) },
    Column { head: "RX bytes", number: true, spare: 0, cell: |i| bytes(i, |p| p.receive.bytes).to_string() },
    Column { head: "TX bytes", number: true, spare: 0, cell: |i| bytes(i, |p| p.transmit.bytes).to_string() },
    Column { head: "DROPS", number: true, spare: 0, cell: |i| i.drops.to_string() },
    Column { head: "HEALTH", number: false, spare: 0, cell: healthy },
];

/// Returns the sum of a byte counter over the outside ports of an instance.
fn bytes(instance: &Instance, of: fn(&Port) -> u64) -> u64 {
    instance.ports.values().filter(|port| port.side == Side::Outside).map(of).sum()
}

fn gbit(instance: &Instance, of: fn(&segue_control::model::Recent) -> f64) -> String {
    instance.recent.as_ref().map_or("-".to_owned(), |recent| format!("{:.2}", of(recent) / 1e9))
}

fn trains(instance: &Instance) -> String {
    instance.recent.as_ref().map_or("-".to_owned(), |recent| {
        let (rx, tx) = (recent.receive_train_bytes, recent.transmit_train_bytes);
        format!("{} / {}", units::short_bytes(rx), units::short_bytes(tx))
    })
}

fn cpu(instance: &Instance) -> String {
    instance.recent.as_ref().map_or("-".to_owned(), |recent| format!("{:.0}%", recent.cpu_share * 100.0))
}

fn healthy(instance: &Instance) -> String {
    match instance.health.first() {
        None => "ok".to_owned(),
        Some(note) => printable_line(&note.what),
    }
}

/// Returns text from an instance on one line that is safe to print: control characters become `?`.
fn printable_line(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '?' } else { c }).collect()
}

/// Returns the table with units, in at most [`WIDTH`] columns if possible.
pub(crate) fn lines(instances: &[Instance]) -> String {
    table(instances, false, false)
}

/// Returns the table; unless `wide`, columns are dropped by rank until it fits into [`WIDTH`].
fn table(instances: &[Instance], raw: bool, wide: bool) -> String {
    let mut columns: Vec<&Column> = if raw { RAW } else { COLUMNS }.iter().collect();
    loop {
        let text = render(&columns, instances);
        let fits = text.lines().all(|line| line.chars().count() <= WIDTH);
        let spare = columns.iter().enumerate().filter(|(_, column)| column.spare > 0).max_by_key(|(_, c)| c.spare);
        match spare {
            Some((at, _)) if !fits && !wide => {
                columns.remove(at);
            }
            _ => return text,
        }
    }
}

fn render(columns: &[&Column], instances: &[Instance]) -> String {
    let rows = instances.iter().map(|instance| columns.iter().map(|column| (column.cell)(instance)).collect());
    let heads = columns.iter().map(|column| column.head.to_owned()).collect();
    let numbers: Vec<bool> = columns.iter().map(|column| column.number).collect();
    plain_table(heads, rows, &numbers)
}

/// Returns a table without borders; columns that `numbers` marks are right-aligned.
pub(crate) fn plain_table(heads: Vec<String>, rows: impl Iterator<Item = Vec<String>>, numbers: &[bool]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads).add_rows(rows);
    for (at, &number) in numbers.iter().enumerate() {
        if let Some(column) = table.column_mut(at) {
            column.set_padding((0, 2));
            column.set_cell_alignment(if number { CellAlignment::Right } else { CellAlignment::Left });
        }
    }
    let mut text: String = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    text.shrink_to_fit();
    text
}

/// Returns the text of `--why` for one instance: why trains ended and packets stayed alone, drops, offloads and hints.
fn why(instance: &Instance, raw: bool) -> String {
    let since_start = BTreeMap::new();
    let (ports, span) = match &instance.recent {
        Some(recent) => (&recent.ports, format!("last {:.0} s", recent.interval_s)),
        None => (if instance.ports.is_empty() { &since_start } else { &instance.ports }, "since the start".to_owned()),
    };
    let count = |n: u64| if raw { n.to_string() } else { units::count(n) };
    let mut text = format!("{}, {span}", printable(&instance.name));
    let outside = side(ports, Side::Outside);
    let inside = side(ports, Side::Inside);
    let (packets, units_in) = (outside.receive.wire_packets(), inside.transmit.packets);
    // The mean is that of transmitted units: received packets may have been dropped.
    let mean = if units_in > 0 { inside.transmit.wire_packets() as f64 / units_in as f64 } else { 0.0 };
    let trains = format!("{} packets in -> {} units (mean {mean:.1} segments)", count(packets), count(units_in));
    text.push_str(&format!(": {trains}\n"));

    text.push_str(&stages(&gathered(ports), raw));
    let flushes = merged(ports, |port| &port.flushes);
    let refusals = merged(ports, |port| &port.refusals);
    let (left, right) = (shares(&flushes, raw), shares(&refusals, raw));
    if !left.is_empty() || !right.is_empty() {
        text.push_str("  why trains ended        share      why packets stayed alone     share\n");
    }
    for row in 0..left.len().max(right.len()) {
        let (l, r) = (left.get(row).cloned().unwrap_or_default(), right.get(row).cloned().unwrap_or_default());
        let line = format!("  {:<20} {:>8}      {:<25} {:>8}", l.0, l.1, r.0, r.1);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let total = |of: fn(&Port) -> u64| ports.values().map(of).sum::<u64>();
    let (swallowed, trimmed) = (total(|port| port.swallowed), total(|port| port.trimmed));
    if swallowed > 0 {
        text.push_str(&format!("  pure ACKs that gave way to newer ones: {}\n", count(swallowed)));
    }
    if trimmed > 0 {
        text.push_str(&format!("  packets whose padding was cut off: {}\n", count(trimmed)));
    }
    let mut list = |head: &str, reasons: &[(String, String)]| {
        if !reasons.is_empty() {
            let parts: Vec<String> = reasons.iter().map(|(name, share)| format!("{name} {share}")).collect();
            let all = parts.join(", ");
            let words: Vec<String> = all.split(' ').map(str::to_owned).collect();
            text.push_str(&wrapped(&words, &format!("  {head}: "), "    "));
        }
    };
    list("refused because", &shares(&merged(ports, |port| &port.mismatches), raw));
    list("fallbacks", &counts(&merged(&instance.ports, |port| &port.fallbacks)));
    list("dropped since the start", &counts(&merged(&instance.ports, |port| &port.drops)));
    let offloads: Vec<String> = instance
        .offloads
        .iter()
        .map(|(name, offload)| match (&offload.why, offload.on) {
            (_, true) => format!("{name} on"),
            (Some(why), false) => format!("{name} off [{}]", printable_line(why)),
            (None, false) => format!("{name} off"),
        })
        .collect();
    if !offloads.is_empty() {
        let words: Vec<String> = offloads.iter().map(|offload| format!("{offload}  ")).collect();
        text.push_str(&wrapped(&words, "offloads  ", "          "));
    }
    if let Some(fastpath) = &instance.fastpath {
        text.push_str(&kernel_path(fastpath, instance));
    }
    let summed: u64 = instance.ports.values().map(|port| port.checksummed_bytes).sum();
    text.push_str(&format!("payload bytes summed by segue: {summed}\n"));
    for hint in hints(instance, &flushes, &refusals) {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Describes the path through the kernel: whether packets take it and how many did, why not, and why others were left
/// to segue. Nothing where it was never asked for.
fn kernel_path(fastpath: &Fastpath, instance: &Instance) -> String {
    let total = |key: &str| instance.ports.values().filter_map(|port| port.fastpath.get(key)).sum::<u64>();
    let mut words = match (&fastpath.why, fastpath.on) {
        (_, true) => {
            vec![format!("on: {} packets sent and {} received by the kernel", total("sent"), total("received"))]
        }
        (_, false) if fastpath.mode == "off" => return String::new(),
        (Some(why), false) => {
            vec![format!("off [{}]: with it the kernel itself carries packets, at its own speed", printable_line(why))]
        }
        (None, false) => vec!["off".to_owned()],
    };
    let left = counts(&merged(&instance.ports, |port| &port.left));
    let left: Vec<String> = left.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if !left.is_empty() {
        words.push(format!("left to segue: {}", left.join(", ")));
    }
    words.extend(fastpath.by_daemon.iter().map(|(way, why)| format!("{way} by segue: {}", printable_line(why))));
    let words: Vec<String> = words.join("; ").split(' ').map(str::to_owned).collect();
    wrapped(&words, "fastpath  ", "          ")
}

/// Returns the ports; if several tunnels share one port, their interfaces are summed into one entry.
fn gathered(ports: &BTreeMap<String, Port>) -> BTreeMap<String, Port> {
    let inside = ports.values().filter(|port| port.side == Side::Inside).count();
    if ports.len() <= 2 || inside < 2 {
        return ports.clone();
    }
    let mut all = side(ports, Side::Inside);
    for (name, seen) in ports.values().filter(|port| port.side == Side::Inside).flat_map(|port| &port.stages) {
        let sum = all.stages.entry(name.clone()).or_default();
        sum.packets += seen.packets;
        sum.bytes += seen.bytes;
        sum.trains += seen.trains;
        sum.segments += seen.segments;
    }
    let outside = ports.iter().filter(|(_, port)| port.side == Side::Outside);
    let mut gathered: BTreeMap<String, Port> = outside.map(|(name, port)| (name.clone(), port.clone())).collect();
    gathered.insert("interfaces".to_owned(), all);
    gathered
}

/// Returns a table of what each stage of each direction saw: where trains are made, how far they get, where they are
/// cut.
fn stages(ports: &BTreeMap<String, Port>, raw: bool) -> String {
    let count = |n: u64| if raw { n.to_string() } else { units::count(n) };
    let row = |place: &str, what: &str, [units, trains, segments]: [u64; 3]| {
        let mean = if units > 0 { segments as f64 / units as f64 } else { 0.0 };
        vec![place.to_owned(), what.to_owned(), count(units), count(trains), count(segments), format!("{mean:.1}")]
    };
    let flow = |flow: &Flow| [flow.packets, flow.trains, flow.segments];
    let mut rows = Vec::new();
    for (name, from) in ports {
        if from.stages.get("entry").is_none_or(|entry| entry.packets == 0) {
            continue;
        }
        rows.push(row(&printable(name), "receive", flow(&from.receive)));
        for stage in STAGES {
            if let Some(seen) = from.stages.get(*stage) {
                rows.push(row("", stage, [seen.packets, seen.trains, seen.segments]));
            }
        }
        // Packets received on one of two ports are transmitted on the other.
        for (name, to) in ports.iter().filter(|(other, _)| *other != name) {
            if let Some(seen) = to.stages.get("gso") {
                rows.push(row(&printable(name), "gso", [seen.packets, seen.trains, seen.segments]));
            }
            rows.push(row("", "transmit", flow(&to.transmit)));
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let heads = ["PORT", "STAGE", "UNITS", "TRAINS", "PACKETS", "MEAN"].map(str::to_owned).to_vec();
    let table = plain_table(heads, rows.into_iter(), &[false, false, true, true, true, true]);
    table.lines().map(|line| format!("  {line}\n")).collect()
}

fn side(ports: &BTreeMap<String, Port>, side: Side) -> Port {
    ports.values().filter(|port| port.side == side).fold(Port::default(), |mut sum, port| {
        for (to, from) in [(&mut sum.receive, port.receive), (&mut sum.transmit, port.transmit)] {
            to.packets += from.packets;
            to.bytes += from.bytes;
            to.trains += from.trains;
            to.segments += from.segments;
        }
        sum
    })
}

fn merged(ports: &BTreeMap<String, Port>, of: fn(&Port) -> &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (reason, n) in ports.values().flat_map(of) {
        *sum.entry(reason.clone()).or_insert(0) += n;
    }
    sum
}

/// Returns the reasons with their share of the total, or with their count if `raw`, largest first, without those that
/// are 0.
fn shares(reasons: &BTreeMap<String, u64>, raw: bool) -> Vec<(String, String)> {
    let total: u64 = reasons.values().sum();
    let share = |n: u64| if raw { n.to_string() } else { format!("{:.1} %", n as f64 * 100.0 / total as f64) };
    sorted(reasons).into_iter().map(|(name, n)| (name, share(n))).collect()
}

fn counts(reasons: &BTreeMap<String, u64>) -> Vec<(String, String)> {
    sorted(reasons).into_iter().map(|(name, n)| (name, n.to_string())).collect()
}

fn sorted(reasons: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let mut list: Vec<(String, u64)> = reasons
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(name, n)| (printable(&name.replace('_', " ")).replace('?', " "), *n))
        .collect();
    list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    list.truncate(REASONS);
    list
}

/// Returns hints for the user on what the counters show.
fn hints(instance: &Instance, flushes: &BTreeMap<String, u64>, refusals: &BTreeMap<String, u64>) -> Vec<String> {
    let mut hints = Vec::new();
    let share = |reasons: &BTreeMap<String, u64>, word: &str| {
        let total: u64 = reasons.values().sum();
        let part: u64 = reasons.iter().filter(|(name, _)| name.contains(word)).map(|(_, n)| n).sum();
        if total == 0 { 0.0 } else { part as f64 / total as f64 }
    };
    for (name, what) in
        [("udp_segment", "each datagram sent costs a system call"), ("udp_gro", "each datagram received costs one")]
    {
        if instance.offloads.get(name).is_some_and(|offload| !offload.on) {
            hints.push(format!("{name} is off: {what}; segue doctor says why"));
        }
    }
    if share(refusals, "ack") + share(refusals, "no_payload") > 0.5 {
        let remedy = if instance.kind == "gateway" { "; --ack-aggregation lets them collapse" } else { "" };
        hints.push(format!(
            "most of what stays alone are pure ACKs: that is the other direction's traffic, not a fault{remedy}"
        ));
    }
    if share(refusals, "csum") > 0.01 {
        hints.push("packets with a bad checksum arrive: look for a faulty link or program at the sender".to_owned());
    }
    if instance.ports.values().any(|port| port.drops.get(OUTER_CSUM).is_some_and(|&count| count > 0)) {
        hints.push(
            "outer csum: datagrams that the kernel dropped, for any socket of the network namespace;\n\
             \x20     over IPv6 those without checksum need udp6zerocsumrx (vxlan, geneve) or noencap-csum\n\
             \x20     (gue, fou); wrong checksums come from a broken card or path"
                .to_owned(),
        );
    }
    if share(flushes, "timeout") > 0.5 {
        hints.push("most trains end by time: the load is light, and trains would only add delay".to_owned());
    }
    hints
}

#[cfg(test)]
mod tests {
    use segue_control::model::{Complaint, Offload, Recent, Seen};

    use super::*;

    fn instance(name: &str) -> Instance {
        let inside = Port {
            transmit: Flow { packets: 19, bytes: 19 * 43_000, trains: 19, segments: 681, calls: 19 },
            flushes: BTreeMap::from([("full".into(), 71), ("psh".into(), 29), ("never".into(), 0)]),
            refusals: BTreeMap::from([("no_payload".into(), 9), ("ip_options".into(), 1)]),
            ..Port::default()
        };
        let outside = Port {
            side: Side::Outside,
            receive: Flow { packets: 19, bytes: 19 * 43_000, trains: 19, segments: 681, calls: 19 },
            drops: BTreeMap::from([("too_big".into(), 3)]),
            ..Port::default()
        };
        let mut made = Instance {
            name: name.into(),
            kind: "tunnel".into(),
            uptime_s: 8040.0,
            offloads: BTreeMap::from([("udp_gro".into(), Offload { on: true, ..Offload::default() })]),
            ..Instance::default()
        };
        made.ports = BTreeMap::from([(name.into(), inside), ("udp".into(), outside)]);
        made.count_drops();
        let before = Instance::default();
        made.recent = Some(Recent { cpu_share: 0.61, receive_bits_per_s: 7.92e9, ..made.recent_since(&before, 10.0) });
        made
    }

    #[test]
    fn the_table_fits_80_columns_and_keeps_names_and_drops() {
        let long = instance("fifteen-letters");
        let mut sick = instance("gw0");
        sick.health.push(Complaint { what: "uso off, and a text of some length".into(), why: None, since: None });
        let text = table(&[long.clone(), sick.clone()], false, false);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        for part in ["fifteen-letters", "7.92", "DROPS", "HEALTH"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let all = table(&[long, sick], false, true);
        assert!(all.contains("KIND") && all.contains("61%") && all.contains("2h14m"), "{all}");
    }

    #[test]
    fn one_of_several_tunnels_is_told_from_all_of_them() {
        let shared = Instance { ports: [("sg1".to_owned(), Port::default())].into(), ..instance("sg0") };
        assert!(of_several("sg1", &shared).is_some_and(|note| note.contains("sg1 shares its port with sg0")));
        assert_eq!((of_several("sg0", &shared), of_several("sg2", &shared)), (None, None));
    }

    #[test]
    fn numbers_stand_at_the_right_of_their_column() {
        let text = table(&[instance("a"), instance("bb")], false, false);
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[0].find("RX Gbit/s").unwrap() + "RX Gbit/s".len();
        assert_eq!(&lines[1][end - 4..end], "7.92");
    }

    #[test]
    fn why_shows_shares_that_add_up_and_leaves_out_what_never_happened() {
        let text = why(&instance("sg0"), false);
        assert!(text.starts_with("sg0, last 10 s: 681 packets in -> 19 units (mean 35.8 segments)\n"), "{text}");
        for part in
            ["full", "71.0 %", "29.0 %", "no payload", "90.0 %", "udp_gro on", "too big 3", "hint: most of what"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("never"));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn why_says_what_to_do_about_outer_checksums_once_there_were_wrong_ones() {
        let with = |count| {
            let mut made = instance("sg0");
            made.ports.get_mut("udp").unwrap().drops.insert(OUTER_CSUM.to_owned(), count);
            why(&made, false)
        };
        let text = with(2);
        assert!(text.contains("outer csum 2") && text.contains("hint: outer csum"), "{text}");
        assert!(text.contains("udp6zerocsumrx") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!with(0).contains("outer csum"));
    }

    #[test]
    fn interfaces_that_share_a_port_are_one_line() {
        let mut many = instance("sg0");
        let one = Port { side: Side::Inside, ..Port::default() };
        for n in 0..1000 {
            let mut port = one.clone();
            port.receive.packets = n;
            let seen = Seen { packets: n, segments: n, ..Seen::default() };
            port.stages.insert("entry".to_owned(), seen);
            many.ports.insert(format!("t{n}"), port);
        }
        many.recent = None;
        let text = why(&many, true);
        assert!(text.contains("  interfaces  receive") && text.contains(" 499500 "), "{text}");
        assert!(text.lines().count() < 40, "{text}");
    }

    #[test]
    fn every_cell_of_the_table_has_a_key_in_json() {
        let json = json!(instance("sg0"));
        for key in ["name", "kind", "uptime_s", "drops", "health"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        for key in
            ["receive_bits_per_s", "transmit_bits_per_s", "receive_train_bytes", "transmit_train_bytes", "cpu_share"]
        {
            assert!(json["recent"].get(key).is_some(), "{key}");
        }
    }
}
