//! `segue lan78xx list`: the adapters that a USB/IP server has.

use segue_lan78xx::regs::Chip;
use segue_lan78xx::usb::usbip::{self, ImportError, PORT, Record};
use serde_json::{Value, json};

use super::args::List;
use crate::error::{Error, Kind, printable};
use crate::out::Out;

/// The id of the JSON.
const SCHEMA: &str = "segue.lan78xx.list/1";

/// Runs the command.
pub(super) fn run(args: &List, out: &Out) -> Result<(), Error> {
    let mut found = Vec::new();
    if let Some(server) = &args.usbip {
        let address = server_address(server)?;
        let records = usbip::list(address.as_str()).map_err(|error| import_error(&address, &error))?;
        found.extend(records.into_iter().map(|record| (address.clone(), record)));
    }
    let adapters: Vec<(String, Record, Chip)> = found
        .into_iter()
        .filter_map(|(server, record)| {
            let chip = Chip::of(record.identity.0, record.identity.1)?;
            Some((server, record, chip))
        })
        .collect();
    let usb = |server: &str, record: &Record| format!("usbip://{server}/{}", record.bus_id);
    if out.json {
        let list: Vec<Value> = adapters
            .iter()
            .map(|(server, record, chip)| {
                let speed = record.usb_speed().map(segue_lan78xx::usb::Speed::name);
                json!({ "usb": usb(server, record), "chip": chip.name(), "speed": speed })
            })
            .collect();
        out.value(&json!({ "schema": SCHEMA, "adapters": list }));
        return Ok(());
    }
    for (server, record, chip) in &adapters {
        let speed = record.usb_speed().map_or("unknown", segue_lan78xx::usb::Speed::name);
        out.data(&format!("{:<40} {} at {speed} speed\n", printable(&usb(server, record)), chip.name()));
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
