//! `segue-cni`: a CNI plugin (specification 1.1) that attaches a pod by a veth pair to the host of a segue tunnel. The
//! host routes: the pod's trains pass its own stack whole, and reach the tunnel's TUN whole.
//!
//! Addresses come from an IPAM plugin, such as host-local, within the subnet that flannel's `subnet.env` names.
//!
//! # Lifecycle
//! The runtime starts it for each call, with variables of the environment ([`request`]) and the network's configuration
//! on stdin. It delegates to the IPAM plugin ([`ipam`]), changes links ([`link`]), prints one JSON document and ends.
//!
//! # Promises
//! - An ADD that fails leaves no link and no reservation of an address.
//! - DEL can be repeated, and does not fail because something is gone already. What one could not remove, the next one
//!   removes; the address of a pod that is still attached stays reserved.
//! - Only links of this plugin are removed: their alias says which network, container and interface they are of.
//!
//! # Limits IPv4 and one interface per call. No port mapping, bandwidth limits or masquerading: chain the plugins for
//! these.

mod attach;
mod document;
mod ipam;
mod link;
mod request;

use std::io::Read;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::document::{CniError, VERSIONS};
use crate::request::Request;

fn main() -> ExitCode {
    let mut input = String::new();
    // What cannot be read shows as a wrong document.
    let _ = std::io::stdin().take(1 << 20).read_to_string(&mut input);
    match run(&input) {
        Ok(Some(answer)) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", error.json());
            ExitCode::FAILURE
        }
    }
}

fn run(input: &str) -> Result<Option<Value>, CniError> {
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        let asked = serde_json::from_str::<Value>(input).unwrap_or_default();
        let version = VERSIONS.into_iter().find(|version| asked["cniVersion"] == *version);
        let version = version.unwrap_or(VERSIONS[VERSIONS.len() - 1]);
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
    }
    let request = Request::read(&command, input)?;
    match command.as_str() {
        "ADD" => attach::add(&request).map(Some),
        "DEL" => attach::del(&request).map(|()| None),
        "CHECK" => attach::check(&request).map(|()| None),
        "STATUS" => attach::status(&request).map(|()| None),
        "GC" => attach::gc(&request).map(|()| None),
        other => Err(CniError::environment(format!("CNI_COMMAND is `{}`", segue_control::error::printable(other)))),
    }
}
