//! The choice among the queues of a TUN or TAP device, or among packet sockets: a BPF program keeps each flow on one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use segue_control::error::{Error, Kind};
use segue_fastpath::{Steered, steering};
use segue_port::tun::TunPort;

use crate::daemon::running::random;
use crate::report::Report;

/// Loads the program that chooses the queue or the socket of each packet; `dev` is for messages.
pub(crate) fn steering_program(dev: &str, of: Steered) -> Result<OwnedFd, Error> {
    let seed = u32::from_ne_bytes(random()?);
    steering(of, seed).map_err(|error| unsteered(dev, &error))
}

/// Loads the program for packet sockets on an interface. Where there can be none, the kernel's own hash takes its
/// place, and a note says what that means.
pub(crate) fn socket_program(dev: &str, out: &dyn Report) -> Result<Option<OwnedFd>, Error> {
    let seed = u32::from_ne_bytes(random()?);
    let program = steering(Steered::Sockets, seed);
    let unkept = "whole and fragmented datagrams of a flow may overtake each other";
    let note = |error| out.note(&format!("note: {dev}: {unkept}: no BPF program chooses their worker: {error}"));
    Ok(program.map_err(note).ok())
}

/// Attaches the steering program to the queues of a device, which keeps it for its lifetime.
pub(crate) fn steer(queues: &[TunPort], program: &OwnedFd, dev: &str) -> Result<(), Error> {
    let steered = queues.first().map_or(Ok(()), |queue| queue.steer(program.as_fd()));
    steered.map_err(|error| unsteered(dev, &error))
}

fn unsteered(dev: &str, error: &io::Error) -> Error {
    let made = Error::system(format!("cannot spread the packets of {dev} over workers"), error, "workers 1");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => made
            .kind(Kind::NoPermission)
            .why("a BPF program keeps each flow on one of them, which needs CAP_BPF of the host"),
        _ => made.why("a BPF program keeps each flow on one of them, and the kernel refused it"),
    }
}
