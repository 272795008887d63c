use segue::checksum::{Field, Sum};
use segue::easy::{Joiner, Splitter};
use segue::gro::Config;
use segue::gso::Limits;
use segue::hash::Key;
use segue::packet::{Csum, Kind, Start, Tunnels};
use segue::virtio::{self, Form, TAP_TUNNEL_OFFLOADS, TUN_OFFLOADS, VirtioNet, tun};
use segue_testkit::Rng;
use segue_testkit::build::{Ethernet, Ip, Shim, Tunnel, Udp, V4, V6, prime};
use segue_testkit::flow::{self, Sender};
use segue_testkit::oracle::{self, Ports};
use segue_testkit::strategy::VXLAN_PORT;

const KEY: Key = Key([3, 4]);

/// Returns a stream of many flows, without tiny segments: a reader of virtio-net headers enlarges those
/// ([`segue::gso::MIN_TCP_SIZE`]).
fn stream() -> Vec<Vec<u8>> {
    let sent = flow::mixed(&mut Rng::new(5), 12, 2000).into_iter();
    sent.map(|sent| sent.bytes).filter(|bytes| bytes.len() >= 90).collect()
}

/// Returns consecutive segments of one TCP flow over this IP version.
fn run(ip: Ip, total: usize, size: usize) -> Vec<Vec<u8>> {
    Sender::tcp(ip, 1, 7, Vec::new()).run(total, size, 0x18).iter().map(|packet| packet.bytes()).collect()
}

fn ips() -> [Ip; 2] {
    [Ip::V4(V4::new(1, 1, 2)), Ip::V6(V6::new(1, 1, 2))]
}

/// Pushes packets, and returns the resulting units, each as contiguous bytes.
fn units(joiner: &mut Joiner, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (mut batch, mut units) = (joiner.batch(), Vec::new());
    for (number, packet) in packets.iter().enumerate() {
        assert_eq!(batch.push(packet), number);
    }
    while let Some(train) = batch.pop() {
        let unit: Vec<u8> = train.pieces().flatten().copied().collect();
        let mut copy = vec![0; train.len()];
        assert_eq!((train.write_to(&mut copy), &copy), (Ok(unit.len()), &unit));
        assert!(train.write_to(&mut copy[1..]).is_err());
        units.push(unit);
    }
    units
}

#[test]
fn a_batch_comes_out_as_trains_that_split_into_what_went_in() {
    for bits in [TUN_OFFLOADS[0], TUN_OFFLOADS[1], tun::CSUM, 0] {
        let mut joiner = Joiner::tun(KEY, bits);
        let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
        let all = stream();
        let mut writes = 0;
        for packets in all.chunks(64) {
            let units = units(&mut joiner, packets);
            writes += units.len();
            let mut came: Vec<Vec<u8>> = Vec::new();
            for unit in &units {
                let packets = splitter.read(unit).unwrap();
                for packet in packets.iter() {
                    let mut out = Vec::new();
                    packet.append_to(&mut out, (0, 0));
                    came.push(out);
                }
            }
            // Flows may overtake each other, and a virtio-net header does not say that identifications stay the same.
            let (mut came, mut sent) = (came, packets.to_vec());
            for packet in came.iter_mut().chain(&mut sent).filter(|packet| packet[0] >> 4 == 4) {
                packet[4..6].fill(0);
                packet[10..12].fill(0);
            }
            came.sort();
            sent.sort();
            for (came, sent) in came.iter().zip(&sent) {
                assert!(
                    came == sent,
                    "offloads {bits:#x}:\n{:02x?}\n{:02x?}",
                    &came[..64.min(came.len())],
                    &sent[..64.min(sent.len())]
                );
            }
            assert_eq!(came.len(), sent.len());
        }
        let is_joined = writes < all.len() * 2 / 3;
        assert_eq!(is_joined, bits & tun::TSO4 != 0, "{writes} writes, offloads {bits:#x}");
        assert_eq!(joiner.stats().packets, all.len() as u64);
        assert_eq!(joiner.refused().total(), 0);
    }
}

