use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};
use std::{fs, io};

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use segue::gso::Limits;
use segue::packet::{Csum, Frag, Frame, Outer, Packet, Pool, Start, Unit};
use segue::reason::Reason;
use segue::wire::protocol;

use super::*;
use crate::batch::{Burst, Received, RxBatch, TxBatch};
use crate::link::LinkState;
use crate::page::{Page, PagePool};
use crate::port::{Blocked, Counters, Extra, Fallback, OffloadState, Path, Polled, Port, Sent};
use crate::testing::{self, Fill, bytes};
use crate::udp::{Source, UdpConfig, UdpPort};

/// A port that delivers scripted packets and accepts all sent ones.
struct Scripted {
    packets: VecDeque<Received>,
    bursts: VecDeque<Burst>,
    counters: Counters,
    file: fs::File,
    /// Whether the port is one for datagrams.
    is_datagram: bool,
}

impl Scripted {
    fn new() -> Scripted {
        Scripted {
            packets: VecDeque::new(),
            bursts: VecDeque::new(),
            counters: Counters::default(),
            file: fs::File::open("/dev/null").unwrap(),
            is_datagram: true,
        }
    }
}

impl Port for Scripted {
    fn limits(&self) -> &Limits {
        &Limits::NONE
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        Vec::new()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let packets = self.packets.len().min(budget);
        into.packets.extend(self.packets.drain(..packets));
        let bursts = self.bursts.len().min(budget);
        into.bursts.extend(self.bursts.drain(..bursts));
        Ok(if self.packets.is_empty() && self.bursts.is_empty() { Polled::Idle } else { Polled::More })
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        // One at a time, so that a wrapper sees batches that are sent in parts.
        batch.sent(1);
        Ok(if batch.is_empty() { Sent::All } else { Sent::Blocked })
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn path_mtu(&self, to: u16) -> Option<usize> {
        Some(1321 + usize::from(to))
    }

    fn blocked_event(&self) -> Blocked {
        Blocked::Readable
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn listen(&mut self) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENODEV))
    }

    fn is_busy(&self) -> bool {
        true
    }

    fn link(&self) -> Option<LinkState> {
        Some(LinkState { is_up: false, mtu: 1400, is_gone: false })
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some([2, 0, 0, 0, 0, 7])
    }

    fn extras(&self, put: &mut dyn FnMut(Extra, &'static str, u64)) {
        put(Extra::Drop, "lost_elsewhere", 7);
    }

    fn path(&self, _slot: u16, to: u16) -> Option<Path> {
        let address = |last| SocketAddr::new(Ipv4Addr::new(198, 18, 0, last).into(), 0);
        let peer = address(2 + u8::try_from(to).unwrap());
        self.is_datagram.then(|| Path { source: address(1), peer, listen: address(1), protocol: protocol::GRE })
    }
}

fn udp_packet(pages: &mut PagePool, seed: usize) -> Box<Packet<Page>> {
    let ends = (IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)));
    let packet = testing::ip_packet(ends, 17, 6, &testing::udp(1, 2, &bytes(100 + seed, seed)), Fill::Good);
    let mut packet = testing::load(pages, &packet);
    packet.offload.unit = Unit::Whole(Csum::Verified);
    packet
}

/// Returns a packet as delivered by a port: every other one is unparsed.
fn received(pages: &mut PagePool, seed: usize) -> Received {
    let packet = udp_packet(pages, seed);
    if seed % 2 == 1 {
        return Received::Packet(packet);
    }
    let bytes = testing::ranges(pages, &testing::flat(&packet), usize::MAX).remove(0);
    Received::Frame(Frame { bytes, start: Start::Ip, csum: Csum::Verified })
}

