//! Tests with damaged input from a device: bulk-in transfers, register values, PHY and interrupt packets. 100,000
//! transfers; a million with `SEGUE_SOAK=1`, and 4000 with `SEGUE_QUICK=1`, which is for emulated machines.

mod support;

use segue::reason::Reason;
use segue::time::Nanos;
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::frame::rx::{Builder, ChecksumErrors, Frames, HEADER_LEN, Header, Malformed};
use segue_lan78xx::model::{Fault, Model};
use segue_lan78xx::usb::{self, Speed, Transport};
use segue_port::Port;
use segue_testkit::{Rng, is_set};
use support::{Meddled, Meddler, Rig, chip, datagram, local, modes};

fn rounds() -> usize {
    match (is_set("SEGUE_SOAK"), is_set("SEGUE_QUICK")) {
        (true, _) => 1_000_000,
        (_, true) => 4000,
        _ => 100_000,
    }
}

/// Builds a transfer of some frames that is damaged at a few offsets, truncated, or replaced by noise.
fn damaged(rng: &mut Rng) -> Vec<u8> {
    let mut builder = Builder::default();
    for n in 0..1 + rng.next_u64() % 6 {
        let frame = datagram(n % 2 == 0, n as u16, (rng.next_u64() % 1400) as usize);
        let flags = (rng.next_u64() as u32) & if rng.next_u64().is_multiple_of(4) { u32::MAX } else { 0xb900_8000 };
        builder
            .push(Header { flags, csum: rng.next_u64() as u16, tag: rng.next_u64() as u16, len: 0, wake: 0 }, &frame);
    }
    let mut bytes = builder.bytes;
    let noise = (rng.next_u64() % 400) as usize;
    match rng.next_u64() % 8 {
        0 => bytes.truncate((rng.next_u64() % (bytes.len() as u64 + 1)) as usize),
        1 => bytes = rng.bytes(noise),
        2 => bytes.extend(rng.bytes(noise / 10)),
        _ => {}
    }
    for _ in 0..rng.next_u64() % 6 {
        if !bytes.is_empty() {
            let len = bytes.len() as u64;
            // Damage prefers headers, which hold lengths and flags.
            let at = if rng.next_u64().is_multiple_of(2) { rng.next_u64() % len.min(16) } else { rng.next_u64() % len };
            bytes[at as usize] = rng.next_u64() as u8;
        }
    }
    bytes
}

#[test]
fn damaged_transfers_end_in_bounded_steps_and_every_frame_is_passed_on_or_counted() {
    let [(_, napi), (_, standard)] = modes(Speed::Super);
    let mut rigs = [napi, Config { strip_tags: false, ..standard }].map(|config| Rig::new(Speed::Super, config));
    let mut rng = Rng::new(78);
    for round in 0..rounds() {
        let bytes = damaged(&mut rng);
        let rig = &mut rigs[round % 2];
        let errors = ChecksumErrors::Pass;
        let (mut good, mut bad, mut steps) = (0, vec![0_u64; Malformed::ALL.len()], 0);
        for one in Frames::new(&bytes, errors) {
            steps += 1;
            match one {
                Ok((_, range)) => {
                    assert!(range.end <= bytes.len());
                    good += 1;
                }
                Err(why) => bad[why.index()] += 1,
            }
        }
        assert!(steps <= bytes.len() / HEADER_LEN + 1);
        let before = rig.driver.malformed().clone();
        rig.model().inject(Fault::RawTransfer(bytes.clone()));
        rig.driver.usb().model.advance(Nanos(0));
        let mut got = 0;
        // The transfer completes at once, or the chip waits for the host's next one.
        for _ in 0..3 {
            rig.driver.receive(&mut rig.rx, 1000).unwrap();
            got += rig.rx.packets.len();
            while let Some(packet) = rig.rx.pop_packet() {
                rig.rx.pool.put(packet);
            }
        }
        assert_eq!(got, good, "{bytes:02x?}");
        for (why, before) in before.iter() {
            assert_eq!(rig.driver.malformed().of(why) - before, bad[why.index()], "{why:?} {bytes:02x?}");
        }
        assert_eq!(rig.rx.pages.in_use(), 0);
    }
    assert!(rigs.iter().all(|rig| rig.driver.counters().drops.total() == 0));
}

/// A hook that damages some of the answers.
struct Damaging {
    rng: Rng,
    odds: u64,
}

impl Meddler for Damaging {
    fn before(&mut self, _model: &mut Model, setup: usb::Setup) -> Result<(), usb::Error> {
        let fails = !setup.is_in() && self.rng.next_u64().is_multiple_of(4 * self.odds);
        if fails { Err(usb::Error::Timeout) } else { Ok(()) }
    }

    fn answer(&mut self, bytes: &mut [u8], len: usize) -> Result<usize, usb::Error> {
        if !self.rng.next_u64().is_multiple_of(self.odds) {
            return Ok(len);
        }
        match self.rng.next_u64() % 4 {
            0 => Err(usb::Error::Stall),
            1 => Ok((self.rng.next_u64() % (len as u64 + 1)) as usize),
            _ => {
                let noise = self.rng.bytes(len);
                bytes[..len].copy_from_slice(&noise);
                Ok(len)
            }
        }
    }
}

#[test]
fn damaged_register_answers_are_errors_or_are_lived_with() {
    let mut opened = 0;
    for seed in 0..rounds() as u64 / 500 {
        let odds = 1 + seed * 37 % 300;
        let usb = Meddled::new(local(chip(Speed::Super)), Damaging { rng: Rng::new(seed), odds });
        let Ok(mut driver) = Driver::open(usb, Config::napi(Speed::Super)) else { continue };
        opened += 1;
        let _ = driver.up();
        let mut rx = segue_port::RxBatch::new(16);
        for turn in 0..30 {
            if turn % 7 == 3 {
                let partner = (turn % 2 == 0).then_some(segue_lan78xx::model::Partner {
                    speed: segue_lan78xx::model::LinkSpeed::M100,
                    pause: true,
                });
                driver.usb().local.borrow_mut().model.set_partner(partner);
            }
            driver.usb().local.borrow_mut().model.receive(datagram(true, turn, 100));
            driver.usb().sleep(30_000_000);
            driver.receive(&mut rx, 64).unwrap();
            rx.packets.clear();
        }
        let _ = driver.read_statistics();
        let _ = driver.down();
    }
    assert!(opened > 0);
}
