//! The TUN side of a VPN with crate `segue` alone: the device is any file that speaks virtio-net headers, opened with
//! `IFF_VNET_HDR`; the cipher seals and opens in place. `cargo run -p segue --example vpn` runs it against itself.

use std::io::{self, ErrorKind, IoSlice, Read, Write};

use segue::easy::{Joiner, Splitter};
use segue::{hash::Key, packet::Start, virtio};

/// Bytes that the cipher adds in front of a packet (a counter) and after it (a tag).
pub const ROOM: (usize, usize) = (8, 16);

/// One end of a VPN.
pub struct Vpn<T> {
    tun: T,
    splitter: Splitter,
    joiner: Joiner,
    read: Vec<u8>,
    /// Number of reads that could not be split, such as a train with a source route: any user can send one.
    pub refused: u64,
    /// Number of writes that the device refused: of a packet that it does not take, or of any while it is down.
    pub lost: u64,
}

impl<T: Read + Write> Vpn<T> {
    /// Creates one end of a VPN; `offloads` are the `TUN_F_` bits that the kernel accepted, and `key` is random.
    pub fn new(tun: T, offloads: u32, key: Key) -> Self {
        let splitter = Splitter::virtio(virtio::Form::Basic, Start::Ip);
        Vpn { tun, splitter, joiner: Joiner::tun(key, offloads), read: vec![0; 65_536 + 10], refused: 0, lost: 0 }
    }

    /// Reads the device once; `send` gets each packet with [`ROOM`] around it, to be sealed and sent.
    pub fn outward(&mut self, mut send: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        let len = self.tun.read(&mut self.read)?;
        let mut datagram = Vec::new();
        for packet in self.splitter.read_or(&self.read[..len], |_| self.refused += 1).iter() {
            datagram.clear();
            packet.append_to(&mut datagram, ROOM);
            send(&mut datagram)?;
        }
        Ok(())
    }

    /// Writes the opened packets of one receive call to the device, joined. What it refuses costs no other packet; a
    /// device that was deleted cannot be read either.
    pub fn inward<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) {
        let mut batch = self.joiner.batch();
        packets.into_iter().for_each(|packet| _ = batch.push(packet));
        while let Some(train) = batch.pop() {
            // Headers, and the 1,000 packets that a train may have.
            let mut places = [IoSlice::new(&[]); 1001];
            let pieces = train.gather(&mut places, IoSlice::new).ok_or(ErrorKind::InvalidInput.into());
            match pieces.and_then(|pieces| self.tun.write_vectored(pieces)) {
                Ok(_) => {}
                // The kernel refuses this kind of train: it comes again, cut.
                Err(error) if error.kind() == ErrorKind::InvalidInput && batch.narrow() => {}
                Err(_) => self.lost += 1,
            }
        }
    }
}

// The rig: a device in memory, and a train that goes through twice.

/// A loopback device: reads return the packets written to it.
#[derive(Default)]
struct Echo(std::collections::VecDeque<Vec<u8>>);

impl Read for Echo {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let unit = self.0.pop_front().ok_or(ErrorKind::WouldBlock)?;
        out[..unit.len()].copy_from_slice(&unit);
        Ok(unit.len())
    }
}

impl Write for Echo {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push_back(bytes.to_vec());
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write(&pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[allow(dead_code, reason = "the tests bring a device of their own")]
fn main() -> io::Result<()> {
    // A TCP train of 5000 bytes in segments of 1000, as a kernel hands it out.
    let mut packet =
        [&[0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2][..], &[0; 20]].concat();
    packet.extend((0..5000).map(|n| (n % 251) as u8));
    let len = (packet.len() as u16).to_be_bytes();
    packet[2..4].copy_from_slice(&len);
    packet[20..24].copy_from_slice(&[0, 1, 0, 2]);
    packet[32..34].copy_from_slice(&[0x50, 0x10]);
    let sum = segue::checksum::Field::complete(segue::checksum::Sum::of(&packet[..20])).value();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    segue::gso::prime(&mut packet, Start::Ip).map_err(io::Error::other)?;
    let header = virtio::VirtioNet {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_TCPV4,
        gso_size: 1000,
        hdr_len: 40,
        csum_start: 20,
        csum_offset: 16,
        ..Default::default()
    };
    let unit = [&header.emit(virtio::Form::Basic)[..10], &packet].concat();

    let mut vpn = Vpn::new(Echo([unit.clone()].into()), virtio::TUN_OFFLOADS[0], Key([1, 2]));
    let mut datagrams = Vec::new();
    vpn.outward(|datagram| {
        datagrams.push(datagram.to_vec());
        Ok(())
    })?;
    vpn.inward(datagrams.iter().map(|datagram| &datagram[ROOM.0..datagram.len() - ROOM.1]));
    assert!(vpn.tun.0 == [unit], "one train came back, byte for byte");
    println!("one read, {} datagrams, one write", datagrams.len());
    Ok(())
}
