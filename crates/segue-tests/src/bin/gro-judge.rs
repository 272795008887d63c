//! Sends the frames of the GRO conformance list through the running kernel and prints the differences of its output
//! from the table.
//!
//! ```text
//! gro-judge [PART OF A CASE'S NAME]...
//! ```
//!
//! `GRO_JUDGE_PAIRS` (8) veth pairs poll `GRO_JUDGE_PACE_MS` (4) milliseconds apart.
//!
//! It makes devices in the network namespace that it is started in, which should be a fresh one. Each line of its
//! output begins with a word:
//!
//!     rules V6_18                      whose rules the kernel is compared with
//!     lacks FEATURE CASES              what it cannot join, and how many cases that leaves out
//!     differs ROW|CARRIER|EXPECTED|CAME|WHAT IS WRONG WITH THE BYTES
//!     restores ROW|CARRIER|WHERE THE FRAMES DIFFER THAT THE KERNEL CUT ITS TRAINS INTO
//!     split ROW|CARRIER                a case that never was one poll
//!     ran CASES
//!     refuses VECTOR                   a train that it does not take from a virtio-net header
//!     cuts VECTOR|WHERE THE FRAMES DIFFER THAT IT CUT IT INTO
//!     cut VECTORS                      how many it cut as the table says

use std::env;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use segue_testkit::conformance::{self, Case, Feature, Rules, Vector};
use segue_tests::kernel::{self, Gro, PollInterval};

fn main() -> ExitCode {
    match judge() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("gro-judge: {why}");
            ExitCode::FAILURE
        }
    }
}

fn judge() -> Result<(), String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").map_err(|error| error.to_string())?;
    let rules = Rules::of_kernel(&release).ok_or_else(|| format!("no rules are known for kernel {release}"))?;
    println!("rules {rules:?}");
    let number = |name, default| env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let interval = PollInterval(Duration::from_millis(number("GRO_JUDGE_PACE_MS", 4)));
    let gro = Gro::new(number("GRO_JUDGE_PAIRS", 8) as usize, interval)?;
    let words: Vec<String> = env::args().skip(1).collect();
    let cases = conformance::cases();

    // What the kernel has, before anything is judged: a row may need more than its carrier does.
    let mut there = Vec::new();
    for feature in Feature::ALL {
        let of_it: Vec<&Case> = cases.iter().filter(|case| case.carrier.feature == feature).collect();
        let enabled = gro.enable(feature);
        if let Err(why) = &enabled {
            eprintln!("gro-judge: {why}");
        }
        if enabled.is_ok() && joins(&gro, &of_it, rules)? {
            there.push(feature);
        } else {
            println!("lacks {} {}", feature.name(), of_it.len());
        }
    }

    let mut ran = 0;
    let is_chosen = |case: &&Case| {
        let needs = [Some(case.carrier.feature), case.row.needs];
        case.row.in_kernels
            && needs.iter().flatten().all(|feature| there.contains(feature))
            && words.iter().all(|word| case.name().contains(word))
    };
    let chosen: Vec<&Case> = cases.iter().filter(is_chosen).collect();
    for some in chosen.chunks(96) {
        for (case, outs) in some.iter().zip(gro.run(some).map_err(|error| error.to_string())?) {
            ran += 1;
            let (row, carrier) = (case.row.name, &case.carrier.name);
            let Some(made) = outs else {
                println!("split {row}|{carrier}");
                continue;
            };
            if let Err(why) = case.judge(rules, &made.trains) {
                println!("differs {row}|{carrier}|{}|{}|{}", why.expected, why.came, why.bytes);
            }
            let trains = case.trains_of(&made.trains).unwrap_or_default();
            if let Err(why) = case.judge_split(&trains, &made.frames) {
                println!("restores {row}|{carrier}|{why}");
            }
        }
    }
    println!("ran {ran}");

    let mut cut = 0;
    let is_chosen = |vector: &&Vector| words.iter().all(|word| vector.name.contains(word));
    for vector in conformance::vectors().iter().filter(is_chosen) {
        match kernel::cut(&gro, vector).map_err(|error| format!("{}: {error}", vector.name))? {
            None => println!("refuses {}", vector.name),
            Some(frames) if frames == vector.segments => cut += 1,
            Some(frames) => println!("cuts {}|{}", vector.name, kernel::what_differs(&frames, &vector.segments)),
        }
    }
    println!("cut {cut}");
    Ok(())
}

/// Returns whether the kernel joins the simplest case of a feature.
fn joins(gro: &Gro, cases: &[&Case], rules: Rules) -> Result<bool, String> {
    let Some(plainest) = cases.iter().find(|case| case.row.name == "tcp/data_same") else { return Ok(false) };
    let outs = gro.run(&[plainest]).map_err(|error| error.to_string())?;
    match outs.into_iter().next().flatten() {
        Some(made) => Ok(plainest.judge(rules, &made.trains).is_ok()),
        None => Err(format!("{} never was one poll", plainest.name())),
    }
}
