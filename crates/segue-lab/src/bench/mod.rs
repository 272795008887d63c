//! Benches: tables of measured cases next to published results.
//!
//! A bench is a list of `Point`s, each with labels that tell it from the others and a function that builds everything,
//! measures once, and takes everything away. [`Bench::run`] measures every point once, then every point once more, so
//! that a change of the machine's speed affects all alike, and makes a [`Table`](crate::Table) of medians with their
//! spread.
//!
//! The parts that points are built of are in `bed`: hosts with a processor of their own, cards, wires, gateways; `pair`
//! puts them together. A new bench is a module with a list of points and a [`Layout`], and a line in [`named`].

mod ack;
mod bed;
mod datagrams;
mod definition;
mod ends;
mod frames;
mod gso;
mod layout;
mod loss_free;
mod lro;
mod napi;
mod pair;
mod point;
mod profile;
mod rco;
mod ready;
mod rr;
mod run;
mod sending;
mod settings;
mod site;
mod span;
mod tunnel;

use crate::LabError;

pub use self::definition::Bench;
pub use self::ends::end;
pub use self::layout::Layout;
pub use self::settings::{Select, Settings};

/// Names of all benches.
pub const NAMES: &[&str] = &["lro", "ack", "gso", "rco", "tunnel", "napi"];

/// Returns the bench of a name in [`NAMES`].
pub fn named(name: &str) -> Result<Bench, LabError> {
    match name {
        "lro" => Ok(lro::bench()),
        "ack" => Ok(ack::bench()),
        "rco" => Ok(rco::bench()),
        "tunnel" => Ok(tunnel::bench()),
        "napi" => Ok(napi::bench()),
        "gso" => Ok(gso::bench()),
        _ => Err(LabError::Usage(format!("`{name}` is not one of {}", NAMES.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::point::Point;
    use super::*;

    fn settings(rows: &[&str], select: Select) -> Settings {
        let rows = rows.iter().map(ToString::to_string).collect();
        let beside = Some("other".into());
        let segue = "segue".into();
        Settings { segue, beside, runs: 5, seconds: 2, select, rows, link: None, quota: None, simd: None }
    }

    #[test]
    fn every_bench_has_rows_for_every_selection_and_no_row_twice() {
        for name in NAMES {
            let bench = named(name).unwrap();
            let count = |select| bench.chosen(&settings(&[], select)).unwrap().len();
            let (quick, usual, all) = (count(Select::Quick), count(Select::Usual), count(Select::All));
            assert!(0 < quick && quick < usual && usual < all, "{name}: {quick} {usual} {all}");
            assert_eq!(all, bench.points.len());
            let mut names: Vec<String> = bench.points.iter().map(Point::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all, "{name}");
        }
        assert!(matches!(named("lor"), Err(LabError::Usage(_))));
    }

    #[test]
    fn rows_are_chosen_by_all_words_of_one_filter() {
        let bench = named("lro").unwrap();
        let chosen = |rows: &[&str]| bench.chosen(&settings(rows, Select::Usual)).map(|points| points.len());
        let (one, other) = (chosen(&["4k lro 1500/1500"]).unwrap(), chosen(&["frame no-lro"]).unwrap());
        assert!(one > 0 && other > 0);
        assert_eq!(chosen(&["4k lro 1500/1500", "frame no-lro"]).unwrap(), one + other);
        let error = chosen(&["4kb"]).unwrap_err().to_string();
        assert!(error.contains("`4kb`") && error.contains("4k "), "{error}");
    }
}
