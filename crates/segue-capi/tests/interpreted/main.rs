//! Tests of every function of the C interface that takes pointers, called from Rust as C would, so that Miri can
//! interpret both sides (`tools/miri`): memory out of bounds, freed or aliased, and leaks end it.

mod sys;

use segue::hash::Key;
use sys::{Joiner, Packet, Splitter, Tunnel};

/// Length of a segment's payload, bytes.
const MSS: usize = 100;
/// Number of flows that collide, more than a bucket of the flow table has.
const FLOWS: u8 = 20;
/// Length of a virtio-net header, bytes.
const VNET: usize = 10;
const ADDRESSES: [[u8; 4]; 2] = [[198, 18, 0, 1], [198, 18, 0, 2]];

/// Returns a TCP train of `count` segments after its virtio-net header, as a TUN device delivers it.
fn train(count: usize) -> Vec<u8> {
    train_of(ADDRESSES, [0x10, 0, 0x20, 0], count)
}

/// Returns a train like [`train`] of the flow with these addresses and ports.
fn train_of(addresses: [[u8; 4]; 2], ports: [u8; 4], count: usize) -> Vec<u8> {
    let payload = count * MSS;
    let mut bytes = vec![1, 1, 40, 0, MSS as u8, 0, 20, 0, 16, 0];
    let total = (40 + payload) as u16;
    bytes.extend([0x45, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
    addresses.iter().for_each(|address| bytes.extend(address));
    let check = !sys::sum(&bytes[VNET..]);
    bytes[VNET + 10..VNET + 12].copy_from_slice(&check.to_be_bytes());
    bytes.extend(ports);
    // Sequence number, acknowledgement, data offset, ACK, window.
    bytes.extend([0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 0x40, 0]);
    bytes.extend(sys::pseudo_v4(addresses, 6, 20 + payload).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..payload).map(|at| (at * 7) as u8));
    bytes
}

#[test]
fn a_train_is_split_joined_in_two_ways_and_the_same_again() {
    let (mut splitter, unit) = (Splitter::new(VNET), train(3));
    let packets = splitter.split(&unit, 3, 256, 0).unwrap();
    assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [140; 3]);
    assert_eq!(splitter.split_with(&unit[..VNET], &unit[VNET..], 3, 256).unwrap(), packets);
    // Too few places, and too little room.
    assert!(splitter.split(&unit, 2, 256, 0).is_err() && splitter.split(&unit, 3, 139, 0).is_err());
    for cut in [0, 5, VNET, 29, 49, 60] {
        assert!(splitter.split(&unit[..cut], 3, 256, 16).is_err(), "{cut} bytes");
    }
    let mut joiner = Joiner::new(VNET as u32);
    for _ in 0..2 {
        let batch: Vec<Packet<'_>> = packets.iter().map(|bytes| Packet { bytes, csum: 0 }).collect();
        let trains = joiner.join(&batch).unwrap();
        assert_eq!(trains.len(), 1);
        assert_eq!(trains[0].len(), VNET + 40 + 3 * MSS);
        assert_eq!(trains[0][VNET + 40..], unit[VNET + 40..]);
    }
    let joined = joiner.join_in_place(&packets, VNET, 32, 1024).unwrap();
    assert_eq!((joined.len(), &joined[0][VNET + 40..]), (1, &unit[VNET + 40..]));
    assert!(joiner.join(&[]).unwrap().is_empty());
    let short = [Packet { bytes: &packets[0][..30], csum: 0 }, Packet { bytes: &[], csum: 2 }];
    let _ = joiner.join(&short);
}

/// Returns how many trains a joiner with the key `given` makes of flows that collide under the key `known`, of which
/// each has two segments, one after those of all other flows.
fn trains_of_colliding_flows(given: [u64; 2], known: [u64; 2]) -> usize {
    // The hash of TCP over IPv4 is a product, of which one factor is this number plus both addresses: it is zero.
    let word = Key(known).hash(&[0]).wrapping_neg().to_le_bytes();
    let addresses = [0, 4].map(|at| std::array::from_fn(|byte| word[at + byte]));
    let mut splitter = Splitter::new(VNET);
    let mut flow = |number: u8| {
        let ports = (Key([5, 6]).hash(&[number]) as u32).to_le_bytes();
        splitter.split(&train_of(addresses, ports, 2), 2, 256, 0).unwrap()
    };
    let flows: Vec<Vec<Vec<u8>>> = (0..FLOWS).map(&mut flow).collect();
    let packets = [0, 1].map(|number| flows.iter().map(move |flow| Packet { bytes: &flow[number], csum: 0 }));
    let batch: Vec<Packet<'_>> = packets.into_iter().flatten().collect();
    Joiner::of(given, VNET as u32, 0).unwrap().join(&batch).unwrap().len()
}

