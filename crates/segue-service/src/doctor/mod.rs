//! Checks of this host for `segue doctor`: each feature that segue uses, with the reason why it is missing and the
//! remedy.

mod probe;

use serde::Serialize;

pub use self::probe::all;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The feature is present and works.
    Ok,
    /// The feature is missing; a tunnel runs slower or with less protection.
    Missing,
    /// The feature is missing, and no tunnel runs without it.
    Needed,
    /// The state could not be determined.
    Unknown,
}

impl Status {
    /// Returns the outcome's word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Needed => "NEEDED",
            Status::Unknown => "unknown",
        }
    }
}

/// One feature of the host that was checked.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the check, which is the same in all versions.
    pub name: &'static str,
    /// Outcome of the check.
    pub status: Status,
    /// Description of the state that was found.
    pub found: String,
    /// Consequence or cause of the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Command that fixes the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), why: None, fix: None }
    }

    fn not(
        name: &'static str,
        status: Status,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: Option<String>,
    ) -> Check {
        Check { name, status, found: found.into(), why: Some(why.into()), fix }
    }
}
