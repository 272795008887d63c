//! The thread that gathers the evidence and publishes the judgement.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use segue::encap::DecapRefusal;
use segue::hash;
use segue::reason::Reason;
use segue_control::event::{LogEntry, LogEvent};
use segue_control::model::{Complaint, Instance, Probe, Tunnel};
use segue_control::units;
use segue_datapath::board::{Group, Stage};
use segue_datapath::boards::Boards;
use segue_datapath::tunnel::{RECEIVED, REFUSED, REFUSED_FOR};
use segue_fastpath::Direction;
use segue_host::error_queue::{self, Origin};
use segue_host::netlink::changes::{Changed, Changes};
use segue_host::sys::{self, Want};
use segue_port::Drop;

use super::evidence::{ByKernel, Evidence, Monitored, Refusal, Refused};
use super::flow::{Counts, Flow};
use super::judge::{judge, unwatched};
use super::probe::{Nonces, Prober};
use super::underlay::{self, Underlay};
use crate::fastpath::Fastpath;
use crate::fault::Vitals;
use crate::heartbeat::Thread;
use crate::report::Report;
use crate::started;

/// Interval at which the counters are read and the tunnels judged: the shortest and the longest one, and how much of it
/// each tunnel adds. A thousand tunnels take nearly a millisecond.
const TICK: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1500)];
const TICK_PER_TUNNEL: Duration = Duration::from_millis(12);
/// Factor of the longest interval while every tunnel is idle and well: a service may have many such instances.
const IDLE_FACTOR: u32 = 2;
/// Pause after notices and errors were read, which limits the cost of a flood of them.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval at which the underlay is read even without a notice, in the same form: the kernel reports no learned path
/// MTU. A tunnel takes ten microseconds, most of them in the kernel.
const REFRESH: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];
const REFRESH_PER_TUNNEL: Duration = Duration::from_millis(100);
/// Number of packets sent between two looks at the counters from which on nothing sleeps on the sending sockets: the
/// kernel looks for sleepers whenever it has sent one of their packets, 4 % of the time of one bulk TCP flow.
const MANY_SENT: u64 = 500;
/// Largest number of errors that are read at a time.
const MOST_ERRORS: usize = 64;
/// Divisor of the largest share of its time that the thread spends on the underlay.
const SHARE: u32 = 50;
/// Time and number of reads in turn that failed from which on it is a problem.
const UNREAD: (Duration, u32) = (Duration::from_secs(10), 2);

/// Sockets of the watch, opened before the process drops its privileges.
pub(crate) struct Sources {
    monitored: Vec<Monitored>,
    underlay: Underlay,
    changes: Changes,
    /// Descriptors of the sending sockets, without one that also receives.
    senders: Vec<OwnedFd>,
    probes: Probes,
    evidence: Evidence,
}

/// The probes of the tunnels, and the socket that sends them.
struct Probes {
    /// The probers of the tunnels, in the order of the facts; `None` for one that can have none.
    probers: Vec<Option<Prober>>,
    nonces: Nonces,
    socket: Option<UdpSocket>,
}

impl Probes {
    /// Sends the probe messages that are due, and returns the time of the next ones; `None` if all probes are off.
    fn send_due(&mut self, now: Instant) -> Option<Instant> {
        let Probes { probers, nonces, socket } = self;
        let socket = socket.as_ref()?;
        let probers = probers.iter_mut().flatten();
        let due = probers.filter_map(|prober| {
            prober.send_due(now, socket, || nonces.next());
            prober.due()
        });
        // Those of many tunnels leave together.
        due.min().map(|due| due.max(now + PAUSE))
    }
}

