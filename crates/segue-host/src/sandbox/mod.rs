//! The sandbox: what Landlock leaves of files, connections and signals, and the filter of system calls of a process
//! that asks others.

pub mod filter;
mod rules;

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
pub use rules::{one_of, sends, sockets, when};

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
/// outside. Returns whether the kernel enforces it, which it does not where it has no Landlock.
///
/// # Errors
/// Where one of `folders` cannot be opened, or the kernel has Landlock and refuses.
pub fn restrict(
    folders: &[(PathBuf, BitFlags<AccessFs>)],
    tcp_ports: &[u16],
    signalling: Signalling,
) -> io::Result<bool> {
    let abi = ABI::V6;
    let scopes = match signalling {
        Signalling::Inside => Scope::from_all(abi),
        Signalling::AnyProcess => Scope::AbstractUnixSocket.into(),
    };
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(scopes))
        .and_then(|rules| rules.create())
        .map_err(io::Error::other)?;
    for (path, access) in folders {
        let fd = PathFd::new(path).map_err(io::Error::other)?;
        rules = rules.add_rule(PathBeneath::new(fd, *access)).map_err(io::Error::other)?;
    }
    for port in tcp_ports {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(io::Error::other)?;
    }
    let status = rules.restrict_self().map_err(io::Error::other)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_folder_is_no_lack_of_the_kernel() {
        let rights = [(PathBuf::from("/nowhere/at/all"), AccessFs::ReadFile.into())];
        let error = restrict(&rights, &[], Signalling::Inside).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
