//! Tests of the frames that both forms of the driver deliver.

mod support;

use segue::gro::{self, Gro};
use segue::packet::{Csum, Unit};
use segue::time::Nanos;
use segue_lan78xx::driver::Config;
use segue_lan78xx::frame::rx::{Builder, Header, Malformed, flag};
use segue_lan78xx::model::{self, Fault};
use segue_lan78xx::regs::{self, rfe};
use segue_lan78xx::usb::Speed;
use segue_port::{Polled, Port};
use segue_testkit::flow::Sender;
use segue_testkit::oracle;
use support::{Rig, SPEEDS, bytes, datagram, ethernet, ip, modes, unpadded};

#[test]
fn frames_of_every_length_arrive_whole_and_in_order_in_both_forms_at_every_speed() {
    for speed in SPEEDS {
        for (mode, config) in modes(speed) {
            let mut rig = Rig::new(speed, config);
            let lens = (0..80).chain((80..1473).step_by(37)).chain([1472]);
            let sent: Vec<Vec<u8>> = lens.enumerate().map(|(n, len)| datagram(n % 2 == 0, n as u16, len)).collect();
            let sent: Vec<Vec<u8>> = sent.into_iter().filter(|frame| frame.len() <= 1514).collect();
            let mut got = Vec::new();
            for frames in sent.chunks(20) {
                frames.iter().for_each(|frame| rig.model().receive(frame.clone()));
                got.extend(rig.frames());
            }
            assert_eq!(got.iter().map(|frame| unpadded(frame)).collect::<Vec<_>>(), sent, "{mode} {speed:?}");
            assert_eq!(rig.driver.malformed().total(), 0);
            assert_eq!(rig.driver.numbers().rx_csum, sent.len() as u64, "{mode} {speed:?}: every sum was taken");
            assert!(rig.driver.counters().drops.total() == 0);
        }
    }
}

#[test]
fn the_chips_sum_verifies_what_is_right_and_nothing_that_is_wrong() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    for v4 in [true, false] {
        for len in [0, 1, 5, 17, 18, 19, 100, 999, 1400] {
            let good = datagram(v4, 7, len);
            for broken in [None, Some(good.len() - 1), Some(30), Some(good.len() - 1 - len / 2)] {
                let mut frame = good.clone();
                if let Some(at) = broken {
                    frame[at] ^= 0x10;
                }
                // Two frames of one flow: GRO verifies a checksum, or uses the chip's sum, only when there is something
                // to merge.
                rig.model().receive(frame.clone());
                let packets = rig.packets();
                assert_eq!(packets.len(), 1, "{v4} {len} {broken:?}");
                let before = packets[0].offload.unit;
                let is_complete = matches!(before, Unit::Whole(Csum::Complete(_)));
                assert_eq!(is_complete, broken.is_none(), "{v4} {len} {broken:?}: {before:?}");
                if let Unit::Whole(Csum::Complete(sum)) = before {
                    let all = bytes(&packets[0]);
                    assert_eq!(sum, segue::checksum::Sum::of(&all[14..]));
                }
            }
        }
    }
}

#[test]
fn a_sum_of_the_chip_saves_gro_from_reading_payload() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        let mut sender = Sender::tcp(ip(true), 3, 77, Vec::new());
        let sent: Vec<Vec<u8>> = (0..45).map(|_| ethernet(&[]).wrap(&sender.send(1448, 0).bytes())).collect();
        sent.iter().for_each(|frame| rig.model().receive(frame.clone()));
        let packets = rig.packets();
        assert_eq!(packets.len(), 45, "{mode}");
        let mut gro = Gro::new(gro::Config::default());
        for packet in packets {
            gro.push(packet, Nanos(0), &mut rig.rx.pool);
        }
        gro.flush();
        let trains = std::iter::from_fn(|| gro.pop()).count();
        // 65,535 bytes hold 45 segments in one train.
        assert_eq!((trains, gro.stats().segments, gro.stats().checksummed_bytes), (1, 45, 0), "{mode}");
    }
}