fn burst(pages: &mut PagePool, segment_len: usize, count: usize) -> Burst {
    let mut page = pages.take().unwrap();
    for index in 0..count {
        page.bytes_mut()[index * segment_len..][..segment_len].copy_from_slice(&bytes(segment_len, index));
    }
    let peer = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 7);
    Burst { page: page.freeze(segment_len * count), segment_len, peer, local: None, tos: 3, ttl: None }
}

fn datagrams(bursts: &VecDeque<Burst>) -> Vec<Vec<u8>> {
    bursts.iter().flat_map(|burst| burst.datagrams().map(|page| page.as_ref().to_vec()).collect::<Vec<_>>()).collect()
}

fn spoiled(odds: Odds, seed: u64) -> (Vec<Vec<u8>>, FaultCounts, usize) {
    let mut pages = PagePool::new(16);
    let mut inner = Scripted::new();
    inner.bursts.extend((0..8).map(|_| burst(&mut pages, 200, 40)));
    let mut port = Faults::new(inner, odds, seed);
    let mut into = RxBatch::new(512);
    assert_eq!(port.receive(&mut into, 64).unwrap(), Polled::Idle);
    assert!(into.bursts.iter().all(|burst| burst.tos == 3 && burst.segment_len > 0 && !burst.page.is_empty()));
    (datagrams(&into.bursts), port.counts(), into.bursts.len())
}

#[test]
fn without_odds_nothing_changes() {
    let mut pages = PagePool::new(1);
    let once = datagrams(&VecDeque::from([burst(&mut pages, 200, 40)]));
    let (got, counts, bursts) = spoiled(Odds::default(), 1);
    assert!(got == std::iter::repeat_n(once, 8).flatten().collect::<Vec<_>>());
    assert_eq!((bursts, counts), (8, FaultCounts { seen: 320, ..FaultCounts::default() }));
}

#[test]
fn a_seed_always_gives_the_same_faults_and_they_add_up() {
    let odds = Odds { loss: 9, duplicate: 11, reorder: 7, corrupt: 13 };
    let (got, counts, _) = spoiled(odds, 42);
    assert_eq!((got.clone(), counts), (spoiled(odds, 42).0, spoiled(odds, 42).1));
    assert_ne!(got, spoiled(odds, 43).0);
    assert_eq!(got.len() as u64, counts.seen - counts.lost + counts.duplicated);
    for count in [counts.lost, counts.duplicated, counts.reordered, counts.corrupted] {
        assert!((10..80).contains(&count), "{counts:?}");
    }
}

#[test]
fn corruption_flips_exactly_one_bit() {
    let (got, counts, _) = spoiled(Odds { corrupt: 4, ..Odds::default() }, 7);
    let clean = spoiled(Odds::default(), 7).0;
    let flipped = |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    let flips: Vec<u32> = got.iter().zip(&clean).map(flipped).collect();
    assert_eq!(got.len(), clean.len());
    assert!(flips.iter().all(|n| *n <= 1));
    assert_eq!(u64::from(flips.iter().sum::<u32>()), counts.corrupted);
}

#[test]
fn reordering_swaps_neighbours_and_loses_nothing() {
    let (mut got, counts, _) = spoiled(Odds { reorder: 5, ..Odds::default() }, 3);
    let mut clean = spoiled(Odds::default(), 3).0;
    assert_ne!(got, clean);
    assert!(counts.reordered > 10);
    got.sort();
    clean.sort();
    assert!(got == clean);
}

