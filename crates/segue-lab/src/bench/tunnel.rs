//! `tunnel`: loads through segue, the kernel's VXLAN, other tunnels in user space, and without a tunnel.

mod columns;
mod counters;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::definition::Bench;
use super::ends;
use super::layout::Layout;
use super::loss_free;
use super::point::{Part, Point, Sample};
use super::rr::QUANTILES;
use super::site::Site;
use crate::load::{self, Load, Style};
use crate::{
    CONGESTION, Case, Cpu, Family, Ground, Host, LabError, LinkForm, Named, Options, Peer, Prepared, Proto, connect,
};

/// Number of the tunnel's network.
const NET: u8 = 1;
/// Time in which the wake-ups of a tunnel without load are counted, after as long a time in which the traffic of its
/// start ends.
const IDLE: Duration = Duration::from_secs(1);

/// The families inside and outside.
const FAMILIES: [(Family, Family); 3] = [(Family::V4, Family::V4), (Family::V6, Family::V6), (Family::V6, Family::V4)];

/// The cases of the table.
const NAMES: [&str; 14] = [
    "segue",
    "segue-plain",
    "segue-no-csum",
    "segue-default",
    "fastpath-ipip",
    "fastpath-sit",
    "fastpath-gre",
    "fastpath-gue",
    "fastpath-vxlan",
    "vxlan",
    "vxlan-no-csum",
    "wireguard-go",
    "fastd",
    "link",
];

/// Load through the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// TCP flows at full speed, by their number.
    Stream(u32),
    /// UDP datagrams at full speed: number of flows, and payload bytes per datagram.
    Datagrams(u32, u32),
    /// Connections with one request of one byte in flight on each, by their number.
    Requests(u32),
}

impl Traffic {
    const ALL: [Traffic; 9] = [
        Traffic::Stream(1),
        Traffic::Stream(4),
        Traffic::Stream(16),
        Traffic::Stream(64),
        // With IP and UDP an even 1400 bytes, and the most that every tunnel takes.
        Traffic::Datagrams(1, 1372),
        Traffic::Datagrams(16, 1372),
        Traffic::Datagrams(1, 1400),
        Traffic::Requests(1),
        Traffic::Requests(200),
    ];

