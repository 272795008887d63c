//! The settings of GSO, GRO and acknowledgment aggregation, and the limits and rules that follow from them.

use segue::gro::{self, Generation, Profile};
use segue::gso::Limits;
use segue::packet::{Gso, GsoKind, TrainCsum, Unit};
use segue::time::Nanos;

use crate::fq;
use crate::knobs::{Dial, Knob, Values};
use crate::napi::Sharing;

/// A burst setting of this many bytes or more leaves the limit to the port.
const WHOLE_BURST: u64 = 65_535;

/// Longest interval between two echo requests of a probe, seconds.
const LONGEST_PROBE: u64 = 3600;

/// The settings of a pipeline between two ports.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Names of the two ports.
    pub(crate) names: [String; 2],
    pub(crate) protocols: Protocols,
    /// Settings of GSO, for each port.
    pub(crate) egress: [EgressSettings; 2],
    /// Settings of GRO, under the name of the port at which joining is counted.
    pub(crate) gro: [Option<GroSettings>; 2],
    /// Setting of remote checksum offload, for tunnels.
    pub(crate) remcsum: Remcsum,
    /// Interval between two echo requests of the probe in seconds, for tunnels that can have one.
    pub(crate) probe: Option<u64>,
    /// Most copies of flooded frames a second, for tunnels with a table of frames.
    pub(crate) flood: Option<u64>,
    /// The queues of the second port, for tunnels.
    pub(crate) queue: Option<QueueSettings>,
    /// Weights, budget and sleep of the loop.
    pub(crate) sharing: Sharing,
}

/// Remote checksum offload: whether inner checksums are left to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remcsum {
    /// The pipeline is no tunnel.
    None,
    /// The tunnel was created without remote checksum offload.
    Never,
    /// The feature can be switched; the value says whether it is on.
    Can(bool),
}

impl Settings {
    /// Returns the initial settings; `weight` is the number of packets of one poll of each port.
    pub(crate) fn new(names: [String; 2], gro: [Option<gro::Config>; 2], remcsum: Remcsum, weight: usize) -> Settings {
        let (protocols, egress) = (Protocols::default(), [EgressSettings::default(); 2]);
        let (gro, sharing) = (gro.map(|config| config.map(GroSettings::new)), Sharing::new(weight));
        Settings { names, protocols, egress, gro, remcsum, probe: None, flood: None, queue: None, sharing }
    }

    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>) {
        self.protocols.tune(dial, self.gro.iter().any(Option::is_some));
        for (name, egress) in self.names.iter().zip(&mut self.egress) {
            egress.tune(dial, name);
        }
        for (name, gro) in self.names.iter().zip(&mut self.gro) {
            if let Some(gro) = gro {
                gro.tune(dial, name);
            }
        }
        self.tune_probe(dial);
        if let Some(limit) = &mut self.flood {
            let name = format!("net.peers.dev.{}.flood_limit", self.names[0]);
            let help = "most copies per second of frames that go to several peers; 0 sends none";
            dial.number(|| Knob::number(name, (0, 100_000_000), "packets/s", help), limit);
        }
        if let Some(queue) = &mut self.queue {
            queue.tune(dial, &self.names[1]);
        }
        let (mut on, fixed) = match self.remcsum {
            Remcsum::None => return self.sharing.tune(dial, &self.names),
            Remcsum::Never => (false, Some("the tunnel was not made for it: start it with encap-remcsum")),
            Remcsum::Can(on) => (on, None),
        };
        let knob = || {
            let name = format!("net.remcsum.dev.{}.enable_remcsum", self.names[1]);
            Knob { fixed, ..Knob::switch(name, "checksums of packets sent here are left to the receiver") }
        };
        dial.switch(knob, &mut on);
        if let Remcsum::Can(is_on) = &mut self.remcsum {
            *is_on = on;
        }
        self.sharing.tune(dial, &self.names);
    }

    fn tune_probe(&mut self, dial: &mut Dial<'_>) {
        if let Some(interval) = &mut self.probe {
            let name = format!("net.probe.dev.{}.interval", self.names[0]);
            let help = "time between two probes of the other end; 0 sends and answers none";
            dial.number(|| Knob::number(name, (0, LONGEST_PROBE), "seconds", help), interval);
        }
    }

    /// Applies the settings of the first port, like [`tune`](Self::tune), and copies the others from `others`.
    pub(crate) fn tune_inside(&mut self, dial: &mut Dial<'_>, others: &Settings) {
        (self.protocols, self.egress[1], self.remcsum) = (others.protocols, others.egress[1], others.remcsum);
        self.queue = others.queue;
        self.egress[0].tune(dial, &self.names[0]);
        if let Some(gro) = &mut self.gro[0] {
            gro.tune(dial, &self.names[0]);
        }
        self.tune_probe(dial);
        self.sharing.tune_first(dial, &self.names[0], &others.sharing);
    }

    /// Applies the settings of the second port, like [`tune`](Self::tune), and copies the others from `others`.
    pub(crate) fn tune_outside(&mut self, dial: &mut Dial<'_>, others: &Settings) {
        (self.protocols, self.egress[0], self.remcsum) = (others.protocols, others.egress[0], others.remcsum);
        self.egress[1].tune(dial, &self.names[1]);
        self.sharing.tune_second(dial, &self.names[1], &others.sharing);
    }

    /// Returns the kinds of trains that are segmented on ingress of the path to the port `to`.
    pub(crate) fn cuts(&self, to: usize) -> Cuts {
        Cuts::new(&self.protocols, &self.egress[to])
    }
}

