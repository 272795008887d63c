//! `loss-free`: throughput as RFC 2544 defines it (section 26.1) of a tunnel, a gateway and a router, beside the
//! kernel's.

mod search;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::search::{ATTEMPTS, CLEAR_LOSS, RESOLUTION, Trial};
use super::point::{Part, Point, Sample};
use super::site::Site;
use super::{bed, ends, frames};
use crate::case::{kernel_vxlan, no_such_kind};
use crate::link::{DEVICE, ethtool};
use crate::process::checked_output;
use crate::{Cpu, Family, Host, LabError, Named, Peer, Process, Table, interrupt};

/// Sizes of the frames in bytes with their check sequence: some of those of RFC 2544, section 9.1, the largest one that
/// fits into a tunnel over a link with an MTU of 1500.
const SIZES: [u32; 3] = [64, 512, 1280];
/// Number of flows, whose frames are sent in turn.
const FLOWS: u32 = 1000;
/// Label `load` of the rows.
const LOAD: &str = "loss-free";
/// Typical number of trials of a search.
const TRIALS: u32 = 12;
/// Metric of the rows that no other row has.
pub(super) const RATE: &str = "loss_free_frames_per_s";

/// Devices of the box.
const IN: &str = "in0";
const OUT: &str = "out0";
const TUNNEL: &str = "sg0";
const VXLAN: &str = "vx0";
const BRIDGE: &str = "br0";
/// Number of the tunnel's network.
const NET: u8 = 1;
/// The box's address in the network of the frames' sources, and the network to which they go.
const INSIDE: &str = "198.18.1.1/24";
const TARGETS: &str = "198.18.3.0/24";
/// Numbers of the stations to which frames are sent: the box's first card, and the far end. The far end's card has
/// another address, so that its kernel drops the frames as soon as they are counted.
const NEAR_STATION: u8 = 1;
const FAR_STATION: u8 = 2;
/// Time within which the box forwards, and within which a generator ends after its trial.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time after a trial in which frames still arrive.
const SETTLED: Duration = Duration::from_millis(200);
/// Rate and duration of the trials until the first frame arrives.
const FIRST: (u32, Duration) = (10_000, Duration::from_millis(100));

const NOTES: &str = "
loss-free rate: the highest rate at which all frames arrive (RFC 2544, 26.1);
> where the generator offers no higher one. x kern: to vxlan (segue), to
kernel-bridge (gateway), to kernel-router (router). lost%: at the next higher
rate that was tried; step: its distance. trials: of one search. limit: the
highest rate of the generator.
";

/// Implementations of the forwarding box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A tunnel of segue, and the route into it.
    Tunnel,
    /// VXLAN of the kernel, and the route into it.
    Vxlan,
    /// A gateway of segue between two cards.
    Gateway,
    /// A bridge of the kernel between two cards.
    Bridge,
    /// A gateway of segue with `--route`.
    Router,
    /// The kernel's forwarding.
    Forwarding,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Tunnel, Kind::Vxlan, Kind::Gateway, Kind::Bridge, Kind::Router, Kind::Forwarding];

    const fn word(self) -> &'static str {
        match self {
            Kind::Tunnel => "segue",
            Kind::Vxlan => "vxlan",
            Kind::Gateway => "gateway",
            Kind::Bridge => "kernel-bridge",
            Kind::Router => "router",
            Kind::Forwarding => "kernel-router",
        }
    }

    const fn is_segue(self) -> bool {
        matches!(self, Kind::Tunnel | Kind::Gateway | Kind::Router)
    }

    /// Returns whether the box forwards at layer 2, so that frames are sent to the station behind it.
    const fn is_transparent(self) -> bool {
        matches!(self, Kind::Gateway | Kind::Bridge)
    }
}

/// Returns the name of the row with which another one is compared.
pub(super) fn counterpart(name: &str) -> &'static str {
    match name {
        "segue" | "vxlan" => Kind::Vxlan.word(),
        "gateway" | "kernel-bridge" => Kind::Bridge.word(),
        _ => Kind::Forwarding.word(),
    }
}

