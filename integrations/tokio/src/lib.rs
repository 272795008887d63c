//! A VPN without a cipher on a runtime of tokio: a task for each direction, on any thread.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use segue_port::tun::{AsyncTunReader, AsyncTunWriter, Tun};
use segue_port::udp::{Receiver, Sender};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// Bytes that a cipher would add in front of a packet (a counter) and after it (a tag).
const ROOM: (usize, usize) = (8, 16);

/// Runs one end until the device or the socket fails.
pub async fn run(tun: Tun, socket: UdpSocket, peer: SocketAddr) -> io::Result<()> {
    let (reader, writer) = tun.into_async()?;
    let socket = Arc::new(socket);
    // The first direction that fails ends the other: the set stops its tasks when it is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(outward(reader, Arc::clone(&socket), peer));
    tasks.spawn(inward(writer, socket));
    tasks.join_next().await.map_or(Ok(()), |ended| ended.map_err(io::Error::other).flatten())
}

async fn outward(mut tun: AsyncTunReader, socket: Arc<UdpSocket>, peer: SocketAddr) -> io::Result<()> {
    let (mut sender, mut memory, mut places) = (Sender::new(), Vec::new(), Vec::new());
    loop {
        memory.clear();
        places.clear();
        for packet in tun.read().await?.iter() {
            let start = memory.len();
            packet.append_to(&mut memory, ROOM);
            // Here a cipher seals it, where it lies.
            places.push(start..memory.len());
        }
        // What the kernel refuses, such as without a route, is lost, as on a wire (`sender.lost()`).
        sender.send_async(&socket, &places, |place| (&memory[place.clone()], Some(peer))).await?;
    }
}

async fn inward(mut tun: AsyncTunWriter, socket: Arc<UdpSocket>) -> io::Result<()> {
    let mut receiver = Receiver::new(&socket);
    loop {
        let mut datagrams = receiver.receive_async(&socket).await?;
        // Here a cipher opens each, where it lies.
        let opened = |datagram: &'_ [u8]| Some(ROOM.0..datagram.len().checked_sub(ROOM.1)?);
        // What the device refuses while it is down is lost; one that was deleted ends the other direction.
        _ = tun.write(datagrams.iter_mut().filter_map(|(datagram, _)| datagram.get(opened(datagram)?))).await;
    }
}
