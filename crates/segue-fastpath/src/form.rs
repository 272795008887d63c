//! Conversion of the engine's description of a tunnel to the values in the maps that the programs read.

use std::net::{IpAddr, Ipv6Addr};

use segue::encap::{Carrier, Config, Df, Encapsulator, GreOptions, Identity, Mode, Tos, Ttl};
use segue::packet::{Frag, Packet, Start, Tunnels};
use segue::wire::{ethernet, ethertype, ipv4, ipv6, protocol, write_u16};

use crate::layout::{HEADERS_LEN, PORTS, inbound, peer, room, tunnel};
use crate::{egress, receive_form};

/// A direction of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The direction from this host into the tunnel.
    Send,
    /// The direction out of the tunnel to this host.
    Receive,
}

/// Returns the reason why the kernel cannot serve a tunnel in one direction; `None` if it can.
pub fn obstacle(config: &Config, direction: Direction) -> Option<&'static str> {
    if config.mode.is_ethernet() && !is_overlay(config.carrier) {
        return Some("Ethernet frames take this path only in VXLAN and Geneve");
    }
    let gre = config.mode.gre().copied().unwrap_or_default();
    match (direction, gre) {
        (Direction::Send, GreOptions { ocsum: true, .. }) | (Direction::Receive, GreOptions { icsum: true, .. }) => {
            return Some("GRE checksums are computed by the daemon");
        }
        (Direction::Send, GreOptions { oseq: true, .. }) | (Direction::Receive, GreOptions { iseq: true, .. }) => {
            return Some("GRE sequence numbers are counted by the daemon");
        }
        _ => {}
    }
    match (direction, config.carrier) {
        (Direction::Send, Carrier::Gue { remcsum: true } | Carrier::Vxlan { remcsum: true, .. }) => {
            Some("remote checksum offload is done by the daemon")
        }
        (Direction::Send, Carrier::Gue { .. } | Carrier::Fou) if config.csum => {
            Some("outer UDP checksums need the daemon; noencap-csum sends none")
        }
        (Direction::Send, Carrier::Vxlan { .. } | Carrier::Geneve { .. }) if config.csum => {
            Some("outer UDP checksums need the daemon; noudpcsum sends none, over IPv6 udp6zerocsumtx")
        }
        _ => None,
    }
}

/// Returns whether the encapsulation has frames inside and a network identifier.
fn is_overlay(carrier: Carrier) -> bool {
    matches!(carrier, Carrier::Vxlan { .. } | Carrier::Geneve { .. })
}

/// Returns the form of packets received by tunnels with the given configuration; `table` for a listener of a tunnel
/// with a peer table.
pub(crate) fn ingress_form(
    config: &Config,
    abilities: receive_form::Abilities,
    table: Option<receive_form::OfTable>,
) -> receive_form::Form {
    receive_form::Form {
        local: config.local,
        carrier: match config.carrier {
            Carrier::Gue { .. } => receive_form::Carrier::Gue(config.port),
            Carrier::Fou => receive_form::Carrier::Fou(config.port),
            Carrier::Vxlan { .. } => receive_form::Carrier::Vxlan(config.port),
            Carrier::Geneve { .. } => receive_form::Carrier::Geneve(config.port),
            Carrier::Bare => receive_form::Carrier::Bare,
        },
        has_gre: config.mode.gre().is_some(),
        zero_csum6: config.zero_csum6,
        abilities,
        table,
    }
}

/// Returns the form of packets sent by tunnels with the given configuration.
pub(crate) fn egress_form(config: &Config) -> egress::Form {
    egress::Form {
        is_v4: config.local.is_ipv4(),
        has_udp: config.carrier != Carrier::Bare,
        has_frames: is_overlay(config.carrier),
    }
}

/// Returns the IP versions that a tunnel carries.
pub(crate) fn versions(mode: Mode) -> &'static [u8] {
    match mode {
        Mode::Ipip => &[4],
        Mode::Sit => &[6],
        Mode::Ip | Mode::Gre(_) | Mode::Ethernet => &[4, 6],
        Mode::GreTap(_) => &[],
    }
}

/// Returns a minimal inner packet of an IP version, without a transport header, after an Ethernet header where frames
/// are inside.
pub(crate) fn sample(mode: Mode, version: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    if mode.is_ethernet() {
        let kind = if version == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
        bytes.extend(ethernet::header([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], kind));
    }
    bytes.extend(sample_packet(version));
    bytes
}

