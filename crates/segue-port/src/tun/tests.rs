use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use segue::packet::{Csum, Gso, GsoKind, Kind, Packet, Pool, TrainCsum, Unit};
use segue::wire::tcp::{ACK, PSH, SYN};

use super::*;
use crate::page::{Page, PagePool};
use crate::sys::UDP_SEGMENT;
use crate::testing::{self, Fill, bytes};

/// The kernel's addresses on the device, and the test's addresses behind it.
pub(super) const ENDS: [(&str, &str); 2] = [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")];
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn config(name: &str, offloads: TunOffloads) -> TunConfig {
    TunConfig { name: name.to_owned(), layer: Layer::Ip, existing: Existing::Refuse, offloads, multi_queue: false }
}

/// Creates a device in a new namespace, up and with addresses of both families.
#[track_caller]
pub(super) fn device(offloads: TunOffloads) -> Option<TunPort> {
    testing::namespace()?;
    let port = match TunPort::open(&config("sg0", offloads)) {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            segue_lab::skip_this_test(&format!("no TUN device: {error}"));
            return None;
        }
        port => port.unwrap(),
    };
    testing::ip("addr add 198.18.0.1/24 dev sg0");
    testing::ip("addr add 2001:db8::1/64 dev sg0 nodad");
    testing::ip("link set sg0 up mtu 1500");
    testing::wait_for_local("2001:db8::1".parse().unwrap());
    Some(port)
}

/// Receives until `wanted` accepts a packet; other packets, such as router solicitations, are dropped.
pub(super) fn receive<T>(
    port: &mut TunPort,
    into: &mut RxBatch,
    mut wanted: impl FnMut(&Packet<Page>) -> Option<T>,
) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        port.receive(into, 16).unwrap();
        while let Some(packet) = into.pop_packet() {
            let found = wanted(&packet);
            into.pool.put(packet);
            if let Some(found) = found {
                return found;
            }
        }
        assert!(Instant::now() < end, "the packet did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn transmit(port: &mut TunPort, packets: impl IntoIterator<Item = Box<Packet<Page>>>) -> TxBatch {
    let mut batch = TxBatch::new();
    for packet in packets {
        batch.push(packet, port.limits()).unwrap();
    }
    loop {
        match port.transmit(&mut batch).unwrap() {
            Sent::All => break,
            Sent::Blocked => std::thread::sleep(Duration::from_millis(1)),
            Sent::Narrowed => batch.resplit(port.limits(), |_, reason| panic!("{reason:?}")),
        }
    }
    batch.recycle(&mut Pool::new(0));
    batch
}

fn is(packet: &Packet<Page>, kind: Kind) -> bool {
    packet.layout.transport().is_some_and(|header| header.kind == kind) && packet.layout.ip_levels() == 1
}

pub(super) fn addresses(ends: (&str, &str)) -> (IpAddr, IpAddr) {
    (ends.0.parse().unwrap(), ends.1.parse().unwrap())
}

/// Returns whether the checksum field described by the header holds the pseudo-header sum: completing it with the
/// oracle's arithmetic makes the packet's checksum correct.
fn completes_to_good(packet: &Packet<Page>) -> bool {
    let mut bytes = testing::flat(packet);
    let header = packet.layout.transport().unwrap();
    let field = header.start() + if header.kind == Kind::Tcp { 16 } else { 6 };
    let sum = !testing::sum16(&[&bytes[header.start()..]]);
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    testing::checksum_is_good(&bytes)
}

#[test]
fn datagrams_of_the_kernel_come_with_a_valid_state() {
    let Some(mut port) = device(TunOffloads::All) else { return };
    let mut into = RxBatch::new(16);
    for ends in ENDS {
        let (here, there) = addresses(ends);
        let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
        for len in [0, 1, 999, 1400] {
            let data = bytes(len, len);
            socket.send_to(&data, SocketAddr::new(there, 7)).unwrap();
            receive(&mut port, &mut into, |packet| {
                is(packet, Kind::Udp).then(|| {
                    assert_eq!(packet.offload.unit, Unit::Whole(Csum::Partial));
                    assert!(packet.layout.is_exact() && completes_to_good(packet));
                    let mut got = vec![0; packet.payload.len()];
                    packet.payload.copy_to(0..got.len(), &mut got);
                    assert_eq!(got, data);
                })
            });
        }
    }
    assert_eq!(port.counters().drops.total(), 0);
}

