//! `segue lan78xx list`: the adapters of this machine and of a USB/IP server.

use std::net::SocketAddrV6;

use segue_control::error::{Error, Kind, printable};
use segue_host::address::{BracketFault, HostPort};
use segue_lan78xx::regs::Chip;
use segue_lan78xx::usb::usbip::{self, PORT};
use segue_lan78xx::usb::{Speed, usbfs};
use segue_service::adapter::usb::import_error;
use serde_json::json;

use super::args;
use super::schema::{LIST, List, Listed};
use crate::out::Out;

/// Runs `segue lan78xx list`.
pub(super) fn run(args: &args::List, out: &Out) -> Result<(), Error> {
    let mut adapters = Vec::new();
    let here = usbfs::list().map_err(|error| {
        Error::system("cannot look for adapters", &error, "segue doctor").why("/sys/bus/usb/devices could not be read")
    })?;
    for adapter in here {
        let speed = match adapter.mbit {
            ..=12 => Speed::Full,
            13..=480 => Speed::High,
            _ => Speed::Super,
        };
        adapters.push((adapter.port, adapter.chip, Some(speed), adapter.driver));
    }
    if let Some(server) = &args.usbip {
        let address = server_address(server)?;
        let records = usbip::list(address.as_str()).map_err(|error| import_error(&address, &error))?;
        for record in records {
            if let Some(chip) = Chip::of(record.identity.0, record.identity.1) {
                let usb = format!("usbip://{address}/{}", record.bus_id);
                adapters.push((usb, chip, record.usb_speed(), None));
            }
        }
    }
    if out.json {
        let listed = |(usb, chip, speed, driver): (String, Chip, Option<Speed>, Option<String>)| Listed {
            usb,
            chip: chip.name().to_owned(),
            speed: speed.map(|speed| speed.name().to_owned()),
            driver,
        };
        let list = List { schema: LIST.to_owned(), adapters: adapters.into_iter().map(listed).collect() };
        out.value(&json!(list));
        return Ok(());
    }
    for (usb, chip, speed, driver) in &adapters {
        let driver = driver.as_ref().map_or_else(String::new, |driver| format!(", driver {driver}"));
        let speed = speed.map_or("unknown", Speed::name);
        out.data(&format!("{:<32} {} at {speed} speed{driver}\n", printable(usb), chip.name()));
    }
    if adapters.is_empty() {
        out.note("no adapter found");
    }
    Ok(())
}

/// Adds the port to `HOST`, where `HOST:PORT` has none; an IPv6 address is written in brackets.
pub(super) fn server_address(text: &str) -> Result<String, Error> {
    let wrong = |why: &str| {
        let text = format!("`{}` is not a host", printable(text));
        Err(Error::new(Kind::BadValue, text, "HOST, HOST:PORT or [2001:db8::1]:PORT").why(why))
    };
    const FORM: &str = "it has the form HOST[:PORT], IPv6 in brackets";
    let HostPort { host, has_brackets, port } = match HostPort::split(text) {
        Ok(parts) => parts,
        Err(BracketFault::Open) => return wrong("the bracket is not closed"),
        Err(BracketFault::Followed) => return wrong(FORM),
    };
    // A link-local address may have a scope id.
    if has_brackets && format!("[{host}]:{PORT}").parse::<SocketAddrV6>().is_err() {
        return wrong("what stands in brackets is an IPv6 address");
    }
    let is_name = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ':'));
    if !has_brackets && !is_name {
        return wrong(FORM);
    }
    match port {
        None => Ok(format!("{text}:{PORT}")),
        Some(port) if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) => wrong("a port is a number"),
        Some(port) if !matches!(port.parse::<u16>(), Ok(1..)) => wrong("a port is 1 to 65535"),
        Some(_) => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_with_or_without_a_port() {
        for (text, address) in [
            ("198.18.0.1", "198.18.0.1:3240"),
            ("host:1", "host:1"),
            ("[2001:db8::1]", "[2001:db8::1]:3240"),
            ("[2001:db8::1]:5", "[2001:db8::1]:5"),
            ("[fe80::1%2]", "[fe80::1%2]:3240"),
        ] {
            assert_eq!(server_address(text).unwrap(), address);
        }
        for (bad, why) in [
            ("", "form"),
            ("a b", "form"),
            ("2001:db8::1", "form"),
            (":3240", "form"),
            ("127.0.0.1:99999", "65535"),
            ("127.0.0.1:0", "65535"),
            ("127.0.0.1:", "number"),
            ("127.0.0.1:+5", "number"),
            ("host:usbip", "number"),
            ("[::1", "closed"),
            ("[2001:db8::1]x:5", "form"),
            ("[2001:db8::1]:", "number"),
            ("[host]:5", "IPv6"),
        ] {
            let refused = server_address(bad).unwrap_err();
            assert_eq!(refused.kind, Kind::BadValue, "{bad}");
            assert!(refused.why.as_deref().is_some_and(|said| said.contains(why)), "{bad}: {refused:?}");
        }
    }
}
