//! Tests of the port with a test front end, in one thread.

mod buffers;
mod hostile;
mod session;
mod traffic;

use segue::packet::{Csum, Gso, GsoKind, Packet, Pool, TrainCsum, Unit};
use segue_testkit::vhost::{FROM_GUEST, Frontend, TO_GUEST};

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::*;
use crate::batch::Received;
use crate::batch::{RxBatch, TxBatch};
use crate::page::{Page, PagePool};
use crate::port::{Blocked, Drop, Polled, Port, Sent};
use crate::testing::{self, Fill, bytes, ethernet, ip_packet, tcp};

/// A port and a front end, with the parts of a worker that a port needs.
struct Bench {
    port: VhostPort,
    front: Frontend,
    rx: RxBatch,
    tx: TxBatch,
    pages: PagePool,
}

impl Bench {
    /// Creates a bench: a port with a connected front end that has sent nothing.
    fn new(features: u64) -> Bench {
        let (near, far) = UnixStream::pair().unwrap();
        let port = VhostPort::new(Source::Connected(near), &VhostConfig { mtu: usize::MAX }).unwrap();
        Bench::of(port, Frontend::over(far, features))
    }

    fn of(port: VhostPort, front: Frontend) -> Bench {
        let (rx, tx) = (RxBatch::over(PagePool::of_frames(256)), TxBatch::new());
        Bench { port, front, rx, tx, pages: PagePool::of_frames(64) }
    }

    /// Creates a bench whose guest is ready.
    fn ready(features: u64) -> Bench {
        let mut bench = Bench::new(features);
        bench.front.start();
        bench.port.listen().unwrap();
        assert!(bench.port.is_ready(), "{:?}", bench.port.stops());
        bench
    }

    /// Receives the packets that the guest has sent.
    fn receive(&mut self) -> Vec<Received> {
        loop {
            match self.port.receive(&mut self.rx, 64).unwrap() {
                Polled::More => {}
                Polled::Idle => return self.rx.packets.drain(..).collect(),
                Polled::Starved => panic!("no page"),
            }
        }
    }

    /// Receives the bytes of the packets that the guest has sent.
    fn received(&mut self) -> Vec<Vec<u8>> {
        self.receive().into_iter().map(|one| one.pieces().flatten().copied().collect()).collect()
    }

    /// Sends a packet or train to the guest, as a worker does.
    fn send(&mut self, packet: Box<Packet<Page>>) -> Sent {
        self.tx.push(packet, self.port.limits()).unwrap();
        self.transmit()
    }

    fn transmit(&mut self) -> Sent {
        loop {
            match self.port.transmit(&mut self.tx).unwrap() {
                Sent::Narrowed => {
                    let limits = *self.port.limits();
                    self.tx.resplit(&limits, |_, reason| panic!("{reason:?}"));
                }
                sent => {
                    self.tx.recycle(&mut Pool::new(0));
                    return sent;
                }
            }
        }
    }

    /// Asserts that the port stopped for a reason; the front end sees a closed connection once memory is unmapped.
    #[track_caller]
    fn assert_stopped(&mut self, reason: Stop) {
        assert_eq!(self.port.stops().of(reason), 1, "{:?}", self.port.stops());
        assert_eq!(self.port.stops().total(), 1);
        while !self.front.is_closed() {
            wait_until_readable(self.port.link_fd().unwrap());
            self.port.listen().unwrap();
        }
        assert!(!self.port.is_ready());
    }

    fn number(&self, key: &str) -> u64 {
        let mut found = None;
        self.port.extras(&mut |_, name, value| {
            if name == key {
                found = Some(value);
            }
        });
        found.expect("a counter")
    }
}

fn ends(v4: bool) -> (IpAddr, IpAddr) {
    let parse = |text: &str| text.parse().unwrap();
    if v4 { (parse("198.18.0.1"), parse("198.18.0.2")) } else { (parse("2001:db8::1"), parse("2001:db8::2")) }
}

/// Builds a frame with a TCP segment over IPv4 or IPv6, with the given checksum.
fn frame(v4: bool, payload: usize, seed: usize, fill: Fill) -> Vec<u8> {
    let segment = tcp((1, 2), 3 + seed as u32, 4, 0x10, &bytes(payload, seed));
    ethernet(&[], &ip_packet(ends(v4), 6, 16, &segment, fill))
}

/// Builds a frame like [`frame`] with CWR and a partial checksum.
fn congested(v4: bool, payload: usize) -> Vec<u8> {
    let segment = tcp((1, 2), 3, 4, 0x90, &bytes(payload, 0));
    ethernet(&[], &ip_packet(ends(v4), 6, 16, &segment, Fill::Primed))
}

/// Builds a frame with a UDP datagram over IPv4 or IPv6 and a partial checksum.
fn datagram(v4: bool, payload: usize) -> Vec<u8> {
    ethernet(&[], &ip_packet(ends(v4), 17, 6, &testing::udp(1, 2, &bytes(payload, 0)), Fill::Primed))
}

/// Returns the offset of the TCP header in [`frame`].
fn transport(v4: bool) -> u16 {
    14 + if v4 { 20 } else { 40 }
}

/// Returns the virtio-net header of a train of [`frame`], or of one segment where `size` is 0.
fn header(v4: bool, size: u16) -> [u8; 10] {
    let gso_type = match (size, v4) {
        (0, _) => 0,
        (_, true) => 1,
        (_, false) => 4,
    };
    let mut header = [1, gso_type, 0, 0, 0, 0, 0, 0, 16, 0];
    header[2..4].copy_from_slice(&(transport(v4) + 20).to_le_bytes());
    header[4..6].copy_from_slice(&size.to_le_bytes());
    header[6..8].copy_from_slice(&transport(v4).to_le_bytes());
    header
}

/// Builds a train of [`frame`] as a packet of the worker.
fn train(pages: &mut PagePool, v4: bool, payload: usize, size: u16) -> Box<Packet<Page>> {
    train_of(pages, &frame(v4, payload, 0, Fill::Primed), GsoKind::Tcp, size)
}

/// Creates a train from a frame with a partial checksum.
fn train_of(pages: &mut PagePool, frame: &[u8], kind: GsoKind, size: u16) -> Box<Packet<Page>> {
    let mut packet = testing::load_frame(pages, frame);
    packet.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind, size, fixed_ids: 0 } };
    packet
}

/// A header without a checksum request and without a train.
const PLAIN: [u8; 10] = [0; 10];

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    testing::wait_for_input(fd, Duration::ZERO).unwrap()
}

#[track_caller]
fn wait_until_readable(fd: BorrowedFd<'_>) {
    assert!(testing::wait_for_input(fd, Duration::from_secs(30)).unwrap());
}
