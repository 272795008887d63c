//! Tests of the model's bulk endpoints: a stream of commands and frames in transfers, loss of sync and recovery, and
//! transfers too small for a received frame.

mod support;

use segue_lan78xx::driver::Config;
use segue_lan78xx::frame::tx::{Command, padding};
use segue_lan78xx::model::{Completion, Model, Outcome, TransferRequest};
use segue_lan78xx::regs::{self, endpoint, fct, hw_cfg, int, request, usb_cfg0};
use segue_lan78xx::usb::{Error, Setup, Speed, Transport};
use support::Rig;

/// Returns a model with its transmitter enabled and no driver that submits transfers.
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

/// A transfer number that the driver does not use.
const ID: u32 = 9_000_000;

/// Submits a transfer; returns its result.
fn submit(rig: &mut Rig, bytes: &[u8], zero_packet: bool) -> Option<Result<(), Error>> {
    let model = &mut rig.driver.usb().model;
    model.submit(ID, endpoint::BULK_OUT, TransferRequest::Out(bytes.to_vec(), zero_packet));
    model.advance(segue::time::Nanos(0));
    std::iter::from_fn(|| model.done()).find_map(|Completion { id, result, .. }| (id == ID).then(|| result.map(drop)))
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
    // The first transfer ends with a full packet, anywhere from a command's first byte to a frame's.
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
                assert_eq!(submit(&mut rig, &again, false), Some(Err(Error::Stall)), "{name}: halted");
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
    // Transfers smaller than the burst cap, and smaller than a frame.
    for (room, expected) in [(4096, vec![1034, 1034, 1034]), (1500, vec![1034]), (1034, vec![1034]), (500, vec![])] {
        let mut rig = Rig::new(Speed::Super, Config::napi(Speed::Super));
        let model = &mut rig.driver.usb().model;
        // The driver's own transfers are cancelled first.
        for id in 0..1000 {
            model.cancel(id);
        }
        for n in 0..3 {
            let mut bytes = frame(n, 1020);
            bytes[..6].copy_from_slice(&support::MAC);
            model.receive(bytes);
        }
        model.submit(ID, endpoint::BULK_IN, TransferRequest::In(room));
        rig.driver.usb().sleep(10_000_000);
        let model = &mut rig.driver.usb().model;
        model.advance(segue::time::Nanos(u64::MAX / 2));
        let got = std::iter::from_fn(|| model.done()).find(|done| done.id == ID).map(|done| done.result);
        let total = expected.iter().fold(0_usize, |at, len| at.next_multiple_of(4) + len);
        match got {
            None => panic!("{room}: no answer"),
            Some(Err(error)) => assert_eq!((error, total), (Error::Overflow, 0), "{room}"),
            Some(Ok(Outcome::Received(bytes))) => {
                assert!(bytes.len() <= room);
                assert_eq!(bytes.len(), total, "{room}");
            }
            Some(Ok(Outcome::Sent(_))) => panic!("it is no transfer out"),
        }
        // The first frame is lost with the transfer that is too small for it; the others wait for larger transfers.
        assert_eq!(rig.model().notes().unfit, u64::from(room < 1034), "{room}");
    }
}

