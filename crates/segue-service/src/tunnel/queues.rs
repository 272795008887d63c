//! The interfaces of tunnels, with a queue for each worker.

use std::os::fd::OwnedFd;

use segue_control::error::Error;
use segue_port::tun::{Layer, TunConfig, TunOffloads, TunPort};

use super::group::Group;
use super::plan::Plan;
use crate::diagnose::{self, Purpose};
use crate::handover::Ports;
use crate::steering::{steer, steering_program};

/// Opens the interfaces of all tunnels, except the queues that are inherited, and returns for each worker a queue of
/// each interface.
pub(super) fn open(group: &Group, inherited: &mut Ports) -> Result<Vec<Vec<TunPort>>, Error> {
    let mut workers: Vec<Vec<TunPort>> = Vec::new();
    workers.resize_with(usize::from(group.first().plan.workers.max(1)), Vec::new);
    // One for each layer.
    let mut programs = [None, None];
    for plan in group.plans() {
        let mut is_new = false;
        for queues in &mut workers {
            let fd = inherited.interface(&plan.dev);
            is_new |= fd.is_none();
            queues.push(open_tun(plan, fd)?);
        }
        // The interface keeps the program as long as it exists.
        if let (true, [first, _, ..]) = (is_new, &workers[..]) {
            let place = &mut programs[usize::from(plan.mode.is_ethernet())];
            let program = match place {
                Some(program) => program,
                None => place.insert(steering_program(&plan.dev, plan.mode.is_ethernet())?),
            };
            let queue = first.last().map(std::slice::from_ref).unwrap_or_default();
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
    let opened = match inherited {
        Some(fd) => TunPort::from_fd(fd, offloads),
        None => TunPort::open(&config),
    };
    opened.map_err(|error| diagnose::tun_port(Purpose::Tunnel, &plan.dev, plan.workers > 1, error))
}
