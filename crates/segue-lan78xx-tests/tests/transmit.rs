//! Tests of the frames that reach the wire from both forms of the driver.

mod support;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use segue::gso::{self, Frames, Limits};
use segue::packet::{Csum, Gso, GsoKind, TrainCsum, Unit};
use segue_lan78xx::driver::{Config, Driver, Kick, LookupResult};
use segue_lan78xx::model::{self, Fault, LinkSpeed, Model, Partner};
use segue_lan78xx::regs::{self, endpoint, stat};
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Lent, Setup, Speed, Transfer, Transport};
use segue_port::{Blocked, Drop, Interest, PollSet, Port, RxBatch, Sent, TxBatch};
use segue_testkit::flow::Sender;
use segue_testkit::oracle;
use support::{
    Meddled, Meddler, Rig, SPEEDS, chip, datagram, ethernet, ip, load, local, modes, primed, segment, unpadded,
};

fn assert_ready(frames: &[Vec<u8>]) {
    for frame in frames {
        let ready = oracle::verify(frame, oracle::Start::Ethernet, &oracle::Ports::default());
        ready.unwrap_or_else(|error| panic!("{error}: {frame:02x?}"));
    }
}

#[test]
fn frames_of_every_length_reach_the_wire_in_order_with_their_checksums() {
    for speed in SPEEDS {
        for (mode, config) in modes(speed) {
            let mut rig = Rig::new(speed, config);
            let mut expected = Vec::new();
            for n in 0..300_u16 {
                let frame = datagram(n % 2 == 0, n, usize::from(n) * 4 % 1400 + usize::from(n) % 4);
                let packet = rig.packet(&primed(&frame), Csum::Partial);
                expected.push(frame);
                if rig.send(packet) == Sent::Blocked {
                    rig.step();
                }
            }
            let got = rig.arrived();
            assert_eq!(got.iter().map(|frame| unpadded(frame)).collect::<Vec<_>>(), expected, "{mode} {speed:?}");
            let notes = rig.model().notes();
            assert_eq!((notes.lost_sync, notes.unterminated, notes.csum_frames), (0, 0, 300), "{mode} {speed:?}");
        }
    }
}

#[test]
fn the_chip_cuts_trains_exactly_as_software_does() {
    for speed in SPEEDS {
        for (mode, config) in modes(speed) {
            for v4 in [true, false] {
                for (len, size) in [(9000, 1000), (8000, 999), (1001, 1000), (3000, 8), (8800, 1448)] {
                    if len + 66 + 14 > config.lso.unwrap() {
                        continue;
                    }
                    let mut rig = Rig::new(speed, config);
                    let frame = primed(&segment(v4, len, 0x80 | 0x08 | 0x01));
                    let packet = rig.train(&frame, size);
                    let mut software = Frames::new();
                    gso::split_linear(&packet, &Limits::NONE, &mut software).unwrap();
                    let mut expected: Vec<Vec<u8>> =
                        software.frames().iter().map(|frame| software.bytes(frame).to_vec()).collect();
                    rig.send(packet);
                    let got: Vec<Vec<u8>> = rig.arrived().iter().map(|frame| unpadded(frame)).collect();
                    expected.iter_mut().for_each(|frame| *frame = unpadded(frame));
                    assert!(got == expected, "{mode} {speed:?} {v4} {len} {size}");
                    assert_eq!(rig.model().notes().lso_frames, 1);
                    assert_ready(&got);
                }
            }
        }
    }
}

