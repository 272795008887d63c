//! Obstacles of the in-kernel path: rules and filters that its packets would bypass.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use segue_control::error::os_text;
use segue_fastpath::{Error, foreign_programs, mark_of};
use segue_host::capability::Capability;
use segue_host::netlink::{Netlink, Queueing, sockets};
use segue_host::{netfilter, sys};

use super::filters;

/// Reason of `fastpath auto` for leaving packets to the daemon, whose sockets the kernel may route by such a rule.
const RULES: &str = "a routing rule tells packets by protocol, port, user or interface";

/// The interfaces of the tunnels of an instance.
#[derive(Debug, Default)]
pub(super) struct Interfaces<'a> {
    /// The tunnels' own interfaces, by index, with their names.
    pub(super) inside: BTreeMap<u32, &'a str>,
    /// The interfaces towards the remotes, by index.
    pub(super) outside: BTreeSet<u32>,
}

impl Interfaces<'_> {
    /// Returns the indexes, each once.
    pub(super) fn all(&self) -> BTreeSet<u32> {
        self.inside.keys().chain(&self.outside).copied().collect()
    }
}

/// Returns a filter or a queueing discipline on these interfaces that packets would bypass.
///
/// # Errors
/// The kernel's, where it cannot be told.
pub(super) fn of_interfaces(interfaces: &Interfaces<'_>, netlink: &mut Netlink) -> io::Result<Option<String>> {
    let all = netlink.queueing()?;
    for (index, dev) in &interfaces.inside {
        // An interface that is gone has none.
        let Some(queueing) = all.get(index) else { continue };
        let filters = filters::of_others(*index, queueing, netlink);
        if let Some(kind) = queueing.iter().find(|one| is_added(one)).map(|one| one.kind.clone()).or(filters) {
            return Ok(Some(format!("{dev} has the queueing discipline {kind}")));
        }
    }
    Ok(interfaces.outside.iter().find_map(|index| of_filters(*index, all.get(index)?, netlink)))
}

/// Returns the routing rules of one family by which packets may take another route than the one that was looked up.
///
/// # Errors
/// The kernel's, where it cannot be told.
pub(super) fn of_rules(is_v4: bool, netlink: &mut Netlink) -> io::Result<Option<String>> {
    Ok(netlink.has_selective_rules(is_v4)?.then(|| RULES.to_owned()))
}

/// Returns a filter or a queueing discipline like [`of_interfaces`], before packets take the path: what cannot be told
/// is in the way as well.
pub(super) fn at_start(interfaces: &Interfaces<'_>, netlink: &mut Netlink) -> Option<String> {
    of_interfaces(interfaces, netlink).unwrap_or_else(|error| Some(unreadable("filters of interfaces", &error)))
}

/// Returns other software's filters on an interface towards remotes, given its queueing disciplines.
fn of_filters(interface: u32, queueing: &[Queueing], netlink: &mut Netlink) -> Option<String> {
    let kind = filters::of_others(interface, queueing, netlink)?;
    let name = netlink.link(interface).map_or_else(|_| interface.to_string(), |link| link.name);
    Some(format!("{name} has filters ({kind})"))
}

/// Returns another software's BPF program on one of these interfaces that packets on the in-kernel path might bypass,
/// or why that cannot be told; needs CAP_BPF.
pub(super) fn of_programs(interfaces: &BTreeSet<u32>, netlink: &mut Netlink) -> Option<String> {
    of_unmarked(interfaces, netlink, &|number| sockets::has_abstract(&mark_of(number)).unwrap_or(false))
}

/// Returns a program like [`of_programs`]. `is_marked`, which lists all local sockets, is asked once about each: the
/// interfaces of all tunnels of an instance have the same one.
pub(super) fn of_unmarked(
    interfaces: &BTreeSet<u32>,
    netlink: &mut Netlink,
    is_marked: &dyn Fn(u32) -> bool,
) -> Option<String> {
    let answers = RefCell::new(BTreeMap::new());
    let is_marked = |number: u32| *answers.borrow_mut().entry(number).or_insert_with(|| is_marked(number));
    interfaces.iter().find_map(|interface| of_programs_at(*interface, netlink, &is_marked))
}

fn of_programs_at(interface: u32, netlink: &mut Netlink, is_marked: &dyn Fn(u32) -> bool) -> Option<String> {
    let program = match foreign_programs(interface, is_marked) {
        Ok(programs) => programs.into_iter().next()?,
        Err(error) => return Some(failure(&Error::Refused("looking for programs at an interface", error))),
    };
    let name = netlink.link(interface).map_or_else(|_| interface.to_string(), |link| link.name);
    Some(format!("{name} has the program {program}"))
}

/// Returns whether a queueing discipline was added to the interface, and is not the kernel's default. The kind does not
/// tell: the host's default cannot be read in another network namespace, and one of its kind may have other settings.
/// `noqueue`, which has no settings and holds no packet, is none.
fn is_added(queueing: &Queueing) -> bool {
    !queueing.is_default && !matches!(queueing.kind.as_str(), "clsact" | "noqueue")
}

/// Returns rules of the host that outer packets would bypass.
pub(super) fn of_host(is_v4: bool, netlink: &mut Netlink) -> Option<String> {
    match netfilter::rules(is_v4) {
        Ok(None) => {}
        Ok(Some(rules)) => return Some(format!("{rules} sees the outer packets")),
        Err(error) => return Some(unreadable("netfilter rules", &error)),
    }
    match netfilter::has_ipsec_policies() {
        Ok(false) => {}
        Ok(true) => return Some("there are IPsec policies, which the outer packets would leave out".to_owned()),
        Err(error) => return Some(unreadable("IPsec policies", &error)),
    }
    of_rules(is_v4, netlink).unwrap_or_else(|error| Some(unreadable("routing rules", &error)))
}

fn unreadable(what: &str, error: &io::Error) -> String {
    format!("{what} cannot be read, and might see the outer packets: {}", os_text(error))
}

/// Describes why the in-kernel path could not be loaded.
pub(super) fn failure(error: &Error) -> String {
    match error {
        Error::Refused(step, refusal) if is_forbidden(refusal) => {
            format!("{step}: not permitted; it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN of the host")
        }
        other => other.to_string(),
    }
}

/// Returns whether the kernel has refused a step for lack of a capability. Without CAP_PERFMON the verifier refuses a
/// program with EACCES and a log, where the program adds a number to a pointer that depends on the branch taken.
fn is_forbidden(refusal: &io::Error) -> bool {
    let lacks_perfmon = || sys::capabilities().is_ok_and(|own| !Capability::Perfmon.is_in(own));
    refusal.raw_os_error() == Some(libc::EPERM) || refusal.kind() == io::ErrorKind::PermissionDenied && lacks_perfmon()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_discipline_and_one_without_a_queue_are_no_obstacles() {
        for (kind, is_default, added) in [
            ("noqueue", true, false),
            ("noqueue", false, false),
            ("fq_codel", true, false),
            ("mq", true, false),
            ("fq_codel", false, true),
            ("netem", false, true),
            ("ingress", false, true),
            ("clsact", false, false),
        ] {
            assert_eq!(is_added(&Queueing { kind: kind.to_owned(), is_default }), added, "{kind} {is_default}");
        }
    }
}