fn sample_packet(version: u8) -> Vec<u8> {
    if version == 4 {
        let mut bytes = vec![0; ipv4::MIN_LEN];
        bytes[ipv4::VERSION_IHL] = 0x45;
        write_u16(&mut bytes, ipv4::TOTAL_LEN, ipv4::MIN_LEN as u16);
        (bytes[ipv4::TTL], bytes[ipv4::PROTOCOL]) = (64, protocol::NONE);
        bytes[ipv4::SRC].copy_from_slice(&[198, 18, 1, 1]);
        bytes[ipv4::DST].copy_from_slice(&[198, 18, 1, 2]);
        return bytes;
    }
    let mut bytes = vec![0; ipv6::LEN];
    bytes[ipv6::VERSION_CLASS_LABEL] = 0x60;
    (bytes[ipv6::NEXT_HEADER], bytes[ipv6::HOP_LIMIT]) = (protocol::NONE, 64);
    for (place, last) in [(ipv6::SRC, 1), (ipv6::DST, 2)] {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        bytes[place].copy_from_slice(&address.octets());
    }
    bytes
}

/// Returns the headers that the engine's encapsulator puts in front of [`sample`]; `None` if it refuses.
pub(crate) fn headers(config: &Config, version: u8) -> Option<Vec<u8>> {
    let bytes = sample(config.mode, version);
    let start = if config.mode.is_ethernet() { Start::Ethernet } else { Start::Ip };
    let mut packet = Packet::default();
    packet.load(Frag::all(&bytes[..]), start, &Tunnels::NONE);
    Encapsulator::new(*config).ok()?.push(&mut packet).ok()?;
    let mut all = packet.head.bytes().to_vec();
    packet.payload.frags().iter().for_each(|frag| all.extend_from_slice(frag.bytes()));
    all.truncate(all.len().checked_sub(bytes.len())?);
    Some(all)
}

/// The interface and link address by which the packets of a tunnel leave this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface; 0 where there is no route.
    pub link: u32,
    /// MTU of the path, bytes.
    pub mtu: u32,
}

/// Fields of a map entry for a tunnel by interface, other than the tunnel's description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) route: Route,
    /// Index of the tunnel's counters.
    pub(crate) counters: u32,
    /// Address of the interface, or 0 ([`tunnel::ADDRESS`]).
    pub(crate) address: [u8; 6],
}

/// Returns the entry of the map of tunnels by interface; `None` where the engine refuses the configuration.
pub(crate) fn tunnel_value(config: &Config, place: &Place, sources: &[u16]) -> Option<Vec<u8>> {
    value(config, place, sources, None)
}

/// Fields of a map entry for a peer, other than the tunnel's description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerEndpoint {
    /// Ethernet addresses of the peer's and of the local end, where frames are inside.
    pub(crate) stations: [[u8; 6]; 2],
    /// The network identifier that the peer may send.
    pub(crate) network: u32,
    /// Index of the peer's own counters.
    pub(crate) slot: u32,
}

/// Returns the entry of a peer by inner addresses; `None` where the engine refuses the configuration. The packets of
/// the interface have no Ethernet header, so that one is part of the outer headers where frames are inside.
pub(crate) fn peer_value(config: &Config, place: &Place, sources: &[u16], end: &PeerEndpoint) -> Option<Vec<u8>> {
    let [to, from] = end.stations;
    let link = |version| {
        let kind = if version == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
        ethernet::header(to, from, kind)
    };
    let mut value = value(config, place, sources, is_overlay(config.carrier).then_some(&link))?;
    put_end(&mut value, config, end);
    Some(value)
}

/// Returns the entry of a peer that the daemon serves.
pub(crate) fn value_of_daemon(config: &Config, end: &PeerEndpoint) -> Vec<u8> {
    let mut value = vec![0; tunnel::LEN];
    put_end(&mut value, config, end);
    value[tunnel::FLAGS as usize..][..4].copy_from_slice(&tunnel::BY_DAEMON.to_ne_bytes());
    value
}

