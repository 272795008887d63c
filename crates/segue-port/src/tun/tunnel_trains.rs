//! Tests of trains inside the kernel's VXLAN on a TAP device, which kernels from Linux 6.17 on hand over whole.

use std::net::{SocketAddr, UdpSocket};

use segue::packet::{Gso, GsoKind, Kind, Layer, LayerCsum, Packet, TrainCsum, Unit};

use super::tests::{ENDS, addresses, config, device, expect_datagrams, receive, tap, transmit};
use super::*;
use crate::page::{Page, PagePool};
use crate::sys::UDP_SEGMENT;
use crate::testing::{self, Fill, bytes};

/// The kernel's addresses inside of VXLAN, and the test's.
const INNER_ENDS: [(&str, &str); 2] = [("198.18.1.1", "198.18.1.2"), ("2001:db8:1::1", "2001:db8:1::2")];
/// UDP port of the kernel's VXLAN, from which it sends too, so that both ports can be swapped.
const PORT: u16 = 4789;
const SIZE: u16 = 1300;
const LEN: usize = 20_000;
const TRAIN: Unit = Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind: GsoKind::Udp, size: SIZE, fixed_ids: 0 } };
/// Length of VXLAN's own header, bytes.
const VXLAN_LEN: usize = 8;

/// Makes the kernel's VXLAN between the ends of a TAP, with outer checksums or without. `false` where the kernel has
/// none, which is noted.
#[track_caller]
fn vxlan(outer: (&str, &str), has_csum: bool) -> bool {
    let csum = match (has_csum, outer.0.contains(':')) {
        (true, false) => "udpcsum",
        (false, false) => "noudpcsum",
        (true, true) => "noudp6zerocsumtx noudp6zerocsumrx",
        (false, true) => "udp6zerocsumtx udp6zerocsumrx",
    };
    let (local, remote) = outer;
    let ports = format!("dstport {PORT} srcport {PORT} {}", PORT + 1);
    let line = format!("link add vx0 type vxlan id 5 local {local} remote {remote} dev tp0 {ports} {csum}");
    if !testing::try_ip(&line) {
        segue_lab::skip_this_test("this kernel has no VXLAN");
        return false;
    }
    testing::ip("link set vx0 address 02:00:00:00:00:04");
    testing::ip("addr add 198.18.1.1/24 dev vx0");
    testing::ip("addr add 2001:db8:1::1/64 dev vx0 nodad");
    testing::ip("link set vx0 up");
    testing::wait_for_local("2001:db8:1::1".parse().unwrap());
    for (_, there) in INNER_ENDS {
        testing::ip(&format!("neigh add {there} lladdr 02:00:00:00:00:03 dev vx0"));
    }
    true
}

/// Creates a TAP that takes trains inside of tunnels; `None` where this kernel has no such offload, which is noted.
#[track_caller]
fn tunnel_tap() -> Option<TunPort> {
    let port = tap(TunOffloads::All)?;
    if port.limits().udp_tunnel {
        return Some(port);
    }
    segue_lab::skip_this_test("this kernel has no offload of UDP tunnels on TAP");
    None
}

/// Sends `data` from a new socket in one call, as datagrams of [`SIZE`] bytes.
fn send(ends: (&str, &str), data: &[u8]) -> UdpSocket {
    let (here, there) = addresses(ends);
    let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
    let mut scratch = SendScratch::default();
    let mut out = scratch.begin();
    out.message();
    out.piece(data);
    out.control(libc::SOL_UDP, UDP_SEGMENT, SIZE);
    assert_eq!(out.send(socket.as_fd(), Some(SocketAddr::new(there, 7)), 0).unwrap(), 1);
    socket
}

/// Returns a copy of a train or of a datagram to VXLAN's port, `None` for any other packet.
fn copy_of(packet: &Packet<Page>, levels: usize) -> Option<Box<Packet<Page>>> {
    let udp = packet.layout.headers().iter().find(|header| header.kind == Kind::Udp)?;
    let target = packet.head.bytes()[udp.start() + 2..udp.start() + 4].try_into().map(u16::from_be_bytes).ok()?;
    // The kernel announces its groups through the tunnel too.
    let is_ours = target == PORT && packet.layout.ip_levels() == levels && packet.len() > usize::from(SIZE);
    is_ours.then(|| {
        let mut copy = Box::new(Packet::default());
        copy.copy_from(packet);
        copy
    })
}

