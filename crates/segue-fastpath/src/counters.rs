//! The counters of the programs, which are per CPU and per tunnel.

use crate::layout::inbound;

/// One counter of a tunnel, or of the outside port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Counter {
    SentUnits,
    SentBytes,
    SentTrains,
    SentSegments,
    // With a peer table; otherwise what is received is counted at the tunnel's entry of its map.
    ReceivedUnits,
    ReceivedBytes,
    ReceivedTrains,
    ReceivedSegments,
    NoMemory,
    // From here on: packets that were left to the daemon.
    NoRoute,
    DatagramTrain,
    BehindTrain,
    TooBig,
    InnerLength,
    InnerVersion,
    InnerMalformed,
    InnerExtension,
    InnerSource,
    Refused,
    Fragment,
    OuterLength,
    OuterCsum,
    GueHeader,
    GreHeader,
    VxlanHeader,
    GeneveHeader,
    InnerFrame,
    Ecn,
    Forwarded,
    NoTunnel,
    NoPeer,
    PeerByDaemon,
    PeerSource,
    PeerNetwork,
    NotForUs,
}

/// Number of counters of the fast path.
pub(crate) const COUNT: usize = Counter::NotForUs as usize + 1;

/// Counters of packets left to the daemon, with their names and meanings.
pub(crate) const LEFT: &[(Counter, &str, &str)] = &[
    (Counter::NoRoute, "no_route", "No route to the remote."),
    (Counter::DatagramTrain, "datagram_train", "A train of datagrams, which is many packets."),
    (
        Counter::BehindTrain,
        "behind_train",
        "A packet of a flow of which others were left, such as trains: it would overtake them.",
    ),
    (Counter::TooBig, "too_big", "Larger than the path MTU."),
    (Counter::InnerLength, "inner_length", "A length that contradicts the IP header to be sent."),
    (Counter::InnerVersion, "inner_version", "An IP version that the tunnel does not carry."),
    (Counter::InnerMalformed, "inner_malformed", "No whole inner IP header."),
    (Counter::InnerExtension, "inner_extension", "IPv6 extension headers inside, which the daemon reads."),
    (Counter::InnerSource, "inner_source", "A source address inside that no other host may have."),
    (
        Counter::Refused,
        "refused",
        "Refused by the kernel's helper function, such as a packet that is in a tunnel already.",
    ),
    (Counter::Fragment, "outer_fragment", "A fragment outside."),
    (Counter::OuterLength, "outer_length", "An outer length that is not that of one inner packet and its headers."),
    (Counter::OuterCsum, "outer_csum", "An outer UDP checksum that nothing has verified, or none where one is needed."),
    (Counter::GueHeader, "gue_header", "A GUE header with options or flags, such as remote checksum offload."),
    (Counter::GreHeader, "gre_header", "A GRE header with a checksum, a sequence number or another protocol."),
    (Counter::VxlanHeader, "vxlan_header", "A VXLAN header with other flags, such as remote checksum offload."),
    (Counter::GeneveHeader, "geneve_header", "A Geneve header with options or flags, or of another protocol."),
    (Counter::InnerFrame, "inner_frame", "A frame without IPv4 or IPv6, such as ARP, or with a VLAN tag."),
    (Counter::Ecn, "ecn", "Congestion marks whose combination the daemon judges."),
    (Counter::Forwarded, "forwarded", "An aggregate that is not for this host."),
    (Counter::NoTunnel, "no_tunnel", "No tunnel has this sender and key."),
    (Counter::NoPeer, "no_peer", "No peer of the table has the destination."),
    (Counter::PeerByDaemon, "peer_by_daemon", "To or from a peer whose entry asks for what only the daemon does."),
    (Counter::PeerSource, "peer_source", "A sender inside that the peer table does not give to the sender outside."),
    (Counter::PeerNetwork, "peer_network", "A network identifier that the peer table does not give to the sender."),
    (Counter::NotForUs, "not_for_us", "A frame whose Ethernet destination is not this end of the tunnel."),
];

