//! The state of a router, the parts it is made of, and its knobs.

use std::net::Ipv4Addr;

use segue::gro;
use segue::gso::Frames;
use segue::hash::Key;
use segue::packet::Packet;
use segue::time::Nanos;
use segue_port::{MIN_PAGE_LEN, Page, PagePool};

use super::feed::Feed;
use super::fragment_queue::{self, FragmentQueue};
use super::neighbour_cache::MAX_LINKS;
use super::resolver::{self, Resolver};
use super::source_check::{self, SourceCheck};
use super::stats::Stats;
use super::tables::InterfaceAddrs;
use crate::endpoint::reply_pages;
use crate::forward::{Forwarder, Verdict};
use crate::group::Reads;
use crate::icmp::ErrorLimits;
use crate::knobs::{Dial, Knob, Knobs, Values};
use crate::nat::{self, Nat};
use crate::port_pair::{self, Crossing, PortConfig, PortPair};
use crate::route::{Neighbours, Routes};

/// Index of the port on the outside of a NAT.
pub const OUTSIDE: usize = 1;
/// Ingress number of packets that the router itself creates, such as ICMP errors.
pub(super) const HERE: u16 = 2;
/// Largest number of NAT mappings that the knobs allow: more than there are ports for three protocols.
const MOST_MAPPINGS: u64 = 1 << 18;
/// Largest number of short pages for headers that the NAT has changed, of 4 KiB each: those of some rounds.
const MOST_HEADERS: usize = 1024;

/// Parts that a router is made of.
pub struct Parts {
    /// The two ports; the second one is the outside of a NAT.
    pub ports: [PortConfig; 2],
    /// Largest number of frames taken from one port in one round: the initial weight of both.
    pub budget: usize,
    /// Pages that received packets are read into.
    pub pages: PagePool,
    /// Source of the kernel's tables. Nothing is forwarded before the first ones have come.
    pub feed: Feed,
    /// IPv4 translator and its outside address, which must not be an address of the host.
    pub nat: Option<(Nat, Ipv4Addr)>,
    /// Random key for hashes and for the identification of fragments.
    pub key: Key,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

pub(super) type Boxed = Box<Packet<Page>>;

/// The pipeline of a router between two ports.
pub struct Router {
    pub(super) pair: PortPair,
    pub(super) feed: Feed,
    pub(super) forwarder: Forwarder,
    /// Whether routes are looked up once per packet group, see [`group`](crate::group).
    pub(super) by_groups: bool,
    pub(super) addrs: [InterfaceAddrs; 2],
    pub(super) resolver: Resolver,
    pub(super) nat: Option<(Nat, Ipv4Addr)>,
    pub(super) fragments: FragmentQueue,
    /// Limits of the errors about packets of each port.
    pub(super) limits: [ErrorLimits; 2],
    pub(super) source_check: SourceCheck,
    pub(super) nat_limits: NatLimits,
    pub(super) next_tick: Nanos,
    /// Number of announcements of the outside address still to be sent.
    pub(super) announcements: u8,
    /// Time of the next announcement.
    pub(super) next_announcement: Nanos,
    /// Time from which the outside address may be announced against another host that has it too.
    pub(super) next_defence: Nanos,
    /// Whether the kernel has the outside address itself.
    pub(super) is_outside_local: bool,
    /// End of the time for which another host with the outside address is shown.
    pub(super) conflict_until: Option<Nanos>,
    pub(super) batch: Vec<Boxed>,
    pub(super) verdicts: Vec<Verdict>,
    /// Memory for packets that wait for neighbours, by family. None of them must occupy a buffer that others are
    /// received into, which is as long as many packets.
    pub(super) held_pages: [PagePool; 2],
    /// Memory for fragments that wait for the first one of their datagram.
    pub(super) fragment_pages: PagePool,
    /// Memory for headers in payloads that the NAT has changed: those of ICMP messages and of first fragments. Such a
    /// header has some ten bytes, and must not take a page that packets are received into.
    pub(super) header_pages: PagePool,
    /// Memory for ICMP errors.
    pub(super) error_pages: PagePool,
    /// Memory for messages to neighbours, by port: each has a page until it is sent.
    pub(super) message_pages: [PagePool; 2],
    /// Number of messages that were queued for each port since it is blocked.
    pub(super) late: [usize; 2],
    /// Packets created by the router itself that are still to be routed.
    pub(super) made: Vec<Boxed>,
    pub(super) scratch: Frames,
    pub(super) stats: [Stats; 2],
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.pair.ends.each_ref().map(|end| &end.name);
        f.debug_struct("Router").field("ends", &names).finish_non_exhaustive()
    }
}

