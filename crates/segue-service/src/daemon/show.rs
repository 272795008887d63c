//! Events common to all instances, as JSON and as text: up, changed, down.

use std::time::{Duration, SystemTime};

use segue_control::knobs::Change;
use segue_control::model::{Instance, Side};
use segue_control::units;
use serde_json::{Value, json};

use super::definition::Daemon;
use super::running::{Offloads, Running};
use crate::sandbox::Sandbox;

/// Returns the event `up` as JSON.
pub(super) fn up_json(daemon: &impl Daemon, offloads: &Offloads, sandbox: &Sandbox) -> Value {
    let mut value = json!({
        "schema": daemon.schema(),
        "event": "up",
        "t": units::rfc3339(SystemTime::now()),
        "offloads": offloads.map(),
        "sandbox": sandbox,
        "notes": daemon.notes(),
    });
    if let (Value::Object(to), Value::Object(from)) = (&mut value, daemon.up_json()) {
        to.extend(from);
    }
    value
}

/// Returns the event of changed knobs.
pub(super) fn set_json(schema: &str, name: &str, changed: &[Change]) -> Value {
    let t = units::rfc3339(SystemTime::now());
    json!({ "schema": schema, "event": "set", "t": t, "name": name, "changed": changed })
}

/// Returns the line that reports that the instance is down.
pub(super) fn down_text(instance: &Instance, after: Duration) -> String {
    format!("{} is down after {}: {}\n", instance.name, units::long_duration(after), counters_text(instance))
}

/// Returns the event by which a successor reports that it is ready.
pub(super) fn successor_json(daemon: &impl Daemon) -> Value {
    json!({
        "schema": daemon.schema(),
        "event": "successor",
        "t": units::rfc3339(SystemTime::now()),
        "name": daemon.name(),
    })
}

/// Returns the event `down` as JSON. Where packets have sequence numbers it has the next number by interface.
pub(super) fn down_json(daemon: &impl Daemon, instance: &Instance, running: &Running, after: Duration) -> Value {
    let mut value = json!({
        "schema": daemon.schema(),
        "event": "down",
        "t": units::rfc3339(SystemTime::now()),
        "after_s": after.as_secs_f64(),
        "instance": instance,
    });
    let sequences = running.sequences();
    if !sequences.is_empty() {
        value["sequences"] = sequences.into_iter().map(|(name, next)| (name.to_owned(), json!(next))).collect();
    }
    value
}

/// Returns the totals of an instance on one line.
pub(super) fn counters_text(instance: &Instance) -> String {
    let outside = instance.ports.values().filter(|port| port.side == Side::Outside);
    let (mut rx, mut tx) = (0, 0);
    for port in outside {
        rx += port.receive.bytes;
        tx += port.transmit.bytes;
    }
    let inside = instance.ports.values().filter(|port| port.side == Side::Inside);
    let (mut bytes, mut packets) = (0, 0);
    for port in inside {
        bytes += port.transmit.bytes;
        packets += port.transmit.packets;
    }
    let mean = u64::checked_div(bytes, packets).unwrap_or(0);
    format!(
        "{} in, {} out, mean train {}, {} dropped",
        units::bytes(rx),
        units::bytes(tx),
        units::bytes(mean),
        instance.drops
    )
}
