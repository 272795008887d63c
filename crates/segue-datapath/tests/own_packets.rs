//! Tests of a tunnel between whose two hosts other datagrams pass too, and whose own come back to it.

mod memory;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use memory::{Carries, Memory, Wire, counter, in_both_forms, parts};
use segue::encap::{Carrier, Config, Mode, OuterCsum};
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::{Outside, Tunnel};
use segue_testkit::build::{Ip, L4, Packet, Udp, V4};
use segue_testkit::fragment::fragments;

/// MTU of the tunnel's interface, and of the path to the other end where that leads back into it.
const MTU: usize = 1400;
/// Port of the tunnel.
const PORT: u16 = 6080;

/// A tunnel from 198.18.0.1 to 198.18.0.2 between two ports in memory.
struct Bench {
    tunnel: Tunnel,
    inside: Rc<RefCell<Wire>>,
    outside: Rc<RefCell<Wire>>,
}

impl Bench {
    fn new() -> Bench {
        let [local, remote] = [1, 2].map(|host| IpAddr::from([198, 18, 0, host]));
        let (port, inside) = Memory::port(Carries::Ip, Limits::NONE);
        let parts = parts("sg0", port, Config::new(Mode::Ip, Carrier::Gue { remcsum: false }, local, remote));
        let (port, outside) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
        outside.borrow_mut().path_mtu = Some(MTU);
        let (name, csum, key) = ("udp".to_owned(), OuterCsum::Verified, Key([1, 2]));
        let outer = Outside { name, port, csum, budget: 64, pages: 256, key, tunnels: None };
        Bench { tunnel: Tunnel::new(outer, vec![parts]), inside, outside }
    }

    /// Returns the datagrams in which these packets leave.
    fn send(&mut self, packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.inside.borrow_mut().waiting.extend(packets);
        while self.tunnel.round(Nanos(1)).unwrap() == Round::More {}
        std::mem::take(&mut self.outside.borrow_mut().sent)
    }

    /// Returns the number of packets that were dropped as the tunnel's own.
    fn refused(&self) -> u64 {
        counter(&self.tunnel, "sg0", Group::Drops, "loop")
    }
}

/// Returns a datagram in packets from a host of the net 198.18.`net`.0 to another one, as they leave by a link of
/// [`MTU`].
fn packets(net: u8, dst_port: u16, data: Vec<u8>) -> Vec<Vec<u8>> {
    let l4 = L4::Udp(Udp { src_port: 50_000, dst_port, checksum: true });
    let ip = Ip::V4(V4 { df: false, ..V4::new(net, 1, 2) });
    fragments(&Packet { ip, l4, data }.bytes(), MTU, 0)
}

#[test]
fn all_fragments_of_other_datagrams_between_the_two_hosts_pass() {
    in_both_forms(|| {
        let mut bench = Bench::new();
        let other = packets(0, 53, vec![7; 3000]);
        let sent = bench.send(other.clone());
        assert_eq!((other.len(), bench.refused()), (3, 0));
        // The header of GUE is in front.
        assert_eq!(sent.iter().map(|datagram| &datagram[4..]).collect::<Vec<_>>(), other);
    });
}

#[test]
fn a_packet_that_was_cut_ends_after_three_turns() {
    in_both_forms(|| {
        let mut bench = Bench::new();
        // As long as the interface allows: with the headers around it, it is cut, and the rest has no port.
        let mut turns = vec![packets(1, 53, vec![7; MTU - 28])];
        while let Some(last) = turns.last().filter(|last| !last.is_empty() && turns.len() < 10) {
            let sent = bench.send(last.clone());
            turns.push(sent.into_iter().flat_map(|datagram| packets(0, PORT, datagram)).collect());
        }
        assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1, 0]);
        assert_eq!(bench.refused(), 2, "the first part, and what the rest was sent in");
    });
}
