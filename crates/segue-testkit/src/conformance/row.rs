//! A rule of the conformance list.

use super::carrier::Feature;
use super::rules::{Gives, On};
use super::script::Script;

/// A rule of the conformance table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name of the rule: a group and a rule.
    pub name: &'static str,
    /// The carriers in which the rule makes sense.
    pub on: On,
    /// Function that creates the packets.
    pub make: fn(&mut Script),
    /// The expected trains of the row.
    pub gives: Gives,
    /// Whether the row can be replayed to a kernel over a veth pair; rows that take longer than one poll, or more
    /// frames than one poll receives, cannot.
    pub in_kernels: bool,
    /// Feature that a kernel needs in addition to that of the carrier.
    pub needs: Option<Feature>,
}