#[test]
fn packets_suffer_too_and_a_corrupt_one_is_no_longer_called_verified() {
    let mut pages = PagePool::new(128);
    let mut inner = Scripted::new();
    inner.packets.extend((0..100).map(|seed| received(&mut pages, seed)));
    let mut port = Faults::new(inner, Odds { loss: 10, duplicate: 10, reorder: 10, corrupt: 10 }, 5);
    let mut into = RxBatch::new(128);
    port.receive(&mut into, 200).unwrap();
    let counts = port.counts();
    assert_eq!(into.packets.len() as u64, counts.seen - counts.lost + counts.duplicated);
    let mut dropped = Vec::new();
    port.extras(&mut |kind, key, value| dropped.extend((kind == Extra::Drop).then_some((key, value))));
    assert_eq!(dropped, [("lost_elsewhere", 7), ("fault_lost", counts.lost)]);
    let mut bad = 0;
    while let Some(packet) = into.pop_packet() {
        let good = testing::checksum_is_good(&testing::flat(&packet));
        assert_eq!(packet.offload.unit, Unit::Whole(if good { Csum::Verified } else { Csum::Unknown }));
        bad += u64::from(!good);
    }
    assert!(bad >= counts.corrupted && counts.corrupted > 2 && counts.reordered > 2, "{counts:?}");
}

/// Errors of system calls that a port must withstand, the last of which says that its device is gone.
const ERRORS: [i32; 9] = [
    libc::EAGAIN,
    libc::EINTR,
    libc::ENOBUFS,
    libc::ENOMEM,
    libc::EMSGSIZE,
    libc::EPERM,
    libc::ENETDOWN,
    libc::EIO,
    libc::ENODEV,
];

#[test]
fn an_error_of_a_send_keeps_all_packets_or_drops_one_under_its_reason_and_passes() {
    // Consequences of each error at a packet port and at a datagram port: a reason, or that nothing is sent.
    const CONSEQUENCES: [[&str; 2]; ERRORS.len()] = [
        ["blocked", "blocked"],
        ["blocked", "blocked"],
        ["queue_full", "queue_full"],
        ["no_memory", "no_memory"],
        ["too_big", "too_big"],
        ["refused", "denied"],
        ["device_down", "unreachable"],
        ["device_down", "refused"],
        ["gone", "refused"],
    ];
    let cases = ERRORS.into_iter().zip(CONSEQUENCES);
    for (errno, is_datagram, consequence) in
        cases.flat_map(|(errno, [packet, datagram])| [(errno, false, packet), (errno, true, datagram)])
    {
        let mut pages = PagePool::new(8);
        let inner = Scripted { is_datagram, ..Scripted::new() };
        let mut port = Faults::new(inner, Odds::default(), 1).failing_sends(errno, Calls::First(2));
        let mut batch = TxBatch::new();
        assert_eq!(port.transmit(&mut batch).unwrap(), Sent::All, "a call with nothing to send is none that fails");
        for seed in 0..5 {
            batch.push(udp_packet(&mut pages, seed), port.limits()).unwrap();
        }
        for _ in 0..2 {
            match port.transmit(&mut batch) {
                // The inner port sends one packet at a time.
                Ok(sent) => assert!(sent == Sent::Blocked && consequence != "gone", "{errno}"),
                Err(error) => assert_eq!((error.raw_os_error(), consequence), (Some(errno), "gone")),
            }
        }
        let (counters, is_dropped) = (port.counters(), !["blocked", "gone"].contains(&consequence));
        let drops: Vec<_> = counters.drops.iter().filter(|(_, n)| *n > 0).map(|(why, n)| (why.name(), n)).collect();
        assert_eq!(drops, Vec::from_iter(is_dropped.then_some((consequence, 2))), "{errno}");
        // One of the others was sent after each that was dropped.
        assert_eq!(batch.len(), if is_dropped { 1 } else { 5 }, "{errno}");
        assert_eq!((counters.tx.calls, counters.blocked), (2, if consequence == "blocked" { 2 } else { 0 }));
        for left in (0..batch.len()).rev() {
            let sent = port.transmit(&mut batch).unwrap();
            assert_eq!((sent == Sent::All, batch.len()), (left == 0, left), "{errno}");
        }
        let mut numbers = Vec::new();
        port.extras(&mut |kind, key, value| numbers.extend((kind == Extra::Number).then_some((key, value))));
        assert_eq!(port.counts().send_errors, 2);
        assert!(numbers.contains(&("fault_send_errors", 2)) && numbers.contains(&("fault_receive_errors", 0)));
    }
}

