//! Measurement of the rows of `gso`: a sender, a gateway, and a check of the frames on the wire.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::pair::{Form, Pair, TAP, Tested};
use super::point::Sample;
use super::site::Site;
use super::{bed, ends};
use crate::link::ethtool;
use crate::load::{self, Style};
use crate::sys::PacketSocket;
use crate::{Family, Host, LabError, Named, Peer, Process, Proto, reach};

const MTU: u32 = 1500;
/// MTU of a link whose packets hold one large datagram, in bytes.
const LONG_MTU: u32 = 9000;
/// Length of the longest frame in bytes: an Ethernet header and the MTU.
const LONGEST: u32 = MTU + 14;
/// Time in the middle of the load in which every frame on the wire is checked.
const WATCHED: Duration = Duration::from_millis(100);
/// Time between setting the filters and the check.
const SETTLED: Duration = Duration::from_millis(10);
/// Maximum number of checks of frame lengths if no frames arrive.
const MOST_WATCHES: u32 = 5;
/// Name of the router's interface towards the sender.
const INSIDE: &str = "in0";
/// Number of the network between router and sender.
const INSIDE_NET: u8 = 1;
/// The sender's address behind the NAT, as seen by the receiver.
const OUTSIDE: &str = "198.18.0.9";

/// Loads of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Load by a TCP stream.
    Tcp(Family),
    /// UDP datagrams of 9000 bytes with their headers.
    Udp(Family),
    /// A TCP stream through a router with NAT.
    Nat,
    /// A TCP stream during which GSO is switched.
    Live,
}

impl Load {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Load::Tcp(Family::V4) => "tcp4",
            Load::Tcp(Family::V6) => "tcp6",
            Load::Udp(Family::V4) => "udp4-9k",
            Load::Udp(Family::V6) => "udp6-9k",
            Load::Nat => "nat-tcp4",
            Load::Live => "live-tcp4",
        }
    }
}

/// Components that segment trains or fragment datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The network card segments trains (TSO).
    Tso,
    /// The kernel segments in front of the card, without a gateway.
    Kernel,
    /// The kernel segments: segue passes whole trains to a card without TSO, as it does by default.
    Handed,
    /// Segue segments on egress, behind NAT; live rows are switched to this.
    Gso,
    /// Segue segments on ingress, in front of NAT; live rows are switched to this.
    Entry,
    /// The sending stack segments: its TCP makes single segments.
    Nowhere,
    /// The sending stack segments, and leaves checksums to the card.
    NowhereSums,
    /// The sending stack segments in front of the TAP: Linux's TCP makes trains also for a device without offloads.
    Late,
    /// The sending stack segments as in [`How::Nowhere`], without a gateway.
    KernelNowhere,
}

impl How {
    pub(super) const fn word(self) -> &'static str {
        match self {
            How::Tso => "tso",
            How::Kernel => "kernel",
            How::Handed => "handed",
            How::Gso => "gso",
            How::Entry => "entry",
            How::Nowhere => "none",
            How::NowhereSums => "none-sums",
            How::Late => "none-late",
            How::KernelNowhere => "kernel-none",
        }
    }

    pub(super) const fn is_segue(self) -> bool {
        !matches!(self, How::Kernel | How::KernelNowhere)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) load: Load,
    pub(super) how: How,
    /// Share of the processor in per cent.
    pub(super) quota: u32,
    pub(super) rate: Option<&'static str>,
    pub(super) flows: u32,
    /// Whether the receiver has GRO.
    pub(super) gro: bool,
    /// Whether the card computes checksums.
    pub(super) sums: bool,
}

