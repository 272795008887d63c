//! `segue lan78xx list`: the adapters of this machine, and those that a USB/IP server has.

use segue_lan78xx::regs::Chip;
use segue_lan78xx::usb::usbip::{self, ImportError, PORT};
use segue_lan78xx::usb::{Speed, usbfs};
use serde_json::json;

use super::args;
use super::schema::{LIST, List, Listed};
use crate::error::{Error, Kind, printable};
use crate::out::Out;

/// Runs the command.
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

/// `HOST` or `HOST:PORT` with the port filled in; an IPv6 address stands in brackets.
pub(super) fn server_address(text: &str) -> Result<String, Error> {
    let behind = text.rsplit_once(']').map_or(text, |(_, rest)| rest);
    let has_port = behind.contains(':');
    if text.is_empty() || text.contains(char::is_whitespace) || !text.starts_with('[') && text.matches(':').count() > 1
    {
        let text = format!("`{}` is no host", printable(text));
        return Err(Error::new(Kind::BadValue, text, "HOST, HOST:PORT or [2001:db8::1]:PORT")
            .why("it has the form HOST[:PORT], IPv6 in brackets"));
    }
    Ok(if has_port { text.to_owned() } else { format!("{text}:{PORT}") })
}

/// Why a USB/IP server gave nothing.
pub(super) fn import_error(server: &str, error: &ImportError) -> Error {
    let server = printable(server);
    match error {
        ImportError::Io(error) => Error::system(
            format!("cannot reach the USB/IP server {server}"),
            error,
            "start usbipd there, or segue lan78xx model",
        )
        .why("nobody answers there, or it hung up"),
        ImportError::Refused => {
            let text = format!("{server} does not give the device");
            Error::new(Kind::NotFound, text, format!("segue lan78xx list --usbip {server}"))
                .why("it has none of that bus id, or somebody else has it")
        }
        other => {
            let text = format!("{server} speaks no USB/IP that segue knows");
            Error::new(Kind::NotAvailable, text, "a server of USB/IP 1.1.1").why(other.to_string())
        }
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
        ] {
            assert_eq!(server_address(text).unwrap(), address);
        }
        for bad in ["", "a b", "2001:db8::1"] {
            assert!(server_address(bad).is_err(), "{bad}");
        }
    }
}
