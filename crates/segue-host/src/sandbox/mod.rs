//! The sandbox: what Landlock leaves of files, connections and signals, and the filter of system calls of a process
//! that asks others.

pub mod filter;
mod rules;

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
pub use rules::{one_of, when};

/// The processes that a process may signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalling {
    /// Signals only to processes of the same Landlock domain, which is the process itself.
    Inside,
    /// Signals to all processes that its user and capabilities allow.
    AnyProcess,
}

/// Denies the file system except `folders`, which may be files too, with these rights, and, if the kernel can, TCP
/// except connections to `tcp_ports`, abstract sockets and, unless `signalling` allows them, signals to processes
/// outside. Returns whether the kernel enforces it.
pub fn restrict(folders: &[(PathBuf, BitFlags<AccessFs>)], tcp_ports: &[u16], signalling: Signalling) -> bool {
    let abi = ABI::V6;
    let scopes = match signalling {
        Signalling::Inside => Scope::from_all(abi),
        Signalling::AnyProcess => Scope::AbstractUnixSocket.into(),
    };
    let made = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(scopes))
        .and_then(|rules| rules.create());
    let Ok(mut rules) = made else { return false };
    for (path, access) in folders {
        let Ok(fd) = PathFd::new(path) else { return false };
        rules = match rules.add_rule(PathBeneath::new(fd, *access)) {
            Ok(rules) => rules,
            Err(_) => return false,
        };
    }
    for port in tcp_ports {
        rules = match rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)) {
            Ok(rules) => rules,
            Err(_) => return false,
        };
    }
    rules.restrict_self().is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}