#[test]
fn every_endpoint_can_be_halted_says_so_and_stalls_what_waits_and_what_comes() {
    let request = |request_type, request, index| Setup {
        request_type,
        request,
        value: 0,
        index,
        length: if request == 0 { 2 } else { 0 },
    };
    let mut rig = rig();
    let model = &mut rig.driver.usb().model;
    // The driver's own transfers are cancelled first.
    model.cancel_all();
    for address in [endpoint::BULK_IN, endpoint::BULK_OUT, endpoint::INTERRUPT] {
        let transfer =
            || if address & 0x80 != 0 { TransferRequest::In(512) } else { TransferRequest::Out(vec![0; 9], false) };
        let index = u16::from(address);
        let result = |model: &mut segue_lan78xx::model::Model| {
            model.advance(segue::time::Nanos(0));
            std::iter::from_fn(|| model.done()).find(|done| done.id == ID).map(|done| done.result)
        };
        if address & 0x80 != 0 {
            model.submit(ID, address, transfer());
        }
        model.control(request(2, 3, index), &[]).unwrap();
        if address & 0x80 != 0 {
            assert_eq!(result(model), Some(Err(Error::Stall)), "{address:#x}: it waited already");
        }
        assert_eq!(model.control(request(0x82, 0, index), &[]), Ok(vec![1, 0]), "{address:#x}");
        model.submit(ID, address, transfer());
        assert_eq!(result(model), Some(Err(Error::Stall)), "{address:#x}");
        model.control(request(2, 1, index), &[]).unwrap();
        assert_eq!(model.control(request(0x82, 0, index), &[]), Ok(vec![0, 0]), "{address:#x}");
        if address & 0x80 != 0 {
            model.submit(ID, address, transfer());
            assert_eq!(result(model), None, "{address:#x}: it waits again");
            assert!(model.cancel(ID));
        }
    }
    for (kind, what) in [(0x82, 0), (2, 3), (2, 1)] {
        for index in [0x99, 0x84, 0x181] {
            assert_eq!(model.control(request(kind, what, index), &[]), Err(Error::Stall), "{index:#x} is not there");
        }
    }
}

/// Transfer number that the driver does not use. Returns their number.
fn filled() -> (Rig, u64) {
    let mut rig = rig();
    let now = rig.driver.usb().now();
    let model = rig.model();
    model.cancel_all();
    let mut given = 0;
    let mut receive = |model: &mut Model, count: u8| {
        for number in 0..count {
            let mut frame = frame(number, 200);
            frame[..6].copy_from_slice(&support::MAC);
            model.receive(frame);
            given += 1;
        }
    };
    model.submit(ID, endpoint::BULK_IN, TransferRequest::In(700));
    receive(model, 5);
    model.advance(now);
    model.submit(ID + 1, endpoint::BULK_IN, TransferRequest::In(16_384));
    model.advance(now);
    assert!(model.cancel(ID + 1));
    receive(model, 4);
    model.advance(now);
    receive(model, 2);
    (rig, given)
}

#[test]
fn every_received_frame_is_delivered_or_counted_under_chip_faults() {
    type Event = fn(&mut Model);
    fn write(model: &mut Model, index: u16, value: u32) {
        let setup = Setup { request_type: request::OUT, request: request::WRITE_REGISTER, value: 0, index, length: 4 };
        model.control(setup, &value.to_le_bytes()).unwrap();
    }
    let events: [(&str, Event, u64); 6] = [
        ("nothing", |_| {}, 3),
        ("reset of the FIFO", |model| write(model, regs::FCT_RX_CTL, fct::RST), 3),
        ("reset of the chip", |model| write(model, regs::HW_CFG, hw_cfg::LRST), 3),
        ("unplugged", Model::unplug, 3),
        ("put in anew", Model::replug, 3),
        ("client gone", Model::cancel_all, 0),
    ];
    for (what, event, handed_over) in events {
        let (mut rig, given) = filled();
        let model = rig.model();
        let before = model.notes();
        event(model);
        let mut got = 0;
        while let Some(done) = model.done() {
            got += done.frames;
        }
        assert_eq!(got, handed_over, "{what}");
        if what == "put in anew" {
            assert_eq!(model.notes().flushed, 6, "{what}: what the old one had");
        }
        model.unplug();
        let notes = model.notes();
        let (flushed, unheard) = (notes.flushed - before.flushed, notes.unheard - before.unheard);
        assert_eq!((flushed, unheard), (6, 2), "{what}");
        assert_eq!(got + notes.unclaimed - before.unclaimed + flushed + unheard, given, "{what}");
        assert_eq!(notes.bulk_in_frames, 3, "{what}");
    }
}

