//! How a bench is to measure, and which of its points.

use std::path::PathBuf;

/// How to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The program `segue`.
    pub segue: PathBuf,
    /// How often each point is measured.
    pub runs: u32,
    /// Seconds of one measurement.
    pub seconds: u32,
    /// Which points, where `rows` does not say.
    pub select: Select,
    /// Words: a point is measured when for one of these its labels have every word of it. Empty: what `select` says.
    pub rows: Vec<String>,
    /// Only rows of this link, by the word that is their label.
    pub link: Option<String>,
    /// Per cent of a processor that the host under test may use; all of it when `None`.
    pub quota: Option<u32>,
    /// The caller's word on the SIMD path that segue uses, for the table's machine part.
    pub simd: Option<String>,
}

/// Which points of a bench are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The table of the documentation.
    Usual,
    /// Every one.
    All,
    /// A few that show that the bench works.
    Quick,
}