#[test]
fn packets_in_pieces_join_like_those_in_one_piece() {
    let all = stream();
    let [mut whole, mut cut] = [(); 2].map(|()| Joiner::tun(KEY, TUN_OFFLOADS[0]));
    // One call of the system takes 1,024 pieces.
    cut.set_limits(Limits { max_pieces: usize::MAX, ..*cut.limits() });
    for (round, packets) in all.chunks(64).enumerate() {
        let size = [1, 20, 77, 500][round % 4];
        let expected = units(&mut whole, packets);
        let (mut batch, mut came) = (cut.batch(), Vec::new());
        for (number, packet) in packets.iter().enumerate() {
            assert_eq!(batch.push_pieces(packet.chunks(size), Csum::Unknown), number);
        }
        while let Some(train) = batch.pop() {
            let found: Vec<usize> = train.sources().map(|(number, _)| number).collect();
            assert!(found.is_sorted() && found.iter().all(|&number| number < packets.len()));
            came.push(train.pieces().flatten().copied().collect::<Vec<u8>>());
        }
        assert!(came == expected, "pieces of {size}");
    }
    assert_eq!(whole.stats().packets, cut.stats().packets);
}

#[test]
fn a_plain_train_is_one_packet_with_every_checksum_right() {
    for ip in ips() {
        let packets = run(ip, 60_000, 1400);
        let units = units(&mut Joiner::plain(KEY), &packets);
        assert_eq!(units.len(), 1);
        let report = oracle::verify(&units[0], oracle::Start::Ip, &Ports::default());
        assert!(report.is_ok(), "{report:?}");
        let data: Vec<u8> =
            packets.iter().flat_map(|packet| &packet[packet.len() - payload(packet)..]).copied().collect();
        assert!(units[0].ends_with(&data));
        // Never more than a length field can say.
        let units = self::units(&mut Joiner::plain(KEY), &run(ips()[0].clone(), 200_000, 1400));
        assert!(units.len() == 4 && units.iter().all(|unit| unit.len() <= 65_535));
    }
}

fn payload(packet: &[u8]) -> usize {
    let l4 = if packet[0] >> 4 == 4 { 20 } else { 40 };
    packet.len() - l4 - usize::from(packet[l4 + 12] >> 4) * 4
}

#[test]
fn datagrams_stay_datagrams_where_trains_are_plain_packets() {
    let mut sender = Sender::udp(ips()[0].clone(), 1);
    let packets: Vec<Vec<u8>> = (0..10).map(|_| sender.send(500, 0).bytes()).collect();
    assert!(units(&mut Joiner::plain(KEY), &packets) == packets);
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    let mut packets = run(ips()[0].clone(), 14_000, 1400);
    let last = packets[4].len() - 1;
    packets[4][last] ^= 1;
    for mut joiner in [Joiner::plain(KEY), Joiner::tun(KEY, TUN_OFFLOADS[0])] {
        let header = if joiner.limits().uso { 10 } else { 0 };
        let units = units(&mut joiner, &packets);
        assert!(units.iter().any(|unit| unit[header..] == packets[4]), "it is passed on as it came");
        assert_eq!(units.len(), 3);
    }
}

#[test]
fn packets_that_owe_their_checksum_join_and_leave_complete() {
    for ip in ips() {
        let whole = run(ip, 14_000, 1400);
        let owed: Vec<Vec<u8>> = whole.iter().map(|packet| prime(packet).unwrap()).collect();
        let mut joiner = Joiner::plain(KEY);
        let mut batch = joiner.batch();
        owed.iter().for_each(|packet| _ = batch.push_with(packet, Csum::Partial));
        let train: Vec<u8> = batch.pop().unwrap().pieces().flatten().copied().collect();
        assert!(batch.pop().is_none());
        assert!(oracle::verify(&train, oracle::Start::Ip, &Ports::default()).is_ok());
    }
}

/// Tests that a packet whose TCP header is behind more headers than are parsed does not leave with a sum that is owed.
#[test]
fn a_packet_that_owes_a_checksum_that_is_not_found_is_refused() {
    let whole = run(ips()[1].clone(), 1400, 1400).remove(0);
    let mut behind = whole[..40].to_vec();
    // Destination options of 104 bytes, which are all padding.
    behind[6] = 60;
    behind.extend([whole[6], 12, 1, 100]);
    behind.extend([0; 100]);
    behind.extend(&whole[40..]);
    let payload = (behind.len() - 40) as u16;
    behind[4..6].copy_from_slice(&payload.to_be_bytes());
    let mut joiner = Joiner::plain(KEY);
    let mut batch = joiner.batch();
    batch.push_with(&behind, Csum::Partial);
    assert!(batch.pop().is_none());
    drop(batch);
    assert_eq!(joiner.refused().total(), 1);
}