#[test]
fn each_frame_of_a_transfer_that_was_being_filled_counts_where_a_smaller_one_takes_its_place() {
    let (mut rig, _) = filled();
    let now = rig.driver.usb().now();
    let model = rig.model();
    while model.done().is_some() {}
    model.submit(ID + 2, endpoint::BULK_IN, TransferRequest::In(100));
    model.advance(now);
    assert_eq!(model.done().map(|done| (done.id, done.result)), Some((ID + 2, Err(Error::Overflow))));
    assert_eq!((model.notes().unfit, model.notes().bulk_in_frames), (2, 3));
}

#[test]
fn frames_that_are_on_their_way_out_when_the_chip_is_unplugged_are_counted() {
    let config = segue_lan78xx::model::Config { paced: true, ..support::chip(Speed::Super) };
    for event in [Model::unplug, Model::replug] {
        let mut rig = Rig::of(config, Config::napi(Speed::Super));
        let now = rig.driver.usb().now();
        let model = rig.model();
        let frames: Vec<Vec<u8>> = (0..8).map(|number| frame(number, 1000)).collect();
        model.submit(ID, endpoint::BULK_OUT, TransferRequest::Out(stream(&frames), false));
        model.advance(now);
        // Two frames need 16 us.
        model.advance(now.after(17_000));
        event(model);
        let arrived = std::iter::from_fn(|| model.transmit()).count();
        assert_eq!((arrived, model.notes().cut_off), (2, 6));
    }
}

#[test]
fn a_frame_longer_than_the_transmit_fifo_is_lost_and_counted() {
    let mut rig = rig();
    let longest = 12 * 1024 - 8;
    for (len, goes) in [(longest, true), (longest + 1, false), (20_000, false), (1500, true)] {
        let before = rig.model().notes().too_big;
        assert_eq!(submit(&mut rig, &stream(&[frame(1, len)]), false), Some(Ok(())));
        let lost = rig.model().notes().too_big - before;
        assert_eq!((on_the_wire(&mut rig).len(), lost), (usize::from(goes), u64::from(!goes)), "{len}");
    }
}

/// Tests that one transfer takes no more memory than the wire has room for, however many frames it has or asks for.
#[test]
fn what_one_transfer_can_put_on_the_wire_is_limited_and_the_rest_is_counted() {
    const SHORT: usize = 400_000;
    let mut crowded = rig();
    assert_eq!(submit(&mut crowded, &stream(&vec![vec![7]; SHORT]), false), Some(Ok(())));
    assert_eq!(crowded.model().notes().wire_full, SHORT as u64 - (2 << 16));
    // A command whose segment size is one byte.
    let lso = |frame: &[u8]| {
        let mut command = Command { mss: Some(8), ..Command::plain(frame.len() as u32) }.emit();
        command[6] = 1;
        [&command[..], frame].concat()
    };
    let mut rig = rig();
    let packet = support::segment(true, 60_000, 0x10);
    assert_eq!(submit(&mut rig, &lso(&packet), false), Some(Ok(())));
    assert_eq!(rig.model().notes().bulk_out_segments, 60_000 / 8);
    // More bytes than a packet can have.
    let long = [packet, vec![0; 10_000]].concat();
    assert_eq!(submit(&mut rig, &lso(&long), false), Some(Ok(())));
    let notes = rig.model().notes();
    assert_eq!((notes.bulk_out_segments, notes.bad_lso), (60_000 / 8, 1));
}

/// Tests that a command that comes in very many transfers is sent, as one that comes in one.
#[test]
fn a_command_may_come_in_very_many_transfers() {
    let mut rig = rig();
    let bytes = stream(&[frame(1, 200 << 10)]);
    for part in bytes.chunks(1024) {
        assert_eq!(submit(&mut rig, part, false), Some(Ok(())));
    }
    // It is longer than the transmit FIFO.
    assert_eq!((rig.model().notes().too_big, rig.model().notes().lost_sync), (1, 0));
}
