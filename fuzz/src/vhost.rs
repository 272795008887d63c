use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use segue::packet::{Csum, Frag, Frame, Pool, Start};
use segue_port::vhost::relay::Relay;
use segue_port::vhost::{GUEST_CONNECTED, GUEST_READY, Source, VhostConfig, VhostPort};
use segue_port::{Blocked, Extra, PagePool, Polled, Port, Received, RxBatch, Sent, TxBatch};
use segue_testkit::vhost::{Descriptor, Frontend, GUEST_BASE, MEMORY_LEN, feature, hand_over, message_pair};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that may be held for the shortest input: pages of the worker.
const FREE: usize = 2 << 20;
/// Largest number of steps of an input.
const MOST_STEPS: usize = 300;
/// Largest packet that a guest may send, bytes.
const MOST_BYTES: usize = 65_550;
/// Longest packet or train that is sent back to the guest, bytes: each of its bytes may become a segment.
const MOST_RETURNED: usize = 2048;
/// Largest number of steps while a relay waits: a front end would wait too once its socket is full.
const MOST_HELD_UP: usize = 4;
/// Largest number of front ends of an input.
const MOST_FRONTS: u64 = 5;

/// Simulates a guest and its front ends according to the input: messages, descriptors and indexes, right and wrong
/// ones, trains, memory that is overwritten or becomes shorter, front ends that follow each other. The port takes at
/// most one packet of legal length for each chain, and is stopped at most once for each front end, by name.
///
/// The first two bytes choose the missing features, and with their two highest bits the source of front ends: a
/// connection (0), one that is handed over (1), one with a relay between both (2), or one at a listening socket (3).
pub fn vhost(data: &[u8]) {
    bounded(data.len(), FREE, || play(Input::new(data)));
}

fn play(mut input: Input<'_>) {
    let missing = input.u16();
    let bits = (0..64).filter(|bit| feature::USUAL >> bit & 1 != 0);
    let features = bits.zip(0..16).filter(|(_, n)| missing >> n & 1 == 0).fold(0, |all, (bit, _)| all | 1u64 << bit);
    let (source, further, mut relay, first) = source_of(missing >> 14);
    let mut port = VhostPort::new(source, &VhostConfig { mtu: usize::MAX }).expect("a port");
    let mut front = Frontend::over(first, features);
    let (mut fronts, mut is_returning) = (1, false);
    let mut rx = RxBatch::over(PagePool::of_frames(8));
    let (mut tx, mut pages) = (TxBatch::new(), PagePool::of_frames(4));
    let (mut is_whole, mut all, mut held_up) = (true, 0, 0);
    for _ in 0..MOST_STEPS {
        held_up = if relay.as_ref().is_some_and(Relay::is_held_up) { held_up + 1 } else { 0 };
        if input.is_empty() || held_up > MOST_HELD_UP {
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
                transmit(&mut port, &mut tx);
            }
            11 => front.agree(),
            12 => front.start_queue_if(queue, is_whole),
            13 if is_whole => front.offer_some(u32::from(input.u16()) % 8192, 64),
            14 if is_whole => front.send_packet(u16::from(input.u8()), &[0; 10], &[3; 200], &[20, 30]),
            15 => match input.u8() % 4 {
                0 if is_whole => {
                    let slot = u16::from(input.u8());
                    let mut header = [0; 10];
                    header.iter_mut().for_each(|byte| *byte = input.u8());
                    let len = usize::from(input.u16());
                    front.send_packet(slot, &header, input.take(len), &[70]);
                }
                1 => is_returning = !is_returning,
                // Another front end, which comes while this one is connected, or in its place.
                kind @ 2..=3 if fronts < MOST_FRONTS => {
                    if let Some(stream) = further.connection() {
                        fronts += 1;
                        if kind == 3 {
                            (front, is_whole) = (Frontend::over(stream, features), true);
                        }
                    }
                }
                _ => {}
            },
            _ => {}
        }
        if relay.as_mut().is_some_and(|relay| !relay.pass()) {
            relay = None;
        }
        listen(&mut port);
        let mut taken = 0;
        loop {
            let polled = port.receive(&mut rx, 64).expect("no fault of a guest is one of the port");
            for received in rx.packets.drain(..) {
                assert!(!received.is_empty() && received.len() <= MOST_BYTES, "{} bytes", received.len());
                taken += 1;
                if is_returning && received.len() <= MOST_RETURNED {
                    match received {
                        Received::Frame(frame) => drop(tx.push_frame(frame, port.limits())),
                        Received::Packet(packet) => drop(tx.push(packet, port.limits())),
                    }
                }
            }
            if polled != Polled::More || taken > 1000 {
                break;
            }
        }
        if is_returning {
            transmit(&mut port, &mut tx);
        }
        all += taken;
        assert!(port.stops().total() <= fronts, "{:?}", port.stops());
    }
    check_counters(&port, fronts, all);
    drop((tx, port));
    assert!(rx.pages.in_use() == 0 && pages.in_use() == 0, "every page comes back");
}

