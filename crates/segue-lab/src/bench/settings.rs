//! Settings of a bench: its points, and the parameters of their measurement.

use std::path::PathBuf;

/// Settings of a bench run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of the program `segue`.
    pub segue: PathBuf,
    /// Path of another `segue` whose rows are measured in turn with those of the first one, by benches that have such
    /// rows.
    pub beside: Option<PathBuf>,
    /// Number of measurements of each point.
    pub runs: u32,
    /// Length of one measurement in seconds.
    pub seconds: u32,
    /// Selection of points if `rows` is empty.
    pub select: Select,
    /// Filters of rows: a point is measured if its labels contain every word of one of them. Empty: those that `select`
    /// chooses.
    pub rows: Vec<String>,
    /// Link whose rows alone are measured, by the word that is their label.
    pub link: Option<String>,
    /// Share of a processor that the host under test may use, per cent; the whole processor when `None`.
    pub quota: Option<u32>,
    /// Note on the SIMD path that segue uses, for the table's machine part.
    pub simd: Option<String>,
}

/// The choice of the points of a bench that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The points of the table in the documentation.
    Usual,
    /// All points of the bench.
    All,
    /// A few points that show that the bench works.
    Quick,
}