/// Reads until a train inside of VXLAN comes.
fn receive_train(port: &mut TunPort) -> Box<Packet<Page>> {
    receive(port, &mut RxBatch::new(16), |packet| copy_of(packet, 2))
}

/// Returns whether the checksums of a train inside of a tunnel are right once they are complete, the inner one first;
/// an outer one that is zero is left so.
fn is_good_once_complete(train: &Packet<Page>) -> bool {
    let mut bytes = testing::flat(train);
    let (Some(outer), Some(inner)) = (train.layout.outer_ip(), train.layout.inner_ip()) else { return false };
    for ip in [inner, outer] {
        let (start, field) = (ip.end(), ip.end() + 6);
        if ip == inner || bytes[field..field + 2] != [0, 0] {
            let sum = !testing::sum16(&[&bytes[start..]]);
            bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            if !testing::checksum_is_good(&bytes[ip.start()..]) {
                return false;
            }
        }
    }
    true
}

/// Swaps the two halves of `bytes`.
fn swap(bytes: &mut [u8]) {
    let (front, behind) = bytes.split_at_mut(bytes.len() / 2);
    front.swap_with_slice(behind);
}

/// Turns a packet inside of VXLAN around: the stations, addresses and ports of both levels.
fn turn(packet: &mut Packet<Page>) {
    let layout = packet.layout;
    let bytes = packet.head.bytes_mut();
    swap(&mut bytes[..12]);
    for header in layout.headers() {
        let start = header.start();
        match header.kind {
            Kind::Ipv4 => swap(&mut bytes[start + 12..start + 20]),
            Kind::Ipv6 => swap(&mut bytes[start + 8..start + 40]),
            Kind::Udp => swap(&mut bytes[start..start + 4]),
            // VXLAN and the Ethernet header inside.
            Kind::Gue => swap(&mut bytes[start + VXLAN_LEN..start + VXLAN_LEN + 12]),
            _ => {}
        }
    }
}

#[test]
fn a_train_in_vxlan_comes_whole_and_returns_whole() {
    for outer in ENDS {
        for has_csum in [true, false] {
            let Some(mut port) = tunnel_tap() else { return };
            if !vxlan(outer, has_csum) {
                return;
            }
            assert_eq!(port.form(), Some(Form::Tunnel));
            assert!(port.offloads().contains(&("tap_udp_tunnel", OffloadState::On)));
            for (at, inner) in INNER_ENDS.into_iter().enumerate() {
                let data = bytes(LEN, at);
                let socket = send(inner, &data);
                let mut train = receive_train(&mut port);
                let udp = if has_csum { LayerCsum::Owed } else { LayerCsum::Absent };
                assert_eq!(train.offload.unit, TRAIN, "{outer:?} {inner:?} {has_csum}");
                assert_eq!(train.offload.layers(), [Layer { udp, ..Layer::NONE }]);
                assert!(is_good_once_complete(&train), "{outer:?} {inner:?} {has_csum}");
                assert_eq!(testing::flat(&train)[train.head.len()..], data);

                turn(&mut train);
                let before = port.counters().tx;
                transmit(&mut port, [train]);
                expect_datagrams(&socket, &data, usize::from(SIZE));
                let after = port.counters().tx;
                let done = [after.calls - before.calls, after.trains - before.trains, after.segments - before.segments];
                assert_eq!(done, [1, 1, LEN.div_ceil(usize::from(SIZE)) as u64], "written whole");
            }
            let counters = port.counters();
            assert_eq!((counters.fallbacks.of(Fallback::TapTunnelTrain), counters.drops.total()), (0, 0));
        }
    }
}

