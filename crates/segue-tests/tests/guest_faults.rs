//! Test of the end of the process that talks to a guest's front end, and of an endless loop in it: HEALTH names its
//! end, frames pass again soon, and no other instance is affected.

#[path = "common/guests.rs"]
mod common;

use std::cell::{Cell, RefCell};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::{NAME, PATIENCE, announcement, send_plain};
use segue_testkit::vhost::{Frontend, TO_GUEST, feature};
use segue_tests::capture::Directory;
use segue_tests::faults::{Fault, Service, tail};
use segue_tests::test_name;

/// Longest time from the end of the process until frames pass again: five times the aim.
const BACK: Duration = Duration::from_secs(15);
/// Longest wait for a frame; another one follows.
const AGAIN: Duration = Duration::from_millis(500);

/// Two guests at the ports of a gateway, whose front ends connect again where a connection was closed.
struct Guests {
    paths: [PathBuf; 2],
    connected: RefCell<Option<[Frontend; 2]>>,
    /// Number of the last frames.
    number: Cell<u8>,
}

impl Guests {
    /// Connects both front ends, whose guests are ready and offer buffers. `None` where no process listens.
    fn connect(&self) -> Option<[Frontend; 2]> {
        let streams = [UnixStream::connect(&self.paths[0]).ok()?, UnixStream::connect(&self.paths[1]).ok()?];
        Some(streams.map(|stream| {
            let mut front = Frontend::over(stream, feature::USUAL);
            front.start();
            front.offer_buffers(2048);
            front
        }))
    }

    /// Returns whether new frames pass in both directions within `longest`.
    fn passes(&self, longest: Duration) -> bool {
        let begin = Instant::now();
        let mut connected = self.connected.borrow_mut();
        loop {
            if connected.as_mut().is_none_or(|fronts| fronts.iter_mut().any(Frontend::is_closed)) {
                *connected = self.connect();
            }
            self.number.set(self.number.get().wrapping_add(1));
            if connected.as_mut().is_some_and(|fronts| exchange(fronts, self.number.get(), longest.min(AGAIN))) {
                return true;
            }
            if begin.elapsed() >= longest {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends a frame with this number from each guest, and returns whether both arrive within `longest`.
fn exchange(fronts: &mut [Frontend; 2], number: u8, longest: Duration) -> bool {
    let frames = [1, 2].map(|station| {
        let mut frame = announcement(station);
        frame[20] = number;
        frame
    });
    for (front, frame) in fronts.iter_mut().zip(&frames) {
        send_plain(front, u16::from(number % 64), frame);
    }
    let (begin, mut came) = (Instant::now(), [false; 2]);
    while came != [true; 2] {
        if begin.elapsed() >= longest {
            return false;
        }
        for (at, front) in fronts.iter_mut().enumerate() {
            came[at] |= front.received().iter().any(|(_, frame)| *frame == frames[1 - at]);
            front.kick(TO_GUEST);
        }
        thread::sleep(Duration::from_micros(100));
    }
    true
}

#[test]
fn guests_whose_keeper_ended_or_looped_exchange_frames_again_and_no_other_instance_notices() {
    let directory = Directory::new();
    let paths = ["left", "right"].map(|name| directory.file(&format!("{name}.sock")));
    let [left, right] = paths.each_ref().map(|path| path.display());
    let table = format!("[[gateway]]\nin = \"vhost:{left}\"\nout = \"vhost:{right}\"\nname = \"{NAME}\"\n");
    let Some(service) = Service::start(test_name!(), 1, &table, &[]) else { return };
    let tunnel = service.patient_pid("sg1");
    let guests = Guests { paths, connected: RefCell::new(None), number: Cell::new(0) };
    let passes = |longest| guests.passes(longest);
    assert!(passes(PATIENCE), "{}", tail(&service.near));
    for fault in Fault::of_helpers(test_name!()) {
        let took = service.fault_of(NAME, fault, &passes);
        println!("keeper, {fault:?}: {} ms", took.as_millis());
        let words = "of processor time without a round";
        assert_eq!(service.errors_with(words), usize::from(fault == Fault::HelperLoop), "{fault:?}");
        assert!(took < BACK, "{took:?} until frames pass again");
    }
    assert_eq!(service.patient_pid("sg1"), tunnel, "the tunnel has its process");
}
