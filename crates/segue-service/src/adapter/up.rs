//! An adapter as a network interface. One port is the adapter's driver and the other one a TAP; between them is the
//! pipeline of the gateway, which joins received packets.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use segue::gro;
use segue_control::error::{Error, Kind};
use segue_control::model::Side;
use segue_datapath::gateway::{self, Gateway, Parts, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_host::netlink::Netlink;
use segue_host::sys::SignalFd;
use segue_lan78xx::driver::{self, AddressSource, Driver, Filter, LinkState, LookupResult};
use segue_lan78xx::usb::usbfs;
use segue_lan78xx::usb::{Guard, Speed, Transport, Verdict};
use serde_json::{Value, json};

use super::health::{ADAPTER, complaints};
use super::interface;
use super::opener::Opener;
use super::plan::{Found, Plan};
use super::schema;
use super::usb::Usb;
use crate::daemon::knobs::prepare;
use crate::daemon::running::{Offloads, flow_key};
use crate::daemon::{Daemon, Opened, Succession};
use crate::fastpath::Fastpath;
use crate::fault::Vitals;
use crate::heartbeat::Limits;
use crate::report::Report;
use crate::sandbox::Sandbox;
use crate::tap::Tap;

/// Longest duration of the whole set-up: over a network it takes some hundred round trips.
const SET_UP: Duration = Duration::from_secs(60);
/// Number of pages of memory for packets in the pipeline: at most 128 MiB.
const PAGES: usize = 1024;

/// Longest duration of one round: when the adapter reappears, the driver sets it up again in between, which takes some
/// hundred round trips over a network.
const ROUND: Duration = Duration::from_secs(90);

/// The ioctls of an instance: the carrier of its interface is that of the link. The others are those of an adapter of
/// this machine.
#[allow(clippy::unnecessary_cast, reason = "the type of this number differs between C libraries")]
pub(crate) static IOCTLS: [u64; 8] = {
    let [a, b, c, d, e, f, g] = usbfs::IOCTLS;
    [libc::TUNSETCARRIER as u64, a, b, c, d, e, f, g]
};

type AnyDriver = Driver<Box<dyn Transport>>;

impl Plan {
    /// Connects the driver to the settings of the interface.
    fn watch(&self, netlink: &mut Netlink, driver: &mut AnyDriver, tap: OwnedFd) -> Result<interface::Watcher, Error> {
        let watched = netlink.link_named(&self.tap.name).and_then(|link| {
            let (states, watcher) = interface::watch(link.ok_or(io::ErrorKind::NotFound)?.index, &self.tap.name, tap)?;
            driver.follow(Box::new(states))?;
            Ok(watcher)
        });
        watched.map_err(|error| {
            Error::system("cannot follow the interface", &error, "segue doctor")
                .why("an rtnetlink socket could not be opened")
        })
    }

    /// Opens and sets up the adapter and its interface, under a guard.
    fn set_up(&self, guard: &Arc<Guard>, netlink: &mut Netlink, out: &dyn Report) -> Result<Opened, Error> {
        // The opener is forked before this process has any device open.
        let opener =
            self.usb.source()?.map(|source| Opener::start(source, &self.tap.name, self.is_weak)).transpose()?;
        let (opener, helper) = opener.unzip();
        // The kernel's driver need not be bound to the device.
        let platform_mac = self.usb.platform_mac();
        let mut usb = self.usb.transport(guard, netlink, out)?;
        usb.guard(Some(Arc::clone(guard)));
        let speed = usb.speed();
        self.check_mtu(speed)?;
        let lifeline = matches!(self.usb, Usb::Usbip { .. }).then(Lifeline::default);
        if let Some(lifeline) = &lifeline {
            lifeline.take(&*usb);
        }
        let config = driver::Config { platform_mac, ..self.config(speed) };
        let mut driver: AnyDriver = Driver::open(usb, config).map_err(driver_error)?;
        // The host's own list of multicast addresses is not visible to a TAP.
        driver.set_filter(Filter { all_multicast: true, ..Filter::default() }).map_err(driver_error)?;
        let mac = driver.mac();
        let found = Found { chip: driver.kind().name(), speed, mac, source: driver.address_source() };
        let _ = self.found.set(found);
        let tap = Tap { mac: Some(mac), ..self.tap.clone() };
        let tap = tap.open(netlink, out)?;
        let failed = |error: io::Error| {
            Error::system("cannot follow the link", &error, "segue doctor").why("a descriptor could not be copied")
        };
        let link_fd = segue_port::Port::fd(&tap).try_clone_to_owned().map_err(failed)?;
        let watched_fd = link_fd.try_clone().map_err(failed)?;
        driver.on_link(carrier(link_fd, self.tap.name.clone()));
        let mut line = None;
        if let Some(mut opener) = opener {
            line = Some(opener.line().map_err(failed)?);
            let lifeline = lifeline.clone();
            driver.on_gone(Box::new(move |chip| {
                let found = opener.lookup(chip);
                // The process that opens devices has checked the chip.
                if let (LookupResult::Back(device), Some(lifeline)) = (&found, &lifeline) {
                    lifeline.take(&**device);
                }
                found
            }));
        }
        let watcher = self.watch(netlink, &mut driver, watched_fd)?;
        let name = watcher.name();
        driver.up().map_err(driver_error)?;
        driver.usb().guard(None);
        let mut offloads = Offloads::default();
        offloads.add("", &driver, "switched off");
        offloads.add("", &tap, "switched off");
        let gro = gro::Config { key: flow_key()?, ..gro::Config::default() };
        let parts = Parts {
            ports: [
                PortConfig {
                    name: ADAPTER.to_owned(),
                    port: Box::new(driver),
                    gro: config.gro.then_some(gro),
                    fragments: None,
                },
                PortConfig { name: self.tap.name.clone(), port: Box::new(tap), gro: None, fragments: None },
            ],
            budget: self.weight(),
            pages: segue_port::PagePool::new(PAGES),
        };
        let assemble = move |vitals: &Vitals| -> Result<Box<dyn Pipeline>, Error> {
            watcher.start(vitals.clone()).map_err(|error| {
                Error::system("cannot follow the interface", &error, "segue doctor").why("a thread did not start")
            })?;
            Ok(Box::new(Gateway::new(parts)))
        };
        Ok(Opened {
            helpers: helper.into_iter().collect(),
            complaints: Some(complaints(line, name)),
            hurry: lifeline.map(|lifeline| -> Box<dyn Fn() + Send> { Box::new(move || lifeline.cut()) }),
            ..Opened::new(offloads, Box::new(assemble))
        })
    }
}

fn driver_error(error: driver::Error) -> Error {
    Error::new(Kind::System, format!("the adapter cannot be used: {error}"), "unplug it and plug it in again")
        .why("it does not answer as a LAN78xx does")
}

/// Returns a guard that ends a set-up on a signal, which stays pending for the loop, or after `longest`.
fn guard(longest: Duration) -> io::Result<Arc<Guard>> {
    let signals = SignalFd::new(&[libc::SIGINT, libc::SIGTERM])?;
    Ok(Arc::new(Guard::new(signals.as_fd().try_clone_to_owned()?, longest)))
}

/// A connection to a USB/IP server that another thread can close when a request does not end.
#[derive(Clone, Default)]
struct Lifeline(Arc<Mutex<Option<OwnedFd>>>);

impl Lifeline {
    /// Replaces the lifeline's USB connection.
    fn take(&self, usb: &dyn Transport) {
        let fd = usb.fd().and_then(|fd| fd.try_clone_to_owned().ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fd;
    }

    /// Closes the connection, so that every request fails at once.
    fn cut(&self) {
        if let Some(fd) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The connection may be closed already.
            let _ = TcpStream::from(fd).shutdown(Shutdown::Both);
        }
    }
}

/// Returns a listener that sets the carrier of the TAP to the state of the link.
fn carrier(tap: OwnedFd, name: String) -> driver::Listener {
    Box::new(move |link: &LinkState| {
        if let Err(error) = segue_port::tun::driver::set_carrier(tap.as_fd(), link.up) {
            tracing::warn!(id = "link", name, %error, "the carrier of the interface could not be changed");
        }
        if link.up {
            let duplex = if link.full_duplex { "full" } else { "half" };
            tracing::info!(
                id = "link",
                name,
                mbit = link.mbit,
                duplex,
                rx_pause = link.rx_pause,
                tx_pause = link.tx_pause,
                "link is up"
            );
        } else {
            tracing::info!(id = "link", name, "link is down");
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

    fn naming(&self) -> &'static str {
        "--dev NAME"
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn ports(&self) -> Vec<(String, Side)> {
        vec![(ADAPTER.to_owned(), Side::Outside), (self.tap.name.clone(), Side::Inside)]
    }

    fn ioctls(&self) -> &'static [u64] {
        if matches!(self.usb, Usb::Here(_)) { &IOCTLS } else { &IOCTLS[..1] }
    }

    fn limits(&self) -> Limits {
        Limits { round: ROUND, ..Limits::default() }
    }

    fn open(&self, netlink: &mut Netlink, _: &mut Succession, out: &dyn Report) -> Result<Opened, Error> {
        let guard = guard(SET_UP).map_err(|error| {
            Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
        })?;
        self.set_up(&guard, netlink, out).map_err(|error| match guard.verdict() {
            None => error,
            Some(Verdict::Stopped) => {
                Error::new(Kind::Interrupted, "interrupted; the adapter was not set up", "segue lan78xx up")
                    .why("a signal asked for the end")
            }
            Some(Verdict::TooLong) => {
                let text = format!("the adapter was not set up within {} s", SET_UP.as_secs());
                Error::new(Kind::System, text, "segue lan78xx up on the host that the adapter is at")
                    .why("it answers, but too slowly: a set-up takes some hundred requests, one after the other")
            }
        })
    }

    fn knobs(&self) -> Result<Knobs, Error> {
        let gro = self.config(Speed::Super).gro.then(gro::Config::default);
        prepare(gateway::knobs([ADAPTER, &self.tap.name], [gro, None], self.weight()), &[], &self.set)
    }

    fn up_text(&self, _offloads: &Offloads, sandbox: &Sandbox, _fastpath: Option<&Fastpath>) -> String {
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

fn source_text(source: AddressSource) -> &'static str {
    match source {
        AddressSource::Register => "its registers",
        AddressSource::Platform => "the device tree",
        AddressSource::Eeprom => "its EEPROM",
        AddressSource::Otp => "its OTP memory",
        AddressSource::Random => "nowhere, a random one",
        AddressSource::User => "the user",
    }
}

/// Formats a hardware address as `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
