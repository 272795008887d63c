//! The kernel's own tunnel devices, and the packets that they send.

use std::fs;
use std::io;
use std::net::UdpSocket;

use segue_testkit::conformance::{Device, ENTRY, Entering, UNDERLAY};

use super::command::{batch, run};
use super::gso::{carries, cut, gather, vnet_of};
use super::sys::{Role, Socket, index_of};
use crate::sys::{allow_fragments, set_udp_segment};

/// A veth pair without offloads at the end that the tunnels leave by.
#[derive(Debug)]
pub struct Underlay {
    far: Socket,
}

/// A tunnel device over the underlay, deleted when this value is dropped.
#[derive(Debug)]
pub struct Entry<'a> {
    near: Socket,
    underlay: &'a Underlay,
    device: &'a Device,
}

impl Underlay {
    /// Creates the veth pair in this network namespace.
    ///
    /// # Errors
    /// A message that names the failed step and its reason.
    pub fn new() -> Result<Underlay, String> {
        let sysctl = |key: &str, value: &str| {
            fs::write(format!("/proc/sys/net/ipv6/conf/default/{key}"), value)
                .map_err(|error| format!("{key}: {error}"))
        };
        for (key, value) in [("disable_ipv6", "0"), ("accept_dad", "0"), ("router_solicitations", "0")] {
            sysctl(key, value)?;
        }
        let mut lines = format!("link add {UNDERLAY} mtu 9100 type veth peer name e1 mtu 9100\n");
        lines += &format!("link set {UNDERLAY} address 02:00:00:00:00:02\nlink set {UNDERLAY} up\nlink set e1 up\n");
        for (address, len, to) in [("198.18.0.1", 24, "198.18.0.2"), ("2001:db8::1", 64, "2001:db8::2")] {
            lines += &format!("addr add {address}/{len} dev {UNDERLAY}{}\n", if len == 64 { " nodad" } else { "" });
            lines += &format!("neigh replace {to} dev {UNDERLAY} lladdr 02:00:00:00:00:01 nud permanent\n");
        }
        batch("ip", &lines)?;
        // Tunnel devices are not to send anything of their own.
        sysctl("disable_ipv6", "1")?;
        run(&["ethtool", "-K", UNDERLAY, "tx", "off", "tso", "off", "gso", "off", "tx-udp-segmentation", "off"])?;
        let open = |device: &str, role| Socket::open(device, role).map_err(|error| format!("{device}: {error}"));
        let underlay = Underlay { far: open("e1", Role::ReceivesBare)? };
        carries(&open(UNDERLAY, Role::Sends)?, &underlay.far).map_err(|error| format!("{UNDERLAY}: {error}"))?;
        Ok(underlay)
    }

    /// Creates a tunnel device over the underlay.
    ///
    /// # Errors
    /// A message with the command that the kernel refused.
    pub fn open<'a>(&'a self, device: &'a Device) -> Result<Entry<'a>, String> {
        let mut lines = format!("{}addr add 198.18.1.1/32 dev {ENTRY}\n", device.lines);
        if device.is_bridged() {
            lines += &format!("link set {ENTRY} address 02:00:00:00:01:02\n");
            lines += &format!("neigh replace 198.18.1.2 dev {ENTRY} lladdr 02:00:00:00:01:01 nud permanent\n");
        }
        lines += &format!("route add 198.18.1.2 dev {ENTRY}\n");
        let made = batch("ip", &lines);
        let near = made.and_then(|()| Socket::open(ENTRY, Role::Sends).map_err(|error| format!("{ENTRY}: {error}")));
        if near.is_err() {
            remove();
        }
        Ok(Entry { near: near?, underlay: self, device })
    }
}

impl Entry<'_> {
    /// Sends a train through the kernel's tunnel device; returns the packets that leave. `None` where it does not take
    /// such a train.
    ///
    /// # Errors
    /// From the sockets.
    pub fn cut(&self, train: &Entering) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut vector = train.inner.clone();
        if !self.device.is_bridged() {
            vector.frame.drain(..14);
            vector.header_len -= 14;
            vector.csum_start -= 14;
        }
        cut(&self.near, &self.underlay.far, (vnet_of(&vector), &vector.frame), vector.segments.len())
    }

    /// Sends a train of IPv4 datagrams from a socket through the tunnel device (`UDP_SEGMENT`); returns the packets
    /// that leave.
    ///
    /// # Errors
    /// From the sockets.
    pub fn send(&self, size: usize, total: usize) -> io::Result<Vec<Vec<u8>>> {
        let train = self.device.datagrams(size, total, &[]).inner;
        self.send_as(Some(size), &train.frame[train.header_len..], train.segments.len())
    }

    /// Sends one IPv4 datagram, longer than the device's MTU, from a socket through the tunnel device; returns the
    /// packets that leave.
    ///
    /// # Errors
    /// From the sockets.
    pub fn send_one(&self, size: usize) -> io::Result<Vec<Vec<u8>>> {
        let whole = self.device.datagrams(size, size, &[]).inner;
        self.send_as(None, &whole.frame[whole.header_len..], self.device.fragments(size, &[]).len())
    }

    fn send_as(&self, size: Option<usize>, data: &[u8], count: usize) -> io::Result<Vec<Vec<u8>>> {
        while self.underlay.far.receive()?.is_some() {}
        let socket = UdpSocket::bind("198.18.1.1:1000")?;
        allow_fragments(&socket)?;
        if let Some(size) = size {
            set_udp_segment(&socket, u16::try_from(size).map_err(io::Error::other)?)?;
        }
        socket.send_to(data, "198.18.1.2:2000")?;
        gather(&self.underlay.far, count)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        remove();
    }
}

/// Removes the tunnel devices; missing ones are ignored.
fn remove() {
    for device in [ENTRY, "o0"] {
        if index_of(device).is_ok() {
            let _ = run(&["ip", "link", "del", device]);
        }
    }
}
