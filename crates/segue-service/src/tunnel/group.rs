//! Groups of tunnels that share one UDP port, and thus one socket and one process.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use segue::encap::Identity;
use segue_control::error::{Error, Kind};
use segue_host::netlink::Netlink;

use super::engine::identity;
use super::plan::Plan;
use super::resolve::{self, Ready};

/// Largest number of tunnels on one port.
const MOST: usize = 4096;

/// One or more tunnels with the same outside port.
#[derive(Clone, Debug)]
pub struct Group {
    /// Tunnels of the group, at least one.
    pub members: Vec<Ready>,
}

/// The reason for which tunnels cannot share a port.
#[derive(Debug)]
pub struct Clash {
    /// Index of the tunnel that conflicts with a preceding one.
    pub at: usize,
    /// Keyword that differs between the tunnels.
    pub word: &'static str,
    /// Description of the conflict between the tunnels.
    pub message: String,
    /// The note next to the word.
    pub note: String,
}

impl Group {
    /// Resolves the plans of a group on this system. They must have passed [`clash`].
    pub fn resolve(plans: Vec<Plan>, netlink: &mut Netlink) -> Result<Group, Error> {
        let members: Result<Vec<Ready>, Error> =
            plans.into_iter().map(|plan| resolve::resolve(plan, netlink)).collect();
        let group = Group { members: members? };
        let first = group.first();
        if let Some(other) = group.members.iter().find(|ready| ready.local != first.local) {
            let message =
                format!("{} would listen on {}, {} on {}", first.dev(), first.local, other.dev(), other.local);
            return Err(Error::new(Kind::Conflict, message, format!("add `local {}` to each", first.local))
                .why("the routes to their remotes prefer different addresses, and they share one socket")
                .about(other.dev()));
        }
        Ok(group)
    }

    /// Returns the tunnel whose name the group has.
    pub fn first(&self) -> &Ready {
        &self.members[0]
    }

    /// Returns the plans of the tunnels.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> + Clone {
        self.members.iter().map(|ready| &ready.plan)
    }

    /// Returns the notes for the user, each one once.
    pub fn notes(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.members.iter().flat_map(Ready::notes).filter(|note| seen.insert(note.clone())).collect()
    }
}

/// Returns the settings that all tunnels of a port must share, each with its word.
fn of_the_port(plan: &Plan) -> [(&'static str, String); 11] {
    let overlay = plan.mode.is_overlay().then_some(plan.mode);
    [
        ("local", format!("{:?}", plan.local)),
        ("port", plan.port.to_string()),
        ("encap", format!("{:?} {overlay:?}", plan.encap)),
        ("encap-csum", plan.encap_csum.to_string()),
        ("encap-sport", format!("{:?} {:?}", plan.sport, plan.srcport)),
        ("udp6zerocsumrx", plan.overlay.udp6zerocsumrx.to_string()),
        ("gro", plan.gro.to_string()),
        ("gso", plan.gso.to_string()),
        ("fastpath", plan.fastpath.name().to_owned()),
        ("workers", plan.workers.to_string()),
        ("remote", format!("{} {:?}", plan.remote.is_ipv4(), plan.zone)),
    ]
}

/// Finds the first of `plans` that cannot share a port with a preceding one.
pub fn clash(plans: &[Plan]) -> Option<Clash> {
    let first = plans.first()?;
    let port = of_the_port(first);
    let mut devs = HashSet::new();
    let mut taken: HashMap<(IpAddr, Identity), &str> = HashMap::new();
    for (at, plan) in plans.iter().enumerate() {
        let clash = |word, message, note: &str| Some(Clash { at, word, message, note: note.to_owned() });
        if !devs.insert(plan.dev.as_str()) {
            return clash("dev", format!("`{}` is given twice", plan.dev), "an interface has one tunnel");
        }
        if at >= MOST {
            return clash("dev", format!("more than {MOST} tunnels on one port"), "give the others another `port`");
        }
        if at > 0 && (plan.table.is_some() || first.table.is_some()) {
            let message = format!("`{}` and `{}` cannot share a port: one has a peer table", first.dev, plan.dev);
            return clash("dev", message, "a tunnel with a peer table has its ports for itself");
        }
        if at > 0 && (plan.guest.is_some() || first.guest.is_some()) {
            let message = format!("`{}` and `{}` cannot share a port: one is a guest's", first.dev, plan.dev);
            // While a guest offers no buffers, the port is not read.
            return clash("dev", message, "a guest that takes nothing would hold up the others: a `port` of its own");
        }
        if let Some(((word, _), _)) = of_the_port(plan).into_iter().zip(&port).find(|(a, b)| a != *b) {
            let message = format!("`{}` and `{}` cannot share a port: `{word}` differs", first.dev, plan.dev);
            return clash(word, message, "the same for all, or a `port` of its own");
        }
        let own = identity(plan);
        let one = identity(first);
        if !own.shares(&one) || !plan.has_udp() && own.mode.protocols() != one.mode.protocols() {
            let message = format!("`{}` and `{}` cannot share a port: `mode` differs", first.dev, plan.dev);
            let note = if plan.has_udp() {
                "fou does not carry the inner protocol: a `port` of its own"
            } else {
                "start it by itself"
            };
            return clash("mode", message, note);
        }
        for remote in std::iter::once(plan.remote).chain(plan.overlay.others(plan.remote)) {
            for key in own.identities() {
                if let Some(other) = taken.insert((remote, key), &plan.dev) {
                    let message = format!("`{other}` and `{}` would take the same packets of {remote}", plan.dev);
                    let word = if plan.mode.is_overlay() { "id" } else { "key" };
                    return clash(
                        "remote",
                        message,
                        &format!("another `{word}`, `mode`, `remote` or `port` tells them apart"),
                    );
                }
            }
        }
    }
    None
}