#[test]
fn a_tag_that_the_chip_took_out_is_put_in_again_and_its_sum_is_good() {
    for strip_tags in [true, false] {
        let config = Config { strip_tags, ..Config::napi(Speed::High) };
        let mut rig = Rig::new(Speed::High, config);
        let inner = Sender::udp(ip(false), 9).send(501, 0).bytes();
        for tags in [vec![(0x8100, 0xb064)], vec![(0x8100, 5), (0x8100, 6)], vec![(0x88a8, 7), (0x8100, 8)]] {
            let frame = ethernet(&tags).wrap(&inner);
            rig.model().receive(frame.clone());
            let packets = rig.packets();
            assert_eq!(packets.iter().map(|packet| bytes(packet)).collect::<Vec<_>>(), [frame], "{tags:x?}");
            let trusted = packets[0].offload.unit != Unit::Whole(Csum::Unknown);
            let outer_is_ours = tags[0].0 == 0x8100;
            // The chip parses one tag, and leaves the checksum of other frames to software.
            let expected = match (strip_tags, tags.len(), outer_is_ours) {
                (true, 1 | 2, true) => tags.len() == 1 || packets[0].layout.transport().is_some(),
                _ => false,
            };
            assert_eq!(trusted, expected, "{strip_tags} {tags:x?}");
        }
    }
}

#[test]
fn a_sum_that_the_chip_calls_useless_is_not_used() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    rig.model().inject(Fault::RxIgnoreChecksum);
    rig.model().receive(datagram(true, 1, 100));
    assert_eq!(rig.packets()[0].offload.unit, Unit::Whole(Csum::Unknown));
}

#[test]
fn hard_errors_are_dropped_under_their_name_and_the_neighbours_arrive() {
    for (mode, config) in modes(Speed::Super) {
        for (error, reason) in [
            (flag::FCS, Malformed::Fcs),
            (flag::DRIBBLE, Malformed::Frame),
            (flag::RXE, Malformed::Frame),
            (flag::LONG, Malformed::Frame),
            (flag::RUNT, Malformed::Frame),
            (flag::WATCHDOG, Malformed::Frame),
        ] {
            let mut rig = Rig::new(Speed::Super, config);
            rig.model().receive(datagram(true, 1, 200));
            rig.step();
            rig.model().inject(Fault::RxError(error));
            (2..5).for_each(|n| rig.model().receive(datagram(true, n, 200)));
            assert_eq!(rig.frames().len(), 3, "{mode} {error:#x}");
            assert_eq!((rig.driver.malformed().of(reason), rig.driver.malformed().total()), (1, 1));
        }
    }
}

#[test]
fn transfers_that_no_chip_would_send_end_without_harm() {
    let good = {
        let mut builder = Builder::default();
        builder.push(Header { flags: flag::ICSM, ..Header::default() }, &[0x11; 64]);
        builder.bytes
    };
    for (mode, config) in modes(Speed::High) {
        let mut rig = Rig::new(Speed::High, config);
        for len in [1, 9, 10, 23] {
            rig.model().inject(Fault::RawTransfer(good[..len].to_vec()));
        }
        rig.model().inject(Fault::EmptyTransfer);
        rig.model().inject(Fault::RawTransfer([&good[..], &[0, 0, 1]].concat()));
        assert_eq!(rig.frames().len(), 1, "{mode}");
        assert_eq!(rig.driver.malformed().of(Malformed::Short), 4, "{mode}");
        assert_eq!(rig.driver.malformed().of(Malformed::Header), 1, "{mode}");
        for said in [0, 3, 17, 0x3fff] {
            rig.model().inject(Fault::RxLength(said));
            rig.model().receive(datagram(true, 1, 30));
        }
        assert_eq!(rig.frames().len(), 0, "{mode}");
        rig.model().receive(datagram(true, 2, 30));
        assert_eq!(rig.frames().len(), 1, "{mode}: it goes on");
    }
}

