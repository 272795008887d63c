//! The set-up of most benches: a sender and a receiver with a processor each, a wire between them, and perhaps a
//! gateway in front of the one under test.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::bed;
use super::site::Site;
use crate::{Cpu, Family, Host, LabError, Peer, Process, reach};

/// Name of the TAP that the tested machine's stack uses behind a gateway.
pub(super) const TAP: &str = "eth0";

/// Machine under test, which has the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tested {
    Sender,
    Receiver,
}

/// Configuration of the pair of machines.
pub(super) struct Form {
    pub(super) tested: Tested,
    /// Whether the tested machine's stack is behind a gateway.
    pub(super) gateway: bool,
    /// MTUs of the sender's and the receiver's card in bytes.
    pub(super) mtus: (u32, u32),
    /// Rate limit towards the receiver, in the syntax of `tc`.
    pub(super) rate: Option<&'static str>,
    /// Whether the receiver's card has verified the checksums.
    pub(super) verified: bool,
    /// Address family of the load.
    pub(super) family: Family,
    /// Additional features of the tested card, as ethtool names them.
    pub(super) card: &'static [&'static str],
}

/// Two machines connected by a wire. The sender is [`Peer::A`].
pub(super) struct Pair {
    pub(super) sender: Host,
    pub(super) receiver: Host,
    /// Host of the tested machine's card, if the machine's stack is in another host behind a gateway.
    gateway: Option<Host>,
    /// The cards of the sender and the receiver.
    pub(super) cards: [String; 2],
    /// Host that stands for the wire between them.
    pub(super) wire: Host,
    tested: Tested,
    family: Family,
}

impl Pair {
    /// Makes hosts, cards and wire, without addresses.
    pub(super) fn new(site: &Site, form: &Form) -> Result<Pair, LabError> {
        let (load, test) = (Cpu::on_core(site.load_core, None)?, Cpu::on_core(site.test_core, site.quota)?);
        let (load, test) = (Arc::new(load), Arc::new(test));
        let (at_sender, at_receiver) = match form.tested {
            Tested::Sender => (&test, &load),
            Tested::Receiver => (&load, &test),
        };
        let stack = match form.family {
            Family::V4 => bed::host,
            Family::V6 => bed::host_with_ipv6,
        };
        let (sender, receiver) = (stack("sender", at_sender)?, stack("receiver", at_receiver)?);
        let gateway = if form.gateway { Some(bed::host("gateway", &test)?) } else { None };
        let outside = |tested, own| gateway.as_ref().filter(|_| form.tested == tested).unwrap_or(own);
        let cards = [bed::unique_name(), bed::unique_name()];
        let features = [&["gro", "off"], form.card].concat();
        let card = |end, own, name, mtu, cpu: &Cpu| {
            let features = if end == form.tested { &features[..] } else { &["gro", "off"] };
            bed::Card { host: outside(end, own), name, mtu, features, core: cpu.core().unwrap_or_default() }
        };
        let ends = [
            &card(Tested::Sender, &sender, &cards[0], form.mtus.0, at_sender),
            &card(Tested::Receiver, &receiver, &cards[1], form.mtus.1, at_receiver),
        ];
        let wire = bed::wire("wire", &load, form.mtus.0, if form.verified { "on" } else { "off" }, ends)?;
        if let Some(rate) = form.rate {
            bed::shape(&wire, bed::FAR, rate)?;
        }
        Ok(Pair { sender, receiver, gateway, cards, wire, tested: form.tested, family: form.family })
    }

    /// Returns the host and the name of the tested machine's card.
    pub(super) fn tested_card(&self) -> (&Host, &str) {
        let (stack, card) = self.tested_stack();
        (self.gateway.as_ref().unwrap_or(stack), card)
    }

    fn tested_stack(&self) -> (&Host, &str) {
        match self.tested {
            Tested::Sender => (&self.sender, &self.cards[0]),
            Tested::Receiver => (&self.receiver, &self.cards[1]),
        }
    }

    /// Starts the gateway if the case has one, sets addresses, and waits until datagrams pass. The returned process is
    /// the gateway's.
    pub(super) fn join(&self, site: &Site, flags: &[String]) -> Result<Option<Process>, LabError> {
        let stack = self.tested_stack().0;
        let gateway = match &self.gateway {
            Some(_) => Some(bed::gateway(&site.segue, self.tested_card(), (stack, TAP), flags)?),
            None => None,
        };
        let device = |tested, card| if self.gateway.is_some() && self.tested == tested { TAP } else { card };
        bed::address(&self.sender, Peer::A, device(Tested::Sender, &self.cards[0]), self.family)?;
        bed::address(&self.receiver, Peer::B, device(Tested::Receiver, &self.cards[1]), self.family)?;
        let from = Peer::A.address(0, self.family);
        reach((&self.sender, from), (&self.receiver, self.to()), Duration::from_secs(5))?;
        Ok(gateway)
    }

    /// Returns the seconds for which the sender's and the receiver's processor have been used so far.
    pub(super) fn cpu_seconds(&self) -> Result<[f64; 2], LabError> {
        bed::cpu_seconds([&self.sender, &self.receiver])
    }

    /// Returns the receiver's address.
    pub(super) fn to(&self) -> IpAddr {
        Peer::B.address(0, self.family)
    }
}
