//! `tunnel`: one TCP flow through segue, the kernel's VXLAN, other tunnels in user space, and without a tunnel; more
//! loads for the kernel's path of segue beside VXLAN.

use std::sync::Arc;

use super::definition::Bench;
use super::layout::{Column, Layout, count, label, median, ratio, short, sibling, spread};
use super::point::{Part, Point, Sample};
use super::site::Site;
use super::{bed, ends};
use crate::load::{self, Load, Style};
use crate::{
    Case, Cpu, Family, Ground, Host, LabError, LinkForm, Named, Options, Peer, Prepared, Proto, Row, Table, connect,
};

/// Number of the tunnel's network.
const NET: u8 = 1;

/// The cases of the table.
const NAMES: [&str; 10] = [
    "segue",
    "segue-plain",
    "fastpath-ipip",
    "fastpath-sit",
    "fastpath-gre",
    "fastpath-gue",
    "vxlan",
    "wireguard-go",
    "fastd",
    "link",
];

/// A load other than one TCP flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    /// TCP flows.
    Flows(u32),
    /// UDP datagrams of 1400 bytes.
    Datagrams,
    /// Requests and responses of one byte on this many connections.
    Requests(u32),
}

impl More {
    /// The loads of the rows that compare the kernel's path with VXLAN.
    const ALL: [More; 4] = [More::Flows(4), More::Flows(64), More::Datagrams, More::Requests(200)];

    fn word(self) -> String {
        match self {
            More::Flows(flows) => format!("tcp-{flows}"),
            More::Datagrams => "udp-1400".into(),
            More::Requests(connections) => format!("rr-{connections}"),
        }
    }
}

/// Returns the rows with more loads, of the kernel's path and of VXLAN.
fn more() -> Vec<Point> {
    let mut points = Vec::new();
    for link in [LinkForm::Veth, LinkForm::Nic] {
        for (load, family) in
            More::ALL.into_iter().flat_map(|load| Family::ALL.iter().map(move |family| (load, *family)))
        {
            for name in NAMES.into_iter().filter(|name| *name == "vxlan" || name.starts_with("fastpath")) {
                if !fits(name, family) || (family == Family::V6 && !matches!(load, More::Flows(_))) {
                    continue;
                }
                let mut labels = labels(name, family, link);
                labels.push("load", load.word());
                let sample = move |site: &Site| sample(site, link, family, name, load);
                points.push(Point { labels, seed: Named::default(), part: Part::Rest, sample: Box::new(sample) });
            }
        }
    }
    points
}

/// Returns whether a tunnel carries a family.
fn fits(name: &str, family: Family) -> bool {
    !matches!((name, family), ("fastpath-ipip", Family::V6) | ("fastpath-sit", Family::V4))
}

fn labels(name: &str, family: Family, link: LinkForm) -> Named<serde_json::Value> {
    let mut labels = Named::default();
    labels.push("tunnel", name);
    labels.push("family", format!("IPv{family}"));
    labels.push("link", link.as_str());
    labels
}

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for link in [LinkForm::Nic, LinkForm::Veth, LinkForm::NicCsum] {
        for family in Family::ALL.iter().copied() {
            for name in NAMES {
                if !fits(name, family) {
                    continue;
                }
                let part = match (link, family, name) {
                    (LinkForm::NicCsum, ..)
                    | (_, Family::V6, _)
                    | (.., "segue-plain" | "fastpath-ipip" | "fastpath-sit" | "fastpath-gre" | "fastpath-gue") => {
                        Part::Rest
                    }
                    (LinkForm::Nic, _, "segue" | "vxlan") => Part::Quick,
                    _ => Part::Usual,
                };
                let labels = labels(name, family, link);
                let sample = move |site: &Site| sample(site, link, family, name, More::Flows(1));
                points.push(Point { labels, seed: Named::default(), part, sample: Box::new(sample) });
            }
        }
    }
    points.extend(more());
    Bench {
        name: "tunnel",
        title: "one TCP flow through segue, kernel VXLAN, wireguard-go, fastd, and no tunnel",
        points,
        link: None,
        pinned: false,
        layout: Layout { section, name: |row| label(row, "tunnel"), columns, notes: NOTES },
        facts: vec![
            ("load", format!("iperf3, one flow unless named, {}; outside the family that is inside", bed::CONGESTION)),
            ("segue", "gre in gue with remcsum; fastpath-: by the path through the kernel; fastd: method null; wireguard-go encrypts".into()),
            ("wire", "a veth pair of MTU 1500; nic: tso off gso off tx off gro on; veth: as made".into()),
            ("counted", "both hosts on all processors: tunnel, stack, load, ksoftirqd".into()),
        ],
    }
}