#[test]
fn a_segmented_send_of_the_kernel_comes_as_one_train() {
    let Some(mut port) = device(TunOffloads::All) else { return };
    if !port.limits().uso {
        return segue_lab::skip_this_test("this kernel has no USO on TUN");
    }
    let mut into = RxBatch::new(16);
    for ends in ENDS {
        let (here, there) = addresses(ends);
        let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
        let data = bytes(20_000, 1);
        let mut scratch = SendScratch::default();
        let mut out = scratch.begin();
        out.message();
        out.piece(&data);
        out.control(libc::SOL_UDP, UDP_SEGMENT, 1300u16);
        assert_eq!(out.send(socket.as_fd(), Some(SocketAddr::new(there, 7)), 0).unwrap(), 1);
        receive(&mut port, &mut into, |packet| {
            is(packet, Kind::Udp).then(|| {
                let gso = Gso { kind: GsoKind::Udp, size: 1300, fixed_ids: 0 };
                assert_eq!(packet.offload.unit, Unit::Train { csum: TrainCsum::Partial, gso });
                assert!(completes_to_good(packet));
                assert_eq!(testing::flat(packet)[packet.head.len()..], data);
            })
        });
    }
    let rx = port.counters().rx;
    assert_eq!((rx.trains, rx.segments - rx.packets), (2, 2 * 15));
}

/// The test's TCP end point behind the device, for one connection that the kernel opens.
struct Far<'a> {
    port: &'a mut TunPort,
    into: RxBatch,
    pages: PagePool,
    ends: (IpAddr, IpAddr),
    ports: (u16, u16),
    seq: u32,
    ack: u32,
}

impl Far<'_> {
    fn send(&mut self, flags: u8, payload: &[u8], unit: Unit) {
        let fill = if unit == Unit::Whole(Csum::Unknown) { Fill::Good } else { Fill::Primed };
        let segment = testing::tcp(self.ports, self.seq, self.ack, flags, payload);
        let bytes = testing::ip_packet(self.ends, 6, 16, &segment, fill);
        let mut packet = testing::load(&mut self.pages, &bytes);
        packet.offload.unit = unit;
        self.seq = self.seq.wrapping_add(payload.len() as u32 + u32::from(flags & SYN != 0));
        transmit(self.port, [packet]);
    }

    /// Returns the next segment of the connection: sequence number, flags, unit, payload.
    fn receive(&mut self) -> (u32, u8, Unit, Vec<u8>) {
        let ports = self.ports;
        receive(self.port, &mut self.into, |packet| {
            let (kind, header) = packet.transport()?;
            let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
            if kind != Kind::Tcp || word(2) != ports.0 {
                return None;
            }
            assert!(completes_to_good(packet));
            let seq = u32::from(word(4)) << 16 | u32::from(word(6));
            Some((seq, header[13], packet.offload.unit, testing::flat(packet)[packet.head.len()..].to_vec()))
        })
    }
}