fn put_end(value: &mut [u8], config: &Config, end: &PeerEndpoint) {
    let mut put = |at: i16, bytes: &[u8]| value[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    match config.remote {
        IpAddr::V4(remote) => put(tunnel::REMOTE, &remote.octets()),
        IpAddr::V6(remote) => put(tunnel::REMOTE, &remote.octets()),
    }
    put(tunnel::NETWORK, &(end.network << 8).to_be_bytes());
    put(tunnel::SLOT, &end.slot.to_ne_bytes());
}

type Link<'a> = &'a dyn Fn(u8) -> [u8; ethernet::LEN];

fn value(config: &Config, place: &Place, sources: &[u16], link: Option<Link<'_>>) -> Option<Vec<u8>> {
    let Place { route, counters, address } = *place;
    let mut value = vec![0; tunnel::LEN];
    let mut put = |at: i16, bytes: &[u8]| value[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    let outer = if config.local.is_ipv4() { room::ENCAP_IPV4 } else { room::ENCAP_IPV6 };
    let inside = match (config.carrier, config.mode.gre()) {
        (Carrier::Bare, None) => 0,
        (Carrier::Bare, Some(_)) => room::ENCAP_GRE,
        _ => room::ENCAP_UDP,
    };
    let frames = if is_overlay(config.carrier) { room::ENCAP_ETHERNET } else { 0 };
    put(tunnel::ROOM, &(room::FIXED_GSO | outer | inside | frames).to_ne_bytes());
    put(tunnel::ADDRESS, &address);
    let mut flags = 0;
    for (version, bit, at) in [(4, tunnel::TAKES_4, tunnel::HEADERS_4), (6, tunnel::TAKES_6, tunnel::HEADERS_6)] {
        if versions(config.mode).contains(&version) {
            flags |= bit;
            let mut headers = headers(config, version)?;
            headers.extend(link.iter().flat_map(|link| link(version)));
            if headers.len() > HEADERS_LEN {
                return None;
            }
            put(at, &headers);
            put(tunnel::HEADER_LEN, &(headers.len() as u32).to_ne_bytes());
        }
    }
    match config.tos {
        Tos::Inherit => flags |= tunnel::INHERITS_TOS,
        Tos::Fixed(tos) => put(tunnel::TOS, &[tos & 0xfc]),
    }
    match config.ttl {
        Ttl::Inherit => flags |= tunnel::INHERITS_TTL,
        Ttl::Fixed(ttl) => put(tunnel::TTL, &[ttl]),
    }
    match config.df {
        Df::Set => flags |= tunnel::SETS_DF,
        Df::Inherit => flags |= tunnel::INHERITS_DF,
        Df::Unset => {}
    }
    put(tunnel::FLAGS, &flags.to_ne_bytes());
    put(tunnel::LINK, &route.link.to_ne_bytes());
    put(tunnel::MTU, &route.mtu.to_ne_bytes());
    put(tunnel::COUNTERS, &counters.to_ne_bytes());
    for (at, source) in (0..PORTS as i16).zip(sources.iter().cycle()) {
        put(tunnel::SOURCES + 2 * at, &source.to_be_bytes());
    }
    Some(value)
}

/// Returns the bytes of an IP address.
pub(crate) fn address(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns the keys by which the packets of a tunnel are found.
pub(crate) fn peer_keys(config: &Config) -> Vec<Vec<u8>> {
    let key = |identity| {
        let (kind, key) = match identity {
            Identity::Protocol(number) => (u32::from(number), 0),
            Identity::Gre(None, _) => (peer::GRE, 0),
            Identity::Gre(Some(key), _) => (peer::GRE_KEY, key),
            // The identifier is in the upper 24 bits of its word.
            Identity::Network(vni) => (peer::NETWORK, vni << 8),
        };
        let mut bytes = Vec::with_capacity(peer::len(config.remote.is_ipv4()));
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(key.to_be_bytes());
        bytes.extend(address(config.remote));
        Some(bytes)
    };
    config.identities().filter_map(key).collect()
}

/// Returns the entry of the map of tunnels by their packets.
pub(crate) fn inbound_value(interface: u32, counters: u32) -> Vec<u8> {
    let mut value = vec![0; inbound::LEN];
    value[inbound::INTERFACE as usize..][..4].copy_from_slice(&interface.to_ne_bytes());
    value[inbound::COUNTERS as usize..][..4].copy_from_slice(&counters.to_ne_bytes());
    value
}