pub(super) fn sample(site: &Site, case: &Case) -> Result<Sample, LabError> {
    if site.quota.is_some() {
        let text = "bench gso has rows for each quota: --rows quota=50";
        return Err(LabError::Usage(text.into()));
    }
    let quota = Some(case.quota).filter(|quota| *quota < 100);
    let site = &Site { quota, segue: site.segue.clone(), beside: None, ..*site };
    let card: &[&str] = match (case.how, case.sums) {
        (How::Tso, _) => &[],
        (How::KernelNowhere, _) => &["tso", "off", "gso", "off", "tx", "off"],
        (_, true) => &["tso", "off"],
        (_, false) => &["tso", "off", "tx", "off"],
    };
    let family = match case.load {
        Load::Tcp(family) | Load::Udp(family) => family,
        Load::Nat | Load::Live => Family::V4,
    };
    let pair = Pair::new(
        site,
        &Form {
            tested: Tested::Sender,
            gateway: case.how.is_segue(),
            mtus: (MTU, MTU),
            rate: case.rate,
            verified: true,
            family,
            card,
        },
    )?;
    if case.gro {
        bed::aggregate_with_sender(&pair.receiver, &pair.cards[1])?;
    }
    let (at_card, card) = pair.tested_card();
    bed::wait_when_full(at_card, card)?;
    if case.rate.is_none() {
        bed::wait_when_full(&pair.wire, bed::FAR)?;
    }
    if case.how != How::Tso
        && let Some(why) = bed::fetch_by_wire(&pair.wire)?
    {
        return Ok(Sample::Skipped(why));
    }
    let _gateway = match case.load {
        Load::Nat => Some(start_router(site, case, &pair)?),
        _ => pair.join(site, &flags(case, &pair.cards[0]))?,
    };
    match case.how {
        How::Nowhere | How::Late => ethtool(&pair.sender, TAP, &["tso", "off", "gso", "off", "tx", "off"])?,
        How::NowhereSums => ethtool(&pair.sender, TAP, &["tso", "off", "gso", "off"])?,
        _ => {}
    }
    match (case.load, case.how) {
        (Load::Tcp(_), How::Nowhere | How::NowhereSums) => without_trains(&pair.sender, TAP)?,
        (Load::Tcp(_), How::KernelNowhere) => without_trains(at_card, card)?,
        _ => {}
    }
    let mut values = match case.load {
        Load::Live => live(site, case, &pair)?,
        _ => measured(site, case, &pair)?,
    };
    // Of a live row, what came after the switch is in already.
    if case.how.is_segue() && case.load != Load::Live {
        let stage = Stage::read(site, &pair)?;
        values.push("stage_packets", stage.segments / stage.packets.max(1.0));
    }
    Ok(Sample::Values(values))
}

/// Disables trains in TCP, so that single segments pass the stack. Linux otherwise makes trains, and segments them in
/// front of the device at the latest, even with `gso off`.
fn without_trains(host: &Host, device: &str) -> Result<(), LabError> {
    host.run("ip", &["link", "set", "dev", device, "gso_max_segs", "1"]).map(drop)
}

/// Returns the flags of the gateway.
fn flags(case: &Case, card: &str) -> Vec<String> {
    let mut flags = Vec::new();
    if matches!((case.load, case.how), (Load::Udp(_), How::Gso)) {
        flags.extend(["--tap-mtu".into(), LONG_MTU.to_string(), "--fragment".into()]);
    }
    // Live rows begin with what they switch away from.
    let (tso, gso) = match (case.load, case.how) {
        (_, How::Tso | How::Handed) => (1, 1),
        (Load::Live, How::Gso) | (Load::Nat, How::Entry) => (0, 0),
        _ => (0, 1),
    };
    // What the sender cut stays cut.
    let inside = if case.load == Load::Nat { INSIDE } else { TAP };
    let knobs = [
        format!("net.gso.dev.{card}.tso={tso}"),
        format!("net.gso.dev.{card}.enable_gso={gso}"),
        format!("net.gro.dev.{inside}.enable_gro=0"),
    ];
    flags.extend(knobs.into_iter().flat_map(|knob| ["--set".into(), knob]));
    flags
}

