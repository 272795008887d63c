//! The peer table: the encapsulation towards each peer, and the inner sources that each peer may send.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use segue::encap::{Carrier, Config, ConfigError, Decapsulator, Encapsulator, Mac};
use segue::hash::Key;
use segue::time::Nanos;
use segue::wire::{ethernet, ethertype};

use super::prefixes::Prefixes;

/// Largest number of path MTU queries in one [`QUERY_PERIOD`]; each is two system calls.
const MOST_QUERIES: u32 = 64;
/// Period of the rate limit of path MTU queries, nanoseconds.
const QUERY_PERIOD: u64 = 100_000_000;

/// The counters of one peer. One worker writes them; other threads may read them at any time.
#[derive(Debug, Default)]
pub struct PeerCounters {
    sent: [AtomicU64; 2],
    received: [AtomicU64; 2],
}

impl PeerCounters {
    /// Returns the numbers of packets and bytes sent to the peer; a train counts as one packet.
    pub fn sent(&self) -> [u64; 2] {
        [0, 1].map(|at| self.sent[at].load(Ordering::Relaxed))
    }

    /// Returns the numbers of datagrams and bytes received from the peer.
    pub fn received(&self) -> [u64; 2] {
        [0, 1].map(|at| self.received[at].load(Ordering::Relaxed))
    }

    pub(super) fn add_sent(&self, bytes: usize) {
        add(&self.sent, bytes);
    }

    pub(super) fn add_received(&self, bytes: usize) {
        add(&self.received, bytes);
    }
}

/// Adds a packet to a peer's counters. There is one writer, so that no locked instruction is needed.
fn add([packets, total]: &[AtomicU64; 2], bytes: usize) {
    packets.store(packets.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    total.store(total.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
}

/// Inner addresses that are reached through a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// An IP prefix: address and prefix length.
    Prefix(IpAddr, u8),
    /// One Ethernet address.
    Station(Mac),
    /// Group addresses and all Ethernet addresses without a peer: frames to them are flooded to every peer of this
    /// kind.
    Flood,
}

impl Inside {
    /// Returns the prefix by which the peer is looked up; none for a peer to which frames are flooded.
    pub fn prefix(self) -> Option<(IpAddr, u8)> {
        match self {
            Inside::Prefix(address, len) => Some((address, len)),
            Inside::Station(mac) => Some((station(mac), 128)),
            Inside::Flood => None,
        }
    }
}

/// Returns the form in which a table looks up an Ethernet address: as a host route. A table has either kind.
#[inline]
pub(super) fn station(mac: Mac) -> IpAddr {
    let [a, b, c, d, e, f] = mac;
    IpAddr::V6(u128::from(u64::from_be_bytes([0, 0, a, b, c, d, e, f])).into())
}

/// Configuration of one peer, from which a table is built.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Inner addresses that are reached through the peer.
    pub inside: Inside,
    /// The index of the listener whose sockets send to the peer.
    pub listener: usize,
    /// The encapsulation towards the peer.
    pub encap: Config,
    /// Destination of the inner Ethernet frames, where the encapsulation carries frames and the interface IP.
    pub mac: Option<Mac>,
    /// Counters of the peer, which persist from one table to the next.
    pub counters: Arc<PeerCounters>,
}

/// Configuration of a listener, for which a table is built.
#[derive(Clone, Copy, Debug)]
pub struct ListenerConfig {
    /// The tunnel's own encapsulation at the listener. Its remote is not used.
    pub encap: Config,
}

/// A peer of a table.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) remote: IpAddr,
    pub(super) listener: usize,
    /// The network identifier, with VXLAN.
    pub(super) network: Option<u32>,
    /// Ethernet headers for IPv6 and IPv4 packets, where the encapsulation carries frames and the interface IP.
    pub(super) link: Option<[[u8; ethernet::LEN]; 2]>,
    /// Index among the destinations of the listener.
    pub(super) to: u16,
    pub(super) encap: Encapsulator,
    pub(super) mtu: PeerMtu,
    pub(super) counters: Arc<PeerCounters>,
}

/// The path MTU to a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerMtu {
    pub(super) asked: Option<Nanos>,
    /// Largest inner IP packet that fits, bytes.
    pub(super) inside: Option<usize>,
}

/// The rate limit of path MTU queries, which does not depend on the number of peers.
#[derive(Debug, Default)]
pub(super) struct QueryLimit {
    since: Nanos,
    asked: u32,
}

