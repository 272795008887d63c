//! The demonstration: builds hosts and tunnels, measures them in turn, and removes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::case::{needs_segue, segue_version, shape};
use crate::host::in_user_namespace;
use crate::load::{self, Load, Outcome, Style};
use crate::process::require;
use crate::{
    Case, Cpu, Family, Ground, Host, LabError, Lane, Machine, Measurement, Metric, Named, Options, Peer, Prepared,
    Process, Progress, Row, Skipped, Step, Table, connect, interrupt,
};

/// Two hosts, their link, and the paths of all cases. Everything ends when it is dropped.
///
/// The fields are dropped in this order: what runs in the hosts, the hosts, their accounting.
#[derive(Debug)]
pub struct Lab {
    lanes: Vec<(String, Lane)>,
    skipped: Vec<Skipped>,
    keepers: Vec<Process>,
    a: Host,
    b: Host,
    cpu: Arc<Cpu>,
    families: Vec<Family>,
    options: Options,
}

/// Instructions to enter a host of a lab that is left running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrance {
    /// The host's name, `a` or `b`.
    pub host: String,
    /// A command that opens a shell in the host, for the same user.
    pub command: String,
    /// The host's address on the link and in each tunnel, for output: (case, address).
    pub addresses: Vec<(String, String)>,
}

/// Runs the demonstration from beginning to end. Nothing stays behind, also after an error.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Table, LabError> {
    Lab::new(options, progress)?.measure(progress)
}

/// Runs the demonstration like [`run`], with the given cases instead of `options.cases`.
pub fn run_cases(options: &Options, cases: Vec<Case>, progress: &mut dyn Progress) -> Result<Table, LabError> {
    Lab::with_cases(options, cases, progress)?.measure(progress)
}

impl Lab {
    /// Builds the lab with the cases that `options` names.
    pub fn new(options: &Options, progress: &mut dyn Progress) -> Result<Lab, LabError> {
        let cases = options.cases.iter().map(|name| Case::named(name)).collect::<Result<_, _>>()?;
        Lab::with_cases(options, cases, progress)
    }

    /// Builds the lab with the given cases instead of those of the options.
    pub fn with_cases(options: &Options, cases: Vec<Case>, progress: &mut dyn Progress) -> Result<Lab, LabError> {
        let families = options.checked_families()?;
        if cases.is_empty() || cases.len() > 200 {
            return Err(LabError::Usage(format!("{} cases; 1 to 200 are possible", cases.len())));
        }
        require(&["ip", "ethtool", "iperf3"])?;
        progress.step(&Step::Preparing(format!("two hosts, link {}", options.link)));
        let cpu = Arc::new(Cpu::new());
        let (mut a, mut b) = (Host::new("a")?, Host::new("b")?);
        a.account(&cpu);
        b.account(&cpu);
        connect(&a, &b, options.link)?;
        let (lanes, skipped, keepers) = (Vec::new(), Vec::new(), Vec::new());
        let mut lab = Lab { lanes, skipped, keepers, a, b, cpu, families, options: options.clone() };
        for (case, net) in cases.into_iter().zip(1..) {
            interrupt::check()?;
            lab.add(case, net, progress)?;
        }
        Ok(lab)
    }

    fn add(&mut self, case: Case, net: u8, progress: &mut dyn Progress) -> Result<(), LabError> {
        let name = case.name().to_string();
        progress.step(&Step::Preparing(name.clone()));
        let Lab { a, b, families, options, .. } = &*self;
        match case.prepare(&Ground { a, b, net, families, options })? {
            Prepared::Ready(lane) => self.lanes.push((name, lane)),
            Prepared::Skipped(reason) => {
                progress.step(&Step::Skipped { case: name.clone(), reason: reason.clone() });
                self.skipped.push(Skipped { name, reason });
            }
        }
        Ok(())
    }

    /// Returns the hosts, sender first.
    pub fn hosts(&self) -> (&Host, &Host) {
        (&self.a, &self.b)
    }

    /// Returns the names and paths of the cases that were set up.
    pub fn lanes(&self) -> impl Iterator<Item = (&str, &Lane)> {
        self.lanes.iter().map(|(name, lane)| (name.as_str(), lane))
    }

    /// Runs every case and family `options.runs` times, in rounds, and makes the table.
    pub fn measure(&mut self, progress: &mut dyn Progress) -> Result<Table, LabError> {
        let Options { runs, seconds, proto, .. } = self.options;
        let total = self.lanes.len() * self.families.len() * runs as usize;
        let begin = Instant::now();
        let mut done = 0;
        let mut samples: BTreeMap<(Family, usize), Samples> = BTreeMap::new();
        for run in 1..=runs {
            for lane_idx in 0..self.lanes.len() {
                for family in self.families.clone() {
                    interrupt::check()?;
                    let case = self.lanes[lane_idx].0.clone();
                    let each = match u32::try_from(done) {
                        Ok(done @ 1..) => begin.elapsed() / done,
                        _ => Duration::from_millis(u64::from(seconds) * 1000 + 500),
                    };
                    let left = |done: usize| each * u32::try_from(total - done).unwrap_or(u32::MAX);
                    let at = Measurement { case, family, proto, run, runs, done, total, left: left(done) };
                    progress.step(&Step::Measuring(at.clone()));
                    let (outcome, train) = self.sample(lane_idx, family)?;
                    samples.entry((family, lane_idx)).or_default().push(&outcome, train);
                    done += 1;
                    let measurement = Measurement { done, left: left(done), ..at };
                    progress.step(&Step::Measured { measurement, gbps: outcome.gbps() });
                }
            }
        }
        let mut table = Table::new("lab", self.machine());
        table.rows =
            samples.iter().map(|((family, lane_idx), samples)| self.row(*lane_idx, *family, samples)).collect();
        table.skipped = self.skipped.clone();
        Ok(table)
    }