#[test]
fn an_error_of_a_receive_leaves_all_packets_where_they_are_and_ends_the_poll() {
    for errno in ERRORS {
        let mut pages = PagePool::new(16);
        let mut inner = Scripted::new();
        inner.packets.extend((0..5).map(|seed| received(&mut pages, seed)));
        let expected: Vec<Vec<u8>> = (0..5).map(|seed| testing::flat(&udp_packet(&mut pages, seed))).collect();
        let mut port = Faults::new(inner, Odds::default(), 1).failing_receives(Failure::Error(errno), Calls::Every(2));
        let mut into = RxBatch::new(8);
        for call in 1..=10_usize {
            match port.receive(&mut into, 1) {
                Ok(Polled::More) => assert!(call % 2 == 1 && call < 9, "{errno}"),
                Ok(polled) => assert_eq!((polled, call % 2 == 0 || call == 9), (Polled::Idle, true), "{errno}"),
                Err(error) => assert_eq!((error.raw_os_error(), call % 2), (Some(libc::ENODEV), 0), "{errno}"),
            }
            assert_eq!(into.packets.len(), call.div_ceil(2), "{errno}");
        }
        let got: Vec<Vec<u8>> =
            into.packets.iter().map(|packet| packet.pieces().flatten().copied().collect()).collect();
        assert_eq!(got, expected, "{errno}");
        let is_counted = ![libc::EAGAIN, libc::ENODEV].contains(&errno);
        assert_eq!(port.counters().fallbacks.of(Fallback::ReadFailed), if is_counted { 5 } else { 0 }, "{errno}");
        assert_eq!((port.counts().receive_errors, port.counters().drops.total()), (5, 0));
    }
}

#[test]
fn an_error_of_all_receives_ends_the_port_after_a_while_unless_it_says_that_there_is_nothing() {
    for errno in [libc::ENOMEM, libc::EAGAIN] {
        let failing = Faults::new(Scripted::new(), Odds::default(), 1);
        let mut port = failing.failing_receives(Failure::Error(errno), Calls::Every(1));
        let mut into = RxBatch::new(1);
        let failed = (0..2000).find(|_| port.receive(&mut into, 1).is_err());
        assert_eq!(failed, (errno == libc::ENOMEM).then_some(999));
    }
}

#[test]
fn a_receive_that_is_cut_short_costs_the_first_packet_or_datagram_and_no_other() {
    let mut pages = PagePool::new(32);
    let short = |len: usize, inner: Scripted| {
        Faults::new(inner, Odds::default(), 1).failing_receives(Failure::Short(len), Calls::First(1))
    };
    for (len, first) in [0, 1, 3, 27, 9000].into_iter().flat_map(|len| [(len, 0), (len, 1)]) {
        // A frame is received first, or a packet that is parsed.
        let mut inner = Scripted::new();
        inner.packets.extend((first..first + 2).map(|seed| received(&mut pages, seed)));
        let mut expected: Vec<Vec<u8>> =
            (first..first + 2).map(|seed| testing::flat(&udp_packet(&mut pages, seed))).collect();
        let (mut port, mut into) = (short(len, inner), RxBatch::new(8));
        port.receive(&mut into, 8).unwrap();
        expected[0].truncate(len);
        expected.retain(|packet| !packet.is_empty());
        assert!(len == 0 || into.packets[0].is_unverified(), "a damaged packet is not called verified");
        let got: Vec<Vec<u8>> =
            into.packets.iter().map(|packet| packet.pieces().flatten().copied().collect()).collect();
        assert_eq!(got, expected, "{len}");
        let drops: Vec<_> =
            port.counters().drops.iter().filter(|(_, n)| *n > 0).map(|(why, n)| (why.name(), n)).collect();
        assert_eq!(drops, Vec::from_iter((len == 0).then_some(("vnet_short", 1))), "{len}");
        assert_eq!(port.counts().short_receives, 1);
    }
    for len in [0, 1, 150, 9000] {
        let mut inner = Scripted::new();
        inner.bursts.push_back(burst(&mut pages, 200, 3));
        let mut expected = datagrams(&inner.bursts);
        let (mut port, mut into) = (short(len, inner), RxBatch::new(8));
        port.receive(&mut into, 8).unwrap();
        expected[0].truncate(len);
        expected.retain(|datagram| !datagram.is_empty());
        assert_eq!(datagrams(&into.bursts), expected, "{len}");
        let empty = u64::from(len == 0);
        assert_eq!((port.counters().drops.total(), port.counts().short_receives), (empty, 1), "{len}");
    }
}

