//! The tunnel as seen by the agent: its table of peers, over the control socket.

use std::collections::BTreeMap;
use std::net::IpAddr;

use segue_control::client;
use segue_control::error::{Error, Kind};
use segue_control::peers::{Change, Encap, Key, Mac, Peer, RefusedPeer, Table};
use segue_host::prefix::Prefix;

use crate::config::Backend;
use crate::lease::{Lease, Offer};

/// State of a tunnel as the tunnel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelState {
    /// Process id of the process with the table.
    pub process: u32,
    /// Generation of the tunnel's table.
    pub generation: u64,
    /// Local endpoint of the tunnel, against which leases are checked.
    pub end: LocalEndpoint,
}

/// The local endpoint of the tunnel, which changes only when the tunnel is started with other options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Outer address of the tunnel, which no peer may have.
    pub local: Option<IpAddr>,
    /// The MAC address of the VTEP, where the tunnel has one.
    pub mac: Option<Mac>,
    /// The encapsulations, each with its UDP port, such as `vxlan:8472`.
    pub listen: Vec<String>,
    /// Whether the tunnel accepts remote checksums.
    pub remcsum: bool,
}

impl LocalEndpoint {
    /// Checks that the tunnel `name` can serve as endpoint in a network with this backend and accepts the encapsulation
    /// that this host offers.
    ///
    /// # Errors
    /// What it lacks, with the words that it needs.
    pub fn check(&self, name: &str, backend: Backend, offer: Option<Offer>) -> Result<(), Error> {
        let wrong = |message: String, why: &str, words: &str| {
            let hint = format!("segue tunnel dev {name} peers none local ADDR {words}");
            Err(Error::new(Kind::Conflict, message, hint).why(why.to_owned()))
        };
        if let Some(local @ IpAddr::V6(_)) = self.local {
            let why = "leases have the IPv4 addresses of their hosts";
            return wrong(format!("the tunnel {name} has the outer address {local}"), why, "...");
        }
        let network = match backend {
            Backend::Vxlan { port, .. } => format!("{}:{port}", Encap::Vxlan),
            Backend::Udp { port } => format!("{}:{port}", Encap::Fou),
        };
        let offered = offer.map(|offer| format!("{}:{}", Encap::Gue, offer.gue_port));
        let needed: Vec<&str> = [Some(&network), offered.as_ref()].into_iter().flatten().map(String::as_str).collect();
        for (form, why) in needed.iter().zip(["the network's hosts send it there", "--offer says that it does"]) {
            if !self.listen.iter().any(|listens| listens == form) {
                let words = format!("listen {}", needed.join(","));
                return wrong(format!("the tunnel {name} does not listen for {form}"), why, &words);
            }
        }
        if offer.is_some_and(|offer| offer.remcsum) && !self.remcsum {
            let why = "--offer remcsum says that it does";
            return wrong(format!("the tunnel {name} takes no remote checksums"), why, "encap-remcsum ...");
        }
        Ok(())
    }
}

/// A tunnel with a table of peers.
pub trait Datapath {
    /// Reads the state of the tunnel.
    ///
    /// # Errors
    /// The tunnel does not run, or has no table.
    fn state(&mut self) -> Result<TunnelState, Error>;

    /// Replaces the tunnel's peer table. Returns how many of its peers the tunnel refuses, and the first of them; the
    /// others are in force.
    ///
    /// # Errors
    /// The tunnel refuses the table, and keeps the one that it has.
    fn sync(&mut self, table: &Table) -> Result<(u64, Vec<RefusedPeer>), Error>;

    /// Changes single entries of the tunnel's peer table. Returns its generation after the change.
    ///
    /// # Errors
    /// The tunnel refuses the change, and keeps the table that it has.
    fn change(&mut self, change: Change) -> Result<u64, Error>;
}

/// A tunnel of this host, reached over its control socket.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Name of the tunnel's interface.
    pub name: String,
}

impl Datapath for Tunnel {
    fn state(&mut self) -> Result<TunnelState, Error> {
        let (process, table) = client::peer_table(&self.name)?;
        let end = LocalEndpoint {
            local: table.local.parse().ok(),
            mac: table.mac.and_then(|mac| mac.parse().ok()),
            listen: table.listen,
            remcsum: table.remcsum,
        };
        Ok(TunnelState { process, generation: table.generation, end })
    }

    fn sync(&mut self, table: &Table) -> Result<(u64, Vec<RefusedPeer>), Error> {
        client::peer_sync(&self.name, table).map(|changes| (changes.refused, changes.refused_peers))
    }

    fn change(&mut self, change: Change) -> Result<u64, Error> {
        client::peer_change(&self.name, change).map(|changes| changes.generation)
    }
}

/// Returns the entries that are new or changed in `after`, and the keys of those that only `before` has.
pub fn difference(before: &[Peer], after: &[Peer]) -> (Vec<Peer>, Vec<Key>) {
    let prefixes = |peers: &[Peer]| -> BTreeMap<Prefix, usize> {
        (0..).zip(peers).filter_map(|(at, peer)| peer.prefix.map(|prefix| (prefix, at))).collect()
    };
    let (old, new) = (prefixes(before), prefixes(after));
    let changed = new.iter().filter(|(prefix, at)| old.get(prefix).is_none_or(|was| before[*was] != after[**at]));
    let gone = old.keys().filter(|prefix| !new.contains_key(prefix));
    (changed.map(|(_, at)| after[*at].clone()).collect(), gone.map(|prefix| Key::Prefix(*prefix)).collect())
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
