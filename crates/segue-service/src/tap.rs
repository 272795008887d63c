//! Creation of TAP devices: the end of a gateway, the interface of an adapter, or the end of a model's cable.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use segue_control::error::{Error, Kind, printable};
use segue_fastpath::Steered;
use segue_host::netlink::Netlink;
use segue_host::sys;
use segue_port::tun::{TunConfig, TunOffloads, TunPort, driver};

use crate::apply::Changes;
use crate::diagnose::{self, Purpose};
use crate::report::Report;
use crate::steering::{steer, steering_program};

/// A TAP device to be created, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The name of the interface.
    pub name: String,
    /// The network namespace, by name.
    pub netns: Option<String>,
    /// MTU of the TAP, bytes.
    pub mtu: u32,
    /// The offloads of the device in both directions.
    pub offloads: TunOffloads,
    /// Hardware address, only for the interface of an adapter, which has no carrier before the link comes up.
    pub mac: Option<[u8; 6]>,
}

impl Tap {
    /// Parses `tap:NAME[@NETNS]`.
    pub fn parse(text: &str, mtu: u32) -> Result<Tap, Error> {
        let wrong = |why: &str| {
            let made = Error::new(Kind::BadValue, format!("`{}` is no cable", printable(text)), "--wire tap:cable0");
            Err(made.why(why).about(text))
        };
        let Some(rest) = text.strip_prefix("tap:") else { return wrong("it begins with tap:") };
        let (name, netns) = match rest.split_once('@') {
            Some((name, netns)) => (name, Some(netns)),
            None => (rest, None),
        };
        if !is_interface(name) {
            return wrong("an interface's name has 1 to 15 bytes, no slash and no space");
        }
        if netns.is_some_and(|netns| !is_name(netns)) {
            return wrong("a namespace has the name that `ip netns` shows");
        }
        Ok(Tap { name: name.to_owned(), netns: netns.map(str::to_owned), mtu, offloads: TunOffloads::None, mac: None })
    }

    /// Returns the TAP that is the interface of an adapter.
    pub fn interface(name: &str, mtu: u32) -> Result<Tap, Error> {
        if !is_interface(name) {
            let text = format!("`{}` is no name of an interface", printable(name));
            return Err(Error::new(Kind::BadValue, text, "--dev lan0")
                .why("it has 1 to 15 bytes, no slash and no space")
                .about(name));
        }
        Ok(Tap { name: name.to_owned(), netns: None, mtu, offloads: TunOffloads::All, mac: None })
    }

    /// Creates the TAP in its namespace and brings it up.
    pub fn open(&self, netlink: &mut Netlink, out: &dyn Report) -> Result<TunPort, Error> {
        let Some(netns) = &self.netns else { return self.make("ip", netlink, out) };
        let path = PathBuf::from("/run/netns").join(netns);
        let hint = format!("ip netns list\nsudo ip netns add {netns}");
        let failed = |error: &io::Error| {
            Error::system(format!("cannot enter the network namespace {netns}"), error, &hint)
                .why(format!("{} could not be entered", path.display()))
        };
        let file = File::open(&path).map_err(|error| failed(&error))?;
        let made = sys::in_net_namespace(&file, || {
            let mut netlink = Netlink::open().map_err(|error| {
                Error::system("cannot set up the TAP", &error, "segue doctor")
                    .why("no rtnetlink socket could be opened")
            })?;
            self.make(&format!("ip -n {netns}"), &mut netlink, out)
        });
        made.map_err(|error| failed(&error))?
    }

    /// Returns the purpose of the device, for diagnosis.
    fn purpose(&self) -> Purpose {
        let vnet_hdr = self.offloads != TunOffloads::None;
        Purpose::Tap { vnet_hdr, mtu: self.mtu, is_adapter: self.mac.is_some() }
    }

    /// Creates the TAP in this thread's namespace and brings it up; `ip` is that namespace's `ip` command, for the
    /// reports.
    pub fn make(&self, ip: &str, netlink: &mut Netlink, out: &dyn Report) -> Result<TunPort, Error> {
        let one = self.make_queues(1, ip, netlink, out)?.pop();
        one.ok_or_else(|| Error::new(Kind::Internal, "no queue was made", "report it with: segue --version -v -j"))
    }