/// Switches for all ports, by transport protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocols {
    pub(crate) tcp_gso: bool,
    pub(crate) udp_gso: bool,
    pub(crate) tcp_gro: bool,
    pub(crate) udp_gro: bool,
    pub(crate) tcp_ack: bool,
}

impl Default for Protocols {
    fn default() -> Self {
        Protocols { tcp_gso: true, udp_gso: true, tcp_gro: true, udp_gro: true, tcp_ack: true }
    }
}

impl Protocols {
    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>, joins: bool) {
        dial.switch(
            || Knob::switch("net.inet.tcp.gso", "TCP trains go through whole; 0 cuts them on entry"),
            &mut self.tcp_gso,
        );
        dial.switch(
            || Knob::switch("net.inet.udp.gso", "UDP trains go through whole; 0 cuts them on entry"),
            &mut self.udp_gso,
        );
        if joins {
            dial.switch(|| Knob::switch("net.inet.tcp.gro", "TCP segments are joined"), &mut self.tcp_gro);
            dial.switch(|| Knob::switch("net.inet.udp.gro", "UDP datagrams are joined"), &mut self.udp_gro);
            dial.switch(
                || Knob::switch("net.inet.tcp.ack", "acknowledgments collapse where a port has that on"),
                &mut self.tcp_ack,
            );
        }
    }
}

/// Settings of GSO for one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EgressSettings {
    /// Whether trains are segmented before the port; otherwise they are segmented on ingress.
    pub(crate) gso: bool,
    /// Length of the largest train passed to the port, bytes.
    max_burst: u64,
    /// Whether the port accepts trains; otherwise each is segmented into single packets.
    tso: bool,
}

impl Default for EgressSettings {
    fn default() -> Self {
        EgressSettings { gso: true, max_burst: WHOLE_BURST, tso: true }
    }
}

impl EgressSettings {
    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>, port: &str) {
        let name = |key: &str| format!("net.gso.dev.{port}.{key}");
        dial.switch(
            || Knob::switch(name("enable_gso"), "trains are cut in front of this port; 0 cuts them on entry"),
            &mut self.gso,
        );
        let burst = || {
            let help = "largest train handed to this port; 65535 is as much as it takes";
            Knob::number(name("max_burst"), (576, WHOLE_BURST), "bytes", help)
        };
        dial.number(burst, &mut self.max_burst);
        dial.switch(
            || Knob::switch(name("tso"), "trains are passed to this port if it accepts them; 0 passes single packets"),
            &mut self.tso,
        );
    }

    /// Returns the largest number of bytes passed in one call; 0 stands for one packet.
    pub(crate) fn burst(&self) -> usize {
        match (self.tso, self.max_burst) {
            (false, _) => 0,
            (true, WHOLE_BURST..) => usize::MAX,
            (true, bytes) => bytes as usize,
        }
    }

    /// Returns a port's limits, narrowed by the settings.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        match self.burst() {
            usize::MAX => limits,
            0 => without_trains(limits),
            burst => Limits { max_bytes: limits.max_bytes.min(burst), ..limits },
        }
    }
}

