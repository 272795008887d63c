//! An assembled pipeline, access to its state from other threads, and its shutdown.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use segue::hash;
use segue_control::error::Error;
use segue_control::model::{Complaint, Flow, Instance, Offload, Port, Seen, Side, Worker};
use segue_datapath::board::{Board, Group, Stage};
use segue_datapath::boards::Boards;
use segue_datapath::gateway::LINK_DOWN;
use segue_datapath::knobs::Knobs;
use segue_datapath::pipeline::Pipeline;
use segue_datapath::worker;
use segue_port::udp::UDP_SEGMENT_ON;
use segue_port::{OffloadState, Port as DataPort};

use super::kernel::{ChecksumDrops, Forwarding, QueueDrops};
use super::knobs::SharedKnobs;
use crate::heartbeat::{Heartbeat, Thread};

/// Smallest number of ports with which an instance leaves out counters that are zero.
pub(crate) const MANY_PORTS: usize = 16;

/// The offloads of an instance, with the reason for each that is not in use.
#[derive(Clone, Debug, Default)]
pub struct Offloads(BTreeMap<String, State>);

/// The state of one offload.
#[derive(Clone, Debug)]
enum State {
    On,
    /// The offload was not requested, for the given reason.
    Off(String),
    /// The offload was requested and refused, with the kernel's answer.
    Refused(String),
}

impl Offloads {
    /// Returns the offloads as in `segue stat -j`.
    pub fn map(&self) -> BTreeMap<String, Offload> {
        let offload = |state: &State| match state {
            State::On => Offload { on: true, why: None, refused: false },
            State::Off(why) => Offload { on: false, why: Some(why.clone()), refused: false },
            State::Refused(why) => Offload { on: false, why: Some(why.clone()), refused: true },
        };
        self.0.iter().map(|(name, state)| (name.clone(), offload(state))).collect()
    }

    /// Returns whether the offload `name` is in use.
    pub fn is_on(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(State::On))
    }

    /// Adds the offloads of a port, with `prefix` before each name; `off` is the reason why one was not requested.
    pub fn add(&mut self, prefix: &str, port: &dyn DataPort, off: &str) {
        for (name, state) in port.offloads() {
            let state = match state {
                OffloadState::On => State::On,
                OffloadState::Off => State::Off(off.to_owned()),
                OffloadState::Refused(errno) => {
                    State::Refused(segue_control::error::os_text(&io::Error::from_raw_os_error(errno)))
                }
            };
            self.0.insert(format!("{prefix}{name}"), state);
        }
    }
}

/// Returns random numbers that cannot be predicted from outside. No file is needed for them, so that a static program
/// has all it needs in an empty folder.
pub fn random<const LEN: usize>() -> Result<[u8; LEN], Error> {
    let mut bytes = [0; LEN];
    segue_host::sys::random(&mut bytes).map_err(|error| {
        Error::system("cannot get random numbers", &error, "segue doctor").why("getrandom(2) was refused")
    })?;
    Ok(bytes)
}

/// Returns a key for the hash of flows.
pub(crate) fn flow_key() -> Result<hash::Key, Error> {
    let [a, b] = [random::<8>()?, random::<8>()?].map(u64::from_ne_bytes);
    Ok(hash::Key([a, b]))
}

/// An assembled pipeline with its knobs and offloads, and the parts for the threads of further workers.
pub struct Running {
    pipeline: Box<dyn Pipeline>,
    boards: Boards,
    knobs: Arc<Knobs>,
    offloads: Offloads,
    stop: PipeReader,
    /// The stop signals of the workers from 1 on, until their threads take them.
    more: Vec<PipeReader>,
}

/// A handle that ends [`Running::work`] and every further worker from another thread.
pub struct Stopper(Vec<PipeWriter>);

impl Stopper {
    /// Requests the end of the pipelines, which follows within a round.
    pub fn stop(&self) {
        for mut pipe in &self.0 {
            // The reader has gone only where the work has ended already.
            let _ = pipe.write_all(b"x");
        }
    }
}

