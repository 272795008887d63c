//! `segue lan78xx up`: an adapter as a network interface. The adapter's driver is one port and a TAP the other; between them
//! is the gateway's pipeline, which joins what is received.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};

use segue::gro;
use segue_datapath::gateway::{self, Gateway, Parts, Side as Way};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_lan78xx::driver::{self, AddressSource, Driver, Filter, LinkState};
use segue_lan78xx::model::{Config as ModelConfig, Model};
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::usbfs::{self, Usbfs};
use segue_lan78xx::usb::usbip::serve::Wire;
use segue_lan78xx::usb::usbip::{Client, ImportError};
use segue_lan78xx::usb::{Speed, Transport};
use segue_port::tun::TunOffloads;
use serde_json::{Value, json};

use super::args;
use super::list::{import_error, server_address};
use super::opener::{Opener, Source};
use super::schema;
use crate::control::model::Side;
use crate::daemon::running::{Offloads, flow_key};
use crate::daemon::{self, Daemon, Opened};
use crate::error::{Error, Kind, printable};
use crate::out::Out;
use crate::sandbox::Sandbox;
use crate::sys;
use crate::system::Netlink;
use crate::tap::Tap;

/// Name of the adapter in statistics.
const ADAPTER: &str = "adapter";
/// Packets taken from one side in one round; the driver's own budget counts as well.
const BUDGET: usize = 256;
/// Pages of memory for packets on their way: at most 128 MiB.
const PAGES: usize = 1024;

/// Where the adapter is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Usb {
    /// At this machine, by its port; the only one where none is given.
    Here(Option<String>),
    Usbip {
        server: String,
        bus_id: String,
    },
    Model {
        wire: Option<Tap>,
    },
}

impl Usb {
    fn parse(text: &str, wire: Option<&str>) -> Result<Usb, Error> {
        let wrong = |why: &str| {
            let text = format!("`{}` is no adapter", printable(text));
            Err(Error::new(Kind::BadValue, text, "--usb usbip://HOST/BUSID, --usb model").why(why))
        };
        if text == "model" {
            return Ok(Usb::Model { wire: wire.map(|wire| Tap::parse(wire, 9000)).transpose()? });
        }
        if wire.is_some() {
            let text = "`--wire` without a model";
            return Err(
                Error::new(Kind::Conflict, text, "--usb model --wire tap:cable0").why("other adapters have a cable")
            );
        }
        let is_port = |text: &str| {
            let (bus, port) = text.split_once('-').unwrap_or_default();
            let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            digits(bus) && port.split('.').all(digits)
        };
        if text == "auto" || is_port(text) {
            return Ok(Usb::Here((text != "auto").then(|| text.to_owned())));
        }
        let Some(rest) = text.strip_prefix("usbip://") else {
            return wrong("it is auto, a port such as 1-1.4, usbip://HOST/BUSID, or model");
        };
        let Some((host, bus_id)) = rest.split_once('/') else { return wrong("the bus id is missing, such as 1-1") };
        if bus_id.is_empty() || bus_id.len() > 31 || bus_id.contains('/') {
            return wrong("a bus id is like 1-1");
        }
        Ok(Usb::Usbip { server: server_address(host)?, bus_id: bus_id.to_owned() })
    }

