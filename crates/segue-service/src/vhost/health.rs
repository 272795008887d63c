//! Problems of guests' ports that HEALTH reports.

use std::sync::Arc;

use segue_control::model::{Complaint, Instance};
use segue_port::vhost::{GUEST_CONNECTED, GUEST_READY, GUEST_STALLED};

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
    let path = spec.path.display();
    let stopped = port.numbers.iter().filter(|(key, count)| key.starts_with("stop_") && **count > 0);
    let reasons: Vec<&str> =
        stopped.map(|(key, _)| &key["stop_".len()..]).filter(|reason| *reason != "ended").collect();
    let (what, why, code, fix) = if number(GUEST_CONNECTED) == 0 {
        let why = match (reasons.is_empty(), spec.role) {
            (false, _) if reasons.contains(&"call_blocked") => {
                "its front end held up all ports on purpose (call_blocked); it has no port until the next start"
                    .to_owned()
            }
            (false, _) => format!("it was stopped ({}); it may connect again", reasons.join(", ")),
            (true, Role::Server) => format!("no front end has connected to {path}"),
            (true, Role::Client) => format!("no front end listens at {path}"),
        };
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_missing_guest_a_driver_that_is_not_ready_and_a_stalled_ring_are_told() {
        let spec = Spec { path: PathBuf::from("/run/vm1.sock"), role: Role::Server, mode: None, owner: None };
        let judged = |numbers: &[(&str, u64)]| {
            let numbers = numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let port = segue_control::model::Port { numbers, ..Default::default() };
            let instance = Instance { ports: [("vm1".to_owned(), port)].into(), ..Instance::default() };
            judge(&instance, "vm1", &spec)
        };
        let code = |numbers: &[(&str, u64)]| judged(numbers).map(|complaint| complaint.code);
        assert_eq!(code(&[]).as_deref(), Some("guest_gone"));
        let stopped = judged(&[("stop_ring_loop", 1), ("stop_ended", 3)]).unwrap();
        assert!(stopped.why.unwrap().contains("(ring_loop)"));
        let stopped = judged(&[("stop_call_blocked", 1), ("stop_ring_loop", 1)]).unwrap();
        assert!(stopped.why.unwrap().contains("(call_blocked); it has no port"));
        assert_eq!(code(&[("guest_connected", 1)]).as_deref(), Some("driver_not_ready"));
        let ready = [("guest_connected", 1), ("guest_ready", 1)];
        assert_eq!(code(&ready), None);
        assert_eq!(code(&[ready[0], ready[1], ("guest_stalled", 1)]).as_deref(), Some("ring_stalled"));
    }
}