/// One row of the table: the box, and the size of the frames.
#[derive(Debug, Clone, Copy)]
struct Form {
    kind: Kind,
    size: u32,
    /// Whether the program of `--beside` runs.
    beside: bool,
}

impl Form {
    fn labels(self) -> Named<Value> {
        let mut labels = Named::default();
        labels.push("tunnel", self.kind.word());
        labels.push("family", "IPv4");
        labels.push("link", "veth");
        labels.push("load", LOAD);
        labels.push("frame", self.size);
        labels.push("flows", FLOWS);
        if self.beside {
            labels.push("program", "beside");
        }
        labels
    }
}

/// Returns the rows, which are measured only where they are chosen.
pub(super) fn points() -> Vec<Point> {
    let mut points = Vec::new();
    for size in SIZES {
        for kind in Kind::ALL {
            for beside in [false, true].into_iter().filter(|beside| !beside || kind.is_segue()) {
                let form = Form { kind, size, beside };
                points.push(Point {
                    labels: form.labels(),
                    seed: Named::default(),
                    part: Part::Full,
                    beside,
                    loads: TRIALS,
                    sample: Box::new(move |site| sample(site, form)),
                });
            }
        }
    }
    points
}

/// Returns the notes below a table with such rows.
pub(super) fn notes(table: &Table) -> String {
    if has_rows(table) { NOTES.to_owned() } else { String::new() }
}

/// Returns how such rows were measured, for the machine part of their table.
pub(super) fn detail(table: &Table, site: &Site) -> Option<String> {
    has_rows(table).then(|| {
        format!(
            "RFC 2544, trials of {} s, resolution {:.0} %, {ATTEMPTS} trials of a rate that loses less than {:.0} %; \
             the box on processor {}, generator and far end on {}",
            site.seconds,
            100.0 * RESOLUTION,
            100.0 * CLEAR_LOSS,
            site.test_core,
            site.load_core
        )
    })
}

fn has_rows(table: &Table) -> bool {
    table.rows.iter().any(|row| row.case.find("load").is_some_and(|load| load == LOAD))
}

fn sample(site: &Site, form: Form) -> Result<Sample, LabError> {
    let program = match (form.beside, &site.beside) {
        (false, _) => &site.segue,
        (true, Some(program)) => program,
        (true, None) => return Ok(Sample::Skipped("--beside names the other program".into())),
    };
    let mut testbed = Testbed::new(site, form)?;
    if let Some(why) = testbed.configure(program)? {
        return Ok(Sample::Skipped(why));
    }
    testbed.wait_until_frames_arrive()?;
    let time = Duration::from_secs(site.seconds.into());
    let found = search::search(|rate| testbed.offer(rate, time))?;
    let mut values = Named::default();
    values.push(RATE, found.rate);
    values.push("lost_percent", 100.0 * found.lost);
    values.push("step_percent", 100.0 * found.step);
    values.push("trials", found.trials);
    values.push("generator_limit_kpps", found.limit / 1000.0);
    Ok(Sample::Values(values))
}

/// A host that forwards, the box, on a processor of its own, between one that sends and one that counts.
struct Testbed<'a> {
    // Dropped first: it ends before its host.
    process: Option<Process>,
    sender: Host,
    middle: Host,
    receiver: Host,
    form: Form,
    site: &'a Site,
}