impl Sources {
    /// Opens the connections to the kernel; `senders` are duplicates of the sending sockets, of one family; `probers`
    /// send through the first one, with nonces from `key`.
    pub(crate) fn open(
        monitored: Vec<Monitored>,
        senders: Vec<OwnedFd>,
        probers: Vec<Option<Prober>>,
        key: hash::Key,
    ) -> io::Result<Sources> {
        let (changes, underlay, view) = underlay::patiently(underlay::PATIENCE, || {
            // First, so that no change between the first look and the first notice is missed.
            let changes = Changes::open()?;
            let mut underlay = Underlay::open()?;
            let view = underlay.first(&monitored)?;
            Ok((changes, underlay, view))
        })?;
        let is_ipv4 = monitored.first().is_none_or(|monitored| monitored.local.is_ipv4());
        let socket = senders.first().filter(|_| probers.iter().any(Option::is_some));
        let socket = socket.map(OwnedFd::try_clone).transpose()?.map(UdpSocket::from);
        let listens = monitored.first().and_then(|monitored| monitored.ports).map(|(own, _)| own);
        let senders = with_error_queues(senders, is_ipv4, listens)?;
        let probes = Probes { probers, nonces: Nonces::new(key), socket };
        let evidence = Evidence { flows: vec![Flow::default(); monitored.len()], view, ..Evidence::default() };
        Ok(Sources { monitored, underlay, changes, senders, probes, evidence })
    }

    /// Returns the sending sockets, each of which is ready when it has an error.
    fn senders(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Want)> {
        self.senders.iter().map(|fd| (fd.as_fd(), Want::Hangup))
    }

    /// Starts the watching thread, which ends with the process; `boards` have the counters of the packet loops,
    /// `fastpath` those of the in-kernel path, `vitals` takes the thread's heartbeat. Beginning and end of each problem
    /// are logged.
    pub(crate) fn watch(
        self,
        boards: Boards,
        fastpath: Option<Fastpath>,
        vitals: Vitals,
        out: &Arc<dyn Report>,
    ) -> io::Result<Health> {
        // What is shown of a tunnel is its one remote's; that of a tunnel with a table is in the table.
        let shown = self.monitored.iter().filter(|monitored| monitored.link.is_none());
        let tunnels = shown.map(|monitored| (monitored.name.clone(), tunnel(monitored))).collect();
        let published = Arc::new(Mutex::new(Published { tunnels, ..Published::default() }));
        let (places, outside) = places(&self.monitored, &boards);
        let health = Health(Arc::clone(&published));
        let log = out.is_log().then(|| Arc::clone(out));
        let (began, is_known_well) = (BTreeMap::new(), vec![false; self.monitored.len()]);
        let mut watch = Watch {
            sources: self,
            boards,
            fastpath,
            places,
            outside,
            published,
            began,
            log,
            is_refreshed: true,
            unread: None,
            sent: 0,
            is_loaded: false,
            is_idle: false,
            is_known_well,
            vitals,
        };
        watch.tick();
        started::spawn("health", move || {
            // The first look, of another thread, may have been its first round.
            let _ = watch.vitals.heartbeat.measure(Thread::Health);
            watch.run()
        })?;
        Ok(health)
    }
}

/// Switches on the error queues of the sockets, and returns those that have one: not the socket that also receives, on
/// the port `listens`. Any host can forge errors about it, which would take the room of datagrams in its buffer, and
/// keep it readable.
fn with_error_queues(senders: Vec<OwnedFd>, is_ipv4: bool, listens: Option<u16>) -> io::Result<Vec<OwnedFd>> {
    let mut with = Vec::with_capacity(senders.len());
    for sender in senders.into_iter().map(UdpSocket::from) {
        let receives = listens.is_some() && sender.local_addr().ok().map(|name| name.port()) == listens;
        // A predecessor may have switched on that of the same socket.
        error_queue::switch(sender.as_fd(), is_ipv4, !receives)?;
        if !receives {
            with.push(OwnedFd::from(sender));
        }
    }
    Ok(with)
}

/// The positions of a tunnel's counters on the board.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    sent: Option<usize>,
    received: Option<usize>,
    refused: Option<usize>,
    why: Option<usize>,
}

/// The positions of the outside ports' counters on the board: packets that have left, and that this host refused.
#[derive(Debug, Default)]
struct Outside {
    left: Vec<usize>,
    denied: Vec<usize>,
}

fn places(monitored: &[Monitored], boards: &Boards) -> (Vec<Places>, Outside) {
    let (mut places, mut outside) = (vec![Places::default(); monitored.len()], Outside::default());
    let numbers: BTreeMap<&str, usize> =
        monitored.iter().enumerate().map(|(at, monitored)| (&*monitored.name, at)).collect();
    for (position, name) in boards.names().iter().enumerate() {
        let Some(of) = numbers.get(name.port.as_str()).and_then(|at| places.get_mut(*at)) else {
            match (name.group, name.key) {
                (Group::Transmit, "segments") => outside.left.push(position),
                (Group::Drops, key) if key == Drop::Denied.name() => outside.denied.push(position),
                _ => {}
            }
            continue;
        };
        match (name.group, name.key) {
            (Group::Stage(Stage::Encap), "segments") => of.sent = Some(position),
            (Group::Port, RECEIVED) => of.received = Some(position),
            (Group::Port, REFUSED) => of.refused = Some(position),
            (Group::Port, REFUSED_FOR) => of.why = Some(position),
            _ => {}
        }
    }
    (places, outside)
}

