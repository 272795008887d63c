//! What an instance of a service is asked to be.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use segue_control::knobs::is_of;
use segue_host::netlink::Netlink;

use crate::gateway::config::Config;
use crate::tunnel::engine;
use crate::tunnel::plan::Plan;
use crate::tunnel::resolve;

/// Stands between the words of several tunnels of one port.
pub const ALSO: &str = "also";

/// What an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One tunnel, or several with one port.
    Tunnel,
    /// A gateway.
    Gateway,
}

impl Kind {
    /// The command that makes it.
    pub fn command(self) -> &'static str {
        match self {
            Kind::Tunnel => "tunnel",
            Kind::Gateway => "gateway",
        }
    }
}

/// A word of a command line, and where in the file it is from.
#[derive(Clone, Debug)]
pub struct Token {
    /// The word.
    pub text: String,
    /// Its bytes in the file.
    pub span: Range<usize>,
}

/// A knob with its value, and where both are.
#[derive(Clone, Debug)]
pub struct KnobAssignment {
    /// The name.
    pub name: Token,
    /// The value.
    pub value: Token,
}

/// What the words of an instance stand for; they are parsed once.
#[derive(Clone, Debug)]
pub enum InstancePlan {
    /// One tunnel, or several with one port.
    Tunnels(Vec<Plan>),
    /// A gateway.
    Gateway(Box<Config>),
}

/// One instance of the file.
#[derive(Clone, Debug)]
pub struct InstanceSpec {
    /// What it is.
    pub kind: Kind,
    /// The name by which it is asked for.
    pub name: String,
    /// The words behind the command.
    pub tokens: Vec<Token>,
    /// The knobs that it sets.
    pub assignments: Vec<KnobAssignment>,
    /// Its heading.
    pub header: Range<usize>,
    /// What its words stand for.
    pub plan: InstancePlan,
}

impl InstanceSpec {
    /// The words behind the command, knobs left out: two instances are the same where these are.
    pub fn words(&self) -> Vec<String> {
        self.tokens.iter().map(|token| token.text.clone()).collect()
    }

    /// How many tunnels or gateways it is.
    pub fn members(&self) -> usize {
        1 + self.tokens.iter().filter(|token| token.text == ALSO).count()
    }

    /// Those of its tunnels, by their interfaces, that `old` has as well, just as they are, on the same port; it could go on
    /// with them. A trace is of the process, so that with one there are none.
    pub fn shared(&self, old: &InstanceSpec) -> Vec<String> {
        fn members(spec: &InstanceSpec) -> Vec<(&Plan, Vec<String>)> {
            let each = spec.tokens.split(|token| token.text == ALSO);
            let words = each.map(|tokens| tokens.iter().map(|token| token.text.clone()).collect());
            match &spec.plan {
                InstancePlan::Tunnels(plans) => plans.iter().zip(words).collect(),
                InstancePlan::Gateway(_) => Vec::new(),
            }
        }
        let old = members(old);
        // The same words have the same interface.
        let old: HashMap<&str, &(&Plan, Vec<String>)> =
            old.iter().map(|member| (member.0.dev.as_str(), member)).collect();
        let same = |(plan, words): &(&Plan, Vec<String>)| {
            old.get(plan.dev.as_str()).is_some_and(|(before, others)| {
                words == others
                    && Socket::of(before) == Socket::of(plan)
                    && before.trace.is_none()
                    && plan.trace.is_none()
            })
        };
        members(self).into_iter().filter(same).map(|(plan, _)| plan.dev.clone()).collect()
    }

    /// The interfaces of its tunnels.
    pub fn devs(&self) -> Vec<String> {
        match &self.plan {
            InstancePlan::Tunnels(plans) => plans.iter().map(|plan| plan.dev.clone()).collect(),
            InstancePlan::Gateway(_) => Vec::new(),
        }
    }

    /// The tunnels of these interfaces alone, with the knobs that are theirs.
    pub fn only(&self, devs: &[String]) -> Option<InstanceSpec> {
        let InstancePlan::Tunnels(plans) = &self.plan else { return None };
        let gone: Vec<&str> = plans.iter().map(|plan| plan.dev.as_str()).filter(|dev| !has(devs, dev)).collect();
        let (kept, name) = (plans.iter().filter(|plan| has(devs, &plan.dev)).cloned().collect(), devs.first()?.clone());
        let mut spec = InstanceSpec { tokens: Vec::new(), name, plan: InstancePlan::Tunnels(kept), ..self.clone() };
        spec.assignments.retain(|assignment| !gone.iter().any(|dev| is_of(&assignment.name.text, dev)));
        let members = self.tokens.split_inclusive(|token| token.text == ALSO);
        for (tokens, _) in members.zip(plans).filter(|(_, plan)| has(devs, &plan.dev)) {
            spec.tokens.extend_from_slice(tokens);
        }
        spec.tokens.pop_if(|last| last.text == ALSO);
        Some(spec)
    }

    /// The knobs that it sets, each with its value.
    pub fn knobs(&self) -> Vec<(String, String)> {
        self.assignments
            .iter()
            .map(|assignment| (assignment.name.text.clone(), assignment.value.text.clone()))
            .collect()
    }

    /// Where it listens, as far as it can be told.
    pub fn listens(&self, netlink: &mut Netlink) -> Option<SocketAddr> {
        let InstancePlan::Tunnels(plans) = &self.plan else { return None };
        let first = plans.first().filter(|plan| plan.has_udp())?;
        resolve::resolve(first.clone(), netlink).ok().map(|ready| ready.listens())
    }

    /// Makes `other` a tunnel of the same process.
    pub fn append(&mut self, other: InstanceSpec) {
        let also = Token { text: ALSO.to_owned(), span: other.header.clone() };
        // Options are of the process: those of the first, in front.
        self.tokens.push(also);
        self.tokens.extend(other.tokens);
        self.assignments.extend(other.assignments);
        if let (InstancePlan::Tunnels(plans), InstancePlan::Tunnels(others)) = (&mut self.plan, other.plan) {
            let trace = plans.first().and_then(|first| first.trace.clone());
            plans.extend(others.into_iter().map(|plan| Plan { trace: trace.clone(), ..plan }));
        }
    }
}

fn has(devs: &[String], dev: &str) -> bool {
    devs.iter().any(|known| known == dev)
}

/// The socket that a tunnel receives with.
#[derive(PartialEq, Eq, Hash)]
pub struct Socket {
    local: Option<IpAddr>,
    is_ipv4: bool,
    /// UDP's, where there is that.
    port: Option<u16>,
    /// Those of IP, where there is no UDP.
    protocols: &'static [u8],
}

impl Socket {
    /// That of a tunnel.
    pub fn of(plan: &Plan) -> Socket {
        let (port, protocols) = match plan.has_udp() {
            true => (Some(plan.port), &[][..]),
            false => (None, engine::identity(plan).mode.protocols()),
        };
        Socket { local: plan.local, is_ipv4: plan.remote.is_ipv4(), port, protocols }
    }
}
