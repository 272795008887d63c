//! A device of smoltcp over a TUN device with virtio-net headers: reads are split, sent packets are joined, and smoltcp
//! neither computes nor verifies checksums of TCP and UDP: those that the kernel does not vouch for are verified here.

use std::io::{self, ErrorKind::InvalidInput, IoSlice, Read, Write};

use segue::easy::{Joiner, Splitter};
use segue::{gso, hash::Key, packet::Csum, packet::Start, virtio};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};

/// A device for smoltcp that carries trains. What the interface sends between two calls of [`Trains::flush`] is joined:
/// call it when a poll has sent nothing more. `Interface::poll` of smoltcp 0.12 sends one packet of each socket, so
/// `Interface::poll_egress` follows it until it returns `PollResult::None`.
pub struct Trains<T = std::fs::File> {
    tun: T,
    splitter: Splitter,
    joiner: Joiner,
    read: Vec<u8>,
    received: std::collections::VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    mtu: usize,
    /// Number of writes that the device refused: of a packet that it does not take, or of any while it is down.
    pub lost: u64,
}

impl<T: Read + Write> Trains<T> {
    /// Creates the device from one that does not block; `offloads` are the `TUN_F_` bits that the kernel accepted,
    /// `key` is random.
    pub fn new(tun: T, offloads: u32, key: Key, mtu: usize) -> Self {
        let (splitter, joiner) = (Splitter::virtio(virtio::Form::Basic, Start::Ip), Joiner::tun(key, offloads));
        Trains { tun, splitter, joiner, read: vec![0; 65_546], received: [].into(), sent: Vec::new(), mtu, lost: 0 }
    }

    /// Writes the packets that smoltcp has sent since the last call, joined. Returns the number of writes. What the
    /// device refuses costs no other packet; that it was deleted is an error.
    pub fn flush(&mut self) -> io::Result<usize> {
        let mut sent = std::mem::take(&mut self.sent);
        let (mut batch, mut writes) = (self.joiner.batch(), 0);
        for packet in &mut sent {
            let csum = if gso::prime(packet, Start::Ip).is_ok() { Csum::Partial } else { Csum::Unknown };
            batch.push_with(packet, csum);
        }
        while let Some(train) = batch.pop() {
            // Headers, and the 1,000 packets that a train may have.
            let mut places = [IoSlice::new(&[]); 1001];
            let pieces = train.gather(&mut places, IoSlice::new).ok_or(InvalidInput.into());
            match pieces.and_then(|pieces| self.tun.write_vectored(pieces)) {
                Ok(_) => writes += 1,
                // The kernel refuses this kind of train: it comes again, cut.
                Err(error) if error.kind() == InvalidInput && batch.narrow() => {}
                // EBADFD.
                Err(error) if error.raw_os_error() == Some(77) => return Err(error),
                Err(_) => self.lost += 1,
            }
        }
        Ok(writes)
    }
}

impl<T: Read + Write + 'static> Device for Trains<T> {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _now: smoltcp::time::Instant) -> Option<(Received, Sent<'_>)> {
        while self.received.is_empty() {
            let len = self.tun.read(&mut self.read).ok()?;
            // smoltcp takes one setting for all packets; a TUN device says of each whether its checksum is right.
            let right = self.splitter.read(&self.read[..len]).ok().filter(|packets| packets.verify() != Csum::Bad);
            for packet in right.iter().flat_map(|packets| packets.iter()) {
                self.received.push_back(Vec::new());
                packet.append_to(self.received.back_mut()?, (0, 0));
            }
        }
        Some((Received(self.received.pop_front()?), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _now: smoltcp::time::Instant) -> Option<Sent<'_>> {
        (self.sent.len() < 256).then_some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        (all.medium, all.max_transmission_unit) = (Medium::Ip, self.mtu);
        (all.checksum.tcp, all.checksum.udp) = (Checksum::None, Checksum::None);
        all
    }
}

/// A packet that the device has received.
pub struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

/// A buffer for a packet to be sent.
pub struct Sent<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        self.0.push(vec![0; len]);
        fill(self.0.last_mut().expect("it was pushed"))
    }
}
