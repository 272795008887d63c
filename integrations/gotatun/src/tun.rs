//! A TUN device for gotatun: reads are split, and sent packets are joined.

use std::io;

use gotatun::packet::{Ip, Packet, PacketBufPool};
use gotatun::tun::{IpRecv, IpSend, MtuWatcher};
use segue_port::tun::{AsyncTunReader, Tun};
use tokio::sync::mpsc;

/// Largest number of packets of one batch for the device, and of its queue.
const BATCH: usize = 256;
/// Number of turns of the runtime without a packet that end a batch: in one, a socket is found readable; in the next,
/// what it has goes through gotatun's tasks.
const TURNS: u32 = 2;

/// The writing half, towards the device.
pub struct Inward(mpsc::Sender<Packet>);

/// The reading half, from the device.
pub struct Outward {
    tun: AsyncTunReader,
    mtu: MtuWatcher,
    packets: Vec<Packet<Ip>>,
}

/// Creates both directions of a device with the given MTU, on the caller's runtime.
pub fn pair(tun: Tun, mtu: u16) -> io::Result<(Inward, Outward)> {
    let (reader, mut writer) = tun.into_async()?;
    let (sender, mut queue) = mpsc::channel(BATCH);
    // gotatun says nothing at the end of a batch: it ends when the runtime has gone through its other tasks and brought
    // nothing more.
    tokio::spawn(async move {
        let mut packets: Vec<Packet> = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut packets, BATCH).await > 0 {
            let mut turns = 0;
            while turns < TURNS && packets.len() < BATCH {
                tokio::task::yield_now().await;
                let room = BATCH - packets.len();
                let came = !queue.is_empty() && queue.recv_many(&mut packets, room).await > 0;
                turns = if came { 0 } else { turns + 1 };
            }
            // What the device refuses is lost, as on a wire; that it is gone is seen by the other direction.
            _ = writer.write(packets.iter().map(|packet| &packet[..])).await;
            packets.clear();
        }
    });
    Ok((Inward(sender), Outward { tun: reader, mtu: MtuWatcher::new(mtu), packets: Vec::new() }))
}

impl IpSend for Inward {
    async fn send(&mut self, packet: Packet<Ip>) -> io::Result<()> {
        self.0.send(packet.into_bytes()).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl IpRecv for Outward {
    async fn recv<'a>(
        &'a mut self,
        pool: &mut PacketBufPool,
    ) -> io::Result<impl Iterator<Item = Packet<Ip>> + Send + 'a> {
        for packet in self.tun.read().await?.iter() {
            let mut out = pool.get();
            let Ok(len) = packet.write_to(&mut out) else { continue };
            out.truncate(len);
            self.packets.extend(out.try_into_ip());
        }
        Ok(self.packets.drain(..))
    }

    fn mtu(&self) -> MtuWatcher {
        self.mtu.clone()
    }
}
