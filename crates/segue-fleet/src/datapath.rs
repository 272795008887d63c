//! The tunnel, as the agent sees it: its table of peers, over the control socket.

use segue_control::client;
use segue_control::error::Error;
use segue_control::peers::{Encap, Mac, Peer, Table};
use segue_host::prefix::Prefix;

use crate::config::Backend;
use crate::lease::{Lease, Offer};

/// What a tunnel says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelState {
    /// The generation of its table.
    pub generation: u64,
    /// The MAC address of its VTEP, where it has one.
    pub mac: Option<Mac>,
}

/// A tunnel with a table of peers.
pub trait Datapath {
    /// Reads what the tunnel has.
    ///
    /// # Errors
    /// The tunnel does not run, or has no table.
    fn look(&mut self) -> Result<TunnelState, Error>;

    /// Replaces the table.
    ///
    /// # Errors
    /// The tunnel refuses the table, and keeps the one that it has.
    fn sync(&mut self, table: &Table) -> Result<(), Error>;
}

/// A tunnel of this host.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Its interface.
    pub name: String,
    /// The MAC address of its VTEP, where the user gave it.
    pub mac: Option<Mac>,
}

impl Datapath for Tunnel {
    fn look(&mut self) -> Result<TunnelState, Error> {
        let listed = client::peers(&self.name)?;
        Ok(TunnelState { generation: listed.generation, mac: self.mac })
    }

    fn sync(&mut self, table: &Table) -> Result<(), Error> {
        client::peer_sync(&self.name, table).map(|_| ())
    }
}

/// Returns the entry for a peer. GUE is used towards a peer that offers it where this host offers it too, and remote
/// checksums where both do; a kernel's VXLAN drops those, so they are never used with it.
pub fn peer(lease: &Lease, backend: Backend, ours: Option<Offer>) -> Peer {
    let prefix = Prefix { address: lease.subnet.first().into(), len: lease.subnet.prefix_len() };
    let peer = Peer::new(prefix, lease.address.into());
    match (backend, ours, lease.offer) {
        (Backend::Vxlan { .. }, Some(ours), Some(theirs)) => Peer {
            encap: Some(Encap::Gue),
            port: Some(theirs.gue_port),
            remcsum: Some(ours.remcsum && theirs.remcsum),
            ..peer
        },
        (Backend::Vxlan { vni, port }, ..) => Peer {
            encap: Some(Encap::Vxlan),
            port: Some(port),
            vni: Some(vni),
            mac: lease.mac,
            remcsum: Some(false),
            ..peer
        },
        (Backend::Udp { port }, ..) => Peer { encap: Some(Encap::Fou), port: Some(port), ..peer },
    }
}
