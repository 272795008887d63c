//! The kernel's tables in the router's form, and the messages that carry tables and requests to the router.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::SyncSender;

use segue::time::Nanos;

use crate::nat::Mapping;
use crate::route::{Hop, Routes};

/// Addresses and MTU of a port's interface, from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceAddrs {
    /// Ethernet address of the interface.
    pub mac: [u8; 6],
    /// MTU of the interface, bytes.
    pub mtu: u32,
    /// IPv4 addresses with the lengths of their prefixes.
    pub v4: Vec<(Ipv4Addr, u8)>,
    /// IPv6 addresses with the lengths of their prefixes, link-local ones included.
    pub v6: Vec<(Ipv6Addr, u8)>,
}

impl InterfaceAddrs {
    /// Returns the interface's address in the same network as `sender`, or else its first one that is not link-local.
    pub(super) fn address_towards(&self, sender: IpAddr) -> Option<IpAddr> {
        match sender {
            IpAddr::V4(sender) => self.v4_towards(sender).map(IpAddr::V4),
            IpAddr::V6(sender) => {
                let mut global = self.v6.iter().filter(|(own, _)| !own.is_unicast_link_local());
                let is_near = |(own, len): &&(Ipv6Addr, u8)| {
                    (own.to_bits() ^ sender.to_bits()).checked_shr(128 - u32::from(*len)).unwrap_or(0) == 0
                };
                let near = global.clone().find(is_near).or_else(|| global.next());
                near.map(|(own, _)| IpAddr::V6(*own))
            }
        }
    }

    /// Returns the interface's address in the same network as `other`, or else its first one.
    pub(super) fn v4_towards(&self, other: Ipv4Addr) -> Option<Ipv4Addr> {
        let is_near = |(own, len): &&(Ipv4Addr, u8)| {
            (own.to_bits() ^ other.to_bits()).checked_shr(32 - u32::from(*len)).unwrap_or(0) == 0
        };
        let near = self.v4.iter().find(is_near).or(self.v4.first());
        near.map(|(own, _)| *own)
    }
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Port and address of the neighbour.
    pub hop: Hop,
    /// Link address of the neighbour.
    pub mac: [u8; 6],
    /// Whether the neighbour is never probed (NUD_PERMANENT, or NUD_NOARP with an address).
    pub is_permanent: bool,
}

/// A change in the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourEvent {
    /// A neighbour was added or changed.
    Set(Neighbour),
    /// A neighbour was deleted.
    Removed(Hop),
}

/// Snapshot of the kernel's tables.
#[derive(Debug)]
pub struct Tables {
    /// Routes of both families.
    pub routes: Routes,
    /// Addresses and MTU of both ports.
    pub ports: [InterfaceAddrs; 2],
    /// Neighbours on both ports.
    pub neighbours: Vec<Neighbour>,
}

/// The mappings of a router's NAT, and the time at which they were read.
pub type Mappings = (Nanos, Vec<Mapping>);

/// A message to a router.
#[derive(Debug)]
pub enum Message {
    /// Replacement of all tables.
    Tables(Box<Tables>),
    /// Changes of single neighbours, in their order.
    Neighbours(Vec<NeighbourEvent>),
    /// Replacement of all neighbours.
    AllNeighbours(Vec<Neighbour>),
    /// Requests the mappings; the answer goes to this channel.
    Mappings(SyncSender<Mappings>),
}
