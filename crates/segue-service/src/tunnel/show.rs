//! Text and JSON of tunnels, before and while they run.

use serde_json::{Value, json};

use segue_fastpath::Direction;

use super::engine::engine_config;
use super::group::Group;
use super::plan::{Choice, Encap, Fastpath as Fastpaths, Plan, Profile};
use super::resolve::Ready;
use crate::daemon::running::Offloads;
use crate::fastpath::{self, Fastpath};
use crate::sandbox::Sandbox;

/// The schema id of the JSON that `segue tunnel -j` prints, one object for each event.
pub const SCHEMA: &str = "segue.tunnel/1";

/// Largest number of listed tunnels of one port; further ones are only counted.
const LISTED: usize = 12;

/// Returns the text of `--check`: the plan of each tunnel.
pub fn plan_text(group: &Group) -> String {
    let ready = group.first();
    if group.members.len() == 1 {
        return one_text(ready);
    }
    let listen = format!("  listen    {}\n", listen(ready));
    format!("{} tunnels can be, with one socket:\n{}{listen}", group.members.len(), list(group))
}

/// Returns the local address and port, on which the tunnel receives.
fn listen(ready: &Ready) -> String {
    if let Some(table) = &ready.plan.table {
        let ports: Vec<String> = table.listen.iter().map(|(_, port)| port.to_string()).collect();
        return format!("{}, UDP {}", ready.local, ports.join(", "));
    }
    match ready.plan.has_udp() {
        true => format!("{}, UDP {}", ready.local, ready.plan.port),
        false => format!("{}, raw socket", ready.local),
    }
}

/// Returns one line for each tunnel of a group.
fn list(group: &Group) -> String {
    let line = |ready: &Ready| format!("  {:<9} {}, mtu {}\n", ready.dev(), subject(ready), ready.mtu);
    let mut text: String = group.members.iter().take(LISTED).map(line).collect();
    let more = group.members.len().saturating_sub(LISTED);
    if more > 0 {
        text.push_str(&format!("  and {more} more\n"));
    }
    text
}

fn one_text(ready: &Ready) -> String {
    let plan = &ready.plan;
    let mut text = format!("{} can be: {}\n{}", plan.dev, subject(ready), mtu_line(ready));
    for prefix in &plan.addr {
        text.push_str(&format!("  address   {prefix}\n"));
    }
    let sport = match (plan.srcport, plan.sport.fixed()) {
        (Some((first, last)), _) => format!("{first} to {last}"),
        (None, Some(port)) => port.to_string(),
        (None, None) => "auto".to_owned(),
    };
    let source = if plan.has_udp() { format!("    source port {sport}") } else { String::new() };
    text.push_str(&format!("  listen    {}{source}\n", listen(ready)));
    if let Some(path) = intended(ready) {
        text.push_str(&format!("  path      {path}\n"));
    }
    let train = |on: bool| if on && plan.encap_csum && plan.has_udp() { "trains" } else { "one datagram at a time" };
    let profile = if plan.profile == Profile::Linux { "linux" } else { "strict" };
    text.push_str(&format!("  receive   {}, gro {}, profile {profile}\n", train(plan.gro), on_off(plan.gro)));
    text.push_str(&format!(
        "  send      {}, gso {}    checksum: {}\n",
        train(plan.gso),
        on_off(plan.gso),
        checksum(ready)
    ));
    text.push_str(&format!("  workers   {}\n", plan.workers));
    if plan.probe > 0 {
        text.push_str(&format!("  probe     every {} s\n", plan.probe));
    }
    text
}

/// Returns the consequence for a tunnel whose packets segue itself sends, where that is slow.
fn slowly(plan: &Plan) -> &'static str {
    match (plan.sends_trains(), plan.has_udp(), plan.gso) {
        (true, ..) | (.., false) => "",
        (false, true, true) => "; one packet at a time; encap-csum joins them",
        (false, false, true) => "; one packet at a time; encap gue joins them",
    }
}

/// Returns a line with the packets' intended path according to the plan; `None` if only the daemon was requested.
fn intended(ready: &Ready) -> Option<String> {
    let plan = &ready.plan;
    if plan.fastpath == Fastpaths::Off {
        return None;
    }
    if let Some(why) = plan.needs_daemon() {
        return Some(format!("segue [{why}]{}", slowly(plan)));
    }
    if plan.table.is_some() {
        return Some(format!("{}, where this host permits it", fastpath::OF_PEERS));
    }
    let config = engine_config(ready, 1, [0; 16]);
    let why = |direction| segue_fastpath::obstacle(&config, direction);
    Some(match (why(Direction::Send), why(Direction::Receive), plan.fastpath) {
        (None, None, _) => format!("kernel, where this host permits it, else segue{}", slowly(plan)),
        (Some(why), None, Fastpaths::On) => format!("kernel for received packets; segue sends [{why}]"),
        (None, Some(why), Fastpaths::On) => format!("kernel for sent packets; segue receives [{why}]"),
        (Some(why), ..) | (None, Some(why), _) => format!("segue [{why}]{}", slowly(plan)),
    })
}