impl Running {
    /// Prepares the pipeline of the first of `workers` workers. Nothing moves before [`Running::work`].
    pub fn new(
        pipeline: Box<dyn Pipeline>,
        offloads: Offloads,
        knobs: Knobs,
        workers: u16,
    ) -> Result<(Running, Stopper), Error> {
        let boards = Boards::new(worker::board(&*pipeline), usize::from(workers));
        let pipes: io::Result<Vec<_>> = (0..workers.max(1)).map(|_| io::pipe()).collect();
        let pipes = pipes.map_err(|error| {
            Error::system("cannot start to move packets", &error, "segue doctor").why("a pipe failed")
        })?;
        let (mut more, stoppers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        let stop = more.remove(0);
        Ok((Running { pipeline, boards, knobs: Arc::new(knobs), offloads, stop, more }, Stopper(stoppers)))
    }

    /// Forwards packets until the [`Stopper`] ends it.
    pub fn work(&mut self, name: &str, heartbeat: &Heartbeat) -> Result<(), Error> {
        let beat = heartbeat.of(Thread::Packets);
        let board = &self.boards.each()[0];
        let worked = worker::run(&mut *self.pipeline, self.stop.as_fd(), board, &self.knobs, beat);
        heartbeat.over(Thread::Packets);
        worked.map_err(|error| useless(name, &error))
    }

    /// Returns the end of a pipe that becomes readable when a [`Stopper`] has requested the end.
    pub(super) fn stopped(&self) -> Result<PipeReader, Error> {
        self.stop
            .try_clone()
            .map_err(|error| Error::system("cannot start to move packets", &error, "segue doctor").why("a pipe failed"))
    }

    /// Returns the parts of the workers from 1 on, each for the thread that runs it.
    pub(super) fn further(&mut self) -> Vec<Further> {
        let boards = self.boards.each().iter().skip(1);
        let parts = std::mem::take(&mut self.more).into_iter().zip(boards).zip(1..);
        let knobs = &self.knobs;
        parts
            .map(|((stop, board), worker)| Further { worker, board: Arc::clone(board), knobs: Arc::clone(knobs), stop })
            .collect()
    }

    /// Returns the next sequence number of each interface whose packets have numbers.
    pub fn sequences(&self) -> Vec<(&str, u32)> {
        self.pipeline.sequences()
    }

    /// Sets the next sequence number of the interface `name` to `next`.
    pub fn go_on(&mut self, name: &str, next: u32) {
        self.pipeline.go_on(name, next);
    }

    /// Returns the counters of the packet loops.
    pub(crate) fn boards(&self) -> Boards {
        self.boards.clone()
    }

    /// Returns a handle to the knobs, for other threads.
    pub fn knobs(&self) -> SharedKnobs {
        SharedKnobs::new(Arc::clone(&self.knobs))
    }

    /// Returns a function that reads ports and workers into an instance at any time, from any thread.
    pub fn reader(
        &self,
        ports: Vec<(String, Side)>,
        checksum_drops: Option<ChecksumDrops>,
        queue_drops: Vec<QueueDrops>,
        forwarding: Option<Forwarding>,
    ) -> impl Fn(&mut Instance) + Send + Sync + Clone + use<> {
        let (offloads, boards) = (self.offloads.map(), self.boards.clone());
        let many = ports.len() > MANY_PORTS;
        move |instance| {
            instance.offloads.clone_from(&offloads);
            for (name, side) in &ports {
                instance.ports.insert(name.clone(), Port { side: *side, ..Port::default() });
            }
            for (name, value) in boards.read() {
                if name.group == Group::Worker {
                    // Those of each worker follow.
                } else if many && value == 0 {
                    // With very many ports, counters of events that never happened are left out.
                } else if let Some(port) = instance.ports.get_mut(&name.port) {
                    put(port, name.group, name.key, value);
                }
            }
            instance.workers.extend(boards.each().iter().zip(0..).map(|(board, id)| worker(board, id, &boards)));
            if let Some(drops) = &checksum_drops {
                drops.put(instance);
            }
            queue_drops.iter().for_each(|drops| drops.put(instance));
            take_back(instance);
            let sick = instance.offloads.iter().filter(|(_, offload)| offload.refused);
            instance.health = sick
                .map(|(name, offload)| Complaint {
                    what: format!("{name} off"),
                    why: offload.why.clone(),
                    code: "offload_refused".to_owned(),
                    fix: Some("segue doctor".to_owned()),
                    ..Complaint::default()
                })
                .collect();
            instance.health.extend(downs(&instance.ports));
            instance.health.extend(forwarding.as_ref().and_then(Forwarding::complaint));
        }
    }
}

/// Parts of a further worker's thread (from 1 on), in addition to its pipeline.
pub(super) struct Further {
    worker: u16,
    board: Arc<Board>,
    knobs: Arc<Knobs>,
    stop: PipeReader,
}

impl Further {
    /// Returns the worker's thread.
    pub(super) fn thread(&self) -> Thread {
        Thread::of_worker(self.worker)
    }

