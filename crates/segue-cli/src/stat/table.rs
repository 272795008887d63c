//! The table of `segue stat`: one line for each tunnel, and for each other instance.

use comfy_table::{CellAlignment, Table, presets};
use segue_control::error::{printable, printable_line};
use segue_control::model::{Complaint, Flow, Instance, Port, Probe, Side, Tunnel};
use segue_control::units;
use segue_host::sys;

/// Maximum width of the table in columns where stdout is no terminal.
const WIDTH: usize = 80;
/// Number of blanks between two columns of the table.
const GAP: usize = 2;

/// The layout of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Form {
    /// Whether numbers are shown exactly, without units.
    pub(crate) raw: bool,
    /// Whether every column is shown, however wide.
    pub(crate) details: bool,
}

/// One line of the table.
struct Line<'a> {
    name: &'a str,
    instance: &'a Instance,
    tunnel: Option<&'a Tunnel>,
    /// Traffic since the start: received from the outside, and sent to it.
    total: [Flow; 2],
    /// Traffic in the last interval, in the same order.
    recent: Option<[Flow; 2]>,
    /// Whether this is the first line of its instance.
    is_first: bool,
    drops: u64,
}

/// Returns the traffic that a line shows: that of a tunnel's interface, or of the outside port of another instance.
fn traffic(ports: &std::collections::BTreeMap<String, Port>, inside: Option<&str>) -> [Flow; 2] {
    let sum = |of: fn(&Port) -> Flow| {
        ports.values().filter(|port| port.side == Side::Outside).map(of).fold(Flow::default(), |sum, flow| Flow {
            packets: sum.packets + flow.packets,
            bytes: sum.bytes + flow.bytes,
            trains: sum.trains + flow.trains,
            segments: sum.segments + flow.segments,
            calls: sum.calls + flow.calls,
        })
    };
    match inside.and_then(|name| ports.get(name)) {
        Some(port) => [port.transmit, port.receive],
        None => [sum(|port| port.receive), sum(|port| port.transmit)],
    }
}

/// Returns the lines of an instance; with `only` that of one of its tunnels.
fn lines_of<'a>(instance: &'a Instance, only: Option<&str>) -> Vec<Line<'a>> {
    let line = |name: &'a str, tunnel: Option<&'a Tunnel>, at: usize| {
        let inside = tunnel.map(|_| name);
        let several = instance.tunnels.len() > 1;
        let own = instance.ports.get(name).map(|port| port.drops.values().sum());
        Line {
            name,
            instance,
            tunnel,
            total: traffic(&instance.ports, inside),
            recent: instance.recent.as_ref().map(|recent| traffic(&recent.ports, inside)),
            is_first: at == 0,
            drops: if several { own.unwrap_or(0) } else { instance.drops },
        }
    };
    if instance.tunnels.is_empty() {
        return vec![line(&instance.name, None, 0)];
    }
    let tunnels = instance.tunnels.iter().filter(|(name, _)| only.is_none_or(|only| only == name.as_str()));
    tunnels.enumerate().map(|(at, (name, tunnel))| line(name, Some(tunnel), at)).collect()
}

/// A column of the table: its heading, whether it holds numbers, and how early it is dropped from a table that is too
/// wide.
struct Column {
    head: &'static str,
    number: bool,
    /// Rank for dropping the column: the highest is dropped first, 0 never. With 9 and more it is there only on
    /// request.
    spare: u8,
    /// Usual maximum width of its cells, so that the choice of columns does not change with every figure.
    usual: usize,
    cell: fn(&Line<'_>, bool) -> String,
}

const fn text(head: &'static str, spare: u8, cell: fn(&Line<'_>, bool) -> String) -> Column {
    Column { head, number: false, spare, usual: 0, cell }
}

const fn number(head: &'static str, spare: u8, usual: usize, cell: fn(&Line<'_>, bool) -> String) -> Column {
    Column { head, number: true, spare, usual, cell }
}

/// Rank of columns that are shown on request only.
const DETAIL: u8 = 9;

