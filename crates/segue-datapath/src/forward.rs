//! The forwarding step of a router: it decides on each packet of a batch, and rewrites the packets to send.
//!
//! There is one route lookup for each [group], and one neighbour lookup for each next hop that groups have in common. A
//! train is rewritten once: its hop limit is decremented and its link header replaced. The MTU is compared with the
//! longest segment of a train.

use std::net::{Ipv4Addr, Ipv6Addr};

use segue::checksum::Field;
use segue::packet::{Kind, Packet, Unit};
use segue::wire::address::{is_forwardable_v4, is_forwardable_v6};
use segue::wire::{ethernet, ethertype, ipv4, ipv6, read_u16, write_u16};

use crate::group::{self, GroupKey, Grouper, Reads};
use crate::route::{Action, Hop, Link, Neighbours, Routes};

segue::reasons! {
    /// Reason why a packet was not forwarded.
    pub enum DropReason {
        NotIp = "route_not_ip": "The packet is not IP.",
        Source = "route_source": "The source is loopback, multicast, link-local, unspecified or reserved.",
        Own = "route_own_source": "The source is an address of this router.",
        ReversePath = "route_reverse_path": "From inside, the source is not routed back there; from outside, it is routed to another side or is this host's.",
        Scope = "route_scope": "The destination is loopback, multicast, link-local, unspecified or reserved.",
        NoRoute = "route_none": "There is no route to the destination.",
        Blackhole = "route_blackhole": "The route is of type blackhole: the packet is dropped silently.",
        Unreachable = "route_unreachable": "The route is of type unreachable.",
        Prohibited = "route_prohibited": "The route is of type prohibit.",
        Encapsulated = "route_encapsulated": "The route encapsulates packets (encap), which is not supported.",
        HopLimit = "route_hop_limit": "The hop limit (TTL) is exceeded.",
        TooBig = "route_too_big": "The packet, or a segment of it, exceeds the next-hop MTU and must not be fragmented.",
        NoNeighbour = "route_no_neighbour": "The link address of the next hop could not be resolved.",
        NoRoom = "route_no_room": "The buffer has no room for the new link header.",
        Blocked = "route_blocked": "The port takes no packets at the moment, and the packet is none that it holds back at the other port.",
    }
}

/// The result of the decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet leaves by this port unchanged, or in fragments where it exceeds the MTU
    /// ([`segue::gso::Fragment::Router`]).
    Send {
        /// Index of the egress port.
        port: u16,
        /// MTU of the path, counted from the outermost IP header on, bytes.
        mtu: u32,
    },
    /// The packet is for this host.
    Local,
    /// The packet is dropped for a reason. [`icmp`](crate::icmp) says for which reasons an error is sent; `mtu` goes
    /// with [`DropReason::TooBig`].
    Drop {
        /// The reason for the drop.
        reason: DropReason,
        /// The next-hop MTU for an ICMP error, or 0.
        mtu: u32,
    },
}

/// Counters of the forwarder's table lookups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Number of batches processed.
    pub batches: u64,
    /// Number of packets processed, a train counting one.
    pub packets: u64,
    /// Number of packet groups.
    pub groups: u64,
    /// Number of route lookups.
    pub routes: u64,
    /// Number of neighbour lookups.
    pub neighbours: u64,
}

/// The decision for a group of packets.
#[derive(Clone, Copy, Debug)]
enum RouteDecision {
    Hop { hop: u32, mtu: u32 },
    Local,
    Drop(DropReason),
}

/// The forwarding step, which decides on packets and rewrites them. It reuses its memory between batches.
#[derive(Debug)]
pub struct Forwarder {
    /// Routing tables of both families.
    pub routes: Routes,
    /// Link addresses of neighbours.
    pub neighbours: Neighbours,
    reads: Reads,
    grouper: Grouper,
    decisions: Vec<RouteDecision>,
    hops: Vec<NextHop>,
    places: group::Places,
    lookups: Lookups,
}

/// A next hop of a batch.
#[derive(Clone, Copy, Debug)]
struct NextHop {
    hop: Hop,
    link_header: Option<LinkHeader>,
    /// Whether a packet of the batch is sent to this next hop.
    is_used: bool,
}

impl NextHop {
    fn new(hop: Hop, neighbours: &Neighbours) -> NextHop {
        NextHop { hop, link_header: neighbours.lookup(&hop).map(LinkHeader::new), is_used: false }
    }

    /// Rewrites a packet for this next hop.
    #[inline]
    fn pass<B: AsRef<[u8]>>(&mut self, packet: &mut Packet<B>, mtu: u32) -> Verdict {
        let verdict = pass(packet, self.hop.port, mtu, self.link_header.as_ref());
        self.is_used |= matches!(verdict, Verdict::Send { .. });
        verdict
    }
}

/// Link header of packets to a next hop: none, or an Ethernet header for each IP version.
#[derive(Clone, Copy, Debug)]
enum LinkHeader {
    Bare,
    Ethernet([[u8; ethernet::LEN]; 2]),
}

