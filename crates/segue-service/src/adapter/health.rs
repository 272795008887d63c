//! The problems that an adapter reports.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use segue_control::model::{Complaint, Instance};
use segue_host::sys::{self, Want};
use segue_lan78xx::regs::Chip;

use super::interface::Name;
use crate::daemon::Complaints;

/// Name of the adapter in statistics.
pub(super) const ADAPTER: &str = "adapter";

/// Returns the function that reports the problems of an adapter. `opener` hangs up when the process that opens it
/// again has ended, which is a problem of its own ([`Helper::complaint`](crate::sandbox::Helper::complaint)). `name` is
/// the present name of its interface.
pub(super) fn complaints(opener: Option<UnixStream>, name: Name) -> Complaints {
    Arc::new(move |instance: &Instance| {
        let hung_up = |line: &UnixStream| {
            sys::poll(&[(line.as_fd(), Want::Hangup)], Duration::ZERO).is_ok_and(|ready| ready == [true])
        };
        let name = name.lock().unwrap_or_else(PoisonError::into_inner).clone();
        judge(instance, &name, opener.as_ref().is_some_and(hung_up))
    })
}

/// Returns the problems of an adapter whose interface has the name `name` now.
fn judge(instance: &Instance, name: &str, nobody_opens: bool) -> Vec<Complaint> {
    let known = |key: &str| instance.ports.get(ADAPTER)?.numbers.get(key).copied();
    let number = |key: &str| known(key).unwrap_or(0);
    let mut found = Vec::new();
    if number("gone") > 0 {
        let then = if nobody_opens { "start segue again" } else { "the adapter is looked for once a second" };
        let why = match number("stranger") {
            0 => "unplugged, or it does not answer".to_owned(),
            id => in_its_place((id >> 16) as u16, id as u16),
        };
        let fix = "segue lan78xx list".to_owned();
        found.push(complaint("adapter_gone", "adapter gone".to_owned(), format!("{why}; {then}"), fix));
    } else if number("interface_down") > 0 {
        let was = if *name == instance.name { String::new() } else { format!(", {} at the start,", instance.name) };
        let why = format!("the adapter's own interface{was} is down");
        let fix = format!("sudo ip link set dev {name} up");
        found.push(complaint("interface_down", format!("{name} is down"), why, fix));
    } else if known("link_mbit") == Some(0) {
        let why = "the adapter's cable, or the port at the other end, is down".to_owned();
        let fix = format!("ip -br link show dev {name}");
        found.push(complaint("no_carrier", format!("{name} has no carrier"), why, fix));
    }
    let (refused, mtu) = (number("refused_mtu"), number("mtu"));
    if refused > 0 {
        let why = format!("the adapter takes {mtu} instead");
        let fix = format!("sudo ip link set dev {name} mtu {mtu}");
        found.push(complaint("adapter_mtu", format!("mtu {refused}"), why, fix));
    }
    found
}

/// Returns a problem of the adapter, with its code.
fn complaint(code: &str, what: String, why: String, fix: String) -> Complaint {
    Complaint { code: code.to_owned(), what, why: Some(why), fix: Some(fix), ..Complaint::default() }
}

