//! `segue lan78xx model`: the model of an adapter behind USB/IP, its cable a TAP.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use segue::time::Nanos;
use segue_datapath::board::{Group, Sink};
use segue_datapath::pipeline::{Interest, Pipeline, Round};
use segue_lan78xx::frame::rx::flag;
use segue_lan78xx::model::{Access, Config, Fault, Lies, LinkSpeed, Model, Notes, Partner};
use segue_lan78xx::regs;
use segue_lan78xx::usb::usbip::serve::{Server, Wire};
use serde_json::{Value, json};

use super::{args, schema};
use crate::control::model::Side;
use crate::daemon::running::Offloads;
use crate::daemon::{self, Daemon, Opened};
use crate::error::Error;
use crate::out::Out;
use crate::sandbox::Sandbox;
use crate::sys::{self, Want};
use crate::system::Netlink;
use crate::tap::Tap;

/// The bus id under which the model is found.
const BUS_ID: &str = "1-1";
/// Name of the USB side in statistics.
const USB: &str = "usb";

/// Runs the command.
pub(super) fn run(args: &args::Model, out: &Out) -> Result<(), Error> {
    let config = super::config(&args.chip)?;
    let tap = args.wire.as_ref().map(|wire| Tap::parse(wire, args.wire_mtu)).transpose()?;
    let plan = Plan { name: args.name.clone(), address: args.usbip, config, tap, commands: args.commands, out: *out };
    let mut netlink = Netlink::open().map_err(|error| {
        Error::system("cannot ask the kernel for interfaces", &error, "segue doctor")
            .why("no rtnetlink socket could be opened")
    })?;
    daemon::up(&plan, &mut netlink, out)
}

struct Plan {
    name: String,
    address: SocketAddr,
    config: Config,
    tap: Option<Tap>,
    commands: bool,
    out: Out,
}

impl Daemon for Plan {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "lan78xx-model"
    }

    fn schema(&self) -> &'static str {
        schema::EVENTS
    }

    fn notes(&self) -> Vec<String> {
        if self.address.ip().is_loopback() {
            return Vec::new();
        }
        vec![format!("USB/IP has no protection: whoever reaches {} has the device", self.address)]
    }

    fn ports(&self) -> Vec<(String, Side)> {
        let wire = self.tap.iter().map(|tap| (tap.name.clone(), Side::Inside));
        std::iter::once((USB.to_owned(), Side::Outside)).chain(wire).collect()
    }

    fn open(&self, netlink: &mut Netlink, out: &Out) -> Result<Opened, Error> {
        let wire = match &self.tap {
            Some(tap) => Some(tap.open(netlink, out)?),
            None => None,
        };
        let listener = TcpListener::bind(self.address).map_err(|error| {
            Error::system(format!("cannot answer on {}", self.address), &error, "--usbip ADDR:PORT")
                .why("the address is not of this host, or the port is taken")
        })?;
        let wire_name = self.tap.as_ref().map(|tap| tap.name.clone());
        let (config, commands, out) = (self.config, self.commands, self.out);
        let assemble = move || -> Result<Box<dyn Pipeline>, Error> {
            let wire = wire.map(|port| Wire::new(Box::new(port)));
            let server = Server::new(listener, BUS_ID, Model::new(config), wire).map_err(|error| {
                Error::system("cannot listen", &error, "start again").why("the socket cannot be made non-blocking")
            })?;
            let commands = commands.then(Commands::default);
            Ok(Box::new(Served { server, commands, wire_name, out }))
        };
        Ok(Opened { offloads: Offloads::default(), teller: None, checksum_drops: None, assemble: Box::new(assemble) })
    }

    fn up_text(&self, _offloads: &Offloads, sandbox: &Sandbox) -> String {
        let wire = self.tap.as_ref().map_or_else(|| "no cable".to_owned(), |tap| format!("cable {}", tap.name));
        format!(
            "{} is up: {} at {} speed, {wire}, {}\nAttach: usbip attach -r {} --tcp-port {} -b {BUS_ID}      Stop: Ctrl-C\n",
            self.name,
            self.config.chip.name(),
            self.config.speed.name(),
            sandbox.text(),
            self.address.ip(),
            self.address.port(),
        )
    }

    fn up_json(&self) -> Value {
        let plan = schema::Model {
            name: self.name.clone(),
            usbip: self.address.to_string(),
            bus_id: BUS_ID.to_owned(),
            chip: self.config.chip.name().to_owned(),
            speed: self.config.speed.name().to_owned(),
            wire: self.tap.as_ref().map(|tap| tap.name.clone()),
        };
        json!({ "plan": plan })
    }
}

/// What is read from stdin, a line at a time.
#[derive(Default)]
struct Commands {
    line: Vec<u8>,
    ended: bool,
}

/// Longest command.
const MAX_LINE: usize = 256;

struct Served {
    server: Server,
    commands: Option<Commands>,
    wire_name: Option<String>,
    out: Out,
}

