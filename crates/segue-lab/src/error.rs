//! Errors of a lab, with hints for the user.

use std::fmt;
use std::io;

/// An error of the lab. `Display` gives one or several lines: what failed, why, and what to try.
#[derive(Debug)]
pub enum LabError {
    /// External programs are not installed: (program, Debian package).
    MissingPrograms(Vec<(String, String)>),
    /// A system call was refused. `what` says what the lab wanted to do.
    System {
        /// The failed action, as the object of "cannot".
        what: String,
        /// The operating system's error.
        source: io::Error,
        /// Hint for the user, empty if there is none.
        hint: String,
    },
    /// A program ended with a failure status.
    Command {
        /// The command line as typed in a shell.
        command: String,
        /// Exit status of the command, in words.
        status: String,
        /// Output of the command on stderr (or stdout, if stderr is empty), trimmed.
        output: String,
    },
    /// A tunnel did not come up.
    NotReady {
        /// Name of the case.
        case: String,
        /// The missing program or feature.
        why: String,
        /// The last output of the tunnel's processes, trimmed.
        output: String,
    },
    /// iperf3 failed, or its report could not be read.
    Load(String),
    /// The options contradict each other.
    Usage(String),
    /// The user has interrupted the lab ([`crate::interrupt`]).
    Interrupted,
}

impl LabError {
    /// Returns a stable word for the kind of error, for the `kind` key of a JSON error object.
    pub fn kind(&self) -> &'static str {
        match self {
            LabError::MissingPrograms(_) => "missing_program",
            LabError::System { .. } => "system",
            LabError::Command { .. } => "command",
            LabError::NotReady { .. } => "not_ready",
            LabError::Load(_) => "load",
            LabError::Usage(_) => "usage",
            LabError::Interrupted => "interrupted",
        }
    }

    /// Returns the exit status that a program should use: 2 for wrong usage, 130 for an interrupt, 1 otherwise.
    pub fn exit_status(&self) -> u8 {
        match self {
            LabError::Usage(_) => 2,
            LabError::Interrupted => 130,
            _ => 1,
        }
    }

    /// Returns the operating system's error number, if there is one.
    pub fn os_error(&self) -> Option<i32> {
        match self {
            LabError::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Returns a hint for the user, if the lab has one for this error.
    pub fn hint(&self) -> Option<String> {
        match self {
            LabError::MissingPrograms(list) => {
                let mut packages: Vec<&str> = list.iter().map(|(_, package)| package.as_str()).collect();
                packages.dedup();
                Some(format!("apt install {}", packages.join(" ")))
            }
            LabError::System { hint, .. } if !hint.is_empty() => Some(hint.clone()),
            _ => None,
        }
    }

    /// Returns the failure and its reason, without the hint: one or several lines.
    pub fn message(&self) -> String {
        Lines(self).to_string()
    }

    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Self {
        LabError::System { what: what.into(), source, hint: String::new() }
    }
}

/// The lines of an error before its hint.
struct Lines<'a>(&'a LabError);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LabError::MissingPrograms(list) => {
                let names: Vec<&str> = list.iter().map(|(program, _)| program.as_str()).collect();
                write!(f, "not installed: {}", names.join(", "))
            }
            LabError::System { what, source, .. } => write!(f, "cannot {what}: {source}"),
            LabError::Command { command, status, output } => {
                write!(f, "`{command}` failed ({status})")?;
                indented(f, output)
            }
            LabError::NotReady { case, why, output } => {
                write!(f, "case {case} did not come up: {why}")?;
                indented(f, output)
            }
            LabError::Load(text) => write!(f, "iperf3: {text}"),
            LabError::Usage(text) => write!(f, "{text}"),
            LabError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Lines(self).fmt(f)?;
        match self.hint() {
            Some(hint) => write!(f, "\ntry:  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LabError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn indented(f: &mut fmt::Formatter<'_>, output: &str) -> fmt::Result {
    output.lines().try_for_each(|line| write!(f, "\n  | {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error =
            LabError::MissingPrograms(vec![("iperf3".into(), "iperf3".into()), ("ip".into(), "iproute2".into())]);
        assert_eq!(error.to_string(), "not installed: iperf3, ip\ntry:  apt install iperf3 iproute2");
        assert_eq!((error.kind(), error.exit_status()), ("missing_program", 1));
    }

    #[test]
    fn a_failed_command_shows_its_own_words() {
        let error =
            LabError::Command { command: "ip x".into(), status: "exit status: 1".into(), output: "a\nb".into() };
        assert_eq!(error.to_string(), "`ip x` failed (exit status: 1)\n  | a\n  | b");
    }
}
