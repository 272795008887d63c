use segue::reason::Reason;
use segue::time::Nanos;
use segue_lan78xx::driver::Config;
use segue_lan78xx::frame::rx::{Builder, ChecksumErrors, Frames, HEADER_LEN, Malformed};
use segue_lan78xx::frame::tx;
use segue_lan78xx::model::Fault;
use segue_lan78xx::usb::Speed;
use segue_port::Port;

use crate::adapter_support::Rig;
use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a driver with the model of its chip may hold: transfers, memory of the chip, pages.
const FREE: usize = 8 << 20;

/// Reads an arbitrary bulk-in transfer, first by itself, then through the driver: the reader ends within bounded steps,
/// every frame lies within the transfer, and the driver passes on or counts exactly the frames found by the reader. The
/// bytes are read as the header of a frame that is sent, too, and written back.
pub fn framing(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let bytes = input.rest();
    bounded(data.len(), FREE, || {
        let errors = ChecksumErrors::Pass;
        let (mut good, mut bad, mut steps) = (0, vec![0_u64; Malformed::ALL.len()], 0);
        for one in Frames::new(bytes, errors) {
            steps += 1;
            match one {
                Ok((_, range)) => {
                    assert!(range.start <= range.end && range.end <= bytes.len());
                    good += 1;
                }
                Err(why) => bad[why.index()] += 1,
            }
        }
        assert!(steps <= bytes.len() / HEADER_LEN + 1);
        built_again(bytes, good, bad[Malformed::Checksum.index()]);
        if let Some(command) = tx::Command::parse(bytes) {
            // A segment size below the least of the chip is raised to it.
            let written = command.emit();
            assert_eq!(tx::Command::parse(&written).map(|command| command.emit()), Some(written));
        }
        let plain = tx::Command::plain(u32::from(how) + 1);
        assert_eq!(tx::Command::parse(&plain.emit()), Some(plain));
        assert!((bytes.len() + tx::padding(bytes.len())).is_multiple_of(tx::ALIGN));
        assert!(tx::needs_zero_packet(bytes.len() * 512, 512) != bytes.is_empty());
        // Tags stay in the frames, or are put back into them (bit 1).
        let standard = Config { strip_tags: how & 2 != 0, ..Config::standard(Speed::Super) };
        let config = if how & 1 == 0 { Config::napi(Speed::Super) } else { standard };
        // The driver reads transfers of a limited length.
        if bytes.len() > config.rx_transfer_len.min(16 << 10) {
            return;
        }
        let mut rig = Rig::new(Speed::Super, config);
        rig.model().inject(Fault::RawTransfer(bytes.to_vec()));
        rig.driver.usb().model.advance(Nanos(0));
        let mut got = 0;
        // Each poll has a budget of 64 packets, and a frame takes 28 bytes at least.
        for _ in 0..10 {
            rig.driver.receive(&mut rig.rx, 1000).expect("a model without errors");
            got += rig.rx.packets.len();
            while let Some(packet) = rig.rx.pop_packet() {
                rig.rx.pool.put(packet);
            }
        }
        assert_eq!(got, good);
        for (why, count) in rig.driver.malformed().iter() {
            assert_eq!(count, bad[why.index()], "{why:?}");
        }
        assert_eq!(rig.rx.pages.in_use(), 0);
    });
}

/// Builds a transfer of the good frames of another: they are read again as what they were. `good` is their number where
/// wrong checksums are passed on; where they are errors, too, those frames are dropped.
fn built_again(bytes: &[u8], good: usize, dropped: u64) {
    let (mut built, mut expected) = (Builder::default(), Vec::new());
    let mut frames = Frames::new(bytes, ChecksumErrors::Pass);
    while let Some(found) = frames.next() {
        assert!(frames.position() <= bytes.len());
        let Ok((header, range)) = found else { continue };
        let frame = [&bytes[range], &[0; 4]].concat();
        let len = built.len_with(frame.len());
        built.push(header, &frame);
        assert_eq!(built.bytes.len(), len);
        expected.push((header.flags, frame));
    }
    assert_eq!((expected.len(), dropped), (good, 0));
    let again: Vec<_> = Frames::new(&built.bytes, ChecksumErrors::Pass)
        .map(|found| found.map(|(header, range)| (header.flags, built.bytes[range.start..range.end + 4].to_vec())))
        .collect::<Result<_, _>>()
        .expect("good frames");
    assert!(again == expected, "the frames of a transfer that was built are others");
    let strict = Frames::new(bytes, ChecksumErrors::Drop).collect::<Vec<_>>();
    let wrong = strict.iter().filter(|found| **found == Err(Malformed::Checksum)).count();
    let passed = strict.iter().filter(|found| found.is_ok()).count();
    // Of a dropped frame the length is not judged.
    assert!(passed <= good && passed + wrong >= good, "{passed} passed, {wrong} dropped of {good}");
}