#[test]
fn a_train_at_the_ceiling_is_cut_by_the_chip_and_a_larger_one_becomes_two() {
    for (speed, ceiling) in [(Speed::Super, 32_746), (Speed::High, 16_362), (Speed::Full, 10_218)] {
        let config = Config::napi(speed);
        assert_eq!(config.lso, Some(ceiling));
        let head = segment(true, 0, 0).len();
        for (len, trains) in [(ceiling - head, 1), (ceiling - head + 1, 2), (60_000, 60_000 / ceiling + 1)] {
            let mut rig = Rig::new(speed, config);
            let frame = primed(&segment(true, len, 0));
            let packet = rig.train(&frame, 1000);
            rig.send(packet);
            let got = rig.arrived();
            assert_eq!(got.iter().map(|frame| unpadded(frame).len() - head).sum::<usize>(), len, "{speed:?} {len}");
            let notes = rig.model().notes();
            assert_eq!((notes.bulk_out_frames, notes.lost_sync), (trains as u64, 0), "{speed:?} {len}");
            assert!(notes.lso_largest <= ceiling as u64);
            assert_ready(&got.iter().map(|frame| unpadded(frame)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_tagged_train_is_cut_behind_its_tag_and_two_tags_are_left_to_software() {
    for (mode, config) in modes(Speed::Super) {
        let plain = segment(true, 5000, 0);
        for (tags, by_chip) in [(vec![(0x8100, 0x2064)], 1), (vec![(0x88a8, 5), (0x8100, 6)], 0)] {
            let mut rig = Rig::new(Speed::Super, config);
            let primed = primed(&plain);
            let frame = ethernet(&tags).wrap(&primed[14..]);
            let packet = rig.train(&frame, 1000);
            rig.send(packet);
            let got = rig.arrived();
            assert_eq!((got.len(), rig.model().notes().lso_frames), (5, by_chip), "{mode} {tags:x?}");
            assert!(got.iter().all(|one| one[12..12 + 4 * tags.len()] == frame[12..12 + 4 * tags.len()]));
            assert_ready(&got);
            assert_eq!(rig.driver.numbers().software, 1 - by_chip);
        }
    }
}

#[test]
fn a_checksum_that_the_chip_cannot_find_is_computed_in_software() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    let mut sender = Sender::udp(ip(false), 4);
    if let segue_testkit::build::Ip::V6(v6) = &mut sender.next.ip {
        v6.extensions.push((60, vec![0; 6]));
    }
    let packet = sender.send(333, 0).bytes();
    let right = ethernet(&[]).wrap(&packet);
    let frame = ethernet(&[]).wrap(&segue_testkit::build::prime(&packet).unwrap());
    assert_ne!(right, frame);
    let packet = rig.packet(&frame, Csum::Partial);
    rig.send(packet);
    assert_eq!(rig.arrived(), [right]);
    assert_eq!((rig.driver.numbers().software, rig.model().notes().csum_frames), (1, 0));
}

#[test]
fn a_udp_checksum_that_comes_out_as_zero_is_sent_as_all_ones() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    // The payload's first word is chosen so that the checksum becomes zero.
    let mut frame = datagram(true, 0, 64);
    frame[42..44].fill(0);
    let clean = |frame: &mut Vec<u8>| {
        let primed = primed(frame);
        let sum = segue::checksum::Field::complete(segue::checksum::Sum::of(&primed[34..])).value();
        (primed, sum)
    };
    let (_, sum) = clean(&mut frame);
    frame[42..44].copy_from_slice(&sum.to_be_bytes());
    let (primed, sum) = clean(&mut frame);
    assert_eq!(sum, 0);
    let packet = rig.packet(&primed, Csum::Partial);
    rig.send(packet);
    let got = rig.arrived();
    assert_eq!(got[0][40..42], [0xff, 0xff]);
    assert_ready(&got);
}

#[test]
fn transfers_are_filled_while_another_is_on_its_way() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    for n in 0..200 {
        let packet = rig.packet(&datagram(true, n, 1000), Csum::Unknown);
        rig.tx.push(packet, rig.driver.limits()).unwrap();
    }
    rig.flush();
    assert_eq!(rig.arrived().len(), 200);
    // 32 KiB hold 31 frames of 1042 bytes and their commands.
    assert_eq!(rig.driver.numbers().tx_transfers, 200_u64.div_ceil(31));

    // Each frame is sent at once, as by the old driver.
    let mut rig = Rig::new(Speed::Super, Config { kick: Kick::Always, ..Config::napi(Speed::Super) });
    for n in 0..50 {
        let packet = rig.packet(&datagram(true, n, 1000), Csum::Unknown);
        rig.send(packet);
    }
    assert_eq!((rig.arrived().len(), rig.driver.numbers().tx_transfers), (50, 50));
}

/// A hook that records the sent transfers.
#[derive(Default)]
struct Keeping(Rc<RefCell<Vec<Vec<u8>>>>);

impl Meddler for Keeping {
    fn submit(&mut self, transfer: &Transfer<Lent>) -> Result<(), usb::Error> {
        if transfer.request().endpoint == endpoint::BULK_OUT {
            self.0.borrow_mut().push(transfer.outgoing().to_vec());
        }
        Ok(())
    }
}

#[test]
fn commands_are_aligned_what_lies_between_is_zero_and_nothing_follows_the_last_frame() {
    let kept = Keeping::default();
    let transfers = kept.0.clone();
    let mut driver = Driver::open(Meddled::new(local(chip(Speed::Super)), kept), Config::napi(Speed::Super)).unwrap();
    let (mut rx, mut tx) = (RxBatch::new(16), TxBatch::new());
    driver.up().unwrap();
    while !driver.link().up {
        driver.usb().sleep(1_000_000);
        driver.receive(&mut rx, 64).unwrap();
    }
    let frames: Vec<Vec<u8>> = [60, 61, 62, 63, 61].iter().map(|len| datagram(true, 7, len - 42)).collect();
    for frame in &frames {
        tx.push(load(&mut rx, frame, Csum::Unknown), driver.limits()).map_err(|(_, why)| why).unwrap();
    }
    driver.transmit(&mut tx).unwrap();
    let mut expected = Vec::new();
    for frame in &frames {
        expected.resize(expected.len().next_multiple_of(4), 0);
        // Linux, drivers/net/usb/lan78xx.c: length, and the flag to append the FCS.
        expected.extend([frame.len() as u8, 0, 0x40, 0, 0, 0, 0, 0]);
        expected.extend(frame);
    }
    assert_eq!(*transfers.borrow(), [expected]);
}

#[test]
fn a_transfer_that_ends_with_a_full_packet_is_followed_by_an_empty_one() {
    for (speed, packet) in [(Speed::Super, 1024), (Speed::High, 512)] {
        for extra in [0, 1] {
            let mut rig = Rig::new(speed, Config::napi(speed));
            let frame = datagram(true, 1, packet - 8 - 42 + extra);
            assert_eq!(frame.len() + 8, packet + extra);
            let one = rig.packet(&frame, Csum::Unknown);
            rig.send(one);
            assert_eq!(rig.arrived(), [frame]);
            let notes = rig.model().notes();
            assert_eq!((notes.unterminated, notes.lost_sync), (0, 0));
        }
    }
}

/// Returns a frame with which the partner pauses the chip for 34 ms.
fn pause() -> Vec<u8> {
    let mut pause = vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x08, 0, 1, 0xff, 0xff];
    pause.resize(60, 0);
    pause
}

#[test]
fn a_port_that_is_held_back_is_woken_by_the_event_that_it_names() {
    for (mode, config) in modes(Speed::Super) {
        let model = Model::new(model::Config { negotiation: 1_000_000, ..chip(Speed::Super) });
        let mut driver = Driver::open(Local::alone(model, Clock::System), config).unwrap();
        let (mut rx, mut tx) = (RxBatch::new(256), TxBatch::new());
        driver.up().unwrap();
        while !driver.link().up {
            driver.usb().sleep(1_000_000);
            driver.receive(&mut rx, 64).unwrap();
        }
        while driver.transmit(&mut tx).unwrap() == Sent::All {
            tx.recycle(&mut rx.pool);
            driver.usb().model.receive(pause());
            let packet = load(&mut rx, &datagram(true, 1, 1000), Csum::Unknown);
            tx.push(packet, driver.limits()).map_err(|(_, why)| why).unwrap();
        }
        assert!(driver.counters().blocked > 0, "{mode}");
        while driver.transmit(&mut tx).unwrap() == Sent::Blocked {
            let is_readable = driver.blocked_event() == Blocked::Readable;
            let mut set = PollSet::default();
            set.add(&Interest { fd: driver.blocked_fd(), read: is_readable, write: !is_readable });
            set.wait(Some(Duration::from_secs(8))).unwrap();
            assert_eq!(set.ready().count(), 1, "{mode}: nothing has woken it");
        }
    }
}

#[test]
fn a_port_whose_transfers_are_all_on_their_way_holds_back_and_loses_nothing() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        rig.model().receive(pause());
        rig.step();
        let mut blocked = false;
        for n in 0..2000 {
            let packet = rig.packet(&datagram(true, n, 1000), Csum::Unknown);
            rig.tx.push(packet, rig.driver.limits()).unwrap();
            if rig.flush() == Sent::Blocked {
                blocked = true;
                break;
            }
        }
        assert!(blocked, "{mode}");
        rig.driver.usb().sleep(40_000_000);
        let count = rig.driver.counters().tx.packets as usize + rig.tx.len();
        let got = rig.arrived();
        assert_eq!((got.len(), rig.tx.len()), (count, 0), "{mode}");
        let numbers: Vec<u16> = got.iter().map(|frame| u16::from_be_bytes([frame[42], frame[43]])).collect();
        assert_eq!(numbers, (0..count as u16).collect::<Vec<_>>(), "{mode}");
    }
}