const COLUMNS: &[Column] = &[
    text("NAME", 0, |line, _| printable(line.name)),
    text("KIND", 6, |line, _| printable_line(line.tunnel.map_or(&line.instance.kind, |tunnel| &tunnel.mode))),
    number("PID", DETAIL, 7, |line, _| line.instance.pid.to_string()),
    number("UP", 4, 5, |line, raw| match raw {
        true => format!("{:.0}", line.instance.uptime_s),
        false => units::short_duration(line.instance.uptime_s as u64),
    }),
    text("UNDERLAY", DETAIL, |line, _| {
        line.tunnel.map_or_else(|| "-".to_owned(), |tunnel| printable(&tunnel.underlay))
    }),
    text("LOCAL", DETAIL, |line, _| line.tunnel.map_or_else(|| "-".to_owned(), |tunnel| printable(&tunnel.local))),
    text("REMOTE", 8, |line, _| line.tunnel.map_or_else(|| "-".to_owned(), |tunnel| printable(&tunnel.remote))),
    number("MTU", DETAIL, 5, |line, _| line.tunnel.map_or_else(|| "-".to_owned(), |tunnel| tunnel.mtu.to_string())),
    number("RX bit/s", 0, 8, |line, raw| rate(line, 0, |flow| flow.bytes * 8, raw)),
    number("TX bit/s", 0, 8, |line, raw| rate(line, 1, |flow| flow.bytes * 8, raw)),
    number("RX pkt/s", 7, 8, |line, raw| rate(line, 0, Flow::wire_packets, raw)),
    number("TX pkt/s", 7, 8, |line, raw| rate(line, 1, Flow::wire_packets, raw)),
    number("RX bytes", DETAIL, 8, |line, raw| total(line.total[0].bytes, raw)),
    number("TX bytes", DETAIL, 8, |line, raw| total(line.total[1].bytes, raw)),
    number("TRAIN rx/tx", 3, 13, trains),
    number("KERNEL rx/tx", DETAIL, 12, by_kernel),
    number("CPU", 2, 4, cpu),
    number("DROPS", 0, 5, |line, _| line.drops.to_string()),
    number("HEARD", 5, 5, since_received),
    number("PROBE", DETAIL, 5, |line, _| {
        line.tunnel.and_then(|tunnel| tunnel.probe.as_ref()).map_or_else(|| "-".to_owned(), Probe::text)
    }),
    text("HEALTH", 0, |line, _| healthy(line)),
];

/// Returns the rate over the last interval, or `-` without one.
fn rate(line: &Line<'_>, direction: usize, of: fn(&Flow) -> u64, raw: bool) -> String {
    let (Some(flows), Some(recent)) = (&line.recent, &line.instance.recent) else { return "-".to_owned() };
    let per_second = if recent.interval_s > 0.0 { of(&flows[direction]) as f64 / recent.interval_s } else { 0.0 };
    if raw { format!("{per_second:.0}") } else { units::rate(per_second) }
}

fn total(bytes: u64, raw: bool) -> String {
    if raw { bytes.to_string() } else { units::bytes(bytes) }
}

/// Returns the shares of packets, received and sent, that took the in-kernel path; `-` where none can.
fn by_kernel(line: &Line<'_>, raw: bool) -> String {
    let taken = line.tunnel.and_then(|_| line.instance.ports.get(line.name)).map(|port| &port.fastpath);
    let Some(taken) = taken.filter(|taken| !taken.is_empty()) else { return "-".to_owned() };
    let share = |key: &str, flow: &Flow| {
        let (part, all) = (taken.get(key).copied().unwrap_or(0), flow.wire_packets());
        match (raw, all) {
            (true, _) => part.to_string(),
            (false, 0) => "-".to_owned(),
            (false, all) => format!("{}%", u128::from(part) * 100 / u128::from(all)),
        }
    };
    format!("{} / {}", share("received", &line.total[0]), share("sent", &line.total[1]))
}

