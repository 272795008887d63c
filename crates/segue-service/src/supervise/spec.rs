//! The specification of an instance of a service.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path;

use segue_control::confinement::WEAK;
use segue_control::error::Error;
use segue_control::knobs::is_of;
use segue_control::protocol::ChangedTunnels;
use segue_host::names::CachedAddress;
use segue_host::netlink::Netlink;
use serde::{Deserialize, Serialize};

use crate::gateway::config::Config;
use crate::tunnel::engine;
use crate::tunnel::kinds::PeerTable;
use crate::tunnel::plan::Plan;
use crate::tunnel::resolve;

/// The word between the tunnels of one port.
pub const ALSO: &str = "also";

/// The kind of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An instance with one tunnel, or several with one port.
    Tunnel,
    /// A gateway between ports.
    Gateway,
    /// A LAN78xx adapter.
    Adapter,
    /// A server for the metrics of all instances.
    Metrics,
}

impl Kind {
    /// Returns the command of the kind.
    pub fn command(self) -> &'static str {
        match self {
            Kind::Tunnel => "tunnel",
            Kind::Gateway => "gateway",
            Kind::Adapter => "lan78xx",
            Kind::Metrics => "metrics",
        }
    }

    /// Returns the words of the command that runs an instance of the kind.
    pub fn words(self) -> Vec<&'static str> {
        match self {
            Kind::Adapter => vec!["lan78xx", "up"],
            other => vec![other.command()],
        }
    }
}

/// A word of a command line, and its position in the file.
#[derive(Clone, Debug)]
pub struct Token {
    /// Word as spelled in the file.
    pub text: String,
    /// The range of the word in the file, bytes.
    pub span: Range<usize>,
    /// Address of the remote that the word names, if it is known.
    pub address: Option<IpAddr>,
}

impl Token {
    /// Creates a word without an address.
    pub fn new(text: impl Into<String>, span: Range<usize>) -> Token {
        Token { text: text.into(), span, address: None }
    }
}

/// A knob with its value, and the positions of both in the file.
#[derive(Clone, Debug)]
pub struct KnobAssignment {
    /// The name of the knob.
    pub name: Token,
    /// The value of the knob.
    pub value: Token,
}

/// The parsed words of an instance.
#[derive(Clone, Debug)]
pub enum InstancePlan {
    /// Plans of one tunnel, or of several with one port.
    Tunnels(Vec<Plan>),
    /// Plan of a gateway.
    Gateway(Box<Config>),
    /// Name of an adapter's interface; other settings are options of the command.
    Adapter(String),
    /// The metrics of all instances; their settings are options of the command.
    Metrics,
}

/// The name of a remote that has no address now.
#[derive(Clone, Debug)]
pub struct Unresolved {
    /// Host name without an address.
    pub host: String,
    /// The reason, with the position of the name.
    pub error: Box<Error>,
}

/// The specification of one instance, from the configuration.
#[derive(Clone, Debug)]
pub struct InstanceSpec {
    /// The kind of the instance.
    pub kind: Kind,
    /// The name of the instance.
    pub name: String,
    /// The words after the command, without knobs.
    pub tokens: Vec<Token>,
    /// Knobs to set at the start.
    pub assignments: Vec<KnobAssignment>,
    /// The byte range of the heading in the file.
    pub header: Range<usize>,
    /// The parsed words of the instance.
    pub plan: InstancePlan,
    /// Name of the remote without an address; the address in the plan is then a placeholder.
    pub unresolved: Option<Unresolved>,
}

impl InstanceSpec {
    /// Returns the plans of the tunnels.
    pub(crate) fn plans(&self) -> &[Plan] {
        match &self.plan {
            InstancePlan::Tunnels(plans) => plans,
            InstancePlan::Gateway(_) | InstancePlan::Adapter(_) | InstancePlan::Metrics => &[],
        }
    }

    /// Returns whether the tunnels of both specifications receive on the same socket, so that one process must serve
    /// them.
    pub(crate) fn has_socket_of(&self, other: &InstanceSpec) -> bool {
        let socket = |spec: &InstanceSpec| {
            // Without a port the address must be known.
            let first = spec.plans().first().filter(|plan| plan.has_udp() || plan.local.is_some());
            first.map(Socket::of)
        };
        socket(self).is_some_and(|own| socket(other) == Some(own))
    }

    /// Returns the words after the command, without knobs: equal words mean equal instances.
    pub fn words(&self) -> Vec<String> {
        self.tokens.iter().map(|token| token.text.clone()).collect()
    }

