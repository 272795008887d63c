//! What the caller chooses.

use std::time::Duration;

/// How the screen is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether words are coloured as well, in the colours of the terminal's own palette.
    pub has_colour: bool,
    /// Whether the sparklines are made of ASCII.
    pub is_ascii: bool,
}

/// What the screen begins with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between two questions.
    pub interval: Duration,
    /// The filter at the start; empty for none.
    pub filter: String,
    /// How the screen is drawn.
    pub look: Look,
}
