//! The UDP ports of the kernel's tunnel devices, as announced by rtnetlink.
//!
//! A packet of a UDP port is that of a tunnel if a device for it has the port. Only then may the packets of a flow
//! inside be joined: any other socket would receive the train as one long datagram. The kernel's own GRO has the same
//! rule.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use segue::packet::{Kind, Tunnels};

use super::{ATTRIBUTE_LEN, BUFFER_LEN, HEADER_LEN, INFO_LEN, MOST_READS, half, sys, word};
use crate::sys::passes;

/// Bits of an attribute's type: the others say that it is nested or in network byte order (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// Attributes of `IFLA_LINKINFO`: the kind of a device by name, and what that kind says of itself.
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
/// `IFLA_VXLAN_PORT`, `IFLA_VXLAN_GBP` and `IFLA_VXLAN_GPE`, and `IFLA_GENEVE_PORT`. Ports are in network byte order.
const VXLAN_PORT: u16 = 15;
const VXLAN_GBP: u16 = 23;
const VXLAN_GPE: u16 = 27;
const GENEVE_PORT: u16 = 5;
/// Largest number of devices that are remembered; of further ones nothing is joined.
const MOST_DEVICES: usize = 4096;

/// A socket that follows the kernel's VXLAN and Geneve devices of the network namespace in which it was opened.
///
/// ```no_run
/// use segue_port::TunnelWatch;
///
/// let mut watch = TunnelWatch::open()?;
/// let tunnels = watch.listen()?; // again whenever the descriptor is readable
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TunnelWatch {
    fd: OwnedFd,
    devices: Devices,
    /// Whether all devices must be asked for, at the start and after lost announcements.
    is_unsure: bool,
    buffer: Box<[u8]>,
}

/// The devices, as far as they were announced or listed.
#[derive(Debug, Default)]
struct Devices {
    /// Index, port and format of those that are up.
    up: Vec<(u32, u16, Kind)>,
    /// Indexes of the devices that were announced while the kernel lists all of them. What it lists may be older than
    /// an announcement in front of it: it queues its answer after it has read the state.
    announced: Option<Vec<u32>>,
}

impl Devices {
    /// Makes a state that waits for the list of all devices.
    fn awaited() -> Devices {
        Devices { up: Vec::new(), announced: Some(Vec::new()) }
    }
}

impl TunnelWatch {
    /// Follows the devices of this thread's network namespace; [`TunnelWatch::listen`] reads which there are.
    ///
    /// # Errors
    /// Where no rtnetlink socket can be opened.
    pub fn open() -> io::Result<TunnelWatch> {
        let watch = TunnelWatch {
            fd: sys::link_socket()?,
            devices: Devices::awaited(),
            is_unsure: false,
            buffer: vec![0; BUFFER_LEN].into(),
        };
        sys::send(watch.fd.as_fd(), &dump())?;
        Ok(watch)
    }