impl QueryLimit {
    pub(super) fn take(&mut self, now: Nanos) -> bool {
        if now.0.saturating_sub(self.since.0) >= QUERY_PERIOD {
            (self.since, self.asked) = (now, 0);
        }
        self.asked += 1;
        self.asked <= MOST_QUERIES
    }
}

/// A table of an overlay's peers. It is built by any thread, and then belongs to the worker.
#[derive(Debug)]
pub struct Table {
    generation: u64,
    inner: Prefixes,
    removed: Prefixes,
    senders: Prefixes,
    removed_senders: Prefixes,
    pub(super) peers: Vec<Peer>,
    /// Indexes of the peers that frames are flooded to.
    pub(super) flood: Vec<usize>,
    /// Index of these peers by outer address.
    flood_senders: Prefixes,
    /// Addresses that each listener's sockets send to.
    pub(super) destinations: Vec<Arc<[SocketAddr]>>,
    /// Decapsulation at each listener, by network identifier, sorted.
    decaps: Vec<Vec<(Option<u32>, Decapsulator)>>,
    /// The last results: the next packet is usually of the same flow. The prefixes of a table never change, and a new
    /// table begins without.
    last: LastResults,
}

/// The last result of each lookup that takes place for every packet.
#[derive(Debug, Default)]
struct LastResults {
    destination: Last<Option<usize>>,
    source: Last<Option<usize>>,
    flooded: Last<Option<usize>>,
    sender: Last<Sender>,
}

/// The last address that was looked up, with the result.
#[derive(Debug)]
struct Last<T>(Option<(IpAddr, T)>);

impl<T> Default for Last<T> {
    fn default() -> Last<T> {
        Last(None)
    }
}

impl<T: Copy> Last<T> {
    /// Returns the last result, if it is that of `address`, or else that of `look_up`.
    #[inline]
    fn or_else(&mut self, address: IpAddr, look_up: impl FnOnce() -> T) -> T {
        match self.0 {
            Some((last, found)) if last == address => found,
            _ => {
                let found = look_up();
                self.0 = Some((address, found));
                found
            }
        }
    }
}

/// The result of looking up the sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The remote of a peer of the table.
    Peer,
    /// The remote of a peer that was removed.
    Removed,
    /// An address that belongs to no peer.
    Unknown,
}

impl Table {
    /// Builds a peer table from its entries. `removed` are prefixes and remotes of earlier tables, whose packets are
    /// dropped under a name of their own; `own_mac` is the source of the frames inside, where there are any; `key`
    /// should be random.
    ///
    /// # Errors
    /// The index of a peer whose encapsulation cannot be, or that names a listener that there is not.
    pub fn new(
        generation: u64,
        listeners: &[ListenerConfig],
        peers: &[PeerConfig],
        removed: &Removed,
        own_mac: [u8; 6],
        key: Key,
    ) -> Result<Table, (usize, ConfigError)> {
        let address = |peer: &PeerConfig| SocketAddr::new(peer.encap.remote, peer.encap.dport);
        let mut destinations: Vec<Vec<SocketAddr>> = vec![Vec::new(); listeners.len()];
        for (index, peer) in peers.iter().enumerate() {
            destinations.get_mut(peer.listener).ok_or((index, ConfigError::Carrier))?.push(address(peer));
        }
        for addresses in &mut destinations {
            addresses.sort_unstable();
            addresses.dedup();
        }
        let mut decaps: Vec<Vec<(Option<u32>, Decapsulator)>> = Vec::new();
        for listener in listeners {
            let decap = Decapsulator::new(reachable(listener.encap)).map_err(|error| (0, error))?;
            decaps.push(vec![(network(&listener.encap), decap)]);
        }
        let mut made = Vec::with_capacity(peers.len());
        for (index, peer) in peers.iter().enumerate() {
            let to = destinations[peer.listener].binary_search(&address(peer)).ok();
            // A port numbers its destinations with 16 bits.
            let to = to.and_then(|to| u16::try_from(to).ok()).ok_or((index, ConfigError::Carrier))?;
            // The sockets of a listener compute a checksum, also where a peer asks for none: trains need it.
            let config = Config { csum: true, ..peer.encap };
            let mut encap = Encapsulator::new(config).map_err(|error| (index, error))?;
            encap.aim(peer.encap.remote, to);
            let network = network(&peer.encap);
            let networks = &mut decaps[peer.listener];
            if !networks.iter().any(|(known, _)| *known == network) {
                let config = with_network(listeners[peer.listener].encap, network);
                networks.push((network, Decapsulator::new(reachable(config)).map_err(|error| (index, error))?));
            }
            let link = |mac| [ethertype::IPV6, ethertype::IPV4].map(|kind| ethernet::header(mac, own_mac, kind));
            let frames = peer.encap.mode.is_ethernet();
            made.push(Peer {
                remote: peer.encap.remote,
                listener: peer.listener,
                network,
                link: peer.mac.filter(|_| frames).map(link),
                to,
                encap,
                mtu: PeerMtu::default(),
                counters: Arc::clone(&peer.counters),
            });
        }
        decaps.iter_mut().for_each(|networks| networks.sort_by_key(|(network, _)| *network));
        let host = |address: IpAddr| (address, 128, 0);
        let mut known: Vec<IpAddr> = peers.iter().map(|peer| peer.encap.remote).collect();
        known.sort_unstable();
        known.dedup();
        let inner = (0..).zip(peers).filter_map(|(index, peer)| {
            let (address, len) = peer.inside.prefix()?;
            Some((address, len, index))
        });
        let flooded = |peer: &PeerConfig| peer.inside == Inside::Flood;
        let flood: Vec<usize> = (0..).zip(peers).filter(|(_, peer)| flooded(peer)).map(|(index, _)| index).collect();
        let flood_senders = (0..).zip(peers).filter(|(_, peer)| flooded(peer));
        let flood_senders = flood_senders.map(|(index, peer)| (peer.encap.remote, 128, index));
        Ok(Table {
            flood,
            flood_senders: Prefixes::new(key, flood_senders),
            generation,
            inner: Prefixes::new(key, inner),
            removed: Prefixes::new(key, removed.prefixes.iter().map(|(address, len)| (*address, *len, 0))),
            senders: Prefixes::new(key, known.iter().copied().map(host)),
            removed_senders: Prefixes::new(key, removed.remotes.iter().copied().map(host)),
            peers: made,
            destinations: destinations.into_iter().map(Arc::from).collect(),
            decaps,
            last: LastResults::default(),
        })
    }

