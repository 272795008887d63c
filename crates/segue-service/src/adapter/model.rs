//! The model of an adapter, exported over USB/IP, with a TAP as its cable.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use segue::time::Nanos;
use segue_control::error::{Error, printable};
use segue_control::event::{LogEntry, LogEvent};
use segue_control::model::Side;
use segue_datapath::board::{Group, Sink};
use segue_datapath::pipeline::{Interest, Pipeline, Round};
use segue_host::netlink::Netlink;
use segue_host::sys::{self, Want};
use segue_lan78xx::frame::rx::flag;
use segue_lan78xx::model::{Access, Config, Defects, Fault, LinkSpeed, Model, Notes, Partner};
use segue_lan78xx::regs;
use segue_lan78xx::usb::usbip::PORT;
use segue_lan78xx::usb::usbip::serve::{Server, Wire};
use segue_port::Direction;
use serde_json::{Value, json};

use super::schema;
use crate::daemon::running::Offloads;
use crate::daemon::{Daemon, Opened, Succession};
use crate::fastpath::Fastpath;
use crate::fault::Vitals;
use crate::report::Report;
use crate::sandbox::Sandbox;
use crate::tap::Tap;

/// The bus id of the model.
const BUS_ID: &str = "1-1";
/// Name of the USB side in statistics.
const USB: &str = "usb";

/// Returns the shell command that attaches the model on this host.
fn attach(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    // The option of the port stands in front of the subcommand.
    let port = if address.port() == PORT { String::new() } else { format!(" --tcp-port {}", address.port()) };
    let others = if address.ip().is_unspecified() { " (elsewhere: an address of this host)" } else { "" };
    format!("usbip{port} attach -r {ip} -b {BUS_ID}{others}")
}

/// The plan of a model that serves a USB/IP address.
pub struct Plan {
    name: String,
    address: SocketAddr,
    config: Config,
    tap: Option<Tap>,
    commands: bool,
    out: Arc<dyn Report>,
    /// The address that is served, with the port that the kernel chose.
    bound: OnceCell<SocketAddr>,
}

impl Plan {
    /// Creates a model of this name with a cable to `tap`. With `commands` it reads commands from its standard input
    /// and writes the answers to `report`.
    pub fn new(
        name: String,
        address: SocketAddr,
        config: Config,
        tap: Option<Tap>,
        commands: bool,
        report: Arc<dyn Report>,
    ) -> Plan {
        Plan { name, address, config, tap, commands, out: report, bound: OnceCell::new() }
    }

    fn place(&self) -> SocketAddr {
        self.bound.get().copied().unwrap_or(self.address)
    }
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
        vec![format!("USB/IP has no authentication: any host that can connect to {} can take the device", self.address)]
    }

    fn ports(&self) -> Vec<(String, Side)> {
        let wire = self.tap.iter().map(|tap| (tap.name.clone(), Side::Inside));
        std::iter::once((USB.to_owned(), Side::Outside)).chain(wire).collect()
    }

    fn open(&self, netlink: &mut Netlink, _: &mut Succession, out: &dyn Report) -> Result<Opened, Error> {
        let wire = match &self.tap {
            Some(tap) => Some(tap.open(netlink, out)?),
            None => None,
        };
        let bound = TcpListener::bind(self.address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (place, listener) = bound.map_err(|error| {
            Error::system(format!("cannot answer on {}", self.address), &error, "--usbip ADDR:PORT")
                .why("the address is not of this host, or the port is taken")
        })?;
        let _ = self.bound.set(place);
        let wire_name = self.tap.as_ref().map(|tap| tap.name.clone());
        let (config, commands, out) = (self.config, self.commands, Arc::clone(&self.out));
        let assemble = move |_: &Vitals| -> Result<Box<dyn Pipeline>, Error> {
            let wire = wire.map(|port| Wire::new(Box::new(port)));
            let server = Server::new(listener, BUS_ID, Model::new(config), wire).map_err(|error| {
                Error::system("cannot listen", &error, "start again").why("the socket cannot be made non-blocking")
            })?;
            let commands = commands.then(Commands::default);
            Ok(Box::new(Served { server, commands, wire_name, out }))
        };
        Ok(Opened::new(Offloads::default(), Box::new(assemble)))
    }

    fn up_text(&self, _offloads: &Offloads, sandbox: &Sandbox, _fastpath: Option<&Fastpath>) -> String {
        let wire = self.tap.as_ref().map_or_else(|| "no cable".to_owned(), |tap| format!("cable {}", tap.name));
        format!(
            "{} is up: {} at {} speed, {wire}, {}\nAttach: {}      Stop: Ctrl-C\n",
            self.name,
            self.config.chip.name(),
            self.config.speed.name(),
            sandbox.text(),
            attach(self.place()),
        )
    }

    fn up_json(&self) -> Value {
        let plan = schema::Model {
            name: self.name.clone(),
            usbip: self.place().to_string(),
            bus_id: BUS_ID.to_owned(),
            chip: self.config.chip.name().to_owned(),
            speed: self.config.speed.name().to_owned(),
            wire: self.tap.as_ref().map(|tap| tap.name.clone()),
        };
        json!({ "plan": plan })
    }
}

