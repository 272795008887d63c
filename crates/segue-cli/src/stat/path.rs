//! The lines of `segue stat` on the in-kernel path: how many packets of each tunnel took it, how many segue carried,
//! and why.

use segue_control::error::{printable, printable_line};
use segue_control::model::{Fastpath, Instance, Port, Side};
use segue_control::units;
use segue_grammar::help::wrapped;

use super::explain::{counts, merged, peers};

/// Returns a line for each tunnel of these instances that may use the in-kernel path; with `only` for that tunnel. What
/// the path has left to segue before it knew the tunnel is that of the port that several tunnels share, in a line of
/// its own.
pub(super) fn lines(instances: &[Instance], only: Option<&str>, raw: bool) -> String {
    let mut text = String::new();
    for instance in instances {
        let Some(fastpath) = instance.fastpath.as_ref().filter(|fastpath| fastpath.mode != "off") else { continue };
        let outside = instance.ports.iter().filter(|(_, port)| port.side == Side::Outside);
        let unclaimed = || outside.clone().flat_map(|(_, port)| left(port));
        let is_alone = instance.tunnels.len() == 1 || fastpath.peers.is_some();
        // A tunnel with a peer table has no judgement of its health, and so no entry beside its port.
        let of_table = instance.ports.iter().filter(|(_, port)| port.side == Side::Inside && fastpath.peers.is_some());
        let names = instance
            .tunnels
            .keys()
            .chain(of_table.map(|(name, _)| name))
            .filter(|name| only.is_none_or(|only| only == name.as_str()));
        for (name, port) in names.filter_map(|name| Some((name, instance.ports.get(name)?))) {
            let mut why = left(port);
            if is_alone {
                why.extend(unclaimed());
            }
            text.push_str(&line(name, port, fastpath, &why, raw));
        }
        if !is_alone && only.is_none() {
            for (name, port) in outside.clone() {
                let why = left(port);
                if !why.is_empty() {
                    let words = format!("left to segue before the tunnel was known [{}]", why.join(", "));
                    text.push_str(&folded(&format!("{} of {}", printable(name), printable(&instance.name)), &words));
                }
            }
        }
    }
    text
}

/// Returns the line of output for one tunnel.
fn line(name: &str, port: &Port, fastpath: &Fastpath, left: &[String], raw: bool) -> String {
    let count = |n: u64| if raw { n.to_string() } else { units::count(n) };
    let both = |[received, sent]: [u64; 2]| format!("{} received, {} sent", count(received), count(sent));
    let kernel = ["received", "sent"].map(|direction| port.fastpath.get(direction).copied().unwrap_or(0));
    // What a tunnel sends is received from its interface, and the other way round.
    let all = [port.transmit, port.receive].map(|flow| flow.wire_packets());
    let segue = [0, 1].map(|direction| all[direction].saturating_sub(kernel[direction]));
    let mut parts = Vec::new();
    if fastpath.on || kernel != [0; 2] {
        parts.push(format!("by the kernel {}", both(kernel)));
    }
    let mut why = Vec::new();
    if !fastpath.on {
        why.push(fastpath.why.as_deref().map_or_else(|| "switched off".to_owned(), printable_line));
    }
    why.extend(fastpath.on.then(|| peers(fastpath)).flatten());
    why.extend(fastpath.by_daemon.iter().map(|(direction, reason)| format!("{direction}: {}", printable_line(reason))));
    why.extend_from_slice(left);
    let reasons = if why.is_empty() { String::new() } else { format!(" [{}]", why.join(", ")) };
    parts.push(format!("by segue {}{reasons}", both(segue)));
    folded(&printable(name), &format!("packets {}", parts.join("; ")))
}

/// Returns the reasons why packets were left to segue, with their numbers, the most frequent first.
fn left(port: &Port) -> Vec<String> {
    let ports = std::iter::once((String::new(), port.clone())).collect();
    let reasons = counts(&merged(&ports, |port| &port.left));
    reasons.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect()
}

fn folded(name: &str, text: &str) -> String {
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    wrapped(&words, &format!("{name}: "), "    ")
}