    /// Returns the name of the thread for the system, which truncates it to 15 bytes.
    pub(super) fn name(&self) -> String {
        format!("worker {}", self.worker)
    }

    /// Forwards packets until the [`Stopper`] ends it.
    pub(super) fn work(&self, pipeline: &mut dyn Pipeline, name: &str, heartbeat: &Heartbeat) -> Result<(), Error> {
        let beat = heartbeat.of(self.thread());
        let worked = worker::run(pipeline, self.stop.as_fd(), &self.board, &self.knobs, beat);
        heartbeat.over(self.thread());
        worked.map_err(|error| useless(name, &error))
    }
}

fn useless(name: &str, error: &io::Error) -> Error {
    Error::system(format!("{name} can no longer move packets"), error, "start it again")
        .why("the interface or a socket is gone")
        .names_instance()
}

/// Returns the numbers of one worker, with its share of the traffic if there are several.
fn worker(board: &Board, id: u32, boards: &Boards) -> Worker {
    let mut worker = Worker { id, ..Worker::default() };
    let is_one = boards.each().len() == 1;
    for (name, value) in board.read() {
        if name.group == Group::Worker {
            worker.counters.insert(name.key.to_owned(), value);
        } else if !is_one && value > 0 && matches!(name.group, Group::Receive | Group::Transmit) {
            let port = worker.ports.entry(name.port.clone()).or_default();
            let flow = if name.group == Group::Receive { &mut port.receive } else { &mut port.transmit };
            put_flow(flow, name.key, value);
        }
    }
    worker
}

/// Returns a problem for each followed interface that is down.
fn downs(ports: &BTreeMap<String, Port>) -> impl Iterator<Item = Complaint> {
    let down = ports.iter().filter(|(_, port)| port.numbers.get(LINK_DOWN).is_some_and(|&down| down != 0));
    down.map(|(name, _)| Complaint {
        what: format!("{name} is down"),
        why: Some(format!("nothing moves before: ip link set dev {name} up")),
        code: "link_down".to_owned(),
        fix: Some(format!("sudo ip link set dev {name} up")),
        ..Complaint::default()
    })
}

/// Fallback counters that mean that the kernel took an offload back while packets were forwarded.
const TAKEN_BACK: &[(&str, &[&str])] = &[
    ("udp_segment_eio", &["udp_segment"]),
    ("udp_segment_einval", &["udp_segment"]),
    ("tun_tso_einval", &["tun_tso4", "tun_tso6", "tap_tso4", "tap_tso6"]),
    ("tun_uso_einval", &["tun_uso", "tap_uso"]),
    ("tap_tunnel_einval", &["tap_udp_tunnel"]),
];

/// Marks offloads that the kernel has refused since the start and that are not back in use.
fn take_back(instance: &mut Instance) {
    let is_back = instance.ports.values().any(|port| port.numbers.get(UDP_SEGMENT_ON) == Some(&1));
    for (counter, names) in TAKEN_BACK {
        if instance.ports.values().any(|port| port.fallbacks.get(*counter).is_some_and(|&count| count > 0)) {
            // An instance with a TUN has no offloads of a TAP.
            let known = names.iter().filter(|name| instance.offloads.contains_key(**name));
            let lost: Vec<_> = known.filter(|name| **name != UDP_SEGMENT_ON || !is_back).collect();
            for name in lost {
                let why = Some(format!("the kernel refused it while packets moved ({counter})"));
                instance.offloads.insert((*name).to_owned(), Offload { on: false, why, refused: true });
            }
        }
    }
}

/// Adds a counter to its group. Counters of the same name, such as a drop that two stages count, are summed.
fn put(port: &mut Port, group: Group, key: &'static str, value: u64) {
    let map = match group {
        Group::Receive | Group::Transmit => {
            put_flow(if group == Group::Receive { &mut port.receive } else { &mut port.transmit }, key, value);
            return;
        }
        Group::Port if key == "checksummed_bytes" => {
            port.checksummed_bytes = value;
            return;
        }
        Group::Stage(stage) => {
            let seen: &mut Seen = port.stages.entry(stage_name(stage).to_owned()).or_default();
            match key {
                "packets" => seen.packets = value,
                "bytes" => seen.bytes = value,
                "trains" => seen.trains = value,
                "segments" => seen.segments = value,
                _ => {}
            }
            return;
        }
        Group::Port if key == "swallowed" => {
            port.swallowed = value;
            return;
        }
        Group::Port if key == "trimmed" => {
            port.trimmed = value;
            return;
        }
        Group::Gso => &mut port.gso,
        Group::Remcsum => &mut port.remcsum,
        Group::Napi => &mut port.napi,
        Group::Port | Group::Worker => &mut port.numbers,
        Group::Drops => &mut port.drops,
        Group::Flushes => &mut port.flushes,
        Group::Alone => &mut port.refusals,
        Group::Mismatches => &mut port.mismatches,
        Group::Fallbacks => &mut port.fallbacks,
    };
    *map.entry(key.to_owned()).or_insert(0) += value;
}

fn put_flow(flow: &mut Flow, key: &str, value: u64) {
    match key {
        "packets" => flow.packets = value,
        "bytes" => flow.bytes = value,
        "trains" => flow.trains = value,
        "segments" => flow.segments = value,
        "calls" => flow.calls = value,
        _ => {}
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Decap => "decap",
        Stage::Gro => "gro",
        Stage::Ingress => "entry",
        Stage::NatIn => "nat_in",
        Stage::Route => "route",
        Stage::NatOut => "nat_out",
        Stage::Encap => "encap",
        Stage::Gso => "gso",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offload_that_the_kernel_took_back_is_off_and_says_why() {
        let mut instance = Instance::default();
        let on = Offload { on: true, ..Offload::default() };
        for name in ["udp_segment", "udp_gro", "tun_tso4"] {
            instance.offloads.insert(name.to_owned(), on.clone());
        }
        let mut port = Port::default();
        port.fallbacks.insert("udp_segment_eio".to_owned(), 1);
        port.fallbacks.insert("tun_tso_einval".to_owned(), 0);
        instance.ports.insert("udp".to_owned(), port);
        take_back(&mut instance);
        let refused = |name: &str| instance.offloads[name].refused;
        assert!(refused("udp_segment") && !instance.offloads["udp_segment"].on);
        assert!(!refused("udp_gro") && !refused("tun_tso4"));
    }

    #[test]
    fn an_offload_that_is_back_in_use_is_on_again() {
        let mut instance = Instance::default();
        instance.offloads.insert("udp_segment".to_owned(), Offload { on: true, ..Offload::default() });
        for (now, on) in [(0, false), (1, true)] {
            let mut with = instance.clone();
            let mut port = Port::default();
            port.fallbacks.insert("udp_segment_eio".to_owned(), 3);
            port.numbers.insert("udp_segment".to_owned(), now);
            with.ports.insert("udp".to_owned(), port);
            take_back(&mut with);
            assert_eq!(with.offloads["udp_segment"].on, on);
        }
    }

    #[test]
    fn counters_of_one_name_from_two_stages_are_added() {
        let mut port = Port::default();
        put(&mut port, Group::Drops, "too_deep", 2);
        put(&mut port, Group::Drops, "too_deep", 3);
        put(&mut port, Group::Transmit, "bytes", 7);
        assert_eq!((port.drops["too_deep"], port.transmit.bytes), (5, 7));
    }
}
