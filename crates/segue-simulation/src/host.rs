//! The simulated computer: one core serves the adapter, the other one runs the program that sends or receives.
//!
//! The first core takes the controller's interrupts and does what Linux defers: the driver's tasklet or poll and the
//! stack's queue, in turn and in bounded steps. The second core runs the program, and whatever its system calls cause
//! directly. Each step takes effect when it begins and occupies its core for the duration of its cost.

use std::collections::VecDeque;

use segue::gro::{self, Gro, Profile};
use segue::packet::{Csum, Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue_port::{Page, Polled, Port, Received, RxBatch, TxBatch};

use segue_lan78xx::driver::{Config, Copying, Driver, Error, Kick, Resubmit};
use segue_lan78xx::model::{self, Model};

use crate::bus::{Bus, Counts};
use crate::cost::{COSTS, Target};
use crate::frames::{self, MSS, Segment, Sender, TCP_HEAD};
use crate::peer::{Peer, SWITCH};
use crate::stack::{self, Stack};
use crate::{Case, Traffic};

/// Number of packets that the stack takes from its queue in one step (Linux: `dev_weight`).
const WEIGHT: usize = 64;
/// Number of pages of memory for received frames.
const PAGES: usize = 4096;

/// A simulated processor core.
#[derive(Debug, Default)]
pub(super) struct Core {
    /// Time until which the core is busy.
    free: u64,
    pub(super) busy: f64,
}

impl Core {
    fn spend(&mut self, now: u64, cost: f64) {
        self.free = now + cost as u64;
        self.busy += cost;
    }
}

/// A record of the host's traffic.
#[derive(Debug, Default)]
pub(super) struct TrafficRecord {
    /// Deliveries to the stack: the time of each, and the number of frames in it.
    pub(super) delivered: Vec<(u64, u64)>,
    pub(super) backlog_drops: u64,
    pub(super) wakes: u64,
}

pub(super) struct Host {
    case: Case,
    config: Config,
    driver: Driver<Bus>,
    rx: RxBatch,
    tx: TxBatch,
    nothing: TxBatch,
    gro: Option<Gro<Page>>,
    backlog: VecDeque<Box<Packet<Page>>>,
    pub(super) service: Core,
    pub(super) program: Core,
    asleep: bool,
    deferred: bool,
    queue_next: bool,
    pub(super) peer: Peer,
    pub(super) stack: Stack,
    pub(super) traffic_record: TrafficRecord,
    id: u16,
    random: u64,
}

impl Host {
    pub(super) fn new(case: Case) -> Result<Host, Error> {
        let config = case.form.config();
        let chip = model::Config {
            mac: frames::HOST,
            paced: true,
            negotiation: 1_000_000,
            partner_queue: SWITCH,
            ..model::Config::default()
        };
        let mut driver = Driver::open(Bus::new(Model::new(chip)), config)?;
        driver.up()?;
        let mut rx = RxBatch::new(PAGES);
        while !driver.link().up {
            segue_lan78xx::usb::Transport::sleep(driver.usb(), 1_000_000);
            driver.receive(&mut rx, 1).map_err(|_| Error::Stuck("the link"))?;
        }
        driver.usb().setting_up = false;
        let now = driver.usb().now;
        // Linux joins datagrams only for sockets that ask for it, and iperf3's do not.
        let joins = gro::Config { profile: Profile::linux(), max_udp_packets: 1, ..gro::Config::default() };
        let gro = config.gro.then(|| Gro::new(joins));
        Ok(Host {
            case,
            config,
            driver,
            rx,
            tx: TxBatch::new(),
            nothing: TxBatch::new(),
            gro,
            backlog: VecDeque::new(),
            service: Core::default(),
            program: Core::default(),
            asleep: true,
            deferred: false,
            queue_next: false,
            peer: Peer::new(case.traffic, now + 1 + case.seed % 97),
            stack: Stack::new(case.traffic, config.copying == Copying::WholeTransfer),
            traffic_record: TrafficRecord::default(),
            id: 0,
            random: case.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        })
    }

    pub(super) fn driver(&mut self) -> &mut Driver<Bus> {
        &mut self.driver
    }

    pub(super) fn now(&mut self) -> u64 {
        self.driver.usb().now
    }

    /// Runs the simulation up to `end`.
    pub(super) fn run(&mut self, end: u64) {
        loop {
            let now = self.now();
            let world = [self.driver.usb().next_event(), self.peer.next_event()].into_iter().flatten().min();
            let (service, program) = (self.service_next(now), self.program_next(now));
            let Some(at) = [world, service, program].into_iter().flatten().min() else { return };
            let at = at.max(now);
            if at >= end {
                self.driver.usb().now = end;
                return;
            }
            let bus = self.driver.usb();
            bus.now = at;
            if world.is_some_and(|world| world <= at) {
                bus.step(at);
                self.peer.step(at, &mut bus.model);
                while let Some(frame) = bus.model.transmit() {
                    self.peer.take(at, &frame);
                }
                bus.step(at);
            } else if service.is_some_and(|service| service <= at) {
                self.serve(at);
            } else {
                self.run_program(at);
            }
        }
    }

    /// Returns `cost` scaled by a random factor between 3/4 and 5/4, because wake-ups differ in duration.
    fn about(&mut self, cost: f64) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        cost * (0.75 + (self.random >> 11) as f64 / (1_u64 << 54) as f64)
    }

    /// Converts a cost into time on this host's cores, nanoseconds.
    fn scaled(&self, cost: f64) -> f64 {
        cost * 100.0 / self.case.target.speed
    }

    /// Returns the cost of the transfers submitted since `before`, nanoseconds.
    fn moved(&mut self, before: Counts) -> f64 {
        let after = self.driver.usb().counts;
        let ins = (after.submitted_in - before.submitted_in) as f64;
        let outs = (after.submitted_out - before.submitted_out) as f64;
        let copied = (after.bytes_out - before.bytes_out) as f64 * COSTS.byte;
        let fresh_in = if self.config.copying == Copying::WholeTransfer { ins } else { 0.0 };
        let fresh_out = if self.config.tx_fresh { outs } else { 0.0 };
        self.scaled(copied + (fresh_in + fresh_out) * COSTS.transfer) + (ins + outs) * self.case.target.urb / 2.0
    }

    fn service_next(&mut self, now: u64) -> Option<u64> {
        let interrupt = self.driver.usb().interrupt_at();
        let deferred = (self.deferred || !self.backlog.is_empty()).then_some(now);
        interrupt.into_iter().chain(deferred).min().map(|at| at.max(self.service.free))
    }

    /// Runs one step of the core that serves the adapter.
    fn serve(&mut self, now: u64) {
        let cost = if self.driver.usb().interrupt_at().is_some_and(|at| at <= now) {
            self.interrupted()
        } else if self.deferred && (self.backlog.is_empty() || !self.queue_next) {
            self.queue_next = true;
            self.deferred_work(now)
        } else {
            self.queue_next = false;
            self.stack_work(now)
        };
        self.service.spend(now, cost);
    }

    fn interrupted(&mut self) -> f64 {
        let before = self.driver.usb().counts;
        let shown = self.driver.usb().interrupt() as f64;
        if self.config.resubmit == Resubmit::OnCompletion {
            // The completion handler submits fresh transfers.
            let _ = self.driver.transmit(&mut self.nothing);
        }
        self.deferred = true;
        self.traffic_record.wakes += 1;
        let entry = self.about(COSTS.interrupt);
        self.scaled(entry) + shown * self.case.target.urb / 2.0 + self.moved(before)
    }

    /// Runs the tasklet or one poll; returns the cost in nanoseconds.
    fn deferred_work(&mut self, now: u64) -> f64 {
        let before = self.driver.usb().counts;
        let mut cost = 0.0;
        let polled = self.driver.receive(&mut self.rx, usize::MAX).unwrap_or(Polled::Idle);
        self.deferred = polled != Polled::Idle;
        let mut packets = std::mem::take(&mut self.rx.packets);
        let bytes: usize = packets.iter().map(|packet| packet.len()).sum();
        let each = match self.config.copying {
            Copying::EachFrame => COSTS.packet,
            Copying::WholeTransfer => COSTS.clone,
        };
        cost += packets.len() as f64 * (COSTS.parse + each);
        if self.config.copying == Copying::EachFrame {
            cost += bytes as f64 * COSTS.byte;
        }
        let frames = packets.len() as u64;
        if let Some(gro) = &mut self.gro {
            cost += frames as f64 * COSTS.gro;
            for received in packets.drain(..) {
                match received {
                    Received::Frame(frame) => gro.push_frame(frame, Nanos(now), &mut self.rx.pool),
                    Received::Packet(packet) => gro.push(packet, Nanos(now), &mut self.rx.pool),
                }
            }
            gro.flush();
            while let Some(packet) = gro.pop_from(&mut self.rx.pool) {
                packets.push_back(Received::Packet(packet));
            }
        }
        if self.case.form.polls() {
            self.note_delivery(now, frames);
            for received in packets.drain(..) {
                let packet = received.parse(&mut self.rx.pool);
                cost += self.receive(packet);
            }
        } else {
            for received in packets.drain(..) {
                cost += COSTS.backlog;
                let packet = received.parse(&mut self.rx.pool);
                if self.backlog.len() < stack::BACKLOG {
                    self.backlog.push_back(packet);
                } else {
                    self.traffic_record.backlog_drops += segments(&packet);
                    self.rx.pool.put(packet);
                }
            }
        }
        self.rx.packets = packets;
        cost += self.push_tcp();
        self.transmit();
        self.scaled(cost) + self.moved(before)
    }

    /// Processes the stack's queue; returns the cost in nanoseconds.
    fn stack_work(&mut self, now: u64) -> f64 {
        let before = self.driver.usb().counts;
        let (mut cost, mut frames) = (0.0, 0);
        for _ in 0..WEIGHT {
            let Some(packet) = self.backlog.pop_front() else { break };
            frames += segments(&packet);
            cost += self.receive(packet);
        }
        self.note_delivery(now, frames);
        cost += self.push_tcp();
        // Sending is left to the tasklet.
        self.deferred |= !self.tx.is_empty() && self.can_send();
        self.scaled(cost) + self.moved(before)
    }

    fn note_delivery(&mut self, now: u64, frames: u64) {
        if frames > 0 {
            self.traffic_record.delivered.push((now, frames));
        }
    }

    /// Delivers a packet to the stack; returns the unscaled cost.
    fn receive(&mut self, packet: Box<Packet<Page>>) -> f64 {
        let (segment, len) = (frames::segment(packet.head.bytes()), packet.payload.len() as u64);
        self.rx.pool.put(packet);
        match self.case.traffic {
            Traffic::UdpRx => {
                self.stack.datagram();
                COSTS.udp_rx
            }
            Traffic::TcpRx => {
                if !self.stack.data(segment.seq, len) {
                    return COSTS.tcp_rx;
                }
                let (ack, window) = self.stack.acknowledge();
                self.send(Segment { seq: 0, ack, window }, 0);
                COSTS.tcp_rx + COSTS.ack_tx
            }
            Traffic::TcpTx => {
                self.stack.acknowledged(segment.ack);
                COSTS.ack_rx
            }
            Traffic::UdpTx => 0.0,
        }
    }

    /// Passes a segment or train to the driver's queue.
    fn send(&mut self, segment: Segment, len: usize) {
        self.id = self.id.wrapping_add(len.div_ceil(MSS).max(1) as u16);
        let frame = frames::tcp(Sender::Host, self.id, segment, len);
        self.queue(&frame, (len > MSS).then_some(MSS as u16));
    }

    fn queue(&mut self, frame: &[u8], size: Option<u16>) {
        let Some(mut page) = self.rx.pages.take() else { return };
        page.bytes_mut()[..frame.len()].copy_from_slice(frame);
        let mut packet = self.rx.pool.take();
        packet.load(Frag::all(page.freeze(frame.len())), Start::Ethernet, &Tunnels::NONE);
        packet.offload.unit = match size {
            Some(size) => Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Tcp, size, fixed_ids: 0 } },
            None => Unit::Whole(Csum::Partial),
        };
        if let Err((packet, _)) = self.tx.push(packet, self.driver.limits()) {
            self.rx.pool.put(packet);
        }
    }

    /// Returns the number of the program's datagrams or trains that the driver (in the old form: the chip) has not
    /// processed.
    fn waiting(&mut self) -> u64 {
        let counts = self.driver.usb().counts;
        let done = if self.config.tx_fresh { counts.packets_done } else { counts.packets_out };
        self.stack.pushed.saturating_sub(done)
    }

    /// Passes packets to the driver as far as the TCP windows allow; returns the unscaled cost.
    fn push_tcp(&mut self) -> f64 {
        if self.case.traffic != Traffic::TcpTx {
            return 0.0;
        }
        let full = (self.config.lso.unwrap_or(TCP_HEAD + MSS) - TCP_HEAD) / MSS * MSS;
        let mut cost = 0.0;
        loop {
            let below = self.waiting() * full as u64;
            let Some(seq) = self.stack.train(full as u64, below) else { return cost };
            self.send(Segment { seq, ack: 0, window: u16::MAX }, full);
            cost += COSTS.tcp_tx;
        }
    }

    /// Returns whether the driver would send a packet immediately; otherwise it waits for transfers in flight or has no
    /// transfer left.
    fn can_send(&mut self) -> bool {
        let lent = self.driver.usb().lent_out();
        match self.config.kick {
            Kick::WhenIdle => lent == 0,
            Kick::Always => lent < self.config.tx_transfers,
        }
    }

    /// Packs and sends the driver's queued packets, as long as it has transfers.
    fn transmit(&mut self) {
        let _ = self.driver.transmit(&mut self.tx);
        self.tx.recycle(&mut self.rx.pool);
    }

    fn program_next(&mut self, now: u64) -> Option<u64> {
        let waiting = if self.case.traffic == Traffic::UdpTx { self.waiting() } else { 0 };
        self.stack.ready(self.asleep, waiting).then_some(now.max(self.program.free))
    }

    /// Runs one system call of the program.
    fn run_program(&mut self, now: u64) {
        let before = self.driver.usb().counts;
        let mut cost = 0.0;
        if self.asleep {
            cost += self.about(COSTS.wake);
            self.traffic_record.wakes += 1;
        }
        match self.case.traffic {
            Traffic::TcpRx => cost += COSTS.syscall + self.stack.read_stream() as f64 * COSTS.byte,
            Traffic::UdpRx => {
                self.stack.read_datagram();
                cost += COSTS.udp_read + COSTS.syscall + MSS as f64 * COSTS.byte;
            }
            Traffic::TcpTx => {
                self.stack.write_stream();
                cost += COSTS.syscall + stack::CHUNK as f64 * COSTS.byte + self.push_tcp();
            }
            Traffic::UdpTx => {
                self.id = self.id.wrapping_add(1);
                let frame = frames::udp(Sender::Host, self.id, MSS);
                self.queue(&frame, None);
                self.stack.pushed += 1;
                cost += COSTS.udp_tx + COSTS.syscall + MSS as f64 * COSTS.byte;
            }
        }
        if !self.tx.is_empty() && self.can_send() {
            self.transmit();
        }
        let cost = self.scaled(cost) + self.moved(before);
        self.program.spend(now, cost);
        let waiting = if self.case.traffic == Traffic::UdpTx { self.waiting() } else { 0 };
        self.asleep = !self.stack.ready(false, waiting);
    }
}

/// Returns the number of frames that a packet was merged from.
fn segments(packet: &Packet<Page>) -> u64 {
    match packet.offload.unit {
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(packet.payload.len()) as u64,
    }
}

/// Returns the fraction of `span` nanoseconds for which a core was busy.
pub(super) fn share(core: &Core, before: f64, span: u64) -> f64 {
    ((core.busy - before) / span as f64).min(1.0)
}

/// Returns the mean idle time over all cores, per cent; `busy` is the sum of both cores' fractions.
pub(super) fn idle(target: &Target, busy: f64) -> f64 {
    100.0 * (1.0 - busy / f64::from(target.cores))
}