/// Settings of the fair queues of one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSettings {
    pub(crate) on: bool,
    /// Whether a packet whose transport supports ECN is marked rather than dropped.
    pub(crate) ecn: bool,
    target_us: u64,
    interval_us: u64,
    limit: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        QueueSettings { on: false, ecn: true, target_us: 2_000, interval_us: 20_000, limit: 4 << 20 }
    }
}

impl QueueSettings {
    fn tune(&mut self, dial: &mut Dial<'_>, port: &str) {
        let name = |key: &str| format!("net.fq.dev.{port}.{key}");
        dial.switch(
            || Knob::switch(name("enable_fq"), "1 has what waits take turns by flow, in both directions"),
            &mut self.on,
        );
        dial.switch(
            || Knob::switch(name("enable_ecn"), "CoDel marks packets that support ECN; 0 drops them"),
            &mut self.ecn,
        );
        let us = |key, help| Knob::number(name(key), (1, 1_000_000), "us", help);
        dial.number(
            || us("target_us", "how long packets of a flow may wait in the long run (CoDel)"),
            &mut self.target_us,
        );
        dial.number(|| us("interval_us", "the longest usual round trip of a flow (CoDel)"), &mut self.interval_us);
        let limit = || {
            let help = "waiting packets from which on no more are read";
            Knob::number(name("limit"), (65_536, 8 << 20), "bytes", help)
        };
        dial.number(limit, &mut self.limit);
    }

    pub(crate) fn config(&self) -> fq::Config {
        let times = fq::Times { target: Nanos::micros(self.target_us), interval: Nanos::micros(self.interval_us) };
        fq::Config { times, limit: self.limit as usize }
    }
}

/// Returns the limits of a port that accepts single packets only.
pub(crate) fn without_trains(limits: Limits) -> Limits {
    Limits { tso4: false, tso6: false, uso: false, ..limits }
}

/// Returns whether the checksums of a train were verified, and may be 0. A kernel or a device that completes a checksum
/// sends 0xffff for it, which UDP requires and TCP does not: so that such a packet leaves as it came, the checksums of
/// verified TCP trains are completed here.
pub(crate) fn is_verified_tcp(csum: TrainCsum, gso: Gso) -> bool {
    csum == TrainCsum::Stale && gso.kind == GsoKind::Tcp
}

/// The kinds of trains that are segmented on ingress of the path to one port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cuts {
    tcp: bool,
    udp: bool,
}

impl Cuts {
    pub(crate) fn new(protocols: &Protocols, egress: &EgressSettings) -> Cuts {
        Cuts { tcp: !(protocols.tcp_gso && egress.gso), udp: !(protocols.udp_gso && egress.gso) }
    }

    pub(crate) fn cuts(self, unit: &Unit) -> bool {
        match unit {
            Unit::Whole(_) => false,
            Unit::Train { gso, .. } => match gso.kind {
                GsoKind::Tcp => self.tcp,
                GsoKind::Udp => self.udp,
            },
        }
    }
}

/// Returns the profiles' names as on the command line, with the given generation of Linux.
const fn profiles(linux: Generation) -> &'static [&'static str] {
    match linux {
        Generation::V6_12 => &["strict", "linux:6.12", "lro"],
        Generation::V6_18 => &["strict", "linux:6.18", "lro"],
        // A later generation has its name here when it comes.
        _ => &["strict", "linux:7.0", "lro"],
    }
}
const LRO: u64 = 2;