/// Returns the knobs of a router between the named ports, before it is created; `budget` as in [`Parts`].
pub fn knobs(names: [&str; 2], gro: [Option<gro::Config>; 2], budget: usize, has_nat: bool) -> Knobs {
    port_pair::knobs(names, gro, budget, |dial| {
        tune_groups(dial, &mut true);
        tune_source_check(dial, &mut SourceCheck::new(0).mode);
        if has_nat {
            NatLimits::default().tune(dial);
        }
    })
}

pub(super) fn tune_source_check(dial: &mut Dial<'_>, mode: &mut u64) {
    let help = "sources: strict, from IN those routed back there, from OUT those not routed elsewhere; loose, from IN \
                those with a route; inside, from IN as strict, from OUT all";
    let values = Values::Names(source_check::MODES);
    dial.number(|| Knob { values, ..Knob::switch("net.route.source_check", help) }, mode);
}

/// Limits of the NAT's table, set by knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NatLimits {
    most: u64,
    most_per_host: u64,
}

impl Default for NatLimits {
    fn default() -> Self {
        let nat::Config { most, most_per_host, .. } = nat::Config::new(Ipv4Addr::UNSPECIFIED, 0);
        NatLimits { most: most as u64, most_per_host: most_per_host as u64 }
    }
}

impl NatLimits {
    pub(super) fn tune(&mut self, dial: &mut Dial<'_>) {
        let number = |name: &str, help| Knob::number(format!("net.nat.{name}"), (1, MOST_MAPPINGS), "mappings", help);
        dial.number(|| number("max_mappings", "most mappings of all hosts together"), &mut self.most);
        dial.number(|| number("max_mappings_per_host", "most mappings of one inside host"), &mut self.most_per_host);
    }

    pub(super) fn apply(self, nat: &mut Nat) {
        nat.limit(self.most as usize, self.most_per_host as usize);
    }
}

pub(super) fn tune_groups(dial: &mut Dial<'_>, by_groups: &mut bool) {
    let help = "packets of one poll with the same destination are looked up once; 0 looks up each";
    dial.switch(|| Knob::switch("net.route.groups", help), by_groups);
}

impl Router {
    /// Creates a router between two ports.
    pub fn new(parts: Parts) -> Router {
        let Key([seed, _]) = parts.key;
        let mut pair = PortPair::new(parts.ports, parts.budget, parts.pages, Crossing::Both);
        pair.ends.iter_mut().for_each(|end| end.number_fragments(parts.key));
        Router {
            pair,
            feed: parts.feed,
            forwarder: Forwarder::new(Routes::new(0), Neighbours::new(MAX_LINKS), Reads::default(), seed),
            by_groups: true,
            addrs: Default::default(),
            resolver: Resolver::new(parts.key),
            nat: parts.nat,
            fragments: FragmentQueue::default(),
            limits: [(); 2].map(|()| ErrorLimits::new(parts.key, Nanos(0))),
            source_check: SourceCheck::new(seed),
            nat_limits: NatLimits::default(),
            next_tick: Nanos(0),
            announcements: 0,
            next_announcement: Nanos(0),
            next_defence: Nanos(0),
            is_outside_local: false,
            conflict_until: None,
            batch: Vec::new(),
            verdicts: Vec::new(),
            held_pages: [(); 2].map(|()| PagePool::with_page_len(resolver::MAX_PAGES, MIN_PAGE_LEN)),
            fragment_pages: PagePool::with_page_len(fragment_queue::MAX_PAGES, MIN_PAGE_LEN),
            header_pages: PagePool::with_page_len(MOST_HEADERS, MIN_PAGE_LEN),
            error_pages: reply_pages(),
            message_pages: [(); 2].map(|()| reply_pages()),
            late: [0; 2],
            made: Vec::new(),
            scratch: Frames::default(),
            stats: Default::default(),
        }
    }
}