/// Opens a connection from the kernel to a port behind the device, including the handshake.
fn connect<'a>(port: &'a mut TunPort, ends: (&str, &str)) -> (TcpStream, Far<'a>) {
    let (here, there) = addresses(ends);
    let client = std::thread::spawn({
        // Made here, because a socket is in the namespace of the thread that makes it.
        let socket = testing::tcp_socket(there).unwrap();
        move || {
            crate::sys::connect(socket.as_fd(), SocketAddr::new(there, 5001)).map(|()| TcpStream::from(socket)).unwrap()
        }
    });
    let mut far = Far {
        port,
        into: RxBatch::new(32),
        pages: PagePool::new(8),
        ends: (there, here),
        ports: (5001, 0),
        seq: 1_000_000,
        ack: 0,
    };
    let (seq, flags, unit, from) = receive(far.port, &mut far.into, |packet| {
        let (kind, header) = packet.transport()?;
        // The connection before may have left its last acknowledgments.
        (kind == Kind::Tcp && header[13] & SYN != 0).then(|| {
            assert!(completes_to_good(packet));
            let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
            (u32::from(word(4)) << 16 | u32::from(word(6)), header[13], packet.offload.unit, word(0))
        })
    });
    // The upper two flags ask for ECN.
    assert_eq!((flags & 0x3f, unit), (SYN, Unit::Whole(Csum::Partial)));
    far.ports.1 = from;
    far.ack = seq.wrapping_add(1);
    far.send(SYN | ACK, &[], Unit::Whole(Csum::Unknown));
    (client.join().unwrap(), far)
}

#[test]
fn tcp_trains_cross_in_both_directions_with_their_bytes() {
    let Some(mut port) = device(TunOffloads::All) else {
        return;
    };
    for ends in ENDS {
        let (mut stream, mut far) = connect(&mut port, ends);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();

        // The kernel sends: its initial window comes as trains, which the test acknowledges.
        let data = bytes(60_000, 3);
        let writer = std::thread::spawn({
            let (mut stream, data) = (stream.try_clone().unwrap(), data.clone());
            move || stream.write_all(&data).unwrap()
        });
        let (mut got, mut trains) = (Vec::new(), 0);
        while got.len() < data.len() {
            let (seq, _, unit, payload) = far.receive();
            if payload.is_empty() {
                continue;
            }
            match unit {
                Unit::Train { csum, gso } => {
                    assert_eq!((csum, gso.kind), (TrainCsum::Partial, GsoKind::Tcp));
                    assert!(usize::from(gso.size) < payload.len() && gso.size >= 500, "{gso:?}");
                    trains += 1;
                }
                Unit::Whole(csum) => assert_eq!(csum, Csum::Partial),
            }
            assert_eq!(seq, far.ack, "nothing is lost or out of order here");
            far.ack = far.ack.wrapping_add(payload.len() as u32);
            got.extend(payload);
            far.send(ACK, &[], Unit::Whole(Csum::Unknown));
        }
        writer.join().unwrap();
        assert!(got == data, "the bytes differ");
        assert!(trains > 0, "no train came");

        // The test sends: a train built by hand, with the sizes that a segment of 1400 bytes gives.
        let reply = bytes(30_000, 4);
        let before = far.port.counters().tx;
        let gso = Gso { kind: GsoKind::Tcp, size: 1400, fixed_ids: 0 };
        far.send(ACK | PSH, &reply, Unit::Train { csum: TrainCsum::Partial, gso });
        let after = far.port.counters().tx;
        assert_eq!((after.calls - before.calls, after.trains - before.trains), (1, 1), "written whole");
        assert_eq!(after.segments - before.segments, 22);
        let mut received = vec![0; reply.len()];
        stream.read_exact(&mut received).unwrap();
        assert!(received == reply, "the bytes differ");
        assert_eq!((far.port.counters().drops.total(), far.port.counters().fallbacks.total()), (0, 0));
    }
}

/// Builds a UDP train from behind the device to the kernel's `target`.
fn udp_train(pages: &mut PagePool, ends: (&str, &str), target: u16, data: &[u8], size: u16) -> Box<Packet<Page>> {
    let (here, there) = addresses(ends);
    let bytes = testing::ip_packet((there, here), 17, 6, &testing::udp(9, target, data), Fill::Primed);
    let mut packet = testing::load(pages, &bytes);
    let gso = Gso { kind: GsoKind::Udp, size, fixed_ids: 0 };
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
    packet
}

pub(super) fn expect_datagrams(socket: &UdpSocket, data: &[u8], size: usize) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = vec![0; 65_536];
    for part in data.chunks(size) {
        let len = socket.recv(&mut got).unwrap();
        assert!(got[..len] == *part, "{len} bytes differ");
    }
}

