//! A bare-metal program for a small machine, whose code and memory tools/size/run measures: with no feature the runtime
//! alone, with `gso` it splits a train, with `gro` it joins segments of 8 flows. It runs under qemu-arm, prints the
//! most memory that was in use at a time, heap and stack, in bytes, and ends with 0 if the results are right.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "allocator, stack and system calls of a program without a system")]

#[cfg(any(feature = "gso", feature = "gro"))]
extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Size of the heap, bytes: more than is in use at a time, since what is freed is not used again.
const HEAP: usize = 1 << 19;
/// Number of bytes below the stack pointer that are painted, to see how far the stack has grown.
const STACK: usize = 1 << 15;
const PAINT: u8 = 0xa5;

struct Counting;

static mut MEMORY: [u64; HEAP / 8] = [0; HEAP / 8];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each allocation is a range of MEMORY of its own, aligned as asked; the program has one thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = NEXT.load(Relaxed).next_multiple_of(layout.align());
        if layout.size() > HEAP - start.min(HEAP) {
            return ptr::null_mut();
        }
        NEXT.store(start + layout.size(), Relaxed);
        LIVE.store(LIVE.load(Relaxed) + layout.size(), Relaxed);
        PEAK.store(PEAK.load(Relaxed).max(LIVE.load(Relaxed)), Relaxed);
        // SAFETY: within MEMORY, as was checked.
        unsafe { (&raw mut MEMORY).cast::<u8>().add(start) }
    }

    unsafe fn dealloc(&self, _: *mut u8, layout: Layout) {
        LIVE.store(LIVE.load(Relaxed) - layout.size(), Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    exit(101)
}

/// Makes a system call of Linux with up to three arguments.
fn call(number: usize, arguments: [usize; 3]) {
    // SAFETY: write and exit only, with memory of this program; r7 holds the number, and is given back.
    unsafe {
        asm!("push {{r7}}", "mov r7, {number}", "svc 0", "pop {{r7}}", number = in(reg) number,
            inout("r0") arguments[0] => _, in("r1") arguments[1], in("r2") arguments[2]);
    }
}

fn exit(code: usize) -> ! {
    call(1, [code, 0, 0]);
    loop {}
}

/// Prints a number and a space.
fn print(mut number: usize) {
    let (mut text, mut at) = ([b' '; 12], 11);
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    call(4, [1, text[at..].as_ptr() as usize, text.len() - at]);
}

global_asm!(".thumb_func", ".globl _start", "_start: mov r0, sp", "bl run");

/// Paints the stack below `top`, runs the work, and reports.
#[unsafe(no_mangle)]
extern "C" fn run(top: usize) -> ! {
    // What this function uses of the stack itself stays unpainted.
    let end = top - 512;
    for at in end - STACK..end {
        // SAFETY: below the stack pointer of this function, where nothing is yet; Linux maps the stack there.
        unsafe { ptr::write_volatile(at as *mut u8, PAINT) };
    }
    let right = work::work();
    let mut low = end - STACK;
    // SAFETY: as above.
    while low < end && unsafe { ptr::read_volatile(low as *const u8) } == PAINT {
        low += 1;
    }
    print(PEAK.load(Relaxed));
    print(end - low);
    exit(usize::from(!right))
}

#[cfg(not(any(feature = "gso", feature = "gro")))]
mod work {
    #[inline(never)]
    pub(crate) fn work() -> bool {
        true
    }
}

#[cfg(feature = "gso")]
mod work {
    use core::hint::black_box;

    use segue::gso::{Arena, Limits, split};
    use segue::packet::{Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};

    /// Payload of a segment, bytes.
    const SIZE: usize = 1448;
    /// Number of segments of the train.
    const SEGMENTS: usize = 8;

    /// A packet of TCP over IPv4 with its payload. Writable, so that it does not count as code.
    static mut TRAIN: [u8; 40 + SIZE * SEGMENTS] = {
        let mut bytes = [0x5a; 40 + SIZE * SEGMENTS];
        let head = [
            0x45, 0, 0x2d, 0x68, 0, 1, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 4, 1, 4, 2, 0, 0, 0, 1, 0,
            0, 0, 1, 0x50, 0x10, 2, 0, 0, 0, 0, 0,
        ];
        let mut at = 0;
        while at < head.len() {
            bytes[at] = head[at];
            at += 1;
        }
        bytes
    };

    /// Splits a train of 8 segments into headers and ranges of payload, with complete checksums. Returns whether the
    /// result is right.
    #[inline(never)]
    pub(crate) fn work() -> bool {
        let (mut packet, mut arena) = (Packet::default(), Arena::new());
        // SAFETY: nothing writes to it.
        let train: &'static [u8] = unsafe { &*(&raw const TRAIN) };
        packet.load(Frag::all(black_box(train)), Start::Ip, &Tunnels::NONE);
        let gso = Gso { kind: GsoKind::Tcp, size: SIZE as u16, fixed_ids: 0 };
        packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
        let count = split(&packet, &Limits::NONE, &mut arena);
        let bytes = arena
            .segments()
            .iter()
            .map(|segment| arena.head(segment).len() + segment.pieces(&packet).map(<[u8]>::len).sum::<usize>());
        count.is_ok() && bytes.sum::<usize>() == SEGMENTS * (40 + SIZE)
    }
}

#[cfg(feature = "gro")]
mod work {
    use core::hint::black_box;

    use segue::checksum::{Field, Sum, pseudo_v4};
    use segue::gro::{Config, Gro};
    use segue::packet::{Csum, Frag, Frame, Pool, Start};
    use segue::time::Nanos;

    const SIZE: usize = 1000;
    const FLOWS: usize = 8;
    const SEGMENTS: usize = 4;

    static mut FRAMES: [[u8; 40 + SIZE]; FLOWS * SEGMENTS] = [[0x5a; 40 + SIZE]; FLOWS * SEGMENTS];

    /// Makes a segment of TCP over IPv4 with right checksums.
    fn fill(frame: &mut [u8], flow: usize, number: usize) {
        let head = [
            0x45,
            0,
            4,
            0x10,
            0,
            number as u8,
            0x40,
            0,
            64,
            6,
            0,
            0,
            198,
            18,
            0,
            1,
            198,
            18,
            0,
            2,
            4,
            flow as u8,
            4,
            2,
            0,
            0,
            ((number * SIZE) >> 8) as u8,
            (number * SIZE) as u8,
            0,
            0,
            0,
            1,
            0x50,
            0x10,
            2,
            0,
            0,
            0,
            0,
            0,
        ];
        frame[..40].copy_from_slice(&head);
        let ip = Field::complete(Sum::of(&frame[..20]));
        frame[10..12].copy_from_slice(&ip.value().to_be_bytes());
        let mut sum = pseudo_v4([198, 18, 0, 1], [198, 18, 0, 2], 6, 20 + SIZE);
        sum.add(&frame[20..]);
        frame[36..38].copy_from_slice(&Field::complete(sum).value().to_be_bytes());
    }

    /// Joins 4 segments of each of 8 flows, verified, into one train each. Returns whether the result is right.
    #[inline(never)]
    pub(crate) fn work() -> bool {
        for at in 0..FLOWS * SEGMENTS {
            // SAFETY: the program has one thread, and nothing else refers to the frame yet.
            let frame = unsafe { &mut *(&raw mut FRAMES[at]) };
            fill(frame, at % FLOWS, at / FLOWS);
        }
        let config = Config { max_flows: FLOWS, max_held_packets: FLOWS * SEGMENTS, ..Config::default() };
        let (mut gro, mut pool) = (Gro::new(config), Pool::new(FLOWS));
        for at in 0..FLOWS * SEGMENTS {
            // SAFETY: nothing writes to the frames any more.
            let bytes: &'static [u8] = unsafe { &*(&raw const FRAMES[at]) };
            let frame = Frame { bytes: Frag::all(black_box(bytes)), start: Start::Ip, csum: Csum::Unknown };
            gro.push_frame(frame, Nanos(1), &mut pool);
        }
        gro.flush();
        let (mut trains, mut bytes) = (0, 0);
        while let Some(packet) = gro.pop_from(&mut pool) {
            (trains, bytes) = (trains + 1, bytes + packet.payload.len());
            pool.put(packet);
        }
        trains == FLOWS && bytes == FLOWS * SEGMENTS * SIZE
    }
}