    fn text(&self) -> String {
        match self {
            Usb::Here(port) => port.clone().unwrap_or_else(|| "auto".to_owned()),
            Usb::Usbip { server, bus_id } => format!("usbip://{server}/{bus_id}"),
            Usb::Model { .. } => "model".to_owned(),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &args::Up, out: &Out) -> Result<(), Error> {
    let usb = Usb::parse(&args.usb, args.wire.as_deref())?;
    let tap = Tap { offloads: TunOffloads::All, ..Tap::parse(&format!("tap:{}", args.dev), args.mtu)? };
    let plan = Plan {
        usb,
        tap,
        standard: args.mode == "standard",
        no_gro: args.no_gro,
        no_lso: args.no_lso,
        rx_transfers: args.rx_transfers,
        tx_transfers: args.tx_transfers,
        budget: args.budget,
        pause: !args.no_pause,
        eee: args.eee,
        found: std::cell::OnceCell::new(),
    };
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    daemon::up(&plan, &mut netlink, out)
}

/// What was found out when the adapter was opened.
struct Found {
    chip: &'static str,
    speed: Speed,
    mac: [u8; 6],
    source: AddressSource,
}

struct Plan {
    usb: Usb,
    tap: Tap,
    standard: bool,
    no_gro: bool,
    no_lso: bool,
    rx_transfers: Option<u16>,
    tx_transfers: Option<u16>,
    budget: Option<u32>,
    pause: bool,
    eee: bool,
    found: std::cell::OnceCell<Found>,
}

type AnyDriver = Driver<Box<dyn Transport>>;

impl Plan {
    fn config(&self, speed: Speed) -> driver::Config {
        let base = if self.standard { driver::Config::standard(speed) } else { driver::Config::napi(speed) };
        driver::Config {
            rx_transfers: self.rx_transfers.map_or(base.rx_transfers, usize::from),
            tx_transfers: self.tx_transfers.map_or(base.tx_transfers, usize::from),
            budget: self.budget.map(|budget| budget as usize).or(base.budget),
            lso: base.lso.filter(|_| !self.no_lso),
            gro: base.gro && !self.no_gro,
            pause: self.pause,
            eee: self.eee,
            mtu: self.tap.mtu as usize,
            ..base
        }
    }

    /// Where the device is to be found again when it was unplugged; a model in this process never is.
    fn source(&self) -> Result<Option<Source>, Error> {
        match &self.usb {
            // The only one of the start is the one that is meant later.
            Usb::Here(port) => Ok(Some(Source::Here(chosen(port.as_deref())?.port))),
            Usb::Usbip { server, bus_id } => {
                let addresses =
                    server.to_socket_addrs().map_err(|error| import_error(server, &ImportError::Io(error)))?;
                Ok(Some(Source::Usbip { server: addresses.collect(), bus_id: bus_id.clone() }))
            }
            Usb::Model { .. } => Ok(None),
        }
    }

    fn transport(&self, netlink: &mut Netlink, out: &Out) -> Result<Box<dyn Transport>, Error> {
        match &self.usb {
            Usb::Here(port) => here(port.as_deref(), out),
            Usb::Usbip { server, bus_id } => {
                let client = Client::import(server.as_str(), bus_id).map_err(|error| import_error(server, &error))?;
                Ok(Box::new(client))
            }
            Usb::Model { wire } => {
                let wire = match wire {
                    Some(tap) => Some(Wire::new(Box::new(tap.open(netlink, out)?))),
                    None => None,
                };
                Ok(Box::new(Local::new(Model::new(ModelConfig::default()), wire, Clock::System)))
            }
        }
    }
}

/// The adapter of this machine at `port`, or the only one.
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

fn here(port: Option<&str>, out: &Out) -> Result<Box<dyn Transport>, Error> {
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

fn driver_error(error: driver::Error) -> Error {
    Error::new(Kind::System, format!("the adapter cannot be used: {error}"), "unplug it and plug it in again")
        .why("it does not answer as a LAN78xx does")
}

/// Sets the carrier of the TAP, as the link is.
fn carrier(tap: OwnedFd, name: String) -> driver::Listener {
    Box::new(move |link: &LinkState| {
        if let Err(error) = sys::tun_set_carrier(tap.as_fd(), link.up) {
            tracing::warn!(name, %error, "the carrier of the interface could not be changed");
        }
        if link.up {
            let duplex = if link.full_duplex { "full" } else { "half" };
            tracing::info!(
                name,
                mbit = link.mbit,
                duplex,
                rx_pause = link.rx_pause,
                tx_pause = link.tx_pause,
                "link is up"
            );
        } else {
            tracing::info!(name, "link is down");
        }
    })
}

impl Daemon for Plan {
    fn name(&self) -> &str {
        &self.tap.name
    }

    fn kind(&self) -> &'static str {
        "lan78xx"
    }

    fn schema(&self) -> &'static str {
        schema::EVENTS
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn ports(&self) -> Vec<(String, Side)> {
        vec![(ADAPTER.to_owned(), Side::Outside), (self.tap.name.clone(), Side::Inside)]
    }

    fn ioctls(&self) -> &'static [u64] {
        if matches!(self.usb, Usb::Here(_)) { &usbfs::IOCTLS } else { &[] }
    }

    fn open(&self, netlink: &mut Netlink, out: &Out) -> Result<Opened, Error> {
        // As long as this process has no device open.
        let opener = self.source()?.map(Opener::start).transpose()?;
        let usb = self.transport(netlink, out)?;
        let config = self.config(usb.speed());
        let speed = usb.speed();
        let mut driver: AnyDriver = Driver::open(usb, config).map_err(driver_error)?;
        // The host's own list of multicasts is not seen from here.
        driver.set_filter(Filter { all_multicast: true, ..Filter::default() }).map_err(driver_error)?;
        let mac = driver.mac();
        let found = Found { chip: driver.kind().name(), speed, mac, source: driver.address_source() };
        let _ = self.found.set(found);
        let tap = Tap { mac: Some(mac), ..self.tap.clone() }.open(netlink, out)?;
        let failed = |error: io::Error| {
            Error::system("cannot follow the link", &error, "segue doctor").why("a descriptor could not be copied")
        };
        let link_fd = segue_port::Port::fd(&tap).try_clone_to_owned().map_err(failed)?;
        driver.on_link(carrier(link_fd, self.tap.name.clone()));
        if let Some(mut opener) = opener {
            driver.on_gone(Box::new(move || opener.look()));
        }
        driver.up().map_err(driver_error)?;
        let mut offloads = Offloads::default();
        offloads.add("", &driver, "switched off");
        offloads.add("", &tap, "switched off");
        let gro = gro::Config { key: flow_key()?, ..gro::Config::default() };
        let parts = Parts {
            sides: [
                Way {
                    name: ADAPTER.to_owned(),
                    port: Box::new(driver),
                    gro: config.gro.then_some(gro),
                    fragments: None,
                },
                Way { name: self.tap.name.clone(), port: Box::new(tap), gro: None, fragments: None },
            ],
            budget: BUDGET,
            pages: segue_port::PagePool::new(PAGES),
        };
        let assemble = move || -> Result<Box<dyn Pipeline>, Error> { Ok(Box::new(Gateway::new(parts))) };
        Ok(Opened { offloads, teller: None, checksum_drops: None, assemble: Box::new(assemble) })
    }

    fn knobs(&self) -> Result<Knobs, Error> {
        let gro = self.config(Speed::Super).gro.then(gro::Config::default);
        Ok(gateway::knobs([ADAPTER, &self.tap.name], [gro, None], BUDGET))
    }

    fn up_text(&self, _offloads: &Offloads, sandbox: &Sandbox) -> String {
        let Some(found) = self.found.get() else { return String::new() };
        format!(
            "{} is up: {} at {} speed ({}), {}, address from {}\n  {}\nWatch: segue stat {}      Stop: Ctrl-C\n",
            self.tap.name,
            found.chip,
            found.speed.name(),
            self.usb.text(),
            mac_text(found.mac),
            source_text(found.source),
            sandbox.text(),
            self.tap.name,
        )
    }

    fn up_json(&self) -> Value {
        let found = self.found.get();
        let plan = schema::Adapter {
            name: self.tap.name.clone(),
            usb: self.usb.text(),
            mode: if self.standard { "standard" } else { "napi" }.to_owned(),
            chip: found.map(|found| found.chip.to_owned()),
            speed: found.map(|found| found.speed.name().to_owned()),
            mac: found.map(|found| mac_text(found.mac)),
            mac_from: found.map(|found| source_text(found.source).to_owned()),
            mtu: self.tap.mtu,
        };
        json!({ "plan": plan })
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn source_text(source: AddressSource) -> &'static str {
    match source {
        AddressSource::Register => "its registers",
        AddressSource::Eeprom => "its EEPROM",
        AddressSource::Otp => "its OTP memory",
        AddressSource::Random => "nowhere, a random one",
        AddressSource::User => "the user",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_at_a_usbip_server_or_a_model() {
        let parsed = Usb::parse("usbip://198.18.0.1/1-1", None).unwrap();
        assert_eq!(parsed, Usb::Usbip { server: "198.18.0.1:3240".to_owned(), bus_id: "1-1".to_owned() });
        assert_eq!(Usb::parse("model", None).unwrap(), Usb::Model { wire: None });
        assert_eq!(Usb::parse("auto", None).unwrap(), Usb::Here(None));
        assert_eq!(Usb::parse("1-1.4", None).unwrap(), Usb::Here(Some("1-1.4".to_owned())));
        for bad in
            ["", "1", "1-", "-1", "1-1.", "1-a", "usbip://", "usbip://a", "usbip://a/", "usbip://a/1/2", "http://a/1"]
        {
            assert!(Usb::parse(bad, None).is_err(), "{bad}");
        }
        assert!(Usb::parse("usbip://a/1-1", Some("tap:c0")).is_err());
    }
}