fn sample(site: &Site, link: LinkForm, family: Family, name: &str, load: More) -> Result<Sample, LabError> {
    let cpu = Arc::new(Cpu::new());
    let (mut a, mut b) = (Host::new("a")?, Host::new("b")?);
    a.account(&cpu);
    b.account(&cpu);
    bed::without_pacing(&a)?;
    bed::without_pacing(&b)?;
    connect(&a, &b, link)?;
    let families = [family];
    let options = Options { segue: site.segue.clone(), link, outer: family, ..Options::default() };
    let ground = Ground { a: &a, b: &b, net: NET, families: &families, options: &options };
    let lane = match Case::named(name)?.prepare(&ground)? {
        Prepared::Ready(lane) => lane,
        Prepared::Skipped(why) => return Ok(Sample::Skipped(why)),
    };
    let to = Peer::B.address(lane.net, family);
    let mut values = Named::default();
    if let More::Requests(connections) = load {
        let [asked, cpu_s] = requests(site, &a, (&b, &to.to_string()), connections, &cpu)?;
        values.push("transactions_per_s", asked / f64::from(site.seconds));
        values.push("cpu_us_per_transaction", cpu_s * 1e6 / asked.max(1.0));
        return Ok(Sample::Values(values));
    }
    let outcome = load::run(&Load {
        client: &a,
        server: &b,
        to,
        proto: if load == More::Datagrams { Proto::Udp } else { Proto::Tcp },
        seconds: site.seconds,
        parallel: if let More::Flows(flows) = load { flows } else { 1 },
        style: Style::default(),
    })?;
    values.push("gbps", outcome.gbps());
    if let Some(cost) = outcome.cpu_s_per_gb() {
        values.push("cpu_s_per_gb", cost);
    }
    if let Some(retransmits) = outcome.retransmits {
        values.push("retransmits", retransmits as f64);
    }
    Ok(Sample::Values(values))
}

/// Measures requests and responses; returns their number and the CPU seconds of both hosts.
fn requests(
    site: &Site,
    near: &Host,
    (far, address): (&Host, &str),
    connections: u32,
    cpu: &Cpu,
) -> Result<[f64; 2], LabError> {
    let program = bed::program(&site.segue)?;
    let ask = format!("ask {address} {connections} {}", site.seconds);
    let spent = || cpu.seconds().map_err(|source| LabError::system("read the CPU time", source));
    let answer = format!("answer {address} {connections}");
    let ([asked, _], before) = ends::both(&program, (near, ask), (far, answer), site.seconds, spent)?;
    let spent = spent()? - before;
    let transactions = asked["transactions"].as_f64().filter(|count| *count > 0.0);
    let transactions = transactions.ok_or_else(|| LabError::Load(format!("the sender said {asked}")))?;
    Ok([transactions, spent])
}

fn section(row: &Row) -> String {
    let load = match row.case.find("load").and_then(serde_json::Value::as_str) {
        None => "TCP".to_owned(),
        Some(load) => match load.split_once('-') {
            Some(("rr", connections)) => format!("requests on {connections} TCP connections"),
            Some(("udp", len)) => format!("UDP datagrams of {len} bytes"),
            Some((_, flows)) => format!("TCP, {flows} flows,"),
            None => load.to_owned(),
        },
    };
    format!("{load} over {}, link {}", label(row, "family"), label(row, "link"))
}

fn columns(row: &Row) -> &'static [Column] {
    if row.metrics.find("transactions_per_s").is_some() { REQUESTS } else { COLUMNS }
}

fn of<'a>(table: &'a Table, row: &Row, tunnel: &str) -> Option<&'a Row> {
    sibling(table, row, &[("tunnel", Some(tunnel))])
}

const COLUMNS: &[Column] = &[
    Column { heading: "Gbit/s", width: 7, cell: |_, row| median(row, "gbps").map(short) },
    Column { heading: "+-", width: 5, cell: |_, row| spread(row, "gbps") },
    Column { heading: "x vxlan", width: 8, cell: |table, row| ratio(row, of(table, row, "vxlan"), "gbps") },
    Column { heading: "x link", width: 7, cell: |table, row| ratio(row, of(table, row, "link"), "gbps") },
    Column { heading: "CPU s/GB", width: 9, cell: |_, row| median(row, "cpu_s_per_gb").map(short) },
    Column { heading: "+-", width: 5, cell: |_, row| spread(row, "cpu_s_per_gb") },
    Column { heading: "x vxlan", width: 8, cell: |table, row| ratio(row, of(table, row, "vxlan"), "cpu_s_per_gb") },
    Column { heading: "retrans", width: 8, cell: |_, row| median(row, "retransmits").map(|n| format!("{n:.0}")) },
];

const REQUESTS: &[Column] = &[
    Column { heading: "trans/s", width: 8, cell: |_, row| median(row, "transactions_per_s").map(count) },
    Column { heading: "+-", width: 5, cell: |_, row| spread(row, "transactions_per_s") },
    Column {
        heading: "x vxlan",
        width: 8,
        cell: |table, row| ratio(row, of(table, row, "vxlan"), "transactions_per_s"),
    },
    Column { heading: "CPU us", width: 8, cell: |_, row| median(row, "cpu_us_per_transaction").map(short) },
    Column { heading: "+-", width: 5, cell: |_, row| spread(row, "cpu_us_per_transaction") },
    Column {
        heading: "x vxlan",
        width: 8,
        cell: |table, row| ratio(row, of(table, row, "vxlan"), "cpu_us_per_transaction"),
    },
];

const NOTES: &[&str] = &[
    "",
    "x vxlan, x link: to the kernel's VXLAN with outer checksums and to the bare",
    "link, of the same family and link. CPU s/GB: of everything at both ends for 1e9",
    "bytes received.",
];
