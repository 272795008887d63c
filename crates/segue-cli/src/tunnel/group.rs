//! Tunnels that share one port: one socket and one process for all of them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use segue::encap::Identity;
use segue_control::error::{Error, Kind};
use segue_host::netlink::Netlink;

use super::plan::Plan;
use super::resolve::{self, Ready};
use super::start;

/// Most tunnels of one port.
const MOST: usize = 4096;

/// One tunnel or more, with one port outside.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// At least one.
    pub(crate) members: Vec<Ready>,
}

/// Why tunnels cannot share a port.
#[derive(Debug)]
pub(crate) struct Clash {
    /// The one that does not go with those before it.
    pub(crate) at: usize,
    /// The word that it is about.
    pub(crate) word: &'static str,
    pub(crate) message: String,
    pub(crate) note: String,
}

impl Group {
    /// Asks the system. The plans must not [`clash`].
    pub(crate) fn resolve(plans: Vec<Plan>, netlink: &mut Netlink) -> Result<Group, Error> {
        let members: Result<Vec<Ready>, Error> =
            plans.into_iter().map(|plan| resolve::resolve(plan, netlink)).collect();
        let group = Group { members: members? };
        let first = group.first();
        if let Some(other) = group.members.iter().find(|ready| ready.local != first.local) {
            let message =
                format!("{} would listen on {}, {} on {}", first.dev(), first.local, other.dev(), other.local);
            return Err(Error::new(Kind::Conflict, message, format!("add `local {}` to each", first.local))
                .why("the routes to their remotes prefer different addresses, and they share one socket"));
        }
        Ok(group)
    }

    /// The one that the group is called by.
    pub(crate) fn first(&self) -> &Ready {
        &self.members[0]
    }

    /// What was asked for, one by one.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Plan> + Clone {
        self.members.iter().map(|ready| &ready.plan)
    }

    /// What its user should know, each thing once.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.members.iter().flat_map(Ready::notes).filter(|note| seen.insert(note.clone())).collect()
    }
}

/// What must be the same in all, by the word that says it.
fn of_the_port(plan: &Plan) -> [(&'static str, String); 9] {
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
        ("remote", plan.remote.is_ipv4().to_string()),
    ]
}

/// The first of `plans` that cannot share a port with those before it.
pub(crate) fn clash(plans: &[Plan]) -> Option<Clash> {
    let first = plans.first()?;
    let port = of_the_port(first);
    let mut devs = HashSet::new();
    let mut taken: HashMap<(IpAddr, Identity), &str> = HashMap::new();
    for (at, plan) in plans.iter().enumerate() {
        let clash = |word, message, note: &str| Some(Clash { at, word, message, note: note.to_owned() });
        if !devs.insert(plan.dev.as_str()) {
            return clash("dev", format!("`{}` is there twice", plan.dev), "an interface has one tunnel");
        }
        if at >= MOST {
            return clash("dev", format!("more than {MOST} tunnels on one port"), "give the others another `port`");
        }
        if let Some(((word, _), _)) = of_the_port(plan).into_iter().zip(&port).find(|(a, b)| a != *b) {
            let message = format!("`{}` and `{}` cannot share a port: `{word}` differs", first.dev, plan.dev);
            return clash(word, message, "the same for all, or a `port` of its own");
        }
        let identity = start::identity(plan);
        let one = start::identity(first);
        if !identity.shares(&one) || !plan.has_udp() && identity.mode.protocols() != one.mode.protocols() {
            let message = format!("`{}` and `{}` cannot share a port: `mode` differs", first.dev, plan.dev);
            let note = if plan.has_udp() {
                "fou does not say what is inside: a `port` of its own"
            } else {
                "start it by itself"
            };
            return clash("mode", message, note);
        }
        for remote in std::iter::once(plan.remote).chain(plan.overlay.others(plan.remote)) {
            for own in identity.identities() {
                if let Some(other) = taken.insert((remote, own), &plan.dev) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::parse::parse_each;
    use crate::words::tunnel::WORDS;

    fn plans(line: &str) -> Vec<Plan> {
        let tokens: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let each = parse_each("segue tunnel", WORDS, &tokens).unwrap();
        each.iter().map(|parsed| super::super::plan::plan(parsed, None, &[]).unwrap()).collect()
    }

    const A: &str = "dev a remote 198.18.0.2 encap gue";

    #[test]
    fn what_can_be_told_apart_shares_a_port() {
        for others in [
            "dev b remote 198.18.0.3 encap gue",
            "dev b remote 198.18.0.2 encap gue key 1 also dev c remote 198.18.0.2 encap gue key 0",
            "dev b remote 198.18.0.2 encap gue mode ipip also dev c remote 198.18.0.2 encap gue mode sit encap-remcsum",
            "dev b remote 198.18.0.2 encap gue mode gretap mtu 1300 encap-dport 6080",
        ] {
            assert!(clash(&plans(&format!("{A} also {others}"))).is_none(), "{others}");
        }
        assert!(clash(&plans(A)).is_none());
        assert!(clash(&plans("dev a remote 198.18.0.2")).is_none(), "alone it needs no port");
        let vxlan = "dev a mode vxlan id 1 remote 198.18.0.2 fdb 0:0:0:0:0:0,198.18.0.3";
        assert!(clash(&plans(&format!("{vxlan} also dev b mode vxlan id 2 remote 198.18.0.3"))).is_none());
    }

    #[test]
    fn what_cannot_is_named_with_the_word() {
        for (others, at, word, message) in [
            ("dev a remote 198.18.0.3 encap gue", 1, "dev", "`a` is there twice"),
            ("dev b remote 198.18.0.2 encap gue", 1, "remote", "`a` and `b` would take the same packets of 198.18.0.2"),
            (
                "dev b remote 198.18.0.3 encap gue noencap-csum",
                1,
                "encap-csum",
                "`a` and `b` cannot share a port: `encap-csum` differs",
            ),
            ("dev b remote 198.18.0.3 encap gue port 7", 1, "port", "`a` and `b` cannot share a port: `port` differs"),
            (
                "dev b remote 198.18.0.3 encap fou encap-dport 6080",
                1,
                "encap",
                "`a` and `b` cannot share a port: `encap` differs",
            ),
            (
                "dev b remote 198.18.0.3 port 6080 encap gue local 198.18.0.1",
                1,
                "local",
                "`a` and `b` cannot share a port: `local` differs",
            ),
            ("dev b remote 198.18.0.3", 1, "encap", "`a` and `b` cannot share a port: `encap` differs"),
        ] {
            let clash = clash(&plans(&format!("{A} also {others}"))).expect(others);
            assert_eq!((clash.at, clash.word, clash.message.as_str()), (at, word, message), "{others}");
        }
        let bare = "dev a remote 198.18.0.2 mode ipip also dev b remote 198.18.0.3 mode gre";
        assert_eq!(clash(&plans(bare)).unwrap().word, "mode");
        assert!(
            clash(&plans("dev a remote 198.18.0.2 key 1 also dev b remote 198.18.0.2 key 2 mode gretap")).is_none()
        );
        let fou = "dev a remote 198.18.0.2 encap fou encap-dport 5 mode ipip also dev b remote 198.18.0.3 encap fou encap-dport 5";
        assert_eq!(clash(&plans(fou)).unwrap().word, "mode");
        let vxlan = "dev a mode vxlan id 1 remote 198.18.0.2 also dev b mode vxlan id 1 remote 198.18.0.3 fdb 0:0:0:0:0:0,198.18.0.2";
        assert!(clash(&plans(vxlan)).unwrap().message.ends_with("packets of 198.18.0.2"));
    }
}
