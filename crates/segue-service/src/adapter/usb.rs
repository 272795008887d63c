//! The location of an adapter (local port, USB/IP server or model), and the opening of the device there.

use std::fs;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::Arc;

use segue_control::error::{Error, Kind, printable};
use segue_host::netlink::Netlink;
use segue_lan78xx::model::{Config as ModelConfig, Model};
use segue_lan78xx::regs::Chip;
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::usbfs::{self, Usbfs};
use segue_lan78xx::usb::usbip::serve::Wire;
use segue_lan78xx::usb::usbip::{Client, ImportError};
use segue_lan78xx::usb::{self, Guard, Transport};

use super::opener::Source;
use crate::report::Report;
use crate::tap::Tap;

/// The location of a USB adapter: a local port, a USB/IP server and bus id, or a model in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usb {
    /// A port of this machine; without one, the only adapter.
    Here(Option<String>),
    /// A USB/IP server exports the adapter.
    Usbip {
        /// The address of the server, with its port.
        server: String,
        /// The bus id of the device.
        bus_id: String,
    },
    /// A model in this process.
    Model {
        /// TAP at the other end of the model's cable.
        wire: Option<Tap>,
        /// The settings of the model.
        config: ModelConfig,
    },
}

impl Usb {
    /// Returns the location in the form of the command line.
    pub(super) fn text(&self) -> String {
        match self {
            Usb::Here(port) => port.clone().unwrap_or_else(|| "auto".to_owned()),
            Usb::Usbip { server, bus_id } => format!("usbip://{server}/{bus_id}"),
            Usb::Model { .. } => "model".to_owned(),
        }
    }

    /// Returns the location where an unplugged device is looked up again; a model in this process cannot be unplugged.
    pub(super) fn source(&self) -> Result<Option<Source>, Error> {
        match self {
            // The only adapter at the start is the one to look for later.
            Usb::Here(port) => Ok(Some(Source::Here(chosen(port.as_deref())?.port))),
            Usb::Usbip { server, bus_id } => {
                let addresses =
                    server.to_socket_addrs().map_err(|error| import_error(server, &ImportError::Io(error)))?;
                Ok(Some(Source::Usbip { server: addresses.collect(), bus_id: bus_id.clone() }))
            }
            Usb::Model { .. } => Ok(None),
        }
    }

    /// Returns the adapter's address from the device tree.
    pub(super) fn platform_mac(&self) -> Option<[u8; 6]> {
        let Usb::Here(port) = self else { return None };
        let port = chosen(port.as_deref()).ok()?.port;
        device_tree_mac(&Path::new("/sys/bus/usb/devices").join(port).join("of_node"))
    }

    /// Opens the device, under a guard if it is at a USB/IP server.
    pub(super) fn transport(
        &self,
        guard: &Arc<Guard>,
        netlink: &mut Netlink,
        out: &dyn Report,
    ) -> Result<Box<dyn Transport>, Error> {
        match self {
            Usb::Here(port) => here(port.as_deref(), out),
            Usb::Usbip { server, bus_id } => {
                let is_one = |(vendor, product)| Chip::of(vendor, product).is_some();
                let client = Client::import_accepted(server.as_str(), bus_id, Some(Arc::clone(guard)), &is_one);
                Ok(Box::new(client.map_err(|error| import_error(server, &error))?))
            }
            Usb::Model { wire, config } => {
                let model = Model::new(*config);
                let Some(tap) = wire else { return Ok(Box::new(Local::alone(model, Clock::System))) };
                let wire = Wire::new(Box::new(tap.open(netlink, out)?));
                Ok(Box::new(Local::new(model, Some(wire), Clock::System)))
            }
        }
    }
}

/// Returns the hardware address of a device tree node. The properties are tried in the order of Linux (Devicetree
/// specification 4.1.3, and the ethernet-controller binding of Linux).
fn device_tree_mac(node: &Path) -> Option<[u8; 6]> {
    let names = ["mac-address", "local-mac-address", "address"];
    let bytes = names.iter().filter_map(|name| <[u8; 6]>::try_from(fs::read(node.join(name)).ok()?).ok());
    bytes.into_iter().find(|mac| segue::wire::ethernet::is_station(*mac))
}

