//! The text form of the table.

use super::super::layout::{Column, count, flows, label, median, ratio, short, sibling, spread};
use super::super::loss_free::{self, RATE};
use crate::{Row, Table};

pub(super) fn section(row: &Row) -> String {
    let load = label(row, "load");
    let words: Vec<&str> = load.split('-').collect();
    let load = match words[..] {
        ["rr", "1"] => "requests on one TCP connection".to_owned(),
        ["rr", connections] => format!("requests on {connections} TCP connections"),
        ["loss", "free"] => format!("loss-free rate, {} of {}-byte frames,", flows(row), label(row, "frame")),
        ["udp", len] => format!("UDP datagrams of {len} bytes"),
        ["udp", len, flows] => format!("UDP datagrams of {len} bytes, {flows} flows,"),
        ["tcp", flows] if flows != "1" => format!("TCP, {flows} flows,"),
        _ => "TCP".to_owned(),
    };
    format!("{load} over {}, link {}", label(row, "family"), label(row, "link"))
}

pub(super) fn name(row: &Row) -> String {
    let tunnel = label(row, "tunnel");
    match row.case.find("program") {
        // Sixteen columns.
        Some(_) => format!("{} (b)", tunnel.replace("segue-no-csum", "no-csum")),
        None => tunnel,
    }
}

pub(super) fn columns(row: &Row) -> &'static [Column] {
    let has = |metric| row.metrics.find(metric).is_some();
    match () {
        () if has(RATE) => LOSS_FREE,
        () if has("transactions_per_s") => REQUESTS,
        () if has("packets_per_s") => DATAGRAMS,
        () => STREAM,
    }
}

/// Returns the row of another tunnel with this program, for the same case.
fn of<'a>(table: &'a Table, row: &Row, tunnel: &str) -> Option<&'a Row> {
    sibling(table, row, &[("tunnel", Some(tunnel)), ("program", None)])
}

/// Returns the row of the program to compare with, for the same case.
fn beside<'a>(table: &'a Table, row: &Row) -> Option<&'a Row> {
    if row.case.find("program").is_some() {
        return None;
    }
    table.rows.iter().find(|other| {
        other.case.find("program").is_some()
            && row.case.0.iter().all(|(name, value)| other.case.find(name) == Some(value))
    })
}

const STREAM: &[Column] = &[
    Column { heading: "Gbit/s", width: 6, cell: |_, row| median(row, "gbps").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "gbps") },
    Column { heading: "x vxlan", width: 7, cell: |table, row| ratio(row, of(table, row, "vxlan"), "gbps") },
    Column { heading: "x link", width: 6, cell: |table, row| ratio(row, of(table, row, "link"), "gbps") },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), "gbps") },
    Column { heading: "CPU s/GB", width: 8, cell: |_, row| median(row, "cpu_s_per_gb").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "cpu_s_per_gb") },
    Column { heading: "x vxlan", width: 7, cell: |table, row| ratio(row, of(table, row, "vxlan"), "cpu_s_per_gb") },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), "cpu_s_per_gb") },
    Column { heading: "retr", width: 4, cell: |_, row| median(row, "retransmits").map(count) },
];

const DATAGRAMS: &[Column] = &[
    Column { heading: "pkt/s", width: 6, cell: |_, row| median(row, "packets_per_s").map(count) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "packets_per_s") },
    Column { heading: "x vxlan", width: 7, cell: |table, row| ratio(row, of(table, row, "vxlan"), "packets_per_s") },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), "packets_per_s") },
    Column { heading: "lost%", width: 5, cell: |_, row| median(row, "lost_percent").map(|lost| format!("{lost:.1}")) },
    Column { heading: "us/pkt", width: 6, cell: |_, row| median(row, "cpu_us_per_packet").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "cpu_us_per_packet") },
    Column { heading: "x vxlan", width: 7, cell: |t, row| ratio(row, of(t, row, "vxlan"), "cpu_us_per_packet") },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), "cpu_us_per_packet") },
    Column { heading: "calls", width: 5, cell: |_, row| median(row, "calls_per_packet").map(short) },
];

const REQUESTS: &[Column] = &[
    Column { heading: "tr/s", width: 6, cell: |_, row| median(row, "transactions_per_s").map(count) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "transactions_per_s") },
    Column { heading: "x vxlan", width: 7, cell: |t, row| ratio(row, of(t, row, "vxlan"), "transactions_per_s") },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), "transactions_per_s") },
    Column { heading: "us", width: 6, cell: |_, row| median(row, "cpu_us_per_transaction").map(short) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, "cpu_us_per_transaction") },
    Column { heading: "x vxlan", width: 7, cell: |t, row| ratio(row, of(t, row, "vxlan"), "cpu_us_per_transaction") },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), "cpu_us_per_transaction") },
    Column { heading: "p50", width: 5, cell: |_, row| median(row, "p50_us").map(count) },
    Column { heading: "p99", width: 5, cell: |_, row| median(row, "p99_us").map(count) },
    Column { heading: "calls", width: 5, cell: |_, row| median(row, "calls_per_packet").map(short) },
];