#[test]
fn a_kernel_without_the_offload_leaves_the_basic_form() {
    let bits = virtio::TAP_TUNNEL_OFFLOADS;
    if let Err(error) = testing::refuse_ioctl(libc::TUNSETOFFLOAD as u32, bits) {
        return segue_lab::skip_this_test(&format!("no filter of system calls: {error}"));
    }
    let Some(mut port) = tap(TunOffloads::All) else { return };
    assert_eq!(port.form(), Some(Form::Basic));
    let limits = *port.limits();
    assert!(limits.tso4 && limits.tso6 && !limits.udp_tunnel && !limits.udp_tunnel_csum, "{limits:?}");
    let offloads = port.offloads();
    assert!(offloads.iter().all(|(name, _)| *name != "tap_udp_tunnel"), "{offloads:?}");
    if limits.uso {
        // A kernel without the offload is no fault.
        assert!(offloads.iter().all(|(_, state)| *state == OffloadState::On), "{offloads:?}");
    }
    if !vxlan(ENDS[0], true) {
        return;
    }
    let data = bytes(LEN, 1);
    let _socket = send(INNER_ENDS[0], &data);
    let mut into = RxBatch::new(16);
    for part in data.chunks(usize::from(SIZE)).take(LEN / usize::from(SIZE)) {
        let single = receive(&mut port, &mut into, |packet| copy_of(packet, 1));
        let frame = testing::flat(&single);
        assert!(matches!(single.offload.unit, Unit::Whole(_)), "{:?}", single.offload.unit);
        assert!(testing::is_good_once_complete(&single), "the outer checksum");
        let inner = frame.get(14 + 20 + 8 + VXLAN_LEN + 14..).unwrap();
        assert!(testing::checksum_is_good(inner) && inner[28..] == *part);
    }
}

#[test]
fn a_descriptor_keeps_the_form_of_its_device_whatever_its_new_user_asks_for() {
    let Some(mut first) = tunnel_tap() else { return };
    let (here, there) = addresses(ENDS[0]);
    let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
    for offloads in [TunOffloads::All, TunOffloads::WriteOnly, TunOffloads::NoUdp, TunOffloads::None] {
        let fd = first.try_clone_fd().unwrap();
        let mut second = TunPort::from_fd(fd, offloads).unwrap();
        assert_eq!(second.form(), Some(Form::Tunnel), "{offloads:?}");
        assert_eq!(second.limits().udp_tunnel, takes_all(offloads), "{offloads:?}");
        // The one before, which may go on if the new user does not, reads the same headers.
        for port in [&mut first, &mut second] {
            let data = bytes(1_000, 3);
            socket.send_to(&data, SocketAddr::new(there, 7)).unwrap();
            let read = receive(port, &mut RxBatch::new(4), |packet| {
                let bytes = testing::flat(packet);
                bytes.ends_with(&data).then(|| (bytes.len(), testing::is_good_once_complete(packet)))
            });
            assert_eq!(read, (14 + 20 + 8 + data.len(), true), "{offloads:?}");
        }
    }
}