#[test]
fn the_key_of_a_joiner_is_random_where_a_caller_has_none_and_an_unknown_profile_is_refused() {
    assert_eq!(trains_of_colliding_flows([3, 4], [1, 2]), usize::from(FLOWS));
    assert!(trains_of_colliding_flows([1, 2], [1, 2]) > usize::from(FLOWS), "flows collide under a known key");
    assert_eq!(trains_of_colliding_flows([0, 0], [0, 0]), usize::from(FLOWS));
    for (profile, is_known) in [(0, true), (1, true), (2, false), (u32::MAX, false)] {
        assert_eq!(Joiner::of([1, 2], VNET as u32, profile).is_some(), is_known, "profile {profile}");
    }
}

#[test]
fn a_joiner_has_the_profile_of_its_caller_with_and_without_a_virtio_net_header() {
    let packets = Splitter::new(VNET).split(&train(3), 3, 256, 0).unwrap();
    // Padding keeps packets alone in the strict profile, and is cut off in the other one.
    let padded: Vec<Vec<u8>> = packets.iter().map(|packet| [&packet[..], &[0; 2]].concat()).collect();
    let batch: Vec<Packet<'_>> = padded.iter().map(|bytes| Packet { bytes, csum: 0 }).collect();
    for (header_len, profile, trains) in [(VNET as u32, 0, 3), (VNET as u32, 1, 1), (0, 0, 3), (0, 1, 1)] {
        let joined = Joiner::of([1, 2], header_len, profile).unwrap().join(&batch).unwrap();
        assert_eq!(joined.len(), trains, "header of {header_len} bytes, profile {profile}");
    }
}

#[test]
fn a_chain_is_split_and_joined_like_a_packet_in_one_piece() {
    let (mut splitter, mut joiner, unit) = (Splitter::new(VNET), Joiner::new(VNET as u32), train(3));
    let packets = splitter.split(&unit, 3, 256, 0).unwrap();
    let batch: Vec<Packet<'_>> = packets.iter().map(|bytes| Packet { bytes, csum: 0 }).collect();
    let trains = joiner.join(&batch).unwrap();
    for size in [1, 13, 64, 1000] {
        assert_eq!(splitter.split_chain(&unit[..VNET], &unit[VNET..], size, 3).unwrap(), packets, "pieces of {size}");
        assert!(splitter.split_chain(&unit[..VNET], &unit[VNET..], size, 2).is_err(), "two places");
        assert_eq!(joiner.join_chains(&batch, size).unwrap(), trains, "pieces of {size}");
    }
    assert!(splitter.split_chain(&unit[..VNET], &[], 9, 3).is_err());
    assert!(joiner.join_chains(&[], 9).unwrap().is_empty());
}