/// Has the port handle its messages, those included that wait for what an earlier one has it unmap: otherwise the front
/// end, which sends in the same thread, would wait for ever once the socket is full.
fn listen(port: &mut VhostPort) {
    loop {
        port.listen().expect("no fault of a front end is one of the port");
        if !port.is_busy() {
            break;
        }
    }
}

/// The source of the front ends that follow the first one.
enum Further {
    Nothing,
    Supply(UnixStream),
    Listener(SocketAddr),
}

impl Further {
    /// Returns the front end's side of a new connection to the port, if the port takes more than one.
    fn connection(&self) -> Option<UnixStream> {
        match self {
            Further::Nothing => None,
            Further::Supply(supply) => {
                let (near, far) = UnixStream::pair().expect("a socket pair");
                hand_over(supply, &near);
                Some(far)
            }
            Further::Listener(address) => Some(UnixStream::connect_addr(address).expect("a listening socket")),
        }
    }
}

/// Returns the source of a port's front ends by its number in the input, with the relay, if there is one, and the first
/// connection.
fn source_of(number: u16) -> (Source, Further, Option<Relay>, UnixStream) {
    let pair = || UnixStream::pair().expect("a socket pair");
    match number {
        1 => {
            let (supply, taken) = message_pair().expect("a socket pair");
            let further = Further::Supply(supply);
            let first = further.connection().expect("a connection");
            (Source::Supplied(taken), further, None, first)
        }
        2 => {
            let ((outer, first), (inner, near)) = (pair(), pair());
            let relay = Relay::new(outer, inner).expect("sockets that need not wait");
            (Source::Connected(near), Further::Nothing, Some(relay), first)
        }
        3 => {
            // An abstract name: no file is left.
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let name = format!("segue-fuzz-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let address = SocketAddr::from_abstract_name(name).expect("a name");
            let listener = UnixListener::bind_addr(&address).expect("a socket");
            let further = Further::Listener(address);
            let first = further.connection().expect("a connection");
            (Source::Listener(listener), further, None, first)
        }
        _ => {
            let (near, first) = pair();
            (Source::Connected(near), Further::Nothing, None, first)
        }
    }
}

/// Sends the batch as far as the port takes it.
fn transmit(port: &mut VhostPort, tx: &mut TxBatch) {
    while port.transmit(tx).expect("no fault of a guest is one of the port") == Sent::Narrowed {
        let limits = *port.limits();
        tx.resplit(&limits, |_, _| ());
    }
    tx.recycle(&mut Pool::new(0));
}

/// Checks the counters of a port that was given `fronts` connections, and from which `taken` packets came.
fn check_counters(port: &VhostPort, fronts: u64, taken: u64) {
    let (mut numbers, mut dropped) = (BTreeMap::new(), 0);
    port.extras(&mut |kind, key, value| match kind {
        Extra::Drop => dropped += value,
        Extra::Number => assert!(numbers.insert(key, value).is_none(), "{key} is there twice"),
    });
    assert_eq!(dropped, port.guest_drops().total());
    let stops: u64 = numbers.iter().filter(|(key, _)| key.starts_with("stop_")).map(|(_, count)| *count).sum();
    assert_eq!(stops, port.stops().total());
    assert_eq!(numbers[GUEST_READY], u64::from(port.is_up()));
    assert!(numbers[GUEST_READY] <= numbers[GUEST_CONNECTED]);
    assert!(numbers["front_ends"] + numbers["front_ends_refused"] <= fronts);
    // What is wrong in a packet's header is counted too, and the packet dropped.
    assert!(taken <= port.counters().rx.packets, "{taken} packets");
    let fds = [port.fd(), port.blocked_fd(), port.link_fd().expect("events of front ends")].map(|fd| fd.as_raw_fd());
    assert!(fds[0] != fds[1] && fds[1] != fds[2] && fds[2] != fds[0]);
    assert_eq!(port.blocked_event(), Blocked::Readable);
    assert!(port.offloads().is_empty(), "each guest has its own");
}

fn descriptor(input: &mut Input<'_>) -> Descriptor {
    let place = u64::from(input.u16()) * 384;
    // Mostly in the guest's memory.
    let address = if place == 0 { u64::from(input.u16()) << 48 } else { GUEST_BASE + place };
    let len = u32::from(input.u16()) << (input.u8() & 15);
    Descriptor { address, len, flags: input.u16() & 7, next: input.u16() & 0x1ff }
}
