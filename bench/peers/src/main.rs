//! Measures the engine and other implementations on the same packets, in turn: nanoseconds per packet.
//! `docs/bench-engine.md` describes the method.
//!
//! `segue-bench-peers ROUNDS FOLDER [NAME=PROGRAM]...`: the programs are peers that are not written in Rust. The
//! packets are written to FOLDER for them.

mod local;
mod program;
mod rows;
mod statistics;

use std::fmt::Write as _;
use std::path::Path;

use crate::program::Program;
use crate::rows::{Aim, Row};
use crate::statistics::Measured;

/// Number of repetitions in a round, of which the median counts, so that interruptions by other processes do not.
const TIMES: usize = 101;
/// Number of repetitions in a round from memory that is in no cache: each one empties the caches first.
const TIMES_COLD: usize = 9;

/// An implementation that the benchmark measures.
trait Peer {
    /// Returns the implementation's name in the table.
    fn name(&self) -> &str;
    /// Returns the nanoseconds of one packet: the median of `times` repetitions. `None` if it does not do this work.
    fn time(&mut self, row: &Row, times: usize) -> Option<f64>;
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(rounds), Some(folder)) = (args.next().and_then(|word| word.parse::<usize>().ok()), args.next()) else {
        panic!("usage: segue-bench-peers ROUNDS FOLDER [NAME=PROGRAM]...");
    };
    if let Some(fastest) = segue::checksum::implementations().last() {
        fastest.choose();
    }
    let rows = rows::all();
    for row in &rows {
        std::fs::write(Path::new(&folder).join(&row.key), row.packed()).expect("packets can be written");
    }
    let mut peers = local::all(&rows);
    for word in args {
        let (name, program) = word.split_once('=').expect("NAME=PROGRAM");
        peers.push(Box::new(Program::start(name, program, &folder)));
    }
    println!(
        "{rounds} rounds in turn; sums by {}; nanoseconds per packet, median; ratio to the first line of a row, median \
         and 90 % interval",
        segue::checksum::implementation()
    );
    // The first round warms up, and says which peers do which work.
    let mut measured = vec![vec![Measured::default(); peers.len()]; rows.len()];
    for round in 0..=rounds {
        for (row, measured) in rows.iter().zip(&mut measured) {
            let times = if row.cold { TIMES_COLD } else { TIMES };
            for (peer, measured) in peers.iter_mut().zip(measured) {
                let times = if round == 0 { 3 } else { times };
                if let Some(nanos) = (round == 0 || measured.is_possible).then(|| peer.time(row, times)).flatten() {
                    measured.is_possible = true;
                    if round > 0 {
                        measured.nanos.push(nanos);
                    }
                }
            }
        }
    }
    let names: Vec<&str> = peers.iter().map(|peer| peer.name()).collect();
    let mut missed = 0;
    for (row, here) in rows.iter().zip(&measured) {
        println!("\n{}", row.title);
        for (at, measured) in here.iter().enumerate().filter(|(_, measured)| measured.is_possible) {
            let ratio = measured.over(&here[0]).filter(|_| at > 0).map(|ratio| ratio.to_string()).unwrap_or_default();
            let note = rows::note(names[at], &row.work);
            println!("  {:<22} {:>8.1}   {ratio:<20} {note}", names[at], measured.median());
        }
        for aim in &row.aims {
            missed += usize::from(!print_aim(aim, &rows, &names, here, &measured));
        }
    }
    println!("\n{missed} aims are missed in this run");
}

/// Prints the aim of a row beside the measured figure. Returns whether it is met, or cannot be told, or need not be.
fn print_aim(aim: &Aim, rows: &[Row], names: &[&str], here: &[Measured], all: &[Vec<Measured>]) -> bool {
    let of = |name: &str| names.iter().position(|other| *other == name).map(|at| &here[at]).filter(|m| m.is_possible);
    let ours = &here[0];
    let (what, value, is_met) = match *aim {
        Aim::AimedAt(most) => {
            let said = if ours.median() <= most { "reached" } else { "not reached" };
            println!("  aimed at: at most {most} ns: {:.1} {said}", ours.median());
            return true;
        }
        Aim::AtMost(most, reference) => {
            let mut what = format!("at most {most} ns");
            let mut value = format!("{:.1}", ours.median());
            let mut is_met = ours.median() <= most;
            let mut decides = "ns";
            for &(peer, nanos) in reference {
                let times = most / nanos;
                write!(what, " or {times:.2} times {peer}").expect("a string takes it");
                let Some(ratio) = of(peer).and_then(|peer| ours.over(peer)) else { continue };
                write!(value, ", {ratio} times {peer}").expect("a string takes it");
                if !is_met && ratio.median <= times {
                    (is_met, decides) = (true, peer);
                }
            }
            if is_met && !reference.is_empty() {
                write!(value, ", by {decides}").expect("a string takes it");
            }
            (what, value, is_met)
        }
        Aim::Faster(peer, least) => {
            let Some(ratio) = of(peer).and_then(|peer| peer.over(ours)) else {
                println!("  aim: {peer} at least {least} times: {peer} was not measured");
                return true;
            };
            (format!("{peer} at least {least} times"), ratio.to_string(), ratio.median >= least)
        }
        Aim::Of(peer, most) => {
            let Some(ratio) = of(peer).and_then(|peer| ours.over(peer)) else { return true };
            (format!("at most {most} times {peer}"), ratio.to_string(), ratio.median <= most)
        }
        Aim::OfRow(key, most) => {
            let at = rows.iter().position(|row| row.key == key).expect("a row");
            let Some(ratio) = ours.over(&all[at][0]) else { return true };
            (format!("at most {most} times the row {key}"), ratio.to_string(), ratio.median <= most)
        }
        Aim::Plus(key, times, peer) => {
            let at = rows.iter().position(|row| row.key == key).expect("a row");
            let Some(ratio) = of(peer).map(|sum| ours.over_sum(&all[at][0], times, sum)) else { return true };
            (format!("at most the row {key} and {times} times {peer}"), ratio.to_string(), ratio.median <= 1.0)
        }
    };
    println!("  aim: {what}: {value} {}", if is_met { "met" } else { "MISSED" });
    is_met
}