impl<'a> Testbed<'a> {
    /// Makes the hosts and the cables between them.
    fn new(site: &'a Site, form: Form) -> Result<Testbed<'a>, LabError> {
        let load = Arc::new(Cpu::on_core(site.load_core, None)?);
        let test = Arc::new(Cpu::on_core(site.test_core, site.quota)?);
        let (sender, middle) = (bed::host("sender", &load)?, bed::host("box", &test)?);
        let receiver = bed::host("receiver", &load)?;
        bed::cable(&card(&sender, DEVICE, site.load_core), &card(&middle, IN, site.test_core))?;
        bed::cable(&card(&middle, OUT, site.test_core), &card(&receiver, DEVICE, site.load_core))?;
        // A train of datagrams would be counted as one frame.
        ethtool(&middle, OUT, &["tx-udp-segmentation", "off"])?;
        middle.run("ip", &["link", "set", "dev", IN, "address", &frames::station(NEAR_STATION)])?;
        Ok(Testbed { process: None, sender, middle, receiver, form, site })
    }

    /// Makes the box forward. Returns why that is not possible here, if it is not.
    fn configure(&mut self, program: &Path) -> Result<Option<String>, LabError> {
        let far = frames::station(FAR_STATION);
        let ip = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            self.middle.run("ip", &words).map(drop)
        };
        let (local, remote) = (Peer::A.address(0, Family::V4).to_string(), Peer::B.address(0, Family::V4).to_string());
        let kind = self.form.kind;
        if !kind.is_transparent() {
            ip(&format!("addr add {INSIDE} dev {IN}"))?;
            ip(&format!("addr add {} dev {OUT}", Peer::A.prefix(0, Family::V4)))?;
            ip(&format!("neigh add {remote} lladdr {far} dev {OUT} nud permanent"))?;
            self.middle.set_sysctl("ipv4/conf/all/rp_filter", "0")?;
            self.middle.set_sysctl(&format!("ipv4/conf/{IN}/rp_filter"), "0")?;
        }
        // The router of segue forwards by itself.
        let forwards = matches!(kind, Kind::Tunnel | Kind::Vxlan | Kind::Forwarding);
        self.middle.set_sysctl("ipv4/ip_forward", if forwards { "1" } else { "0" })?;
        match kind {
            Kind::Tunnel => {
                let prefix = Peer::A.prefix(NET, Family::V4);
                let ends = ["tunnel", "dev", TUNNEL, "mode", "gre", "local", &local, "remote", &remote];
                let more = ["encap", "gue", "encap-dport", "6080", "encap-remcsum", "addr", &prefix];
                let process = start(&self.middle, program, &[&ends[..], &more[..]].concat(), Some(TUNNEL))?;
                ip(&format!("route add {TARGETS} dev {TUNNEL}"))?;
                self.process = Some(process);
            }
            Kind::Vxlan => {
                if let Some(why) = kernel_vxlan(&self.middle, (VXLAN, OUT), Peer::A, Family::V4)? {
                    return Ok(Some(why));
                }
                let next = Peer::B.address(NET, Family::V4);
                ip(&format!("addr add {} dev {VXLAN}", Peer::A.prefix(NET, Family::V4)))?;
                ip(&format!("link set {VXLAN} up"))?;
                ip(&format!("neigh add {next} lladdr {far} dev {VXLAN} nud permanent"))?;
                ip(&format!("route add {TARGETS} via {next}"))?;
            }
            Kind::Gateway => {
                let words = ["gateway", IN, OUT, "--name", "bench"];
                self.process = Some(start(&self.middle, program, &words, None)?);
            }
            Kind::Bridge => {
                match ip(&format!("link add {BRIDGE} type bridge")) {
                    Err(LabError::Command { output, .. }) if no_such_kind(&output) => {
                        return Ok(Some(format!("this kernel has no bridge ({output})")));
                    }
                    other => other?,
                }
                for device in [IN, OUT] {
                    ip(&format!("link set {device} master {BRIDGE}"))?;
                }
                ip(&format!("link set {BRIDGE} up"))?;
                self.middle.run("bridge", &["fdb", "add", &far, "dev", OUT, "master", "static"])?;
            }
            Kind::Router => {
                ip(&format!("route add {TARGETS} via {remote}"))?;
                let words = ["gateway", IN, OUT, "--route", "--name", "bench"];
                self.process = Some(start(&self.middle, program, &words, None)?);
            }
            Kind::Forwarding => ip(&format!("route add {TARGETS} via {remote}"))?,
        }
        Ok(None)
    }

