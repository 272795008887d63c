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
        if plan.workers > 1 && ![Capability::Bpf, Capability::SysAdmin].iter().any(|capability| capability.is_in(caps))
        {
            let (lacks, dev) = (Capability::Bpf.name(), &end.name);
            notes.push(match &end.what {
                EndpointKind::Tap { .. } => format!("this user lacks {lacks} and cannot spread {dev} over workers"),
                _ => format!("this user lacks {lacks}, so that fragments on {dev} may be overtaken by whole datagrams"),
            });
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;
    use segue_service::daemon::Daemon;

    use super::*;
    use crate::args::{Cli, Command};

    fn planned(line: &str) -> Plan {
        let words = ["segue", "gateway"].into_iter().chain(line.split(' '));
        let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let Some(Command::Gateway(args)) = cli.command else { panic!("{line} is no gateway") };
        let mut netlink = Netlink::open().expect("a connection to the kernel");
        plan::plan(&config(&args, Spelling::Option), &mut netlink)
            .unwrap_or_else(|error| panic!("{line}: {}", error.message))
    }

    #[test]
    fn no_two_ports_and_no_two_knobs_of_a_gateway_have_the_same_name() {
        for (line, names) in [
            ("tap:t0 tap:t0@blue --no-lro", ["t0", "t0@blue"]),
            ("tap:t0@red tap:t0 --no-lro", ["t0@red", "t0"]),
            ("tap:t0@red tap:t0@/run/netns/blue --no-lro", ["t0@red", "t0@/run/netns/blue"]),
            ("tap:vm1@red vhost:/run/vm1.sock --no-lro", ["vm1@red", "vm1"]),
            ("tap:t0@red tap:t1@red --no-lro", ["t0", "t1"]),
        ] {
            let plan = planned(line);
            let ports: Vec<String> = plan.ports().into_iter().map(|(name, _)| name).collect();
            assert_eq!(ports, names, "{line}");
            let knobs = start::knobs(&plan, &[]).expect("knobs");
            let mut seen = BTreeSet::new();
            for (knob, value) in knobs.iter() {
                assert!(seen.insert(knob.name.clone()), "{line}: {} is there twice", knob.name);
                assert!(value == 0 || !knob.name.ends_with(".enable_gro"), "{line}: {} is {value}", knob.name);
            }
            for name in names {
                assert!(seen.contains(&format!("net.gro.dev.{name}.enable_gro")), "{line}: {seen:?}");
            }
        }
    }
}
