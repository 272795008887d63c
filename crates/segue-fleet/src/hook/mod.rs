//! The commands of flannel's `extension` backend: flanneld starts one of them for each change, waits for it, and does
//! not retry.
//!
//! So each is short and can be repeated: it changes a file of this host and one entry of the tunnel's table, or
//! replaces the whole table where it is not as the last hook has left it. A tunnel that does not run, or was started
//! again, takes the file `DEV.peers.json` (`segue tunnel dev DEV peers FILE`). flanneld reports no host that vanished
//! while it was down: what `post` finds and no `add` confirms is removed by a process that `post` leaves behind, once
//! flanneld has come to its hosts: a grace time after the last `add`.

mod memory;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use segue_control::client;
use segue_control::error::{Error, Kind, printable};
use segue_control::fleet::{self, Engine, FleetState, HOOK, LastEvent, SCHEMA};
use segue_control::peers::{Change, Changes, Key, Peer, RefusedPeer, Table};
use segue_control::place;
use segue_host::sys;
use serde::Serialize;

use self::memory::prefix;
pub use self::memory::{Memory, Takes};
use crate::lease::VALUE_LEN;
use crate::network::Network;
use crate::refusal::Refusal;

/// The file name suffix of the state that the next hook reads.
const STATE: &str = ".hook.json";
/// Interval at which a sweeper looks for new calls of `add`.
const POLL: Duration = Duration::from_secs(1);
/// Time for which a sweeper waits for the first call of `add`.
const LONGEST: Duration = Duration::from_secs(3600);

/// Locked state files of one tunnel.
struct Hooks {
    name: String,
    /// The directory of all files, until the end of this hook.
    folder: PathBuf,
    memory: Memory,
    _lock: File,
}

/// Runs `pre`: records the encapsulation that this host accepts, and returns the data that flanneld puts into its
/// lease.
pub fn pre(name: &str, takes: Takes) -> Result<String, Error> {
    let mut hooks = Hooks::begin(name)?;
    let text = serde_json::to_string(&takes).unwrap_or_default();
    hooks.memory.takes = Some(takes);
    hooks.save("pre")?;
    Ok(text)
}

/// Runs `post`: records the subnet of this host, and begins a round in which every peer must be confirmed, until no
/// `add` has come for `grace` seconds.
pub fn post(name: &str, network: &str, subnet: &str, address: &str, grace: u32) -> Result<(), Error> {
    let network = argument(network, Network::parse(network), "NETWORK")?;
    let subnet = argument(subnet, Network::parse(subnet), "SUBNET")?;
    let address: Ipv4Addr = argument(address, address.parse().ok(), "PUBLIC_IP")?;
    let mut hooks = Hooks::begin(name)?;
    let memory = &mut hooks.memory;
    (memory.network, memory.subnet, memory.address) = (network.to_string(), subnet.to_string(), address.to_string());
    memory.round += 1;
    memory.adds = 0;
    let round = memory.round;
    hooks.save(&format!("post {subnet}"))?;
    leave_sweeper(name, round, grace)
}

/// Runs `add`: adds or confirms the host `address` with its subnet; `data` is the output of its `pre`.
pub fn add(name: &str, subnet: &str, address: &str, data: &[u8]) -> Result<(), Error> {
    let mut hooks = Hooks::open(name)?;
    hooks.memory.adds += 1;
    match hooks.memory.peer(subnet, address, data) {
        Ok((network, peer)) => hooks.put(network, peer),
        Err(refusal) => {
            hooks.refuse(&[subnet.to_owned()], refusal)?;
            let message = format!("the host {} with {} is refused", printable(address), printable(subnet));
            Err(Error::new(Kind::BadValue, message, "segue stat").why(refusal.sentence()))
        }
    }
}

/// Runs `del`: removes the host with this subnet, if the state file lists it.
pub fn del(name: &str, subnet: &str) -> Result<(), Error> {
    let subnet = argument(subnet, Network::parse(subnet), "SUBNET")?;
    let mut hooks = Hooks::open(name)?;
    let is_known = hooks.memory.peers.remove(&subnet.to_string()).is_some();
    // The last removal may not have reached the tunnel.
    if !is_known && hooks.memory.table.is_some() {
        return Ok(());
    }
    hooks.apply(&format!("del {subnet}"), vec![Change::Del(vec![Key::Prefix(prefix(subnet))])])?;
    Ok(())
}