    /// Returns the descriptor that is readable when messages are queued.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads the queued messages and returns the ports of all devices that are up, the first
    /// [`Tunnels::MOST`] of them; none as long as it is not known which there are. Never waits.
    ///
    /// # Errors
    /// Where the socket has become useless.
    pub fn listen(&mut self) -> io::Result<Tunnels> {
        for _ in 0..MOST_READS {
            match sys::receive(self.fd.as_fd(), &mut self.buffer) {
                Ok(Some(len)) => read(self.buffer.get(..len).unwrap_or(&self.buffer), &mut self.devices),
                // Not from the kernel.
                Ok(None) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) if self.is_unsure => {
                        self.devices = Devices::awaited();
                        match sys::send(self.fd.as_fd(), &dump()) {
                            // The kernel has begun to answer.
                            Ok(()) => self.is_unsure = false,
                            // An answer of before is still on its way, or memory is short: asked again at the next
                            // call.
                            Err(error) if passes(&error) || error.raw_os_error() == Some(libc::EBUSY) => break,
                            Err(error) => return Err(error),
                        }
                    }
                    Some(libc::EAGAIN) => break,
                    Some(libc::EINTR) => {}
                    // Announcements were lost.
                    Some(libc::ENOBUFS) => self.is_unsure = true,
                    _ if passes(&error) => {
                        self.is_unsure = true;
                        break;
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(if self.is_unsure { Tunnels::NONE } else { tunnels(&self.devices.up) })
    }
}

/// Returns an `RTM_GETLINK` request for all interfaces.
fn dump() -> [u8; HEADER_LEN + INFO_LEN] {
    let mut bytes = super::request(0, super::FIRST_QUESTION);
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

/// Returns the ports of devices, each once.
fn tunnels(devices: &[(u32, u16, Kind)]) -> Tunnels {
    let mut ports: Vec<(u16, Kind)> = Vec::new();
    for &(_, port, kind) in devices {
        if ports.iter().all(|(other, _)| *other != port) {
            ports.push((port, kind));
        }
    }
    // In one order, whichever device was announced first.
    ports.sort_unstable_by_key(|(port, _)| *port);
    ports.into_iter().fold(Tunnels::NONE, |all, (port, kind)| all.with(port, kind))
}

/// Updates `devices` by the messages in `bytes`.
fn read(mut bytes: &[u8], devices: &mut Devices) {
    while let (Some(len), Some(kind), Some(form)) = (word(bytes, 0), half(bytes, 4), half(bytes, 6)) {
        let len = len as usize;
        if len < HEADER_LEN {
            break;
        }
        let body = bytes.get(HEADER_LEN..len).or_else(|| bytes.get(HEADER_LEN..)).unwrap_or(&[]);
        if i32::from(kind) == libc::NLMSG_DONE {
            devices.announced = None;
        }
        // Other families report the interface's place in a bridge, and its IPv6 settings.
        if let (true, Some(index), Some(flags)) =
            (body.first() == Some(&(libc::AF_UNSPEC as u8)), word(body, 4), word(body, 8))
            && matches!(kind, libc::RTM_NEWLINK | libc::RTM_DELLINK)
            && is_newer(devices, index, form & libc::NLM_F_MULTI as u16 != 0)
        {
            devices.up.retain(|(other, ..)| *other != index);
            let is_up = kind == libc::RTM_NEWLINK && flags & libc::IFF_UP as u32 != 0;
            if let (true, Some((port, kind))) = (is_up, tunnel(body.get(INFO_LEN..).unwrap_or(&[])))
                && devices.up.len() < MOST_DEVICES
            {
                devices.up.push((index, port, kind));
            }
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

/// Returns whether what is said of a device may be newer than what is known; `is_listed` in the list of all devices,
/// otherwise in an announcement.
fn is_newer(devices: &mut Devices, index: u32, is_listed: bool) -> bool {
    let Some(announced) = &mut devices.announced else { return true };
    let is_known = announced.contains(&index);
    if !is_listed && !is_known {
        announced.push(index);
    }
    !is_listed || !is_known
}

/// Returns port and format of the tunnel device with these attributes.
fn tunnel(attributes: &[u8]) -> Option<(u16, Kind)> {
    let info = find(attributes, libc::IFLA_LINKINFO)?;
    let name = find(info, INFO_KIND)?;
    let data = find(info, INFO_DATA)?;
    let (at, kind) = match name.strip_suffix(&[0]).unwrap_or(name) {
        // With either extension the header has other bits, which GRO does not read.
        b"vxlan" if [VXLAN_GBP, VXLAN_GPE].iter().all(|bit| find(data, *bit).is_none()) => (VXLAN_PORT, Kind::Vxlan),
        b"geneve" => (GENEVE_PORT, Kind::Geneve),
        _ => return None,
    };
    let port = u16::from_be_bytes(*find(data, at)?.first_chunk()?);
    (port != 0).then_some((port, kind))
}

/// Returns the value of the first attribute of type `wanted`.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let (Some(len), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let len = usize::from(len);
        let value = attributes.get(ATTRIBUTE_LEN..len)?;
        if kind & TYPE_MASK == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((ATTRIBUTE_LEN + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, index: u32, is_up: bool, attributes: &[u8]) -> Vec<u8> {
        let mut body = vec![0; INFO_LEN];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..12].copy_from_slice(&u32::from(is_up).to_ne_bytes());
        body.extend(attributes);
        let mut bytes = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER_LEN, 0);
        bytes.extend(body);
        bytes
    }

    fn device(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
        let kind = attribute(INFO_KIND, &[name.as_bytes(), &[0]].concat());
        let nested = attribute(INFO_DATA | 0x8000, &data.concat());
        [attribute(libc::IFLA_IFNAME, b"vx0\0"), attribute(libc::IFLA_LINKINFO, &[kind, nested].concat())].concat()
    }

    fn vxlan(port: u16) -> Vec<u8> {
        device("vxlan", &[attribute(1, &[0; 4]), attribute(VXLAN_PORT, &port.to_be_bytes())])
    }

    #[test]
    fn a_port_is_a_tunnels_as_long_as_a_device_that_is_up_has_it() {
        let mut devices = Devices::default();
        let mut after = |messages: &[Vec<u8>]| {
            read(&messages.concat(), &mut devices);
            tunnels(&devices.up)
        };
        let one = Tunnels::NONE.with(4789, Kind::Vxlan);
        assert_eq!(after(&[message(libc::RTM_NEWLINK, 3, false, &vxlan(4789))]), Tunnels::NONE);
        assert_eq!(after(&[message(libc::RTM_NEWLINK, 3, true, &vxlan(4789))]), one);
        // Another device with the same port, and one of another kind with a smaller one.
        let geneve = device("geneve", &[attribute(GENEVE_PORT, &600_u16.to_be_bytes())]);
        let both = Tunnels::NONE.with(600, Kind::Geneve).with(4789, Kind::Vxlan);
        let more = [message(libc::RTM_NEWLINK, 4, true, &vxlan(4789)), message(libc::RTM_NEWLINK, 5, true, &geneve)];
        assert_eq!(after(&more), both);
        assert_eq!(after(&[message(libc::RTM_DELLINK, 3, true, &vxlan(4789))]), both);
        assert_eq!(after(&[message(libc::RTM_NEWLINK, 4, false, &vxlan(4789))]), Tunnels::NONE.with(600, Kind::Geneve));
        let others = [
            device("vxlan", &[attribute(VXLAN_PORT, &[1, 2]), attribute(VXLAN_GPE, &[])]),
            device("vxlan", &[attribute(VXLAN_PORT, &[1, 2]), attribute(VXLAN_GBP, &[])]),
            device("vxlan", &[]),
            device("vxlan", &[attribute(VXLAN_PORT, &[0, 0])]),
            device("vxlan", &[attribute(VXLAN_PORT, &[1])]),
            device("bareudp", &[attribute(GENEVE_PORT, &[1, 2])]),
            attribute(libc::IFLA_IFNAME, b"vx1\0"),
        ];
        for other in others {
            let found = after(&[message(libc::RTM_NEWLINK, 9, true, &other)]);
            assert_eq!(found, Tunnels::NONE.with(600, Kind::Geneve), "{other:?}");
        }
    }

    #[test]
    fn a_message_that_is_cut_off_anywhere_makes_nothing_up() {
        let bytes = message(libc::RTM_NEWLINK, 3, true, &vxlan(4789));
        for len in 0..bytes.len() {
            let mut devices = Devices::default();
            read(&bytes[..len], &mut devices);
            // The port is in the last four bytes, of which two are padding.
            assert!(devices.up.is_empty() || len >= bytes.len() - 2, "{len} bytes: {devices:?}");
        }
    }

    #[test]
    fn a_list_that_is_older_than_an_announcement_in_front_of_it_does_not_count() {
        let listed = |index: u32, is_up: bool| {
            let mut bytes = message(libc::RTM_NEWLINK, index, is_up, &vxlan(4000 + index as u16));
            bytes[6..8].copy_from_slice(&(libc::NLM_F_MULTI as u16).to_ne_bytes());
            bytes
        };
        let mut done = message(libc::NLMSG_DONE as u16, 0, false, &[]);
        done[6..8].copy_from_slice(&(libc::NLM_F_MULTI as u16).to_ne_bytes());
        let mut devices = Devices::awaited();
        let mut after = |messages: &[Vec<u8>]| {
            read(&messages.concat(), &mut devices);
            tunnels(&devices.up)
        };
        let gone = message(libc::RTM_DELLINK, 3, true, &vxlan(4003));
        let up = message(libc::RTM_NEWLINK, 4, true, &vxlan(4004));
        let rest = Tunnels::NONE.with(4004, Kind::Vxlan).with(4005, Kind::Vxlan);
        assert_eq!(after(&[gone, up, listed(3, true), listed(4, false), listed(5, true)]), rest);
        // Afterwards there is nothing older.
        let later = message(libc::RTM_NEWLINK, 3, true, &vxlan(4003));
        let all = Tunnels::NONE.with(4003, Kind::Vxlan).with(4004, Kind::Vxlan).with(4005, Kind::Vxlan);
        assert_eq!(after(&[done, later]), all);
    }

    /// Tests that devices of before, of later, and those announced to a full queue are found.
    #[test]
    fn devices_of_the_kernel_are_followed() {
        let Some(()) = testing::namespace() else { return };
        testing::ip("link set lo up");
        testing::ip("link add vx0 type vxlan id 1 dstport 4789 local 127.0.0.1 dev lo");
        testing::ip("link set vx0 up");
        testing::ip("link add vx1 type vxlan id 2 dstport 8472 local 127.0.0.1 dev lo");
        let mut watch = TunnelWatch::open().unwrap();
        let mut read = move || (0..1000).map(|_| watch.listen().unwrap()).last().unwrap();
        let first = Tunnels::NONE.with(4789, Kind::Vxlan);
        let both = first.with(8472, Kind::Vxlan);
        assert_eq!(read(), first);
        testing::ip("link set vx1 up");
        assert_eq!(read(), both);
        testing::ip("link del vx0");
        assert_eq!(read(), Tunnels::NONE.with(8472, Kind::Vxlan));
        let file = std::env::temp_dir().join(format!("segue-tunnels-{}", std::process::id()));
        let others: String = (0..4000).map(|n| format!("link set dev lo mtu {}\n", 2000 + n % 2)).collect();
        let lines = "link add vx2 type vxlan id 3 dstport 4789 local 127.0.0.1 dev lo\nlink set vx2 up\nlink del vx1\n";
        std::fs::write(&file, others + lines).unwrap();
        testing::ip(&format!("-batch {}", file.display()));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read(), first);
    }
}