    /// Creates the TAP as [`Tap::make`] does, with a queue for each of `count` workers.
    pub fn make_queues(
        &self,
        count: u16,
        ip: &str,
        netlink: &mut Netlink,
        out: &dyn Report,
    ) -> Result<Vec<TunPort>, Error> {
        let (dev, purpose) = (&self.name, self.purpose());
        let state = |error: &io::Error| diagnose::change_for(purpose, dev, "read the state", error);
        if netlink.link_named(dev).map_err(|error| state(&error))?.is_some_and(|link| !link.tun) {
            return Err(diagnose::tun_attach(purpose, dev, &io::Error::from_raw_os_error(libc::EEXIST)));
        }
        let header = if self.offloads == TunOffloads::None { "" } else { " vnet_hdr" };
        let queues = if count > 1 { " multi_queue" } else { "" };
        out.change(&format!("{ip} tuntap add dev {dev} mode tap{header}{queues}"), "TUNSETIFF");
        let mut config = TunConfig::ethernet(dev.as_str());
        (config.offloads, config.multi_queue) = (self.offloads, count > 1);
        let open = || {
            TunPort::open(&config).map_err(|error| {
                let error = diagnose::tun_port(purpose, dev, config.multi_queue, error);
                // A TAP that this user may open and not change has another cause than its owner.
                if self.mac.is_some() { with_owner(error, dev) } else { error }
            })
        };
        let ports = (0..count).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
        if count > 1 {
            steer(&ports, &steering_program(dev, Steered::Tap)?, dev)?;
        }
        let link = netlink
            .link_named(dev)
            .and_then(|link| link.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV)))
            .map_err(|error| state(&error))?;
        let mut changes = Changes { netlink, out, index: link.index, name: dev, ip };
        // A TAP that was created for this user beforehand may be set up already, and changing it needs root.
        if link.mtu != self.mtu {
            changes
                .mtu(self.mtu)
                .map_err(|error| diagnose::change_for(purpose, dev, &format!("set the MTU {}", self.mtu), &error))?;
        }
        if let Some(mac) = self.mac {
            if link.mac != Some(mac) {
                changes.mac(mac).map_err(|error| diagnose::change_for(purpose, dev, "set the address", &error))?;
            }
            // The carrier is off before the interface is up, so that nothing is sent without a link.
            for port in &ports {
                driver::set_carrier(segue_port::Port::fd(port), false)
                    .map_err(|error| diagnose::change_for(purpose, dev, "set the carrier", &error))?;
            }
        }
        if !link.up {
            changes.up().map_err(|error| diagnose::change_for(purpose, dev, "change the state", &error))?;
        }
        Ok(ports)
    }
}

/// Adds the owner of the TAP `dev` to a refused attachment, if it exists and belongs to another user.
fn with_owner(error: Error, dev: &str) -> Error {
    let of = |what: &str| fs::read_to_string(format!("/sys/class/net/{dev}/{what}")).ok()?.trim().parse::<i64>().ok();
    let is_ours = of("owner").is_none_or(|owner| owner == i64::from(sys::euid()));
    let whose = match (of("owner"), of("group")) {
        _ if error.kind != Kind::NoPermission => return error,
        (Some(owner @ 0..), _) if !is_ours => format!("the user {owner}"),
        // Members of the group may open it, so that this user is none.
        (Some(-1), Some(group @ 0..)) => format!("the group {group}"),
        _ => return error,
    };
    let hint = format!(
        "--dev NAME, a TAP of this user\nor once by root, for this user: sudo ip tuntap del dev {dev} mode tap"
    );
    error.why(format!("{dev} exists already and belongs to {whose}")).hint(hint)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".."
}

fn is_interface(name: &str) -> bool {
    is_name(name) && name.len() <= 15 && !name.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_is_a_tap_here_or_in_a_namespace() {
        let tap = Tap::parse("tap:c0@red", 1500).unwrap();
        assert_eq!((tap.name.as_str(), tap.netns.as_deref()), ("c0", Some("red")));
        assert_eq!(Tap::parse("tap:c0", 1500).unwrap().netns, None);
        for bad in ["", "c0", "tap:", "tap:a/b", "tap:a b", "tap:c0@", "tap:c0@../x", "tap:0123456789abcdef"] {
            assert!(Tap::parse(bad, 1500).is_err(), "{bad}");
        }
    }
}