impl Served {
    /// Obeys what stdin says.
    fn obey(&mut self) -> io::Result<()> {
        while let Some(commands) = self.commands.as_mut().filter(|commands| !commands.ended) {
            let stdin = io::stdin();
            if !sys::poll(&[(stdin.as_fd(), Want::Read)], Duration::ZERO)?.first().copied().unwrap_or(false) {
                return Ok(());
            }
            let mut buffer = [0; 256];
            let len = stdin.lock().read(&mut buffer).unwrap_or(0);
            commands.ended = len == 0;
            let mut lines = Vec::new();
            for byte in &buffer[..len] {
                if *byte == b'\n' {
                    lines.push(String::from_utf8_lossy(&std::mem::take(&mut commands.line)).into_owned());
                } else if commands.line.len() < MAX_LINE {
                    commands.line.push(*byte);
                }
            }
            for line in lines {
                if let Err(why) = self.command(&line) {
                    self.out.warn(&format!("note: `{}`: {why}", crate::error::printable(&line)));
                }
            }
        }
        Ok(())
    }

    fn command(&mut self, line: &str) -> Result<(), String> {
        let model = &mut self.server.model;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [] => {}
            ["unplug"] => model.unplug(),
            ["plug"] => model.replug(),
            ["link", "down"] => model.set_partner(None),
            ["link", "up"] => model.set_partner(model.config().partner),
            ["link", "up", speed] => {
                let speed = match speed {
                    "10" => LinkSpeed::M10,
                    "100" => LinkSpeed::M100,
                    "1000" => LinkSpeed::M1000,
                    _ => return Err("a speed is 10, 100 or 1000".to_owned()),
                };
                model.set_partner(Some(Partner { speed, pause: true }));
            }
            ["lie", "none"] => model.set_lies(Lies::default()),
            ["lie", "checksum"] => model.set_lies(Lies { inverted_checksum: true, ..Lies::default() }),
            ["lie", "header"] => model.set_lies(Lies { shifted_frames: true, ..Lies::default() }),
            ["fault", name] => model.inject(match name {
                "stall-in" => Fault::BulkInStall,
                "stall-out" => Fault::BulkOutStall,
                "stall-control" => Fault::ControlStall,
                "empty" => Fault::EmptyTransfer,
                "fcs" => Fault::RxError(flag::FCS),
                _ => return Err("there is no such fault".to_owned()),
            }),
            ["notes"] => {
                let notes = notes(&model.notes()).map(|(name, n)| (name.to_owned(), n)).collect();
                let attached = self.server.is_attached();
                let link_mbit = self.server.model.link().map(LinkSpeed::mbit);
                let (schema, event) = (schema::EVENTS.to_owned(), "notes".to_owned());
                self.out.value(&json!(schema::Notes { schema, event, attached, link_mbit, notes }));
            }
            ["trace"] => {
                let trace = trace(model.take_trace());
                model.start_trace();
                self.out.value(&json!(trace));
            }
            _ => return Err("there is no such command; segue lan78xx model --help".to_owned()),
        }
        Ok(())
    }
}

/// What drivers touched, without order: a driver writes some registers as often as it likes.
fn trace(accesses: Vec<Access>) -> schema::Trace {
    let (mut written, mut read) = (BTreeMap::new(), BTreeSet::new());
    let name = |register: u16| format!("{register:#06x}");
    for access in accesses {
        match access {
            Access::Read(register) => {
                read.insert(name(register));
            }
            Access::Write(register, value) => {
                written.insert(name(register), value);
            }
            Access::Statistics => {}
        }
    }
    let (schema, event) = (schema::EVENTS.to_owned(), "trace".to_owned());
    schema::Trace { schema, event, written, read: read.into_iter().collect() }
}

/// The model's own counters by name.
fn notes(notes: &Notes) -> impl Iterator<Item = (&'static str, u64)> {
    [
        ("controls", notes.controls),
        ("bulk_in", notes.bulk_in),
        ("bulk_out", notes.bulk_out),
        ("bulk_out_frames", notes.bulk_out_frames),
        ("lso_frames", notes.lso_frames),
        ("lso_largest", notes.lso_largest),
        ("tags_inserted", notes.tags_inserted),
        ("csum_frames", notes.csum_frames),
        ("lost_sync", notes.lost_sync),
        ("unterminated", notes.unterminated),
        ("unfit", notes.unfit),
        ("bad_lso", notes.bad_lso),
        ("filtered", notes.filtered),
        ("partner_lost", notes.partner_lost),
        ("pauses_sent", notes.pauses_sent),
        ("interrupts", notes.interrupts),
    ]
    .into_iter()
}

impl Pipeline for Served {
    fn round(&mut self, _now: Nanos) -> io::Result<Round> {
        self.obey()?;
        Ok(if self.server.step()? { Round::More } else { Round::Idle })
    }

    fn each_interest(&self, wait: &mut dyn FnMut(Interest<'_>)) {
        self.server.each_interest(&mut |fd, read, write| wait(Interest { fd, read, write }));
        if self.commands.as_ref().is_some_and(|commands| !commands.ended) {
            wait(Interest { fd: io::stdin().as_fd(), read: true, write: false });
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        self.server.model.deadline()
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        for (name, value) in notes(&self.server.model.notes()) {
            sink.put(USB, Group::Port, name, value);
        }
        if let Some(wire) = &self.wire_name {
            for (kind, value) in regs::STATISTICS.iter().zip(self.server.model.statistics()) {
                sink.put(wire, Group::Port, kind.name, u64::from(value));
            }
            sink.put(wire, Group::Port, "wire_lost", self.server.wire.as_ref().map_or(0, |wire| wire.lost));
        }
    }
}
