//! A peer of a table, as the maps have it.

use std::net::IpAddr;

use segue::encap::Config;

/// One peer of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peer {
    /// Inner prefix behind the peer: address, with host bits of zero, and prefix length.
    pub prefix: (IpAddr, u8),
    /// The index of the listener whose encapsulation the peer has.
    pub listener: usize,
    /// The encapsulation towards the peer.
    pub config: Config,
    /// The destination of the Ethernet frames inside, where the encapsulation carries frames.
    pub mac: [u8; 6],
}