/// Reader of command lines from the standard input.
#[derive(Default)]
struct Commands {
    line: Vec<u8>,
    ended: bool,
}

/// Longest command of the model, bytes.
const MAX_LINE: usize = 256;

impl Commands {
    /// Adds input bytes (none at the end of the input), and returns the complete lines. The last line needs no line
    /// feed.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.ended = bytes.is_empty();
        let mut lines = Vec::new();
        for byte in bytes.iter().chain(self.ended.then_some(&b'\n')) {
            if *byte == b'\n' {
                lines.push(String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned());
            } else if self.line.len() < MAX_LINE {
                self.line.push(*byte);
            }
        }
        lines
    }
}

/// Returns a line in a form that is safe to print.
fn shown(line: &str) -> String {
    line.split_ascii_whitespace().map(printable).collect::<Vec<_>>().join(" ")
}

struct Served {
    server: Server,
    commands: Option<Commands>,
    wire_name: Option<String>,
    out: Arc<dyn Report>,
}

impl Served {
    /// Executes the commands of the standard input.
    fn obey(&mut self) -> io::Result<()> {
        while let Some(commands) = self.commands.as_mut().filter(|commands| !commands.ended) {
            let stdin = io::stdin();
            if !sys::poll(&[(stdin.as_fd(), Want::Read)], Duration::ZERO)?.first().copied().unwrap_or(false) {
                return Ok(());
            }
            let mut buffer = [0; 256];
            let len = stdin.lock().read(&mut buffer).unwrap_or(0);
            let lines = commands.take(&buffer[..len]);
            for line in lines {
                if let Err(why) = self.command(&line) {
                    self.out.event(&LogEntry::new(LogEvent::Adapter, format!("note: `{}`: {why}", shown(&line))));
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
            ["lie", "none"] => model.set_defects(Defects::default()),
            ["lie", "checksum"] => model.set_defects(Defects { inverted_checksum: true, ..Defects::default() }),
            ["lie", "header"] => model.set_defects(Defects { shifted_frames: true, ..Defects::default() }),
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

/// Returns the registers that drivers accessed, without their order: a driver writes some registers any number of
/// times.
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

/// Returns the model's own counters by name.
fn notes(notes: &Notes) -> impl Iterator<Item = (&'static str, u64)> {
    [
        ("controls", notes.controls),
        ("bulk_in", notes.bulk_in),
        ("bulk_in_frames", notes.bulk_in_frames),
        ("bulk_in_bytes", notes.bulk_in_bytes),
        ("bulk_out", notes.bulk_out),
        ("bulk_out_frames", notes.bulk_out_frames),
        ("bulk_out_bytes", notes.bulk_out_bytes),
        ("bulk_out_segments", notes.bulk_out_segments),
        ("lso_frames", notes.lso_frames),
        ("lso_largest", notes.lso_largest),
        ("tags_inserted", notes.tags_inserted),
        ("csum_frames", notes.csum_frames),
        ("lost_sync", notes.lost_sync),
        ("unterminated", notes.unterminated),
        ("unfit", notes.unfit),
        ("bad_lso", notes.bad_lso),
        ("bad_fcs", notes.bad_fcs),
        ("no_link", notes.no_link),
        ("wire_full", notes.wire_full),
        ("filtered", notes.filtered),
        ("unheard", notes.unheard),
        ("too_long", notes.too_long),
        ("fifo_full", notes.fifo_full),
        ("partner_lost", notes.partner_lost),
        ("flushed", notes.flushed),
        ("unclaimed", notes.unclaimed),
        ("cut_off", notes.cut_off),
        ("too_big", notes.too_big),
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
        self.server.deadline()
    }

    fn collect(&self, sink: &mut Sink<'_>) {
        let seen = self.server.model.notes();
        for (name, value) in notes(&seen) {
            sink.put(USB, Group::Port, name, value);
        }
        let received = Direction {
            packets: seen.bulk_out_frames,
            bytes: seen.bulk_out_bytes,
            trains: seen.lso_frames,
            segments: seen.bulk_out_segments,
            calls: seen.bulk_out,
        };
        let (packets, bytes) = (seen.bulk_in_frames, seen.bulk_in_bytes);
        let sent = Direction { packets, bytes, trains: 0, segments: packets, calls: seen.bulk_in };
        flows(sink, USB, &received, &sent);
        for (reason, lost) in [
            ("unfit", seen.unfit),
            ("bad_lso", seen.bad_lso),
            ("bad_fcs", seen.bad_fcs),
            ("no_link", seen.no_link),
            ("wire_full", seen.wire_full),
            ("partner_lost", seen.partner_lost),
            ("too_long", seen.too_long),
            ("fifo_full", seen.fifo_full),
            ("flushed", seen.flushed),
            ("unclaimed", seen.unclaimed),
            ("cut_off", seen.cut_off),
            ("too_big", seen.too_big),
            ("cable_lost", self.server.uncabled()),
        ] {
            sink.put(USB, Group::Drops, reason, lost);
        }
        let Some(name) = &self.wire_name else { return };
        for (kind, value) in regs::STATISTICS.iter().zip(self.server.model.statistics()) {
            sink.put(name, Group::Port, kind.name, u64::from(value));
        }
        if let Some(wire) = &self.server.wire {
            let (counters, lost) = (wire.counters(), wire.lost());
            flows(sink, name, &counters.rx, &counters.tx);
            sink.reasons(name, Group::Drops, &counters.drops);
            // Names that the port has as well are added.
            sink.put(name, Group::Drops, "queue_full", lost.queue_full);
            sink.put(name, Group::Drops, "refused", lost.refused);
        }
    }
}

/// Adds the counters of one side in both directions.
fn flows(sink: &mut Sink<'_>, side: &str, received: &Direction, sent: &Direction) {
    for (group, direction) in [(Group::Receive, received), (Group::Transmit, sent)] {
        sink.put(side, group, "packets", direction.packets);
        sink.put(side, group, "bytes", direction.bytes);
        sink.put(side, group, "trains", direction.trains);
        sink.put(side, group, "segments", direction.segments);
        sink.put(side, group, "calls", direction.calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Forwarded;

    /// A report that prints nothing.
    struct Silent;

    impl Report for Silent {
        fn is_json(&self) -> bool {
            false
        }
        fn value(&self, _: &Value) {}
        fn forward(&self, _: &Forwarded<'_>) {}
        fn event(&self, _: &LogEntry<'_>) {}
        fn change(&self, _: &str, _: &str) {}
        fn error(&self, _: &Error) {}
    }

    #[test]
    fn what_crosses_a_model_and_what_it_loses_are_flows_and_drops() {
        use segue_datapath::board::Board;
        use segue_lan78xx::frame::tx::Command;
        use segue_lan78xx::model::TransferRequest;
        use segue_lan78xx::usb::Setup;

        let mut model = Model::new(Config { partner_queue: 2, ..Config::default() });
        for (index, value) in [(regs::FCT_TX_CTL, regs::fct::EN), (regs::MAC_TX, regs::mac_tx::TXEN)] {
            let setup = Setup { request_type: 0x40, request: 0xa0, value: 0, index, length: 4 };
            model.control(setup, &value.to_le_bytes()).unwrap();
        }
        for _ in 0..5 {
            model.receive(vec![0; 60]);
        }
        // The link is down.
        model.submit(1, 2, TransferRequest::Out([&Command::plain(60).emit()[..], &[0; 60]].concat(), false));
        model.advance(Nanos(1));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(listener, BUS_ID, model, None).unwrap();
        let out = Arc::new(Silent);
        let served = Served { server, commands: None, wire_name: None, out };
        let board = Board::new(|sink| served.collect(sink));
        board.publish(|sink| served.collect(sink));
        let of = |group, key| {
            board.read().filter(|(name, _)| name.group == group && name.key == key).map(|(_, value)| value).sum::<u64>()
        };
        assert_eq!((of(Group::Drops, "partner_lost"), of(Group::Drops, "no_link")), (3, 1));
        assert_eq!((of(Group::Receive, "packets"), of(Group::Receive, "bytes")), (1, 60));
        assert_eq!((of(Group::Transmit, "packets"), of(Group::Port, "unheard")), (0, 2));
    }

    #[test]
    fn the_command_to_attach_names_an_address_that_can_be_reached() {
        let of = |text: &str| attach(text.parse().unwrap());
        assert_eq!(of("127.0.0.1:3240"), "usbip attach -r 127.0.0.1 -b 1-1");
        assert_eq!(of("198.18.0.1:9"), "usbip --tcp-port 9 attach -r 198.18.0.1 -b 1-1");
        assert!(of("0.0.0.0:3240").starts_with("usbip attach -r 127.0.0.1 -b 1-1 (elsewhere"));
        assert!(of("[::]:3240").starts_with("usbip attach -r ::1 -b 1-1 (elsewhere"));
    }

    #[test]
    fn commands_are_lines_and_the_last_needs_no_end() {
        let mut commands = Commands::default();
        assert_eq!(commands.take(b"link do"), Vec::<String>::new());
        assert_eq!(commands.take(b"wn\nplug\nno"), ["link down", "plug"]);
        assert_eq!(commands.take(b"tes"), Vec::<String>::new());
        assert_eq!((commands.take(b""), commands.ended), (vec!["notes".to_owned()], true));
        assert_eq!(shown("link  up\t7\u{1b}[m"), "link up 7?[m");
    }
}
