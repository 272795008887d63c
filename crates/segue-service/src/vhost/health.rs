//! Problems of guests' ports that HEALTH reports.

use std::sync::Arc;

use segue::reason::Reason;
use segue_control::model::{Complaint, Instance};
use segue_port::vhost::{GUEST_CONNECTED, GUEST_READY, GUEST_STALLED, LAST_STOP, Stop};

use super::spec::{Role, Spec};
use crate::daemon::Complaints;

/// Returns the function that reports the problems of these ports.
pub(crate) fn complaints(guests: Vec<(String, Spec)>) -> Complaints {
    Arc::new(move |instance: &Instance| guests.iter().filter_map(|(name, spec)| judge(instance, name, spec)).collect())
}

/// Returns the most significant problem of a port, which makes the others meaningless.
fn judge(instance: &Instance, name: &str, spec: &Spec) -> Option<Complaint> {
    let port = instance.ports.get(name)?;
    let number = |key: &str| port.numbers.get(key).copied().unwrap_or(0);
    let (what, why, code, fix) = if number(GUEST_CONNECTED) == 0 {
        let why = why_gone(number(LAST_STOP), spec);
        (format!("{name}: no guest"), why, "guest_gone", Some("segue doctor: options of QEMU".to_owned()))
    } else if number(GUEST_READY) == 0 {
        let why = "the front end is connected; the guest has not started its driver".to_owned();
        (format!("{name}: driver not ready"), why, "driver_not_ready", None)
    } else if number(GUEST_STALLED) != 0 {
        let why = "the guest offers no receive buffers; packets for it are dropped".to_owned();
        (format!("{name}: ring stalled"), why, "ring_stalled", None)
    } else {
        return None;
    };
    Some(Complaint { what, why: Some(why), code: code.to_owned(), fix, ..Complaint::default() })
}

/// Returns why a port has no front end; `last_stop` is the number of that key.
fn why_gone(last_stop: u64, spec: &Spec) -> String {
    let path = spec.path.display();
    let reason = last_stop.checked_sub(1).and_then(|at| Stop::ALL.get(usize::try_from(at).ok()?));
    match (reason, spec.role) {
        (Some(Stop::CallBlocked), _) => {
            "its front end held up all ports on purpose (call_blocked); it has no port until the next start".to_owned()
        }
        (Some(Stop::Ended), Role::Server) => "its front end closed the connection; it may connect again".to_owned(),
        (Some(Stop::Ended), Role::Client) => {
            format!("its front end closed the connection, and no other one listens at {path}")
        }
        (Some(reason), _) => {
            format!("it was stopped ({}); it may connect again", reason.name().trim_start_matches("stop_"))
        }
        (None, Role::Server) => format!("no front end has connected to {path}"),
        (None, Role::Client) => format!("no front end listens at {path}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Judges a port with these numbers at /run/vm1.sock.
    fn judged(role: Role, numbers: &[(&str, u64)]) -> Option<Complaint> {
        let spec = Spec { path: PathBuf::from("/run/vm1.sock"), role, mode: None, owner: None };
        let numbers = numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let port = segue_control::model::Port { numbers, ..Default::default() };
        let instance = Instance { ports: [("vm1".to_owned(), port)].into(), ..Instance::default() };
        judge(&instance, "vm1", &spec)
    }

    #[test]
    fn a_missing_guest_a_driver_that_is_not_ready_and_a_stalled_ring_are_told() {
        let code = |numbers: &[(&str, u64)]| judged(Role::Server, numbers).map(|complaint| complaint.code);
        assert_eq!(code(&[]).as_deref(), Some("guest_gone"));
        assert_eq!(code(&[("guest_connected", 1)]).as_deref(), Some("driver_not_ready"));
        let ready = [("guest_connected", 1), ("guest_ready", 1)];
        assert_eq!(code(&ready), None);
        assert_eq!(code(&[ready[0], ready[1], ("guest_stalled", 1)]).as_deref(), Some("ring_stalled"));
    }

    #[test]
    fn a_guest_that_is_gone_has_the_reason_of_its_last_stop() {
        for (role, last, why) in [
            (Role::Server, None, "no front end has connected to /run/vm1.sock"),
            (Role::Client, None, "no front end listens at /run/vm1.sock"),
            (Role::Server, Some(Stop::Ended), "its front end closed the connection; it may connect again"),
            (
                Role::Client,
                Some(Stop::Ended),
                "its front end closed the connection, and no other one listens at /run/vm1.sock",
            ),
            (Role::Server, Some(Stop::RingLoop), "it was stopped (ring_loop); it may connect again"),
            (
                Role::Server,
                Some(Stop::CallBlocked),
                "its front end held up all ports on purpose (call_blocked); it has no port until the next start",
            ),
        ] {
            let last_stop = last.map_or(0, |reason| 1 + reason.index() as u64);
            // What stopped it before is over.
            let found = judged(role, &[("stop_memory_lost", 2), (LAST_STOP, last_stop)]).unwrap();
            assert_eq!((found.code.as_str(), found.why.as_deref()), ("guest_gone", Some(why)));
        }
    }
}
