//! Tests of the built program `segue` as users run it: a black box between real network stacks.
//!
//! Nothing here uses a crate of the engine. The hosts, links and the faulty relay are [`segue_lab`]'s; the judges are
//! this crate's own naive parser, the kernel's stacks at both ends, tshark, and a guest with another kernel.
//!
//! - [`Ground`]: what a test stands on: the program, two hosts and a link, or a reason to skip.
//! - [`Shape`], [`Tunnel`], [`Pair`]: a tunnel's command line, one end, both ends.
//! - [`routed`]: a client, a router and a server.
//! - [`Stat`]: counters of a running instance.
//! - [`traffic`]: files by TCP, datagrams, pings, each compared byte for byte.
//! - [`capture`]: outbound frames at a host, and tshark's opinion of them.
//! - [`wire`]: a parser of tunnelled frames and a builder of wrong ones.
//! - [`guest`]: where the guest is.
//! - [`kernel`]: a kernel's own GRO.
//! - [`sys`]: socket options and raw sockets that the standard library lacks.

pub mod capture;
mod ground;
pub mod guest;
pub mod kernel;
mod random;
pub mod routed;
mod stat;
pub mod sys;
pub mod traffic;
mod tunnel;
pub mod wire;

pub use ground::{Ground, find_program};
pub use random::Random;
pub use segue_lab::skip;
pub use stat::Stat;
pub use tunnel::{Carrier, Inside, Pair, Shape, Tunnel};

/// Expands to the path of the enclosing test function, for [`Ground::new`] and [`skip`].
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here).trim_end_matches("::here")
    }};
}