/// Settings of GRO for the packets that one port receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroSettings {
    /// GRO configuration at the start.
    config: gro::Config,
    pub(crate) on: bool,
    profile: u64,
    max_burst: u64,
    max_packets: u64,
    hold_us: u64,
    acks: bool,
    max_acks: u64,
}

impl GroSettings {
    pub(crate) fn new(config: gro::Config) -> GroSettings {
        let profile = match config.profile {
            Profile::Strict => 0,
            Profile::Linux(_) => 1,
            Profile::Lro => LRO,
        };
        GroSettings {
            on: true,
            profile,
            max_burst: config.max_bytes as u64,
            max_packets: config.max_packets as u64,
            hold_us: config.hold.as_micros(),
            acks: config.acks,
            max_acks: config.max_acks as u64,
            config,
        }
    }

    pub(crate) fn tune(&mut self, dial: &mut Dial<'_>, port: &str) {
        let gro = |key: &str| format!("net.gro.dev.{port}.{key}");
        let ack = |key: &str| format!("net.ack.dev.{port}.{key}");
        dial.switch(|| Knob::switch(gro("enable_gro"), "packets that come in here are joined"), &mut self.on);
        let names = profiles(self.linux());
        let profile = || {
            let help = "which packets form a train: strict, linux as it was started, or lro";
            Knob { values: Values::Names(names), ..Knob::switch(gro("profile"), help) }
        };
        dial.number(profile, &mut self.profile);
        let most = (576, gro::MAX_TRAIN_BYTES as u64);
        dial.number(|| Knob::number(gro("max_burst"), most, "bytes", "largest train made here"), &mut self.max_burst);
        let packets = || Knob::number(gro("max_packets"), (1, 65_535), "packets", "most packets of a train made here");
        dial.number(packets, &mut self.max_packets);
        let hold =
            || Knob::number(gro("hold_us"), (0, 1_000_000), "us", "longest time that a packet waits for the next");
        dial.number(hold, &mut self.hold_us);
        let acks = || {
            let help = "acknowledgments that come in here collapse to the newest";
            Knob { needs: Some((gro("profile"), LRO)), ..Knob::switch(ack("enable_ack"), help) }
        };
        dial.switch(acks, &mut self.acks);
        let burst =
            || Knob::number(ack("max_burst"), (1, 65_535), "packets", "maximum number of ACKs aggregated into one");
        dial.number(burst, &mut self.max_acks);
    }

    /// Returns the Linux generation of profile linux: that of the initial configuration, or the default.
    fn linux(&self) -> Generation {
        match self.config.profile {
            Profile::Linux(generation) => generation,
            Profile::Strict | Profile::Lro => Generation::default(),
        }
    }

    /// Returns whether the profile is strict: only packets that can be restored byte for byte are joined.
    pub(crate) fn is_strict(&self) -> bool {
        self.profile == 0
    }

    /// Returns the longest time that a packet waits for the next, nanoseconds.
    pub(crate) fn hold(&self) -> u64 {
        // A hold time from the command line may be no whole number of microseconds.
        if self.config.hold.as_micros() == self.hold_us { self.config.hold.0 } else { self.hold_us * 1000 }
    }

    /// Returns the engine's configuration for these settings; `hold` in nanoseconds.
    pub(crate) fn config(&self, protocols: &Protocols, hold: u64) -> gro::Config {
        let profile = match self.profile {
            0 => Profile::Strict,
            1 => Profile::Linux(self.linux()),
            _ => Profile::Lro,
        };
        let only_if = |on: bool, most: usize| if on { most } else { 1 };
        let max_packets = self.max_packets as usize;
        gro::Config {
            profile,
            max_bytes: self.max_burst as usize,
            max_packets: only_if(protocols.tcp_gro, max_packets),
            max_udp_packets: only_if(protocols.udp_gro, self.config.max_udp_packets.min(max_packets)),
            hold: Nanos(hold),
            acks: self.acks && protocols.tcp_ack,
            max_acks: self.max_acks as usize,
            ..self.config
        }
    }
}
