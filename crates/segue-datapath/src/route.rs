//! Routing tables with longest-prefix match, and the link addresses of neighbours.
//!
//! The tables do not ask the kernel; their owner enters what it learns. Both are bounded and refuse further entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use prefix_trie::PrefixMap;

use crate::slots::SlotMap;

/// The action of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Packets leave by a port.
    Forward {
        /// Index of the egress port.
        port: u16,
        /// Address of the next router; `None` where the destination is itself a neighbour.
        via: Option<IpAddr>,
        /// MTU of the route, counted from the outermost IP header on, bytes.
        mtu: u32,
    },
    /// Packets are for this host.
    Local,
    /// Packets are dropped without an ICMP error (`blackhole` of iproute2).
    Blackhole,
    /// Packets are dropped with "host unreachable" (`unreachable` of iproute2).
    Unreachable,
    /// Packets are dropped with "administratively prohibited" (`prohibit` of iproute2).
    Prohibited,
    /// Packets are dropped with "host unreachable", because the route encapsulates them (`encap` of iproute2, MPLS or
    /// SRv6), which is not supported; unencapsulated they would be misrouted.
    Encapsulated,
    /// Lookup continues in the next table, even if this table has a shorter prefix (`throw` of iproute2).
    Throw,
}

/// Routing tables in the order in which the kernel's default rules look them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Table `local`: the host's own addresses.
    Local,
    /// The routing table `main`.
    Main,
    /// The routing table `default`.
    Default,
}

/// Number of routing tables.
const TABLES: usize = 3;

/// Reason why a route or neighbour was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The routing table is full.
    Full,
    /// The prefix is longer than the address.
    Prefix,
}

/// Routes of both families, in several tables.
#[derive(Debug)]
pub struct Routes {
    v4: [PrefixMap<(u32, u8), Action>; TABLES],
    v6: [PrefixMap<(u128, u8), Action>; TABLES],
    most: usize,
}

impl Routes {
    /// Creates empty tables for at most `most` routes altogether.
    pub fn new(most: usize) -> Routes {
        Routes { v4: Default::default(), v6: Default::default(), most }
    }

    /// Adds or replaces the route of a prefix in one table; address bits beyond the prefix are ignored.
    ///
    /// # Errors
    ///
    /// Where all tables together are full or the prefix is too long.
    pub fn insert(&mut self, table: Table, prefix: IpAddr, len: u8, action: Action) -> Result<(), Refused> {
        if len > if prefix.is_ipv4() { 32 } else { 128 } {
            return Err(Refused::Prefix);
        }
        let is_full = self.len() >= self.most;
        match prefix {
            IpAddr::V4(prefix) => {
                let (key, table) = ((mask_v4(prefix.to_bits(), len), len), &mut self.v4[table as usize]);
                if is_full && !table.contains_key(&key) {
                    return Err(Refused::Full);
                }
                table.insert(key, action);
            }
            IpAddr::V6(prefix) => {
                let (key, table) = ((mask_v6(prefix.to_bits(), len), len), &mut self.v6[table as usize]);
                if is_full && !table.contains_key(&key) {
                    return Err(Refused::Full);
                }
                table.insert(key, action);
            }
        }
        Ok(())
    }

    /// Removes a route from a table and returns its action.
    pub fn remove(&mut self, table: Table, prefix: IpAddr, len: u8) -> Option<Action> {
        match prefix {
            IpAddr::V4(prefix) if len <= 32 => self.v4[table as usize].remove(&(mask_v4(prefix.to_bits(), len), len)),
            IpAddr::V6(prefix) if len <= 128 => self.v6[table as usize].remove(&(mask_v6(prefix.to_bits(), len), len)),
            _ => None,
        }
    }