    /// Returns the words after the command as the process of the instance gets them: with addresses instead of names,
    /// which only the service looks up.
    pub fn process_words(&self) -> Vec<String> {
        let word = |token: &Token| token.address.map_or_else(|| token.text.clone(), |address| address.to_string());
        self.tokens.iter().map(word).collect()
    }

    /// Returns the words of the process with an empty table in the place of the file of peers.
    pub(super) fn words_without_file(&self) -> Vec<String> {
        let mut words = self.process_words();
        let file = self.table().and_then(|table| table.file.as_deref());
        let is_it = |pair: &[String]| pair[0] == "peers" && file == Some(Path::new(&pair[1]));
        if let Some(at) = words.windows(2).position(is_it) {
            words[at + 1] = "none".to_owned();
        }
        words
    }

    /// Returns whether the instance may run without a part of the sandbox that the kernel lacks.
    pub(super) fn is_weak(&self) -> bool {
        self.tokens.iter().any(is_weak)
    }

    /// Returns the addresses of the remotes that are names, each with its tunnel.
    pub fn cached_addresses(&self) -> Vec<CachedAddress> {
        let tunnels = self.plans().iter().zip(self.tokens.split(|token| token.text == ALSO));
        let cached = |(plan, tokens): (&Plan, &[Token])| {
            let (host, address) = tokens.iter().find_map(|token| Some((token.text.clone(), token.address?)))?;
            Some(CachedAddress { dev: plan.dev.clone(), host, address })
        };
        tunnels.filter_map(cached).collect()
    }

    /// Returns the length of the instance's command line in bytes, as counted by execve(2): each word with its final
    /// zero and its pointer.
    pub fn command_len(&self) -> usize {
        const EACH: usize = 1 + size_of::<*const u8>();
        let words: usize = self.process_words().iter().map(|word| word.len() + EACH).sum();
        let knobs = self.assignments.iter();
        words + knobs.map(|knob| "--set==".len() + knob.name.text.len() + knob.value.text.len() + EACH).sum::<usize>()
    }

    /// Returns the addresses of the remotes, which may change while the words stay the same: a host name is
    /// looked up each time that the configuration is read.
    pub(crate) fn remotes(&self) -> Vec<IpAddr> {
        match &self.plan {
            InstancePlan::Tunnels(plans) => plans.iter().map(|plan| plan.remote).collect(),
            InstancePlan::Gateway(_) | InstancePlan::Adapter(_) | InstancePlan::Metrics => Vec::new(),
        }
    }

    /// Returns the address to which the sockets that send are connected; `None` where every message names its own.
    pub(super) fn only_peer(&self) -> Option<SocketAddr> {
        let [plan] = self.plans() else { return None };
        let is_only = plan.has_udp() && plan.table.is_none() && plan.overlay.others(plan.remote).is_empty();
        is_only.then(|| SocketAddr::new(plan.remote, plan.dport))
    }

    /// Returns the number of tunnels, or 1 for a gateway.
    pub fn members(&self) -> usize {
        1 + self.tokens.iter().filter(|token| token.text == ALSO).count()
    }

    /// Returns the number of threads that move packets.
    pub fn workers(&self) -> u16 {
        match &self.plan {
            InstancePlan::Tunnels(plans) => plans.first().map_or(1, |plan| plan.workers),
            InstancePlan::Gateway(_) | InstancePlan::Adapter(_) | InstancePlan::Metrics => 1,
        }
    }

    /// Returns the interfaces of those tunnels that `old` also has, with equal words and on the same socket, so that
    /// this instance can take them over. A capture belongs to its process, so that with one there are none.
    pub fn shared(&self, old: &InstanceSpec) -> Vec<String> {
        fn members(spec: &InstanceSpec) -> Vec<(&Plan, Vec<String>)> {
            let each = spec.tokens.split(|token| token.text == ALSO);
            let words =
                each.map(|tokens| tokens.iter().filter(|token| !is_weak(token)).map(|t| t.text.clone()).collect());
            match &spec.plan {
                InstancePlan::Tunnels(plans) => plans.iter().zip(words).collect(),
                InstancePlan::Gateway(_) | InstancePlan::Adapter(_) | InstancePlan::Metrics => Vec::new(),
            }
        }
        let old = members(old);
        // Tunnels with the same words have the same interface.
        let old: HashMap<&str, &(&Plan, Vec<String>)> =
            old.iter().map(|member| (member.0.dev.as_str(), member)).collect();
        let same = |(plan, words): &(&Plan, Vec<String>)| {
            old.get(plan.dev.as_str()).is_some_and(|(before, others)| {
                words == others
                    // The same host name may have another address.
                    && before.remote == plan.remote
                    && Socket::of(before) == Socket::of(plan)
                    && before.trace.is_none()
                    && plan.trace.is_none()
                    // The socket of a guest has one listener.
                    && plan.guest.is_none()
            })
        };
        members(self).into_iter().filter(same).map(|(plan, _)| plan.dev.clone()).collect()
    }

