//! The result of one check of `segue doctor`.

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
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
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Missing => "missing",
            Status::Needed => "NEEDED",
            Status::Unknown => "unknown",
        }
    }

    pub(super) fn style(self) -> Style {
        match self {
            Status::Ok => AnsiColor::Green.on_default(),
            Status::Missing => AnsiColor::Yellow.on_default(),
            Status::Needed => AnsiColor::Red.on_default().bold(),
            Status::Unknown => Style::new(),
        }
    }
}

/// One feature of the host that was checked.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// Name of the check, which does not change between versions.
    pub(super) name: &'static str,
    pub(super) status: Status,
    /// State that was found.
    pub(super) found: String,
    /// Consequence or cause of the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    /// Command that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), why: None, fix: None }
    }

    pub(super) fn not(
        name: &'static str,
        status: Status,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: Option<String>,
    ) -> Check {
        Check { name, status, found: found.into(), why: Some(why.into()), fix }
    }
}
