//! A test that the engine does not allocate per packet: after warm-up the whole path of a packet, from GRO through a
//! tunnel and back, allocates nothing, and neither do joiner and splitter, which borrow the packets of a caller; and
//! that what it allocates before is as much as docs/adopting.md says.

mod sys;

use std::io::IoSlice;

use segue::easy::{Joiner, Splitter};
use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, GreOptions, Mode, OuterCsum, Received};
use segue::gro::{self, Gro};
use segue::gso::{Arena, Frames, Limits, finish, prime, split, split_linear};
use segue::hash::Key;
use segue::packet::{Csum, Frag, Gso, GsoKind, Offload, Packet, Pool, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue::virtio::{self, Form, TUN_OFFLOADS, VirtioNet};
use segue_testkit::Rng;
use segue_testkit::build::{self, Ip, L4, Udp, V4};
use segue_testkit::flow;

/// Number of packets in a poll round.
const ROUND: usize = 200;
/// Number of packets during which no memory may be allocated.
const PACKETS: usize = 1_000;
/// Number of warm-up passes over the packets.
const WARM_UP: usize = 60;

#[test]
fn merging_and_splitting_allocate_nothing_per_packet() {
    let stream: Vec<Vec<u8>> = flow::mixed(&mut Rng::new(1), 40, PACKETS).into_iter().map(|sent| sent.bytes).collect();
    let mut gro = Gro::new(gro::Config { max_flows: 32, ..gro::Config::default() });
    let mut pool: Pool<&[u8]> = Pool::new(1024);
    let mut arena = Arena::new();
    let mut pass = || {
        let (before, mut left) = (sys::allocations(), 0);
        for round in stream.chunks(ROUND) {
            for bytes in round {
                let mut packet = pool.take();
                packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
                gro.push(packet, Nanos(1), &mut pool);
            }
            gro.flush();
            while let Some(packet) = gro.pop() {
                arena.clear();
                left += split(&packet, &Limits::NONE, &mut arena).expect("what came in can leave");
                pool.put(packet);
            }
        }
        assert_eq!(left, PACKETS);
        sys::allocations() - before
    };
    check_passes(&mut pass);
    assert!(gro.stats().segments > PACKETS as u64 / 2, "it has joined: {:?}", gro.stats());
}

#[test]
fn frames_that_are_never_parsed_allocate_nothing() {
    let stream: Vec<Vec<u8>> = flow::mixed(&mut Rng::new(1), 40, PACKETS).into_iter().map(|sent| sent.bytes).collect();
    let mut gro = Gro::new(gro::Config { max_flows: 32, ..gro::Config::default() });
    let mut pool: Pool<&[u8]> = Pool::new(1024);
    let mut alone = 0;
    let mut pass = || {
        let before = sys::allocations();
        for round in stream.chunks(ROUND) {
            for bytes in round {
                let frame = gro::Frame { bytes: Frag::all(&bytes[..]), start: Start::Ip, csum: Csum::Unknown };
                gro.push_frame(frame, Nanos(1), &mut pool);
            }
            gro.flush();
            while let Some(popped) = gro.pop_unparsed() {
                match popped {
                    gro::Popped::Packet(packet) => pool.put(packet),
                    gro::Popped::Frame(frame) => alone += u64::from(!frame.is_empty()),
                }
            }
        }
        sys::allocations() - before
    };
    check_passes(&mut pass);
    assert!(gro.stats().segments > PACKETS as u64 / 2, "it has joined: {:?}", gro.stats());
    assert!(alone > PACKETS as u64, "{alone}");
}

#[test]
fn swallowing_acknowledgments_allocates_nothing_per_packet() {
    let stream: Vec<Vec<u8>> =
        flow::acknowledging(&mut Rng::new(1), 40, PACKETS).into_iter().map(|sent| sent.bytes).collect();
    let config = gro::Config { profile: gro::Profile::Lro, acks: true, max_flows: 32, ..gro::Config::default() };
    let mut gro = Gro::new(config);
    let mut pool: Pool<&[u8]> = Pool::new(64);
    let mut pass = || {
        let before = sys::allocations();
        for round in stream.chunks(ROUND) {
            for bytes in round {
                let mut packet = pool.take();
                packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
                gro.deliver(packet, Nanos(1), &mut pool, |packet, pool| pool.put(packet));
            }
            gro.end_poll(Nanos(1), &mut pool, |packet, pool| pool.put(packet));
        }
        sys::allocations() - before
    };
    check_passes(&mut pass);
    assert!(gro.stats().swallowed > 1000, "{:?}", gro.stats());
}

#[test]
fn a_tunnel_allocates_nothing_per_packet() {
    let gre = GreOptions { ikey: Some(1), okey: Some(1), icsum: true, ocsum: true, ..GreOptions::default() };
    for (mode, carrier) in [
        (Mode::Ip, Carrier::Gue { remcsum: true }),
        (Mode::Gre(gre), Carrier::Gue { remcsum: true }),
        (Mode::Gre(gre), Carrier::Fou),
    ] {
        let local = "198.18.0.1".parse().unwrap();
        let remote = "198.18.0.2".parse().unwrap();
        let mut encap = Encapsulator::new(Config::new(mode, carrier, local, remote)).unwrap();
        let mut decap = Decapsulator::new(Config::new(mode, carrier, remote, local)).unwrap();
        let sent = flow::mixed(&mut Rng::new(2), 20, PACKETS);
        let stream: Vec<Vec<u8>> = sent.into_iter().map(|sent| sent.bytes).collect();
        // The packets that arrive from the network, made once: single datagrams, without the outer IP and UDP headers.
        let datagrams: Vec<Vec<u8>> = stream
            .iter()
            .map(|bytes| {
                let mut packet = Packet::default();
                packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
                encap.push(&mut packet).expect("a packet fits the tunnel");
                finish(&mut packet).expect("a packet can be finished");
                let payload: Vec<u8> = packet.payload.pieces(0..packet.payload.len()).flatten().copied().collect();
                [&packet.head.bytes()[28..], &payload].concat()
            })
            .collect();
        let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
        let mut gro = Gro::new(gro::Config::default());
        let mut pool: Pool<&[u8]> = Pool::new(1024);
        let mut arena = Arena::new();
        let mut pass = || {
            let (before, mut joined) = (sys::allocations(), 0);
            // Sending: merged, encapsulated, split for a port.
            for round in stream.chunks(ROUND) {
                for bytes in round {
                    let mut packet = pool.take();
                    packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
                    gro.push(packet, Nanos(1), &mut pool);
                }
                gro.flush();
                while let Some(mut packet) = gro.pop() {
                    encap.push(&mut packet).expect("a packet fits the tunnel");
                    arena.clear();
                    split(&packet, &Limits::NONE, &mut arena).expect("what was merged can be cut");
                    pool.put(packet);
                }
            }
            // Receiving: decapsulated, merged, split.
            for round in datagrams.chunks(ROUND) {
                for bytes in round {
                    let mut packet = pool.take();
                    decap.pull(Frag::all(&bytes[..]), &meta, &mut packet).expect("it is one of ours");
                    gro.push(packet, Nanos(1), &mut pool);
                }
                gro.flush();
                while let Some(packet) = gro.pop() {
                    joined += usize::from(matches!(packet.offload.unit, Unit::Train { .. }));
                    arena.clear();
                    split(&packet, &Limits::NONE, &mut arena).expect("what was merged can be cut");
                    pool.put(packet);
                }
            }
            assert!(joined > 100);
            sys::allocations() - before
        };
        check_passes(&mut pass);
    }
}

/// Checks that the first pass allocates, and that a pass after the warm-up does not. Each packet box keeps the memory
/// for as many ranges as its longest train had, and which box becomes the head of which train differs from pass to
/// pass: warm-up lasts until every box has held a long train.
fn check_passes(pass: &mut impl FnMut() -> usize) {
    assert_ne!(pass(), 0, "the counter counts");
    for _ in 0..WARM_UP {
        pass();
    }
    assert_eq!(pass(), 0);
}

#[test]
fn cutting_a_train_allocates_nothing_after_the_first_one() {
    let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
    let bytes = build::Packet { ip: Ip::V4(V4::new(0, 1, 2)), l4: udp, data: vec![7; 60_000] }.bytes();
    let mut packet = Packet::default();
    packet.load(Frag::all(&bytes), Start::Ip, &Tunnels::NONE);
    let gso = Gso { kind: GsoKind::Udp, size: 1400, fixed_ids: 0 };
    packet.offload = Offload::plain(Unit::Train { csum: TrainCsum::Partial, gso });
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let mut batch = || {
        let before = sys::allocations();
        arena.clear();
        frames.clear();
        for limits in [Limits::NONE, Limits { csum: true, uso: true, max_udp_segs: 9, ..Limits::NONE }] {
            let segments = split(&packet, &limits, &mut arena);
            assert!(segments.is_ok_and(|n| n > 4));
            assert_eq!(split_linear(&packet, &limits, &mut frames), segments);
        }
        sys::allocations() - before
    };
    assert_ne!(batch(), 0, "the counter counts");
    assert_eq!((0..3).map(|_| batch()).sum::<usize>(), 0);
}

#[test]
fn a_joiner_of_borrowed_packets_allocates_nothing_per_packet() {
    let stream: Vec<Vec<u8>> = flow::mixed(&mut Rng::new(1), 40, PACKETS).into_iter().map(|sent| sent.bytes).collect();
    let mut joiner = Joiner::tun(Key([1, 2]), TUN_OFFLOADS[0]);
    let mut pass = || {
        let (before, mut left) = (sys::allocations(), 0);
        for round in stream.chunks(ROUND) {
            let mut batch = joiner.batch();
            for bytes in round {
                batch.push(bytes);
            }
            while let Some(train) = batch.pop() {
                let mut places = [IoSlice::new(&[]); ROUND + 1];
                let pieces = train.gather(&mut places, IoSlice::new).expect("a piece a packet, and the headers");
                assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<usize>(), train.len());
                left += train.segments();
            }
        }
        assert_eq!(left, PACKETS);
        sys::allocations() - before
    };
    check_passes(&mut pass);
    assert!(joiner.stats().segments > PACKETS as u64 / 2, "it has joined: {:?}", joiner.stats());
}

