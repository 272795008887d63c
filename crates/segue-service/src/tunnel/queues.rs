//! The insides of tunnels: interfaces with a queue for each worker, and guests.

use std::io;
use std::os::fd::OwnedFd;

use segue_control::error::Error;
use segue_fastpath::Steered;
use segue_port::Port;
use segue_port::tun::{Layer, TunConfig, TunOffloads, TunPort, driver};

use super::group::Group;
use super::plan::Plan;
use crate::daemon::Succession;
use crate::diagnose::{self, Purpose};
use crate::report::Report;
use crate::sandbox::Helper;
use crate::steering::{steer, steering_program};
use crate::vhost;

/// The inner side of a tunnel.
pub(super) enum Inside {
    /// One queue of an interface.
    Interface(Box<TunPort>),
    /// The network device of a guest.
    Guest(Box<dyn Port>),
}

impl Inside {
    /// Returns the queue, where the inside is an interface.
    pub(super) fn interface(&self) -> Option<&TunPort> {
        match self {
            Inside::Interface(queue) => Some(&**queue),
            Inside::Guest(_) => None,
        }
    }

    /// Returns the queue as an interface, if it is one.
    pub(super) fn into_interface(self) -> Option<TunPort> {
        match self {
            Inside::Interface(queue) => Some(*queue),
            Inside::Guest(_) => None,
        }
    }

    pub(super) fn into_port(self) -> Box<dyn Port> {
        match self {
            Inside::Interface(queue) => queue,
            Inside::Guest(port) => port,
        }
    }
}

/// Opens the insides of all tunnels, except the queues that are inherited, and returns for each worker a queue of each
/// interface. A tunnel with a guest has one worker; the processes that talk to its front end are added to `helpers`.
/// This process must have one thread then.
pub(super) fn open(
    group: &Group,
    succession: &mut Succession,
    helpers: &mut Vec<Helper>,
    out: &dyn Report,
) -> Result<Vec<Vec<Inside>>, Error> {
    let mut workers: Vec<Vec<Inside>> = Vec::new();
    workers.resize_with(usize::from(group.first().plan.workers.max(1)), Vec::new);
    // One for each layer.
    let mut programs = [None, None];
    for ready in &group.members {
        let plan = &ready.plan;
        if let Some(spec) = &plan.guest {
            let port = vhost::open(&plan.dev, spec, ready.mtu, succession.is_weak, helpers, out)?;
            workers[0].push(Inside::Guest(port));
            continue;
        }
        let mut is_new = false;
        for queues in &mut workers {
            let fd = succession.inherited.interface(&plan.dev);
            is_new |= fd.is_none();
            queues.push(Inside::Interface(Box::new(open_tun(plan, fd)?)));
        }
        // The interface keeps the program as long as it exists.
        if let (true, [first, _, ..]) = (is_new, &workers[..]) {
            let place = &mut programs[usize::from(plan.mode.is_ethernet())];
            let program = match place {
                Some(program) => program,
                None => {
                    let of = if plan.mode.is_ethernet() { Steered::Tap } else { Steered::Tun };
                    place.insert(steering_program(&plan.dev, of)?)
                }
            };
            let queue = first.last().and_then(Inside::interface);
            let queue = queue.map(std::slice::from_ref).unwrap_or_default();
            steer(queue, program, &plan.dev)?;
        }
    }
    Ok(workers)
}

/// Opens one queue of an interface, or the only one.
pub(super) fn open_tun(plan: &Plan, inherited: Option<OwnedFd>) -> Result<TunPort, Error> {
    let offloads = match (plan.gso, plan.gro) {
        (true, _) => TunOffloads::All,
        (false, true) => TunOffloads::WriteOnly,
        (false, false) => TunOffloads::None,
    };
    let layer = if plan.mode.is_ethernet() { Layer::Ethernet } else { Layer::Ip };
    let mut config = TunConfig::ip(plan.dev.as_str());
    (config.layer, config.offloads, config.multi_queue) = (layer, offloads, plan.workers > 1);
    let Some(fd) = inherited else {
        let opened = TunPort::open(&config);
        return opened.map_err(|error| diagnose::tun_port(Purpose::Tunnel, &plan.dev, plan.workers > 1, error));
    };
    // The process that has handed it over may lie.
    let refused = |error: io::Error, why: String| {
        Error::system(format!("cannot take over {}", plan.dev), &error, "segue doctor").why(why)
    };
    match TunPort::from_fd(fd, offloads) {
        Ok(port) if port.name() == plan.dev && port.layer() == layer => {
            // An interface whose carrier it has taken away would send nothing.
            let _ = driver::set_carrier(port.fd(), true);
            Ok(port)
        }
        Ok(port) => Err(refused(
            io::ErrorKind::InvalidInput.into(),
            format!("the process before has handed over {} in its place", port.name()),
        )),
        Err(error) => {
            Err(refused(io::Error::other(error), "the process before has handed over no interface".to_owned()))
        }
    }
}
