//! Runs the conformance list of GRO (`segue_testkit::conformance`) on the GRO of other projects: DPDK's and gVisor's.
//!
//! What they join is compared with the trains of the table under the rules of Linux 6.12. `docs/judges.md` lists where
//! one of them joins others, and the rule that decides; a difference that is not listed fails the test, and so does one
//! that is listed and is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use segue_testkit::conformance::{self, Case, Out, Rules, Train};
use segue_tests::capture::Directory;
use segue_tests::{skip, test_name, theirs};

/// The rules that the table is judged by.
const RULES: Rules = Rules::V6_12;
/// The release of DPDK that `docs/judges.md` compares, that of Debian 12.
const DPDK: &str = "22.11";
/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// GRO of another project, as a judge.
struct Judge {
    /// Beginning of the title of its section in `docs/judges.md`.
    section: &'static str,
    /// Carriers of the cases in which the judge can join packets.
    carriers: &'static [&'static str],
    /// Returns whether the judge accepts the cases of a row.
    takes: fn(&str) -> bool,
    /// Number of leading bytes of a frame that the judge does not get.
    skips: usize,
    /// Whether the order of its output within a flow counts.
    is_ordered: bool,
}

/// The judge `rte_gro`, which does not keep the order of packets: it returns held packets first, then unprocessed ones.
const RTE_GRO: Judge = Judge { section: "DPDK 22.11", carriers: &["4"], takes: |_| true, skips: 0, is_ordered: false };

/// The judge gVisor, whose GRO accepts packets without their link header.
const GVISOR: Judge = Judge {
    section: "gVisor",
    carriers: &["4", "6"],
    takes: |row| !row.starts_with("link/") && !row.starts_with("vlan/"),
    skips: ETHERNET,
    is_ordered: true,
};

#[test]
fn full_size_rte_gro_of_dpdk_differs_from_the_table_as_listed() {
    let pkg_config = |what: &str| {
        let found = Command::new("pkg-config").args([what, "libdpdk"]).output().ok()?;
        found.status.success().then(|| String::from_utf8_lossy(&found.stdout).trim().to_owned())
    };
    let found = ["--modversion", "--cflags", "--libs"].map(pkg_config);
    let [Some(version), Some(cflags), Some(libs)] = found else {
        return skip(test_name!(), "not installed: pkg-config, libdpdk-dev");
    };
    if !version.starts_with(DPDK) {
        return skip(test_name!(), &format!("DPDK {version} is installed, and docs/judges.md is about {DPDK}"));
    }
    let directory = Directory::new();
    let program = directory.file("dpdk");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-DALLOW_EXPERIMENTAL_API"]);
    command.args(cflags.split_whitespace()).arg(here("tests/foreign/dpdk.c"));
    succeed(command.arg("-o").arg(&program).args(libs.split_whitespace()));
    RTE_GRO.judge(&program, &directory);
}

#[test]
fn full_size_gro_of_gvisor_differs_from_the_table_as_listed() {
    let Some(go) = theirs::program(test_name!(), "go") else { return };
    let directory = Directory::new();
    let program = directory.file("gvisor");
    let go = |words: &[&str]| {
        let mut command = Command::new(&go);
        command.args(words).current_dir(here("../../bench/peers/go")).env("GOWORK", "off");
        command
    };
    // The release of Go that gVisor asks for comes from there too.
    if let Err(why) = fetch(|| go(&["mod", "download"])) {
        return skip(test_name!(), &format!("cannot be fetched: {why}"));
    }
    succeed(go(&["build", "-mod=readonly", "-trimpath", "-o"]).arg(&program).arg("./judge"));
    GVISOR.judge(&program, &directory);
}