    /// Returns the route of the longest prefix that matches an IPv4 address, or an IPv6 one if `is_v4` is unset, from
    /// the first table with a match other than [`Action::Throw`].
    #[inline]
    pub fn lookup(&self, destination: u128, is_v4: bool) -> Option<Action> {
        let found = |action: &Action| (*action != Action::Throw).then_some(*action);
        if is_v4 {
            let key = (destination as u32, 32);
            self.v4.iter().find_map(|table| table.get_lpm(&key).and_then(|(_, action)| found(action)))
        } else {
            let key = (destination, 128);
            self.v6.iter().find_map(|table| table.get_lpm(&key).and_then(|(_, action)| found(action)))
        }
    }

    /// Returns whether packets to an address are for this host.
    pub fn is_local(&self, address: IpAddr) -> bool {
        let action = match address {
            IpAddr::V4(address) => self.lookup(address.to_bits().into(), true),
            IpAddr::V6(address) => self.lookup(address.to_bits(), false),
        };
        action == Some(Action::Local)
    }

    /// Returns the number of routes in all tables.
    pub fn len(&self) -> usize {
        let v4: usize = self.v4.iter().map(PrefixMap::len).sum();
        let v6: usize = self.v6.iter().map(PrefixMap::len).sum();
        v4 + v6
    }

    /// Returns whether all tables are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn mask_v4(bits: u32, len: u8) -> u32 {
    bits & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

fn mask_v6(bits: u128, len: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

/// A next hop: a port and the address of a neighbour there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Index of the egress port.
    pub port: u16,
    /// Whether the address is an IPv4 one.
    pub is_v4: bool,
    /// IP address of the neighbour. IPv4 is in the low 32 bits.
    pub address: u128,
}

impl Hop {
    /// Returns the next hop towards `destination`, whose family is given by `is_v4`.
    #[inline]
    pub fn new(port: u16, via: Option<IpAddr>, destination: u128, is_v4: bool) -> Hop {
        match via {
            None => Hop { port, is_v4, address: destination },
            Some(IpAddr::V4(via)) => Hop { port, is_v4: true, address: via.to_bits().into() },
            Some(IpAddr::V6(via)) => Hop { port, is_v4: false, address: via.to_bits() },
        }
    }

    /// Returns the address of the neighbour.
    pub fn ip(&self) -> IpAddr {
        match self.is_v4 {
            true => Ipv4Addr::from_bits(self.address as u32).into(),
            false => Ipv6Addr::from_bits(self.address).into(),
        }
    }
}

/// Link header in front of packets to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No link header: the port carries bare IP.
    Bare,
    /// An Ethernet header precedes the packet.
    Ethernet {
        /// Ethernet address of the neighbour.
        to: [u8; 6],
        /// Ethernet address of the egress port.
        from: [u8; 6],
    },
}

/// Link addresses of neighbours.
#[derive(Debug)]
pub struct Neighbours {
    links: SlotMap<Hop, Link>,
    most: usize,
}

impl Neighbours {
    /// Creates an empty table for at most `most` neighbours.
    pub fn new(most: usize) -> Neighbours {
        Neighbours { links: SlotMap::default(), most }
    }

    /// Adds or replaces a neighbour.
    ///
    /// # Errors
    ///
    /// Where the table is full.
    pub fn insert(&mut self, hop: Hop, link: Link) -> Result<(), Refused> {
        if self.links.len() >= self.most && !self.links.contains_key(&hop) {
            return Err(Refused::Full);
        }
        self.links.insert(hop, link);
        Ok(())
    }

    /// Removes all neighbours from the table, which keeps its memory.
    pub fn clear(&mut self) {
        self.links.clear();
    }

    /// Removes a neighbour from the table.
    pub fn remove(&mut self, hop: Hop) {
        self.links.remove(&hop);
    }

    /// Returns the link header for a neighbour, or `None` for an unknown one.
    #[inline]
    pub fn lookup(&self, hop: &Hop) -> Option<Link> {
        self.links.get(hop).copied()
    }