#[test]
fn a_seed_always_makes_the_same_calls_fail() {
    let failed = |calls, seed| {
        let faults = Faults::new(Scripted::new(), Odds::default(), seed);
        let mut port = faults.failing_receives(Failure::Error(libc::ENODEV), calls);
        let mut into = RxBatch::new(1);
        (0..300).map(|_| port.receive(&mut into, 1).is_err()).collect::<Vec<bool>>()
    };
    let count = |calls, seed| failed(calls, seed).iter().filter(|fails| **fails).count();
    assert_eq!(failed(Calls::OneIn(5), 1), failed(Calls::OneIn(5), 1));
    assert_ne!(failed(Calls::OneIn(5), 1), failed(Calls::OneIn(5), 2));
    assert!((30..90).contains(&count(Calls::OneIn(5), 1)));
    assert_eq!([Calls::Every(0), Calls::OneIn(0), Calls::First(0)].map(|calls| count(calls, 1)), [0; 3]);
    assert_eq!([Calls::Every(7), Calls::First(7)].map(|calls| count(calls, 1)), [42, 7]);
}

fn records(file: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(file).unwrap();
    assert_eq!(reader.header().datalink, DataLink::RAW);
    let mut records = Vec::new();
    while let Some(record) = reader.next_packet() {
        records.push(record.unwrap().data.to_vec());
    }
    records
}

#[test]
fn a_trace_has_every_packet_that_crossed_once() {
    let mut pages = PagePool::new(8);
    let mut inner = Scripted::new();
    inner.packets.push_back(received(&mut pages, 0));
    inner.packets.push_back(received(&mut pages, 1));
    let mut port = Trace::new(inner, Vec::new()).unwrap();
    let (mut batch, mut into) = (TxBatch::new(), RxBatch::new(8));
    port.receive(&mut into, 8).unwrap();
    for seed in 2..5 {
        batch.push(udp_packet(&mut pages, seed), port.limits()).unwrap();
    }
    while port.transmit(&mut batch).unwrap() != Sent::All {
        batch.recycle(&mut Pool::new(0));
    }
    let (_, file) = port.into_inner();
    let expected: Vec<Vec<u8>> = (0..5).map(|seed| testing::flat(&udp_packet(&mut pages, seed))).collect();
    assert_eq!(records(&file.unwrap()), expected);
}

/// A test disk that is full after the file's header.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        if self.0 > 24 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_costs_the_trace_and_not_the_port() {
    let mut pages = PagePool::new(8);
    let mut inner = Scripted::new();
    inner.packets.push_back(received(&mut pages, 0));
    inner.packets.push_back(received(&mut pages, 1));
    let mut port = Trace::new(inner, Full(0)).unwrap();
    let (mut batch, mut into) = (TxBatch::new(), RxBatch::new(8));
    port.receive(&mut into, 8).unwrap();
    assert_eq!(into.packets.len(), 2);
    batch.push(udp_packet(&mut pages, 2), port.limits()).unwrap();
    while port.transmit(&mut batch).unwrap() != Sent::All {
        batch.recycle(&mut Pool::new(0));
    }
    let mut failed = 0;
    port.extras(&mut |_, key, value| failed += if key == "trace_failed" { value } else { 0 });
    assert_eq!(failed, 1);
}