#[test]
fn a_udp_train_arrives_as_its_datagrams() {
    let Some(mut port) = device(TunOffloads::All) else { return };
    let mut pages = PagePool::new(4);
    for ends in ENDS {
        let socket = UdpSocket::bind(SocketAddr::new(addresses(ends).0, 0)).unwrap();
        let target = socket.local_addr().unwrap().port();
        let data = bytes(9_999, 5);
        transmit(&mut port, [udp_train(&mut pages, ends, target, &data, 1000)]);
        expect_datagrams(&socket, &data, 1000);
    }
    assert_eq!(port.counters().drops.total(), 0);
}

#[test]
fn a_refused_train_narrows_the_port_and_arrives_all_the_same() {
    let Some(mut port) = device(TunOffloads::All) else {
        return;
    };
    if !port.limits().uso {
        return segue_lab::skip_this_test("this kernel has no USO on TUN");
    }
    port.refuse_trains = Some(libc::EINVAL);
    let mut pages = PagePool::new(4);
    let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
    let target = socket.local_addr().unwrap().port();
    let data: VecDeque<Vec<u8>> = (0..3).map(|seed| bytes(3_500, seed)).collect();
    let trains: Vec<_> = data.iter().map(|data| udp_train(&mut pages, ENDS[0], target, data, 1000)).collect();
    transmit(&mut port, trains);
    for data in &data {
        expect_datagrams(&socket, data, 1000);
    }
    let counters = port.counters();
    assert_eq!((counters.fallbacks.of(Fallback::TunUdpTrain), counters.fallbacks.total()), (1, 1));
    assert_eq!((counters.tx.packets, counters.tx.trains, counters.tx.calls), (12, 0, 13));
    assert!(!port.limits().uso && port.limits().tso4);
    assert!(port.offloads().contains(&("tun_uso", OffloadState::Refused(libc::EINVAL))));
    assert!(port.offloads().contains(&("tun_tso4", OffloadState::On)));
}

#[test]
fn without_offloads_every_packet_is_whole_and_complete() {
    let Some(mut port) = device(TunOffloads::None) else {
        return;
    };
    assert!(port.offloads().iter().all(|(_, state)| *state == OffloadState::Off));
    let mut into = RxBatch::new(16);
    let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
    let target = SocketAddr::new("198.18.0.2".parse().unwrap(), 7);
    let data = bytes(4_000, 1);
    let mut scratch = SendScratch::default();
    let mut out = scratch.begin();
    out.message();
    out.piece(&data);
    out.control(libc::SOL_UDP, UDP_SEGMENT, 1000u16);
    out.send(socket.as_fd(), Some(target), 0).unwrap();
    for part in data.chunks(1000) {
        receive(&mut port, &mut into, |packet| {
            is(packet, Kind::Udp).then(|| {
                assert_eq!(packet.offload.unit, Unit::Whole(Csum::Unknown));
                assert!(testing::checksum_is_good(&testing::flat(packet)));
                assert_eq!(testing::flat(packet)[packet.head.len()..], *part);
            })
        });
    }
    let mut pages = PagePool::new(4);
    let train = udp_train(&mut pages, ENDS[0], socket.local_addr().unwrap().port(), &data, 1000);
    let mut batch = transmit(&mut port, [train]);
    expect_datagrams(&socket, &data, 1000);
    assert_eq!(batch.take_checksummed(), 4_000);
    assert_eq!((port.counters().tx.packets, port.counters().tx.trains), (4, 0));
}

