//! Tests of set-up, link, statistics, and of a device that disconnects and reconnects.

mod support;

use segue::packet::Csum;
use segue_lan78xx::driver::{AddressSource, Config, Driver, Error, LookupResult};
use segue_lan78xx::model::{self, Access, Fault, Identity, LinkSpeed, Model, Partner};
use segue_lan78xx::regs::{self, fct, hw_cfg, int, mac_rx, mac_tx, mii, pmt, stat};
use segue_lan78xx::usb::local::{Clock, Local};
use segue_lan78xx::usb::{self, Speed, Transport};
use segue_port::Port;
use support::{MAC, Meddled, Meddler, Rig, SPEEDS, chip, datagram, local, modes};

#[test]
fn set_up_touches_the_registers_in_the_order_of_linux() {
    let mut usb = local(chip(Speed::Super));
    usb.model.start_trace();
    let mut driver = Driver::open(usb, Config::napi(Speed::Super)).unwrap();
    let writes: Vec<(u16, u32)> = (driver.usb().model.take_trace().into_iter())
        .filter_map(|access| match access {
            Access::Write(register, value) => Some((register, value)),
            _ => None,
        })
        // The tables have their own tests.
        .filter(|(register, _)| !matches!(*register, regs::DP_SEL..=regs::DP_DATA | 0x408..0x510))
        .collect();
    let (low, high) =
        (u32::from_le_bytes([MAC[0], MAC[1], MAC[2], MAC[3]]), u32::from_le_bytes([MAC[4], MAC[5], 0, 0]));
    let mut expected = vec![
        (regs::HW_CFG, hw_cfg::LRST),
        (regs::RX_ADDRL, low),
        (regs::RX_ADDRH, high),
        (regs::maf_lo(0), low),
        (regs::maf_hi(0), high | regs::MAF_VALID),
        (regs::USB_CFG0, 0x40),
    ];
    expected.extend((0..6).map(|at| (regs::LTM_BELT_IDLE0 + 4 * at, 0)));
    expected.extend([
        (regs::BURST_CAP, 32),
        (regs::BULK_IN_DLY, 0x2000),
        (regs::HW_CFG, hw_cfg::MEF | hw_cfg::CLK125_EN | hw_cfg::REFCLK25_EN),
        (regs::USB_CFG0, 0x60),
        (regs::FCT_RX_FIFO_END, 0x17),
        (regs::FCT_TX_FIFO_END, 0x17),
        (regs::INT_STS, u32::MAX),
        (regs::FLOW, 0),
        (regs::FCT_FLOW, 0),
        (regs::RFE_CTL, 0x7c82),
        (regs::PMT_CTL, pmt::READY | pmt::PHY_RST),
        (regs::MAC_CR, 0x8_1800),
        (regs::MAC_RX, 1522 << 16 | mac_rx::RXD),
    ]);
    assert_eq!(writes, expected);
}

#[test]
fn every_wait_ends_when_its_bit_never_comes() {
    let stuck = |register: u16, set: u32, clear: u32| {
        let mut usb = local(model::Config { identity: Identity::OtpHigh, ..chip(Speed::Super) });
        usb.model.stick(register, set, clear);
        let mut driver = Driver::open(usb, Config::napi(Speed::Super))?;
        driver.up()?;
        driver.down()
    };
    assert_eq!(stuck(regs::ID_REV, 0, 0), Ok(()));
    for (name, register, set, clear) in [
        ("the reset", regs::HW_CFG, hw_cfg::LRST, 0),
        ("the reset of the PHY", regs::PMT_CTL, pmt::PHY_RST, 0),
        ("the reset of the PHY", regs::PMT_CTL, 0, pmt::READY),
        ("a PHY access", regs::MII_ACC, mii::BUSY, 0),
        ("the data port", regs::DP_SEL, 0, regs::dp::READY),
        ("an EEPROM access", regs::E2P_CMD, regs::e2p::BUSY, 0),
        ("an OTP access", regs::OTP_STATUS, 1, 0),
        ("power for the OTP memory", regs::OTP_PWR_DN, 1, 0),
        ("the transmit FIFO's stop", regs::FCT_TX_CTL, fct::EN, fct::DIS),
        ("the transmitter's stop", regs::MAC_TX, mac_tx::TXEN, mac_tx::TXD),
        ("the receiver's stop", regs::MAC_RX, mac_rx::RXEN, mac_rx::RXD),
        ("the receive FIFO's stop", regs::FCT_RX_CTL, fct::EN, fct::DIS),
    ] {
        assert_eq!(stuck(register, set, clear), Err(Error::Stuck(name)), "{register:#x}");
    }
    assert!(matches!(stuck(regs::ID_REV, 0xffff_0000, 0), Err(Error::Chip(_))));
}