#[test]
fn a_splitter_of_what_was_read_allocates_nothing_after_the_first_train() {
    let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
    let mut packet = build::Packet { ip: Ip::V4(V4::new(0, 1, 2)), l4: udp, data: vec![7; 60_000] }.bytes();
    prime(&mut packet, Start::Ip).expect("a datagram has a checksum");
    let header = VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_UDP_L4,
        gso_size: 1400,
        csum_start: 20,
        csum_offset: 6,
        ..VirtioNet::default()
    };
    let unit = [&header.emit(Form::Basic)[..10], &packet].concat();
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
    let mut datagram = [0; 2048];
    let mut read = || {
        let before = sys::allocations();
        let packets = splitter.read(&unit).expect("the train can be cut");
        let lens = packets.iter().map(|packet| packet.write_to(&mut datagram[16..]).expect("a datagram has room"));
        assert_eq!((packets.len(), lens.sum::<usize>()), (43, 60_000 + 43 * 28));
        sys::allocations() - before
    };
    assert_ne!(read(), 0, "the counter counts");
    assert_eq!((0..3).map(|_| read()).sum::<usize>(), 0);
}

/// Returns the number that follows these words in docs/adopting.md.
fn documented(words: &str) -> usize {
    let guide = include_str!("../../../../docs/adopting.md").replace('\n', " ");
    let (_, rest) = guide.split_once("`Joiner` or `Gro` takes").expect("the guide has the memory");
    let (_, rest) = rest.split_once(words).expect(words);
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|number| number.parse().ok()).expect(words)
}

