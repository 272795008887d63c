//! The program `segue-fleet`, which `segue fleet` starts: command line, log and signals. The library does the work.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use clap::Parser;
use segue_control::confinement::{Needs, confine};
use segue_control::error::{Error, Kind, printable, printable_line};
use segue_control::fleet::{self, FleetState};
use segue_control::peers::{self, Encap};
use segue_fleet::agent::{self, Announce, Settings};
use segue_fleet::args::{Call, Cli, Command, Etcd, Hook, Mode, Offered};
use segue_fleet::connect;
use segue_fleet::datapath::{Datapath, LocalEndpoint, Tunnel};
use segue_fleet::etcd::Etcd as Client;
use segue_fleet::event::{self, Event};
use segue_fleet::hook::{self, Takes};
use segue_fleet::keeper::Terms;
use segue_fleet::lease::Offer;
use segue_fleet::subnet_env::SubnetEnv;
use segue_host::netlink::Netlink;
use segue_host::sandbox::filter::Tasks;
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // HEALTH and the metrics read the state, and other programs `subnet.env`, as other users, whatever the mask of this
    // process was. What is for its owner alone has a mode of its own.
    sys::umask(0o022);
    let done = match command {
        Command::Etcd(args) => etcd(&args),
        Command::Hook(args) => called(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            to_stderr(&text(&error));
            ExitCode::from(error.kind.exit_code())
        }
    }
}

/// Returns an error in the form in which `segue` shows it.
fn text(error: &Error) -> String {
    let lines = |text: &str| text.replace('\n', "\n      ");
    let why = error.why.as_ref().map(|why| format!("why:  {}\n", lines(why))).unwrap_or_default();
    format!("error: {}\n{why}try:  {}\n", error.message, lines(&error.hint))
}

/// Writes to stderr, ignoring errors such as a closed stderr; the agent does not wait for its reader.
fn to_stderr(text: &str) {
    if let Some(text) = segue_host::stderr::admit(text) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Runs `segue fleet etcd`.
fn etcd(args: &Etcd) -> Result<(), Error> {
    let wrong = |message: String, why: &str| {
        Err(Error::new(Kind::Usage, message, "segue fleet etcd --help").why(why.to_owned()))
    };
    if !is_interface(&args.dev) {
        return wrong(format!("`{}` is no name of an interface", printable(&args.dev)), "it has 1 to 15 characters");
    }
    if args.max_peers == 0 || args.max_peers > peers::MOST {
        return wrong(format!("--max-peers {}", args.max_peers), &format!("it lies from 1 to {}", peers::MOST));
    }
    if !args.prefix.starts_with('/') || args.prefix.ends_with('/') {
        return wrong(format!("--prefix {}", printable(&args.prefix)), "it begins with / and does not end with it");
    }
    let offer = match (args.offer.contains(&Offered::Gue), args.offer.contains(&Offered::Remcsum)) {
        (false, false) => None,
        (false, true) => return wrong("--offer remcsum".to_owned(), "remote checksums need GUE: --offer gue,remcsum"),
        (true, remcsum) => Some(Offer { gue_port: args.gue_port, remcsum }),
    };
    let address = match (args.public_ip, &args.iface) {
        (Some(address), _) => address,
        (None, Some(name)) => address_of(name)?,
        (None, None) => return wrong("--iface or --public-ip is missing".to_owned(), "other hosts need an address"),
    };
    let client = connect::etcd(args)?;
    if let (_, Some(named)) = client.destinations() {
        // The C library loads the modules of its resolver, which the sandbox does not let it do later.
        let _ = named.to_socket_addrs();
    }
    let unwritable = |error: &std::io::Error| {
        Error::system("cannot write beside the control sockets", error, "segue help run").why("the state goes there")
    };
    let subnet_file = match &args.subnet_file {
        Some(file) => file.clone(),
        None => fleet::path_for_new(&args.dev, ".subnet.env").map_err(|error| unwritable(&error))?,
    };
    if let Some(folder) = subnet_file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // As flanneld does: /run is empty after a start of the machine.
        fs::create_dir_all(folder).map_err(|error| {
            Error::system(format!("cannot make the directory {}", folder.display()), &error, "another --subnet-file")
                .why(format!("{} goes there", subnet_file.display()))
        })?;
    }
    let _lock = lock(&args.dev)?;
    let mut signals = Signals::new().map_err(|error| {
        Error::system("cannot read signals", &error, "segue doctor").why("the kernel has no signalfd")
    })?;
    let before = SubnetEnv::read(&subnet_file).map(|file| file.subnet);
    // While the loop waits, the other threads do too, and the lease is not renewed.
    segue_host::stderr::never_wait(|lost| format!("fleet: warning: {lost}\n"));
    let mut log = Log { failed: false };
    let lacks = give_up_rights(args, &client, &subnet_file)?;
    lacks.iter().for_each(|lack| log.note(&format!("note: {lack}")));
    let (events, inbox) = event::queue();
    let sender = events.clone();
    thread::spawn(move || wait_for_signal(&mut signals, &sender));
    let (prefix, name, ttl) = (args.prefix.clone(), args.dev.clone(), args.ttl);
    let mut tunnel = Tunnel { name: name.clone() };
    let terms = Terms { prefix, address, name, end: LocalEndpoint::default(), offer, ttl, before };
    let settings = Settings { terms, subnet_file, limit: args.max_peers };
    let done = agent::run(settings, &client, &mut tunnel, &mut log, (events, inbox));
    // After an error the state stays, by which HEALTH knows of the end and why.
    if done.is_ok() {
        fleet::remove(&args.dev, fleet::ENDING, None);
    }
    done
}