/// Starts a router instead of the gateway: `sender --- in0 | segue | card --- wire`.
fn start_router(site: &Site, case: &Case, pair: &Pair) -> Result<Process, LabError> {
    let (router, card) = pair.tested_card();
    let single = ["gro", "off", "tso", "off", "gso", "off", "tx", "off"];
    let features = if case.how == How::Nowhere { &single[..] } else { &single[..2] };
    let side = |host, name, features| bed::Card { host, name, mtu: MTU, features, core: site.test_core };
    bed::cable(&side(&pair.sender, TAP, features), &side(router, INSIDE, &single[..2]))?;
    let addresses = [(&pair.sender, Peer::B, TAP, INSIDE_NET), (router, Peer::A, INSIDE, INSIDE_NET)];
    let more = [(router, Peer::A, card, 0), (&pair.receiver, Peer::B, pair.cards[1].as_str(), 0)];
    for (host, end, device, net) in addresses.into_iter().chain(more) {
        host.run("ip", &["addr", "add", &end.prefix(net, Family::V4), "dev", device])?;
    }
    let gateway = Peer::A.address(INSIDE_NET, Family::V4).to_string();
    pair.sender.run("ip", &["route", "add", "default", "via", &gateway])?;
    let mut command = router.command(&site.segue);
    command.args(["gateway", INSIDE, card, "--route", "--nat", OUTSIDE, "--name", "bench", "-j"]);
    command.args(flags(case, card));
    let mut process = Process::spawn(command, b"")?;
    process.wait_for_line("\"up\"", Duration::from_secs(5))?;
    let from = Peer::B.address(INSIDE_NET, Family::V4);
    reach((&pair.sender, from), (&pair.receiver, pair.to()), Duration::from_secs(5))?;
    Ok(process)
}

/// Measures one load from beginning to end.
fn measured(site: &Site, case: &Case, pair: &Pair) -> Result<Named<f64>, LabError> {
    let retransmits = || bed::tcp_counter(&pair.sender, "RetransSegs");
    let before = (retransmits()?, pair.cpu_seconds()?[0], Instant::now());
    let (bytes, seconds, frames) = thread::scope(|scope| {
        let watch = scope.spawn(|| watch(site, &pair.wire));
        let came = match case.load {
            Load::Udp(family) => datagrams(site, pair, case.flows, family),
            _ => stream(pair, case.flows, site.seconds),
        };
        let frames = watch.join().unwrap_or_else(|_| Err(LabError::Load("the watch over the wire ended".into())))?;
        came.map(|(bytes, seconds)| (bytes, seconds, frames))
    })?;
    let (cpu, wall) = (pair.cpu_seconds()?[0] - before.1, before.2.elapsed().as_secs_f64());
    let mut values = Named::default();
    values.push("gbps", bytes as f64 * 8e-9 / seconds);
    values.push("sender_cpu_percent", 100.0 * cpu / wall);
    values.push("sender_cpu_s_per_gb", cpu / (bytes as f64 * 1e-9));
    values.push("frames_watched", frames as f64);
    if !matches!(case.load, Load::Udp(_)) {
        values.push("retransmits", (retransmits()? - before.0) as f64);
    }
    Ok(values)
}

fn stream(pair: &Pair, flows: u32, seconds: u32) -> Result<(u64, f64), LabError> {
    let outcome = load::run(&load::Load {
        client: &pair.sender,
        server: &pair.receiver,
        to: pair.to(),
        proto: Proto::Tcp,
        seconds,
        parallel: flows,
        style: Style { sendfile: true, ..Style::default() },
    })?;
    Ok((outcome.bytes, outcome.seconds))
}

fn datagrams(site: &Site, pair: &Pair, flows: u32, family: Family) -> Result<(u64, f64), LabError> {
    let headers = match family {
        Family::V4 => 28,
        Family::V6 => 48,
    };
    let (to, len) = (pair.to().to_string(), LONG_MTU as usize - headers);
    let came = ends::run_datagrams(&site.segue, &pair.sender, (&pair.receiver, &to), (flows, len), site.seconds)?;
    Ok((came.bytes, came.seconds))
}