#[test]
fn a_kernel_tunnel_over_the_device_gets_its_inner_checksum_computed() {
    let Some(mut port) = device(TunOffloads::All) else { return };
    if !testing::try_ip("link add vx0 type vxlan id 5 local 198.18.0.1 remote 198.18.0.2 dstport 4789 udpcsum") {
        return segue_lab::skip_this_test("this kernel has no VXLAN");
    }
    testing::ip("addr add 198.18.1.1/24 dev vx0");
    testing::ip("link set vx0 up");
    testing::ip("neigh add 198.18.1.2 lladdr 02:00:00:00:00:02 dev vx0");
    let socket = UdpSocket::bind("198.18.1.1:0").unwrap();
    let data = bytes(777, 6);
    socket.send_to(&data, "198.18.1.2:7").unwrap();
    let mut into = RxBatch::new(16);
    receive(&mut port, &mut into, |packet| {
        let bytes = testing::flat(packet);
        // Outer IPv4, UDP, VXLAN, Ethernet, inner IPv4.
        let inner = bytes.get(20 + 8 + 8 + 14..).filter(|_| is(packet, Kind::Udp))?;
        (inner.len() == 20 + 8 + data.len()).then(|| {
            assert!(testing::checksum_is_good(&bytes), "outer");
            assert!(testing::checksum_is_good(inner), "inner");
            assert_eq!(packet.offload.unit, Unit::Whole(Csum::Unknown));
            assert_eq!(inner[28..], data);
        })
    });
    assert!(port.counters().fallbacks.of(Fallback::ForeignChecksum) >= 1);
    assert!(port.counters().checksummed_bytes >= 8 + 777);
}

#[test]
fn a_device_for_writing_only_gives_single_packets_and_takes_trains() {
    let Some(port) = device(TunOffloads::WriteOnly) else { return };
    let limits = *port.limits();
    assert!(limits.csum && limits.tso4 && limits.tso6, "it takes trains");
    assert!(port.offloads().iter().all(|(_, state)| *state == OffloadState::Off), "none is made for us");
}

#[test]
fn a_device_that_is_down_costs_packets_that_are_counted() {
    let Some(mut port) = device(TunOffloads::All) else {
        return;
    };
    testing::ip("link set sg0 down");
    let mut pages = PagePool::new(4);
    let train = udp_train(&mut pages, ENDS[0], 7, &bytes(3_000, 0), 1000);
    transmit(&mut port, [train]);
    assert_eq!((port.counters().drops.of(Drop::DeviceDown), port.counters().drops.total()), (3, 3));
}

#[test]
fn a_poll_ends_with_its_bytes_and_small_packets_with_their_number() {
    let Some(mut port) = device(TunOffloads::NoUdp) else { return };
    testing::ip("link set sg0 mtu 65000");
    let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
    let mut into = RxBatch::new(64);
    let mut sizes = |len: usize, count: usize| {
        for _ in 0..count {
            socket.send_to(&bytes(len, 1), "198.18.0.2:7").unwrap();
        }
        let mut polls = Vec::new();
        loop {
            let polled = port.receive(&mut into, 128).unwrap();
            let received: Vec<_> = std::iter::from_fn(|| into.pop_packet()).collect();
            polls.push(received.iter().filter(|packet| is(packet, Kind::Udp)).count());
            if polled == Polled::Idle {
                return polls;
            }
        }
    };
    // Eighteen are more than a mebibyte. Solicitations of routers may be among them.
    assert_eq!(sizes(60_000, 20), [18, 2]);
    let small = sizes(100, 150);
    assert!(small[0] > 120 && small.iter().sum::<usize>() == 150, "{small:?}");
}

#[test]
fn an_exhausted_page_pool_leaves_packets_in_the_device() {
    let Some(mut port) = device(TunOffloads::NoUdp) else {
        return;
    };
    let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
    let count = 2 * crate::page::PAGE_LEN / 1408;
    for seed in 0..count {
        socket.send_to(&bytes(1_300, seed), "198.18.0.2:7").unwrap();
    }
    let mut into = RxBatch::new(1);
    let mut seen = Vec::new();
    let end = Instant::now() + PATIENCE;
    let mut starved = 0;
    while seen.len() < count && Instant::now() < end {
        starved += u32::from(port.receive(&mut into, 64).unwrap() == Polled::Starved);
        while let Some(packet) = into.pop_packet() {
            if is(&packet, Kind::Udp) {
                seen.push(testing::flat(&packet)[28..].to_vec());
            }
            into.pool.put(packet);
        }
    }
    assert!(starved > 0 && into.pages.exhausted() > 0);
    assert!(seen == (0..count).map(|seed| bytes(1_300, seed)).collect::<Vec<_>>(), "{} of {count}", seen.len());
}

