//! Tests of held packets: for a next segment, as an unparsed frame, or to be popped.

use std::cell::Cell;
use std::rc::Rc;

use segue::gro::{Config, Frame, Generation, Gro, Profile};
use segue::packet::{Csum, Frag, Pool, Start};
use segue::time::Nanos;
use segue_testkit::Rng;
use segue_testkit::build::Ethernet;
use segue_testkit::flow::Sender;

use crate::bench::v4;

/// Returns a frame of TCP on Ethernet.
fn frame(sender: &mut Sender, len: usize) -> Frame<Vec<u8>> {
    let bytes = Frag::all(Ethernet::default().wrap(&sender.send(len, 0).bytes()));
    Frame { bytes, start: Start::Ethernet, csum: Csum::Verified }
}

#[test]
fn delayed_pop_returns_the_same_packets_as_an_immediate_one() {
    let mut rng = Rng::new(1);
    let mut waited = 0;
    for round in 0..300 {
        let config = Config { max_flows: 1 + round % 7, hold: Nanos(40), ..Config::default() };
        let mut senders: Vec<_> = (0..9).map(|flow| Sender::tcp(v4(), flow, 1, Vec::new())).collect();
        // One engine is popped at once, the other one now and then.
        let (mut gros, mut pools) = ([Gro::new(config), Gro::new(config)], [Pool::new(8), Pool::new(8)]);
        let mut left = [Vec::new(), Vec::new()];
        for now in 0..60 {
            let (what, flow, len) = (rng.below(10), rng.below(9), 100 - 60 * rng.below(2));
            let next = frame(&mut senders[flow], len);
            let pops = [true, rng.chance(100) || now == 59];
            for at in 0..2 {
                let (gro, pool) = (&mut gros[at], &mut pools[at]);
                match what {
                    0 => gro.flush(),
                    1 => gro.expire(Nanos(now)),
                    2 => gro.reconfigure(Config { profile: Profile::Linux(Generation::V7), ..config }),
                    _ => {
                        let bytes = next.bytes.clone();
                        gro.push_frame(Frame { bytes, ..next }, Nanos(now), pool);
                    }
                }
                if now == 59 {
                    gro.flush();
                }
                while pops[at]
                    && let Some(packet) = gro.pop_from(pool)
                {
                    left[at].push((packet.head.bytes().to_vec(), packet.payload.len(), packet.offload));
                    pool.put(packet);
                }
            }
            assert_eq!((gros[0].held(), gros[0].held_packets()), (gros[1].held(), gros[1].held_packets()));
            waited += usize::from(left[0].len() > left[1].len() + config.max_flows);
        }
        assert_eq!(left[0], left[1], "round {round}");
        assert_eq!(format!("{:?}", gros[0].stats()), format!("{:?}", gros[1].stats()), "round {round}");
    }
    assert!(waited > 1000, "more waited than there are places {waited} times");
}

/// A buffer whose slice may become shorter.
struct Shrinking {
    bytes: Vec<u8>,
    len: Rc<Cell<usize>>,
}

impl AsRef<[u8]> for Shrinking {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len.get().min(self.bytes.len())]
    }
}

#[test]
fn a_buffer_that_becomes_shorter_while_it_is_held_makes_nothing_panic() {
    for len in 0..200 {
        for followed in [false, true] {
            let mut sender = Sender::tcp(v4(), 1, 1, Vec::new());
            let (mut gro, mut pool) = (Gro::new(Config::default()), Pool::new(8));
            let left = Rc::new(Cell::new(usize::MAX));
            let mut push = || {
                let bytes = Ethernet::default().wrap(&sender.send(100, 0).bytes());
                let bytes = Frag::all(Shrinking { bytes, len: left.clone() });
                gro.push_frame(Frame { bytes, start: Start::Ethernet, csum: Csum::Verified }, Nanos(1), &mut pool);
            };
            push();
            if followed {
                left.set(len);
                push();
            }
            left.set(len);
            gro.flush();
            while let Some(packet) = gro.pop_from(&mut pool) {
                pool.put(packet);
            }
            assert_eq!((gro.held(), gro.held_packets()), (0, 0));
        }
    }
}
