//! Options of the live screen.

use std::time::Duration;

/// Appearance of the screen: colours and symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appearance {
    /// Whether words are coloured as well, in the colours of the terminal's own palette.
    pub has_colour: bool,
    /// Whether the sparklines are made of ASCII.
    pub is_ascii: bool,
}

/// Settings of the screen at its start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interval between two queries of the instances.
    pub interval: Duration,
    /// The filter at the start; empty for none.
    pub filter: String,
    /// Appearance of the screen: colours and symbols.
    pub appearance: Appearance,
}