/// Disables a part of the chip without any event, and sends a frame, which gets stuck, until sending times out.
fn get_stuck(rig: &mut Rig, register: u16) {
    let write = Setup { request_type: 0x40, request: 0xa0, value: 0, index: register, length: 4 };
    rig.model().control(write, &0_u32.to_le_bytes()).unwrap();
    let packet = rig.packet(&datagram(true, 1, 100), Csum::Unknown);
    rig.send(packet);
    assert!(rig.arrived().is_empty());
    rig.driver.usb().sleep(5_100_000_000);
    rig.step();
}

#[test]
fn sending_that_is_stuck_for_five_seconds_begins_anew() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        // A transfer that succeeds makes the next time the first one again.
        for (round, register) in [(1, regs::FCT_TX_CTL), (2, regs::MAC_TX)] {
            get_stuck(&mut rig, register);
            let numbers = rig.driver.numbers();
            assert_eq!((numbers.tx_timeouts, numbers.tx_errors, numbers.halts), (round, round, round), "{mode}");
            let packet = rig.packet(&datagram(true, 2, 100), Csum::Unknown);
            rig.send(packet);
            assert_eq!((rig.arrived().len(), rig.driver.is_gone()), (1, false), "{mode}");
        }
    }
}

#[test]
fn a_chip_that_sends_nothing_after_its_transmit_side_was_restarted_is_set_up_again() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        rig.driver.on_gone(Box::new(|_| {
            let clock = Clock::Still(segue::time::Nanos(60_000_000_000));
            LookupResult::Back(Local::new(Model::new(chip(Speed::Super)), None, clock))
        }));
        for (round, is_gone) in [(1, false), (2, true)] {
            get_stuck(&mut rig, regs::FCT_TX_CTL);
            // The cancelled transfers came back.
            let numbers = rig.driver.numbers();
            assert_eq!((numbers.tx_timeouts, rig.driver.is_gone()), (round, is_gone), "{mode} {numbers:?}");
        }
        rig.driver.usb().sleep(1_100_000_000);
        rig.until(|rig| rig.driver.link().up);
        let packet = rig.packet(&datagram(true, 2, 100), Csum::Unknown);
        rig.send(packet);
        assert_eq!(rig.arrived().len(), 1, "{mode}");
    }
}

