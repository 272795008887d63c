//! What stays and moves packets: tunnels, gateways and adapters as processes that give up their rights.

pub mod adapter;
pub mod apply;
pub mod control_server;
pub mod daemon;
pub mod diagnose;
pub mod gateway;
pub mod handover;
pub mod profile;
pub mod report;
pub mod router_feed;
pub mod sandbox;
pub mod supervise;
pub mod tap;
pub mod tunnel;