/// Describes a foreign device at the adapter's USB port.
fn in_its_place(vendor: u16, product: u16) -> String {
    match Chip::of(vendor, product) {
        Some(chip) => format!("a {} came back in its place, which segue started again takes", chip.name()),
        None => {
            format!("the USB device {vendor:04x}:{product:04x} is in its place, which is no LAN78xx and is not used")
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_control::health;

    use super::*;

    #[test]
    fn an_adapter_that_is_gone_with_or_without_its_opener_and_an_mtu_that_does_not_fit_are_complained_about() {
        let complaints_of = |numbers: &[(&str, u64)], nobody_opens| {
            let numbers = numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let port = segue_control::model::Port { numbers, ..Default::default() };
            let ports = [(ADAPTER.to_owned(), port)].into();
            let instance = Instance { name: "lan0".to_owned(), ports, ..Instance::default() };
            judge(&instance, "usb7", nobody_opens)
        };
        let judged = |numbers: &[(&str, u64)], nobody_opens| {
            complaints_of(numbers, nobody_opens).into_iter().map(|complaint| complaint.what).collect::<Vec<_>>()
        };
        let why = |stranger| {
            let complaints = complaints_of(&[("gone", 1), ("stranger", stranger)], false);
            complaints.into_iter().filter_map(|complaint| complaint.why).collect::<Vec<_>>()
        };
        let looked_for = "the adapter is looked for once a second";
        for (stranger, is) in [
            (0, "unplugged, or it does not answer"),
            (0x0424_7850, "a LAN7850 came back in its place, which segue started again takes"),
            (0x07c9_0012, "a LAN7801 came back in its place, which segue started again takes"),
            (0x1d6b_0003, "the USB device 1d6b:0003 is in its place, which is no LAN78xx and is not used"),
        ] {
            assert_eq!(why(stranger), [format!("{is}; {looked_for}")]);
        }
        assert_eq!(judged(&[("gone", 0), ("mtu", 1500), ("refused_mtu", 0)], false), [""; 0]);
        assert_eq!(judged(&[("gone", 1)], false), ["adapter gone"]);
        assert_eq!(judged(&[], true), [""; 0]);
        assert_eq!(judged(&[("mtu", 9000), ("refused_mtu", 9100)], false), ["mtu 9100"]);
        let both = complaints_of(&[("gone", 1), ("mtu", 9000), ("refused_mtu", 9100)], false);
        assert!(both.len() == 2 && both.iter().all(|one| health::find(&one.code).is_some()), "{both:?}");
        assert_eq!(both[1].fix.as_deref(), Some("sudo ip link set dev usb7 mtu 9000"));
        let (near, far) = UnixStream::pair().unwrap();
        let complain = complaints(Some(near), Name::default());
        let port = segue_control::model::Port { numbers: [("gone".to_owned(), 1)].into(), ..Default::default() };
        let gone = Instance { ports: [(ADAPTER.to_owned(), port)].into(), ..Instance::default() };
        let then = |instance: &Instance| complain(instance).remove(0).why.unwrap();
        assert!(then(&gone).ends_with("the adapter is looked for once a second"), "{}", then(&gone));
        drop(far);
        assert!(then(&gone).ends_with("start segue again"), "{}", then(&gone));
    }

    #[test]
    fn an_adapter_whose_interface_is_down_or_has_no_carrier_is_complained_about_by_its_present_name() {
        let judged = |numbers: &[(&str, u64)], name: &str| {
            let numbers = numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let port = segue_control::model::Port { numbers, ..Default::default() };
            let ports = [(ADAPTER.to_owned(), port)].into();
            let found = judge(&Instance { name: "lan0".to_owned(), ports, ..Instance::default() }, name, false);
            found.into_iter().map(|one| (one.code, one.what, one.why.unwrap())).collect::<Vec<_>>()
        };
        let one = |code: &str, what: &str, why: &str| vec![(code.to_owned(), what.to_owned(), why.to_owned())];
        let down = [("interface_down", 1), ("link_mbit", 0)];
        let why = "the adapter's own interface is down";
        assert_eq!(judged(&down, "lan0"), one("interface_down", "lan0 is down", why));
        let why = "the adapter's own interface, lan0 at the start, is down";
        assert_eq!(judged(&down, "usb7"), one("interface_down", "usb7 is down", why));
        let why = "the adapter's cable, or the port at the other end, is down";
        assert_eq!(judged(&[("link_mbit", 0)], "lan0"), one("no_carrier", "lan0 has no carrier", why));
        assert_eq!(judged(&[("link_mbit", 10)], "lan0"), []);
        let gone = judged(&[("gone", 1), ("link_mbit", 0)], "lan0");
        assert!(gone.len() == 1 && gone[0].0 == "adapter_gone", "{gone:?}");
    }
}