#[test]
fn a_halted_endpoint_runs_again_and_only_frames_on_their_way_are_lost() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        rig.model().inject(Fault::BulkOutStall);
        rig.model().inject(Fault::BulkInStall);
        let mut arrived = 0;
        for n in 0..20 {
            let packet = rig.packet(&datagram(true, n, 100), Csum::Unknown);
            rig.send(packet);
            rig.model().receive(datagram(true, n, 100));
            arrived += rig.arrived().len();
        }
        assert_eq!(arrived, 19, "{mode}");
        assert_eq!(rig.packets().len(), 20, "{mode}: nothing received was lost");
        let numbers = rig.driver.numbers();
        assert_eq!((numbers.halts, numbers.tx_errors), (2, 1), "{mode}");
        // Each pending transfer of a halted endpoint is answered with a stall.
        assert_eq!(numbers.rx_errors, config.rx_transfers as u64, "{mode}");
    }
}

#[test]
fn what_is_longer_than_the_chip_takes_is_dropped_in_front_of_it() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        let mut frame = datagram(true, 1, 100);
        // A frame of the largest MTU with two tags, and frames of an interface with a larger MTU.
        for (len, goes) in [(9022, true), (9023, false), (20_000, false), (1500, true)] {
            frame.resize(len, 0);
            let dropped = rig.driver.counters().drops.of(Drop::TooBig);
            let packet = rig.packet(&frame, Csum::Unknown);
            assert_eq!(rig.send(packet), Sent::All);
            let dropped = rig.driver.counters().drops.of(Drop::TooBig) - dropped;
            assert_eq!((rig.arrived().len(), dropped), (usize::from(goes), u64::from(!goes)), "{mode} {len}");
        }
        // Nor does the chip cut a train into such frames.
        let train = primed(&segment(true, 8700, 0));
        for mss in [1000, 8690] {
            let packet = rig.train(&train, mss);
            rig.send(packet);
            let so_far = rig.driver.counters().drops.of(Drop::TooBig);
            assert_eq!((rig.arrived().is_empty(), so_far), (false, 2), "{mode} {mss}");
        }
    }
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    let packet = rig.train(&primed(&segment(true, 25_000, 0)), 12_000);
    rig.send(packet);
    assert_eq!((rig.arrived().len(), rig.driver.counters().drops.of(Drop::TooBig)), (0, 3));
    assert_eq!(rig.model().notes().bulk_out_frames, 0);
}