    /// Measures one lane once; returns iperf3's report, and the mean length of the trains at the receiver in bytes.
    fn sample(&mut self, lane_idx: usize, family: Family) -> Result<(Outcome, Option<f64>), LabError> {
        let (name, lane) = &mut self.lanes[lane_idx];
        for process in &mut lane.processes {
            if process.ended().is_some() {
                let output = process.last_words();
                return Err(LabError::NotReady { case: name.clone(), why: "its program ended".into(), output });
            }
        }
        let stat = |lane: &Lane, host: &Host| lane.stat.as_ref().and_then(|stat| stat.read(host));
        let before = stat(lane, &self.b);
        let outcome = load::run(&Load {
            client: &self.a,
            server: &self.b,
            to: Peer::B.address(lane.net, family),
            proto: self.options.proto,
            seconds: self.options.seconds,
            parallel: self.options.parallel,
            style: Style::default(),
        })
        .map_err(|error| match error {
            LabError::Load(text) => LabError::Load(format!("{text} (case {name}, IPv{family})")),
            other => other,
        })?;
        let after = stat(lane, &self.b);
        Ok((outcome, before.zip(after).and_then(|(before, after)| after.mean_since(before))))
    }

    fn row(&self, lane_idx: usize, family: Family, samples: &Samples) -> Row {
        let mut case = Named::default();
        case.push("name", self.lanes[lane_idx].0.as_str());
        case.push("family", family.number());
        case.push("proto", self.options.proto.as_str());
        case.push("link", self.options.link.as_str());
        let metrics = [
            ("gbps", &samples.gbps),
            ("cpu_s_per_gb", &samples.cpu_s_per_gb),
            ("retransmits", &samples.retransmits),
            ("lost_percent", &samples.lost_percent),
            ("train_bytes", &samples.train_bytes),
        ];
        let metrics = metrics.iter().filter_map(|(name, samples)| Some((name.to_string(), Metric::new(samples)?)));
        Row { case, metrics: Named(metrics.collect()), seed: Named::default() }
    }

    fn machine(&self) -> Machine {
        let options = &self.options;
        let mut machine = Machine::here(&self.cpu);
        let more = &mut machine.more;
        if self.lanes.iter().any(|(name, _)| needs_segue(name)) {
            if let Some(version) = segue_version(&options.segue) {
                more.push("segue", version);
            }
            if let Some(simd) = &options.simd {
                more.push("simd", simd.as_str());
            }
        }
        more.push("tunnel", shape(options.mode, options.encap, options.outer));
        more.push("seconds", options.seconds);
        more.push("parallel", options.parallel);
        more.push("runs", options.runs);
        // What sends decides how bursty the load is, and machines differ in it.
        let key = "/proc/sys/net/ipv4/tcp_congestion_control";
        if let Ok(Ok(text)) = self.a.enter(|| std::fs::read_to_string(key)) {
            more.push("tcp_congestion", text.trim());
        }
        machine
    }

    /// Returns a shell command to enter each host, for a lab that is left running. Starts one sleeping process per
    /// host, which the command names and which ends with the lab.
    pub fn entrances(&mut self) -> Result<Vec<Entrance>, LabError> {
        self.keepers.clear();
        let mut entrances = Vec::new();
        for (host, end) in [(&self.a, Peer::A), (&self.b, Peer::B)] {
            let mut command = host.command("sleep");
            command.arg("infinity");
            let keeper = Process::spawn(command, b"")?;
            let user = if in_user_namespace() { "--preserve-credentials -U " } else { "" };
            let command = format!("nsenter {user}-m -n -t {}", keeper.id());
            self.keepers.push(keeper);
            let of_lane = |(name, lane): &(String, Lane)| {
                self.families
                    .iter()
                    .map(|family| (name.clone(), end.address(lane.net, *family).to_string()))
                    .collect::<Vec<_>>()
            };
            let addresses = self.lanes.iter().flat_map(of_lane).collect();
            entrances.push(Entrance { host: host.name().into(), command, addresses });
        }
        Ok(entrances)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // All at once, so that the end of one does not wait for the end of another.
        let lanes = self.lanes.iter_mut().flat_map(|(_, lane)| &mut lane.processes);
        lanes.chain(&mut self.keepers).for_each(Process::terminate);
    }
}

#[derive(Debug, Default)]
struct Samples {
    gbps: Vec<f64>,
    cpu_s_per_gb: Vec<f64>,
    retransmits: Vec<f64>,
    lost_percent: Vec<f64>,
    train_bytes: Vec<f64>,
}

impl Samples {
    fn push(&mut self, outcome: &Outcome, train: Option<f64>) {
        self.gbps.push(outcome.gbps());
        self.cpu_s_per_gb.extend(outcome.cpu_s_per_gb());
        self.retransmits.extend(outcome.retransmits.map(|count| count as f64));
        self.lost_percent.extend(outcome.lost_percent);
        self.train_bytes.extend(train);
    }
}
