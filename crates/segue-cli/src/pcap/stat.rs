//! `segue pcap stat`: the contents of a capture, the share that would merge, and the reasons for the rest, as text and
//! JSON.

use std::mem::discriminant;

use segue::gro::Profile;
use segue_capture::file::link;
use segue_capture::survey::{Flow, SIZES, Survey, SurveyConfig, survey};
use segue_capture::{PacketVerdict, USUAL_MTU};
use segue_control::error::{Error, printable_line};
use segue_control::units;
use segue_service::profile;
use serde_json::{Value, json};

use super::args::Stat;
use super::files::Job;
use super::summary::{packets, reasons, show_json};
use crate::out::Out;

/// Maximum number of flows in the text output.
const SHOWN: usize = 5;
/// Maximum number of flows in the JSON output.
const LISTED: usize = 100;

/// Runs `segue pcap stat`.
pub(super) fn run(args: &Stat, out: &Out) -> Result<(), Error> {
    let config = SurveyConfig { tunnels: args.ports.tunnels(), rules: args.rules.merge_rules() };
    let (job, mut reader) = Job::open(&args.input, "stat", out)?;
    let found = survey(&mut reader, &config).map_err(|error| job.failed(error))?;
    job.erase();
    let summary = json(&found);
    if out.json {
        return show_json(out, summary, &job, found.fault.as_ref());
    }
    out.data(&text(&found, &job.name, &summary));
    job.verdict(found.fault.as_ref(), out)
}

/// Returns the survey as JSON.
fn json(found: &Survey) -> Value {
    let left = |wanted: Profile| {
        let mut all = found.would_leave.iter();
        all.find(|(profile, _)| discriminant(profile) == discriminant(&wanted)).map(|(_, packets)| packets)
    };
    let sizes: Vec<Value> = SIZES
        .iter()
        .zip(found.sizes)
        .map(|(size, n)| json!({ "up_to_bytes": if *size == u32::MAX { None } else { Some(size) }, "packets": n }))
        .collect();
    let flow = |flow: &Flow| {
        let name = flow.to_string();
        json!({ "flow": name, "packets": flow.packets, "bytes": flow.bytes, "trains": flow.trains })
    };
    let flows: Vec<Value> = found.largest_flows(LISTED).into_iter().map(flow).collect();
    let interfaces: Vec<Value> = found
        .interfaces
        .iter()
        .map(|(number, name)| json!({ "name": name, "link_type": number, "link": link::name(*number) }))
        .collect();
    json!({
        "schema": "segue.pcap.stat/1",
        "format": found.format.name(),
        "packets": found.packets,
        "bytes": found.bytes,
        "duration_ns": found.duration_ns,
        "interfaces": interfaces,
        "sizes": sizes,
        "not_ip": found.not_ip,
        "fragments": found.fragments,
        "cut_packets": found.cut,
        "trains": found.trains,
        "checksums": found.checksums,
        "encap": found.encap,
        "remote_checksums": found.remote_checksums,
        "flow_count": found.flows.len(),
        "packets_of_further_flows": found.packets_of_further_flows,
        "flows": flows,
        "would_merge": {
            "profile": found.would_leave.first().map(|(profile, _)| profile::name(*profile)),
            "packets_strict": left(Profile::Strict),
            "packets_linux": left(Profile::linux()),
            "packets_lro": left(Profile::Lro),
            "trains": found.gro.trains,
            "segments": found.gro.segments,
            "swallowed": found.gro.swallowed,
            "why_trains_ended": found.gro.flushes,
            "why_alone": found.gro.alone,
            "why_refused": found.gro.mismatches,
        },
        "cut": found.fault.as_ref().map(ToString::to_string),
    })
}

/// Returns the survey as text of one screen.
fn text(found: &Survey, name: &str, summary: &Value) -> String {
    let format = found.format.name();
    let seconds = found.duration_ns as f64 / 1e9;
    let link = |(number, name): &(u16, String)| match (&**name, link::name(*number)) {
        ("", link) => link.to_owned(),
        (name, link) => format!("{} ({link})", printable_line(name)),
    };
    let mut links: Vec<String> = found.interfaces.iter().map(link).collect();
    if links.len() > 4 {
        links = vec![format!("{} interfaces", links.len())];
    }
    let mut text = format!(
        "{name}   {format}, {}, {}, {seconds:.1} s, {}\n",
        packets(found.packets),
        units::bytes(found.bytes),
        links.join(", ")
    );
    let mut line = |title: &str, body: String| {
        if !body.is_empty() {
            text.push_str(&format!("  {title:<12}{body}\n"));
        }
    };
    line(
        "flows",
        format!("{}{}", if found.packets_of_further_flows > 0 { "more than " } else { "" }, found.flows.len()),
    );
    for flow in found.largest_flows(SHOWN) {
        line("", format!("{flow}   {}, {}", packets(flow.packets), units::bytes(flow.bytes)));
    }
    let mut from = 0;
    let mut sizes = Vec::new();
    for (size, n) in SIZES.iter().zip(found.sizes) {
        if n > 0 && *size == u32::MAX {
            sizes.push(format!("over {}: {n}", from - 1));
        } else if n > 0 {
            sizes.push(format!("{from}-{size}: {n}"));
        }
        from = size.saturating_add(1);
    }
    line("sizes", sizes.join(", "));
    let origin = if found.trains > 0 { ": captured after GRO or before TSO" } else { "" };
    line("trains", format!("{} above {USUAL_MTU} bytes of IP{origin}", packets(found.trains)));
    let n = |name: &str| found.checksums.get(name).copied().unwrap_or(0);
    line(
        "checksums",
        format!("{} good, {} unfinished, {} bad, {} absent", n("good"), n("unfinished"), n("bad"), n("absent")),
    );
    if n(PacketVerdict::IpOnly.name()) > 0 {
        line("", format!("{} judged by their IP header only", n(PacketVerdict::IpOnly.name())));
    }
    if n(PacketVerdict::Malformed.name()) > 0 {
        line("", format!("{} malformed", n(PacketVerdict::Malformed.name())));
    }
    let encap: Vec<String> = found.encap.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let remote = if found.remote_checksums > 0 {
        format!(" (remote checksum {})", found.remote_checksums)
    } else {
        String::new()
    };
    line("encap", format!("{}{remote}", encap.join(", ")));
    for (n, what) in [(found.not_ip, "not IP"), (found.fragments, "fragments"), (found.cut, "cut when captured")] {
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
            found.packets,
            count("packets_strict"),
            count("packets_linux")
        ),
    );
    if count("swallowed") > 0 {
        line("", format!("{} would give way to a newer ACK", packets(count("swallowed"))));
    }
    line("  ended", reasons(&merge["why_trains_ended"]));
    line("  alone", reasons(&merge["why_alone"]));
    line("  no fit", reasons(&merge["why_refused"]));
    if found.trains > 0 || n("unfinished") > 0 {
        text.push_str(&format!("next: segue pcap split {name} OUT     makes it what was on the wire\n"));
    }
    text
}
