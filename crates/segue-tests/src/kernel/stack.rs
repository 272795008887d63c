//! The IP layer of a kernel: how it fragments datagrams longer than an MTU, and reassembles fragments.

use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use segue_testkit::conformance::Datagram;

use super::command::{batch, run};
use super::gso::{carries, gather};
use super::sys::{Role, Socket};
use crate::sys::allow_fragments;

/// Longest wait for a missing datagram.
const LONGEST: Duration = Duration::from_millis(500);
/// The addresses of [`Datagram`]s, destination first.
const ADDRESSES: [[&str; 2]; 2] = [["198.18.1.2", "2001:db8:1::2"], ["198.18.1.1", "2001:db8:1::1"]];

/// Two veth pairs: frames sent into the first one reach the stack by `s1`, and the stack's own frames leave by `t0`.
#[derive(Debug)]
pub struct Stack {
    near: Socket,
    far: Socket,
}

impl Stack {
    /// Creates the pairs in this network namespace.
    ///
    /// # Errors
    /// A message that names the failed step and its reason.
    pub fn new() -> Result<Stack, String> {
        for (key, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv6/conf/default/disable_ipv6", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
        ] {
            fs::write(format!("/proc/sys/net/{key}"), value).map_err(|error| format!("{key}: {error}"))?;
        }
        let mut lines = String::from("link set lo up\n");
        for pair in ["s", "t"] {
            lines += &format!("link add {pair}0 mtu 65535 type veth peer name {pair}1 mtu 65535\n");
            lines += &format!("link set {pair}0 up\nlink set {pair}1 up\n");
        }
        // What comes out of the second pair is addressed to no host.
        lines += "link set s1 address 02:00:00:00:00:01\n";
        batch("ip", &lines)?;
        run(&["ethtool", "-K", "t0", "tx", "off"])?;
        let open = |device: &str, role| Socket::open(device, role).map_err(|error| format!("{device}: {error}"));
        let stack = Stack { near: open("s0", Role::Sends)?, far: open("t1", Role::ReceivesBare)? };
        for (device, near, far) in
            [("s0", &stack.near, &open("s1", Role::ReceivesBare)?), ("t0", &open("t0", Role::Sends)?, &stack.far)]
        {
            carries(near, far).map_err(|error| format!("{device}: {error}"))?;
        }
        Ok(stack)
    }

    /// Adds the destination addresses of the datagrams to the stack.
    ///
    /// # Errors
    /// A message with the command that the kernel refused.
    pub fn receives(&self) -> Result<(), String> {
        let addresses = ADDRESSES[0].map(|address| format!("addr add {address} dev s1\n"));
        batch("ip", &addresses.concat().replace("::2", "::2/128 nodad"))
    }

    /// Adds the source addresses of the datagrams to the stack, or else makes it the router between the hosts, with the
    /// given MTU on the egress device.
    ///
    /// # Errors
    /// A message with the command that the kernel refused.
    pub fn sends(&self, is_v4: bool, is_source: bool, mtu: usize) -> Result<(), String> {
        let [to, from] = ADDRESSES.map(|of| of[usize::from(!is_v4)]);
        let mut lines = format!("link set t0 mtu {mtu}\naddr flush dev s1\naddr flush dev t0 scope global\n");
        if is_source {
            lines += &format!(
                "addr add {from}/{} dev t0{}\n",
                if is_v4 { 32 } else { 128 },
                if is_v4 { "" } else { " nodad" }
            );
        }
        lines +=
            &format!("route replace {to} dev t0\nneigh replace {to} dev t0 lladdr 02:00:00:00:00:01 nud permanent\n");
        batch("ip", &lines)
    }

    /// Sends frames to the stack and returns the payload received by one of its sockets; the frames must be fragments
    /// of one datagram.
    ///
    /// # Errors
    /// From the sockets.
    pub fn put_together<'a>(
        &self,
        socket: &UdpSocket,
        frames: impl Iterator<Item = &'a Vec<u8>>,
    ) -> io::Result<Option<Vec<u8>>> {
        for frame in frames {
            self.near.send([0; 10], frame)?;
        }
        socket.set_read_timeout(Some(LONGEST))?;
        let mut data = vec![0; 1 << 16];
        match socket.recv(&mut data) {
            Ok(len) => {
                data.truncate(len);
                Ok(Some(data))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a socket that receives the datagrams, after [`Stack::receives`].
    ///
    /// # Errors
    /// From the socket.
    pub fn receiver(&self, is_v4: bool) -> io::Result<UdpSocket> {
        let address = (address(0, is_v4)?, 2000);
        let socket = UdpSocket::bind(address)?;
        // A new IPv6 address is one of this host's only when a worker of the kernel has made its route.
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        for _ in 0..100 {
            if socket.send_to(&[0], address).is_ok() && socket.recv(&mut [0]).is_ok() {
                // Nor is a second one to come later.
                socket.set_nonblocking(true)?;
                while socket.recv(&mut [0]).is_ok() {}
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "nothing arrives"))
    }

    /// Opens a socket that sends the datagrams, after [`Stack::sends`].
    ///
    /// # Errors
    /// From the socket.
    pub fn sender(&self, is_v4: bool) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((address(1, is_v4)?, 1000))?;
        allow_fragments(&socket)?;
        socket.connect((address(0, is_v4)?, 2000))?;
        Ok(socket)
    }

    /// Sends a payload and returns the frames that leave for it: at least `count` unless some are missing.
    ///
    /// # Errors
    /// From the sockets.
    pub fn send(&self, socket: &UdpSocket, datagram: &Datagram, count: usize) -> io::Result<Vec<Vec<u8>>> {
        self.drain()?;
        socket.send(&datagram.data)?;
        self.received(datagram, count)
    }

    /// Sends packets for the stack to forward and returns the frames that leave for them: at least `count` unless some
    /// are missing.
    ///
    /// # Errors
    /// From the sockets.
    pub fn forward(&self, datagram: &Datagram, frames: &[Vec<u8>], count: usize) -> io::Result<Vec<Vec<u8>>> {
        self.drain()?;
        for frame in frames {
            self.near.send([0; 10], frame)?;
        }
        self.received(datagram, count)
    }

    fn drain(&self) -> io::Result<()> {
        while self.far.receive()?.is_some() {}
        Ok(())
    }

    /// Returns the frames received from the addresses of `datagram`.
    fn received(&self, datagram: &Datagram, count: usize) -> io::Result<Vec<Vec<u8>>> {
        let addresses = if datagram.is_v4() { 12..20 } else { 8..40 };
        let is_its = |frame: &Vec<u8>| {
            frame.get(14..).and_then(|packet| packet.get(addresses.clone())) == datagram.packet.get(addresses.clone())
        };
        let mut frames = gather(&self.far, count)?;
        frames.retain(is_its);
        Ok(frames)
    }
}

fn address(which: usize, is_v4: bool) -> io::Result<IpAddr> {
    ADDRESSES[which][usize::from(!is_v4)].parse().map_err(io::Error::other)
}
