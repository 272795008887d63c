//! Tests of both driver forms on the same traffic: they deliver the same packets by different means.

mod support;

use segue::packet::Csum;
use segue_lan78xx::driver::{Config, Numbers};
use segue_lan78xx::frame::rx::flag;
use segue_lan78xx::model::{Fault, Notes};
use segue_lan78xx::usb::Speed;
use segue_port::Port;
use segue_testkit::Rng;
use segue_testkit::build::Ip;
use segue_testkit::flow::Sender;
use segue_testkit::oracle;
use support::{Rig, datagram, ethernet, ip, modes, primed, segment, unpadded};

/// Results of one driver form on the traffic of a seed.
struct Outcome {
    delivered: Vec<Vec<u8>>,
    on_the_wire: Vec<Vec<u8>>,
    dropped: u64,
    driver: Numbers,
    chip: Notes,
}

fn run(config: Config, speed: Speed, seed: u64) -> Outcome {
    let mut rig = Rig::new(speed, Config { mtu: 9000, ..config });
    let mut rng = Rng::new(seed);
    let (mut delivered, mut on_the_wire) = (Vec::new(), Vec::new());
    for n in 0..150 {
        for _ in 0..rng.next_u64() % 40 {
            let len = (rng.next_u64() % if rng.next_u64().is_multiple_of(8) { 8900 } else { 1400 }) as usize;
            let v4 = rng.next_u64().is_multiple_of(2);
            let tags: &[(u16, u16)] = if rng.next_u64().is_multiple_of(4) { &[(0x8100, 0x2064)] } else { &[] };
            rig.model().receive(ethernet(tags).wrap(&datagram(v4, n, len)[14..]));
        }
        if rng.next_u64().is_multiple_of(16) {
            rig.model().inject(Fault::RxError(flag::FCS));
        }
        for _ in 0..rng.next_u64() % 4 {
            let v4 = rng.next_u64().is_multiple_of(2);
            let len = (rng.next_u64() % 8000) as usize;
            let packet = if rng.next_u64().is_multiple_of(3) {
                rig.train(&primed(&segment(v4, 1001 + len % 7000, 0x18)), 1000)
            } else {
                rig.packet(&primed(&datagram(v4, n, len)), Csum::Partial)
            };
            rig.tx.push(packet, rig.driver.limits()).map_err(|(_, why)| why).unwrap();
        }
        rig.flush();
        delivered.extend(rig.frames());
        on_the_wire.extend(rig.arrived());
        delivered.extend(rig.frames());
    }
    let (driver, chip) = (rig.driver.numbers(), rig.model().notes());
    let dropped = rig.driver.malformed().total();
    Outcome { delivered, on_the_wire, dropped, driver, chip }
}

#[test]
fn both_forms_deliver_the_same_frames_of_the_same_traffic() {
    let seeds = if segue_testkit::is_set("SEGUE_QUICK") { 1 } else { 4 };
    for speed in [Speed::High, Speed::Super] {
        for seed in 0..seeds {
            let [(_, napi), (_, standard)] = modes(speed);
            let [new, old] = [napi, standard].map(|config| run(config, speed, seed));
            assert!(new.delivered.len() > 2000 && new.dropped > 0, "{speed:?} {seed}");
            assert!(new.delivered == old.delivered, "{speed:?} {seed}: received");
            assert!(new.on_the_wire == old.on_the_wire, "{speed:?} {seed}: sent");
            assert_eq!(new.dropped, old.dropped, "{speed:?} {seed}");
            // Only the intended differences remain: the transfers, and whether driver or software cuts large trains.
            assert!(new.driver.rx_transfers < old.driver.rx_transfers, "{:?} {:?}", new.driver, old.driver);
            assert!(new.chip.bulk_out < old.chip.bulk_out, "{:?} {:?}", new.chip, old.chip);
            for chip in [new.chip, old.chip] {
                assert_eq!((chip.lost_sync, chip.unterminated, chip.unfit, chip.bad_lso), (0, 0, 0, 0));
            }
        }
    }
}

#[test]
fn the_chip_sums_what_software_sums_whatever_the_field_held() {
    for (mode, config) in modes(Speed::Super) {
        let mut rng = Rng::new(20);
        let mut rig = Rig::new(Speed::Super, config);
        for n in 0..200_u16 {
            let (v4, tcp) = (n % 2 == 0, n % 4 < 2);
            let len = usize::from(n) * 7 % 1400;
            let right = if tcp { segment(v4, len, 0x10) } else { datagram(v4, n, len) };
            let field = if tcp { 16 } else { 6 } + if v4 { 34 } else { 54 };
            for seed in [0, 0xffff, rng.next_u64() as u16] {
                let mut frame = right.clone();
                frame[field..field + 2].copy_from_slice(&seed.to_be_bytes());
                let packet = rig.packet(&frame, Csum::Partial);
                rig.send(packet);
                let got = rig.arrived();
                assert_eq!(got.len(), 1);
                assert_eq!(unpadded(&got[0]), right, "{mode} {n} {seed:#x}");
                oracle::verify(&unpadded(&got[0]), oracle::Start::Ethernet, &oracle::Ports::default()).unwrap();
            }
        }
        assert_eq!(rig.driver.numbers().software, 0, "{mode}: the chip did all of it");
    }
}

#[test]
fn frame_is_not_merged_across_another_flow_psh_or_wrong_checksum() {
    use segue::gro::{self, Gro};
    let trains = |change: &dyn Fn(usize, &mut Vec<u8>)| {
        let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
        let mut sender = Sender::tcp(ip(true), 3, 77, Vec::new());
        for n in 0..9 {
            let mut packet = sender.send(1448, if n == 3 { 0x18 } else { 0x10 });
            if let Ip::V4(v4) = &mut packet.ip {
                v4.id = n as u16;
            }
            let mut frame = ethernet(&[]).wrap(&packet.bytes());
            change(n, &mut frame);
            rig.model().receive(frame);
        }
        let mut gro = Gro::new(gro::Config::default());
        let packets = rig.packets();
        for packet in packets {
            gro.push(packet, segue::time::Nanos(0), &mut rig.rx.pool);
        }
        gro.flush();
        std::iter::from_fn(|| gro.pop()).count()
    };
    assert_eq!(trains(&|_, _| {}), 2, "a push ends its train");
    let broken = |n: usize, frame: &mut Vec<u8>| frame[60] ^= u8::from(n == 6);
    assert!(trains(&broken) > 2, "a wrong checksum");
    let elsewhere = |n: usize, frame: &mut Vec<u8>| {
        if n == 6 {
            // The port and the checksum change by the same amount.
            frame[35] ^= 1;
            let up = frame[35] & 1 == 1;
            let sum = u16::from_be_bytes([frame[50], frame[51]]);
            let sum = if up { sum.wrapping_sub(1) } else { sum.wrapping_add(1) };
            frame[50..52].copy_from_slice(&sum.to_be_bytes());
        }
    };
    assert!(trains(&elsewhere) > 2, "another flow");
}