#[test]
fn a_device_for_writing_only_takes_trains_in_tunnels_and_gives_none() {
    let Some(mut port) = tap(TunOffloads::WriteOnly) else { return };
    if !port.limits().udp_tunnel {
        return segue_lab::skip_this_test("this kernel has no offload of UDP tunnels on TAP");
    }
    assert!(port.offloads().iter().all(|(_, state)| *state == OffloadState::Off), "none is made for us");
    if !vxlan(ENDS[0], false) {
        return;
    }
    let data = bytes(LEN, 2);
    let socket = send(INNER_ENDS[0], &data);
    let single = receive(&mut port, &mut RxBatch::new(32), |packet| copy_of(packet, 1));
    assert!(matches!(single.offload.unit, Unit::Whole(_)), "{:?}", single.offload.unit);

    // A train as it would have been read.
    let mut frame = testing::flat(&single);
    let target = socket.local_addr().unwrap().port();
    let (here, there) = addresses(INNER_ENDS[0]);
    let inside = testing::ip_packet((there, here), 17, 6, &testing::udp(7, target, &data), Fill::Primed);
    let inner_at = 14 + 20 + 8 + VXLAN_LEN + 14;
    frame.truncate(inner_at);
    frame.extend(inside);
    let len = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    frame[24..26].fill(0);
    let sum = !testing::sum16(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[38..40].copy_from_slice(&(len - 20).to_be_bytes());
    swap(&mut frame[..12]);
    swap(&mut frame[26..34]);
    swap(&mut frame[inner_at - 14..inner_at - 2]);
    let header = VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_UDP_L4 | virtio::GSO_UDP_TUNNEL_IPV4,
        gso_size: SIZE,
        csum_start: (inner_at + 20) as u16,
        csum_offset: 6,
        outer_th: 34,
        inner_nh: inner_at as u16,
        ..VirtioNet::default()
    };
    let mut pages = PagePool::new(1);
    let piece = testing::ranges(&mut pages, &frame, usize::MAX).remove(0);
    let mut train = Box::new(Packet::default());
    assert_eq!(virtio::load(&header, piece, Start::Ethernet, &mut train), Ok(virtio::Loaded::Ready));
    assert_eq!(train.offload.unit, TRAIN);
    transmit(&mut port, [train]);
    expect_datagrams(&socket, &data, usize::from(SIZE));
    assert_eq!((port.counters().tx.calls, port.counters().tx.trains), (1, 1), "written whole");
}

#[test]
fn a_tun_has_the_basic_form_and_takes_no_trains_in_tunnels() {
    let Some(port) = device(TunOffloads::All) else { return };
    let port = TunPort::from_fd(port.into_fd(), TunOffloads::All).unwrap();
    assert_eq!((port.form(), port.limits().udp_tunnel), (Some(Form::Basic), false));
    assert!(port.offloads().iter().all(|(name, _)| !name.contains("tunnel")), "{:?}", port.offloads());
    drop(port);
    let plain = TunConfig { layer: super::Layer::Ethernet, ..config("tp1", TunOffloads::NoUdp) };
    assert_eq!(TunPort::open(&plain).unwrap().form(), Some(Form::Basic), "nor a TAP that is to take no UDP trains");
}

#[test]
fn a_refused_train_in_a_tunnel_leaves_the_plain_ones() {
    for has_csum in [true, false] {
        let Some(mut port) = tunnel_tap() else { return };
        if !vxlan(ENDS[0], has_csum) {
            return;
        }
        let data = bytes(LEN, 4);
        let socket = send(INNER_ENDS[0], &data);
        let mut train = receive_train(&mut port);
        turn(&mut train);
        port.refuse_trains = Some(libc::EINVAL);
        transmit(&mut port, [train]);
        expect_datagrams(&socket, &data, usize::from(SIZE));
        let counters = port.counters();
        let segments = LEN.div_ceil(usize::from(SIZE)) as u64;
        assert_eq!((counters.fallbacks.of(Fallback::TapTunnelTrain), counters.drops.total()), (1, 0));
        assert_eq!((counters.tx.packets, counters.tx.trains, counters.tx.calls), (segments, 0, segments + 1));
        let limits = *port.limits();
        assert!(
            !limits.udp_tunnel && !limits.udp_tunnel_csum && limits.tso4 && limits.tso6 && limits.uso,
            "{limits:?}"
        );
        assert!(port.offloads().contains(&("tap_udp_tunnel", OffloadState::Refused(libc::EINVAL))));
        assert!(port.offloads().contains(&("tap_uso", OffloadState::On)));

        // A plain train is still written whole.
        port.refuse_trains = None;
        let (here, there) = addresses(ENDS[0]);
        let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
        let target = socket.local_addr().unwrap().port();
        let ip = testing::ip_packet((there, here), 17, 6, &testing::udp(9, target, &data), Fill::Primed);
        let mut pages = PagePool::new(1);
        let mut plain = testing::load_frame(&mut pages, &testing::ethernet(&[], &ip));
        plain.offload.unit = TRAIN;
        transmit(&mut port, [plain]);
        expect_datagrams(&socket, &data, usize::from(SIZE));
        assert_eq!(port.counters().tx.trains, 1);
    }
}
