//! Obstacles of the in-kernel path: rules and filters that its packets would bypass.

use std::fs;

use segue_control::error::os_text;
use segue_fastpath::foreign_programs;
use segue_host::netfilter;
use segue_host::netlink::Netlink;

use super::filters;
use super::request::Request;

/// Returns a filter or a queueing discipline on the tunnels' interfaces that packets would bypass.
pub(super) fn of_interfaces(request: &Request, netlink: &mut Netlink) -> Option<String> {
    let usual = fs::read_to_string("/proc/sys/net/core/default_qdisc").unwrap_or_default();
    for dev in request.devs() {
        let inside = netlink.link_named(dev).ok().flatten()?.index;
        let kinds = netlink.queueing(inside).ok()?;
        let filters = filters::of_others(inside, &kinds, netlink);
        let other = kinds.iter().find(|kind| *kind != "clsact" && !is_usual(kind, usual.trim())).or(filters.as_ref());
        if let Some(kind) = other {
            return Some(format!("{dev} has the queueing discipline {kind}"));
        }
    }
    for index in request.underlays(netlink) {
        let name = netlink.link(index).map_or_else(|_| index.to_string(), |link| link.name);
        let kinds = netlink.queueing(index).ok()?;
        if let Some(kind) = filters::of_others(index, &kinds, netlink) {
            return Some(format!("{name} has filters ({kind})"));
        }
    }
    None
}

/// Returns another software's BPF program on an interface that packets on the in-kernel path might bypass; needs
/// CAP_BPF.
pub(super) fn of_programs(interface: u32, netlink: &mut Netlink) -> Option<String> {
    let program = foreign_programs(interface).ok()?.into_iter().next()?;
    let name = netlink.link(interface).map_or_else(|_| interface.to_string(), |link| link.name);
    Some(format!("{name} has the program {program}"))
}

/// Returns whether an interface has a queueing discipline of this kind by default.
fn is_usual(kind: &str, default: &str) -> bool {
    kind == default || matches!(kind, "noqueue" | "pfifo_fast" | "mq")
}

/// Returns rules of the host that outer packets would bypass.
pub(super) fn of_host(is_v4: bool) -> Option<String> {
    let unreadable = |what: &str, error: &std::io::Error| {
        Some(format!("{what} cannot be read, and might see the outer packets: {}", os_text(error)))
    };
    match netfilter::rules(is_v4) {
        Ok(None) => {}
        Ok(Some(rules)) => return Some(format!("{rules} sees the outer packets")),
        Err(error) => return unreadable("netfilter rules", &error),
    }
    match netfilter::has_ipsec_policies() {
        Ok(false) => None,
        Ok(true) => Some("there are IPsec policies, which the outer packets would leave out".to_owned()),
        Err(error) => unreadable("IPsec policies", &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_discipline_is_no_obstacle() {
        for (kind, usual) in [("noqueue", true), ("fq_codel", true), ("mq", true), ("netem", false), ("clsact", false)]
        {
            assert_eq!(is_usual(kind, "fq_codel"), usual, "{kind}");
        }
        assert!(!is_usual("fq_codel", "pfifo_fast"));
    }
}
