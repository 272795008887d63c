//! One rule of the conformance list.

use super::carrier::Feature;
use super::rules::{Gives, On};
use super::script::Script;

/// One rule of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name: a group and a rule.
    pub name: &'static str,
    /// Where it makes sense.
    pub on: On,
    /// Writes the packets.
    pub make: fn(&mut Script),
    /// The trains.
    pub gives: Gives,
    /// Whether a kernel behind a veth pair can be shown it: not what takes longer than a poll, or more frames than one.
    pub in_kernels: bool,
    /// What a kernel must have besides what its carrier needs.
    pub needs: Option<Feature>,
}
