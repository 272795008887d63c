//! A VPN without a cipher in event loops of other libraries: the code that moves packets is here, the loops are in
//! [`by_mio`] and [`by_io_uring`], which wait for its two descriptors.

pub mod by_io_uring;
pub mod by_mio;
mod sys;

use std::io::{self, ErrorKind::WouldBlock};
use std::net::{SocketAddr, UdpSocket};

use segue_port::tun::Tun;
use segue_port::udp::{Receiver, Sender};

/// Bytes that a cipher would add in front of a packet (a counter) and after it (a tag).
const ROOM: (usize, usize) = (8, 16);

/// Two descriptors, each to be waited for until it is readable.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// The side of the TUN device.
    Tun,
    /// The side of the UDP socket.
    Socket,
}

/// One end of a VPN.
#[derive(Debug)]
pub struct Endpoint {
    tun: Tun,
    socket: UdpSocket,
    peer: SocketAddr,
    sender: Sender,
    receiver: Receiver,
}

impl Endpoint {
    /// Creates an endpoint from a device and a socket, which is made non-blocking.
    pub fn new(tun: Tun, socket: UdpSocket, peer: SocketAddr) -> io::Result<Endpoint> {
        socket.set_nonblocking(true)?;
        let receiver = Receiver::new(&socket);
        Ok(Endpoint { tun, socket, peer, sender: Sender::new(), receiver })
    }

    /// Moves all packets queued at a descriptor to the other one.
    pub fn drain(&mut self, side: Side) -> io::Result<()> {
        loop {
            let moved = match side {
                Side::Tun => self.outward(),
                Side::Socket => self.inward(),
            };
            match moved {
                Err(error) if error.kind() == WouldBlock => return Ok(()),
                moved => moved?,
            }
        }
    }

    fn outward(&mut self) -> io::Result<()> {
        let (mut datagrams, peer) = (Vec::new(), self.peer);
        for packet in self.tun.read()?.iter() {
            let mut datagram = Vec::new();
            packet.append_to(&mut datagram, ROOM);
            datagrams.push(datagram); // sealed where it lies
        }
        // Lost, as on a wire, is what is not sent: the socket is full, or there is no route now.
        _ = self.sender.send(&self.socket, &datagrams, |datagram| (datagram, Some(peer)));
        Ok(())
    }

    fn inward(&mut self) -> io::Result<()> {
        let mut datagrams = self.receiver.receive(&self.socket)?;
        let opened = datagrams.iter_mut().filter_map(|(datagram, _)| {
            let end = datagram.len().checked_sub(ROOM.1)?;
            datagram.get(ROOM.0..end) // opened where it lies
        });
        _ = self.tun.write(opened); // lost while the device is down; one that was deleted cannot be read either
        Ok(())
    }
}
