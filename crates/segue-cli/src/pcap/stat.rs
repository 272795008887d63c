//! `segue pcap stat`: what a capture holds, what of it would merge, and why the rest would not.

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::rc::Rc;

use segue::gro::Profile;
use segue::packet::{Kind, Stop};
use segue_capture::file::{BlockKind, Item, Record, link};
use segue_control::error::Error;
use segue_control::units;
use serde_json::{Value, json};

use super::args::Stat;
use super::files::{End, Job};
use super::frame::{Finding, Frame, IP_ONLY, MALFORMED, USUAL_MTU, Verdict};
use super::lanes::{self, Lanes, Tally};
use super::verify::addresses;
use crate::out::Out;

/// Most flows told apart; the packets of all further ones are counted together.
const MOST_FLOWS: usize = 100_000;
/// Flows shown to people.
const SHOWN: usize = 5;
/// Upper ends of the size classes, in bytes of the frame.
const SIZES: [u32; 8] = [64, 128, 256, 512, 1024, 1514, 9014, u32::MAX];

/// Protocol, addresses and ports.
type Key = (u8, [u8; 32], [u8; 4]);

#[derive(Debug, Default)]
struct Flow {
    packets: u64,
    bytes: u64,
    trains: u64,
}

#[derive(Debug, Default)]
struct Seen {
    packets: u64,
    bytes: u64,
    first: Option<u64>,
    last: u64,
    cut: u64,
    not_ip: u64,
    fragments: u64,
    trains: u64,
    sizes: [u64; SIZES.len()],
    checksums: BTreeMap<&'static str, u64>,
    encap: BTreeMap<&'static str, u64>,
    remote: u64,
    flows: HashMap<Key, Flow>,
    names: HashMap<Key, String>,
    flows_beyond: u64,
    interfaces: Vec<(u16, String)>,
    sections: u64,
}

/// Runs it.
pub(super) fn run(args: &Stat, out: &Out) -> Result<(), Error> {
    let config = lanes::config(&args.rules);
    let (job, mut reader) = Job::open(&args.input, "stat", out)?;
    let (format, tunnels) = (reader.format(), args.ports.tunnels());
    // The one that is asked for in front, and the two that are always told.
    let mut profiles = vec![config.profile];
    let always = [Profile::Strict, Profile::linux()].into_iter();
    profiles.extend(always.filter(|profile| discriminant(profile) != discriminant(&config.profile)));
    let table = |profile: &Profile| Lanes::new(segue::gro::Config { profile: *profile, ..config }, tunnels);
    let mut tables: Vec<Lanes> = profiles.iter().map(table).collect();
    let mut units_out = vec![0_u64; profiles.len()];
    let (mut seen, mut end, mut findings) = (Seen::default(), End::default(), Vec::new());
    if reader.pcap_head().is_some() {
        let only = &reader.interfaces()[0];
        seen.interfaces.push((only.link, String::new()));
    }
    loop {
        match reader.next() {
            Ok(None) => break,
            Ok(Some(Item::Packet(record))) => {
                let frame = Frame::open(record.link, record.data(), &tunnels, USUAL_MTU);
                let frame = frame.filter(|frame| frame.is_ip() || frame.is_malformed());
                seen.add(&record, frame.as_ref(), &mut findings);
                let raw: Rc<[u8]> = record.raw.into();
                for (table, units) in tables.iter_mut().zip(&mut units_out) {
                    let mut done = Vec::new();
                    if table.push(&record, &raw, record.number, |out| done.push(out)).is_err() {
                        *units += 1;
                    }
                    *units += done.len() as u64;
                    done.into_iter().for_each(|out| table.give_back(out.packet));
                }
            }
            Ok(Some(Item::Block(block))) => {
                if let Some(interface) = block.interface
                    && seen.interfaces.len() < 1000
                {
                    seen.interfaces.push((interface.link, interface.name.clone().unwrap_or_default()));
                }
                if block.kind == BlockKind::Section {
                    seen.sections += 1;
                    for (table, units) in tables.iter_mut().zip(&mut units_out) {
                        table.forget(|_| *units += 1);
                    }
                }
            }
            Err(error) => job.fault(&error, &mut end)?,
        }
    }
    for (table, units) in tables.iter_mut().zip(&mut units_out) {
        table.flush(|_| *units += 1);
    }
    job.erase();
    let tally = tables[0].tally();
    let units: Vec<(Profile, u64)> = profiles.into_iter().zip(units_out).collect();
    let summary = seen.json(format.name(), &tally, &units, &end);
    if out.json {
        return super::show_json(out, summary, &job, &end);
    }
    out.data(&seen.text(&job.name, format.name(), &summary));
    job.verdict(&end, out)
}

