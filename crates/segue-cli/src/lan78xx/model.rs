//! `segue lan78xx model`: the model of an adapter, exported over USB/IP, with a TAP as its cable.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use segue_control::error::{Error, Kind, printable};
use segue_host::address::{self, HostPort};
use segue_host::netlink::Netlink;
use segue_lan78xx::usb::usbip::PORT;
use segue_service::adapter::model::Plan;
use segue_service::daemon::{self, Start};
use segue_service::tap::Tap;

use super::args;
use super::chip::config;
use crate::out::Out;

/// Runs `segue lan78xx model`.
pub(super) fn run(args: &args::Model, out: &Out) -> Result<(), Error> {
    let config = config(&args.chip)?;
    let tap = args.wire.as_ref().map(|wire| Tap::parse(wire, args.wire_mtu)).transpose()?;
    let address = served_address(&args.usbip)?;
    let report = out.staying();
    let plan = Plan::new(args.name.clone(), address, config, tap, args.commands, Arc::clone(&report));
    let netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    daemon::up(&plan, netlink, Start { watched: None, is_weak: args.weak_sandbox }, &report)
}

/// Parses the address to serve: `ADDR:PORT`, or one of the two with the default of the other.
fn served_address(text: &str) -> Result<SocketAddr, Error> {
    if let Some(address) = address::parse(text, PORT) {
        return Ok(address);
    }
    let wrong = |why: &str| {
        let text = format!("`{}` is not an address to serve", printable(text));
        Error::new(Kind::BadValue, text, "--usbip 127.0.0.1:3240\n--usbip [::1]:3240").why(why)
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number(text) {
        let port = text.parse().map_err(|_| wrong("a port is at most 65535"))?;
        return Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    }
    let parts = HostPort::split(text).ok().filter(|parts| !parts.host.is_empty() && !parts.host.contains(':'));
    let Some((host, port)) = parts.and_then(|parts| Some((parts.host, parts.port_or(PORT)?))) else {
        return Err(wrong("it is ADDR:PORT, ADDR or PORT, with an IPv6 address in brackets"));
    };
    (host, port)
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| wrong("the name has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_answer_is_an_address_a_port_or_both() {
        for (text, at) in [
            ("127.0.0.1:3240", "127.0.0.1:3240"),
            ("198.18.0.1", "198.18.0.1:3240"),
            ("4000", "127.0.0.1:4000"),
            ("[2001:db8::1]:5", "[2001:db8::1]:5"),
            ("2001:db8::1", "[2001:db8::1]:3240"),
            ("0.0.0.0:1", "0.0.0.0:1"),
        ] {
            assert_eq!(served_address(text).unwrap().to_string(), at);
        }
        let local = served_address("localhost:3240").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 3240);
        for bad in ["", "70000", "127.0.0.1:70000", "127.0.0.1:", ":3240", "1:2:3:4", "[::1", "a b"] {
            assert!(served_address(bad).is_err(), "{bad}");
        }
    }
}
