//! Segmentation allocates nothing once its arena has seen a batch.
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use segue::gso::{Arena, Frames, Limits, split, split_linear};
use segue::packet::{Frag, Gso, GsoKind, Offload, Packet, Start, TrainCsum, Tunnels, Unit};
use segue_testkit::build::{self, Ip, L4, Udp, V4};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `place` is from `System`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `realloc`, and `place` is from `System`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_after_the_first_batch() {
    let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
    let bytes = build::Packet { ip: Ip::V4(V4::new(0, 1, 2)), l4: udp, data: vec![7; 60_000] }.bytes();
    let mut packet = Packet::default();
    packet.load(Frag::all(&bytes), Start::Ip, &Tunnels::NONE);
    let gso = Gso { kind: GsoKind::Udp, size: 1400, fixed_ids: 0 };
    packet.offload = Offload::plain(Unit::Train { csum: TrainCsum::Partial, gso });
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let mut batch = || {
        let before = ALLOCATIONS.get();
        arena.clear();
        frames.clear();
        for limits in [Limits::NONE, Limits { csum: true, uso: true, max_udp_segs: 9, ..Limits::NONE }] {
            let segments = split(&packet, &limits, &mut arena);
            assert!(segments.is_ok_and(|n| n > 4));
            assert_eq!(split_linear(&packet, &limits, &mut frames), segments);
        }
        ALLOCATIONS.get() - before
    };
    assert_ne!(batch(), 0, "the counter counts");
    assert_eq!((0..3).map(|_| batch()).sum::<usize>(), 0);
}
