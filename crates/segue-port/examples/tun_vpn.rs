//! A VPN with `segue-port`: the device, the socket and the loop for both directions. The cipher seals and opens in
//! place; here it is none. `tun_vpn NAME LOCAL:PORT PEER:PORT` runs one end, as root.

use std::io::{self, ErrorKind::WouldBlock};
use std::net::{SocketAddr, UdpSocket};

use segue_port::tun::{Tun, TunConfig};
use segue_port::udp::Receiver;

/// Number of bytes that the cipher adds before a packet (a counter) and after it (a tag).
pub const ROOM: (usize, usize) = (8, 16);

/// Reads the device once; `send` gets each packet with headroom and tailroom of [`ROOM`], to be sealed and sent. What
/// cannot be split gives none, and is counted (`Tun::unread`).
pub fn outward(tun: &mut Tun, mut send: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut datagram = Vec::new();
    for packet in tun.read()?.iter() {
        datagram.clear();
        packet.append_to(&mut datagram, ROOM);
        send(&mut datagram)?;
    }
    Ok(())
}

/// Writes the packets of one receive call to the device, joined.
pub fn inward<'b>(tun: &mut Tun, datagrams: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
    let opened = |datagram: &'b [u8]| datagram.get(ROOM.0..datagram.len().checked_sub(ROOM.1)?);
    tun.write(datagrams.into_iter().filter_map(opened))
}

/// Opens the device and the socket, and forwards packets between them until one fails.
pub fn run(name: &str, local: &str, peer: SocketAddr, random: [u64; 2]) -> Result<(), Box<dyn std::error::Error>> {
    let mut tun = Tun::open(&TunConfig::ip(name), random)?;
    let socket = UdpSocket::bind(local)?;
    socket.set_nonblocking(true)?;
    let mut receiver = Receiver::new(&socket);
    loop {
        // Lost, as on a wire, is what is not sent: the socket is full, or there is no route now.
        match outward(&mut tun, |datagram| Ok(_ = socket.send_to(datagram, peer))) {
            // A real program waits for both descriptors with poll, or its runtime does.
            Err(error) if error.kind() == WouldBlock => std::thread::sleep(std::time::Duration::from_micros(200)),
            result => result?,
        }
        if let Ok(mut datagrams) = receiver.receive(&socket) {
            // The device counts what it refuses (`Tun::drops`); one that was deleted cannot be read either.
            _ = inward(&mut tun, datagrams.iter_mut().map(|(datagram, _)| &*datagram));
        }
    }
}

// The rig: the command line.

#[allow(dead_code, reason = "the tests bring a loop of their own")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [name, local, peer] = <[String; 3]>::try_from(std::env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: tun_vpn NAME LOCAL:PORT PEER:PORT")?;
    let random = [(); 2].map(|()| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ()));
    run(&name, &local, peer.parse()?, random)
}