/// Removes the peers that were not confirmed since the round `round` began, once no `add` has come or was at work for
/// `grace` after at least one. flanneld starts one for each host in turn, which takes long where they are many, or the
/// registry or the tunnel is slow. A later round has a sweeper of its own.
pub fn sweep(name: &str, round: u64, grace: Duration) -> Result<(), Error> {
    let file = format!("{name}{STATE}");
    let folder = place::for_file(&file)
        .map_err(|error| Error::system(format!("cannot find what is known of {name}"), &error, "ls -ld /run/segue"))?;
    let (file, lock) = (folder.join(file), folder.join(format!("{name}.hook.lock")));
    let (mut adds, mut last_add) = (0, Instant::now());
    let mut hooks = loop {
        // A later round, or no file any more: there is nothing to wait for.
        let memory = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Memory>(&bytes).ok());
        let Some(memory) = memory.filter(|memory| memory.round == round) else { return Ok(()) };
        if memory.adds != adds || is_at_work(&lock) {
            (adds, last_add) = (memory.adds, Instant::now());
        }
        let left = grace.saturating_sub(last_add.elapsed());
        if adds > 0 && left.is_zero() {
            match Hooks::open(name) {
                Ok(hooks) if hooks.memory.round != round => return Ok(()),
                Ok(hooks) if hooks.memory.adds == adds => break hooks,
                // Another one has come meanwhile.
                Ok(_) => continue,
                Err(error) if error.kind == Kind::InUse => continue,
                Err(error) => return Err(error),
            }
        }
        // Those that come are of this round; where none comes in so long, nothing is swept before the next round.
        if adds == 0 && (memory.peers.is_empty() || last_add.elapsed() >= LONGEST) {
            return Ok(());
        }
        std::thread::sleep(if adds == 0 { POLL } else { left.min(POLL) });
    };
    let (kept, old): (BTreeMap<_, _>, BTreeMap<_, _>) =
        std::mem::take(&mut hooks.memory.peers).into_iter().partition(|(_, (confirmed, _))| *confirmed >= round);
    hooks.memory.peers = kept;
    hooks.apply(&format!("sweep of {}", old.len()), removals(old.values()).collect())?;
    Ok(())
}

/// Returns whether a hook is at work: one that waits for its tunnel holds the lock as long.
fn is_at_work(lock: &Path) -> bool {
    File::open(lock).and_then(|lock| sys::try_lock(&lock)).is_ok_and(|is_free| !is_free)
}

/// Returns the changes that remove peers: one for each, because the tunnel may no longer have some of them.
fn removals<'a>(peers: impl Iterator<Item = &'a (u64, Peer)>) -> impl Iterator<Item = Change> {
    peers.filter_map(|(_, peer)| Some(Change::Del(vec![Key::Prefix(peer.prefix?)])))
}

impl Memory {
    /// Removes the peers whose subnets overlap the given one from the state, and returns them.
    fn make_room(&mut self, subnet: Network) -> BTreeMap<String, (u64, Peer)> {
        let names: Vec<String> = self.overlapping(subnet).map(|other| other.to_string()).collect();
        names.into_iter().filter_map(|name| self.peers.remove_entry(&name)).collect()
    }
}

impl Hooks {
    /// Opens the files as [`open`](Self::open) does, for a hook with which flanneld starts: a state that cannot be
    /// read, or is not there, begins anew, since all other hosts follow.
    fn begin(name: &str) -> Result<Hooks, Error> {
        let (mut hooks, memory) = Hooks::locked(name)?;
        // Those that were left in another directory would be out of date if that were used again, or shown until then.
        for ending in [STATE, fleet::ENDING] {
            fleet::remove(name, ending, Some(hooks.folder.as_path()));
        }
        hooks.memory = memory.unwrap_or_default();
        Ok(hooks)
    }

    /// Opens and locks the files, after another hook has released them.
    ///
    /// # Errors
    /// Where they cannot be opened, or the state cannot be read, or is not there: without it no host could be checked,
    /// and the table would lose all others.
    fn open(name: &str) -> Result<Hooks, Error> {
        let (mut hooks, memory) = Hooks::locked(name)?;
        hooks.memory = memory.map_err(|why| {
            let hint = "restart flanneld: it begins with pre and post, which write it anew";
            let error = Error::new(Kind::System, format!("the state of the hooks of {name} cannot be read"), hint)
                .why(format!("{name}{STATE} {why}"));
            hooks.show(&error);
            error
        })?;
        Ok(hooks)
    }

    /// Shows in the state for `segue stat` and HEALTH why hooks change nothing: flanneld does not repeat them, and its
    /// log alone has their errors. A state that was left in another directory would hide it.
    fn show(&self, error: &Error) {
        let before = fleet::read(&self.name).filter(|state| state.engine == HOOK).unwrap_or_else(|| self.state());
        let since = if before.state == Engine::Stale { before.since } else { fleet::now() };
        let state = FleetState { state: Engine::Stale, since, error: Some(error.sentence()), ..before };
        fleet::remove(&self.name, fleet::ENDING, Some(self.folder.as_path()));
        let _ = self.write(fleet::ENDING, &state);
    }