    /// Returns the number of neighbours.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Returns whether there are no neighbours.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn to(port: u16) -> Action {
        Action::Forward { port, via: None, mtu: 1500 }
    }

    fn find(routes: &Routes, text: &str) -> Option<Action> {
        match address(text) {
            IpAddr::V4(ip) => routes.lookup(ip.to_bits().into(), true),
            IpAddr::V6(ip) => routes.lookup(ip.to_bits(), false),
        }
    }

    #[test]
    fn the_longest_prefix_decides() {
        let mut routes = Routes::new(100);
        for (prefix, len, port) in [
            ("0.0.0.0", 0, 0),
            ("198.18.0.0", 15, 1),
            ("198.18.7.9", 24, 2),
            ("198.18.7.1", 32, 3),
            ("::", 0, 4),
            ("2001:db8::", 32, 5),
            ("2001:db8:1::7", 128, 6),
        ] {
            routes.insert(Table::Main, address(prefix), len, to(port)).unwrap();
        }
        for (destination, port) in [
            ("203.0.113.1", 0),
            ("198.19.255.255", 1),
            ("198.18.7.200", 2),
            ("198.18.7.1", 3),
            ("2001:db9::", 4),
            ("2001:db8:ffff::1", 5),
            ("2001:db8:1::7", 6),
        ] {
            assert_eq!(find(&routes, destination), Some(to(port)), "{destination}");
        }
        assert_eq!(routes.remove(Table::Main, address("198.18.7.255"), 24), Some(to(2)));
        assert_eq!(find(&routes, "198.18.7.200"), Some(to(1)));
        assert_eq!(routes.len(), 6);
    }

    #[test]
    fn tables_are_asked_one_after_the_other_and_throw_leaves_it_to_the_next() {
        let mut routes = Routes::new(100);
        for (table, prefix, len, action) in [
            (Table::Main, "198.18.7.1", 32, to(1)),
            (Table::Local, "198.18.7.0", 24, Action::Local),
            (Table::Main, "198.18.0.0", 15, to(2)),
            (Table::Main, "198.18.8.0", 24, Action::Throw),
            (Table::Default, "0.0.0.0", 0, to(3)),
            (Table::Main, "2001:db8::", 32, to(4)),
            (Table::Main, "2001:db8:1::", 48, Action::Throw),
        ] {
            routes.insert(table, address(prefix), len, action).unwrap();
        }
        for (destination, action) in [
            ("198.18.7.1", Some(Action::Local)),
            ("198.18.9.1", Some(to(2))),
            ("198.18.8.1", Some(to(3))),
            ("203.0.113.1", Some(to(3))),
            ("2001:db8:2::1", Some(to(4))),
            ("2001:db8:1::1", None),
        ] {
            assert_eq!(find(&routes, destination), action, "{destination}");
        }
        assert_eq!(routes.remove(Table::Main, address("198.18.8.0"), 24), Some(Action::Throw));
        assert_eq!((find(&routes, "198.18.8.1"), routes.len()), (Some(to(2)), 6));
    }

    #[test]
    fn full_tables_and_prefixes_that_are_none_are_refused() {
        let mut routes = Routes::new(1);
        assert_eq!(routes.insert(Table::Main, address("198.18.0.0"), 33, to(1)), Err(Refused::Prefix));
        assert_eq!(routes.insert(Table::Main, address("2001:db8::"), 129, to(1)), Err(Refused::Prefix));
        assert_eq!(routes.remove(Table::Main, address("198.18.0.0"), 33), None);
        routes.insert(Table::Main, address("198.18.0.0"), 15, to(1)).unwrap();
        routes.insert(Table::Main, address("198.18.3.0"), 15, to(2)).unwrap();
        assert_eq!(routes.insert(Table::Main, address("::"), 0, to(3)), Err(Refused::Full));
        assert_eq!((find(&routes, "198.18.0.1"), routes.len()), (Some(to(2)), 1));
        let mut neighbours = Neighbours::new(1);
        let hop = |address| Hop { port: 1, is_v4: true, address };
        neighbours.insert(hop(1), Link::Bare).unwrap();
        neighbours.insert(hop(1), Link::Bare).unwrap();
        assert_eq!(neighbours.insert(hop(2), Link::Bare), Err(Refused::Full));
        neighbours.remove(hop(1));
        assert!(neighbours.is_empty() && neighbours.lookup(&hop(1)).is_none());
    }
}
