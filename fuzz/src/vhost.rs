use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use segue::packet::{Csum, Frag, Frame, Pool, Start};
use segue_port::vhost::{Source, VhostConfig, VhostPort};
use segue_port::{PagePool, Polled, Port, RxBatch, TxBatch};
use segue_testkit::vhost::{Descriptor, Frontend, GUEST_BASE, MEMORY_LEN, feature};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that may be held for the shortest input: pages of the worker.
const FREE: usize = 2 << 20;
/// Largest number of steps of an input.
const MOST_STEPS: usize = 300;
/// Largest packet that a guest may send, bytes.
const MOST_BYTES: usize = 65_550;

/// Simulates a guest and its front end according to the input: messages, descriptors and indexes, right and wrong ones,
/// memory that is overwritten or becomes shorter. The port takes at most one packet of legal length for each chain, and
/// is stopped once at most, by name.
pub fn vhost(data: &[u8]) {
    bounded(data.len(), FREE, || play(Input::new(data)));
}

fn play(mut input: Input<'_>) {
    let missing = input.u16();
    let bits = (0..64).filter(|bit| feature::USUAL >> bit & 1 != 0);
    let features = bits.zip(0..16).filter(|(_, n)| missing >> n & 1 == 0).fold(0, |all, (bit, _)| all | 1u64 << bit);
    let (near, far) = UnixStream::pair().expect("a socket pair");
    let mut port = VhostPort::new(Source::Connected(near), &VhostConfig { mtu: usize::MAX }).expect("a port");
    let mut front = Frontend::over(far, features);
    let mut rx = RxBatch::over(PagePool::of_frames(8));
    let (mut tx, mut pages) = (TxBatch::new(), PagePool::of_frames(4));
    let mut is_whole = true;
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let queue = u16::from(step >> 4 & 1);
        match step & 15 {
            0 if is_whole => front.start(),
            1 => front.describe(queue, input.u16() % 256, &descriptor(&mut input)),
            2 => {
                let head = input.u16();
                front.offer(queue, head);
            }
            3 => front.kick(queue),
            4 => front.set_offered(queue, input.u16()),
            5 => front.set_suppression(queue, input.u16(), input.u16()),
            6 => {
                let at = GUEST_BASE + u64::from(input.u16()) * 64 % (MEMORY_LEN - 4096) + u64::from(input.u8());
                let len = usize::from(input.u8());
                front.write(at, input.take(len));
            }
            7 => {
                let number = u32::from(input.u8());
                let (flags, fds, len) = (1 | u32::from(input.u8()) & 8, input.u8() % 3, input.u16() % 320);
                let memory = front.memory.try_clone().expect("a descriptor");
                let fds = vec![memory.as_fd(); usize::from(fds)];
                front.send_with(number, flags, input.take(usize::from(len)), &fds);
            }
            8 => {
                let len = usize::from(input.u8());
                front.send_raw(input.take(len));
            }
            9 => {
                is_whole = false;
                front.memory.set_len(u64::from(input.u8()) << 17).expect("memory");
            }
            10 => {
                if let Some(mut page) = pages.take() {
                    let len = 14 + usize::from(input.u16()) % (MOST_BYTES - 14);
                    page.bytes_mut()[..14].copy_from_slice(&[2; 14]);
                    let bytes = Frag::all(page.freeze(len));
                    let frame = Frame { bytes, start: Start::Ethernet, csum: Csum::Unknown };
                    assert!(tx.push_frame(frame, port.limits()).is_none(), "a plain frame passes");
                }
                port.transmit(&mut tx).expect("no fault of a guest is one of the port");
                tx.recycle(&mut Pool::new(0));
            }
            11 => front.agree(),
            12 => front.start_queue_if(queue, is_whole),
            13 if is_whole => front.offer_some(u32::from(input.u16()) % 8192, 64),
            14 if is_whole => front.send_packet(u16::from(input.u8()), &[0; 10], &[3; 200], &[20, 30]),
            _ => {}
        }
        port.listen().expect("no fault of a front end is one of the port");
        let mut taken = 0;
        while port.receive(&mut rx, 64).expect("no fault of a guest is one of the port") == Polled::More {
            for received in rx.packets.drain(..) {
                assert!(!received.is_empty() && received.len() <= MOST_BYTES, "{} bytes", received.len());
                taken += 1;
            }
            if taken > 1000 {
                break;
            }
        }
        rx.packets.clear();
        assert!(port.stops().total() <= 1, "{:?}", port.stops());
    }
    drop((tx, port));
    assert!(rx.pages.in_use() == 0 && pages.in_use() == 0, "every page comes back");
}

fn descriptor(input: &mut Input<'_>) -> Descriptor {
    let place = u64::from(input.u16()) * 384;
    // Mostly in the guest's memory.
    let address = if place == 0 { u64::from(input.u16()) << 48 } else { GUEST_BASE + place };
    let len = u32::from(input.u16()) << (input.u8() & 15);
    Descriptor { address, len, flags: input.u16() & 7, next: input.u16() & 0x1ff }
}
