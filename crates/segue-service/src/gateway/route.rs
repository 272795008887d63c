//! Assembly of a gateway that forwards at layer 3.

use std::net::Ipv4Addr;
use std::sync::Arc;

use segue::hash::Key;
use segue_control::error::Error;
use segue_control::model::{Complaint, Instance};
use segue_datapath::gateway::PortConfig;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::{self, Parts, Router};
use segue_host::netlink::Netlink;
use segue_port::PagePool;

use super::advertisements;
use super::config::Spelling;
use super::nat::nat;
use super::plan::Plan;
use crate::daemon::Opened;
use crate::daemon::running::{Offloads, flow_key, random};
use crate::diagnose;
use crate::fault::Vitals;
use crate::report::Report;
use crate::router_feed::{Advertised, Follower};

/// Prepares the router, and opens the connections to the kernel while the process has all rights.
pub(super) fn open(
    plan: &Plan,
    ports: [PortConfig; 2],
    budget: usize,
    pages: PagePool,
    offloads: Offloads,
    netlink: &mut Netlink,
    out: &dyn Report,
) -> Result<Opened, Error> {
    let mut index = |name: &str| -> Result<u32, Error> {
        let found = netlink.link_named(name).and_then(|link| link.ok_or(std::io::ErrorKind::NotFound.into()));
        Ok(found.map_err(|error| diagnose::change(name, "read the state", &error))?.index)
    };
    let indexes = [index(&plan.from.name)?, index(&plan.to.name)?];
    let failed = |error: std::io::Error| {
        Error::system("cannot follow the kernel's routes", &error, "segue doctor").why("the kernel refused")
    };
    let advertised = if plan.accept_ra { Advertised::Used } else { Advertised::Unused };
    if advertised == Advertised::Unused {
        advertisements::ignore([&plan.from.name, &plan.to.name], out);
    }
    let follower = Follower::open(indexes, advertised).map_err(failed)?;
    let faults = follower.faults();
    let (sender, feed) = router::feed().map_err(failed)?;
    let seed = u64::from_ne_bytes(random::<8>()?);
    let nat = plan.nat.as_ref().map(|plan| nat(plan, Spelling::Option, seed)).transpose()?;
    let key: Key = flow_key()?;
    let parts = Parts { ports, budget, pages, feed, nat, key };
    let outside = plan.nat.as_ref().map(|nat| (nat.address, plan.to.name.clone()));
    let told = sender.clone();
    let assemble = Box::new(move |vitals: &Vitals| {
        follower.start(told, vitals.clone()).map_err(failed)?;
        Ok(Box::new(Router::new(parts)) as Box<dyn Pipeline>)
    });
    Ok(Opened {
        sender: plan.nat.is_some().then_some(sender),
        complaints: Some(Arc::new(move |instance: &Instance| {
            let taken = outside.iter().flat_map(|(address, name)| address_faults(instance, *address, name));
            faults.complaints().into_iter().chain(taken).collect()
        })),
        ..Opened::new(offloads, assemble)
    })
}

/// Returns the problems of a NAT whose outside address another host has too, behind the interface `name`, or this host.
fn address_faults(instance: &Instance, address: Ipv4Addr, name: &str) -> Vec<Complaint> {
    let is_set = |state: &str| instance.ports.get(name).is_some_and(|port| port.numbers.get(state) == Some(&1));
    let complaint = |code: &str, what: &str, why: &str, fix: String| Complaint {
        what: format!("{what} has {address} too"),
        why: Some(why.to_owned()),
        code: code.to_owned(),
        fix: Some(fix),
        ..Complaint::default()
    };
    let local = is_set("address_local").then(|| {
        let why = "its own stack answers what is for the hosts inside";
        complaint("address_local", "this host", why, format!("sudo ip addr del {address} dev IFNAME"))
    });
    let conflict = is_set("address_conflict").then(|| {
        let why = format!("packets for the hosts inside may go to a host behind {name}, as its ARP messages say");
        let fix = format!("sudo tcpdump -eni {name} arp and host {address}");
        complaint("address_conflict", "another host", &why, fix)
    });
    local.into_iter().chain(conflict).collect()
}

#[cfg(test)]
mod tests {
    use segue_control::health;
    use segue_control::model::Port;

    use super::*;

    #[test]
    fn an_outside_address_that_a_host_has_too_is_a_problem() {
        let address = Ipv4Addr::new(198, 18, 2, 9);
        for (states, codes) in [
            ([0, 0], &[][..]),
            ([1, 0], &["address_local"][..]),
            ([0, 1], &["address_conflict"][..]),
            ([1, 1], &["address_local", "address_conflict"][..]),
        ] {
            let names = ["address_local", "address_conflict"].map(str::to_owned);
            let port = Port { numbers: names.into_iter().zip(states).collect(), ..Port::default() };
            let instance = Instance { ports: [("eth2".to_owned(), port)].into(), ..Instance::default() };
            let found = address_faults(&instance, address, "eth2");
            assert_eq!(found.iter().map(|one| one.code.as_str()).collect::<Vec<_>>(), codes);
            assert!(found.iter().all(|one| one.what.contains("198.18.2.9") && health::find(&one.code).is_some()));
            assert_eq!(address_faults(&instance, address, "eth1"), []);
        }
    }
}
