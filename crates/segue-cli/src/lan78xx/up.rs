//! `segue lan78xx up`: an adapter as a network interface. The adapter's driver is one port and a TAP the other; between them
//! is the gateway's pipeline, which joins what is received.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use segue::gro;
use segue_control::error::{Error, Kind, printable};
use segue_control::model::{Complaint, Instance, Side};
use segue_datapath::gateway::{self, Gateway, Parts, PortConfig};
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_host::netlink::Netlink;
use segue_host::sys::{self, SignalFd, Want};
use segue_lan78xx::driver::{self, AddressSource, Driver, Filter, LinkState, Look};
use segue_lan78xx::frame::is_awkward_mtu;
use segue_lan78xx::model::{Config as ModelConfig, Model};
use segue_lan78xx::regs::Chip;
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::usbfs::{self, Usbfs};
use segue_lan78xx::usb::usbip::serve::Wire;
use segue_lan78xx::usb::usbip::{Client, ImportError};
use segue_lan78xx::usb::{Guard, Speed, Transport, Verdict};
use segue_service::daemon::running::{Offloads, flow_key};
use segue_service::daemon::{self, Complaints, Daemon, Opened, Succession};
use segue_service::report::Report;
use segue_service::sandbox::Sandbox;
use segue_service::tap::Tap;
use serde_json::{Value, json};

use super::args;
use super::interface;
use super::list::{import_error, server_address};
use super::opener::{Opener, Source};
use super::schema;
use crate::out::Out;

/// Name of the adapter in statistics.
const ADAPTER: &str = "adapter";
/// Packets taken from one side in one round by the older form, whose driver has no budget.
const BUDGET: usize = 256;
/// Longest time for the set-up as a whole: over a network it takes some hundred round trips.
const SET_UP: Duration = Duration::from_secs(60);
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
        config: ModelConfig,
    },
}