    /// Returns the generation number of the table.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of peers.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns whether there are no peers.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Returns the index of the peer whose prefix is the longest match for the inner destination.
    #[inline]
    pub(super) fn destination(&mut self, inner: IpAddr) -> Option<usize> {
        let Table { inner: prefixes, last, .. } = self;
        last.destination.or_else(inner, || index_of(prefixes, inner))
    }

    /// Returns the index of the peer whose prefix is the longest match for the inner source.
    #[inline]
    pub(super) fn source(&mut self, inner: IpAddr) -> Option<usize> {
        let Table { inner: prefixes, last, .. } = self;
        last.source.or_else(inner, || index_of(prefixes, inner))
    }

    /// Returns the index of the flooded peer with the given outer address.
    pub(super) fn flooded(&mut self, outer: IpAddr) -> Option<usize> {
        let Table { flood_senders, last, .. } = self;
        last.flooded.or_else(outer, || index_of(flood_senders, outer))
    }

    /// Returns whether the inner address belonged to a peer that was removed.
    pub(super) fn had(&self, inner: IpAddr) -> bool {
        self.removed.lookup(inner).is_some()
    }

    /// Looks up the sender of a datagram.
    #[inline]
    pub(super) fn sender(&mut self, outer: IpAddr) -> Sender {
        let Table { senders, removed_senders, last, .. } = self;
        last.sender.or_else(outer, || match senders.lookup(outer) {
            Some(_) => Sender::Peer,
            None if removed_senders.lookup(outer).is_some() => Sender::Removed,
            None => Sender::Unknown,
        })
    }

    /// Returns the decapsulation of a datagram at a listener, with the datagram's network identifier; `None` for an
    /// identifier that no peer has.
    #[inline]
    pub(super) fn decap(&mut self, listener: usize, datagram: &[u8]) -> Option<(Option<u32>, &mut Decapsulator)> {
        let networks = self.decaps.get_mut(listener)?;
        let at = match &networks[..] {
            // One way refuses by its own reasons what is not for it.
            [_] => 0,
            [(_, first), ..] => {
                let wanted = match first.config().identify(datagram) {
                    Some(segue::encap::Identity::Network(vni)) => Some(vni),
                    _ => None,
                };
                networks.binary_search_by_key(&wanted, |(network, _)| *network).ok()?
            }
            [] => return None,
        };
        networks.get_mut(at).map(|(network, decap)| (*network, decap))
    }
}

/// Inner addresses and remotes of earlier tables that the current one lacks.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// Removed inner addresses, in the form of [`Inside::prefix`].
    pub prefixes: Vec<(IpAddr, u8)>,
    /// Outer addresses of removed remotes.
    pub remotes: Vec<IpAddr>,
}

