//! Tests of a tunnel of Ethernet frames with several remotes.

mod memory;

use std::net::IpAddr;

use memory::{Carries, Memory, counter, in_both_forms, parts};
use segue::encap::{Carrier, Config, Fdb, Mode, OuterCsum};
use segue::gso::Limits;
use segue::hash::Key;
use segue::time::Nanos;
use segue_datapath::board::Group;
use segue_datapath::pipeline::{Pipeline, Round};
use segue_datapath::tunnel::{Outside, Parts, Tunnel};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow::Sender;

/// Link addresses of stations, one behind each remote.
const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];
const KEY: Key = Key([1, 2]);

#[test]
fn a_narrow_path_to_one_remote_is_none_to_the_others() {
    in_both_forms(|| {
        let [local, near, far] = [1, 2, 3].map(|host| IpAddr::from([198, 18, 0, host]));
        let carrier = Carrier::Vxlan { vni: 5, remcsum: false, takes_remcsum: false };
        let (inside, here) = Memory::port(Carries::Ethernet, Limits::NONE);
        let parts = Parts {
            remotes: vec![near, far],
            fdb: Some(Fdb::new(KEY, 0, 100, &[(STATIONS[0], 0), (STATIONS[1], 1)])),
            flood: vec![0, 1],
            ..parts("sg0", inside, Config::new(Mode::Ethernet, carrier, local, near))
        };
        let (port, there) = Memory::port(Carries::Datagrams, Limits { outer_csum: true, ..Limits::NONE });
        there.borrow_mut().path_mtus.insert(1, 600);
        let (name, csum) = ("udp".to_owned(), OuterCsum::Verified);
        let outside = Outside { name, port, csum, budget: 64, pages: 256, key: KEY, tunnels: None };
        let mut tunnel = Tunnel::new(outside, vec![parts]);

        // With DF.
        let packet = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 0, 1000, Vec::new()).send(1000, 0).bytes();
        let frame = |to: [u8; 6]| [&to[..], &[2, 0, 0, 0, 0, 1, 8, 0], &packet].concat();
        here.borrow_mut().waiting.extend([STATIONS[0], STATIONS[1], [0xff; 6]].map(frame));
        while tunnel.round(Nanos(1)).unwrap() == Round::More {}
        assert_eq!(there.borrow().sent_to, [0], "to the wide one alone");
        assert_eq!(counter(&tunnel, "udp", Group::Drops, "path_mtu"), 2, "to the narrow one, and to both");
        let told = &here.borrow().sent;
        assert_eq!((told.len(), &told[0][6..12]), (1, &STATIONS[1][..]), "none about a frame to a group");
    });
}