/// Returns the mean size of a unit in both directions at the interface or the outside port.
fn trains(line: &Line<'_>, raw: bool) -> String {
    let Some([received, sent]) = line.recent else { return "-".to_owned() };
    // What leaves by the outside is counted there, where trains have been cut for it.
    let sent = match (&line.instance.recent, line.instance.tunnels.len()) {
        (Some(recent), 1) => traffic(&recent.ports, None)[1],
        _ => sent,
    };
    let mean = |flow: &Flow| match raw {
        true => format!("{:.0}", flow.mean_bytes()),
        false => units::short_bytes(flow.mean_bytes()),
    };
    format!("{} / {}", mean(&received), mean(&sent))
}

/// Returns the share of a processor, which several tunnels have in common.
fn cpu(line: &Line<'_>, _raw: bool) -> String {
    match &line.instance.recent {
        Some(recent) if line.is_first => format!("{:.0}%", recent.cpu_share * 100.0),
        Some(_) => String::new(),
        None => "-".to_owned(),
    }
}

/// Returns the time since the last packet was received.
fn since_received(line: &Line<'_>, raw: bool) -> String {
    match line.tunnel.and_then(|tunnel| tunnel.received_age_s) {
        Some(age) if raw => format!("{age:.1}"),
        Some(age) => units::short_duration(age as u64),
        None => "-".to_owned(),
    }
}

fn healthy(line: &Line<'_>) -> String {
    let own = |complaint: &&Complaint| {
        line.tunnel.is_none() || complaint.tunnels.is_empty() || complaint.tunnels.iter().any(|name| name == line.name)
    };
    let problems = || line.instance.health.iter().filter(own);
    let worst = problems().find(|complaint| !complaint.notice).or_else(|| problems().next());
    worst.map_or_else(|| "ok".to_owned(), |complaint| printable_line(&complaint.what))
}

/// Returns the lines of the table, with units.
pub(crate) fn lines(instances: &[Instance]) -> String {
    table(instances, None, Form::default())
}

/// Returns the table in the width of the terminal, or in [`WIDTH`] columns where stdout is none. Columns are dropped by
/// rank until it fits.
pub(super) fn table(instances: &[Instance], only: Option<&str>, form: Form) -> String {
    let width = sys::terminal_width().unwrap_or(WIDTH);
    within(instances, only, form, width)
}

pub(super) fn within(instances: &[Instance], only: Option<&str>, form: Form, width: usize) -> String {
    let lines: Vec<Line<'_>> = instances.iter().flat_map(|instance| lines_of(instance, only)).collect();
    let chosen = COLUMNS.iter().filter(|column| form.details || column.spare < DETAIL);
    let mut columns: Vec<(&Column, Vec<String>, usize)> = chosen
        .map(|column| {
            let cells: Vec<String> = lines.iter().map(|line| (column.cell)(line, form.raw)).collect();
            let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            (column, cells, widest.max(column.head.len()).max(column.usual))
        })
        .collect();
    while !form.details && columns.iter().map(|(_, _, wide)| wide + GAP).sum::<usize>() > width + GAP {
        let spare = columns.iter().enumerate().filter(|(_, (column, ..))| column.spare > 0);
        let Some((at, _)) = spare.max_by_key(|(_, (column, ..))| column.spare) else { break };
        columns.remove(at);
    }
    let heads = columns.iter().map(|(column, ..)| column.head.to_owned()).collect();
    let numbers: Vec<bool> = columns.iter().map(|(column, ..)| column.number).collect();
    let rows = (0..lines.len()).map(|row| columns.iter().map(|(_, cells, _)| cells[row].clone()).collect());
    plain_table(heads, rows, &numbers)
}

/// Returns a table without borders; columns that `numbers` marks are right-aligned.
pub(crate) fn plain_table(heads: Vec<String>, rows: impl Iterator<Item = Vec<String>>, numbers: &[bool]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads).add_rows(rows);
    for (at, &number) in numbers.iter().enumerate() {
        if let Some(column) = table.column_mut(at) {
            column.set_padding((0, GAP as u16));
            column.set_cell_alignment(if number { CellAlignment::Right } else { CellAlignment::Left });
        }
    }
    let mut text: String = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    text.shrink_to_fit();
    text
}
