//! What a command that stays has to say and to do.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use segue_control::error::Error;
use segue_control::model::{Complaint, Instance, Side};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::FeedSender;
use segue_host::netlink::Netlink;
use serde_json::Value;

use super::kernel::{ChecksumDrops, Forwarding};
use super::running::Offloads;
use crate::handover::Ports;
use crate::report::Report;
use crate::sandbox::Sandbox;

/// How tunnels and gateways are given another name.
pub const NAMING: &str = "segue tunnel dev NAME, segue gateway --name NAME";

/// A command that stays.
pub trait Daemon {
    /// Its name for `segue stat`, and that of its control socket.
    fn name(&self) -> &str;
    /// What it is, in one word.
    fn kind(&self) -> &'static str;
    /// The id of the JSON that it prints, one object for each event.
    fn schema(&self) -> &'static str;
    /// Things to know before it starts.
    fn notes(&self) -> Vec<String>;
    /// How its command is given another name, for when the one that it has is taken.
    fn naming(&self) -> &'static str {
        NAMING
    }
    /// Its ports as the pipeline names them.
    fn ports(&self) -> Vec<(String, Side)>;
    /// Its settings as they are at the start: none where nothing can be changed while it runs.
    fn knobs(&self) -> Result<Knobs, Error> {
        Ok(Knobs::default())
    }
    /// The ioctls that its devices need while packets move, besides TUN's.
    fn ioctls(&self) -> &'static [u64] {
        &[]
    }
    /// Opens and sets up all that it needs, with all rights. On success everything is ready to go.
    fn open(&self, netlink: &mut Netlink, succession: &mut Succession, out: &dyn Report) -> Result<Opened, Error>;
    /// The lines when it is up.
    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox) -> String;
    /// What the event has to say when it is up, beside what all have.
    fn up_json(&self) -> Value;
}

/// What one instance has of another one whose place it takes, and whether one may take its own.
#[derive(Debug, Default)]
pub struct Succession {
    /// Ports that are open and set up.
    pub inherited: Ports,
    /// Whether its ports are to be kept for another one.
    pub has_successors: bool,
}

/// What an instance has to say of its health, besides its offloads.
pub type Complaints = Arc<dyn Fn(&Instance) -> Vec<Complaint> + Send + Sync>;

/// Devices that are open and not yet used.
pub struct Opened {
    /// What the kernel does for them.
    pub offloads: Offloads,
    /// How to ask for the mappings of a NAT, where there is one.
    pub sender: Option<FeedSender>,
    /// What the kernel drops before its sockets, where it says so.
    pub checksum_drops: Option<ChecksumDrops>,
    /// Of a router: whether the kernel forwards as well.
    pub forwarding: Option<Forwarding>,
    /// What no other instance may have at the same time.
    pub claim: Option<UnixListener>,
    /// What it leaves to a successor.
    pub ports: Ports,
    /// What is wrong with it, where it can say so.
    pub complaints: Option<Complaints>,
    /// Ends what the loop waits for, where it may wait for something else than its descriptors.
    pub hurry: Option<Box<dyn Fn() + Send>>,
    /// Puts them together, inside the sandbox.
    pub assemble: Box<dyn FnOnce() -> Result<Box<dyn Pipeline>, Error>>,
}

impl Opened {
    /// What every command has.
    pub fn new(offloads: Offloads, assemble: Box<dyn FnOnce() -> Result<Box<dyn Pipeline>, Error>>) -> Opened {
        Opened {
            offloads,
            sender: None,
            checksum_drops: None,
            forwarding: None,
            claim: None,
            ports: Ports::default(),
            complaints: None,
            hurry: None,
            assemble,
        }
    }
}
