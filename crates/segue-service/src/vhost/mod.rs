//! Virtual machines: the socket of a guest's front end, the processes that connect to it and talk to it, and the
//! problems of a guest's port.

mod dialer;
mod health;
mod keeper;
mod partner;
mod socket;
mod spec;

use segue_control::error::Error;
use segue_port::Port;
use segue_port::vhost::{Source, VhostConfig, VhostPort};

pub(crate) use health::complaints;
pub use spec::{Role, Spec};

use self::dialer::Dialer;
use self::keeper::{FrontendSource, Keeper};
use crate::report::Report;
use crate::sandbox::Helper;

/// Largest number of descriptors needed by a guest's port: one for each of 64 regions of memory, those of a replacing
/// table and of its message, two for each ring, the connections, and those used for waiting.
pub(crate) const FILES: u64 = 64 + 32;

/// Opens the port of a guest, and starts the process that talks to the guest's front end, and another one that connects
/// to it where the front end listens. Both are added to `helpers`. `name` is that of the port, `mtu` the longest IP
/// packet in bytes. This process must have one thread.
pub(crate) fn open(
    name: &str,
    spec: &Spec,
    mtu: u32,
    is_weak: bool,
    helpers: &mut Vec<Helper>,
    out: &dyn Report,
) -> Result<Box<dyn Port>, Error> {
    let path = spec.path.as_path();
    let fronts = match spec.role {
        Role::Server => FrontendSource::Listener(socket::bind(spec, out)?),
        Role::Client => {
            let (dialer, helper) = Dialer { name, path }.start(is_weak)?;
            helpers.push(helper);
            FrontendSource::Dialer(dialer)
        }
    };
    let (supply, helper) = Keeper { name, path, fronts }.start(is_weak)?;
    helpers.push(helper);
    let port = VhostPort::new(Source::Supplied(supply), &VhostConfig { mtu: mtu as usize }).map_err(|error| {
        Error::system(format!("cannot open the port of {name}"), &error, "segue doctor").why("a system call failed")
    })?;
    Ok(Box::new(port))
}

impl Spec {
    /// Checks, without changing anything, that the socket is free.
    pub fn check(&self) -> Result<(), Error> {
        match self.role {
            Role::Server => socket::free(&self.path).map(drop),
            Role::Client => Ok(()),
        }
    }
}
