//! A rule shown in a carrier.

use super::carrier::Carrier;
use super::notation::{self, Train};
use super::row::Row;
use super::rules::Rules;
use super::script::Frame;

/// A row in a carrier.
#[derive(Clone, Debug)]
pub struct Case {
    /// The rule.
    pub row: Row,
    /// What it travels in.
    pub carrier: Carrier,
    /// The frames, in order.
    pub frames: Vec<Frame>,
}

impl Case {
    /// The name of the row and that of the carrier.
    pub fn name(&self) -> String {
        format!("{} {}", self.row.name, self.carrier.name)
    }

    /// What `rules` make of it.
    pub fn trains(&self, rules: Rules) -> Vec<Train> {
        if self.carrier.joins.has(rules) {
            notation::parse(self.row.gives.of(rules))
        } else {
            // A carrier that these rules do not join: what goes in comes out.
            (0..self.frames.len()).map(Train::single).collect()
        }
    }
}