#[test]
fn sources_name_the_packets_and_the_places_of_all_payload() {
    let packets = stream();
    let mut joiner =
        Joiner::virtio(Config::vpn(KEY), Limits { max_segs: 5, ..Limits::tun(TUN_OFFLOADS[0]) }, Form::Buffers);
    let (mut batch, mut listed) = (joiner.batch(), 0);
    packets[..300].iter().for_each(|packet| _ = batch.push(packet));
    while let Some(train) = batch.pop() {
        let payload: Vec<u8> = train.pieces().skip(1).flatten().copied().collect();
        let found: Vec<u8> = train.sources().flat_map(|(number, place)| &packets[number][place]).copied().collect();
        assert!(payload == found);
        assert_eq!(train.segments(), train.sources().count().max(1));
        assert_eq!(VirtioNet::parse(train.header(), Form::Buffers).unwrap().num_buffers, 1);
        listed += train.sources().count();
    }
    assert!(listed > 200, "{listed}");
}

#[test]
fn a_batch_that_was_dropped_or_forgotten_leaves_nothing_behind() {
    let mut joiner = Joiner::tun(KEY, TUN_OFFLOADS[0]);
    let expected = units(&mut joiner, &run(ips()[0].clone(), 14_000, 1400));
    for is_forgotten in [false, true, true] {
        let gone = run(ips()[1].clone(), 30_000, 1000);
        let mut batch = joiner.batch();
        gone.iter().for_each(|packet| _ = batch.push(packet));
        let _ = batch.pop();
        batch.push(&gone[0]);
        if is_forgotten {
            std::mem::forget(batch);
        } else {
            drop(batch);
        }
        drop(gone);
        assert!(units(&mut joiner, &run(ips()[0].clone(), 14_000, 1400)) == expected);
    }
}

#[test]
fn a_train_that_the_device_refuses_comes_again_as_packets() {
    let packets = [run(ips()[0].clone(), 14_000, 1400), run(ips()[1].clone(), 14_000, 1400)].concat();
    let mut joiner = Joiner::tun(KEY, TUN_OFFLOADS[0]);
    let (mut batch, mut written) = (joiner.batch(), Vec::new());
    packets.iter().for_each(|packet| _ = batch.push(packet));
    let mut refusals = 0;
    while let Some(train) = batch.pop() {
        let unit: Vec<u8> = train.pieces().flatten().copied().collect();
        if train.segments() > 1 {
            refusals += 1;
            assert!(batch.narrow());
        } else {
            written.push(unit);
        }
    }
    assert!(!batch.narrow(), "a single packet cannot be cut");
    drop(batch);
    assert_eq!((refusals, written.len(), joiner.limits().tso4), (1, 20, false));
    for (unit, packet) in written.iter().zip(&packets) {
        // The checksum is owed to the device, which completes it.
        let mut unit = unit.clone();
        let start = usize::from(VirtioNet::parse(&unit, Form::Basic).unwrap().csum_start);
        let sum = Field::complete(Sum::of(&unit[10 + start..])).value();
        unit[10 + start + 16..10 + start + 18].copy_from_slice(&sum.to_be_bytes());
        assert!(unit[10..] == packet[..]);
    }
}

fn link() -> Ethernet {
    Ethernet { dst: [2, 0, 0, 0, 0, 9], src: [2, 0, 0, 0, 0, 8], tags: Vec::new() }
}

/// Returns a joiner of frames, VXLAN included, for a TAP device with every offload and a header of this form.
fn tap(form: Form) -> Joiner {
    let config = Config { tunnels: Tunnels::NONE.with(VXLAN_PORT, Kind::Vxlan), ..Config::vpn(KEY) };
    Joiner::virtio(config, Limits::tun(TUN_OFFLOADS[0] | TAP_TUNNEL_OFFLOADS), form).starting_with(Start::Ethernet)
}