/// Returns the adapter of this machine at `port`, or the only one.
fn chosen(port: Option<&str>) -> Result<usbfs::Adapter, Error> {
    let adapters = usbfs::list().map_err(|error| {
        Error::system("cannot look for adapters", &error, "segue doctor").why("/sys/bus/usb/devices could not be read")
    })?;
    let chosen: Vec<&usbfs::Adapter> =
        adapters.iter().filter(|adapter| port.is_none_or(|port| port == adapter.port)).collect();
    match chosen[..] {
        [adapter] => Ok(adapter.clone()),
        [] => {
            let at = port.map_or_else(String::new, |port| format!(" at {port}"));
            let text = format!("there is no LAN78xx adapter{at}");
            Err(Error::new(Kind::NotFound, text, "segue lan78xx list\nlsusb -d 0424:")
                .why("no USB device of this machine has its ids"))
        }
        [..] => {
            let ports: Vec<String> = chosen.iter().map(|adapter| format!("--usb {}", adapter.port)).collect();
            Err(Error::new(Kind::Missing, "there are several adapters", ports.join("\n"))
                .why("auto takes the only one"))
        }
    }
}

fn here(port: Option<&str>, out: &dyn Report) -> Result<Box<dyn Transport>, Error> {
    let adapter = chosen(port)?;
    if let Some(driver) = &adapter.driver {
        let text = format!("echo {}:1.0 > /sys/bus/usb/drivers/{driver}/unbind", adapter.port);
        out.change(&text, "USBDEVFS_DISCONNECT_CLAIM");
    }
    let usb = Usbfs::open(&adapter).map_err(|error| {
        let path = adapter.path.display();
        let failed = Error::system(format!("cannot use the adapter at {}", adapter.port), &error, "start again");
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => failed
                .kind(Kind::NoPermission)
                .why(format!("this user may not write to {path}"))
                .hint("sudo segue lan78xx up ...\nor a udev rule: docs/lan78xx.md"),
            Some(libc::EBUSY) => {
                failed.kind(Kind::InUse).why("another program has it").hint(format!("sudo fuser -v {path}"))
            }
            _ => failed.why(format!("{path} could not be opened")),
        }
    })?;
    Ok(Box::new(usb))
}

/// Explains why a USB/IP server did not export the device.
pub fn import_error(server: &str, error: &ImportError) -> Error {
    let server = printable(server);
    match error {
        ImportError::Io(error) => Error::system(
            format!("cannot reach the USB/IP server {server}"),
            error,
            "start usbipd there, or segue lan78xx model",
        )
        .why("no server listens at that address, or it closed the connection"),
        ImportError::Refused => {
            let text = format!("{server} does not give the device");
            Error::new(Kind::NotFound, text, format!("segue lan78xx list --usbip {server}"))
                .why("the server exports no device with this bus id, or another client has imported it")
        }
        ImportError::Protocol => {
            let text = format!("{server} gives no device that segue can use");
            Error::new(Kind::NotAvailable, text, format!("segue lan78xx list --usbip {server}"))
                .why("it does not answer in USB/IP 1.1.1")
        }
        ImportError::Other((vendor, product)) => {
            let text = format!("the device at {server} is no LAN78xx adapter");
            Error::new(Kind::NotFound, text, format!("segue lan78xx list --usbip {server}"))
                .why(format!("it is the USB device {vendor:04x}:{product:04x}, and is not used"))
        }
        ImportError::Configuration(usb::Error::Stall) => {
            let text = format!("the device at {server} refuses to be configured");
            let hint = "unplug it and plug it in again\nanother adapter";
            Error::new(Kind::NotAvailable, text, hint)
                .why("it stalls SET_CONFIGURATION 1, which every USB device takes")
        }
        ImportError::Configuration(error) => {
            let text = format!("the device at {server} could not be configured");
            Error::new(Kind::System, text, "start again").why(format!("{error} (SET_CONFIGURATION 1)"))
        }
        ImportError::Speed(_) => {
            let text = format!("{server} gives no device that segue can use");
            Error::new(Kind::NotAvailable, text, "an adapter at full, high or super speed").why(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_tree_has_an_address_in_one_of_three_properties() {
        let node = std::env::temp_dir().join(format!("segue-of-node-{}", std::process::id()));
        let put = |name: &str, bytes: &[u8]| fs::write(node.join(name), bytes).unwrap();
        assert_eq!(device_tree_mac(&node), None);
        fs::create_dir_all(&node).unwrap();
        put("address", &[2, 0, 0, 0, 0, 3]);
        assert_eq!(device_tree_mac(&node), Some([2, 0, 0, 0, 0, 3]));
        put("local-mac-address", &[2, 0, 0, 0, 0, 2]);
        assert_eq!(device_tree_mac(&node), Some([2, 0, 0, 0, 0, 2]));
        // A boot loader without an address leaves zeros.
        for bad in [&[0; 6][..], &[1, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0], &[]] {
            put("mac-address", bad);
            assert_eq!(device_tree_mac(&node), Some([2, 0, 0, 0, 0, 2]));
        }
        fs::remove_dir_all(&node).unwrap();
    }
}