#[test]
fn the_address_is_taken_from_register_eeprom_otp_or_chance() {
    for (identity, source) in [
        (Identity::Register, AddressSource::Register),
        (Identity::Eeprom, AddressSource::Register),
        (Identity::OtpLow, AddressSource::Otp),
        (Identity::OtpHigh, AddressSource::Otp),
        (Identity::None, AddressSource::Random),
    ] {
        let config = model::Config { identity, ..chip(Speed::High) };
        let driver = Driver::open(local(config), Config::napi(Speed::High)).unwrap();
        assert_eq!(driver.address_source(), source, "{identity:?}");
        if source == AddressSource::Random {
            assert_eq!(driver.mac()[0] & 3, 2, "local and unicast");
        } else {
            assert_eq!(driver.mac(), MAC);
        }
    }
    // An EEPROM whose address the chip did not load by itself. The platform's address precedes it, the user's precedes
    // all.
    let opened = |stuck: bool, config: Config| {
        let mut usb = local(model::Config { identity: Identity::Eeprom, ..chip(Speed::High) });
        if stuck {
            usb.model.stick(regs::RX_ADDRL, u32::MAX, 0);
        }
        Driver::open(usb, config).map(|driver| (driver.address_source(), driver.mac()))
    };
    let none = Config::napi(Speed::High);
    let (platform, user) = ([2, 3, 3, 3, 3, 3], [2, 4, 4, 4, 4, 4]);
    assert_eq!(opened(true, none), Ok((AddressSource::Eeprom, MAC)));
    let said = Config { platform_mac: Some(platform), ..none };
    assert_eq!(opened(true, said), Ok((AddressSource::Platform, platform)));
    assert_eq!(opened(false, said), Ok((AddressSource::Register, MAC)));
    for stuck in [false, true] {
        assert_eq!(opened(stuck, Config { mac: Some(user), ..said }), Ok((AddressSource::User, user)));
        for bad in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            assert!(opened(stuck, Config { mac: Some(bad), ..none }).is_err(), "{bad:?}");
            assert!(opened(stuck, Config { platform_mac: Some(bad), ..none }).is_err(), "{bad:?}");
        }
    }
}

#[test]
fn the_link_follows_the_cable_at_every_speed_with_the_right_flow_control() {
    for speed in SPEEDS {
        let mut rig = Rig::new(speed, Config::napi(speed));
        let levels = match speed {
            Speed::Super => 0x0812,
            Speed::High => 0x0211,
            Speed::Full => 0,
        };
        assert_eq!(rig.model().register(regs::FCT_FLOW), levels);
        assert_eq!(rig.model().register(regs::FLOW), 0x6000_ffff);
        for (mbit, link, pause) in
            [(10, LinkSpeed::M10, true), (100, LinkSpeed::M100, false), (1000, LinkSpeed::M1000, true)]
        {
            rig.model().set_partner(None);
            rig.until(|rig| !rig.driver.link().up);
            rig.model().set_partner(Some(Partner { speed: link, pause }));
            rig.until(|rig| rig.driver.link().up);
            let now = rig.driver.link();
            assert_eq!((now.mbit, now.full_duplex, now.rx_pause, now.tx_pause), (mbit, true, pause, pause));
            rig.model().receive(datagram(true, 1, 100));
            assert_eq!(rig.frames().len(), 1, "{speed:?} {mbit}");
        }
        assert_eq!(rig.driver.numbers().link_ups, 4);
        // An interrupt of a wrong length is ignored, and one event is reported once. The link is read instead.
        let before = rig.model().notes().interrupts;
        rig.model().inject(Fault::InterruptLength(3));
        rig.model().set_partner(None);
        rig.frames();
        assert_eq!((rig.driver.numbers().bad_interrupts, rig.model().notes().interrupts), (1, before + 1));
        assert_ne!(rig.model().register(regs::INT_STS) & int::PHY, 0);
        rig.until(|rig| !rig.driver.link().up);
    }
}

