//! Assembly of a gateway that forwards at layer 3.

use std::sync::Arc;

use segue::hash::Key;
use segue_control::error::Error;
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
    let told = sender.clone();
    let assemble = Box::new(move |vitals: &Vitals| {
        follower.start(told, vitals.clone()).map_err(failed)?;
        Ok(Box::new(Router::new(parts)) as Box<dyn Pipeline>)
    });
    Ok(Opened {
        sender: plan.nat.is_some().then_some(sender),
        complaints: Some(Arc::new(move |_| faults.complaints())),
        ..Opened::new(offloads, assemble)
    })
}