impl Places {
    fn read(&self, boards: &Boards) -> Counts {
        let value = |place: Option<usize>| place.map_or(0, |place| boards.value(place));
        let why = usize::try_from(value(self.why)).ok().and_then(|why| DecapRefusal::ALL.get(why.checked_sub(1)?));
        Counts {
            sent: value(self.sent),
            received: value(self.received),
            refused: value(self.refused),
            why: why.map(|why| why.name()),
        }
    }
}

impl Outside {
    /// Returns the numbers of packets that have left, and that this host refused to send.
    fn read(&self, boards: &Boards) -> [u64; 2] {
        [&self.left, &self.denied].map(|places| places.iter().map(|place| boards.value(*place)).sum())
    }
}

/// The result of the last judgement.
#[derive(Debug, Default)]
struct Published {
    complaints: Vec<Complaint>,
    /// The tunnels by their names, in the order of the facts.
    tunnels: Vec<(String, Tunnel)>,
}

/// A handle to the last judgement.
#[derive(Clone)]
pub(crate) struct Health(Arc<Mutex<Published>>);

impl Health {
    /// Adds the tunnels and their problems to an instance. Problems that it has already come after those, except that
    /// an offload that the kernel refuses is explained by the one that is switched off.
    pub(crate) fn put(&self, instance: &mut Instance) {
        let published = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        instance.tunnels = published.tunnels.iter().cloned().collect();
        let explained = published.complaints.iter().any(|complaint| complaint.code == "underlay_tx_off");
        let mut all = published.complaints.clone();
        all.extend(instance.health.drain(..).filter(|old| !(explained && old.what == "udp_segment off")));
        all.sort_by_key(|complaint| complaint.notice);
        instance.health = all;
    }
}

/// Reads of the underlay in turn that failed.
struct Unread {
    since: Instant,
    reads: u32,
    why: String,
}

struct Watch {
    sources: Sources,
    boards: Boards,
    fastpath: Option<Fastpath>,
    places: Vec<Places>,
    outside: Outside,
    published: Arc<Mutex<Published>>,
    /// Time at which each problem began, by its code, tunnel and subject.
    began: BTreeMap<[String; 3], String>,
    /// The log, where events are logged.
    log: Option<Arc<dyn Report>>,
    /// Whether the underlay was read since the last judgement.
    is_refreshed: bool,
    /// Where the last read of the underlay failed.
    unread: Option<Unread>,
    /// Number of packets that all tunnels had sent at the last judgement, and whether many were since the one before.
    sent: u64,
    is_loaded: bool,
    /// Whether the last look found every tunnel idle and well.
    is_idle: bool,
    /// Of each tunnel, whether its last judgement found no problem and would find none now.
    is_known_well: Vec<bool>,
    /// The heartbeat, without which the last judgement would be shown for ever after a fault of this thread.
    vitals: Vitals,
}