/// Pushes a train of datagrams, which software cuts.
fn push_datagrams(rig: &mut Rig, len: usize, size: u16) {
    let mut packet = rig.packet(&primed(&datagram(true, 1, len)), Csum::Partial);
    let gso = Gso { kind: GsoKind::Udp, size, fixed_ids: 0 };
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
    let any = Limits { csum: true, uso: true, max_udp_segs: 128, ..Limits::NONE };
    assert!(rig.tx.push(packet, &any).is_ok());
}

#[test]
fn a_dropped_train_counts_as_its_packets_and_not_as_sent() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        // Three datagrams that are longer than the chip sends, and ten that are not.
        for (size, sent, dropped) in [(10_000, 0, 3), (3000, 10, 3)] {
            push_datagrams(&mut rig, 30_000, size);
            assert_eq!(rig.flush(), Sent::All);
            let counters = rig.driver.counters();
            assert_eq!((counters.tx.segments, counters.drops.of(Drop::TooBig)), (sent, dropped), "{mode} {size}");
        }
        assert_eq!(rig.arrived().len(), 10, "{mode}");
        rig.model().unplug();
        push_datagrams(&mut rig, 30_000, 3000);
        rig.flush();
        let counters = rig.driver.counters();
        assert_eq!((counters.tx.segments, counters.drops.of(Drop::DeviceDown)), (10, 10), "{mode}");
    }
}

#[test]
fn frames_that_wait_for_a_transfer_when_the_link_goes_are_counted_and_do_not_leave_later() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        rig.model().receive(pause());
        rig.step();
        loop {
            (0..4).for_each(|_| push_datagrams(&mut rig, 60_000, 1000));
            if rig.flush() == Sent::Blocked {
                break;
            }
        }
        let given = rig.driver.counters().tx.segments;
        let waiting = rig.tx.units().map(|unit| unit.segments() as u64).sum::<u64>();
        rig.model().set_partner(None);
        rig.until(|rig| !rig.driver.link().up);
        let lost = rig.driver.numbers().tx_errors;
        assert!(lost > 0 && waiting > 0, "{mode}");
        rig.flush();
        assert_eq!((rig.driver.counters().drops.of(Drop::DeviceDown), rig.tx.len()), (waiting, 0), "{mode}");
        rig.driver.usb().sleep(100_000_000);
        let before = rig.arrived().len() as u64;
        rig.model().set_partner(Some(Partner { speed: LinkSpeed::M1000, pause: true }));
        rig.until(|rig| rig.driver.link().up);
        let packet = rig.packet(&datagram(true, 7, 100), Csum::Unknown);
        rig.send(packet);
        assert_eq!(rig.arrived(), [datagram(true, 7, 100)], "{mode}");
        rig.driver.read_statistics().unwrap();
        let no_carrier = rig.driver.statistics()[stat::TX_CARRIER];
        assert_eq!(given, before + lost + no_carrier, "{mode}: {:?}", rig.driver.numbers());
    }
}