impl Usb {
    fn parse(args: &args::Up) -> Result<Usb, Error> {
        let (text, wire) = (&args.usb[..], args.wire.as_deref());
        let wrong = |why: &str| {
            let text = format!("`{}` is no adapter", printable(text));
            Err(Error::new(Kind::BadValue, text, "--usb usbip://HOST/BUSID, --usb model").why(why))
        };
        if text == "model" {
            let wire = wire.map(|wire| Tap::parse(wire, 9000)).transpose()?;
            return Ok(Usb::Model { wire, config: model(args)? });
        }
        for (option, is_given, hint, why) in [
            ("--wire", wire.is_some(), "--usb model --wire tap:cable0", "other adapters have a cable"),
            ("--chip", args.chip.is_some(), "--usb model --chip lan7850 --speed high", "other adapters have a chip"),
            ("--speed", args.speed.is_some(), "--usb model --speed high", "other adapters have a bus"),
            ("--paced", args.paced, "--usb model --paced", "other adapters have a cable"),
        ] {
            if is_given {
                return Err(Error::new(Kind::Conflict, format!("`{option}` without a model"), hint).why(why));
            }
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

/// What a model in this process is.
fn model(args: &args::Up) -> Result<ModelConfig, Error> {
    let chip = args.chip.clone().unwrap_or_else(|| "lan7800".to_owned());
    // That chip knows no other one.
    let usual = if chip == "lan7850" { "high" } else { "super" };
    let speed = args.speed.clone().unwrap_or_else(|| usual.to_owned());
    let mac = mac_text(ModelConfig::default().mac);
    super::config(&args::Chip { chip, speed, mac, paced: args.paced })
}

/// The interface's name: `--dev NAME` or `dev NAME`.
fn name(args: &args::Up) -> Result<&str, Error> {
    let hint = "segue lan78xx up dev lan0";
    match (&args.words[..], &args.dev) {
        ([], None) => Ok("lan0"),
        ([], Some(name)) => Ok(name),
        ([dev, name], None) if dev == "dev" => Ok(name),
        ([dev, _], Some(_)) if dev == "dev" => {
            Err(Error::new(Kind::Conflict, "the interface is named twice", hint).why("`dev` and `--dev` are the same"))
        }
        ([dev], _) if dev == "dev" => {
            Err(Error::new(Kind::Missing, "`dev` needs a name", hint).why("the interface's name follows it"))
        }
        ([first, rest @ ..], _) => {
            let word = rest.get(1).filter(|_| first == "dev").unwrap_or(first);
            let text = format!("unknown word `{}`", printable(word));
            Err(Error::new(Kind::UnknownWord, text, hint).why("besides options there is only dev NAME"))
        }
    }
}

/// What the command line asks for.
fn plan(args: &args::Up) -> Result<Plan, Error> {
    let usb = Usb::parse(args)?;
    let tap = Tap::interface(name(args)?, args.mtu)?;
    Ok(Plan {
        mac: args.mac.as_deref().map(super::mac).transpose()?,
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
    })
}

/// Runs the command.
pub(super) fn run(args: &args::Up, out: &Out) -> Result<(), Error> {
    let plan = plan(args)?;
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    daemon::up(&plan, &mut netlink, None, &out.staying()).map_err(renamed)
}

/// A name that is taken is another one's option elsewhere.
fn renamed(mut error: Error) -> Error {
    if error.kind == Kind::InUse {
        error.hint = error.hint.replace("segue tunnel dev NAME, segue gateway --name NAME", "--dev NAME");
    }
    error
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
    mac: Option<[u8; 6]>,
    pause: bool,
    eee: bool,
    found: std::cell::OnceCell<Found>,
}

type AnyDriver = Driver<Box<dyn Transport>>;

impl Plan {
    /// Lets the driver follow the interface.
    fn watch(&self, netlink: &mut Netlink, driver: &mut AnyDriver, tap: OwnedFd) -> Result<interface::Watcher, Error> {
        let watched = netlink.link_named(&self.tap.name).and_then(|link| {
            let (ear, watcher) = interface::watch(link.ok_or(io::ErrorKind::NotFound)?.index, &self.tap.name, tap)?;
            driver.follow(Box::new(ear))?;
            Ok(watcher)
        });
        watched.map_err(|error| {
            Error::system("cannot follow the interface", &error, "segue doctor")
                .why("an rtnetlink socket could not be opened")
        })
    }

    fn config(&self, speed: Speed) -> driver::Config {
        let base = if self.standard { driver::Config::standard(speed) } else { driver::Config::napi(speed) };
        driver::Config {
            rx_transfers: self.rx_transfers.map_or(base.rx_transfers, usize::from),
            tx_transfers: self.tx_transfers.map_or(base.tx_transfers, usize::from),
            // The poll loop has it, as the weight of both sides.
            budget: None,
            lso: base.lso.filter(|_| !self.no_lso),
            gro: base.gro && !self.no_gro,
            pause: self.pause,
            eee: self.eee,
            mtu: self.tap.mtu as usize,
            mac: self.mac,
            ..base
        }
    }

    /// Packets of one poll.
    fn weight(&self) -> usize {
        let usual = if self.standard { None } else { driver::Config::napi(Speed::Super).budget };
        self.budget.map(|budget| budget as usize).or(usual).unwrap_or(BUDGET)
    }

    /// Refuses an MTU that Linux's driver refuses on such a bus, before the adapter is asked.
    fn check_mtu(&self, speed: Speed) -> Result<(), Error> {
        let mtu = self.tap.mtu;
        if !is_awkward_mtu(mtu as usize, speed.max_packet()) {
            return Ok(());
        }
        let text = format!("`{mtu}` is not a value of `--mtu` at {} speed", speed.name());
        Err(Error::new(Kind::BadValue, text, format!("--mtu {} or --mtu {}", mtu - 1, mtu + 1))
            .why("frames of this MTU would end where a USB packet ends"))
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

    /// What the platform says of the adapter's address.
    fn platform_mac(&self) -> Option<[u8; 6]> {
        let Usb::Here(port) = &self.usb else { return None };
        let port = chosen(port.as_deref()).ok()?.port;
        device_tree_mac(&Path::new("/sys/bus/usb/devices").join(port).join("of_node"))
    }

    /// Opens and sets up everything, under a guard.
    fn set_up(&self, guard: &Arc<Guard>, netlink: &mut Netlink, out: &dyn Report) -> Result<Opened, Error> {
        // As long as this process has no device open.
        let opener = self.source()?.map(Opener::start).transpose()?;
        // The kernel's driver need not be the one that has it.
        let platform_mac = self.platform_mac();
        let mut usb = self.transport(guard, netlink, out)?;
        usb.guard(Some(Arc::clone(guard)));
        let speed = usb.speed();
        self.check_mtu(speed)?;
        let lifeline = matches!(self.usb, Usb::Usbip { .. }).then(Lifeline::default);
        if let Some(lifeline) = &lifeline {
            lifeline.take(&*usb);
        }
        let config = driver::Config { platform_mac, ..self.config(speed) };
        let mut driver: AnyDriver = Driver::open(usb, config).map_err(driver_error)?;
        // The host's own list of multicasts is told to nobody.
        driver.set_filter(Filter { all_multicast: true, ..Filter::default() }).map_err(driver_error)?;
        let mac = driver.mac();
        let found = Found { chip: driver.kind().name(), speed, mac, source: driver.address_source() };
        let _ = self.found.set(found);
        let tap = Tap { mac: Some(mac), ..self.tap.clone() };
        let tap = tap.open(netlink, out).map_err(|error| somebody_elses(error, &self.tap.name))?;
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
                let found = opener.look(chip);
                // What is back has that chip: the other process has looked.
                if let (Look::Back(device), Some(lifeline)) = (&found, &lifeline) {
                    lifeline.take(&**device);
                }
                found
            }));
        }
        let watcher = self.watch(netlink, &mut driver, watched_fd)?;
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
        let assemble = move || -> Result<Box<dyn Pipeline>, Error> {
            watcher.start().map_err(|error| {
                Error::system("cannot follow the interface", &error, "segue doctor").why("a thread did not start")
            })?;
            Ok(Box::new(Gateway::new(parts)))
        };
        Ok(Opened {
            complaints: Some(complaints(line)),
            hurry: lifeline.map(|lifeline| -> Box<dyn Fn() + Send> { Box::new(move || lifeline.cut()) }),
            ..Opened::new(offloads, Box::new(assemble))
        })
    }

