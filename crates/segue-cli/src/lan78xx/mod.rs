//! `segue lan78xx`: a USB adapter as a network interface, and the model of one.

pub(crate) mod args;
mod chip;
pub(crate) mod help;
mod list;
mod model;
pub(crate) mod schema;
pub(crate) mod up;

use segue_control::error::{Error, Kind};

use self::args::{Action, Lan78xx};
use crate::out::Out;

/// Runs a subcommand of `segue lan78xx`.
pub(crate) fn run(args: &Lan78xx, out: &Out) -> Result<(), Error> {
    match &args.action {
        None => {
            Err(Error::new(Kind::Missing, "segue lan78xx needs a command: list, up or model", "segue lan78xx --help"))
        }
        Some(Action::List(args)) => list::run(args, out),
        Some(Action::Up(args)) => up::run(args, out),
        Some(Action::Model(args)) => model::run(args, out),
    }
}
