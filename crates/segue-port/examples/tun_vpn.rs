//! The TUN side of a VPN with `segue-port`, which opens the device. The cipher seals and opens in place; here it is
//! none. `vpn NAME LOCAL:PORT PEER:PORT` runs one end, as root.

use std::io::{self, ErrorKind::WouldBlock};

use segue_port::tun::{Tun, TunConfig};

/// Bytes that the cipher adds in front of a packet (a counter) and behind it (a tag).
pub const ROOM: (usize, usize) = (8, 16);

/// Reads the device once; `send` gets each packet with [`ROOM`] around it, to be sealed and sent.
pub fn outward(tun: &mut Tun, mut send: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut datagram = [0; 9216];
    for packet in tun.read()?.iter() {
        let len = packet.write_to(&mut datagram[ROOM.0..]).map_err(io::Error::other)?;
        send(&mut datagram[..ROOM.0 + len + ROOM.1])?;
    }
    Ok(())
}

/// Writes the packets of one receive call to the device, joined.
pub fn inward(tun: &mut Tun, datagrams: &[Vec<u8>]) -> io::Result<usize> {
    tun.write(datagrams.iter().filter_map(|datagram| datagram.get(ROOM.0..datagram.len().checked_sub(ROOM.1)?)))
}

// The rig: a loop around both directions.

#[allow(dead_code, reason = "the tests bring a loop of their own")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [name, local, peer] = <[String; 3]>::try_from(std::env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: vpn NAME LOCAL:PORT PEER:PORT")?;
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    let mut tun = Tun::open(&TunConfig::ip(name), [random, !random])?;
    let socket = std::net::UdpSocket::bind(local)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    let (mut buffer, mut datagrams) = (vec![0; 65_536], Vec::new());
    loop {
        let idle = match outward(&mut tun, |datagram| socket.send(datagram).map(drop)) {
            Err(error) if error.kind() == WouldBlock => true,
            result => result.map(|()| false)?,
        };
        while let Ok(len) = socket.recv(&mut buffer) {
            datagrams.push(buffer[..len].to_vec());
            if datagrams.len() == 64 {
                break;
            }
        }
        if idle && datagrams.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1)); // a real program waits with poll or its runtime
        }
        inward(&mut tun, &datagrams)?;
        datagrams.clear();
    }
}