const LOSS_FREE: &[Column] = &[
    Column { heading: "frame/s", width: 7, cell: |_, row| loss_free_rate(row) },
    Column { heading: "+-", width: 4, cell: |_, row| spread(row, RATE) },
    Column { heading: "x kern", width: 6, cell: |table, row| ratio(row, of_kernel(table, row), RATE) },
    Column { heading: "x b", width: 4, cell: |table, row| ratio(row, beside(table, row), RATE) },
    Column { heading: "lost%", width: 6, cell: |_, row| median(row, "lost_percent").map(short) },
    Column { heading: "step", width: 5, cell: |_, row| median(row, "step_percent").map(|step| format!("{step:.1}%")) },
    Column { heading: "trials", width: 6, cell: |_, row| median(row, "trials").map(count) },
    Column {
        heading: "limit",
        width: 6,
        cell: |_, row| median(row, "generator_limit_kpps").map(|k| count(1000.0 * k)),
    },
];

/// Returns the rate, marked where the generator offers no higher one.
fn loss_free_rate(row: &Row) -> Option<String> {
    let rate = count(median(row, RATE)?);
    let is_limit = median(row, "lost_percent").is_some_and(|lost| lost == 0.0);
    Some(if is_limit { format!(">{rate}") } else { rate })
}

/// Returns the row of the kernel with which a row of the loss-free rate is compared.
fn of_kernel<'a>(table: &'a Table, row: &Row) -> Option<&'a Row> {
    of(table, row, loss_free::counterpart(&label(row, "tunnel")))
}

pub(super) const NOTES: &[&str] = &[
    "",
    "x vxlan, x link: to the kernel's VXLAN with outer checksums and to the bare",
    "link, of the same load, family and link; x b: to the program of --beside, whose",
    "rows have (b). CPU s/GB: of everything at both ends for 1e9 bytes received;",
    "us/pkt, us: for a datagram received, for a transaction, in microseconds. calls:",
    "system calls of both segues for it, waits included. p50, p99: how long a",
    "transaction took, in microseconds.",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Machine, Metric, Named};

    #[test]
    fn a_row_is_compared_with_the_same_row_of_the_other_program_and_with_vxlan() {
        let row = |tunnel: &str, load: &str, is_beside: bool, value: f64| {
            let (mut case, mut metrics) = (Named::default(), Named::default());
            case.push("tunnel", tunnel);
            case.push("load", load);
            if is_beside {
                case.push("program", "beside");
            }
            metrics.push("gbps", Metric::new(&[value]).unwrap());
            Row { case, metrics, seed: Named::default() }
        };
        let mut table = Table::new("tunnel", Machine::here(&Cpu::default()));
        for load in ["tcp-4", "tcp-1"] {
            let factor = if load == "tcp-1" { 1.0 } else { 10.0 };
            table.rows.push(row("segue", load, false, 6.0 * factor));
            table.rows.push(row("segue", load, true, 4.0));
            table.rows.push(row("vxlan", load, false, 12.0));
        }
        let of_first =
            |row: &Row| (ratio(row, beside(&table, row), "gbps"), ratio(row, of(&table, row, "vxlan"), "gbps"));
        assert_eq!(of_first(&table.rows[3]), (Some("1.50".into()), Some("0.50".into())));
        assert_eq!(of_first(&table.rows[4]), (None, Some("0.33".into())), "the other program's row");
        assert_eq!(of_first(&table.rows[5]), (None, Some("1.00".into())));
    }

    #[test]
    fn a_loss_free_rate_is_compared_with_the_kernel_and_marked_at_the_limit_of_the_generator() {
        let row = |name: &str, rate: f64, lost: f64| {
            let (mut case, mut metrics) = (Named::default(), Named::default());
            for (label, value) in [("tunnel", name), ("family", "IPv4"), ("link", "veth"), ("load", "loss-free")] {
                case.push(label, value);
            }
            case.push("frame", 64);
            case.push("flows", 1000);
            let limit = 600.0;
            let of_row =
                [("lost_percent", lost), ("step_percent", 1.2), ("trials", 12.0), ("generator_limit_kpps", limit)];
            for (metric, value) in [(RATE, rate)].into_iter().chain(of_row) {
                metrics.push(metric, Metric::new(&[value]).unwrap());
            }
            Row { case, metrics, seed: Named::default() }
        };
        let mut table = Table::new("tunnel", Machine::here(&Cpu::default()));
        table.rows = vec![row("router", 150_000.0, 0.2), row("vxlan", 9.0, 0.2), row("kernel-router", 600_000.0, 0.0)];
        assert_eq!(section(&table.rows[0]), "loss-free rate, 1000 flows of 64-byte frames, over IPv4, link veth");
        let columns = columns(&table.rows[0]);
        let cells = |row: &Row| columns.iter().map(|column| (column.cell)(&table, row)).collect::<Vec<_>>();
        let text = |cells: [Option<&str>; 8]| cells.map(|cell| cell.map(str::to_owned)).to_vec();
        let segue = [Some("150k"), None, Some("0.25"), None, Some("0.200"), Some("1.2%"), Some("12"), Some("600k")];
        assert_eq!(cells(&table.rows[0]), text(segue));
        assert_eq!(
            cells(&table.rows[2])[..3],
            text([Some(">600k"), None, Some("1.00"), None, None, None, None, None])[..3]
        );
        assert!(columns.iter().map(|column| column.width + 1).sum::<usize>() + 16 <= 80);
    }
}