impl LinkHeader {
    fn new(link: Link) -> LinkHeader {
        match link {
            Link::Bare => LinkHeader::Bare,
            Link::Ethernet { to, from } => {
                LinkHeader::Ethernet([ethertype::IPV6, ethertype::IPV4].map(|kind| ethernet::header(to, from, kind)))
            }
        }
    }
}

impl Forwarder {
    /// Creates a forwarder with the given routing and neighbour tables. `seed` should be random: it decides about
    /// collisions in the hash tables of a batch.
    pub fn new(routes: Routes, neighbours: Neighbours, reads: Reads, seed: u64) -> Forwarder {
        Forwarder {
            routes,
            neighbours,
            reads,
            grouper: Grouper::new(reads, seed),
            decisions: Vec::new(),
            hops: Vec::new(),
            places: group::Places::new(seed),
            lookups: Lookups::default(),
        }
    }

    /// Returns the counters of lookups.
    pub fn lookups(&self) -> Lookups {
        self.lookups
    }

    /// Returns the next hops to which packets of the last batch are sent; each once if packets were looked up by
    /// groups.
    pub fn used(&self) -> impl Iterator<Item = &Hop> {
        self.hops.iter().filter(|next| next.is_used).map(|next| &next.hop)
    }

    /// Returns the next hop of a packet that was not forwarded. The lookup is not counted.
    pub fn next_hop<B: AsRef<[u8]>>(&self, ingress: u16, packet: &Packet<B>) -> Option<Hop> {
        let key = group::key(packet, ingress, self.reads)?;
        decide(&self.routes, &key).ok().map(|(hop, _)| hop)
    }

    /// Returns whether a packet is for this host. The lookup is not counted.
    pub fn is_local<B: AsRef<[u8]>>(&self, ingress: u16, packet: &Packet<B>) -> bool {
        group::key(packet, ingress, self.reads)
            .is_some_and(|key| matches!(decide(&self.routes, &key), Err(RouteDecision::Local)))
    }

    /// Routes a batch received on `ingress`, and rewrites the packets to send. One verdict for each packet is appended
    /// to `verdicts`, in their order.
    pub fn batch<B: AsRef<[u8]>, P: AsMut<Packet<B>> + AsRef<Packet<B>>>(
        &mut self,
        ingress: u16,
        packets: &mut [P],
        verdicts: &mut Vec<Verdict>,
    ) {
        self.grouper.gather(ingress, packets.iter().map(AsRef::as_ref));
        self.decisions.clear();
        self.hops.clear();
        self.places.begin(self.grouper.groups().len());
        for group in self.grouper.groups() {
            self.lookups.routes += 1;
            let decision = match decide(&self.routes, &group.key) {
                Err(decision) => decision,
                Ok((hop, mtu)) => {
                    let (hops, neighbours, looks) = (&mut self.hops, &self.neighbours, &mut self.lookups.neighbours);
                    let hash = self.places.hash(hop.address, u64::from(hop.port) << 1 | u64::from(hop.is_v4));
                    let found = self.places.find(hash, hops.len() as u32, |index| hops[index as usize].hop == hop);
                    if found as usize == hops.len() {
                        *looks += 1;
                        hops.push(NextHop::new(hop, neighbours));
                    }
                    RouteDecision::Hop { hop: found, mtu }
                }
            };
            self.decisions.push(decision);
        }
        self.lookups.groups += self.grouper.groups().len() as u64;
        self.lookups.packets += packets.len() as u64;
        self.lookups.batches += 1;
        verdicts.reserve(packets.len());
        for (index, packet) in packets.iter_mut().enumerate() {
            let verdict = match self.grouper.group_of(index).map(|group| self.decisions[group]) {
                None => Verdict::Drop { reason: DropReason::NotIp, mtu: 0 },
                Some(RouteDecision::Local) => Verdict::Local,
                Some(RouteDecision::Drop(reason)) => Verdict::Drop { reason, mtu: 0 },
                Some(RouteDecision::Hop { hop, mtu }) => self.hops[hop as usize].pass(packet.as_mut(), mtu),
            };
            verdicts.push(verdict);
        }
    }

    /// Forwards a batch like [`Forwarder::batch`] with one lookup for each packet, as a baseline for measurements.
    pub fn one_by_one<B: AsRef<[u8]>, P: AsMut<Packet<B>> + AsRef<Packet<B>>>(
        &mut self,
        ingress: u16,
        packets: &mut [P],
        verdicts: &mut Vec<Verdict>,
    ) {
        verdicts.reserve(packets.len());
        self.hops.clear();
        self.lookups.batches += 1;
        for packet in packets {
            self.lookups.packets += 1;
            let verdict = match group::key(packet.as_ref(), ingress, self.reads) {
                None => Verdict::Drop { reason: DropReason::NotIp, mtu: 0 },
                Some(key) => {
                    self.lookups.routes += 1;
                    match decide(&self.routes, &key) {
                        Err(RouteDecision::Drop(reason)) => Verdict::Drop { reason, mtu: 0 },
                        Err(_) => Verdict::Local,
                        Ok((hop, mtu)) => {
                            self.lookups.neighbours += 1;
                            let mut next = NextHop::new(hop, &self.neighbours);
                            let verdict = next.pass(packet.as_mut(), mtu);
                            self.hops.push(next);
                            verdict
                        }
                    }
                }
            };
            verdicts.push(verdict);
        }
    }
}