/// Returns a packet of IPv4 with this protocol, these flags and offset of a fragment, and this body.
fn ipv4(protocol: u8, fragment: [u8; 2], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 20 + body.len() as u8, 0x12, 0x34, fragment[0], fragment[1], 64, protocol, 0, 0];
    ADDRESSES.iter().for_each(|address| bytes.extend(address));
    let check = !sys::sum(&bytes);
    bytes[10..12].copy_from_slice(&check.to_be_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn a_packet_without_a_field_for_the_owed_checksum_is_passed_on_as_it_is() {
    // ICMP, SCTP, and the first and the last fragment of a datagram.
    let kinds = [(1, [0, 0]), (132, [0, 0]), (17, [0x20, 0]), (17, [0, 10])];
    let packets = kinds.map(|(protocol, fragment)| ipv4(protocol, fragment, &[8, 0, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]));
    let batch = packets.each_ref().map(|bytes| Packet { bytes, csum: 2 });
    let lone: Vec<Vec<u8>> = packets.iter().map(|packet| [&[0; VNET][..], packet].concat()).collect();
    let mut joiner = Joiner::new(VNET as u32);
    assert_eq!(joiner.join(&batch).unwrap(), lone);
    assert_eq!(joiner.join_chains(&batch, 7).unwrap(), lone);
}

#[test]
fn a_packet_that_stays_alone_in_its_place_has_the_header_of_any_other() {
    let mut splitter = Splitter::new(VNET);
    // A pure acknowledgment, and packets that would be a train, for which there is no room.
    let mut ack = train(0);
    ack[1..6].fill(0);
    let batches = [splitter.split(&ack, 1, 256, 0).unwrap(), splitter.split(&train(3), 3, 256, 0).unwrap()];
    for (header_len, packets) in
        [10, 12, 20, 24].into_iter().flat_map(|len| batches.each_ref().map(|batch| (len, batch)))
    {
        let mut joiner = Joiner::new(header_len as u32);
        let mut header = vec![0; header_len];
        if header_len > VNET {
            // The number of buffers.
            header[VNET] = 1;
        }
        let units = joiner.join_in_place(packets, header_len, 32, 32 + packets[0].len()).unwrap();
        let lone: Vec<Vec<u8>> = packets.iter().map(|packet| [&header[..], packet].concat()).collect();
        assert_eq!(units, lone, "{header_len} bytes");
    }
}

#[test]
fn a_tunnel_completes_an_owed_checksum_that_is_not_of_tcp_or_udp() {
    let new = || Tunnel::new(0, 1, ADDRESSES);
    // DCCP, which has an Internet checksum, and SCTP.
    for (protocol, field) in [(33, 6), (132, 8)] {
        let packet = ipv4(protocol, [0, 0], &[1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 7, 8, 9, 0]);
        let unit = [&[1, 0, 0, 0, 0, 0, 20, 0, field, 0][..], &packet].concat();
        let complete = Splitter::new(VNET).split(&unit, 1, 256, 0).unwrap().remove(0);
        assert_ne!(complete, packet);
        let expected = new().encap(&[&[0; VNET][..], &complete].concat(), 1, 512).unwrap();
        assert_eq!(new().encap(&unit, 1, 512).unwrap(), expected, "protocol {protocol}");
    }
}

#[test]
fn what_a_tunnel_encapsulates_it_decapsulates() {
    for (mode, carrier) in [(0, 0), (0, 1), (1, 2), (1, 3)] {
        let (mut near, mut far) =
            (Tunnel::new(mode, carrier, ADDRESSES), Tunnel::new(mode, carrier, [ADDRESSES[1], ADDRESSES[0]]));
        let packets = near.encap(&train(2), 4, 512).unwrap();
        assert_eq!(packets.len(), 2);
        for (number, packet) in packets.iter().enumerate() {
            let inner = far.decap(packet, 512).unwrap();
            assert_eq!(inner.len(), 140, "{mode} {carrier}");
            assert_eq!(inner[40..], train(2)[VNET + 40 + number * MSS..][..MSS]);
            assert!((0..packet.len()).step_by(9).all(|len| far.decap(&packet[..len], 512).is_err()));
        }
    }
}

#[test]
fn a_tunnel_has_a_configuration_of_the_first_version_whatever_its_padding() {
    let least = Tunnel::FIELDS;
    for (size, is_whole) in [(0, false), (least - 1, false), (least, true), (Tunnel::FIRST, true), (least + 17, true)] {
        assert_eq!(Tunnel::of_size(size, [0, 1], ADDRESSES, [1, 2]).is_some(), is_whole, "{size} bytes");
    }
}

/// Returns the source ports of a tunnel in UDP with this key, one for each of several flows.
fn source_ports(key: Option<[u64; 2]>) -> Vec<Vec<u8>> {
    let mut tunnel = Tunnel::with_key(0, 1, ADDRESSES, key);
    let flow = |port: u8| {
        let mut unit = train(1);
        unit[VNET + 20] = port;
        tunnel.encap(&unit, 1, 512).unwrap()[0][20..22].to_vec()
    };
    (0..64).map(flow).collect()
}

#[test]
fn source_ports_depend_on_the_key_which_is_random_where_a_caller_has_none() {
    let keyed = source_ports(Some([1, 2]));
    assert_eq!(source_ports(Some([1, 2])), keyed);
    for other in [Some([1, 3]), Some([2, 2]), Some([0, 0]), None] {
        assert_ne!(source_ports(other), keyed, "{other:?}");
        let is_random = other.is_none_or(|key| key == [0, 0]);
        assert_eq!(source_ports(other) != source_ports(other), is_random, "{other:?}");
    }
}

#[test]
fn sums_over_pointers_are_those_of_slices_and_no_pointer_is_an_error() {
    let bytes: Vec<u8> = (0..=255).collect();
    let (copied, sum) = sys::sum_copy(&bytes);
    assert_eq!((copied, sum), (bytes.clone(), sys::sum(&bytes)));
    sys::nothing();
}
