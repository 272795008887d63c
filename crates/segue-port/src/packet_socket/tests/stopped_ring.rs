//! A receive ring that the kernel has stopped filling.

use std::fs::File;

use segue::wire::virtio;

use super::*;
use crate::tun::{TunConfig, TunOffloads, TunPort};
use crate::{Interest, PollSet};

#[test]
fn a_train_that_the_virtio_header_cannot_describe_stops_the_ring_for_a_while_only() {
    let Some(()) = testing::namespace() else { return };
    let config = TunConfig { offloads: TunOffloads::NoUdp, ..TunConfig::ethernet("tap0") };
    let tap = TunPort::open(&config).unwrap();
    testing::ip("link set dev tap0 addrgenmode none");
    testing::ip("link set dev tap0 up");
    let mut port = PacketPort::open(&PacketConfig { ring_bytes: 1 << 18, ..PacketConfig::new("tap0") }).unwrap();
    port.listen().unwrap();
    let mut guest = File::from(tap.fd().try_clone_to_owned().unwrap());
    let mut write = |header: &VirtioNet, frame: &[u8]| {
        guest.write_all(&[&emit_native(header)[..], frame].concat()).unwrap();
    };
    let frame = udp_frame(&[], ENDS[0], &bytes(100, 1), Fill::Good);
    write(&VirtioNet::default(), &frame);
    let got = receive(&mut port, 1);
    assert!(got[0].1 == frame, "{:02x?} {:02x?}", got[0].1, frame);
    // Fragmentation of UDP is an offload that kernels take from a guest, and offer no receiver.
    let (flags, gso_type) = (virtio::NEEDS_CSUM, virtio::GSO_UDP);
    let train = VirtioNet {
        flags,
        gso_type,
        hdr_len: 42,
        gso_size: 1400,
        csum_start: 34,
        csum_offset: 6,
        ..VirtioNet::default()
    };
    write(&train, &udp_frame(&[], ENDS[0], &bytes(3_000, 1), Fill::Primed));
    let (mut into, begin) = (RxBatch::new(16), Instant::now());
    let (mut wake_ups, mut came) = (0, 0);
    while came == 0 {
        assert!(begin.elapsed() < PATIENCE, "{:?}", port.counters());
        write(&VirtioNet::default(), &frame);
        let mut set = PollSet::default();
        set.add(&Interest::read(port.link_fd().unwrap()));
        wake_ups += set.wait(Some(Duration::from_millis(100))).unwrap();
        port.listen().unwrap();
        port.receive(&mut into, 16).unwrap();
        while let Some(packet) = into.pop_packet() {
            assert!(testing::flat(&packet) == frame);
            came += 1;
        }
    }
    let drops = &port.counters().drops;
    assert!(wake_ups > 0 && drops.of(Drop::RingStopped) > 0, "{drops:?}");
    for _ in 0..2 * port.ring_frames() {
        write(&VirtioNet::default(), &frame);
        assert!(receive(&mut port, 1)[0].1 == frame);
    }
}