#[test]
fn the_chips_counters_become_64_bits_wide() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    rig.driver.read_statistics().unwrap();
    for (place, most) in [(stat::RX_FCS, 0xf_ffff_u64), (stat::RX_BYTES, 0xffff_ffff)] {
        let mut expected = 0;
        for raw in [5, most, 3, 3, 2, most - 1] {
            rig.model().set_statistic(place, raw as u32);
            let last = expected % (most + 1);
            expected = expected - last + raw + if raw < last { most + 1 } else { 0 };
            rig.driver.read_statistics().unwrap();
            assert_eq!(rig.driver.statistics()[place], expected);
        }
    }
    // Without an access, as time passes.
    rig.model().set_statistic(stat::TX_PAUSE, 77);
    rig.driver.usb().sleep(60_000_000_000);
    rig.step();
    assert_eq!(rig.driver.statistics()[stat::TX_PAUSE], 77);
}

#[test]
fn traffic_after_an_idle_time_brings_the_next_reading_forward() {
    /// Returns the number of seconds until the counters are read, after `idle` idle seconds and then one frame in
    /// either direction.
    fn wait(idle: u64, receives: bool) -> u64 {
        let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
        for _ in 0..idle {
            rig.driver.usb().sleep(1_000_000_000);
            rig.step();
        }
        rig.model().set_statistic(stat::TX_PAUSE, 77);
        if receives {
            rig.model().receive(datagram(true, 1, 100));
            assert_eq!(rig.frames().len(), 1);
        } else {
            let packet = rig.packet(&datagram(true, 1, 100), Csum::Unknown);
            rig.send(packet);
        }
        for seconds in 0..100 {
            if rig.driver.statistics()[stat::TX_PAUSE] == 77 {
                return seconds;
            }
            rig.driver.usb().sleep(1_000_000_000);
            rig.step();
        }
        panic!("it was never read");
    }
    for idle in [2, 20, 150] {
        assert!(wait(idle, true) <= 1 && wait(idle, false) <= 1, "{idle}");
    }
}

#[test]
fn counters_of_20_bits_miss_no_wrap_however_fast_small_frames_come() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    rig.driver.read_statistics().unwrap();
    let frame = datagram(true, 1, 10);
    let mut received = 0;
    // In less than a second, so that only the number of segments can bring a reading forward. An emulated machine takes
    // a minute for as many as a counter holds; fewer show the same there.
    let enough = if segue_testkit::is_set("SEGUE_QUICK") { 0x1_0000 } else { 0x12_0000 };
    while received < enough {
        for _ in 0..2000 {
            rig.model().receive(frame.clone());
        }
        let before = received;
        for _ in 0..40 {
            rig.driver.receive(&mut rig.rx, 64).unwrap();
            received += rig.rx.packets.len() as u64;
            while let Some(packet) = rig.rx.pop_packet() {
                rig.rx.pool.put(packet);
            }
        }
        assert!(received > before);
        rig.driver.usb().sleep(100_000);
    }
    received += (0..50).map(|_| rig.packets().len() as u64).sum::<u64>();
    rig.driver.read_statistics().unwrap();
    let counted = rig.driver.statistics();
    assert_eq!(counted[stat::RX_FRAMES], received + counted[stat::RX_DROPPED]);
}

#[test]
fn mtus_are_checked_and_taken_over() {
    let mut rig = Rig::new(Speed::High, Config::napi(Speed::High));
    for bad in [0, 67, 9001, 512 - 18, 1024 - 18, 8704 - 18] {
        assert!(matches!(rig.driver.set_mtu(bad), Err(Error::Setting(_))), "{bad}");
    }
    for mtu in [68, 1500, 9000] {
        rig.driver.set_mtu(mtu).unwrap();
        assert_eq!(rig.model().register(regs::MAC_RX) >> 16, mtu as u32 + 22);
        rig.model().receive(datagram(true, 1, mtu - 28));
        assert_eq!(rig.frames().len(), 1);
    }
}