/// Checks the length of every frame to the receiver for a moment in the middle of the load, and continues until there
/// is a frame. Returns the number of frames.
fn watch(site: &Site, wire: &Host) -> Result<u64, LabError> {
    thread::sleep(Duration::from_millis(300 + u64::from(site.seconds) * 500));
    let seen = wire.enter(|| {
        let all = PacketSocket::count_longer_than(bed::FAR, 0)?;
        let long = PacketSocket::count_longer_than(bed::FAR, LONGEST)?;
        // What was on its way past a filter when that was set may be counted by none or by the wrong one.
        thread::sleep(SETTLED);
        all.passed();
        long.passed();
        let mut seen = (0, 0);
        for _ in 0..MOST_WATCHES {
            thread::sleep(WATCHED);
            seen = (seen.0 + all.passed(), seen.1 + long.passed());
            if seen.0 > 0 {
                break;
            }
        }
        Ok(seen)
    })?;
    match seen.map_err(|source| LabError::system("look at the frames on the wire", source))? {
        (all, 0) => Ok(all),
        (all, long) => {
            let text = format!("{long} of {all} on the wire were longer");
            Err(LabError::system(format!("keep frames to {LONGEST} bytes"), io::Error::other(text)))
        }
    }
}

/// The gateway's counters of the stage before the card.
#[derive(Debug, Clone, Copy, Default)]
struct Stage {
    packets: f64,
    segments: f64,
    /// Number of bytes that the port sent.
    sent: f64,
    /// Number of packets dropped in the whole gateway.
    drops: f64,
}

impl Stage {
    fn read(site: &Site, pair: &Pair) -> Result<Stage, LabError> {
        let (host, card) = pair.tested_card();
        let program = site.segue.to_string_lossy();
        let text = host.run(&program, &["stat", "bench", "-j"])?;
        let wrong = || LabError::Load(format!("segue stat has nothing of {card}"));
        let stat: Value = serde_json::from_str(&text).map_err(|_| wrong())?;
        let instance = &stat["instances"][0];
        let port = &instance["ports"][card];
        let number = |value: &Value| value.as_f64().ok_or_else(wrong);
        Ok(Stage {
            packets: number(&port["stages"]["gso"]["packets"])?,
            segments: number(&port["stages"]["gso"]["segments"])?,
            sent: number(&port["transmit"]["bytes"])?,
            drops: number(&instance["drops"])?,
        })
    }

    fn since(self, before: Stage) -> Stage {
        Stage {
            packets: self.packets - before.packets,
            segments: self.segments - before.segments,
            sent: self.sent - before.sent,
            drops: self.drops - before.drops,
        }
    }
}

/// Measures a load and switches `enable_gso` in its middle.
fn live(site: &Site, case: &Case, pair: &Pair) -> Result<Named<f64>, LabError> {
    let (host, card) = pair.tested_card();
    let knob = format!("net.gso.dev.{card}.enable_gso");
    let wanted = if case.how == How::Gso { "1" } else { "0" };
    let half = Duration::from_secs(site.seconds.into());
    let retransmits = || bed::tcp_counter(&pair.sender, "RetransSegs");
    let timed = || -> Result<(Stage, f64), LabError> {
        let (before, begin) = (Stage::read(site, pair)?, Instant::now());
        thread::sleep(half);
        Ok((Stage::read(site, pair)?.since(before), begin.elapsed().as_secs_f64()))
    };
    thread::scope(|scope| {
        let load = scope.spawn(|| stream(pair, case.flows, 2 * site.seconds + 2));
        // The beginning of the stream is its own affair.
        thread::sleep(Duration::from_millis(800));
        let (before, before_s) = timed()?;
        let lost = (Stage::read(site, pair)?.drops, retransmits()?);
        host.run(&site.segue.to_string_lossy(), &["set", "bench", &knob, wanted])?;
        let (after, after_s) = timed()?;
        let lost = (Stage::read(site, pair)?.drops - lost.0, retransmits()? - lost.1);
        load.join().unwrap_or_else(|_| Err(LabError::Load("the load ended".into())))?;
        let mut values = Named::default();
        values.push("gbps", after.sent * 8e-9 / after_s);
        values.push("gbps_before", before.sent * 8e-9 / before_s);
        values.push("stage_packets_before", before.segments / before.packets.max(1.0));
        values.push("stage_packets", after.segments / after.packets.max(1.0));
        values.push("drops", lost.0);
        values.push("retransmits", lost.1 as f64);
        Ok(values)
    })
}
