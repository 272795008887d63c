//! WireGuard to one peer on boringtun's `Tunn`: trains of the device are split, sealed and sent in runs (UDP_SEGMENT),
//! runs of the network are received (UDP_GRO), opened and joined into trains.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use boringtun::noise::{Tunn, TunnResult};
use segue_port::tun::Tun;
use segue_port::udp::{Receiver, Sender};

/// Bytes that WireGuard adds to a packet, and the least memory that `Tunn` needs for a datagram.
const ROOM: (usize, usize) = (32, 148);

/// An endpoint of the tunnel.
pub struct Wireguard {
    tun: Tun,
    socket: UdpSocket,
    peer: SocketAddr,
    tunn: Tunn,
    sender: Sender,
    receiver: Receiver,
    /// Packets of one batch, decrypted or encrypted, and their ranges.
    memory: Vec<u8>,
    places: Vec<std::ops::Range<usize>>,
    plain: Vec<u8>,
}

impl Wireguard {
    /// Creates an endpoint with a device, a socket and a peer.
    pub fn new(tun: Tun, socket: UdpSocket, peer: SocketAddr, tunn: Tunn) -> Wireguard {
        let (receiver, plain) = (Receiver::new(&socket), vec![0; 1 << 16]);
        let (sender, memory, places) = (Sender::new(), Vec::new(), Vec::new());
        Wireguard { tun, socket, peer, tunn, sender, receiver, memory, places, plain }
    }

    /// Reads the device once, seals the packets and sends them.
    pub fn outward(&mut self) -> io::Result<()> {
        self.places.clear();
        let mut at = 0;
        for packet in self.tun.read()?.iter() {
            let len = packet.write_to(&mut self.plain).map_err(io::Error::other)?;
            self.memory.resize(self.memory.len().max(at + len + ROOM.0 + ROOM.1), 0);
            if let TunnResult::WriteToNetwork(sealed) =
                self.tunn.encapsulate(&self.plain[..len], &mut self.memory[at..])
            {
                self.places.push(at..at + sealed.len());
                at += sealed.len();
            }
        }
        self.send();
        Ok(())
    }

    /// Receives the datagrams queued in the socket, decrypts them, and writes the packets to the device, joined.
    pub fn inward(&mut self) -> io::Result<()> {
        self.places.clear();
        let mut at = 0;
        for (datagram, from) in self.receiver.receive(&self.socket)?.iter_mut() {
            self.memory.resize(self.memory.len().max(at + datagram.len() + ROOM.1), 0);
            let mut input = &*datagram;
            loop {
                match self.tunn.decapsulate(Some(from.ip()), input, &mut self.memory[at..]) {
                    TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                        self.places.push(at..at + packet.len());
                        at += packet.len();
                    }
                    // An answer of the handshake; there may be more to send.
                    TunnResult::WriteToNetwork(answer) => {
                        (self.peer, input) = (from, &[]);
                        _ = self.sender.send(&self.socket, &[answer], |answer| (answer, Some(from)));
                        continue;
                    }
                    TunnResult::Done | TunnResult::Err(_) => {}
                }
                break;
            }
        }
        let memory = &self.memory;
        // What the device refuses while it is down is lost; one that was deleted cannot be read either.
        _ = self.tun.write(self.places.iter().map(|place| &memory[place.clone()]));
        Ok(())
    }

    /// Runs the timers that are due; to be called some four times a second.
    pub fn tick(&mut self) {
        self.places.clear();
        self.memory.resize(self.memory.len().max(ROOM.1), 0);
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.update_timers(&mut self.memory) {
            self.places.push(0..datagram.len());
        }
        self.send();
    }

    /// Waits for the device, the socket, or the next tick, and handles the event.
    pub fn turn(&mut self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut ready = [self.tun.as_fd(), self.socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 250_000_000 })) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            polled => polled?,
        };
        let [device, network] = ready.map(|fd| !fd.revents().is_empty());
        let idle = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        };
        if device {
            idle(self.outward())?;
        }
        if network {
            idle(self.inward())?;
        }
        self.tick();
        Ok(())
    }

    /// Returns the TUN device.
    pub fn tun(&mut self) -> &mut Tun {
        &mut self.tun
    }

    /// Sends the datagrams. Lost, as on a wire, is what is not sent: the socket is full, or there is no route now.
    fn send(&mut self) {
        let (memory, peer) = (&self.memory, self.peer);
        _ = self.sender.send(&self.socket, &self.places, |place| (&memory[place.clone()], Some(peer)));
    }
}
