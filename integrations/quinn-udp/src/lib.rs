//! A VPN without a cipher whose device is tun-rs's and whose socket is quinn-udp's. Crate `segue` makes no system call:
//! what the device gave is split into runs for the socket, what the socket gave is joined into trains for the device.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use segue::easy::{Joiner, Splitter};
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{Form, TUN_OFFLOADS};
use tun_rs::{SyncDevice, VIRTIO_NET_HDR_LEN};

/// Bytes that a cipher would add in front of a packet (a counter) and after it (a tag).
const ROOM: (usize, usize) = (8, 16);
/// Length in bytes of the payload of the largest UDP datagram over IPv4, which a run may not exceed either.
const MAX_RUN: usize = 65_507;
/// Number of pieces of the largest train for a TUN device.
const MAX_PIECES: usize = 1024;

/// One end of the tunnel over QUIC.
pub struct Endpoint {
    device: SyncDevice,
    socket: UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
    splitter: Splitter,
    joiner: Joiner,
    run: Run,
    read: Vec<u8>,
    received: Vec<Vec<u8>>,
}

impl Endpoint {
    /// Creates an endpoint with a device that was opened with `offload(true)`, a socket and a peer. Neither blocks from
    /// then on. `key` must be random.
    pub fn new(device: SyncDevice, socket: UdpSocket, peer: SocketAddr, key: Key) -> io::Result<Endpoint> {
        if !device.tcp_gso() {
            return Err(io::Error::other("the device has no virtio-net headers"));
        }
        device.set_nonblocking(true)?;
        // What tun-rs has asked the kernel for.
        let granted = if device.udp_gso() { TUN_OFFLOADS[0] } else { TUN_OFFLOADS[2] };
        Ok(Endpoint {
            state: UdpSocketState::new((&socket).into())?,
            splitter: Splitter::virtio(Form::Basic, Start::Ip),
            joiner: Joiner::tun(key, granted),
            run: Run::default(),
            read: vec![0; VIRTIO_NET_HDR_LEN + 65_535],
            received: vec![vec![0; 65_535]; BATCH_SIZE],
            device,
            socket,
            peer,
        })
    }

    /// Reads the device once and sends the packets, those of a train in one call.
    pub fn outward(&mut self) -> io::Result<()> {
        let len = self.device.recv(&mut self.read)?;
        // What contradicts its virtio-net header is dropped.
        let Ok(packets) = self.splitter.read(&self.read[..len]) else { return Ok(()) };
        for packet in packets.iter() {
            let len = ROOM.0 + packet.len() + ROOM.1;
            if !self.run.takes(len, self.state.max_gso_segments()) {
                self.run.send(&self.state, &self.socket, self.peer);
                self.run.size = len;
            }
            packet.append_to(&mut self.run.bytes, ROOM); // sealed where it lies
            self.run.count += 1;
        }
        self.run.send(&self.state, &self.socket, self.peer);
        Ok(())
    }

    /// Receives the waiting datagrams with one call, and writes the packets to the device, joined.
    pub fn inward(&mut self) -> io::Result<()> {
        let mut places: Vec<_> = self.received.iter_mut().map(|place| IoSliceMut::new(place)).collect();
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let count = self.state.recv((&self.socket).into(), &mut places, &mut metas)?;
        let mut batch = self.joiner.batch();
        for (place, meta) in self.received.iter().zip(&metas[..count]) {
            for datagram in place[..meta.len].chunks(meta.stride.max(1)) {
                let end = datagram.len().saturating_sub(ROOM.1);
                if let Some(packet) = datagram.get(ROOM.0..end) {
                    batch.push(packet); // opened where it lies
                }
            }
        }
        while let Some(train) = batch.pop() {
            let mut places = [IoSlice::new(&[]); MAX_PIECES];
            let pieces = train.gather(&mut places, IoSlice::new).ok_or(ErrorKind::InvalidData)?;
            match self.device.send_vectored(pieces) {
                Ok(_) => {}
                // The kernel refuses this kind of train: it comes again, cut.
                Err(error) if error.kind() == ErrorKind::InvalidInput && batch.narrow() => {}
                // What the device refuses while it is down is lost; one that was deleted cannot be read either.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Waits for the device or the socket, a tenth of a second at most, and moves the waiting packets.
    pub fn turn(&mut self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut ready =
            [self.device.as_fd(), self.socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            polled => polled?,
        };
        let [device, network] = ready.map(|fd| !fd.revents().is_empty());
        let idle = |result: io::Result<()>| match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            result => result,
        };
        if device {
            idle(self.outward())?;
        }
        if network {
            idle(self.inward())?;
        }
        Ok(())
    }

    /// Returns the number of datagrams that were sent, and of the calls that sent them.
    pub fn sent(&self) -> [usize; 2] {
        self.run.sent
    }
}

/// Datagrams sent by one call: all of one length, except that the last may be shorter.
#[derive(Default)]
struct Run {
    bytes: Vec<u8>,
    size: usize,
    count: usize,
    sent: [usize; 2],
}

impl Run {
    /// Returns whether a datagram of the given length can follow, if the kernel accepts `most` datagrams per call.
    fn takes(&self, len: usize, most: usize) -> bool {
        let is_full = self.bytes.len() == self.count * self.size;
        is_full && self.count < most && len <= self.size && self.bytes.len() + len <= MAX_RUN
    }

    /// Sends the datagrams of the run and empties it. Where the socket is full, the run is lost, as on a wire.
    fn send(&mut self, state: &UdpSocketState, socket: &UdpSocket, peer: SocketAddr) {
        if self.count > 0 {
            let (contents, segment_size) = (&self.bytes[..], Some(self.size));
            let run = Transmit { destination: peer, ecn: None, contents, segment_size, src_ip: None };
            _ = state.send(socket.into(), &run);
            self.sent = [self.sent[0] + self.count, self.sent[1] + 1];
        }
        self.bytes.clear();
        (self.size, self.count) = (0, 0);
    }
}
