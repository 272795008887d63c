//! `tunnel`: one TCP flow through segue, the kernel's VXLAN, other tunnels in user space, and without a tunnel.

use std::sync::Arc;

use super::bed;
use super::definition::Bench;
use super::layout::{Column, Layout, label, median, ratio, short, sibling, spread};
use super::point::{Part, Point, Sample};
use super::site::Site;
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

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for link in [LinkForm::Nic, LinkForm::Veth, LinkForm::NicCsum] {
        for family in Family::ALL.iter().copied() {
            for name in NAMES {
                if matches!((name, family), ("fastpath-ipip", Family::V6) | ("fastpath-sit", Family::V4)) {
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
                let mut labels = Named::default();
                labels.push("tunnel", name);
                labels.push("family", format!("IPv{family}"));
                labels.push("link", link.as_str());
                let sample = move |site: &Site| sample(site, link, family, name);
                points.push(Point { labels, seed: Named::default(), part, sample: Box::new(sample) });
            }
        }
    }
    Bench {
        name: "tunnel",
        title: "one TCP flow through segue, kernel VXLAN, wireguard-go, fastd, and no tunnel",
        points,
        link: None,
        pinned: false,
        layout: Layout { section, name: |row| label(row, "tunnel"), columns: |_| COLUMNS, notes: NOTES },
        facts: vec![
            ("load", format!("iperf3, one flow, {}; outside the family that is inside", bed::CONGESTION)),
            ("segue", "gre in gue with remcsum; fastpath-: by the path through the kernel; fastd: method null; wireguard-go encrypts".into()),
            ("wire", "a veth pair of MTU 1500; nic: tso off gso off tx off gro on; veth: as made".into()),
            ("counted", "both hosts on all processors: tunnel, stack, load, ksoftirqd".into()),
        ],
    }
}

fn sample(site: &Site, link: LinkForm, family: Family, name: &str) -> Result<Sample, LabError> {
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
    let outcome = load::run(&Load {
        client: &a,
        server: &b,
        to: Peer::B.address(lane.net, family),
        proto: Proto::Tcp,
        seconds: site.seconds,
        parallel: 1,
        style: Style::default(),
    })?;
    let mut values = Named::default();
    values.push("gbps", outcome.gbps());
    if let Some(cost) = outcome.cpu_s_per_gb() {
        values.push("cpu_s_per_gb", cost);
    }
    if let Some(retransmits) = outcome.retransmits {
        values.push("retransmits", retransmits as f64);
    }
    Ok(Sample::Values(values))
}

fn section(row: &Row) -> String {
    format!("TCP over {}, link {}", label(row, "family"), label(row, "link"))
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

const NOTES: &[&str] = &[
    "",
    "x vxlan, x link: to the kernel's VXLAN with outer checksums and to the bare",
    "link, of the same family and link. CPU s/GB: of everything at both ends for 1e9",
    "bytes received.",
];
