//! The text form of the table.

use super::super::layout::{Column, count, label, median, ratio, short, sibling, spread};
use crate::{Row, Table};

pub(super) fn section(row: &Row) -> String {
    let load = label(row, "load");
    let words: Vec<&str> = load.split('-').collect();
    let load = match words[..] {
        ["rr", "1"] => "requests on one TCP connection".to_owned(),
        ["rr", connections] => format!("requests on {connections} TCP connections"),
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
    match (row.metrics.find("transactions_per_s"), row.metrics.find("packets_per_s")) {
        (Some(_), _) => REQUESTS,
        (_, Some(_)) => DATAGRAMS,
        _ => STREAM,
    }
}

/// Returns the row of another tunnel of this program.
fn of<'a>(table: &'a Table, row: &Row, tunnel: &str) -> Option<&'a Row> {
    sibling(table, row, &[("tunnel", Some(tunnel)), ("program", None)])
}

/// Returns the same row of the program that stands beside.
fn beside<'a>(table: &'a Table, row: &Row) -> Option<&'a Row> {
    if row.case.find("program").is_some() { None } else { sibling(table, row, &[("program", Some("beside"))]) }
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

pub(super) const NOTES: &[&str] = &[
    "",
    "x vxlan, x link: to the kernel's VXLAN with outer checksums and to the bare",
    "link, of the same load, family and link; x b: to the program of --beside, whose",
    "rows have (b). CPU s/GB: of everything at both ends for 1e9 bytes received;",
    "us/pkt, us: for a datagram received, for a transaction, in microseconds. calls:",
    "system calls of both segues for it, waits included. p50, p99: how long a",
    "transaction took, in microseconds.",
];