#[test]
fn a_busy_name_and_a_bad_name_are_told_apart() {
    let Some(port) = device(TunOffloads::All) else { return };
    for existing in [Existing::Refuse, Existing::Attach] {
        let error = TunPort::open(&TunConfig { existing, ..config("sg0", TunOffloads::All) }).unwrap_err();
        assert!(matches!(&error, OpenError::Busy(name) if name == "sg0"), "{error}");
        assert_eq!(error.to_string(), "device sg0 is already in use");
    }
    for name in ["sixteen-bytes-xx", "a/b", "lo"] {
        let error = TunPort::open(&config(name, TunOffloads::All)).unwrap_err();
        assert!(matches!(error, OpenError::Name(_) | OpenError::Busy(_)), "{name}: {error:?}");
    }
    let numbered = TunPort::open(&config("sgx%d", TunOffloads::All)).unwrap();
    assert_eq!((port.name(), numbered.name()), ("sg0", "sgx0"));
}

#[test]
fn a_descriptor_can_be_handed_over_with_its_device() {
    let Some(port) = device(TunOffloads::None) else { return };
    // Without the header in the first place, there are no offloads for the second owner either.
    let port = TunPort::from_fd(port.into_fd(), TunOffloads::All).unwrap();
    assert_eq!((port.name(), port.limits().csum), ("sg0", false));
    drop(port);
    let port = TunPort::open(&config("sg1", TunOffloads::All)).unwrap();
    testing::ip("addr add 198.18.5.1/24 dev sg1");
    testing::ip("link set sg1 up");
    let mut port = TunPort::from_fd(port.into_fd(), TunOffloads::None).unwrap();
    assert_eq!((port.name(), port.limits().csum), ("sg1", false));
    let socket = UdpSocket::bind("198.18.5.1:0").unwrap();
    socket.send_to(&bytes(100, 1), "198.18.5.2:7").unwrap();
    receive(&mut port, &mut RxBatch::new(4), |packet| {
        is(packet, Kind::Udp).then(|| assert!(testing::checksum_is_good(&testing::flat(packet))))
    });
    let file = OpenOptions::new().read(true).open("/dev/null").unwrap();
    assert!(matches!(TunPort::from_fd(file.into(), TunOffloads::All), Err(OpenError::Call("TUNGETIFF", _))));
}

#[test]
fn after_warm_up_nothing_is_allocated() {
    let Some(mut port) = device(TunOffloads::All) else { return };
    let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
    let mut into = RxBatch::new(16);
    let mut batch = TxBatch::new();
    let data = bytes(1_000, 1);
    let target: SocketAddr = "198.18.0.2:7".parse().unwrap();
    let mut round = || {
        for _ in 0..30 {
            socket.send_to(&data, target).unwrap();
        }
        let (end, mut seen) = (Instant::now() + PATIENCE, 0);
        while seen < 30 && Instant::now() < end {
            port.receive(&mut into, 16).unwrap();
            while let Some(packet) = into.pop_packet() {
                seen += u32::from(is(&packet, Kind::Udp));
                // Back to where it came from, with the same addresses: the kernel drops it.
                batch.push(packet, port.limits()).unwrap();
            }
            while port.transmit(&mut batch).unwrap() != Sent::All {}
            batch.recycle(&mut into.pool);
        }
        assert_eq!(seen, 30);
    };
    (0..5).for_each(|_| round());
    let before = testing::allocations();
    (0..5).for_each(|_| round());
    assert_eq!(testing::allocations() - before, 0);
}

