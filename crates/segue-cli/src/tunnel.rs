//! `segue tunnel`: the command line of tunnels.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_host::capability::has_net_admin;
use segue_host::names::{self, Names};
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_service::daemon::{self, Start};
use segue_service::diagnose::{self, Purpose};
use segue_service::tunnel::daemon::free;
use segue_service::tunnel::group::{self, Group};
use segue_service::tunnel::plan::Plan;
use segue_service::tunnel::{show, start, traces};

use crate::args::Tunnel;
use crate::out::Out;
use segue_grammar::parse::{self, Parsed, Value};
use segue_grammar::plan::plan_with;
use segue_grammar::tunnel;

/// Longest time for the lookup of several names.
const LOOKUP: Duration = Duration::from_secs(30);

/// Runs `segue tunnel`.
pub(crate) fn run(args: &Tunnel, out: &Out) -> Result<(), Error> {
    let watched = daemon::follow(args.supervised, args.successor)?;
    let parsed = parse::parse_each("segue tunnel", tunnel::KEYWORDS, &args.words)?;
    let plans = plans(&parsed, args)?;
    if let Some(clash) = group::clash(&plans) {
        let parsed = &parsed[clash.at];
        let at = parsed.place_of(clash.word).unwrap_or(parsed.end());
        return Err(parsed.error_at(Kind::Conflict, clash.message, at, clash.note));
    }
    if let Some(path) = &args.trace {
        check_trace(path, args.force || args.supervised.is_some(), out)?;
        if args.supervised.is_some() && !args.check {
            traces::keep(path).unwrap_or_else(|error| {
                out.warn(&format!("warning: {} is overwritten, since it cannot be renamed: {error}", path.display()));
            });
        }
    }
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for routes", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    let group = Group::resolve(plans, &mut netlink)?;
    if args.check {
        return check(&group, &mut netlink, out);
    }
    daemon::up(&group, netlink, Start { watched, is_weak: args.weak_sandbox }, &out.staying())
}

/// Returns the plans of the tunnels. Where the remotes have several names, these are looked up side by side.
fn plans(parsed: &[Parsed], args: &Tunnel) -> Result<Vec<Plan>, Error> {
    let host = |parsed: &Parsed| match parsed.value_of("remote") {
        Some(Value::Host(name)) => Some(name.clone()),
        _ => None,
    };
    let hosts: BTreeSet<String> = parsed.iter().filter_map(host).collect();
    // A single one needs no thread.
    let names = (hosts.len() > 1).then(|| Names::look_up(hosts, LOOKUP));
    let resolver = |host: &str| match &names {
        Some(names) => names.addresses(host, ""),
        None => names::addresses(host),
    };
    parsed.iter().map(|parsed| plan_with(parsed, args.capture(), &args.set, &resolver)).collect()
}

/// Refuses to overwrite a capture file that is not empty, and to write a capture to the stream of other output. An
/// instance of `segue run` keeps its own ([`traces::keep`]).
fn check_trace(path: &Path, may_overwrite: bool, out: &Out) -> Result<(), Error> {
    if path == Path::new("-") && out.json {
        return Err(Error::new(Kind::Conflict, "`--trace -` does not go with `-j`", "--trace FILE.pcap")
            .why("both write to stdout"));
    }
    if traces::is_full(path) && !may_overwrite {
        let name = path.display();
        return Err(Error::new(Kind::InUse, format!("{name} exists"), "another name, or -f to overwrite it")
            .why("the capture would replace what is in it"));
    }
    Ok(())
}

/// Prints the plan of the tunnels for `--check`, or returns the obstacle to their start. Changes nothing.
fn check(group: &Group, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    let ready = group.first();
    let dev = &ready.plan.dev;
    if client::one(dev).is_ok() {
        return Err(Error::new(Kind::InUse, format!("{dev} is already running"), format!("segue stat {dev}"))
            .why("its control socket answers")
            .names_instance());
    }
    if let Some(directory) = ready.plan.trace.as_deref().and_then(Path::parent)
        && !directory.as_os_str().is_empty()
        && !directory.is_dir()
    {
        return Err(Error::new(
            Kind::System,
            format!("cannot write into {}", directory.display()),
            "another path: --trace FILE.pcap",
        )
        .why("there is no such directory"));
    }
    start::knobs(group.plans(), &ready.plan.set)?;
    for plan in group.plans() {
        match &plan.guest {
            Some(guest) => guest.check()?,
            None => free(&plan.dev, netlink)?,
        }
    }
    if ready.plan.has_udp() {
        let listen = ready.listens();
        UdpSocket::bind(listen).map_err(|error| diagnose::bind(listen, &error))?;
    }
    let notes = group.notes();
    let refusal = refusal(group, netlink);
    if out.json {
        // The error object is the only value then.
        if refusal.is_none() {
            out.value(&show::plan_json(group, &notes));
        }
    } else {
        notes.iter().for_each(|note| out.note(&format!("note: {note}")));
        out.data(&(show::plan_text(group) + "nothing was changed\n"));
    }
    refusal.map_or(Ok(()), Err)
}

/// Returns why this user cannot start the tunnels, if that is known without trying.
fn refusal(group: &Group, netlink: &mut Netlink) -> Option<Error> {
    let dev = &group.plans().find(|plan| plan.guest.is_none())?.dev;
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open(diagnose::TUN) {
        return Some(diagnose::tun_open(Purpose::Tunnel, dev, &error));
    }
    if sys::capabilities().is_ok_and(has_net_admin) {
        return None;
    }
    // An interface that was made beforehand for this user needs no rights.
    let mut is_missing = |dev: &str| !netlink.link_named(dev).is_ok_and(|link| link.is_some_and(|link| link.tun));
    let mut interfaces = group.plans().filter(|plan| plan.guest.is_none()).map(|plan| plan.dev.as_str());
    let missing = interfaces.find(|dev| is_missing(dev))?.to_owned();
    Some(diagnose::tun_attach(Purpose::Tunnel, &missing, &std::io::Error::from_raw_os_error(libc::EPERM)))
}