/// Runs `segue fleet hook`. What flanneld takes from `pre` is stdout and stderr: nothing else is printed there.
fn called(args: &Hook) -> Result<(), Error> {
    let name = &args.dev;
    if !is_interface(name) {
        return Err(Error::new(Kind::Usage, format!("`{}` is no name of an interface", printable(name)), "--dev DEV"));
    }
    match &args.call {
        Call::Pre { mode, port, remcsum, vni, lladdr } => {
            let (mode, usual) = match mode {
                Mode::Gue => (Encap::Gue, 6080),
                Mode::Fou => (Encap::Fou, 8285),
                Mode::Vxlan => (Encap::Vxlan, 8472),
            };
            let vxlan = mode == Encap::Vxlan;
            if *remcsum && mode != Encap::Gue {
                return Err(Error::new(Kind::Usage, "--remcsum is for --mode gue", "--mode gue --remcsum"));
            }
            let mac = match lladdr {
                _ if !vxlan => None,
                Some(mac) => Some(mac.to_string()),
                None => Tunnel { name: name.clone() }.state()?.end.mac.map(|mac| mac.to_string()),
            };
            if vxlan && mac.is_none() {
                let message = format!("{name} does not listen for VXLAN");
                return Err(Error::new(Kind::Conflict, message, "segue tunnel ... listen vxlan:8472"));
            }
            let takes = Takes { mode, port: port.unwrap_or(usual), remcsum: *remcsum, vni: vxlan.then_some(*vni), mac };
            println!("{}", hook::pre(name, takes)?);
            Ok(())
        }
        Call::Post { network, subnet, public_ip, grace } => hook::post(name, network, subnet, public_ip, *grace),
        Call::Add { subnet, public_ip } => hook::add(name, subnet, public_ip, &hook::data()),
        Call::Del { subnet, .. } => hook::del(name, subnet),
        Call::Sweep { round, grace } => hook::sweep(name, *round, Duration::from_secs((*grace).into())),
    }
}

/// Reports the first signal that asks for a stop of the agent.
fn wait_for_signal(signals: &mut Signals, events: &SyncSender<Event>) {
    loop {
        let _ = sys::poll(&[(signals.as_fd(), sys::Want::Read)], Duration::from_secs(3600));
        while let Ok(Some((action, _))) = signals.receive() {
            match action {
                SignalAction::Stop => stop(events),
                SignalAction::StopNow => std::process::exit(130),
                _ => {}
            }
        }
    }
}

