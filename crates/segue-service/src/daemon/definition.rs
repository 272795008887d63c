//! The interface between kinds of instances and their common lifecycle.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use segue_control::error::Error;
use segue_control::model::{Complaint, Instance, Side};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::router::FeedSender;
use segue_host::netlink::Netlink;
use serde_json::Value;

use super::kernel::{ChecksumDrops, Forwarding, QueueDrops};
use super::running::Offloads;
use crate::fastpath::Fastpath;
use crate::fault::Vitals;
use crate::handover::Ports;
use crate::health::Sources;
use crate::heartbeat::Limits;
use crate::peers::Keeper;
use crate::report::Report;
use crate::sandbox::{Helper, Sandbox};

/// Usage of tunnels and gateways with another name, for messages.
pub const NAMING: &str = "segue tunnel dev NAME, segue gateway --name NAME";

/// A kind of long-running instance: tunnels, a gateway, an adapter or a model.
pub trait Daemon {
    /// Returns the name for `segue stat`, which is that of the control socket.
    fn name(&self) -> &str;
    /// Returns the kind of the instance as one word.
    fn kind(&self) -> &'static str;
    /// Returns the schema id of the JSON that the command prints, one object for each event.
    fn schema(&self) -> &'static str;
    /// Returns notes for the user, shown before the start.
    fn notes(&self) -> Vec<String>;
    /// Returns the usage of the command with another name, for messages when the name is in use.
    fn naming(&self) -> &'static str {
        NAMING
    }
    /// Returns the ports with their names in the pipeline.
    fn ports(&self) -> Vec<(String, Side)>;
    /// Returns the knobs at the start; empty where nothing can be changed at run time.
    fn knobs(&self) -> Result<Knobs, Error> {
        Ok(Knobs::default())
    }
    /// Returns the number of threads that move packets.
    fn workers(&self) -> u16 {
        1
    }
    /// Returns the ioctls that the devices need while packets are forwarded, in addition to those of TUN.
    fn ioctls(&self) -> &'static [u64] {
        &[]
    }
    /// Returns the times without progress after which the supervisor ends the instance.
    fn limits(&self) -> Limits {
        Limits::default()
    }
    /// Opens and sets up all devices, with full privileges. On success the instance is ready to move packets.
    fn open(&self, netlink: &mut Netlink, succession: &mut Succession, out: &dyn Report) -> Result<Opened, Error>;
    /// Returns the human-readable lines that report that the instance is up.
    fn up_text(&self, offloads: &Offloads, sandbox: &Sandbox, fastpath: Option<&Fastpath>) -> String;
    /// Returns the keys of the up event in addition to those of all instances.
    fn up_json(&self) -> Value;
}

/// The role of an instance in a handover: the ports it takes over, and whether it keeps its own for a successor.
#[derive(Debug, Default)]
pub struct Succession {
    /// Open ports that are already set up.
    pub inherited: Ports,
    /// Whether the ports are kept for a successor.
    pub has_successors: bool,
    /// Whether the instance runs without a part of the sandbox that the kernel lacks.
    pub is_weak: bool,
}

/// A function that returns the problems of an instance other than those of its offloads.
pub type Complaints = Arc<dyn Fn(&Instance) -> Vec<Complaint> + Send + Sync>;

/// A function that assembles the pipeline, and starts the threads that feed it.
pub type Assemble = Box<dyn FnOnce(&Vitals) -> Result<Box<dyn Pipeline>, Error>>;

/// A function that assembles the pipeline of a further worker, in its thread.
pub type AssembleMore = Box<dyn FnOnce(&Vitals) -> Result<Box<dyn Pipeline>, Error> + Send>;

/// Open devices that are not in use yet.
pub struct Opened {
    /// The offloads of the kernel.
    pub offloads: Offloads,
    /// The channel for requests of the mappings of a NAT, where there is one.
    pub sender: Option<FeedSender>,
    /// The counter of datagrams that the kernel drops before its sockets, where the kernel has it.
    pub checksum_drops: Option<ChecksumDrops>,
    /// The counters of packets that the kernel drops at the queues of interfaces.
    pub queue_drops: Vec<QueueDrops>,
    /// The kernel's forwarding settings, for a router.
    pub forwarding: Option<Forwarding>,
    /// The claims of a gateway to its interfaces, which no other instance may have at the same time.
    pub claims: Vec<UnixListener>,
    /// The in-kernel path of a tunnel.
    pub fastpath: Option<Fastpath>,
    /// The peer table of a tunnel that has one.
    pub peers: Option<Arc<Keeper>>,
    /// The processes that open devices for this one.
    pub helpers: Vec<Helper>,
    /// The ports for a successor.
    pub ports: Ports,
    /// The problems of the devices, where they can report any.
    pub complaints: Option<Complaints>,
    /// The sources of evidence on the health of tunnels.
    pub(crate) health: Option<Sources>,
    /// Function that interrupts a wait of the packet loop, where it may wait for something other than its descriptors.
    pub hurry: Option<Box<dyn Fn() + Send>>,
    /// Function that assembles the pipeline of the first worker, inside of the sandbox.
    pub assemble: Assemble,
    /// The functions that assemble the pipelines of the other workers.
    pub more: Vec<AssembleMore>,
}

impl Opened {
    /// Creates a value with the parts common to all instances.
    pub fn new(offloads: Offloads, assemble: Assemble) -> Opened {
        Opened {
            offloads,
            sender: None,
            checksum_drops: None,
            queue_drops: Vec::new(),
            forwarding: None,
            claims: Vec::new(),
            fastpath: None,
            peers: None,
            helpers: Vec::new(),
            ports: Ports::default(),
            complaints: None,
            health: None,
            hurry: None,
            assemble,
            more: Vec::new(),
        }
    }
}
