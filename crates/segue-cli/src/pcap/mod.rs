//! `segue pcap`: capture files merged, split, stripped of tunnels, checked and described.
//!
//! Each command streams with bounded memory, whatever the size of the file. An output file gets its name when it is
//! complete, or never ([`files`]).

pub(crate) mod args;
mod decap;
mod files;
pub(crate) mod help;
mod merge;
pub(crate) mod schema;
mod split;
mod stat;
mod summary;
mod verify;
mod watch;

use segue_control::error::{Error, Kind};

use self::args::{Action, Pcap};
use crate::out::Out;

/// Runs a subcommand of `segue pcap`.
pub(crate) fn run(args: &Pcap, out: &Out) -> Result<(), Error> {
    let Some(action) = &args.action else {
        return Err(Error::new(
            Kind::Missing,
            "segue pcap needs a command: merge, split, decap, verify or stat",
            "segue pcap --help",
        ));
    };
    match action {
        Action::Merge(args) => merge::run(args, out),
        Action::Split(args) => split::run(args, out),
        Action::Decap(args) => decap::run(args, out),
        Action::Verify(args) => verify::run(args, out),
        Action::Stat(args) => stat::run(args, out),
    }
}
