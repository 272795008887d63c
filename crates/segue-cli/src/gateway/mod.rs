//! `segue gateway`: a bump in the wire between two interfaces, one of which may be a TAP that is made for it.

pub(crate) mod claim;
pub(crate) mod plan;
pub(crate) mod route;
pub(crate) mod start;

use segue_control::error::Error;
use segue_control::model::Side;
use segue_control::units;
use segue_datapath::knobs::Knobs;
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_service::daemon::running::Offloads;
use segue_service::daemon::{self, Daemon, Opened, Succession};
use segue_service::profile;
use segue_service::report::Report;
use segue_service::sandbox::Sandbox;
use serde_json::{Value, json};

use self::plan::{Plan, What};
use crate::args::Gateway;
use crate::out::Out;

/// The id of the JSON that `segue gateway -j` prints, one object for each event.
const SCHEMA: &str = "segue.gateway/1";

/// Runs the command.
pub(crate) fn run(args: &Gateway, out: &Out) -> Result<(), Error> {
    let watched = daemon::follow(args.supervised, false)?;
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    let plan = plan::plan(args, &mut netlink)?;
    if args.check { check(&plan, &mut netlink, out) } else { daemon::up(&plan, &mut netlink, watched, &out.staying()) }
}

/// `--check`: what would stop the gateway, and what it would be. Changes nothing.
fn check(plan: &Plan, netlink: &mut Netlink, out: &Out) -> Result<(), Error> {
    start::knobs(plan, &plan.set)?;
    start::check(plan, netlink)?;
    let mut notes = plan.notes.clone();
    let caps = sys::capabilities().unwrap_or(0);
    for end in [&plan.from, &plan.to] {
        let needed = match &end.what {
            What::Interface => &[sys::Capability::NetRaw][..],
            What::Tap { netns: None } => &[sys::Capability::NetAdmin],
            What::Tap { netns: Some(_) } => &[sys::Capability::NetAdmin, sys::Capability::SysAdmin],
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

impl Plan {
    /// The ends on the first line, then one line for each and one for what happens between them.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} <-> {}\n", self.from.name, self.to.name);
        for end in [&self.from, &self.to] {
            text.push_str(&format!("  {:<15} mtu {}, {}\n", end.name, end.mtu, end.place()));
        }
        let hold = if self.hold_us > 0 { format!(", held up to {} us", self.hold_us) } else { String::new() };
        let profile = profile::name(self.profile);
        let lro = match self.lro {
            false => "off".to_owned(),
            true => format!(
                "trains to {} or {} packets, profile {profile}{hold}",
                units::bytes(u64::from(self.max_bytes)),
                self.max_packets
            ),
        };
        text.push_str(&format!("  {:<15} {lro}\n", "lro"));
        let memory = match self.page_bytes {
            0 => "one buffer for each frame".to_owned(),
            bytes => format!("pages of {} KiB", bytes >> 10),
        };
        text.push_str(&format!("  {:<15} {memory}\n", "memory"));
        if self.fragment {
            let mtu = self.from.mtu.min(self.to.mtu);
            text.push_str(&format!("  {:<15} packets above {mtu}, as their sender would\n", "fragment"));
        }
        if self.route {
            text.push_str(&format!("  {:<15} by the kernel's routes\n", "route"));
        }
        if let Some(nat) = &self.nat {
            text.push_str(&format!("  {:<15} IPv4 leaves {} from {}\n", "nat", self.to.name, nat.address));
            nat.forwards.iter().for_each(|forward| text.push_str(&format!("  {:<15} {forward}\n", "forward")));
        }
        if let Some(most) = self.max_acks {
            text.push_str(&format!("  {:<15} up to {most} become one\n", "pure ACKs"));
        }
        text
    }
}

impl Daemon for Plan {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "gateway"
    }

    fn schema(&self) -> &'static str {
        SCHEMA
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn ports(&self) -> Vec<(String, Side)> {
        vec![(self.from.name.clone(), Side::Outside), (self.to.name.clone(), Side::Inside)]
    }

    fn knobs(&self) -> Result<Knobs, Error> {
        start::knobs(self, &self.set)
    }

    fn open(&self, netlink: &mut Netlink, _: &mut Succession, out: &dyn Report) -> Result<Opened, Error> {
        start::open(self, netlink, out)
    }

    fn up_text(&self, _offloads: &Offloads, sandbox: &Sandbox) -> String {
        format!(
            "{} is up: {}  {:<15} 1, {}\nWatch: segue stat {}      Stop: Ctrl-C\n",
            self.name,
            self.text(),
            "workers",
            sandbox.text(),
            self.name
        )
    }

    fn up_json(&self) -> Value {
        json!({ "plan": self })
    }
}
