//! Links between two hosts.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::address::{Family, Peer};
use crate::keywords::keywords;
use crate::{Host, LabError, interrupt};

/// Name of the link's device at both ends.
pub const DEVICE: &str = "eth0";

keywords! {
    /// The offloads of a veth pair.
    LinkForm {
        /// Link without offloads, like that of a simple network card: `tso off gso off tx off gro on`, so that the
        /// sender has to segment and checksum, and the receiver has to aggregate.
        Nic = "nic",
        /// Link with checksum offload only: `tso off gso off tx on gro on`.
        NicCsum = "nic-csum",
        /// A link with the kernel's default features: trains pass whole and checksums are never computed. Flatters
        /// everything that makes trains.
        Veth = "veth",
    }
}

impl LinkForm {
    /// Returns the features as `ethtool -K` takes them; none for a pair with the kernel's defaults.
    pub(crate) const fn features(self) -> &'static [&'static str] {
        match self {
            LinkForm::Nic => &["tso", "off", "gso", "off", "tx", "off", "gro", "on"],
            LinkForm::NicCsum => &["tso", "off", "gso", "off", "tx", "on", "gro", "on"],
            LinkForm::Veth => &[],
        }
    }
}

/// Joins two hosts by a veth pair of MTU 1500, [`DEVICE`] at both ends, with the addresses [`Peer::address`] of net 0:
/// 198.18.0.1/24 and 2001:db8::1/64 for `a`, the other ones for `b`. All are usable when this returns.
pub fn connect(a: &Host, b: &Host, form: LinkForm) -> Result<(), LabError> {
    wire((a, DEVICE), (b, DEVICE))?;
    for (host, end) in [(a, Peer::A), (b, Peer::B)] {
        if !form.features().is_empty() {
            ethtool(host, DEVICE, form.features())?;
        }
        address(host, end, DEVICE, 0, Family::ALL)?;
        host.run("ip", &["link", "set", DEVICE, "up"])?;
    }
    wait_until_up(&[(a, DEVICE), (b, DEVICE)])
}

/// Waits until the devices have a carrier, which the kernel notices with a delay: earlier frames are lost, and an ARP
/// request or neighbour solicitation is repeated only after a second.
pub(crate) fn wait_until_up(ends: &[(&Host, &str)]) -> Result<(), LabError> {
    let begin = Instant::now();
    for (host, device) in ends {
        while !host.run("ip", &["-o", "link", "show", "dev", device])?.contains(" state UP ") {
            interrupt::check()?;
            if begin.elapsed() > Duration::from_secs(5) {
                let source = io::ErrorKind::TimedOut.into();
                return Err(LabError::system(format!("get a carrier on {device} of host {}", host.name()), source));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// Makes a veth pair that is down and has no address.
pub(crate) fn wire(near: (&Host, &str), far: (&Host, &str)) -> Result<(), LabError> {
    let netns = far.0.net_path();
    let words = ["link", "add", near.1, "mtu", "1500", "type", "veth", "peer", "name", far.1, "mtu", "1500"];
    near.0.run("ip", &[&words[..], &["netns", &netns]].concat()).map(drop)
}

pub(crate) fn address(host: &Host, end: Peer, device: &str, net: u8, families: &[Family]) -> Result<(), LabError> {
    for family in families {
        let prefix = end.prefix(net, *family);
        let mut words = vec!["addr", "add", &prefix, "dev", device];
        // iproute2 knows the word for IPv6 only.
        if *family == Family::V6 {
            words.push("nodad");
        }
        host.run("ip", &words)?;
    }
    Ok(())
}

pub(crate) fn ethtool(host: &Host, device: &str, features: &[&str]) -> Result<(), LabError> {
    host.run("ethtool", &[&["-K", device], features].concat()).map(drop)
}
