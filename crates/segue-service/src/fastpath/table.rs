//! The in-kernel path of a tunnel with a peer table: its peers, their routes and their counters.

use segue::encap::Config;
use segue_control::model::{self, Instance};
use segue_control::peers::MOST;
use segue_datapath::overlay::PeerConfig;
use segue_fastpath::{Peer, PeerPath, Served};
use segue_host::netlink::Netlink;

use super::counts::{add, put_left};
use super::filters::Added;
use super::obstacle::Interfaces;

/// The statement on the in-kernel path at the start, when there may be no peers yet.
pub(crate) const OF_PEERS: &str =
    "kernel, for peers without outer checksum and remote checksum offload; segue for the others";

/// A tunnel with a peer table, in the form for the in-kernel path.
#[derive(Clone, Debug)]
pub struct Table {
    /// Name of the tunnel's interface.
    pub dev: String,
    /// Index of the interface that has the tunnel's local address.
    pub underlay: u32,
    /// The listeners, in the order of the peer table.
    pub listeners: Vec<Listener>,
    /// Local Ethernet address of the tunnel.
    pub station: [u8; 6],
}

/// A listener: a UDP port with its encapsulation.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Name of its port in statistics.
    pub name: &'static str,
    /// The encapsulation and the source ports.
    pub path: segue_fastpath::Listener,
}

impl Table {
    /// Returns the encapsulation of the first listener.
    pub(super) fn config(&self) -> Option<Config> {
        self.listeners.first().map(|listener| listener.path.config)
    }

    /// Returns the interfaces, given the index of the tunnel's own.
    pub(super) fn interfaces(&self, own: u32) -> Interfaces<'_> {
        Interfaces { inside: [(own, self.dev.as_str())].into(), outside: [self.underlay].into() }
    }

    /// Loads and attaches the programs.
    pub(super) fn load(&self, interface: u32, netlink: &mut Netlink) -> Result<PeerPath, segue_fastpath::Error> {
        let listeners: Vec<_> = self.listeners.iter().map(|listener| listener.path.clone()).collect();
        let mut path = PeerPath::load(&listeners, self.station, MOST as u32)?;
        path.attach(interface, self.underlay, &mut Added(netlink))?;
        Ok(path)
    }

    /// Adds the counters of the in-kernel path to those of the instance.
    pub(super) fn fill(&self, path: &PeerPath, instance: &mut Instance) {
        for (index, listener) in self.listeners.iter().enumerate() {
            let Ok(counts) = path.counts(index) else { continue };
            // As with the daemon's sockets, the outer IP and UDP headers do not count.
            let config = &listener.path.config;
            let outer = if config.local.is_ipv4() { 28 } else { 48 };
            add(instance, &self.dev, listener.name, &counts, (config.overhead() as u64).saturating_sub(outer));
        }
        let first = self.listeners.first().and_then(|listener| instance.ports.get_mut(listener.name));
        if let (Ok(counts), Some(port)) = (path.unclaimed(), first) {
            put_left(port, &counts);
        }
    }
}

/// Returns why the in-kernel path of a table carries no packets.
pub(super) fn idle(served: &Served) -> Option<String> {
    match (served.kernel, &served.daemon) {
        (1.., _) => None,
        (0, reasons) if reasons.is_empty() => Some("the peer table is empty".to_owned()),
        (0, reasons) => {
            let reasons: Vec<String> = reasons.iter().map(|(why, peers)| format!("{peers}: {why}")).collect();
            Some(format!("no peer can take it [{}]", reasons.join(", ")))
        }
    }
}

/// Returns the numbers of peers by the path of their packets.
pub(super) fn shown(served: &Served) -> model::FastpathPeers {
    let segue = served.daemon.iter().map(|(why, peers)| ((*why).to_owned(), *peers)).collect();
    model::FastpathPeers { kernel: served.kernel, segue }
}

/// Returns the peers of a table in the form for the in-kernel path.
pub(super) fn peers(configs: &[PeerConfig]) -> Vec<Peer> {
    let of = |config: &PeerConfig| {
        let PeerConfig { inside, listener, encap, mac, .. } = *config;
        Some(Peer { prefix: inside.prefix()?, listener, config: encap, mac: mac.unwrap_or_default() })
    };
    configs.iter().filter_map(of).collect()
}
