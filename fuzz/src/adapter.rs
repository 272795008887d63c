use segue::reason::Reason;
use segue::time::Nanos;
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::frame::rx::{ChecksumErrors, Frames, HEADER_LEN, Malformed};
use segue_lan78xx::frame::tx;
use segue_lan78xx::model::{Fault, Model};
use segue_lan78xx::usb::{self, Setup, Speed, Transport};
use segue_port::{Port, RxBatch};

use crate::adapter_support::{Meddled, Meddler, Rig, chip, local};
use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a driver with the model of its chip may hold: transfers, memory of the chip, pages.
const FREE: usize = 96 << 20;

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
        if let Some(command) = tx::Command::parse(bytes) {
            // A segment size below the least of the chip is raised to it.
            let written = command.emit();
            assert_eq!(tx::Command::parse(&written).map(|command| command.emit()), Some(written));
        }
        let config = Config::napi(Speed::Super);
        // The driver reads transfers of a limited length.
        if bytes.len() > 16 << 10 {
            return;
        }
        let config = if how & 1 == 0 { config } else { Config { strip_tags: false, ..Config::standard(Speed::Super) } };
        let mut rig = Rig::new(Speed::Super, config);
        rig.model().inject(Fault::RawTransfer(bytes.to_vec()));
        rig.driver.usb().model.advance(Nanos(0));
        let mut got = 0;
        for _ in 0..3 {
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

/// Answers of a device, read from the input.
struct Answers {
    bytes: Vec<u8>,
    at: usize,
}

impl Answers {
    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }
}

impl Meddler for Answers {
    fn before(&mut self, _model: &mut Model, setup: Setup) -> Result<(), usb::Error> {
        match self.next() {
            Some(0xff) if !setup.is_in() => Err(usb::Error::Timeout),
            _ => Ok(()),
        }
    }

    fn answer(&mut self, bytes: &mut [u8], len: usize) -> Result<usize, usb::Error> {
        match self.next() {
            Some(0xff) => Err(usb::Error::Stall),
            Some(0xfe) => Ok(len / 2),
            Some(0xfd) => {
                for byte in &mut bytes[..len] {
                    *byte = self.next().unwrap_or(0);
                }
                Ok(len)
            }
            _ => Ok(len),
        }
    }
}

/// Tests a driver whose device answers register requests with arbitrary bytes or errors: the driver refuses the device
/// or works with it, and ends in bounded time.
pub fn registers(data: &[u8]) {
    bounded(data.len(), FREE, || {
        let answers = Answers { bytes: data.to_vec(), at: 0 };
        let usb = Meddled::new(local(chip(Speed::Super)), answers);
        let Ok(mut driver) = Driver::open(usb, Config::napi(Speed::Super)) else { return };
        let _ = driver.up();
        let mut rx = RxBatch::new(16);
        for turn in 0..10 {
            if turn % 7 == 3 {
                driver.usb().local.borrow_mut().model.set_partner(None);
            }
            driver.usb().sleep(30_000_000);
            let _ = driver.receive(&mut rx, 64);
            rx.packets.clear();
        }
        let _ = driver.read_statistics();
        let _ = driver.set_mac([2, 0, 0, 0, 0, 1]);
        let _ = driver.set_mtu(1500);
        let _ = driver.down();
    });
}