impl Watch {
    fn run(&mut self) {
        let count = self.sources.monitored.len() as u32;
        let interval = |[shortest, longest]: [Duration; 2], each: Duration| (each * count).clamp(shortest, longest);
        let (tick, refresh) = (interval(TICK, TICK_PER_TUNNEL), interval(REFRESH, REFRESH_PER_TUNNEL));
        let mut next_tick = Instant::now() + tick;
        let (mut next_read, mut next_look) = (Instant::now(), Instant::now());
        let mut next_refresh = Instant::now() + refresh;
        let mut next_probe = None;
        // The earliest time of the next look, so that changes that never end cost little.
        let mut may_refresh = Instant::now();
        let mut is_stale = false;
        let mut links_changed: Option<Vec<u32>> = Some(Vec::new());
        loop {
            let fails = self.vitals.beat(Thread::Health);
            self.vitals.heartbeat.note();
            let now = Instant::now();
            let mut until = next_probe.map_or(next_tick, |probe| next_tick.min(probe));
            let mut fds = Vec::new();
            if now >= next_read {
                fds.push((self.sources.changes.as_fd(), Want::Read));
                fds.extend(self.sources.senders().filter(|_| !self.is_loaded));
            } else {
                until = until.min(next_read);
            }
            if self.is_loaded {
                until = until.min(next_look.max(now));
            }
            if is_stale {
                until = until.min(may_refresh.max(now));
            }
            let timeout = until.saturating_duration_since(now) + Duration::from_millis(1);
            let Ok(ready) = sys::poll(&fds, timeout) else { return };
            let now = Instant::now();
            if ready.iter().any(|ready| *ready) {
                next_read = now + PAUSE;
            }
            if ready.first() == Some(&true) {
                // What cannot be read may have been anything.
                let lost = Changed { anything: true, lost: true, ..Changed::default() };
                let changes = self.sources.changes.read().unwrap_or(lost);
                is_stale |= changes.anything;
                match &mut links_changed {
                    Some(links) if !changes.lost => links.extend(changes.links),
                    _ => links_changed = None,
                }
            }
            let mut has_errors = ready.iter().skip(1).any(|ready| *ready);
            if self.is_loaded && now >= next_look {
                next_look = now + PAUSE;
                // A look that does not wait.
                let senders: Vec<_> = self.sources.senders().collect();
                has_errors |= sys::poll(&senders, Duration::ZERO).is_ok_and(|ready| ready.contains(&true));
            }
            if has_errors {
                is_stale |= self.errors(now);
            }
            let is_due = (is_stale && now >= may_refresh) || now >= next_refresh;
            if is_due {
                let links = links_changed.replace(Vec::new());
                let Sources { monitored, underlay, evidence, .. } = &mut self.sources;
                // The kernel reports every change of an address.
                let changed = underlay::Changed { links: links.as_deref(), addresses: is_stale };
                let read = || match fails {
                    true => Err(io::ErrorKind::Other.into()),
                    false => underlay.refresh(monitored, changed, &mut evidence.view),
                };
                let outcome = self.vitals.heartbeat.unwatched(Thread::Health, read);
                self.is_refreshed = true;
                let end = Instant::now();
                let pause = self.note_read(&outcome, [now, end]);
                (is_stale, next_refresh, may_refresh) = (false, end + refresh, end + pause);
                if let Err(error) = outcome {
                    let log =
                        || tracing::warn!(id = "underlay", "the state of the underlay could not be read: {error}");
                    self.vitals.heartbeat.unwatched(Thread::Health, log);
                    // Anything may have changed that the next read has to find.
                    (is_stale, links_changed, may_refresh) = (true, None, end + tick.max(pause));
                }
            }
            let ticks = is_due || now >= next_tick;
            if ticks || next_probe.is_some_and(|probe| now >= probe) {
                // The reads of the underlay may have taken their time.
                next_probe = self.sources.probes.send_due(Instant::now());
            }
            if ticks {
                self.tick();
                let is_long = self.is_idle && tick == TICK[1];
                next_tick = Instant::now() + if is_long { IDLE_FACTOR * tick } else { tick };
            }
        }
    }

    /// Notes the result of a read of the underlay, from its begin to its end. Returns the pause until the next one, so
    /// that reads take a small share of the time, also those that fail.
    fn note_read(&mut self, outcome: &io::Result<()>, [begin, end]: [Instant; 2]) -> Duration {
        let before = self.unread.take();
        self.unread = outcome.as_ref().err().map(|error| Unread {
            since: before.as_ref().map_or(begin, |unread| unread.since),
            reads: before.map_or(1, |unread| unread.reads.saturating_add(1)),
            why: error.to_string(),
        });
        (end - begin) * SHARE
    }

    /// Returns the problem that the underlay has not been read for some time.
    fn unread(&self, now: Instant) -> Option<Complaint> {
        let lasts = |unread: &&Unread| now.duration_since(unread.since) >= UNREAD.0 && unread.reads >= UNREAD.1;
        let Unread { why, .. } = self.unread.as_ref().filter(lasts)?;
        let tunnels = self.sources.monitored.iter().map(|monitored| monitored.name.clone()).collect();
        let why = format!("{why}; the tunnels are judged by what was read last");
        Some(Complaint { tunnels, ..unwatched(why) })
    }

