//! A gateway as a long-running command.

use segue_control::error::Error;
use segue_control::model::Side;
use segue_control::units;
use segue_datapath::knobs::Knobs;
use segue_host::netlink::Netlink;
use serde_json::{Value, json};

use super::endpoint::{Endpoint, EndpointKind};
use super::plan::Plan;
use super::start;
use crate::daemon::running::Offloads;
use crate::daemon::{Daemon, Opened, Succession};
use crate::fastpath::Fastpath;
use crate::profile;
use crate::report::Report;
use crate::sandbox::Sandbox;

/// The schema id of the JSON that `segue gateway -j` prints, one object for each event.
pub const SCHEMA: &str = "segue.gateway/1";

impl Plan {
    /// Returns the plan as text: both ports on the first line, then one line for each port and for each setting.
    pub fn text(&self) -> String {
        let names: Vec<&str> = self.ends().map(|end| end.port.as_str()).collect();
        let mut text = format!("{}\n", names.join(" <-> "));
        for end in self.ends() {
            text.push_str(&format!("  {:<15} mtu {}, {}\n", end.port, end.mtu, end.place()));
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
            let mtu = self.ends().map(|end| end.mtu).min().unwrap_or(0);
            text.push_str(&format!("  {:<15} packets above {mtu}, as their sender would\n", "fragment"));
        }
        if self.route {
            let too = if self.accept_ra { ", those of router advertisements included" } else { "" };
            text.push_str(&format!("  {:<15} by the kernel's routes{too}\n", "route"));
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
        if !self.is_bridge() {
            return vec![(self.from.port.clone(), Side::Outside), (self.to.port.clone(), Side::Inside)];
        }
        // The outside of a bridge is what is beyond this host: its interfaces, or its guests where it has none.
        let is_interface = |end: &Endpoint| matches!(end.what, EndpointKind::Interface);
        let has_interface = self.ends().any(is_interface);
        let is_outside = |end: &Endpoint| match end.what {
            EndpointKind::Interface => true,
            EndpointKind::Vhost(_) => !has_interface,
            EndpointKind::Tap { .. } => false,
        };
        let side = |end| if is_outside(end) { Side::Outside } else { Side::Inside };
        self.ends().map(|end| (end.port.clone(), side(end))).collect()
    }

    fn workers(&self) -> u16 {
        self.workers
    }

    fn knobs(&self) -> Result<Knobs, Error> {
        start::knobs(self, &self.set)
    }

    fn open(&self, netlink: &mut Netlink, _: &mut Succession, out: &dyn Report) -> Result<Opened, Error> {
        start::open(self, netlink, out)
    }

    fn up_text(&self, _offloads: &Offloads, sandbox: &Sandbox, _fastpath: Option<&Fastpath>) -> String {
        format!(
            "{} is up: {}  {:<15} {}, {}\nWatch: segue stat {}      Stop: Ctrl-C\n",
            self.name,
            self.text(),
            "workers",
            self.workers,
            sandbox.text(),
            self.name
        )
    }

    fn up_json(&self) -> Value {
        json!({ "plan": self })
    }
}
