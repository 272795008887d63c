//! The model's side of the bulk endpoints: a stream of commands and frames in transfers, how it is lost and found again, and
//! transfers too small for what was received.

mod support;

use segue_lan78xx::driver::Config;
use segue_lan78xx::frame::tx::{Command, padding};
use segue_lan78xx::model::{Completion, Outcome, Wish};
use segue_lan78xx::regs::{self, endpoint, int, usb_cfg0};
use segue_lan78xx::usb::{Error, Setup, Speed, Transport};
use support::Rig;

/// A model that sends, without a driver that would meddle.
fn rig() -> Rig {
    let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
    rig.driver.usb().model.done();
    rig
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut bytes = [&support::PEER[..], &support::MAC, &[0x88, 0xb5]].concat();
    bytes.resize(len, number);
    bytes
}

fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for one in frames {
        bytes.resize(bytes.len() + padding(bytes.len()), 0xee);
        bytes.extend_from_slice(&Command::plain(one.len() as u32).emit());
        bytes.extend_from_slice(one);
    }
    bytes
}

/// A number that no transfer of the driver has.
const ID: u32 = 9_000_000;

/// Hands over a transfer; what came of it.
fn submit(rig: &mut Rig, bytes: &[u8], zero_packet: bool) -> Option<Result<(), Error>> {
    let model = &mut rig.driver.usb().model;
    model.submit(ID, endpoint::BULK_OUT, Wish::Out(bytes.to_vec(), zero_packet));
    model.advance(segue::time::Nanos(0));
    std::iter::from_fn(|| model.done()).find_map(|Completion { id, result }| (id == ID).then(|| result.map(drop)))
}

fn on_the_wire(rig: &mut Rig) -> Vec<Vec<u8>> {
    let model = &mut rig.driver.usb().model;
    std::iter::from_fn(|| model.transmit()).collect()
}

fn clear_halt(rig: &mut Rig) {
    let setup = Setup { request_type: 2, request: 1, value: 0, index: u16::from(endpoint::BULK_OUT), length: 0 };
    rig.driver.usb().model.control(setup, &[]).unwrap();
}

#[test]
fn a_command_and_a_frame_may_lie_in_two_transfers_at_every_byte() {
    // The first transfer ends with a full packet, somewhere from a command's first byte to a frame's.
    for ahead in 0..40 {
        let mut rig = rig();
        let frames = [frame(1, 1024 - 8 - ahead), frame(2, 300), frame(3, 61), frame(4, 62)];
        let bytes = stream(&frames);
        let (first, second) = bytes.split_at(1024);
        assert_eq!(submit(&mut rig, first, false), Some(Ok(())), "{ahead}");
        assert_eq!(on_the_wire(&mut rig).len(), 1, "{ahead}: the second one is not whole");
        assert_eq!(submit(&mut rig, second, false), Some(Ok(())), "{ahead}");
        assert_eq!(on_the_wire(&mut rig), frames[1..], "{ahead}");
        assert_eq!(rig.model().notes().lost_sync, 0);
    }
}

#[test]
fn what_is_no_command_ends_the_transfer_halts_the_endpoint_and_is_recovered_from() {
    let good = frame(1, 100);
    let plain = Command::plain(100).emit();
    let with = |at: usize, value: u8| {
        let mut bytes = plain;
        bytes[at] = value;
        [&bytes[..], &good].concat()
    };
    let cases = [
        ("no length", with(0, 0)),
        ("a length past the end", with(0, 101)),
        ("a length far past the end", with(1, 0xff)),
        ("bit 31 of the first word", with(3, 0x80)),
        ("bit 30 of the first word", with(3, 0x40)),
        ("bit 31 of the second word", with(7, 0x80)),
        ("half a command", plain[..5].to_vec()),
    ];
    for (name, bad) in cases {
        for stays in [false, true] {
            let mut rig = rig();
            if stays {
                let value = rig.model().register(regs::USB_CFG0) | usb_cfg0::NO_STALL;
                let setup = Setup { request_type: 0x40, request: 0xa0, value: 0, index: regs::USB_CFG0, length: 4 };
                rig.driver.usb().model.control(setup, &value.to_le_bytes()).unwrap();
            }
            let mut bytes = stream(std::slice::from_ref(&good));
            bytes.resize(bytes.len() + padding(bytes.len()), 0);
            bytes.extend_from_slice(&bad);
            let result = submit(&mut rig, &bytes, false);
            assert_eq!(result, Some(if stays { Ok(()) } else { Err(Error::Stall) }), "{name}");
            assert_eq!(on_the_wire(&mut rig), std::slice::from_ref(&good), "{name}: what came before it is sent");
            assert_eq!(rig.model().notes().lost_sync, 1, "{name}");
            assert_ne!(rig.model().register(regs::INT_STS) & int::TXE, 0, "{name}");
            let again = stream(std::slice::from_ref(&good));
            if !stays {
                assert_eq!(submit(&mut rig, &again, false), None, "{name}: halted");
                rig.model().cancel(ID);
                clear_halt(&mut rig);
            }
            assert_eq!(submit(&mut rig, &again, false), Some(Ok(())), "{name}");
            assert_eq!(on_the_wire(&mut rig), std::slice::from_ref(&good), "{name}");
        }
    }
}

#[test]
fn a_short_packet_in_the_middle_of_a_frame_is_a_loss_of_sync_and_an_empty_transfer_is_not() {
    let mut rig = rig();
    let bytes = stream(&[frame(1, 1500)]);
    assert_eq!(submit(&mut rig, &bytes[..1024], true), Some(Err(Error::Stall)), "a zero-length packet is short");
    clear_halt(&mut rig);
    assert_eq!(submit(&mut rig, &bytes[..700], false), Some(Err(Error::Stall)));
    clear_halt(&mut rig);
    assert_eq!(submit(&mut rig, &[], false), Some(Ok(())));
    assert_eq!((on_the_wire(&mut rig).len(), rig.model().notes().lost_sync), (0, 2));
}

#[test]
fn a_transfer_is_never_given_more_than_it_asked_for() {
    // Smaller than the burst cap, and smaller than a frame.
    for (room, expected) in [(4096, vec![1034, 1034, 1034]), (1500, vec![1034]), (1034, vec![1034]), (500, vec![])] {
        let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
        let model = &mut rig.driver.usb().model;
        // The driver's own go back first.
        for id in 0..1000 {
            model.cancel(id);
        }
        for n in 0..3 {
            let mut bytes = frame(n, 1020);
            bytes[..6].copy_from_slice(&support::MAC);
            model.receive(bytes);
        }
        model.submit(ID, endpoint::BULK_IN, Wish::In(room));
        rig.driver.usb().sleep(10_000_000);
        let model = &mut rig.driver.usb().model;
        model.advance(segue::time::Nanos(u64::MAX / 2));
        let got = std::iter::from_fn(|| model.done()).find(|done| done.id == ID).map(|done| done.result.unwrap());
        let total = expected.iter().fold(0_usize, |at, len| at.next_multiple_of(4) + len);
        match got {
            None => assert_eq!(total, 0, "{room}"),
            Some(Outcome::Received(bytes)) => {
                assert!(bytes.len() <= room);
                assert_eq!(bytes.len(), total, "{room}");
            }
            Some(Outcome::Sent(_)) => panic!("it is no transfer out"),
        }
        // What no transfer can hold is counted by whoever made the chip.
        assert_eq!(rig.model().notes().unfit, if room < 1034 { 3 } else { 0 }, "{room}");
    }
}