impl Seen {
    fn add(&mut self, record: &Record<'_>, frame: Option<&Frame<'_>>, findings: &mut Vec<Finding>) {
        self.packets += 1;
        self.bytes += u64::from(record.len);
        self.cut += u64::from(record.is_cut());
        if let Some(nanos) = record.nanos {
            let first = *self.first.get_or_insert(nanos);
            self.first = Some(first.min(nanos));
            self.last = self.last.max(nanos);
        }
        let class = SIZES.iter().position(|size| record.len <= *size).unwrap_or(SIZES.len() - 1);
        self.sizes[class] += 1;
        let Some(frame) = frame else {
            self.not_ip += 1;
            return;
        };
        self.fragments += u64::from(frame.layout.stop() == Stop::Fragment);
        let is_train = frame.ip_len() > USUAL_MTU && frame.layout.transport().is_some();
        self.trains += u64::from(is_train);
        if frame.is_ip() {
            *self.encap.entry(encap(frame)).or_default() += 1;
        }
        if !record.is_cut() {
            frame.judge(findings);
            let has = |verdict| findings.iter().any(|f| f.verdict == verdict);
            self.remote += u64::from(has(Verdict::Remote));
            *self.checksums.entry(frame.verdict(findings)).or_default() += 1;
        }
        self.flow(record, frame, is_train);
    }

    fn flow(&mut self, record: &Record<'_>, frame: &Frame<'_>, is_train: bool) {
        let (Some(ip), Some(transport)) = (frame.layout.inner_ip(), frame.layout.transport()) else { return };
        let is_v4 = ip.kind == Kind::Ipv4;
        let place = if is_v4 { 12..20 } else { 8..40 };
        let Some(from) = frame.bytes.get(ip.start() + place.start..ip.start() + place.end) else { return };
        let mut between = [0; 32];
        between[..from.len()].copy_from_slice(from);
        let Some(ports) = frame.bytes.get(transport.start()..).and_then(|bytes| bytes.first_chunk::<4>()) else {
            return;
        };
        let key = (transport.kind as u8, between, *ports);
        if !self.flows.contains_key(&key) {
            if self.flows.len() == MOST_FLOWS {
                self.flows_beyond += 1;
                return;
            }
            let (src, dst) = addresses(frame, ip.start(), is_v4);
            let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
            let (open, close) = if is_v4 { ("", "") } else { ("[", "]") };
            let name = if transport.kind == Kind::Tcp { "TCP" } else { "UDP" };
            let text = format!("{name} {open}{src}{close}:{} -> {open}{dst}{close}:{}", port(0), port(2));
            self.names.insert(key, text);
        }
        let flow = self.flows.entry(key).or_default();
        flow.packets += 1;
        flow.bytes += u64::from(record.len);
        flow.trains += u64::from(is_train);
    }

    fn top(&self, most: usize) -> Vec<(&str, &Flow)> {
        let mut flows: Vec<(&str, &Flow)> =
            self.flows.iter().map(|(key, flow)| (self.names.get(key).map_or("", String::as_str), flow)).collect();
        flows.sort_by(|a, b| (b.1.bytes, a.0).cmp(&(a.1.bytes, b.0)));
        flows.truncate(most);
        flows
    }

    /// `units` are the packets that would be left by profile, the one that was asked for first.
    fn json(&self, format: &str, tally: &Tally, units: &[(Profile, u64)], end: &End) -> Value {
        let left = |wanted: Profile| {
            units.iter().find(|(profile, _)| discriminant(profile) == discriminant(&wanted)).map(|(_, packets)| packets)
        };
        let sizes: Vec<Value> = SIZES
            .iter()
            .zip(self.sizes)
            .map(|(size, n)| json!({ "up_to_bytes": if *size == u32::MAX { None } else { Some(size) }, "packets": n }))
            .collect();
        let flows: Vec<Value> = self
            .top(100)
            .into_iter()
            .map(|(name, flow)| json!({ "flow": name, "packets": flow.packets, "bytes": flow.bytes, "trains": flow.trains }))
            .collect();
        let interfaces: Vec<Value> = self
            .interfaces
            .iter()
            .map(|(number, name)| json!({ "name": name, "link_type": number, "link": link::name(*number) }))
            .collect();
        json!({
            "schema": "segue.pcap.stat/1",
            "format": format,
            "packets": self.packets,
            "bytes": self.bytes,
            "duration_ns": self.first.map_or(0, |first| self.last - first),
            "interfaces": interfaces,
            "sizes": sizes,
            "not_ip": self.not_ip,
            "fragments": self.fragments,
            "cut_packets": self.cut,
            "trains": self.trains,
            "checksums": self.checksums,
            "encap": self.encap,
            "remote_checksums": self.remote,
            "flow_count": self.flows.len(),
            "packets_of_further_flows": self.flows_beyond,
            "flows": flows,
            "would_merge": {
                "profile": units.first().map(|(profile, _)| segue_service::profile::name(*profile)),
                "packets_strict": left(Profile::Strict),
                "packets_linux": left(Profile::linux()),
                "packets_lro": left(Profile::Lro),
                "trains": tally.trains,
                "segments": tally.segments,
                "swallowed": tally.swallowed,
                "why_trains_ended": tally.flushes,
                "why_alone": tally.alone,
                "why_refused": tally.mismatches,
            },
            "cut": end.fault.as_ref().map(|(what, _)| what),
        })
    }