    /// Returns the label of the rows.
    fn word(self) -> String {
        match self {
            Traffic::Stream(flows) => format!("tcp-{flows}"),
            Traffic::Datagrams(1, len) => format!("udp-{len}"),
            Traffic::Datagrams(flows, len) => format!("udp-{len}-{flows}"),
            Traffic::Requests(connections) => format!("rr-{connections}"),
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
struct Form {
    link: LinkForm,
    family: Family,
    /// The family outside.
    outer: Family,
    traffic: Traffic,
    name: &'static str,
    /// Whether the program of `--beside` runs.
    beside: bool,
}

impl Form {
    /// Returns whether the table has a row for the combination.
    fn exists(self) -> bool {
        // A socket takes IPv6 datagrams without checksums only where that is asked for.
        let is_none = matches!((self.name, self.family), ("fastpath-ipip", Family::V6) | ("fastpath-sit", Family::V4))
            || matches!((self.name, self.outer), ("segue-no-csum" | "vxlan-no-csum", Family::V6));
        // IPv6 in IPv4 is for the comparison of the in-kernel path with VXLAN.
        let is_mixed = self.outer != self.family
            && (self.link == LinkForm::NicCsum
                || !(self.name.starts_with("fastpath") || self.name.starts_with("vxlan"))
                || !matches!(self.traffic, Traffic::Stream(1 | 4 | 64)));
        // The loads by which the in-kernel path is compared with VXLAN.
        let is_more = (self.name.starts_with("fastpath") || self.name == "segue-default")
            && match self.traffic {
                Traffic::Stream(flows) => flows == 16,
                Traffic::Datagrams(_, len) => len != 1400 || self.family == Family::V6,
                Traffic::Requests(connections) => connections == 1 || self.family == Family::V6,
            };
        !is_none
            && !is_mixed
            && !is_more
            && (!self.beside || matches!(self.name, "segue" | "segue-plain" | "segue-no-csum"))
    }

    fn part(self) -> Part {
        let quick = matches!(self.link, LinkForm::Nic) && matches!(self.name, "segue" | "vxlan") && !self.beside;
        match (self.link, self.family, self.name, self.traffic) {
            (LinkForm::NicCsum, ..) | (_, Family::V6, ..) => Part::Full,
            (.., "segue" | "vxlan", Traffic::Stream(1)) if quick => Part::Quick,
            (.., "segue" | "vxlan" | "wireguard-go" | "fastd" | "link", Traffic::Stream(1)) => Part::Usual,
            (.., "segue" | "vxlan", Traffic::Stream(16) | Traffic::Datagrams(1, 1372) | Traffic::Requests(200)) => {
                Part::Usual
            }
            _ => Part::Full,
        }
    }

    fn labels(self) -> Named<serde_json::Value> {
        let mut labels = Named::default();
        labels.push("tunnel", self.name);
        let outer = if self.outer == self.family { String::new() } else { format!("-in-IPv{}", self.outer) };
        labels.push("family", format!("IPv{}{outer}", self.family));
        labels.push("link", self.link.as_str());
        labels.push("load", self.traffic.word());
        if self.beside {
            labels.push("program", "beside");
        }
        labels
    }
}

pub(super) fn bench() -> Bench {
    let mut points = Vec::new();
    for link in [LinkForm::Nic, LinkForm::Veth, LinkForm::NicCsum] {
        for (family, outer) in FAMILIES {
            for traffic in Traffic::ALL {
                for (name, beside) in NAMES.into_iter().flat_map(|name| [(name, false), (name, true)]) {
                    let form = Form { link, family, outer, traffic, name, beside };
                    if form.exists() {
                        let sample = move |site: &Site| sample(site, form);
                        points.push(Point {
                            labels: form.labels(),
                            seed: Named::default(),
                            part: form.part(),
                            beside,
                            loads: 1,
                            sample: Box::new(sample),
                        });
                    }
                }
            }
        }
    }
    points.extend(loss_free::points());
    Bench {
        name: "tunnel",
        title: "loads through segue, kernel VXLAN, wireguard-go, fastd, and no tunnel",
        points,
        link: None,
        pinned: false,
        layout: Layout {
            section: columns::section,
            name: columns::name,
            columns: columns::columns,
            notes: columns::NOTES,
        },
        details: vec![
            ("load", format!("iperf3, one flow unless named, {}; outside the family that is inside", CONGESTION)),
            (
                "segue",
                "gre in gue with remcsum; fastpath-: by the in-kernel path; fastd: method null; wireguard-go encrypts"
                    .into(),
            ),
            ("wire", "a veth pair of MTU 1500; nic: tso off gso off tx off gro on; veth: as made".into()),
            ("counted", "both hosts on all processors: tunnel, stack, load, ksoftirqd".into()),
        ],
    }
}

fn sample(site: &Site, form: Form) -> Result<Sample, LabError> {
    let program = match (form.beside, &site.beside) {
        (false, _) => &site.segue,
        (true, Some(program)) => program,
        (true, None) => return Ok(Sample::Skipped("--beside names the other program".into())),
    };
    let cpu = Arc::new(Cpu::new());
    let (mut a, mut b) = (Host::new("a")?, Host::new("b")?);
    a.account(&cpu);
    b.account(&cpu);
    connect(&a, &b, form.link)?;
    let families = [form.family];
    let options = Options { segue: program.clone(), link: form.link, outer: form.outer, ..Options::default() };
    let ground = Ground { a: &a, b: &b, net: NET, families: &families, options: &options };
    let lane = match Case::named(form.name)?.prepare(&ground)? {
        Prepared::Ready(lane) => lane,
        Prepared::Skipped(why) => return Ok(Sample::Skipped(why)),
    };
    let to = Peer::B.address(lane.net, form.family);
    let read = || lane.stat.as_ref().and_then(|stat| counters::read(stat, [&a, &b]));
    let mut values = Named::default();
    if form.traffic == Traffic::Requests(1) && lane.stat.is_some() {
        thread::sleep(IDLE);
        let before = read();
        thread::sleep(IDLE);
        if let Some((before, after)) = before.zip(read()) {
            values.push("idle_wakeups_per_s", after.since(&before).wakeups() / IDLE.as_secs_f64());
        }
    }
    let (before, packets) = match form.traffic {
        Traffic::Requests(connections) => {
            let requester = format!("ask {to} {connections} {}", site.seconds);
            let answer = format!("answer {to} {connections}");
            let begin = || Ok((read(), seconds(&cpu)?));
            let ([said, _], (before, used)) =
                ends::both(&site.segue, (&a, requester), (&b, answer), site.seconds, begin)?;
            let used = seconds(&cpu)? - used;
            let (count, time) = (said["transactions"].as_f64(), said["seconds"].as_f64());
            let Some((count, time)) = count.zip(time).filter(|(count, _)| *count > 0.0) else {
                return Err(LabError::Load(format!("the asking end said {said}")));
            };
            values.push("transactions_per_s", count / time);
            values.push("cpu_us_per_transaction", used * 1e6 / count);
            for (at, percent) in QUANTILES.into_iter().enumerate() {
                if let Some(micros) = said["micros"][at].as_f64() {
                    values.push(&format!("p{percent}_us"), micros);
                }
            }
            (before, count)
        }
        Traffic::Stream(_) | Traffic::Datagrams(..) => {
            let style = Style::default();
            let (proto, flows, datagram) = match form.traffic {
                Traffic::Datagrams(flows, len) => (Proto::Udp, flows, len),
                Traffic::Stream(flows) | Traffic::Requests(flows) => (Proto::Tcp, flows, style.datagram),
            };
            let before = read();
            let outcome = load::run(&Load {
                client: &a,
                server: &b,
                to,
                proto,
                seconds: site.seconds,
                parallel: flows,
                style: Style { datagram, ..style },
            })?;
            values.push("gbps", outcome.gbps());
            if let Some(cost) = outcome.cpu_s_per_gb() {
                values.push("cpu_s_per_gb", cost);
            }
            if let Some(retransmits) = outcome.retransmits {
                values.push("retransmits", retransmits as f64);
            }
            let packets = outcome.bytes as f64 / f64::from(datagram);
            if proto == Proto::Udp && packets > 0.0 {
                values.push("packets_per_s", packets / outcome.seconds);
                if let Some(used) = outcome.cpu_s {
                    values.push("cpu_us_per_packet", used * 1e6 / packets);
                }
                if let Some(lost) = outcome.lost_percent {
                    values.push("lost_percent", lost);
                }
            }
            (before, packets)
        }
    };
    if let Some((before, after)) = before.zip(read()) {
        counters::put(&after.since(&before), packets, &mut values);
    }
    if let Some(bytes) = counters::memory(&lane.processes) {
        values.push("memory_mib", bytes as f64 / f64::from(1 << 20));
    }
    Ok(Sample::Values(values))
}

/// Returns the CPU seconds of both hosts.
fn seconds(cpu: &Cpu) -> Result<f64, LabError> {
    cpu.seconds().map_err(|source| LabError::system("read the CPU time", source))
}