#[test]
fn what_exceeds_the_budget_comes_first_next_time_in_order() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    // 32 KiB hold 431 frames of 64 bytes, FCS included.
    let mut builder = Builder::default();
    for n in 0..431_u16 {
        let mut frame = datagram(true, n, 18);
        frame.resize(64, 0);
        builder.push(Header { flags: flag::ICSM, ..Header::default() }, &frame);
    }
    assert!(builder.bytes.len() <= 32 << 10 && builder.len_with(64) > 32 << 10);
    rig.model().inject(Fault::RawTransfer(builder.bytes));
    rig.driver.usb().model.advance(Nanos(0));
    let mut polls = Vec::new();
    let mut got = Vec::new();
    while polls.last() != Some(&0) {
        let polled = rig.driver.receive(&mut rig.rx, 1000).unwrap();
        polls.push(rig.rx.packets.len());
        assert_eq!(polled == Polled::More, polls.iter().sum::<usize>() < 431 && polls.last() != Some(&0), "{polls:?}");
        got.extend(std::iter::from_fn(|| rig.rx.pop_packet()).map(|packet| bytes(&packet)));
    }
    assert_eq!(polls, [64, 64, 64, 64, 64, 64, 47, 0]);
    assert_eq!(rig.driver.numbers().overflows, 431 - 64);
    let numbers: Vec<u16> = got.iter().map(|frame| u16::from_be_bytes([frame[42], frame[43]])).collect();
    assert_eq!(numbers, (0..431).collect::<Vec<_>>());
}

#[test]
fn jumbo_frames_arrive_at_mtu_9000_and_longer_ones_do_not() {
    for speed in [Speed::High, Speed::Super] {
        for (mode, config) in modes(speed) {
            let mut rig = Rig::new(speed, Config { mtu: 9000, ..config });
            for tags in [vec![], vec![(0x8100, 5)]] {
                let frame = ethernet(&tags).wrap(&Sender::udp(ip(true), 1).send(8972, 0).bytes());
                rig.model().receive(frame.clone());
                assert_eq!(rig.frames(), std::slice::from_ref(&frame), "{mode}");
                let frame = ethernet(&tags).wrap(&Sender::udp(ip(true), 1).send(8972 + 5, 0).bytes());
                rig.model().receive(frame);
                assert!(rig.frames().is_empty());
            }
            assert_eq!(rig.model().statistics()[regs::stat::RX_OVERSIZE], 2);
        }
    }
}

#[test]
fn a_frame_as_large_as_a_whole_transfer_arrives_and_a_larger_one_is_not_cut() {
    for (mode, config) in modes(Speed::High) {
        // A header, this frame and its FCS fill three packets of 512 bytes.
        let mut rig = Rig::new(Speed::High, Config { burst_cap: 3 * 512, mtu: 9000, ..config });
        for (len, unfit) in [(1522, 0), (1521, 0), (1523, 1)] {
            rig.model().receive(datagram(true, 1, len - 42));
            rig.model().receive(datagram(true, 2, 100));
            let lens: Vec<usize> = rig.frames().iter().map(Vec::len).collect();
            assert_eq!(lens, if unfit == 0 { vec![len, 142] } else { vec![142] }, "{mode} {len}");
            assert_eq!(rig.model().notes().unfit, unfit, "{mode} {len}");
        }
    }
}

#[test]
fn a_full_fifo_pauses_the_partner_and_nothing_is_lost() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    let link = rig.driver.link();
    assert!(link.rx_pause && link.tx_pause);
    let frames: Vec<Vec<u8>> = (0..900).map(|n| datagram(true, n, 1400)).collect();
    frames.iter().for_each(|frame| rig.model().receive(frame.clone()));
    // Without polls the transfers fill up, then the FIFO, then the partner has to wait.
    for _ in 0..50 {
        use segue_lan78xx::usb::Transport;
        rig.driver.usb().sleep(1_000_000);
    }
    assert!(rig.model().notes().pauses_sent > 0);
    let mut got = Vec::new();
    for _ in 0..10 {
        got.extend(rig.frames());
    }
    assert_eq!((got.len(), rig.model().statistics()[regs::stat::RX_DROPPED]), (900, 0));
    assert!(got == frames);

    // A partner without pause loses frames that do not fit, which is counted and reported.
    let chip = model::Config {
        partner: Some(model::Partner { speed: model::LinkSpeed::M1000, pause: false }),
        ..model::Config::default()
    };
    let mut rig = Rig::of(chip, Config::napi(Speed::Super));
    assert!(!rig.driver.link().tx_pause);
    for frame in frames.iter().chain(&frames) {
        rig.model().receive(frame.clone());
        rig.model().advance(Nanos(0));
    }
    assert!(rig.model().statistics()[regs::stat::RX_DROPPED] > 0);
}

