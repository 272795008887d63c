//! Runs each workload once, for callgrind to count: `tools/instructions/run` explains it.
//!
//! The names and the numbers of packets of the workloads are printed in the order in which they run, a line for each.

use std::process::ExitCode;
use std::time::Instant;

use segue_instructions::uncopied::{self, Uncopied};
use segue_instructions::{Workload, engine, product};

/// Runs a workload. Callgrind counts inside of this function alone, and writes what it has counted when it is left.
#[inline(never)]
fn measured(run: &mut dyn FnMut()) {
    run();
}

/// Prints the median time of each workload per packet, in nanoseconds, and the 10th and 90th percentile; of
/// one workload if `only` names it.
fn time(only: Option<&str>) -> ExitCode {
    const RUNS: usize = 1001;
    if let Some(fastest) = segue::checksum::implementations().last() {
        fastest.choose();
    }
    let chosen = |workload: &Workload| only.is_none_or(|only| workload.name == only);
    for mut workload in engine::all().into_iter().chain(product::all()).filter(chosen) {
        let run = |_| {
            let begin = Instant::now();
            (workload.run)();
            begin.elapsed().as_nanos() as f64 / workload.packets as f64
        };
        let mut times: Vec<f64> = (0..RUNS).map(run).collect();
        times.sort_by(f64::total_cmp);
        let [low, median, high] = [10, 50, 90].map(|percent| times[RUNS * percent / 100]);
        println!("{median:7.1} ({low:.1}..{high:.1}) {}", workload.name);
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    // Vectors of one width on every machine: the widest that callgrind knows, or what SUMS names.
    let kind = std::env::var("SUMS").unwrap_or_else(|_| "avx2".to_owned());
    let Some(sums) = segue::checksum::implementations().find(|implementation| implementation.name() == kind) else {
        eprintln!("instructions: this processor has no sums by {kind}");
        return ExitCode::from(2);
    };
    sums.choose();
    // With a name that workload alone, for callgrind_annotate; with --time, with or without a name, the time with the
    // fastest vectors instead; with --uncopied what tools/figures.d/uncopied asks.
    let only = std::env::args().nth(1);
    if only.as_deref() == Some("--time") {
        return time(std::env::args().nth(2).as_deref());
    }
    if only.as_deref() == Some("--uncopied") {
        uncopied::print();
        return ExitCode::SUCCESS;
    }
    let chosen = |workload: &Workload| only.as_ref().is_none_or(|only| workload.name == only);
    // Those that no record has are counted by name only.
    let unrecorded = [false, true].map(|remcsum| Uncopied::new(remcsum).workload());
    let unrecorded = unrecorded.into_iter().filter(|_| only.is_some());
    for mut workload in engine::all().into_iter().chain(product::all()).chain(unrecorded).filter(chosen) {
        (workload.run)();
        println!("{} {}", workload.packets, workload.name);
        measured(&mut *workload.run);
    }
    ExitCode::SUCCESS
}