/// Packets of one direction that the programs forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of units: a train counts as one, and so does a single packet.
    pub units: u64,
    /// Number of bytes of the inner packets.
    pub bytes: u64,
    /// Number of units that were trains.
    pub trains: u64,
    /// Number of wire-sized packets that the units stand for.
    pub segments: u64,
}

/// The counters of the programs for one tunnel, or for the outside port where no tunnel was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent through the tunnel.
    pub sent: Traffic,
    /// Packets received through the tunnel.
    pub received: Traffic,
    /// Number of packets dropped for lack of memory.
    pub no_memory: u64,
    /// Numbers of packets left to the daemon, by reason; all reasons, in a fixed order.
    pub left: Vec<(&'static str, u64)>,
}

/// Returns the reasons of [`Counts::left`], each with its sentence.
pub fn left_reasons() -> impl Iterator<Item = (&'static str, &'static str)> {
    LEFT.iter().map(|(_, name, sentence)| (*name, *sentence))
}

impl Counts {
    /// Sums the values of all CPUs for the tunnel's counters, and for its entries in the map of tunnels by packet.
    pub(crate) fn sum(values: &[u8], inbound: &[Vec<u8>]) -> Counts {
        let sums = totals::<COUNT>(values.chunks_exact(COUNT * 8));
        let received = inbound.iter().flat_map(|values| values.chunks_exact(inbound::LEN));
        let mut received = totals::<4>(received.map(|value| &value[inbound::RECEIVED as usize..][..32]));
        let of = |counter: Counter| sums[counter as usize];
        let by_table =
            [Counter::ReceivedUnits, Counter::ReceivedBytes, Counter::ReceivedTrains, Counter::ReceivedSegments];
        received.iter_mut().zip(by_table).for_each(|(sum, counter)| *sum = sum.wrapping_add(of(counter)));
        let traffic = |[units, bytes, trains, segments]: [u64; 4]| Traffic { units, bytes, trains, segments };
        Counts {
            sent: traffic([Counter::SentUnits, Counter::SentBytes, Counter::SentTrains, Counter::SentSegments].map(of)),
            received: traffic(received),
            no_memory: of(Counter::NoMemory),
            left: LEFT.iter().map(|(counter, name, _)| (*name, of(*counter))).collect(),
        }
    }
}

/// Returns the sums of the 64-bit numbers of each CPU.
pub(crate) fn totals<'a, const N: usize>(cpus: impl Iterator<Item = &'a [u8]>) -> [u64; N] {
    let mut sums = [0_u64; N];
    for cpu in cpus {
        for (sum, word) in sums.iter_mut().zip(cpu.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_one_name_and_every_cpu_counts() {
        let mut values = vec![0; 2 * COUNT * 8];
        for cpu in 0..2 {
            let at = (cpu * COUNT + Counter::TooBig as usize) * 8;
            values[at..at + 8].copy_from_slice(&(cpu as u64 + 1).to_ne_bytes());
        }
        let mut entry = vec![0; 2 * inbound::LEN];
        for cpu in 0..2 {
            let at = cpu * inbound::LEN + inbound::RECEIVED as usize + 8;
            entry[at..at + 8].copy_from_slice(&(cpu as u64 + 20).to_ne_bytes());
        }
        let counts = Counts::sum(&values, &[entry.clone(), entry]);
        assert_eq!(counts.received, Traffic { bytes: 82, ..Traffic::default() });
        assert_eq!(counts.left.iter().find(|(name, _)| *name == "too_big"), Some(&("too_big", 3)));
        assert_eq!(counts.left.iter().map(|(_, count)| count).sum::<u64>(), 3);
        let first = Counter::NoRoute as usize;
        let order: Vec<usize> = LEFT.iter().map(|(counter, _, _)| *counter as usize).collect();
        assert_eq!(order, (first..COUNT).collect::<Vec<_>>());
    }
}
