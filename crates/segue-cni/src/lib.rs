//! `segue-cni`: a CNI plugin (specification 1.1) that attaches a pod by a veth pair to the host of a segue tunnel. The
//! host routes: the pod's trains pass its own stack whole, and reach the tunnel's TUN whole.
//!
//! Addresses come from an IPAM plugin, such as host-local, within the subnet that flannel's `subnet.env` names.
//!
//! # Lifecycle
//! The runtime starts it for each call, with variables of the environment ([`request`]) and the network's configuration
//! on stdin. It delegates to the IPAM plugin (`ipam`), changes links (`link`), prints one JSON document and ends.
//!
//! # Promises
//! - An ADD that fails leaves no link and no reservation of an address.
//! - DEL can be repeated, and does not fail because something is gone already. What one could not remove, the next one
//!   removes; the address of a pod that is still attached stays reserved.
//! - Only links of this plugin are removed: their alias says which network, container and interface they are of.
//!
//! # Limits IPv4 and one interface per call. No port mapping, bandwidth limits or masquerading: chain the plugins for
//! these.

pub mod attach;
pub mod document;
mod ipam;
mod link;
pub mod request;