    fn text(&self, name: &str, format: &str, summary: &Value) -> String {
        let seconds = self.first.map_or(0.0, |first| (self.last - first) as f64 / 1e9);
        let mut links: Vec<String> = self
            .interfaces
            .iter()
            .map(|(number, name)| {
                if name.is_empty() {
                    link::name(*number).to_owned()
                } else {
                    format!("{name} ({})", link::name(*number))
                }
            })
            .collect();
        if links.len() > 4 {
            links = vec![format!("{} interfaces", links.len())];
        }
        let mut text = format!(
            "{name}   {format}, {}, {}, {seconds:.1} s, {}\n",
            super::packets(self.packets),
            units::bytes(self.bytes),
            links.join(", ")
        );
        let mut line = |title: &str, body: String| {
            if !body.is_empty() {
                text.push_str(&format!("  {title:<12}{body}\n"));
            }
        };
        line("flows", format!("{}{}", if self.flows_beyond > 0 { "more than " } else { "" }, self.flows.len()));
        for (name, flow) in self.top(SHOWN) {
            line("", format!("{name}   {}, {}", super::packets(flow.packets), units::bytes(flow.bytes)));
        }
        let mut from = 0;
        let mut sizes = Vec::new();
        for (size, n) in SIZES.iter().zip(self.sizes) {
            if n > 0 && *size == u32::MAX {
                sizes.push(format!("over {}: {n}", from - 1));
            } else if n > 0 {
                sizes.push(format!("{from}-{size}: {n}"));
            }
            from = size.saturating_add(1);
        }
        line("sizes", sizes.join(", "));
        let origin = if self.trains > 0 { ": captured behind GRO or before TSO" } else { "" };
        line("trains", format!("{} above {USUAL_MTU} bytes of IP{origin}", super::packets(self.trains)));
        let n = |name: &str| self.checksums.get(name).copied().unwrap_or(0);
        line(
            "checksums",
            format!("{} good, {} unfinished, {} bad, {} absent", n("good"), n("unfinished"), n("bad"), n("absent")),
        );
        if n(IP_ONLY) > 0 {
            line("", format!("{} judged by their IP header only", n(IP_ONLY)));
        }
        if n(MALFORMED) > 0 {
            line("", format!("{} malformed", n(MALFORMED)));
        }
        let encap: Vec<String> = self.encap.iter().map(|(name, n)| format!("{name} {n}")).collect();
        let remote = if self.remote > 0 { format!(" (remote checksum {})", self.remote) } else { String::new() };
        line("encap", format!("{}{remote}", encap.join(", ")));
        for (n, what) in [(self.not_ip, "not IP"), (self.fragments, "fragments"), (self.cut, "cut when captured")] {
            if n > 0 {
                line("", format!("{n} {what}"));
            }
        }
        let merge = &summary["would_merge"];
        let count = |key: &str| merge[key].as_u64().unwrap_or(0);
        let lro = merge["packets_lro"].as_u64().map_or(String::new(), |packets| format!(", {packets} with lro"));
        line(
            "could merge",
            format!(
                "{} -> {} packets with profile strict, {} with linux{lro}",
                self.packets,
                count("packets_strict"),
                count("packets_linux")
            ),
        );
        if count("swallowed") > 0 {
            line("", format!("{} would give way to a newer ACK", super::packets(count("swallowed"))));
        }
        line("  ended", super::reasons(&merge["why_trains_ended"]));
        line("  alone", super::reasons(&merge["why_alone"]));
        line("  no fit", super::reasons(&merge["why_refused"]));
        if self.trains > 0 || n("unfinished") > 0 {
            text.push_str(&format!("next: segue pcap split {name} OUT     makes it what was on the wire\n"));
        }
        text
    }
}

/// The outermost tunnel, in a word.
fn encap(frame: &Frame<'_>) -> &'static str {
    let headers = frame.layout.headers();
    if frame.layout.ip_levels() < 2 {
        return "plain";
    }
    let mut behind = headers.iter().skip_while(|header| !header.is_ip()).skip(1).map(|header| header.kind);
    match behind.next() {
        Some(Kind::Udp) => match behind.next() {
            Some(Kind::Gue) => "gue",
            Some(Kind::Vxlan) => "vxlan",
            Some(Kind::Geneve) => "geneve",
            _ => "fou",
        },
        Some(Kind::Gre) => "gre",
        _ => "ip",
    }
}
