//! The fuzz targets as plain functions: libFuzzer calls them through `fuzz_targets/`, and a test replays the committed
//! corpus through them on every run.
//!
//! A target takes any bytes, and panics if the engine breaks a contract on them, or takes more memory or time than the
//! input may. To add one: a file here, a line in [`TARGETS`], a file in `fuzz_targets/` with its `[[bin]]`, seeds in
//! `corpus/NAME/`, and its trust boundary in the table of `tools/trust.d/06-coverage`.

mod adapter;
mod bridge;
mod capture;
mod checksum;
mod cni;
mod configuration;
mod control;
mod decap;
mod etcd;
mod events;
mod gro;
mod gso;
mod hook;
mod input;
mod nat;
mod neighbour;
mod netlink;
mod overlay;
mod parse;
mod peers;
mod pipelines;
mod readers;
mod registers;
mod request;
mod resources;
mod ring;
mod sys;
mod tunnelled;
mod usbip;
mod vhost;
mod vnet;

// The contracts are shared with the tests of the engine.
#[path = "../../crates/segue-engine-tests/tests/contracts/decap.rs"]
mod decap_judge;
#[path = "../../crates/segue-engine-tests/tests/contracts/properties.rs"]
#[allow(dead_code, reason = "the tests ask for more than the targets")]
mod properties;
#[path = "../../crates/segue-engine-tests/tests/contracts/streams.rs"]
#[allow(dead_code, reason = "the targets make no streams, they only share the ports")]
mod streams;

#[path = "../../crates/segue-engine-tests/tests/contracts/paths.rs"]
mod paths;
#[path = "../../crates/segue-engine-tests/tests/contracts/terminating.rs"]
mod terminating;

// Ports in memory, and an adapter in memory, as the tests have them.
#[path = "../../crates/segue-lan78xx-tests/tests/support/mod.rs"]
mod adapter_support;
#[path = "../../crates/segue-datapath/tests/memory/mod.rs"]
mod memory;

pub use adapter::framing;
pub use bridge::bridge_frames;
pub use capture::{capture, compressed, transform, undo_notes};
pub use cni::cni;
pub use configuration::configuration;
pub use control::{control, handover};
pub use etcd::etcd;
pub use events::event;
pub use gro::gro;
pub use gso::gso;
pub use hook::hook;
pub use nat::{icmp_error, nat};
pub use netlink::netlink;
pub use overlay::overlay;
pub use peers::peers;
pub use pipelines::route;
pub use readers::{Cost, Lengths, READERS, Reading};
pub use registers::registers;
pub use request::request;
pub use ring::ring;
pub use tunnelled::tunnelled;
pub use usbip::{usbip_client, usbip_server};
pub use vhost::vhost;
pub use vnet::vnet;

/// Bounds the resources of targets that only call the engine: the bytes that each may hold for the shortest input.
macro_rules! bounded {
    ($($name:ident: $free:expr;)*) => {
        $(
            #[doc = concat!("Runs the target of the module `", stringify!($name), "` within its bounds.")]
            pub fn $name(data: &[u8]) {
                resources::bounded(data.len(), $free, || $name::$name(data));
            }
        )*
    };
}

bounded! {
    checksum: 64 << 10;
    // Tunnels of every kind.
    decap: 256 << 10;
    neighbour: 64 << 10;
    parse: 64 << 10;
}

/// Function of a fuzz target.
pub type Target = fn(&[u8]);

/// All targets, each by the name of its source file and corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("bridge", bridge_frames),
    ("capture", capture),
    ("checksum", checksum),
    ("cni", cni),
    ("compressed", compressed),
    ("configuration", configuration),
    ("control", control),
    ("decap", decap),
    ("etcd", etcd),
    ("event", event),
    ("framing", framing),
    ("gro", gro),
    ("gso", gso),
    ("handover", handover),
    ("hook", hook),
    ("icmp_error", icmp_error),
    ("nat", nat),
    ("neighbour", neighbour),
    ("netlink", netlink),
    ("overlay", overlay),
    ("parse", parse),
    ("peers", peers),
    ("registers", registers),
    ("request", request),
    ("ring", ring),
    ("route", route),
    ("transform", transform),
    ("tunnelled", tunnelled),
    ("undo_notes", undo_notes),
    ("usbip_client", usbip_client),
    ("usbip_server", usbip_server),
    ("vhost", vhost),
    ("vnet", vnet),
];
