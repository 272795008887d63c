//! Cases of the conformance list: a row in one carrier, as frames.

use super::carrier::Carrier;
use super::notation::{self, Train};
use super::row::Row;
use super::rules::Rules;
use super::script::Frame;

/// A conformance row applied to a carrier.
#[derive(Clone, Debug)]
pub struct Case {
    /// Row with the rule under test.
    pub row: Row,
    /// The carrier that the packets travel in.
    pub carrier: Carrier,
    /// Frames of the case, in order.
    pub frames: Vec<Frame>,
}

impl Case {
    /// Returns the name of the row and that of the carrier.
    pub fn name(&self) -> String {
        format!("{} {}", self.row.name, self.carrier.name)
    }

    /// Returns the trains that `rules` make of the case.
    pub fn trains(&self, rules: Rules) -> Vec<Train> {
        if self.carrier.joins.has(rules) {
            notation::parse(self.row.gives.of(rules))
        } else {
            // A carrier that these rules do not join: what goes in comes out.
            (0..self.frames.len()).map(Train::single).collect()
        }
    }
}
