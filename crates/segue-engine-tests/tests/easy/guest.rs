//! Tests on guest memory, which changes while the engine works on it.

use std::cell::{Cell, RefCell};

use segue::gso::{self, Arena, Frames, Limits};
use segue::packet::{Buffer, Frag, Packet, Start, Unit};
use segue::virtio::{self, Form, Loaded, VirtioNet};
use segue_testkit::Rng;
use segue_testkit::conformance::{Vector, vectors};
use segue_testkit::oracle::{self, Ports};

use crate::header;

/// Returns all vectors with `SEGUE_FULL=1`, otherwise every seventh.
fn some() -> impl Iterator<Item = Vector> {
    vectors().into_iter().step_by(if segue_testkit::is_set("SEGUE_FULL") { 1 } else { 7 })
}

/// Memory that another party writes to and resizes between any two reads.
struct Wild<'a> {
    bytes: &'a RefCell<Vec<u8>>,
    rng: &'a RefCell<Rng>,
    /// Changes of the memory: none, in content, or in length as well.
    change: Change,
    /// Number of times that each byte was read.
    reads: &'a RefCell<Vec<u32>>,
    base: usize,
    len: Cell<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Nothing,
    Content,
    Length,
}

impl Wild<'_> {
    fn disturb(&self) {
        let (rng, bytes) = (&mut *self.rng.borrow_mut(), &mut *self.bytes.borrow_mut());
        if self.change != Change::Nothing {
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len().min(100));
                bytes[at] = rng.next_u64() as u8;
            }
        }
        if self.change == Change::Length && rng.chance(500) {
            self.len.set(rng.below(2 * self.len.get() + 2));
        }
    }
}

impl Buffer for Wild<'_> {
    fn size(&self) -> usize {
        self.disturb();
        self.len.get()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        self.disturb();
        let bytes = self.bytes.borrow();
        let from = bytes.get(self.base..).unwrap_or(&[]);
        let from = from.get(offset..self.len.get().min(from.len())).unwrap_or(&[]);
        for (at, (from, to)) in from.iter().zip(&mut *out).enumerate() {
            *to = *from;
            self.reads.borrow_mut()[self.base + offset + at] += 1;
        }
        from.len().min(out.len())
    }
}

/// Splits a frame from such memory in both forms, and returns the frames of the linear one.
fn through(frame: &[u8], header: &VirtioNet, change: Change, rng: &mut Rng) -> (Vec<Vec<u8>>, Vec<u32>) {
    let (bytes, reads) = (RefCell::new(frame.to_vec()), RefCell::new(vec![0; frame.len()]));
    let (seed, mut packet) = (RefCell::new(Rng::new(rng.next_u64())), Packet::default());
    let mut cuts = [0, 14 + rng.below(80), frame.len() / 2, frame.len()];
    cuts.sort_unstable();
    let chain = cuts.windows(2).map(|ends| {
        let len = Cell::new(ends[1] - ends[0]);
        Frag::all(Wild { bytes: &bytes, rng: &seed, change, reads: &reads, base: ends[0], len })
    });
    let chain: Vec<_> = if rng.chance(300) {
        let len = Cell::new(frame.len());
        vec![Frag::all(Wild { bytes: &bytes, rng: &seed, change, reads: &reads, base: 0, len })]
    } else {
        chain.collect()
    };
    let loaded = virtio::load_ranges(header, chain, Start::Ethernet, &mut packet);
    let of_load = reads.borrow().clone();
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    for limits in [Limits::NONE, Limits::tun(virtio::TUN_OFFLOADS[0]), Limits { mtu: 900, ..Limits::NONE }] {
        arena.clear();
        let count = gso::split(&packet, &limits, &mut arena);
        assert_eq!(gso::split_linear(&packet, &limits, &mut frames), count);
    }
    frames.clear();
    let count = gso::split_linear(&packet, &Limits::NONE, &mut frames);
    if let (Ok(Loaded::Ready), Ok(count)) = (loaded, count) {
        assert_eq!(count, frames.frames().len());
    }
    if matches!(packet.offload.unit, Unit::Whole(_)) {
        let _ = gso::finish(&mut packet);
    }
    (frames.frames().iter().map(|frame| frames.bytes(frame).to_vec()).collect(), of_load)
}

#[test]
fn a_chain_of_guest_memory_is_split_like_any_other_and_its_headers_are_read_once() {
    let mut rng = Rng::new(1);
    for vector in some() {
        let (frames, reads) = through(&vector.frame, &header(&vector), Change::Nothing, &mut rng);
        assert!(frames == vector.segments, "{}", vector.name);
        assert!(reads.iter().all(|count| *count <= 1), "{}: read once while it is loaded", vector.name);
    }
}

#[test]
fn memory_whose_content_changes_gives_packets_with_the_headers_of_the_first_read() {
    let mut rng = Rng::new(2);
    let mut whole = 0;
    for vector in some() {
        let (frames, _) = through(&vector.frame, &header(&vector), Change::Content, &mut rng);
        for frame in &frames {
            // Whatever was read, what leaves is a packet: no length in it goes past its end.
            whole += usize::from(oracle::verify(frame, oracle::Start::Ethernet, &Ports::default()).is_ok());
        }
    }
    assert!(whole > 200, "most trains survive: {whole}");
}

#[test]
fn memory_whose_content_and_length_change_is_never_a_panic() {
    let mut rng = Rng::new(3);
    let rounds = if segue_testkit::is_set("SEGUE_FULL") { 40 } else { 2 };
    for round in 0..rounds {
        for vector in some() {
            let mut frame = vector.frame.clone();
            if round % 2 == 1 {
                frame.truncate(rng.below(frame.len()) + 1);
            }
            through(&frame, &header(&vector), Change::Length, &mut rng);
            let _ =
                VirtioNet::parse(&frame, Form::Basic).map(|header| through(&frame, &header, Change::Length, &mut rng));
        }
    }
}

#[test]
fn a_slice_whose_length_changes_is_never_a_panic() {
    /// A growing and shrinking slice, which is no sound `AsRef`, but a possible one.
    struct Breathing<'a>(&'a [u8], RefCell<Rng>);
    impl AsRef<[u8]> for Breathing<'_> {
        fn as_ref(&self) -> &[u8] {
            &self.0[..self.1.borrow_mut().below(self.0.len() + 1)]
        }
    }
    let mut rng = Rng::new(4);
    for vector in some() {
        let mut packet = Packet::default();
        let memory = Breathing(&vector.frame, RefCell::new(Rng::new(rng.next_u64())));
        let _ = virtio::load(&header(&vector), Frag::all(memory), Start::Ethernet, &mut packet);
        let _ = gso::split(&packet, &Limits::NONE, &mut Arena::new());
        let _ = gso::split_linear(&packet, &Limits::NONE, &mut Frames::new());
    }
}