#[test]
fn a_trace_ends_with_the_last_packet_that_fits_and_the_port_goes_on() {
    let mut pages = PagePool::new(8);
    let mut inner = Scripted::new();
    (0..3).for_each(|_| inner.packets.push_back(received(&mut pages, 0)));
    let whole = {
        let mut file = TraceFile::new(Vec::new(), false).unwrap();
        let mut port = Trace::to(inner, file.clone());
        let mut into = RxBatch::new(8);
        port.receive(&mut into, 8).unwrap();
        file = file.limited(u64::MAX);
        drop(file);
        port.into_inner().1.unwrap()
    };
    let record = (whole.len() - 24) / 3;
    for (limit, records) in [(whole.len(), 3), (whole.len() - 1, 2), (24 + record, 1), (24, 0)] {
        let mut inner = Scripted::new();
        (0..3).for_each(|_| inner.packets.push_back(received(&mut pages, 0)));
        let mut port = Trace::to(inner, TraceFile::new(Vec::new(), false).unwrap().limited(limit as u64));
        let mut into = RxBatch::new(8);
        port.receive(&mut into, 8).unwrap();
        assert_eq!(into.packets.len(), 3);
        let mut full = None;
        port.extras(&mut |_, key, value| full = if key == "trace_full" { Some(value) } else { full });
        assert_eq!(full, Some(u64::from(records < 3)), "{limit}");
        assert_eq!(port.into_inner().1.unwrap().len(), 24 + records * record, "{limit}");
    }
}

#[test]
fn every_wrapper_forwards_the_properties_of_its_port() {
    fn knows(port: &dyn Port) {
        assert_eq!(port.path_mtu(2), Some(1323));
        assert_eq!(port.path(0, 3).unwrap().peer.to_string(), "198.18.0.5:0");
        let mut extras = Vec::new();
        port.extras(&mut |_, key, value| extras.push((key, value)));
        assert_eq!(extras[0], ("lost_elsewhere", 7));
    }
    knows(&Trace::new(Scripted::new(), Vec::new()).unwrap());
    knows(&Faults::new(Scripted::new(), Odds::default(), 1));
    knows(&(Box::new(Scripted::new()) as Box<dyn Port>));
}

#[test]
fn a_trace_of_a_raw_socket_has_no_udp_and_names_each_peer() {
    let mut inner = Scripted::new();
    let mut pages = PagePool::new(8);
    let page = |pages: &mut PagePool, seed| {
        let mut page = pages.take().unwrap();
        page.bytes_mut()[..90].copy_from_slice(&bytes(90, seed));
        page.freeze(90)
    };
    let peer = inner.path(0, 1).unwrap().peer;
    inner.bursts.push_back(Burst { page: page(&mut pages, 9), segment_len: 90, peer, local: None, tos: 3, ttl: None });
    let (mut batch, mut into) = (TxBatch::new(), RxBatch::new(8));
    let mut port = Trace::new(inner, Vec::new()).unwrap();
    port.receive(&mut into, 8).unwrap();
    for to in 0..2 {
        let mut packet = Box::new(Packet::default());
        packet.head.set(&[0xee; 24]);
        packet.payload.push(Frag::all(page(&mut pages, usize::from(to))));
        packet.outer = Some(Outer { slot: 0, to, tos: 0, ttl: 9, df: true, skip: 20 });
        batch.push(packet, port.limits()).unwrap();
    }
    while port.transmit(&mut batch).unwrap() != Sent::All {
        batch.recycle(&mut Pool::new(0));
    }
    let records = records(&port.into_inner().1.unwrap());
    let ends = [(3, 1, 0), (1, 2, 4), (1, 3, 4)];
    for (record, (source, target, gre)) in records.iter().zip(ends) {
        assert_eq!((record[9], record[15], record[19], record.len()), (47, source, target, 20 + gre + 90));
        assert_eq!(testing::sum16(&[&record[..20]]), 0xffff);
    }
    assert_eq!(records.len(), ends.len());
    assert_eq!((&records[1][20..24], &records[1][24..]), (&[0xee; 4][..], &bytes(90, 0)[..]));
}

