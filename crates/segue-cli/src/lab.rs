//! `segue lab`: the command line of the demonstration.

use crate::args::Lab;
use crate::error::{Error, Kind};
use crate::out::Out;

/// Runs the command.
pub(crate) fn run(_args: &Lab, _out: &Out) -> Result<(), Error> {
    Err(Error::new(Kind::NotAvailable, "segue lab is not wired", "segue help"))
}