    /// Reads the sockets' error queues. Returns whether the underlay may have changed.
    fn errors(&mut self, now: Instant) -> bool {
        let mut is_stale = false;
        let mut left = MOST_ERRORS;
        for sender in &self.sources.senders {
            while left > 0 {
                let Ok(Some(error)) = error_queue::receive(sender.as_fd()) else { break };
                left -= 1;
                is_stale |= error.errno == libc::EMSGSIZE;
                let (Origin::Icmp, Some(to), Some(kind)) = (error.origin, error.to, Refusal::of(&error)) else {
                    continue;
                };
                self.sources.evidence.note_refusal(to.ip(), Refused { kind, from: error.from, at: now });
            }
        }
        is_stale
    }

    /// Reads the counters, judges every tunnel and publishes the result.
    fn tick(&mut self) {
        let now = Instant::now();
        let Sources { monitored, evidence, probes, .. } = &mut self.sources;
        let carries = |direction| self.fastpath.as_ref().is_some_and(|fastpath| fastpath.carries(direction));
        let by_kernel = ByKernel { sends: carries(Direction::Send), receives: carries(Direction::Receive) };
        let by_kernel_before = std::mem::replace(&mut evidence.by_kernel, by_kernel);
        // Of a tunnel without a problem, a probe, a packet and ICMP errors, only these change the judgement.
        let is_new = std::mem::take(&mut self.is_refreshed) || by_kernel != by_kernel_before;
        let [mut left, mut denied] = self.outside.read(&self.boards);
        let flows = evidence.flows.iter_mut().zip(&self.places).zip(&mut self.is_known_well);
        for (at, ((flow, places), is_known_well)) in flows.enumerate() {
            let mut counts = places.read(&self.boards);
            if let Some([sent, received]) = self.fastpath.as_ref().and_then(|fastpath| fastpath.packets(at)) {
                counts.sent += sent;
                counts.received += received;
                left += sent;
            }
            let prober = probes.probers.get(at).and_then(Option::as_ref);
            counts.sent += prober.map_or(0, |prober| prober.sent);
            let is_busy = flow.update(counts, now);
            let remotes = monitored.get(at).into_iter().flat_map(|monitored| &monitored.remotes);
            let refusal = remotes.filter_map(|remote| evidence.refused.get(remote)).map(|error| error.at).max();
            if let Some(at) = refusal {
                flow.note_refusal(at);
            }
            let had_probe = flow.probe.is_some();
            flow.probe = prober.and_then(|prober| prober.verdict(now));
            flow.last_reply = prober.and_then(|prober| prober.last_reply(now));
            *is_known_well &= !is_new && !is_busy && refusal.is_none() && flow.probe.is_none() && !had_probe;
        }
        let sent = evidence.flows.iter().map(|flow| flow.counts.sent).sum();
        self.is_loaded = sent >= self.sent + MANY_SENT;
        self.sent = sent;
        for prober in probes.probers.iter().flatten() {
            (left, denied) = (left + prober.left, denied + prober.denied);
        }
        if evidence.outgoing.update(left, denied, now) {
            self.is_known_well.fill(false);
        }
        self.is_idle = self.is_known_well.iter().all(|is_known_well| *is_known_well);
        evidence.forgive_received(monitored, now);
        evidence.forget_refusals(monitored);
        let mut complaints: Vec<Complaint> = Vec::new();
        // One link carries many tunnels: what is the same for several is one problem.
        let mut known: HashMap<[String; 2], usize> = HashMap::new();
        let tunnels = monitored.iter().zip(&evidence.flows).zip(&mut self.is_known_well);
        for ((monitored, flow), is_known_well) in tunnels.filter(|(_, is_known_well)| !**is_known_well) {
            let found = judge(monitored, flow, evidence, now);
            *is_known_well = found.is_empty();
            for new in found {
                let key = [new.what.clone(), new.why.clone().unwrap_or_default()];
                let at = *known.entry(key).or_insert(complaints.len());
                if at == complaints.len() {
                    complaints.push(new);
                }
                complaints[at].tunnels.push(monitored.name.clone());
            }
        }
        complaints.extend(self.unread(now));
        self.date(&mut complaints);
        let Sources { monitored, evidence, probes, .. } = &self.sources;
        for complaint in complaints.iter_mut().filter(|complaint| complaint.tunnels.len() == monitored.len()) {
            complaint.tunnels.clear();
        }
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.complaints = complaints;
        for (((_, tunnel), flow), prober) in published.tunnels.iter_mut().zip(&evidence.flows).zip(&probes.probers) {
            update(tunnel, flow, prober.as_ref(), now);
        }
    }