    /// Returns the settings of the peer table, if the tunnel has one.
    pub(crate) fn table(&self) -> Option<&PeerTable> {
        match &self.plan {
            InstancePlan::Tunnels(plans) => plans.first().and_then(|plan| plan.table.as_ref()),
            InstancePlan::Gateway(_) | InstancePlan::Adapter(_) | InstancePlan::Metrics => None,
        }
    }

    /// Returns the interfaces of the tunnels.
    pub(crate) fn devs(&self) -> Vec<String> {
        match &self.plan {
            InstancePlan::Tunnels(plans) => plans.iter().map(|plan| plan.dev.clone()).collect(),
            InstancePlan::Adapter(dev) => vec![dev.clone()],
            InstancePlan::Gateway(_) | InstancePlan::Metrics => Vec::new(),
        }
    }

    /// Records the tunnels that differ between this specification and that of its successor, `new`. Both share those
    /// with the interfaces `shared`.
    pub(super) fn note_differences(&self, new: &InstanceSpec, shared: &[String], tunnels: &mut ChangedTunnels) {
        let (had, has) = (self.devs(), new.devs());
        let (changed, added): (Vec<String>, Vec<String>) =
            has.iter().filter(|dev| !shared.contains(dev)).cloned().partition(|dev| had.contains(dev));
        tunnels.changed.extend(changed);
        tunnels.added.extend(added);
        tunnels.removed.extend(had.into_iter().filter(|dev| !has.contains(dev)));
    }

    /// Returns the specification of only the tunnels with the given interfaces, with their knobs.
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
        // The process has this option whichever of its tunnels is written with it.
        if let Some(weak) = self.tokens.iter().find(|token| is_weak(token)).filter(|_| !spec.tokens.iter().any(is_weak))
        {
            spec.tokens.insert(0, weak.clone());
        }
        Some(spec)
    }

    /// Returns the knobs to set, with their values.
    pub fn knobs(&self) -> Vec<(String, String)> {
        self.assignments
            .iter()
            .map(|assignment| (assignment.name.text.clone(), assignment.value.text.clone()))
            .collect()
    }

    /// Returns the address and port that the instance listens on, if they are known.
    pub fn listens(&self, netlink: &mut Netlink) -> Option<SocketAddr> {
        let first = self.plans().first().filter(|plan| plan.has_udp() && self.unresolved.is_none())?;
        resolve::resolve(first.clone(), netlink).ok().map(|ready| ready.listens())
    }

    /// Adds the tunnels of `other` to this instance.
    pub fn append(&mut self, other: InstanceSpec) {
        let also = Token::new(ALSO, other.header.clone());
        // Options belong to the process: they are those of the first one, in front. One that it has is not repeated.
        let has_weak = self.tokens.iter().any(is_weak);
        self.tokens.push(also);
        self.tokens.extend(other.tokens.into_iter().filter(|token| !(has_weak && is_weak(token))));
        self.assignments.extend(other.assignments);
        if let (InstancePlan::Tunnels(plans), InstancePlan::Tunnels(others)) = (&mut self.plan, other.plan) {
            let (trace, trace_size) =
                plans.first().map(|first| (first.trace.clone(), first.trace_size)).unwrap_or_default();
            plans.extend(others.into_iter().map(|plan| Plan { trace: trace.clone(), trace_size, ..plan }));
        }
    }
}

/// Returns whether a word is the option of a process without a part of the sandbox, the only one that several tunnels
/// of a port may be written with.
fn is_weak(token: &Token) -> bool {
    token.text == WEAK
}

fn has(devs: &[String], dev: &str) -> bool {
    devs.iter().any(|known| known == dev)
}

/// The identity of the socket that a tunnel receives with.
#[derive(PartialEq, Eq, Hash)]
pub struct Socket {
    local: Option<IpAddr>,
    is_ipv4: bool,
    /// UDP port of the tunnels, if they use UDP.
    port: Option<u16>,
    /// IP protocols of the tunnels, if they do not use UDP.
    protocols: &'static [u8],
    /// The number of sockets that share the port.
    workers: u16,
}

impl Socket {
    /// Returns the socket of a tunnel.
    pub fn of(plan: &Plan) -> Socket {
        let (port, protocols) = match plan.has_udp() {
            true => (Some(plan.port), &[][..]),
            false => (None, engine::identity(plan).mode.protocols()),
        };
        Socket { local: plan.local, is_ipv4: plan.remote.is_ipv4(), port, protocols, workers: plan.workers }
    }
}
