//! The maps that find a peer by an inner address.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::code::FamilyMaps;
use crate::layout::tunnel;
use crate::lengths::Lengths;
use crate::map::Map;
use crate::sys::MapKind;

/// The maps of one IP version inside.
pub(super) struct Family {
    pub(super) hosts: Map,
    prefixes: Map,
    pub(super) lengths: Lengths,
}

impl Family {
    /// Creates the maps for at most `most` peers.
    pub(super) fn create(is_v4: bool, most: u32) -> io::Result<Family> {
        let (len, [hosts, prefixes, lengths]) = if is_v4 {
            (4, ["segue_hosts4", "segue_nets4", "segue_lens4"])
        } else {
            (16, ["segue_hosts6", "segue_nets6", "segue_lens6"])
        };
        Ok(Family {
            hosts: Map::growing(MapKind::Hash, len, tunnel::LEN, most, hosts)?,
            prefixes: Map::growing(MapKind::Hash, len + 4, tunnel::LEN, most, prefixes)?,
            lengths: Lengths::create(8 * len as u8, lengths)?,
        })
    }

    pub(super) fn maps(&self) -> FamilyMaps<'_> {
        FamilyMaps { hosts: self.hosts.as_fd(), prefixes: self.prefixes.as_fd(), lengths: self.lengths.as_fd() }
    }

    /// Returns the map for a prefix, and the prefix's key.
    pub(super) fn place(&self, (address, len): (IpAddr, u8)) -> (&Map, Vec<u8>) {
        let (bytes, bits) = match address {
            IpAddr::V4(address) => (address.octets().to_vec(), 32),
            IpAddr::V6(address) => (address.octets().to_vec(), 128),
        };
        if len >= bits {
            return (&self.hosts, bytes);
        }
        (&self.prefixes, [&bytes[..], &u32::from(len).to_ne_bytes()].concat())
    }
}
