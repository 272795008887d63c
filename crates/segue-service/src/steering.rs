//! The choice among the queues of a TUN or TAP device, or among packet sockets: a BPF program keeps each flow on one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use segue_control::error::{Error, Kind};
use segue_fastpath::{Steered, steering};
use segue_port::tun::TunPort;

use crate::daemon::running::random;

/// Loads the program that chooses the queue or the socket of each packet; `dev` is for messages.
pub(crate) fn steering_program(dev: &str, of: Steered) -> Result<OwnedFd, Error> {
    let seed = u32::from_ne_bytes(random()?);
    steering(of, seed).map_err(|error| unsteered(dev, &error))
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
            .why("a BPF program keeps each flow on one of them, and this user lacks CAP_BPF"),
        _ => made.why("a BPF program keeps each flow on one of them, and the kernel refused it"),
    }
}