fn index_of(prefixes: &Prefixes, address: IpAddr) -> Option<usize> {
    prefixes.lookup(address).map(|index| index as usize)
}

fn network(config: &Config) -> Option<u32> {
    match config.carrier {
        Carrier::Vxlan { vni, .. } => Some(vni),
        _ => None,
    }
}

fn with_network(config: Config, network: Option<u32>) -> Config {
    match (config.carrier, network) {
        (Carrier::Vxlan { remcsum, takes_remcsum, .. }, Some(vni)) => {
            Config { carrier: Carrier::Vxlan { vni, remcsum, takes_remcsum }, ..config }
        }
        _ => config,
    }
}

/// Returns the configuration with a placeholder remote: a listener has no remote of its own, and the check requires
/// one.
fn reachable(config: Config) -> Config {
    Config { remote: config.local, ..config }
}

#[cfg(test)]
mod tests {
    use segue::encap::Mode;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1));

    fn peer(inside: Inside, n: u8) -> PeerConfig {
        let remote = IpAddr::from([198, 18, 0, n]);
        let carrier = Carrier::Vxlan { vni: 7, remcsum: false, takes_remcsum: false };
        let encap = Config::new(Mode::Ethernet, carrier, LOCAL, remote);
        PeerConfig { inside, listener: 0, encap, mac: None, counters: Arc::default() }
    }

    #[test]
    fn stations_are_found_by_their_addresses_and_all_else_by_the_peers_that_are_flooded_to() {
        let stations = [[2, 0, 0, 0, 0, 2], [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]];
        let peers = [
            peer(Inside::Station(stations[0]), 2),
            peer(Inside::Flood, 2),
            peer(Inside::Station(stations[1]), 3),
            peer(Inside::Flood, 4),
        ];
        let gone = [2, 0, 0, 0, 0, 9];
        let removed = Removed { prefixes: vec![(station(gone), 128)], remotes: Vec::new() };
        let listeners = [ListenerConfig { encap: peers[0].encap }];
        let mut table = Table::new(1, &listeners, &peers, &removed, [2, 0, 0, 0, 0, 1], Key([1, 2])).unwrap();
        assert_eq!(
            [stations[0], stations[1], gone, [0; 6]].map(|mac| table.destination(station(mac))),
            [Some(0), Some(2), None, None]
        );
        assert!(table.had(station(gone)) && !table.had(station(stations[0])));
        assert_eq!(table.flood, [1, 3]);
        let flooded = [2, 3, 4].map(|n| table.flooded(IpAddr::from([198, 18, 0, n])));
        assert_eq!(flooded, [Some(1), None, Some(3)]);
        // Frames keep their own headers.
        assert!(table.peers.iter().all(|peer| peer.link.is_none()));
    }

    #[test]
    fn a_lookup_gives_what_the_prefixes_give_whatever_was_looked_up_before() {
        let host = |n: u8| IpAddr::from([198, 19, 0, n]);
        let peers = [peer(Inside::Prefix(host(2), 32), 2), peer(Inside::Prefix(host(3), 32), 3)];
        let gone = IpAddr::from([198, 18, 0, 9]);
        let removed = Removed { prefixes: Vec::new(), remotes: vec![gone] };
        let listeners = [ListenerConfig { encap: peers[0].encap }];
        let mut table = Table::new(1, &listeners, &peers, &removed, [2, 0, 0, 0, 0, 1], Key([1, 2])).unwrap();
        let known = IpAddr::from([198, 18, 0, 2]);
        let unknown = IpAddr::from([198, 18, 0, 8]);
        // Each address after each other one, and after itself.
        for (destination, source, outer) in [
            (host(2), host(3), known),
            (host(2), host(3), known),
            (host(3), host(2), gone),
            (host(4), host(4), gone),
            (host(4), host(2), unknown),
            (host(2), host(2), known),
        ] {
            let expected =
                |address: IpAddr| [(host(2), 0), (host(3), 1)].iter().find(|(a, _)| *a == address).map(|(_, at)| *at);
            assert_eq!(table.destination(destination), expected(destination), "{destination}");
            assert_eq!(table.source(source), expected(source), "{source}");
            let sender = match outer {
                outer if outer == known => Sender::Peer,
                outer if outer == gone => Sender::Removed,
                _ => Sender::Unknown,
            };
            assert_eq!(table.sender(outer), sender, "{outer}");
        }
    }
}
