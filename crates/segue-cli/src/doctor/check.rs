//! A check of `segue doctor`, and its result.

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// Present and working.
    Ok,
    /// Missing; a tunnel runs slower or with less protection.
    Missing,
    /// Missing, and required by every tunnel.
    Needed,
    /// Unknown.
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

/// One check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// The name, which never changes.
    pub(super) name: &'static str,
    pub(super) status: Status,
    /// What was found.
    pub(super) found: String,
    /// What is lost, or the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    /// A command that helps.
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