/// Returns the number of bytes of a value: its own, and those that it has allocated.
fn memory_of<T>(make: impl FnOnce() -> T) -> usize {
    let before = sys::held();
    let value = make();
    let bytes = (sys::held() - before) as usize + size_of::<T>();
    drop(value);
    bytes
}

#[test]
fn memory_is_as_documented() {
    if cfg!(not(target_pointer_width = "64")) {
        return;
    }
    let check = |what: &str, measured: usize, documented: usize| {
        assert!(
            measured.abs_diff(documented) * 8 <= documented,
            "{what}: {measured}, docs/adopting.md has {documented}"
        );
    };
    let usual = gro::Config::vpn(Key([1, 2]));
    assert_eq!(usual.max_flows, 256);
    let joiner = |max_flows| {
        let config = gro::Config { max_flows, ..usual };
        memory_of(|| Joiner::virtio(config, Limits::tun(TUN_OFFLOADS[0]), Form::Basic))
    };
    let (whole, flow) = (joiner(256), (joiner(1024) - joiner(256)) / 768);
    check("a flow", flow, documented(" kB, and "));
    check("no flow", whole - 256 * flow, documented(" about ") * 1000);
    check("256 flows", whole, documented(" by default: ") * 1000);
    let packet = documented(" in flight ") + documented(" room for ") * documented(" segments of ");
    check("a packet", memory_of(|| Pool::<&[u8]>::new(0).take()), packet);
}