/// Looks up the route for packets with the given key.
#[inline]
fn decide(routes: &Routes, key: &GroupKey) -> Result<(Hop, u32), RouteDecision> {
    if !is_reachable(key) {
        return Err(RouteDecision::Drop(DropReason::Scope));
    }
    match routes.lookup(key.destination, key.is_v4) {
        Some(Action::Forward { port, via, mtu }) => Ok((Hop::new(port, via, key.destination, key.is_v4), mtu)),
        Some(Action::Local) => Err(RouteDecision::Local),
        Some(Action::Blackhole) => Err(RouteDecision::Drop(DropReason::Blackhole)),
        Some(Action::Unreachable) => Err(RouteDecision::Drop(DropReason::Unreachable)),
        Some(Action::Prohibited) => Err(RouteDecision::Drop(DropReason::Prohibited)),
        Some(Action::Encapsulated) => Err(RouteDecision::Drop(DropReason::Encapsulated)),
        Some(Action::Throw) | None => Err(RouteDecision::Drop(DropReason::NoRoute)),
    }
}

/// Returns whether a router may forward to the destination (RFC 1812, sections 4.2.2.11 and 5.3.4; RFC 4291, sections
/// 2.5 and 2.7).
fn is_reachable(key: &GroupKey) -> bool {
    if key.is_v4 {
        is_forwardable_v4(Ipv4Addr::from_bits(key.destination as u32))
    } else {
        is_forwardable_v6(Ipv6Addr::from_bits(key.destination))
    }
}

/// Rewrites a packet for its next hop. It is unchanged unless it is sent.
#[inline]
fn pass<B: AsRef<[u8]>>(packet: &mut Packet<B>, port: u16, mtu: u32, link_header: Option<&LinkHeader>) -> Verdict {
    let drop = |reason| Verdict::Drop { reason, mtu: if reason == DropReason::TooBig { mtu } else { 0 } };
    let Some(ip) = packet.layout.outer_ip().copied() else {
        return drop(DropReason::NotIp);
    };
    let (at, is_v4) = (ip.start(), ip.kind == Kind::Ipv4);
    let longest = longest(packet, at);
    let Some(header) = packet.head.bytes_mut().get_mut(at..ip.end()) else { return drop(DropReason::NotIp) };
    let is_sent_from_here = if is_v4 {
        ipv4::source(header).is_some_and(is_forwardable_v4)
    } else {
        ipv6::source(header).is_some_and(is_forwardable_v6)
    };
    if !is_sent_from_here {
        return drop(DropReason::Source);
    }
    let ttl_at = if is_v4 { ipv4::TTL } else { ipv6::HOP_LIMIT };
    if header[ttl_at] <= 1 {
        return drop(DropReason::HopLimit);
    }
    if longest > mtu as usize {
        // A train without DF is split in front of the port, and its packets are fragmented there.
        let is_cut = is_v4 && read_u16(header, ipv4::FRAGMENT).is_some_and(|word| word & ipv4::DF == 0);
        if !is_cut {
            return drop(DropReason::TooBig);
        }
    }
    let Some(link_header) = link_header else { return drop(DropReason::NoNeighbour) };
    let is_linked = match link_header {
        LinkHeader::Bare => packet.relink(None),
        LinkHeader::Ethernet(headers) => packet.relink(Some(&headers[usize::from(is_v4)])),
    };
    if !is_linked {
        return drop(DropReason::NoRoom);
    }
    let at = if matches!(link_header, LinkHeader::Bare) { 0 } else { ethernet::LEN };
    let header = &mut packet.head.bytes_mut()[at..];
    if is_v4 {
        // TTL and protocol are one 16-bit word of the checksum (RFC 1624).
        let old = read_u16(header, ipv4::TTL).unwrap_or(0);
        let field = Field::from_wire(read_u16(header, ipv4::CHECKSUM).unwrap_or(0));
        write_u16(header, ipv4::TTL, old - 0x100);
        write_u16(header, ipv4::CHECKSUM, field.update(old, old - 0x100).value());
    } else {
        header[ipv6::HOP_LIMIT] -= 1;
    }
    Verdict::Send { port, mtu }
}

/// Returns the length of the longest packet for this next hop, in bytes from the IP header at `at` on.
#[inline]
fn longest<B: AsRef<[u8]>>(packet: &Packet<B>, at: usize) -> usize {
    match packet.offload.unit {
        Unit::Train { gso, .. } => packet.head.len() - at + packet.payload.len().min(usize::from(gso.size)),
        Unit::Whole(_) if packet.layout.is_exact() => packet.len() - at,
        // Bytes behind the outermost packet are cut off, whatever the lengths inside say.
        Unit::Whole(_) => packet.len().min(packet.layout.end().max(packet.head.len())) - at,
    }
}