#[test]
fn filters_take_what_they_should_and_nothing_else() {
    use segue_lan78xx::driver::Filter;
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    let to = |dst: [u8; 6], tags: &[(u16, u16)]| {
        let packet = Sender::udp(ip(true), 1).send(40, 0).bytes();
        segue_testkit::build::Ethernet { dst, ..ethernet(tags) }.wrap(&packet)
    };
    let many: Vec<[u8; 6]> = (0..33).map(|n| [1, 0, 0x5e, 0, 0, n]).collect();
    let other_hash = [1, 0, 0x5e, 0x10, 0, 0];
    assert_ne!(regs::address_hash(other_hash), regs::address_hash(many[32]));
    let [own, other, broadcast] = [support::MAC, [2, 9, 9, 9, 9, 9], [0xff; 6]];
    type Case = (&'static str, Filter, Vec<[u8; 6]>, Vec<[u8; 6]>);
    let cases: Vec<Case> = vec![
        ("none", Filter::default(), vec![own, broadcast], vec![other, many[0]]),
        ("all multicast", Filter { all_multicast: true, ..Filter::default() }, vec![own, many[0]], vec![other]),
        (
            "promiscuous",
            Filter { promiscuous: true, ..Filter::default() },
            vec![own, other, many[0], broadcast],
            vec![],
        ),
        (
            "33 multicasts",
            Filter { multicast: many.clone(), ..Filter::default() },
            vec![own, many[0], many[31], many[32]],
            vec![other, other_hash],
        ),
    ];
    for (name, filter, taken, refused) in cases {
        rig.driver.set_filter(filter).unwrap();
        for (addresses, expected) in [(taken, 1), (refused, 0)] {
            for address in addresses {
                rig.model().receive(to(address, &[]));
                assert_eq!(rig.frames().len(), expected, "{name}: {address:02x?}");
            }
        }
    }
    rig.driver.set_filter(Filter { vlans: Some(vec![100, 4000]), ..Filter::default() }).unwrap();
    assert_ne!(rig.model().register(regs::RFE_CTL) & rfe::VLAN_FILTER, 0);
    for (id, expected) in [(100, 1), (4000, 1), (0, 1), (101, 0), (4001, 0)] {
        rig.model().receive(to(own, &[(0x8100, 0x6000 | id)]));
        assert_eq!(rig.frames().len(), expected, "VLAN {id}");
    }
    rig.model().receive(to(own, &[]));
    assert_eq!(rig.frames().len(), 1);
}

#[test]
fn every_rule_of_the_filter_lets_in_what_it_is_for_and_no_rule_nothing() {
    use segue_lan78xx::regs::{dp, request};
    use segue_lan78xx::usb::{Setup, Transport};
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    let write = |rig: &mut Rig, register: u16, value: u32| {
        let (request_type, request) = (request::OUT, request::WRITE_REGISTER);
        let setup = Setup { request_type, request, value: 0, index: register, length: 4 };
        rig.driver.usb().control_out(setup, &value.to_le_bytes()).unwrap();
    };
    // One unicast and one multicast address are in the hash table, one multicast address in the perfect filters, one
    // VLAN id in the table.
    let [own, hashed, other] = [support::MAC, [2, 9, 9, 9, 9, 9], [2, 9, 9, 9, 9, 8]];
    let [exact, multicast, stranger] = [[1, 0, 0x5e, 0, 0, 1], [1, 0, 0x5e, 0, 0, 0xfb], [0x33, 0x33, 0, 0, 0, 1]];
    let broadcast = [0xff; 6];
    let bit = |address| usize::from(regs::address_hash(address));
    for free in [own, other, exact, stranger, broadcast] {
        assert!(bit(free) != bit(hashed) && bit(free) != bit(multicast), "{free:02x?}");
    }
    rig.driver.set_filter(segue_lan78xx::driver::Filter { multicast: vec![exact], ..Default::default() }).unwrap();
    write(&mut rig, regs::DP_SEL, dp::VLAN_DA_RAM);
    let mut words = [0_u32; dp::VLAN_WORDS + dp::HASH_WORDS];
    words[100 / 32] |= 1 << (100 % 32);
    for address in [hashed, multicast] {
        words[dp::VLAN_WORDS + bit(address) / 32] |= 1 << (bit(address) % 32);
    }
    for (at, word) in words.into_iter().enumerate() {
        for (register, value) in [(regs::DP_ADDR, at as u32), (regs::DP_DATA, word), (regs::DP_CMD, dp::WRITE)] {
            write(&mut rig, register, value);
        }
    }
    let destinations = [own, hashed, other, broadcast, exact, multicast, stranger];
    for rules in 0..256_u32 {
        let chosen = [
            rfe::UCAST_EN,
            rfe::MCAST_EN,
            rfe::BCAST_EN,
            rfe::DA_PERFECT,
            rfe::DA_HASH,
            rfe::MCAST_HASH,
            rfe::VLAN_FILTER,
            rfe::DISCARD_UNTAGGED,
        ];
        let rules = chosen.iter().enumerate().map(|(n, bit)| if rules >> n & 1 == 1 { *bit } else { 0 }).sum::<u32>();
        let on = |rule: u32| rules & rule != 0;
        write(&mut rig, regs::RFE_CTL, rules);
        let mut expected = Vec::new();
        for (n, dst) in destinations.into_iter().enumerate() {
            for (tag, tags) in [None, Some(100), Some(101)].into_iter().map(|tag| (tag, tag.map(|id| (0x8100, id)))) {
                let packet = Sender::udp(ip(true), n as u16).send(40, 0).bytes();
                let tags: Vec<_> = tags.into_iter().collect();
                let frame = segue_testkit::build::Ethernet { dst, ..ethernet(&tags) }.wrap(&packet);
                let address = match n {
                    0 => on(rfe::UCAST_EN) || on(rfe::DA_PERFECT),
                    1 => on(rfe::UCAST_EN) || on(rfe::DA_HASH),
                    2 => on(rfe::UCAST_EN),
                    3 => on(rfe::BCAST_EN),
                    4 => on(rfe::MCAST_EN) || on(rfe::DA_PERFECT),
                    5 => on(rfe::MCAST_EN) || on(rfe::MCAST_HASH),
                    _ => on(rfe::MCAST_EN),
                };
                let vlan = match tag {
                    None => !on(rfe::DISCARD_UNTAGGED),
                    Some(100) => true,
                    Some(_) => !on(rfe::VLAN_FILTER),
                };
                if address && vlan {
                    expected.push(frame[..6].to_vec());
                }
                rig.model().receive(frame);
            }
        }
        let taken: Vec<Vec<u8>> = rig.frames().iter().map(|frame| frame[..6].to_vec()).collect();
        assert_eq!(taken, expected, "rules {rules:#x}");
    }
}

#[test]
fn a_budget_of_the_caller_alone_bounds_a_poll_by_whole_transfers() {
    let mut rig = Rig::new(Speed::Super, Config { budget: None, ..Config::napi(Speed::Super) });
    for n in 0..200 {
        rig.model().receive(datagram(true, n, 20));
    }
    let mut polls = Vec::new();
    for _ in 0..10 {
        use segue_lan78xx::usb::Transport;
        rig.driver.usb().sleep(1_000_000);
        rig.driver.receive(&mut rig.rx, 64).unwrap();
        polls.extend(Some(rig.rx.packets.drain(..).count()).filter(|count| *count > 0));
    }
    let numbers = rig.driver.numbers();
    assert_eq!(polls.iter().sum::<usize>(), 200);
    let beyond: usize = polls.iter().map(|count| count.saturating_sub(64)).sum();
    assert_eq!(numbers.overflows, beyond as u64);
    assert!(beyond > 0 && numbers.full_budgets == polls.iter().filter(|count| **count >= 64).count() as u64);
}

#[test]
fn what_is_delivered_is_ready_for_a_wire() {
    // The oracle shares no code with the engine or the model.
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    for n in 0..50 {
        rig.model().receive(datagram(n % 2 == 0, n, usize::from(n) * 20));
    }
    for frame in rig.frames() {
        oracle::verify(&unpadded(&frame), oracle::Start::Ethernet, &oracle::Ports::default()).unwrap();
    }
}