    /// Opens and locks the files, and reads the state, or says what is wrong with it.
    fn locked(name: &str) -> Result<(Hooks, Result<Memory, String>), Error> {
        let failed = |error: &io::Error| {
            Error::system(format!("cannot open what is known of {name}"), error, "id; ls -ld /run/segue")
                .why("the hooks keep it beside the control sockets")
        };
        let file = format!("{name}{STATE}");
        let folder = place::for_file(&file).map_err(|error| failed(&error))?;
        let lock = fleet::lock_file(&folder.join(format!("{name}.hook.lock"))).map_err(|error| failed(&error))?;
        let mut tries = 0;
        // Another hook holds it for milliseconds; flanneld starts one at a time.
        while !sys::try_lock(&lock).map_err(|error| failed(&error))? {
            tries += 1;
            if tries > 500 {
                return Err(Error::new(
                    Kind::InUse,
                    format!("another hook of {name} does not end"),
                    "ps -C segue-fleet",
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let damaged = |error: serde_json::Error| format!("is damaged, or of a newer version: {error}");
        let memory = match fs::read(folder.join(file)) {
            Ok(bytes) => serde_json::from_slice::<Memory>(&bytes).map_err(damaged),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("is not in {}", folder.display())),
            Err(error) => return Err(failed(&error)),
        };
        Ok((Hooks { name: name.to_owned(), folder, memory: Memory::default(), _lock: lock }, memory))
    }

    /// Writes the state of the hooks, the table for a tunnel that starts, and the state for `segue stat`.
    fn save(&self, event: &str) -> Result<(), Error> {
        let last_event = Some(LastEvent { at: fleet::now(), what: event.to_owned() });
        self.remember()
            .and_then(|()| self.write(".peers.json", &self.table()))
            .and_then(|()| self.write(fleet::ENDING, &FleetState { last_event, ..self.state() }))
            .map_err(|error| unnoted(&error))
    }

    /// Returns the state for `segue stat`.
    fn state(&self) -> FleetState {
        FleetState {
            schema: SCHEMA.to_owned(),
            name: self.name.clone(),
            engine: HOOK.to_owned(),
            endpoint: "flanneld".to_owned(),
            state: Engine::Connected,
            since: fleet::now(),
            network: self.memory.network.clone(),
            subnet: self.memory.subnet.clone(),
            address: self.memory.address.clone(),
            backend: "extension".to_owned(),
            peers: self.memory.peers.len(),
            refused: self.memory.refused.clone(),
            ..FleetState::default()
        }
    }

    /// Returns the table that the tunnel is to have.
    fn table(&self) -> Table {
        let peers = self.memory.peers.values().map(|(_, peer)| peer.clone()).collect();
        Table { peers, ..Table::default() }
    }

    /// Writes the state that the next hook call reads (`.hook.json`).
    fn remember(&self) -> io::Result<()> {
        self.write(STATE, &self.memory)
    }

    fn write(&self, ending: &str, document: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(document)?;
        bytes.push(b'\n');
        fleet::replace(&self.folder.join(format!("{}{ending}", self.name)), &bytes)
    }

    /// Counts hosts that are refused.
    fn count(&mut self, hosts: usize, refusal: Refusal) {
        *self.memory.refused.entry(refusal.name().to_owned()).or_default() += hosts;
    }

    /// Adds a peer in place of those whose subnets overlap its own. One that the tunnel refuses changes nothing.
    fn put(&mut self, network: Network, peer: Peer) -> Result<(), Error> {
        let subnet = network.to_string();
        let mut replaced = self.memory.make_room(network);
        let displaced: Vec<String> = replaced.keys().cloned().collect();
        let before = self.memory.peers.insert(subnet.clone(), (self.memory.round, peer.clone()));
        let is_known = replaced.is_empty() && before.as_ref().is_some_and(|(_, before)| *before == peer);
        let mut changes = Vec::new();
        if !is_known {
            changes.push(Change::Replace(vec![peer.clone()]));
            changes.extend(removals(replaced.values()));
        }
        let done = self.apply(&format!("add {subnet}"), changes).and_then(|refused| {
            let Some(refused) = refused.into_iter().find(|refused| refused.key == subnet) else { return Ok(()) };
            Err(Error::new(Kind::BadValue, format!("{subnet} is refused"), "segue peer --help").why(refused.why))
        });
        match done {
            Err(error) if error.kind == Kind::BadValue => {
                // It is not kept: a tunnel that starts with the file would refuse it again.
                self.memory.peers.remove(&subnet);
                replaced.extend(before.filter(|(_, before)| *before != peer).map(|before| (subnet.clone(), before)));
                if !replaced.is_empty() {
                    // The tunnel no longer has them if it refused the peer in a whole table.
                    self.memory.table = None;
                    self.memory.peers.extend(replaced);
                }
                self.apply(&format!("refused {subnet}"), Vec::new())?;
                Err(error)
            }
            done if displaced.is_empty() => done,
            done => {
                self.refuse(&displaced, Refusal::Overlap)?;
                done
            }
        }
    }

    /// Records hosts that are refused, by their subnets.
    fn refuse(&mut self, subnets: &[String], refusal: Refusal) -> Result<(), Error> {
        self.count(subnets.len(), refusal);
        let first = subnets.first().map(|subnet| printable(subnet)).unwrap_or_default();
        let more = if subnets.len() > 1 { format!(" and {} more", subnets.len() - 1) } else { String::new() };
        self.save(&format!("refused {first}{more}"))
    }

    /// Returns whether the tunnel's table is still as the last hook has left it.
    fn is_in_force(&self) -> bool {
        let Ok((process, table)) = client::peer_table(&self.name) else { return false };
        self.memory.table == Some((process, table.generation))
    }

    /// Saves the state, and makes the tunnel's table equal to it: by `changes` if the table is as the last hook has
    /// left it, else as a whole. Returns the peers of a whole table that the tunnel refuses; the state no longer has
    /// them.
    fn apply(&mut self, event: &str, changes: Vec<Change>) -> Result<Vec<RefusedPeer>, Error> {
        let in_force = self.is_in_force();
        if in_force && changes.is_empty() {
            return self.save(event).map(|()| Vec::new());
        }
        // If the change does not reach the tunnel, or this hook is killed, the next one sends the whole table.
        let before = self.memory.table.take();
        self.save(event)?;
        let done = match if in_force { self.change(changes) } else { self.sync() } {
            Ok(Some(done)) => done,
            Ok(None) => return Ok(Vec::new()),
            // A change that the tunnel refuses has changed nothing.
            Err(error) if error.kind == Kind::BadValue => {
                self.memory.table = before;
                self.count(1, Refusal::Tunnel);
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let refused: Vec<String> = done.refused_peers.iter().map(|refused| refused.key.clone()).collect();
        self.memory.peers.retain(|subnet, _| !refused.contains(subnet));
        // Not all of them are named where they are many: the next whole table shows others.
        let are_all = done.refused == refused.len() as u64;
        let table = client::peer_table(&self.name).ok().map(|(process, table)| (process, table.generation));
        self.memory.table = table.filter(|(_, generation)| are_all && *generation == done.generation);
        match refused.is_empty() {
            true => self.remember().map_err(|error| unnoted(&error))?,
            false => self.refuse(&refused, Refusal::Tunnel)?,
        }
        Ok(done.refused_peers)
    }

    /// Changes entries of the tunnel's table. `None` where no tunnel runs.
    fn change(&self, changes: Vec<Change>) -> Result<Option<Changes>, Error> {
        let mut last = None;
        for change in changes {
            match client::peer_change(&self.name, change) {
                Ok(done) => last = Some(done),
                // The tunnel does not have the peer, or it has just ended.
                Err(error) if error.kind == Kind::NotFound => return self.sync(),
                Err(error) => return Err(error),
            }
        }
        Ok(last)
    }

    /// Replaces the tunnel's table. `None` where no tunnel runs: one that starts takes the file.
    fn sync(&self) -> Result<Option<Changes>, Error> {
        match client::peer_sync(&self.name, &self.table()) {
            Err(error) if error.kind == Kind::NotFound => Ok(None),
            done => done.map(Some),
        }
    }
}

fn unnoted(error: &io::Error) -> Error {
    Error::system("cannot note the change", error, "df /run").why("the table stays as it is")
}

fn argument<T>(text: &str, parsed: Option<T>, name: &str) -> Result<T, Error> {
    parsed.ok_or_else(|| {
        Error::new(Kind::BadValue, format!("`{}` is no {name}", printable(text)), "segue help fleet")
            .why("flanneld puts it there for $NETWORK, $SUBNET and $PUBLIC_IP")
    })
}

/// Starts the sweeping process without waiting for it.
fn leave_sweeper(name: &str, round: u64, grace: u32) -> Result<(), Error> {
    let start = || -> io::Result<()> {
        Command::new(std::env::current_exe()?)
            .args(["hook", "--dev", name, "sweep", &round.to_string(), &grace.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map(drop)
    };
    start().map_err(|error| {
        Error::system("cannot start the sweep", &error, "segue fleet hook --help")
            .why("hosts that vanished while flanneld was down would stay")
    })
}

/// Reads the data that flanneld writes to a hook, bounded in length.
pub fn data() -> Vec<u8> {
    let mut bytes = Vec::new();
    // What cannot be read is refused as what it is.
    let _ = io::stdin().take(VALUE_LEN as u64 + 1).read_to_end(&mut bytes);
    bytes
}
