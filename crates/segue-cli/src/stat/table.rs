//! The table of `segue stat`: one line for each instance.

use comfy_table::{CellAlignment, Table, presets};
use segue_control::error::printable;
use segue_control::model::{Instance, Port, Side};
use segue_control::units;

use super::printable_line;

/// Maximum width of the table in columns without `--details`.
pub(super) const WIDTH: usize = 80;

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

/// Returns the table with units, in at most [`WIDTH`] columns if possible.
pub(crate) fn lines(instances: &[Instance]) -> String {
    table(instances, false, false)
}

/// Returns the table; unless `wide`, columns are dropped by rank until it fits into [`WIDTH`].
pub(super) fn table(instances: &[Instance], raw: bool, wide: bool) -> String {
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