#[test]
fn a_trace_of_datagrams_has_good_outer_headers() {
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let mut config = UdpConfig::new(ip, 0, SocketAddr::new(ip, 9));
        config.source = Source::Fixed(0);
        let rx = UdpPort::open(config).unwrap();
        let tx = UdpPort::open(UdpConfig::new(ip, 0, rx.listen())).unwrap();
        let mut rx = Trace::new(rx, Vec::new()).unwrap();
        let mut tx = Trace::new(tx, Vec::new()).unwrap();
        let (mut batch, mut into, mut pages) = (TxBatch::new(), RxBatch::new(8), PagePool::new(8));
        for seed in 0..5 {
            let mut packet = Box::new(Packet::default());
            packet.head.set(&[0xee; 28]);
            let mut page = pages.take().unwrap();
            page.bytes_mut()[..301].copy_from_slice(&bytes(301, seed));
            packet.payload.push(Frag::all(page.freeze(301)));
            packet.outer = Some(Outer { slot: 2, to: 0, tos: 0xb9, ttl: 64, df: true, skip: 28 });
            batch.push(packet, tx.limits()).unwrap();
        }
        assert_eq!(tx.transmit(&mut batch).unwrap(), Sent::All);
        let end = Instant::now() + Duration::from_secs(3);
        while datagrams(&into.bursts).len() < 5 && Instant::now() < end {
            rx.receive(&mut into, 8).unwrap();
        }
        let (port, sent) = tx.into_inner();
        let source = port.path(2, 0).unwrap().source.port();
        let (port, received) = rx.into_inner();
        let listen = port.listen().port();
        for file in [records(&sent.unwrap()), records(&received.unwrap())] {
            assert_eq!(file.len(), 5);
            for (seed, record) in file.iter().enumerate() {
                let header = if ip.is_ipv4() { 20 } else { 40 };
                assert!(testing::checksum_is_good(record), "{ip}");
                assert!(header == 40 || testing::sum16(&[&record[..20]]) == 0xffff);
                assert_eq!(record[header..][..4], [source.to_be_bytes(), listen.to_be_bytes()].concat());
                assert_eq!(record[header + 8..], bytes(301, seed));
                let tos = if header == 20 { record[1] } else { record[0] << 4 | record[1] >> 4 };
                assert_eq!(tos, 0xb9);
            }
        }
    }
}

#[test]
fn a_wrapper_gives_every_answer_of_the_port_in_it() {
    /// Returns the results of a port's methods other than receiving and sending.
    fn answers(port: &mut dyn Port) -> String {
        let listened = port.listen().map_err(|error| error.raw_os_error());
        let (path_mtu, path) = (port.path_mtu(3), port.path(0, 3).map(|path| path.peer));
        let same_fd = port.link_fd().map(|fd| fd.as_raw_fd()) == Some(port.fd().as_raw_fd());
        format!(
            "{:?} {:?}",
            (listened, path_mtu, path, same_fd),
            (port.link(), port.is_up(), port.mac(), port.is_busy())
        ) + &format!("{:?} {:?}", port.blocked_event(), port.offloads())
    }
    let expected = answers(&mut Scripted::new());
    assert!(expected.contains("1400") && expected.contains("1324") && expected.contains("Readable"), "{expected}");
    assert_eq!(answers(&mut Box::new(Scripted::new())), expected);
    assert_eq!(answers(&mut Faults::new(Scripted::new(), Odds::default(), 1)), expected);
    assert_eq!(answers(&mut Trace::new(Scripted::new(), Vec::new()).unwrap()), expected);
}