/// Puts each packet into VXLAN over this IP version, in an Ethernet frame.
fn in_vxlan(outer: &Ip, checksum: bool, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let frames = packets.iter().enumerate().map(|(number, packet)| {
        let mut ip = outer.clone();
        if let Ip::V4(ip) = &mut ip {
            ip.id = ip.id.wrapping_add(number as u16);
        }
        let udp = Udp { src_port: 50_000, dst_port: VXLAN_PORT, checksum };
        let tunnel = Tunnel { ip, udp: Some((udp, Shim::Vxlan(7, false))), gre: None, ethernet: Some(link()) };
        link().wrap(&tunnel.wrap(packet))
    });
    frames.collect()
}

#[test]
fn a_train_inside_a_udp_tunnel_passes_whole_behind_the_header_that_describes_it() {
    let outers = [Ip::V4(V4::new(0, 1, 2)), Ip::V6(V6::new(0, 1, 2))];
    for (form, expected) in [(Form::Tunnel, 1), (Form::Hash, 10), (Form::Buffers, 10), (Form::Basic, 10)] {
        let mut splitter = Splitter::virtio(form, Start::Ethernet);
        for (ip, outer, checksum) in ips().into_iter().flat_map(|ip| {
            let outers = outers.iter().flat_map(|outer| [(outer, true), (outer, false)]);
            outers.map(move |(outer, checksum)| (ip.clone(), outer, checksum))
        }) {
            let packets = in_vxlan(outer, checksum, &run(ip, 14_000, 1400));
            let mut joiner = tap(form);
            let limits = Limits::tun(TUN_OFFLOADS[0] | TAP_TUNNEL_OFFLOADS);
            for round in 0..2 {
                let units = units(&mut joiner, &packets);
                assert_eq!(units.len(), expected, "{form:?}, round {round}");
                let mut came = Vec::new();
                for unit in &units {
                    for packet in splitter.read(unit).unwrap().iter() {
                        let mut out = Vec::new();
                        packet.append_to(&mut out, (0, 0));
                        came.push(out);
                    }
                }
                assert!(came == packets, "{form:?}, round {round}");
                // Nor do limits set later pass a train that the header cannot describe.
                joiner.set_limits(limits);
            }
        }
    }
    let mut joiner = tap(Form::Basic);
    let mut batch = joiner.batch();
    assert!(!batch.refuse(Limits::tun(TUN_OFFLOADS[0] | TAP_TUNNEL_OFFLOADS)), "there is no train yet");
    drop(batch);
    assert!(!joiner.limits().udp_tunnel && !joiner.limits().udp_tunnel_csum);
}

#[test]
fn a_refused_train_inside_a_tunnel_leaves_those_outside_of_one_whole() {
    let plain: Vec<Vec<u8>> = run(ips()[0].clone(), 14_000, 1400).iter().map(|packet| link().wrap(packet)).collect();
    let inside = in_vxlan(&Ip::V6(V6::new(0, 1, 2)), true, &run(ips()[1].clone(), 14_000, 1400));
    let packets = [inside, plain].concat();
    let mut joiner = tap(Form::Tunnel);
    let (mut batch, mut written, mut refusals) = (joiner.batch(), Vec::new(), 0);
    packets.iter().for_each(|packet| _ = batch.push(packet));
    while let Some(train) = batch.pop() {
        let header = VirtioNet::parse(train.header(), Form::Tunnel).unwrap();
        let segments = train.segments();
        if header.gso_type & (virtio::GSO_UDP_TUNNEL_IPV4 | virtio::GSO_UDP_TUNNEL_IPV6) == 0 {
            written.push(segments);
        } else {
            refusals += 1;
            assert_eq!(segments, 10);
            assert!(batch.narrow());
        }
    }
    drop(batch);
    written.sort_unstable();
    assert_eq!((refusals, written), (1, [vec![1; 10], vec![10]].concat()));
    assert!(joiner.limits().tso4 && joiner.limits().tso6 && joiner.limits().uso && !joiner.limits().udp_tunnel);
}

#[test]
fn a_joiner_and_a_splitter_can_be_sent_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&Joiner::plain(KEY));
    is_send(&Splitter::plain(Start::Ip));
}