/// Returns the JSON printed by `--check`.
pub fn plan_json(group: &Group, notes: &[String]) -> Value {
    let mut value = json!({ "schema": SCHEMA, "event": "check", "notes": notes });
    merge(&mut value, group);
    value
}

/// Returns the lines that report that the interfaces are up.
pub(crate) fn up_text(group: &Group, offloads: &Offloads, sandbox: &Sandbox, fastpath: Option<&Fastpath>) -> String {
    let ready = group.first();
    let plan = &ready.plan;
    let (head, mtu) = match group.members.len() {
        1 => (format!("{} is up: {}\n", plan.dev, subject(ready)), mtu_line(ready)),
        count => (format!("{count} tunnels are up on {}:\n", listen(ready)), list(group)),
    };
    let line = |name: &str, direction: Direction, offload: &str, checksum: &str| {
        let by_kernel = fastpath.is_some_and(|fastpath| fastpath.carries(direction));
        let (what, checksum) = match (by_kernel, offloads.is_on(offload)) {
            (true, _) => ("trains to 64 kB (kernel)".to_owned(), "left to the kernel"),
            (false, true) => (format!("trains to 64 kB ({})", offload.to_uppercase()), checksum),
            (false, false) => ("one datagram at a time".to_owned(), checksum),
        };
        format!("  {name:<9} {what:<32} checksum: {checksum}\n")
    };
    let slowly = if fastpath.is_some_and(|fastpath| fastpath.carries(Direction::Send)) { "" } else { slowly(plan) };
    let choice = fastpath.and_then(Fastpath::choice);
    let path = choice.map(|choice| format!("  path      {choice}{slowly}\n")).unwrap_or_default();
    format!(
        "{head}{mtu}{path}{}{}  workers   {}, {}\nWatch: segue stat {}      Stop: Ctrl-C\n",
        line("receive", Direction::Receive, "udp_gro", received_checksum(ready)),
        line("send", Direction::Send, "udp_segment", checksum(ready)),
        plan.workers,
        sandbox.text(),
        plan.dev,
    )
}

/// Describes the verification of received packets: the kernel verifies the outer checksum, and segue the inner one
/// before joining packets.
fn received_checksum(ready: &Ready) -> &'static str {
    match (ready.plan.gro, ready.plan.encap) {
        (true, Encap::Gue) => "remote, else verified here",
        (true, Encap::None) if ready.plan.overlay.remcsumrx => "remote, else verified here",
        (true, Encap::Fou | Encap::None) => "verified here",
        (false, _) => "left to the receiver",
    }
}

/// Returns the tunnels in the form of the up event.
pub(crate) fn up_json(group: &Group) -> Value {
    let mut value = json!({});
    merge(&mut value, group);
    value
}

/// Returns a summary of a tunnel, such as `ipip in GUE, 198.18.0.1 -> 198.18.0.2:6080`.
fn subject(ready: &Ready) -> String {
    let plan = &ready.plan;
    if plan.table.is_some() {
        return format!("{}, {}", kind(plan), ready.local);
    }
    format!("{}, {} -> {}", kind(plan), ready.local, plan.remote_name())
}

/// Returns the mode and the encapsulation of a tunnel, such as `ipip in GUE`.
pub(super) fn kind(plan: &Plan) -> String {
    if let Some(table) = &plan.table {
        let forms: Vec<String> = table.listen.iter().map(|(encap, port)| format!("{encap}:{port}")).collect();
        let of = if plan.mode == super::plan::Mode::Eth { "Ethernet peers" } else { "peers" };
        return format!("{of} in {}", forms.join(", "));
    }
    let carried = match (plan.encap, plan.overlay.id) {
        (Encap::None, Some(id)) => format!(" {id}"),
        (Encap::None, None) => String::new(),
        (encap, _) => format!(" in {}", encap.name().to_uppercase()),
    };
    format!("{}{carried}", plan.mode.name_to(plan.remote))
}

fn mtu_line(ready: &Ready) -> String {
    let parts: Vec<String> = ready.overhead.iter().map(|part| format!("{} {}", part.header, part.bytes)).collect();
    let (cost, link) = (ready.overhead_bytes(), ready.link_mtu);
    match ready.plan.mtu {
        Choice::Fixed(mtu) => {
            format!("  mtu       {mtu}  as asked; {} has {link}, headers take {cost}\n", ready.path_name())
        }
        _ => format!("  mtu       {}  = {link} ({}) - {cost} ({})\n", ready.mtu, ready.path_name(), parts.join(", ")),
    }
}

fn checksum(ready: &Ready) -> &'static str {
    if ready.plan.leaves_checksums() { "remote, none computed here" } else { "computed here" }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Adds the tunnels to a JSON object: a single tunnel as its keys, several as a list.
fn merge(value: &mut Value, group: &Group) {
    let from = match &group.members[..] {
        [one] => serde_json::to_value(one),
        all => serde_json::to_value(all).map(|all| json!({ "tunnels": all })),
    };
    if let (Value::Object(to), Ok(Value::Object(from))) = (value, from) {
        to.extend(from);
    }
}