    /// Notes in each problem when it began, and logs those that begin or end.
    fn date(&mut self, complaints: &mut [Complaint]) {
        let t = units::rfc3339(SystemTime::now());
        let mut began = BTreeMap::new();
        for complaint in complaints {
            let tunnel = complaint.tunnels.first().cloned().unwrap_or_default();
            let key = [complaint.code.clone(), tunnel, subject(complaint).to_owned()];
            let known = self.began.remove(&key);
            if let Some(log) = self.log.as_ref().filter(|_| known.is_none()) {
                self.vitals.heartbeat.unwatched(Thread::Health, || log.event(&begun(complaint)));
            }
            let since = known.unwrap_or_else(|| t.clone());
            complaint.since = Some(since.clone());
            began.insert(key, since);
        }
        for [code, tunnel, _] in std::mem::replace(&mut self.began, began).into_keys() {
            if let Some(log) = &self.log {
                let text = format!("{tunnel}: {code} is over");
                let entry = LogEntry::new(LogEvent::Healthy, text).with("code", code).with("tunnel", tunnel);
                self.vitals.heartbeat.unwatched(Thread::Health, || log.event(&entry));
            }
        }
    }
}

/// Returns what tells a problem from others of its code in the same tunnel, such as the remote. The age in a notice and
/// the reason behind a colon change while it lasts.
fn subject(complaint: &Complaint) -> &str {
    if complaint.notice { "" } else { complaint.what.split(": ").next().unwrap_or_default() }
}

/// Returns the log line that reports the start of a problem.
fn begun(complaint: &Complaint) -> LogEntry<'static> {
    let mut entry = LogEntry::new(LogEvent::Unhealthy, complaint.what.clone()).with("code", &*complaint.code);
    let tunnel = complaint.tunnels.first().map(|name| ("tunnel", name.clone()));
    let (why, fix) = (complaint.why.clone(), complaint.fix.clone());
    entry.fields.extend(tunnel.into_iter().chain(why.map(|why| ("why", why))).chain(fix.map(|fix| ("try", fix))));
    entry
}

/// Returns what never changes of a tunnel in the form of `segue stat -j`.
fn tunnel(monitored: &Monitored) -> Tunnel {
    let address = |ip: std::net::IpAddr, port: Option<u16>| match port {
        Some(port) => std::net::SocketAddr::new(ip, port).to_string(),
        None => ip.to_string(),
    };
    Tunnel {
        mode: monitored.kind.clone(),
        local: address(monitored.local, monitored.ports.map(|(own, _)| own)),
        remote: monitored.remote_name.clone(),
        mtu: monitored.mtu,
        underlay: monitored.underlay.clone(),
        ..Tunnel::default()
    }
}

/// Sets what changes of a tunnel.
fn update(tunnel: &mut Tunnel, flow: &Flow, prober: Option<&Prober>, now: Instant) {
    let age =
        |at: Option<Instant>| at.map(|at| (now.saturating_duration_since(at).as_secs_f64() * 10.0).round() / 10.0);
    tunnel.received = flow.counts.received;
    tunnel.refused = flow.counts.refused;
    tunnel.refused_for = flow.counts.why.map(str::to_owned);
    tunnel.received_age_s = age(flow.last_received);
    tunnel.sent_age_s = age(flow.last_sent);
    tunnel.probe = prober.filter(|prober| prober.is_on()).and_then(probe);
}

/// Returns the measurements of a probe as in `segue stat -j`; `None` if it is off.
fn probe(prober: &Prober) -> Option<Probe> {
    let measured = prober.measured();
    let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
    (measured.interval != 0).then(|| Probe {
        interval_s: measured.interval,
        sent: measured.requests,
        answered: measured.replies,
        lost: measured.lost,
        round_trip_s: measured.round_trip.map(seconds),
        mean_round_trip_s: measured.mean.map(seconds),
        answered_age_s: measured.reply_age.map(|age| (seconds(age) * 10.0).round() / 10.0),
    })
}

#[cfg(test)]
mod tests;