/// Creates a TAP with an address of each family, and a station behind it with a permanent neighbour entry.
#[track_caller]
pub(super) fn tap(offloads: TunOffloads) -> Option<TunPort> {
    testing::namespace()?;
    let port = match TunPort::open(&TunConfig { layer: Layer::Ethernet, ..config("tp0", offloads) }) {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            segue_lab::skip_this_test(&format!("no TAP device: {error}"));
            return None;
        }
        port => port.unwrap(),
    };
    testing::ip("link set tp0 address 02:00:00:00:00:02");
    testing::ip("addr add 198.18.0.1/24 dev tp0");
    testing::ip("addr add 2001:db8::1/64 dev tp0 nodad");
    testing::ip("link set tp0 up mtu 1500");
    testing::wait_for_local("2001:db8::1".parse().unwrap());
    for address in ["198.18.0.2", "2001:db8::2"] {
        testing::ip(&format!("neigh add {address} lladdr 02:00:00:00:00:01 dev tp0"));
    }
    Some(port)
}

#[test]
fn frames_and_trains_of_the_kernel_come_through_a_tap_with_a_valid_state() {
    let Some(mut port) = tap(TunOffloads::All) else {
        return;
    };
    let mut into = RxBatch::new(16);
    for ends in ENDS {
        let (here, there) = addresses(ends);
        let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
        for len in [1, 999, 20_000] {
            let data = bytes(len, len);
            let mut scratch = SendScratch::default();
            let mut out = scratch.begin();
            out.message();
            out.piece(&data);
            out.control(libc::SOL_UDP, UDP_SEGMENT, 1300u16);
            out.send(socket.as_fd(), Some(SocketAddr::new(there, 7)), 0).unwrap();
            receive(&mut port, &mut into, |packet| {
                is(packet, Kind::Udp).then(|| {
                    assert!(testing::is_good_once_complete(packet));
                    let gso = Gso { kind: GsoKind::Udp, size: 1300, fixed_ids: 0 };
                    let train = Unit::Train { csum: TrainCsum::Partial, gso };
                    assert_eq!(packet.offload.unit, if len > 1300 { train } else { Unit::Whole(Csum::Partial) });
                    let frame = testing::flat(packet);
                    assert_eq!(frame[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
                    assert_eq!(frame[packet.head.len()..], data);
                })
            });
        }
    }
    assert_eq!((port.counters().drops.total(), port.layer()), (0, Layer::Ethernet));
    assert!(port.offloads().contains(&("tap_uso", OffloadState::On)));
}

#[test]
fn trains_written_to_a_tap_arrive_as_their_datagrams_whatever_it_may_take() {
    for offloads in [TunOffloads::All, TunOffloads::None] {
        let Some(mut port) = tap(offloads) else { return };
        let mut pages = PagePool::new(4);
        for ends in ENDS {
            let (here, there) = addresses(ends);
            let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
            let target = socket.local_addr().unwrap().port();
            let data = bytes(9_999, 5);
            let ip = testing::ip_packet((there, here), 17, 6, &testing::udp(9, target, &data), Fill::Primed);
            let mut frame = testing::ethernet(&[], &ip);
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            let mut packet = testing::load_frame(&mut pages, &frame);
            let gso = Gso { kind: GsoKind::Udp, size: 1000, fixed_ids: 0 };
            packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
            transmit(&mut port, [packet]);
            expect_datagrams(&socket, &data, 1000);
        }
        let trains = if offloads == TunOffloads::All && port.limits().uso { 2 } else { 0 };
        assert_eq!((port.counters().tx.trains, port.counters().drops.total()), (trains, 0));
    }
}

#[test]
fn a_descriptor_knows_whether_its_device_is_a_tap() {
    let Some(port) = tap(TunOffloads::All) else { return };
    let error =
        TunPort::open(&TunConfig { existing: Existing::Attach, ..config("tp0", TunOffloads::All) }).unwrap_err();
    assert!(matches!(error, OpenError::Name(_) | OpenError::Busy(_)), "a TUN is no TAP: {error:?}");
    let port = TunPort::from_fd(port.into_fd(), TunOffloads::None).unwrap();
    assert_eq!((port.name(), port.layer(), port.limits().csum), ("tp0", Layer::Ethernet, false));
}