/// Asks the loop to stop. It may be behind, and the next signal is read meanwhile, which ends the process at once.
fn stop(events: &SyncSender<Event>) {
    if events.try_send(Event::Stop).is_err() {
        let events = events.clone();
        thread::spawn(move || {
            let _ = events.send(Event::Stop);
        });
    }
}

/// Returns whether Linux accepts the name for an interface.
fn is_interface(name: &str) -> bool {
    (1..16).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_graphic() && c != b'/' && c != b':')
        && !name.starts_with('.')
}

/// Returns the first IPv4 address of an interface.
fn address_of(name: &str) -> Result<Ipv4Addr, Error> {
    let failed =
        |error: &std::io::Error| Error::system(format!("cannot read the addresses of {name}"), error, "ip address");
    let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
    let link = netlink.link_named(name).map_err(|error| failed(&error))?.ok_or_else(|| {
        Error::new(Kind::NotFound, format!("there is no interface {}", printable(name)), "ip link")
            .why("--iface names one")
    })?;
    let addresses = netlink.addresses(link.index).map_err(|error| failed(&error))?;
    let four = addresses.iter().find_map(|prefix| match prefix.address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    four.ok_or_else(|| {
        Error::new(Kind::NotFound, format!("{name} has no IPv4 address"), format!("ip address show dev {name}"))
            .why("other hosts reach this one at it")
    })
}

/// Locks the tunnel against a second agent, and removes the states of earlier ones in other directories. The lock ends
/// with the process.
fn lock(name: &str) -> Result<File, Error> {
    let failed = |error: &std::io::Error| {
        Error::system("cannot lock the tunnel's table", error, "segue stat -d").why("two agents would undo one another")
    };
    let path = fleet::path_for_new(name, ".fleet.lock").map_err(|error| failed(&error))?;
    let file = fleet::lock_file(&path).map_err(|error| failed(&error))?;
    match sys::try_lock(&file) {
        Ok(true) => {
            fleet::remove(name, fleet::ENDING, path.parent());
            Ok(file)
        }
        Ok(false) => Err(Error::new(
            Kind::InUse,
            format!("another agent feeds {name}"),
            format!("fuser {}                  shows its process", path.display()),
        )
        .why("two agents would undo one another")),
        Err(error) => Err(failed(&error)),
    }
}

/// Drops the privileges that the agent does not need, and returns what the sandbox lacks. It asks the members of etcd
/// and the tunnel, and writes its state and `subnet_file`. Members that are names need the files of the resolver, which
/// other programs replace.
fn give_up_rights(args: &Etcd, client: &Client, subnet_file: &Path) -> Result<Vec<String>, Error> {
    const RESOLVER: [&str; 4] = ["/etc", "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf"];
    const DNS: u16 = 53;
    let (mut tcp_ports, named) = client.destinations();
    let resolves = named.is_some();
    // The MTU of the tunnel.
    let mut reads = vec![PathBuf::from("/sys/devices/virtual/net")];
    if resolves {
        tcp_ports.push(DNS);
        reads.extend(RESOLVER.map(PathBuf::from));
    }
    let families = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let tasks = Tasks { families, changes: true, threads: true, resolves, ..Tasks::default() };
    let replaces = vec![subnet_file.to_owned()];
    confine(&Needs { has_state: true, reads, replaces, tcp_ports, tasks, ..Needs::default() }, args.weak_sandbox)
}

/// The output of the agent: the log on stderr, and the state file.
struct Log {
    failed: bool,
}

impl Announce for Log {
    fn note(&mut self, text: &str) {
        to_stderr(&format!("fleet: {}\n", printable_line(text)));
    }

    fn state(&mut self, state: &FleetState) {
        match fleet::write(state) {
            Ok(()) => self.failed = false,
            Err(error) if !self.failed => {
                self.failed = true;
                self.note(&format!("cannot write the state: {error}"));
            }
            Err(_) => {}
        }
    }

    fn mtu(&self, name: &str) -> u32 {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
        // What a tunnel has where nothing is known of it.
        text.trim().parse().unwrap_or(1400)
    }
}