#[test]
fn down_up_suspend_and_resume_leave_a_driver_that_works() {
    for (mode, config) in modes(Speed::Super) {
        let mut rig = Rig::new(Speed::Super, config);
        for turn in 0..6 {
            match turn % 3 {
                0 => {
                    rig.driver.down().unwrap();
                    assert_eq!(rig.model().pending(), 0, "{mode}: every transfer is back");
                    rig.driver.up().unwrap();
                }
                1 => {
                    rig.driver.suspend().unwrap();
                    rig.driver.resume().unwrap();
                }
                _ => {
                    rig.driver.suspend().unwrap();
                    rig.model().replug();
                    rig.driver.resume().unwrap();
                }
            }
            rig.until(|rig| rig.driver.link().up);
            rig.model().receive(datagram(true, turn, 500));
            assert_eq!(rig.frames().len(), 1, "{mode} {turn}");
            let packet = rig.packet(&datagram(true, turn, 500), Csum::Unknown);
            rig.send(packet);
            assert_eq!(rig.arrived().len(), 1, "{mode} {turn}");
        }
    }
}

#[test]
fn a_device_that_is_unplugged_at_any_time_is_noticed_and_goes_on_when_it_is_back() {
    for (mode, config) in modes(Speed::High) {
        for after in [0, 1, 3, 10, 25] {
            let mut rig = Rig::new(Speed::High, config);
            rig.driver.on_gone(Box::new(|_| {
                let clock = Clock::Still(segue::time::Nanos(10_000_000_000));
                LookupResult::Back(Local::new(Model::new(chip(Speed::High)), None, clock))
            }));
            rig.model().inject(Fault::UnplugAfter(after));
            for n in 0..40 {
                rig.model().receive(datagram(true, n, 1000));
                let packet = rig.packet(&datagram(true, n, 1000), Csum::Unknown);
                rig.send(packet);
                rig.step();
            }
            assert!(rig.driver.is_gone() && !rig.driver.link().up, "{mode} {after}");
            assert_eq!(rig.driver.numbers().unplugs, 1);
            rig.driver.usb().sleep(1_100_000_000);
            rig.until(|rig| rig.driver.link().up);
            rig.rx.packets.clear();
            rig.model().receive(datagram(true, 7, 100));
            assert_eq!(rig.frames().len(), 1, "{mode} {after}");
        }
    }
}

#[test]
fn a_device_that_goes_away_during_set_up_is_an_error() {
    /// Number of control requests after which the device disconnects.
    struct GoesAway(u32);
    impl Meddler for GoesAway {
        fn before(&mut self, model: &mut Model, _setup: usb::Setup) -> Result<(), usb::Error> {
            self.0 = self.0.saturating_sub(1);
            if self.0 == 0 {
                model.unplug();
            }
            Ok(())
        }
    }
    for control in 0..400 {
        let usb = Meddled::new(local(chip(Speed::Super)), GoesAway(control + 1));
        let opened = Driver::open(usb, Config::napi(Speed::Super)).and_then(|mut driver| driver.up());
        assert!(matches!(opened, Err(Error::Usb(usb::Error::Gone)) | Ok(())), "{control}: {opened:?}");
        assert!(control > 150 || opened.is_err(), "{control}");
    }
}

#[test]
fn a_control_request_that_stalls_is_counted_and_the_driver_goes_on() {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    rig.model().inject(Fault::ControlStall);
    rig.model().set_partner(None);
    rig.until(|rig| rig.driver.numbers().control_errors == 1);
    rig.model().set_partner(Some(Partner { speed: LinkSpeed::M100, pause: true }));
    rig.until(|rig| rig.driver.link().up && rig.driver.link().mbit == 100);
    assert_eq!(rig.driver.limits().max_bytes, 32_746);
}
