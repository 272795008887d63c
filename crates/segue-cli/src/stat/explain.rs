//! The text of `segue stat --why`: the reasons behind the counters of an instance.

use std::collections::BTreeMap;

use segue_control::error::{printable, printable_line};
use segue_control::model::{Complaint, Fastpath, Flow, Instance, OUTER_CSUM, Port, Side, TX_DROPPED};
use segue_control::units;

use super::table::plain_table;
use segue_grammar::help::wrapped;

/// Stages that a packet passes after it was received on a port, in that order.
const STAGES: &[&str] = &["decap", "gro", "entry", "nat_in", "route", "nat_out", "encap"];
/// Maximum number of reasons that a list shows.
const REASONS: usize = 8;

/// Returns the text of `--why` for one instance: its problems, why trains ended and packets stayed alone, drops,
/// offloads, hints, and the meaning of each reason. With `only` it is that of one of several tunnels, whose outside
/// port is that of all.
pub(super) fn why(instance: &Instance, only: Option<&str>, raw: bool) -> String {
    let name = only.unwrap_or(&instance.name);
    let mut instance = instance.clone();
    if let Some(only) = only {
        let is_shown = |name: &String, port: &mut Port| port.side == Side::Outside || name == only;
        instance.ports.retain(is_shown);
        instance.recent.iter_mut().for_each(|recent| recent.ports.retain(is_shown));
        instance.health.retain(|note| note.tunnels.is_empty() || note.tunnels.iter().any(|name| name == only));
    }
    let instance = &instance;
    let (ports, span) = match &instance.recent {
        Some(recent) => (&recent.ports, format!("last {:.0} s", recent.interval_s)),
        None => (&instance.ports, "since the start".to_owned()),
    };
    let count = |n: u64| if raw { n.to_string() } else { units::count(n) };
    let mut text: String = instance.health.iter().map(trouble).collect();
    text.push_str(&format!("{}, {span}", printable(name)));
    let outside = side(ports, Side::Outside);
    let inside = side(ports, Side::Inside);
    let (packets, units_in) = (outside.receive.wire_packets(), inside.transmit.packets);
    // The mean is that of transmitted units: received packets may have been dropped.
    let mean = if units_in > 0 { inside.transmit.wire_packets() as f64 / units_in as f64 } else { 0.0 };
    let trains = format!("{} packets in -> {} units (mean {mean:.1} segments)", count(packets), count(units_in));
    text.push_str(&format!(": {trains}\n"));
    let probes = instance.tunnels.iter().filter(|(tunnel, _)| only.is_none_or(|only| only == tunnel.as_str()));
    for (tunnel, probe) in probes.filter_map(|(tunnel, state)| Some((tunnel, state.probe.as_ref()?))) {
        text.push_str(&format!("  probe of {}: {}\n", printable(tunnel), probe.text()));
    }

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
        text.push_str(&format!("  pure ACKs that were aggregated into newer ones: {}\n", count(swallowed)));
    }
    if trimmed > 0 {
        text.push_str(&format!("  packets whose padding was cut off: {}\n", count(trimmed)));
    }
    let list = |text: &mut String, head: &str, reasons: &[(String, String)]| {
        if !reasons.is_empty() {
            let parts: Vec<String> = reasons.iter().map(|(name, share)| format!("{name} {share}")).collect();
            let all = parts.join(", ");
            let words: Vec<String> = all.split(' ').map(str::to_owned).collect();
            text.push_str(&wrapped(&words, &format!("  {head}: "), "    "));
        }
    };
    let mismatches = merged(ports, |port| &port.mismatches);
    let fallbacks = merged(&instance.ports, |port| &port.fallbacks);
    let drops = merged(&instance.ports, |port| &port.drops);
    list(&mut text, "refused because (packets)", &counts(&mismatches));
    list(&mut text, "fallbacks", &counts(&fallbacks));
    list(&mut text, "dropped since the start", &counts(&drops));
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
    if let Some(table) = &instance.peers {
        let plural = if table.peers == 1 { "" } else { "s" };
        let count = |what: &str, count: u64| if count == 0 { String::new() } else { format!("; {what}: {count}") };
        let refused = count("refused", table.refused_peers) + &count("changes refused", table.refused);
        let number = format!("generation {}, in force {}", table.generation, table.in_force);
        text.push_str(&format!(
            "peers     {} peer{plural}, {number}{refused}; segue peer list shows them\n",
            table.peers
        ));
    }
    if let Some(fastpath) = &instance.fastpath {
        text.push_str(&kernel_path(fastpath, instance, raw));
    }
    if let Some(sandbox) = instance.sandbox.as_ref().filter(|sandbox| !sandbox.is_whole()) {
        text.push_str(&format!("sandbox  {}\n", printable_line(&sandbox.text())));
    }
    let summed: u64 = instance.ports.values().map(|port| port.checksummed_bytes).sum();
    text.push_str(&format!("payload bytes summed by segue: {summed}\n"));
    for hint in hints(instance, &flushes, &refusals) {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text.push_str(&meanings(
        instance,
        &[
            ("drops", &drops),
            ("fallbacks", &fallbacks),
            ("flushes", &flushes),
            ("refusals", &refusals),
            ("mismatches", &mismatches),
        ],
    ));
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Describes the in-kernel path: whether it is in use or why not, how many packets took it, and why others were left to
/// segue. Nothing where it was never asked for.
fn kernel_path(fastpath: &Fastpath, instance: &Instance, raw: bool) -> String {
    let total = |key: &str| instance.ports.values().filter_map(|port| port.fastpath.get(key)).sum::<u64>();
    // What a tunnel sends is received from its interface, and the other way round.
    let inside = side(&instance.ports, Side::Inside);
    let count = |n: u64| if raw { n.to_string() } else { units::count(n) };
    let both = |[sent, received]: [u64; 2]| format!("{} sent, {} received", count(sent), count(received));
    let kernel = ["sent", "received"].map(total);
    let [sent, received] = [inside.receive, inside.transmit].map(|flow| flow.wire_packets());
    let segue = [sent.saturating_sub(kernel[0]), received.saturating_sub(kernel[1])];
    let by_whom = format!("packets by the kernel {}, by segue {}", both(kernel), both(segue));
    let mut words = match (&fastpath.why, fastpath.on) {
        (Some(why), true) => vec![format!("on [{}]: {by_whom}", printable_line(why))],
        (None, true) => vec![format!("on: {by_whom}")],
        (_, false) if fastpath.mode == "off" => return String::new(),
        (Some(why), false) if kernel != [0; 2] => {
            vec![format!("off [{}]: {by_whom}", printable_line(why))]
        }
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
    words.extend(peers(fastpath).filter(|_| fastpath.on));
    words.extend(
        fastpath.by_daemon.iter().map(|(direction, why)| format!("{direction} by segue: {}", printable_line(why))),
    );
    let words: Vec<String> = words.join("; ").split(' ').map(str::to_owned).collect();
    wrapped(&words, "fastpath  ", "          ")
}

/// Returns the numbers of peers of a table by path, with the reasons; `None` without a table.
pub(super) fn peers(fastpath: &Fastpath) -> Option<String> {
    let peers = fastpath.peers.as_ref()?;
    let reasons = peers.segue.iter().map(|(why, count)| format!(", by segue {count}: {}", printable_line(why)));
    Some(format!("peers by the kernel {}{}", peers.kernel, reasons.collect::<String>()))
}

/// Returns a problem with its reason and the command that fixes it.
fn trouble(note: &Complaint) -> String {
    let mut text = format!("{}: {}\n", if note.notice { "notice" } else { "problem" }, printable_line(&note.what));
    for (label, part) in [("why", &note.why), ("fix", &note.fix), ("since", &note.since)] {
        let Some(part) = part else { continue };
        let part = printable_line(part);
        let part = if label == "since" { units::in_local_time(&part) } else { part };
        // A command is not wrapped, so that it can be copied.
        let words = if label == "fix" { vec![part] } else { part.split(' ').map(str::to_owned).collect() };
        text.push_str(&wrapped(&words, &format!("  {label}: "), "       "));
    }
    text
}

/// Returns the meanings of the reasons that the lists show, one sentence each.
fn meanings(instance: &Instance, lists: &[(&str, &BTreeMap<String, u64>)]) -> String {
    let mut text = String::new();
    for (group, reasons) in lists {
        let known = instance.reasons.get(*group);
        for (name, _) in ranked(reasons) {
            let Some(sentence) = known.and_then(|known| known.get(name)) else { continue };
            let words: Vec<String> = printable_line(sentence).split(' ').map(str::to_owned).collect();
            text.push_str(&wrapped(&words, &format!("  {}: ", readable(name)), "    "));
        }
    }
    let stages = "  A unit is a packet, or a train of several. Stages: decap takes the outer headers off, gro\n  joins \
                  packets, entry cuts trains where GSO is off, encap adds the outer headers, gso cuts\n  trains for \
                  the port.\n";
    if text.is_empty() { text } else { format!("what the words mean\n{stages}{text}") }
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

/// Returns a table of the packets at each stage of each direction: where trains are made, how far they stay whole,
/// where they are segmented.
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

pub(super) fn merged(ports: &BTreeMap<String, Port>, of: fn(&Port) -> &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
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
    let share = |n: u64| if raw { n.to_string() } else { percent(n as f64 * 100.0 / total as f64) };
    sorted(reasons).into_iter().map(|(name, n)| (name, share(n))).collect()
}

/// Formats a share in per cent, which is shown as 0 only if it is exactly 0.
fn percent(share: f64) -> String {
    if share < 0.05 { "<0.1 %".to_owned() } else { format!("{share:.1} %") }
}

pub(super) fn counts(reasons: &BTreeMap<String, u64>) -> Vec<(String, String)> {
    sorted(reasons).into_iter().map(|(name, n)| (name, n.to_string())).collect()
}

fn sorted(reasons: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    ranked(reasons).into_iter().map(|(name, n)| (readable(name), n)).collect()
}

/// Returns the most frequent reasons by their names, without those that are 0.
fn ranked(reasons: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut list: Vec<(&str, u64)> =
        reasons.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (name.as_str(), *n)).collect();
    list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    list.truncate(REASONS);
    list
}

/// Returns the name of a reason with spaces instead of underscores.
fn readable(name: &str) -> String {
    printable(&name.replace('_', " ")).replace('?', " ")
}

/// Returns hints for the user on the counters.
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
    let unread: u64 = instance.ports.values().filter_map(|port| port.numbers.get(TX_DROPPED)).sum();
    if unread > 0 {
        hints.push(format!(
            "tx_dropped {unread}: packets for which the interface had no room until segue read them;\n\
             \x20     some are usual for TCP, and docs/run.md says what helps under overload"
        ));
    }
    if share(flushes, "timeout") > 0.5 {
        hints.push("most trains end by time: the load is light, and trains would only add delay".to_owned());
    }
    hints
}
