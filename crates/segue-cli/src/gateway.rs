//! `segue gateway`: a bump in the wire between two interfaces, one of which may be a TAP created for it, or a bridge
//! between more.

use segue_control::error::Error;
use segue_host::capability::Capability;
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_service::daemon::{self, Start};
use segue_service::gateway::config::{Config, Spelling};
use segue_service::gateway::daemon::SCHEMA;
use segue_service::gateway::endpoint::EndpointKind;
use segue_service::gateway::plan::{self, Plan};
use segue_service::gateway::start;
use serde_json::json;

use crate::args::Gateway;
use crate::out::Out;

/// Runs `segue gateway`.
pub(crate) fn run(args: &Gateway, out: &Out) -> Result<(), Error> {
    let watched = daemon::follow(args.supervised, false)?;
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    let plan = plan::plan(&config(args, Spelling::Option), &mut netlink)?;
    if args.check {
        return check(&plan, &mut netlink, out);
    }
    daemon::up(&plan, netlink, Start { watched, is_weak: args.weak_sandbox }, &out.staying())
}

/// Prints the plan of the gateway for `--check`, or returns the obstacle to its start. Changes nothing.
fn check(plan: &Plan, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    start::knobs(plan, &plan.set)?;
    start::check(plan, netlink)?;
    let mut notes = plan.notes.clone();
    let caps = sys::capabilities().unwrap_or(0);
    for end in plan.ends() {
        let needed = match &end.what {
            EndpointKind::Interface => &[Capability::NetRaw][..],
            EndpointKind::Vhost(_) => &[],
            EndpointKind::Tap { netns: None } => &[Capability::NetAdmin],
            EndpointKind::Tap { netns: Some(_) } => &[Capability::NetAdmin, Capability::SysAdmin],
        };
        for capability in needed.iter().filter(|capability| !capability.is_in(caps)) {
            notes.push(format!("this user lacks {} and cannot open {}", capability.name(), end.name));
        }
    }
    if out.json {
        let mut value = json!({ "schema": SCHEMA, "event": "check", "notes": notes });
        value["plan"] = json!(plan);
        out.value(&value);
    } else {
        notes.iter().for_each(|note| out.note(&format!("note: {note}")));
        out.data(&format!("{} can be: {}nothing was changed\n", plan.name, plan.text()));
    }
    Ok(())
}

/// Returns the configuration of the gateway that a command line or a table of a file describes; `spelling` is how
/// messages write the options of either.
pub(crate) fn config(args: &Gateway, spelling: Spelling) -> Config {
    Config {
        // clap requires both interfaces unless help was asked for, and help never gets here.
        from: args.from.clone().unwrap_or_default(),
        to: args.to.clone().unwrap_or_default(),
        more: args.more.clone(),
        no_lro: args.no_lro,
        profile: args.profile,
        ack_aggregation: args.ack_aggregation,
        max_acks: args.max_acks,
        page_kib: args.page.strip_suffix('k').and_then(|kib| kib.parse().ok()),
        hold_us: args.hold_us,
        max_bytes: args.max_bytes,
        max_packets: args.max_packets,
        tap_mtu: args.tap_mtu,
        fragment: args.fragment,
        route: args.route,
        accept_ra: args.accept_ra,
        nat: args.nat,
        forward: args.forward.clone(),
        workers: args.workers,
        name: args.name.clone(),
        is_weak: args.weak_sandbox,
        spelling,
        set: args.set.clone(),
    }
}