impl Judge {
    /// Runs the program on all cases and compares its trains with the table and with the list.
    fn judge(&self, program: &Path, directory: &Directory) {
        let takes = |case: &Case| self.carriers.contains(&case.carrier.name.as_str()) && (self.takes)(case.row.name);
        let cases: Vec<Case> = conformance::cases().into_iter().filter(takes).collect();
        let [sent, came] = ["cases", "results"].map(|name| directory.file(name));
        let mut records = Vec::new();
        for case in &cases {
            put_number(&mut records, case.frames.len());
            for frame in &case.frames {
                put_number(&mut records, frame.bytes.len() - self.skips);
                records.extend(&frame.bytes[self.skips..]);
            }
        }
        fs::write(&sent, records).expect("the cases are written");
        succeed(Command::new(program).arg(&sent).arg(&came));
        let results = fs::read(&came).expect("the results are there");
        let mut rest = results.as_slice();

        let listed = listed(self.section);
        let (mut faults, mut met, mut same) = (Vec::new(), BTreeSet::new(), 0);
        for case in &cases {
            let link = &case.frames[0].bytes[..self.skips];
            let count = take_number(&mut rest);
            let outs: Vec<Out> = (0..count)
                .map(|_| {
                    let len = take_number(&mut rest);
                    let (bytes, others) = rest.split_at(len);
                    rest = others;
                    Out { bytes: [link, bytes].concat(), gso: None }
                })
                .collect();
            let expected = case.trains(RULES);
            let trains = case.trains_of(&outs);
            let found = self.difference(case, &expected, trains.as_deref());
            match (found, listed.get(case.row.name)) {
                (None, None) => same += 1,
                (Some(found), Some(joins)) if found == joins.as_str() => {
                    met.insert(case.row.name);
                }
                (found, joins) => faults.push(format!(
                    "{}: {} where the table says {}: {}, listed as {}",
                    case.name(),
                    trains.as_deref().map_or("packets of other bytes".into(), written),
                    written(&expected),
                    found.unwrap_or("equal"),
                    joins.map_or("nothing", String::as_str),
                )),
            }
        }
        assert!(rest.is_empty(), "{} bytes behind the results", rest.len());
        let names: BTreeSet<&str> = cases.iter().map(|case| case.row.name).collect();
        let unknown = listed.keys().filter(|name| !names.contains(name.as_str()));
        faults.extend(unknown.map(|name| format!("{name}: listed, and no case")));
        assert!(faults.is_empty(), "{}: {} faults:\n{}", self.section, faults.len(), faults.join("\n"));
        println!("{}: {same} cases as the table says, {} rows differ as listed", self.section, met.len());
    }

    /// Describes the difference of the trains from the expected ones, in the words of the list; `None` without a
    /// difference.
    fn difference(&self, case: &Case, expected: &[Train], came: Option<&[Train]>) -> Option<&'static str> {
        let Some(came) = came else { return Some("lost") };
        let (wanted, made) = (sets(expected), sets(came));
        if wanted == made {
            let is_same = !self.is_ordered || by_flow(case, expected) == by_flow(case, came);
            return if is_same { None } else { Some("order") };
        }
        match (is_within(&made, &wanted), is_within(&wanted, &made)) {
            (true, _) => Some("fewer"),
            (false, true) => Some("more"),
            (false, false) => Some("others"),
        }
    }
}

/// Returns the frames of each train, in any order.
fn sets(trains: &[Train]) -> BTreeSet<BTreeSet<usize>> {
    trains.iter().map(|train| train.frames.iter().copied().collect()).collect()
}

/// Returns whether each train of `parts` is in one of `wholes`.
fn is_within(parts: &BTreeSet<BTreeSet<usize>>, wholes: &BTreeSet<BTreeSet<usize>>) -> bool {
    parts.iter().all(|part| wholes.iter().any(|whole| part.is_subset(whole)))
}

/// Returns the trains with their flows, ordered within each flow.
fn by_flow<'a>(case: &Case, trains: &'a [Train]) -> Vec<(usize, &'a [usize])> {
    let flow = |train: &Train| case.frames[train.frames[0]].flow;
    let mut all: Vec<(usize, &[usize])> = trains.iter().map(|train| (flow(train), train.frames.as_slice())).collect();
    all.sort_by_key(|(flow, _)| *flow);
    all
}

fn written(trains: &[Train]) -> String {
    let train = |train: &Train| train.frames.iter().map(usize::to_string).collect::<Vec<_>>().join("+");
    trains.iter().map(train).collect::<Vec<_>>().join(" ")
}

/// Returns the rows of a section of `docs/judges.md`: the name of each row of the table, and what the judge joins.
fn listed(section: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(here("../../docs/judges.md")).expect("the document is there");
    let own = text.split("\n## ").find(|part| part.starts_with(section)).expect("it has the section");
    let mut listed = BTreeMap::new();
    for line in own.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [rows, joins, rule] = cells[..] else { panic!("not rows, a word and a rule: {line}") };
        assert!(["fewer", "more", "others", "order", "lost"].contains(&joins) && !rule.is_empty(), "{line}");
        for row in rows.split('`').skip(1).step_by(2) {
            assert!(listed.insert(row.to_owned(), joins.to_owned()).is_none(), "{section}: {row} is listed twice");
        }
    }
    listed
}

fn put_number(records: &mut Vec<u8>, number: usize) {
    records.extend(u32::try_from(number).expect("a number of 32 bits").to_le_bytes());
}

fn take_number(rest: &mut &[u8]) -> usize {
    let (number, others) = rest.split_first_chunk::<4>().expect("a number");
    *rest = others;
    u32::from_le_bytes(*number) as usize
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a command that downloads, again if the network fails. Returns the last line that it printed otherwise.
fn fetch(command: impl Fn() -> Command) -> Result<(), String> {
    let mut last = String::new();
    for pause in [2, 10, 30, 0] {
        let output = command().output().expect("the program starts");
        if output.status.success() {
            return Ok(());
        }
        last = said(&output).trim().lines().last().unwrap_or_default().to_owned();
        thread::sleep(Duration::from_secs(pause));
    }
    Err(last)
}

/// Runs a command, which must succeed.
#[track_caller]
fn succeed(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}: {}", output.status, said(&output));
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