    /// Offers a few frames until one arrives.
    fn wait_until_frames_arrive(&mut self) -> Result<(), LabError> {
        let begin = Instant::now();
        while self.offer(FIRST.0, FIRST.1)?.arrived == 0 {
            if begin.elapsed() > PATIENCE {
                let output = self.process.as_mut().map(Process::last_words).unwrap_or_default();
                let why = "no frame arrives at the far end".into();
                return Err(LabError::NotReady { case: self.form.kind.word().into(), why, output });
            }
        }
        Ok(())
    }

    /// Makes a trial.
    fn offer(&self, rate: u32, time: Duration) -> Result<Trial, LabError> {
        let Form { kind, size, .. } = self.form;
        let station = if kind.is_transparent() { FAR_STATION } else { NEAR_STATION };
        let before = bed::received(&self.receiver, DEVICE)?;
        let mut command = self.sender.command(&self.site.segue);
        let words = format!("frames {DEVICE} {station} {rate} {} {size} {FLOWS}", time.as_millis());
        command.args(["bench", "--end", &words]);
        let mut generator = Process::spawn(command, b"")?;
        if !generator.wait(PATIENCE + time)?.success() {
            return Err(generator.failure("failed"));
        }
        let said = ends::said(&generator)?;
        thread::sleep(SETTLED);
        interrupt::check()?;
        let arrived = bed::received(&self.receiver, DEVICE)?.saturating_sub(before);
        match (said["sent"].as_u64(), said["seconds"].as_f64()) {
            (Some(sent), Some(seconds)) if seconds > 0.0 => Ok(Trial { sent, arrived, seconds }),
            _ => Err(LabError::Load(format!("the generator said {said}"))),
        }
    }
}

fn card<'a>(host: &'a Host, name: &'a str, core: usize) -> bed::Card<'a> {
    bed::Card { host, name, mtu: 1500, features: &["gro", "off"], core }
}

/// Starts segue on a host, and waits until its instance answers and its device, if it makes one, is up.
fn start(host: &Host, program: &Path, words: &[&str], device: Option<&str>) -> Result<Process, LabError> {
    let mut command = host.command(program);
    command.args(words);
    let mut process = Process::spawn(command, b"")?;
    let begin = Instant::now();
    loop {
        interrupt::check()?;
        let is_up = match device {
            Some(device) => host.run("ip", &["-o", "link", "show", "up"])?.contains(&format!(" {device}:")),
            None => true,
        };
        if is_up && answers(host, program) {
            return Ok(process);
        }
        if process.ended().is_some() || begin.elapsed() > PATIENCE {
            return Err(process.failure("does not answer"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether an instance runs on the host.
fn answers(host: &Host, program: &Path) -> bool {
    let text = checked_output(host.command(program).args(["stat", "-j"])).unwrap_or_default();
    let stat: Option<Value> = serde_json::from_str(&text).ok();
    stat.is_some_and(|stat| stat["instances"].as_array().is_some_and(|instances| !instances.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_segue_has_one_of_the_kernel_beside_it_and_one_of_another_program() {
        let points = points();
        for size in SIZES {
            let of_size = |words: &str| {
                let words = format!("{words} frame={size} flows=1000 {LOAD}");
                points.iter().filter(|point| point.has(&words)).count()
            };
            for name in ["segue", "gateway", "router"] {
                assert_eq!((of_size(name), of_size(&format!("{name} beside"))), (2, 1), "{name} {size}");
                assert_eq!(of_size(counterpart(name)), 1, "{name} {size}");
            }
        }
        assert_eq!(points.len(), SIZES.len() * (Kind::ALL.len() + 3));
        assert!(Kind::ALL.iter().all(|kind| kind.is_segue() != (counterpart(kind.word()) == kind.word())));
    }

    #[test]
    fn the_notes_fit_80_columns() {
        assert!(NOTES.is_ascii() && NOTES.lines().all(|line| line.len() <= 80), "{NOTES}");
    }
}