    fn transport(
        &self,
        guard: &Arc<Guard>,
        netlink: &mut Netlink,
        out: &dyn Report,
    ) -> Result<Box<dyn Transport>, Error> {
        match &self.usb {
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

/// The address that a node of the device tree has for its network device: the properties in the order in which Linux looks at
/// them (Devicetree specification 4.1.3, and Linux's ethernet-controller binding).
fn device_tree_mac(node: &Path) -> Option<[u8; 6]> {
    let names = ["mac-address", "local-mac-address", "address"];
    let bytes = names.iter().filter_map(|name| <[u8; 6]>::try_from(fs::read(node.join(name)).ok()?).ok());
    bytes.into_iter().find(|mac| mac[0] & 1 == 0 && *mac != [0; 6])
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

fn driver_error(error: driver::Error) -> Error {
    Error::new(Kind::System, format!("the adapter cannot be used: {error}"), "unplug it and plug it in again")
        .why("it does not answer as a LAN78xx does")
}

/// Says whose the TAP is, where it is there already and this user has no right to it.
fn somebody_elses(error: Error, dev: &str) -> Error {
    let of = |what: &str| fs::read_to_string(format!("/sys/class/net/{dev}/{what}")).ok()?.trim().parse::<i64>().ok();
    let is_ours = of("owner").is_none_or(|owner| owner == i64::from(sys::euid()));
    let whose = match (of("owner"), of("group")) {
        // What this user may have and not change is another matter.
        _ if error.kind != Kind::NoPermission || !error.message.starts_with("cannot create") => return error,
        (Some(owner @ 0..), _) if !is_ours => format!("the user {owner}"),
        // Members of the group may use it; who was refused is none.
        (Some(-1), Some(group @ 0..)) => format!("the group {group}"),
        _ => return error,
    };
    let hint = format!(
        "--dev NAME, a TAP of this user\nor once by root, for this user: sudo ip tuntap del dev {dev} mode tap"
    );
    error.why(format!("{dev} is there already and belongs to {whose}")).hint(hint)
}

/// Ends a set-up when a signal asks for the end, which is left for the loop to read, or when it takes longer than this.
fn guard(longest: Duration) -> io::Result<Arc<Guard>> {
    let signals = SignalFd::new(&[libc::SIGINT, libc::SIGTERM])?;
    Ok(Arc::new(Guard::new(signals.as_fd().try_clone_to_owned()?, longest)))
}

/// The connection to a USB/IP server, for one who has to end what waits for it.
#[derive(Clone, Default)]
struct Lifeline(Arc<Mutex<Option<OwnedFd>>>);

impl Lifeline {
    /// This is the connection from here on.
    fn take(&self, usb: &dyn Transport) {
        let fd = usb.fd().and_then(|fd| fd.try_clone_to_owned().ok());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fd;
    }

    /// Ends it: every request fails at once.
    fn cut(&self) {
        if let Some(fd) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // One that is closed already cannot be closed.
            let _ = TcpStream::from(fd).shutdown(Shutdown::Both);
        }
    }
}

/// What is wrong with an adapter: `opener` hangs up when nobody can open it again.
fn complaints(opener: Option<UnixStream>) -> Complaints {
    Arc::new(move |instance: &Instance| {
        let hung_up = |line: &UnixStream| {
            sys::poll(&[(line.as_fd(), Want::Hangup)], Duration::ZERO).is_ok_and(|ready| ready == [true])
        };
        judge(instance, opener.as_ref().is_some_and(hung_up))
    })
}

fn judge(instance: &Instance, nobody_opens: bool) -> Vec<Complaint> {
    let number = |name: &str| instance.ports.get(ADAPTER).and_then(|port| port.numbers.get(name)).copied().unwrap_or(0);
    let mut found = Vec::new();
    if number("gone") > 0 {
        let then = if nobody_opens { "start segue again" } else { "the adapter is looked for once a second" };
        let why = match number("stranger") {
            0 => "unplugged, or it does not answer".to_owned(),
            id => in_its_place((id >> 16) as u16, id as u16),
        };
        found.push(("adapter gone".to_owned(), format!("{why}; {then}")));
    }
    if nobody_opens {
        let why = "the process that opens an adapter again has ended; start segue again";
        found.push(("no reopening".to_owned(), why.to_owned()));
    }
    let (refused, mtu) = (number("refused_mtu"), number("mtu"));
    if refused > 0 {
        let (name, why) = (&instance.name, format!("the adapter takes {mtu} instead"));
        found.push((format!("mtu {refused}"), format!("{why}; ip link set dev {name} mtu {mtu}")));
    }
    found.into_iter().map(|(what, why)| Complaint { what, why: Some(why), since: None }).collect()
}

/// What is to be said of another device in the adapter's place.
fn in_its_place(vendor: u16, product: u16) -> String {
    match Chip::of(vendor, product) {
        Some(chip) => format!("a {} came back in its place, which segue started again takes", chip.name()),
        None => {
            format!("the USB device {vendor:04x}:{product:04x} is in its place, which is no LAN78xx and is left alone")
        }
    }
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
        Ok(gateway::knobs([ADAPTER, &self.tap.name], [gro, None], self.weight()))
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
        AddressSource::Platform => "the device tree",
        AddressSource::Eeprom => "its EEPROM",
        AddressSource::Otp => "its OTP memory",
        AddressSource::Random => "nowhere, a random one",
        AddressSource::User => "the user",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &str) -> args::Up {
        use clap::Parser;
        #[derive(Parser)]
        struct Words {
            #[command(flatten)]
            up: args::Up,
        }
        Words::parse_from(std::iter::once("up").chain(words.split(' ').filter(|word| !word.is_empty()))).up
    }

    #[test]
    fn an_adapter_is_at_a_usbip_server_or_a_model() {
        let usb = |text: &str| Usb::parse(&args::Up { usb: text.to_owned(), ..args("") });
        let parsed = usb("usbip://198.18.0.1/1-1").unwrap();
        assert_eq!(parsed, Usb::Usbip { server: "198.18.0.1:3240".to_owned(), bus_id: "1-1".to_owned() });
        assert_eq!(usb("model").unwrap(), Usb::Model { wire: None, config: ModelConfig::default() });
        assert_eq!(usb("auto").unwrap(), Usb::Here(None));
        assert_eq!(usb("1-1.4").unwrap(), Usb::Here(Some("1-1.4".to_owned())));
        for bad in
            ["", "1", "1-", "-1", "1-1.", "1-a", "usbip://", "usbip://a", "usbip://a/", "usbip://a/1/2", "http://a/1"]
        {
            assert!(usb(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_model_is_what_was_asked_for_and_other_adapters_are_what_they_are() {
        let config = |words: &str| match Usb::parse(&args(words)) {
            Ok(Usb::Model { config, .. }) => Some((config.chip.name(), config.speed, config.paced)),
            _ => None,
        };
        assert_eq!(config("--usb model"), Some(("LAN7800", Speed::Super, false)));
        assert_eq!(config("--usb model --chip lan7850 --paced"), Some(("LAN7850", Speed::High, true)));
        assert_eq!(config("--usb model --chip lan7801 --speed full"), Some(("LAN7801", Speed::Full, false)));
        assert_eq!(config("--usb model --chip lan7850 --speed super"), None);
        for option in ["--wire tap:c0", "--chip lan7800", "--speed high", "--paced"] {
            for usb in ["auto", "1-1", "usbip://a/1-1"] {
                let refused = Usb::parse(&args(&format!("--usb {usb} {option}"))).map(|_| ()).unwrap_err();
                assert_eq!(refused.kind, Kind::Conflict, "{usb} {option}");
            }
        }
    }

    #[test]
    fn the_interface_is_named_with_two_dashes_or_without() {
        let named = |words: &str| name(&args(words)).map(str::to_owned).map_err(|error| error.kind);
        for words in ["dev foo", "--dev foo", "--usb model dev foo --mtu 9000", "dev foo --usb model"] {
            assert_eq!(named(words), Ok("foo".to_owned()), "{words}");
        }
        assert_eq!(named(""), Ok("lan0".to_owned()));
        for (words, kind) in [
            ("dev", Kind::Missing),
            ("foo", Kind::UnknownWord),
            ("dev foo bar", Kind::UnknownWord),
            ("foo dev bar", Kind::UnknownWord),
            ("dev foo --dev bar", Kind::Conflict),
        ] {
            assert_eq!(named(words), Err(kind), "{words}");
        }
        for bad in ["0123456789abcdef", "a/b", "", ".."] {
            let error = Tap::interface(bad, 1500).unwrap_err();
            assert!(error.kind == Kind::BadValue && error.hint.contains("--dev"), "{bad}");
        }
    }

    #[test]
    fn there_is_one_budget_the_weight_of_the_poll_loop() {
        for (words, weight) in
            [("", "64"), ("--budget 7", "7"), ("--mode standard", "256"), ("--mode standard --budget 300", "300")]
        {
            let plan = plan(&args(words)).unwrap();
            let knobs = segue_service::daemon::knobs::Desk::new(Arc::new(plan.knobs().unwrap())).list();
            for name in ["net.napi.dev.adapter.weight", "net.napi.dev.lan0.weight"] {
                let knob = knobs.iter().find(|knob| knob.name == name).unwrap();
                assert_eq!(knob.value.to_string(), weight, "{words} {name}");
            }
            for speed in [Speed::Full, Speed::High, Speed::Super] {
                assert_eq!(plan.config(speed).budget, None, "{words}");
            }
        }
        let named = plan(&args("--mac 02:00:00:00:00:07")).unwrap();
        assert_eq!(named.config(Speed::High).mac, Some([2, 0, 0, 0, 0, 7]));
    }

    #[test]
    fn an_mtu_that_no_driver_takes_is_a_wrong_value() {
        let kind = |mtu: u32, speed| {
            let plan = plan(&args(&format!("--mtu {mtu}"))).unwrap();
            plan.check_mtu(speed).map_err(|error| (error.kind, error.hint))
        };
        assert_eq!(kind(1006, Speed::Super), Err((Kind::BadValue, "--mtu 1005 or --mtu 1007".to_owned())));
        assert_eq!((kind(494, Speed::Super), kind(494, Speed::High).is_err()), (Ok(()), true));
        assert_eq!(kind(1500, Speed::Full), Ok(()));
    }

    #[test]
    fn an_adapter_that_is_gone_a_lost_opener_and_an_mtu_that_does_not_fit_are_complained_about() {
        let complaints_of = |numbers: &[(&str, u64)], nobody_opens| {
            let numbers = numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let port = segue_control::model::Port { numbers, ..Default::default() };
            let ports = [(ADAPTER.to_owned(), port)].into();
            let instance = Instance { name: "lan0".to_owned(), ports, ..Instance::default() };
            judge(&instance, nobody_opens)
        };
        let judged = |numbers: &[(&str, u64)], nobody_opens| {
            complaints_of(numbers, nobody_opens).into_iter().map(|complaint| complaint.what).collect::<Vec<_>>()
        };
        let why = |stranger| {
            let complaints = complaints_of(&[("gone", 1), ("stranger", stranger)], false);
            complaints.into_iter().filter_map(|complaint| complaint.why).collect::<Vec<_>>()
        };
        let looked_for = "the adapter is looked for once a second";
        for (stranger, is) in [
            (0, "unplugged, or it does not answer"),
            (0x0424_7850, "a LAN7850 came back in its place, which segue started again takes"),
            (0x07c9_0012, "a LAN7801 came back in its place, which segue started again takes"),
            (0x1d6b_0003, "the USB device 1d6b:0003 is in its place, which is no LAN78xx and is left alone"),
        ] {
            assert_eq!(why(stranger), [format!("{is}; {looked_for}")]);
        }
        assert_eq!(judged(&[("gone", 0), ("mtu", 1500), ("refused_mtu", 0)], false), [""; 0]);
        assert_eq!(judged(&[("gone", 1)], false), ["adapter gone"]);
        assert_eq!(judged(&[("gone", 1)], true), ["adapter gone", "no reopening"]);
        assert_eq!(judged(&[], true), ["no reopening"]);
        assert_eq!(judged(&[("mtu", 9000), ("refused_mtu", 9100)], false), ["mtu 9100"]);
        let (near, far) = UnixStream::pair().unwrap();
        let complain = complaints(Some(near));
        assert!(complain(&Instance::default()).is_empty());
        drop(far);
        assert_eq!(complain(&Instance::default()).len(), 1);
    }

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
        // A boot loader that filled nothing in leaves zeros.
        for bad in [&[0; 6][..], &[1, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0], &[]] {
            put("mac-address", bad);
            assert_eq!(device_tree_mac(&node), Some([2, 0, 0, 0, 0, 2]));
        }
        fs::remove_dir_all(&node).unwrap();
    }
}
