//! What a router is told while it runs, by whoever knows the kernel's tables and by whoever asks it.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use segue::time::Nanos;

use crate::nat::Mapping;
use crate::route::{Hop, Routes};

/// Messages that may wait for the router.
const WAITING: usize = 16;

/// A port as the kernel knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceAddrs {
    /// Its link address.
    pub mac: [u8; 6],
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Its addresses with the lengths of their prefixes.
    pub v4: Vec<(Ipv4Addr, u8)>,
    /// The same for IPv6, link-local ones among them.
    pub v6: Vec<(Ipv6Addr, u8)>,
}

impl InterfaceAddrs {
    /// The port's address in the network of `sender`, else its first one that is not link-local.
    pub(super) fn address_towards(&self, sender: IpAddr) -> Option<IpAddr> {
        match sender {
            IpAddr::V4(sender) => self.v4_towards(sender).map(IpAddr::V4),
            IpAddr::V6(sender) => {
                let mut global = self.v6.iter().filter(|(own, _)| !own.is_unicast_link_local());
                let is_near = |(own, len): &&(Ipv6Addr, u8)| {
                    (own.to_bits() ^ sender.to_bits()).checked_shr(128 - u32::from(*len)).unwrap_or(0) == 0
                };
                let near = global.clone().find(is_near).or_else(|| global.next());
                near.map(|(own, _)| IpAddr::V6(*own))
            }
        }
    }

    /// The port's address in the network of `other`, its first one otherwise.
    pub(super) fn v4_towards(&self, other: Ipv4Addr) -> Option<Ipv4Addr> {
        let is_near = |(own, len): &&(Ipv4Addr, u8)| {
            (own.to_bits() ^ other.to_bits()).checked_shr(32 - u32::from(*len)).unwrap_or(0) == 0
        };
        let near = self.v4.iter().find(is_near).or(self.v4.first());
        near.map(|(own, _)| *own)
    }
}

/// A neighbour that the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Who.
    pub hop: Hop,
    /// Its link address.
    pub mac: [u8; 6],
    /// It was set by hand, and is not asked again.
    pub is_permanent: bool,
}

/// What has become of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourEvent {
    /// The kernel knows it so now.
    Set(Neighbour),
    /// The kernel has forgotten it.
    Removed(Hop),
}

/// All that the kernel knows, at one time.
#[derive(Debug)]
pub struct Tables {
    /// Routes.
    pub routes: Routes,
    /// Both ports.
    pub ports: [InterfaceAddrs; 2],
    /// Neighbours behind them.
    pub neighbours: Vec<Neighbour>,
}

/// The mappings of a router's NAT, and the time at which they were these.
pub type Mappings = (Nanos, Vec<Mapping>);

/// What a router is told.
#[derive(Debug)]
pub enum Message {
    /// The kernel's tables are these now.
    Tables(Box<Tables>),
    /// These neighbours have changed, in this order.
    Neighbours(Vec<NeighbourEvent>),
    /// Somebody wants to see the mappings.
    Mappings(SyncSender<Mappings>),
}

/// Tells a router.
#[derive(Clone, Debug)]
pub struct FeedSender {
    sender: SyncSender<Message>,
    wake: Arc<Mutex<PipeWriter>>,
}

/// The router's side.
#[derive(Debug)]
pub struct Feed {
    receiver: Receiver<Message>,
    wake: PipeReader,
}

/// Both sides.
///
/// # Errors
/// Where there is no pipe.
pub fn feed() -> io::Result<(FeedSender, Feed)> {
    let (reader, writer) = io::pipe()?;
    let (sender, receiver) = sync_channel(WAITING);
    Ok((FeedSender { sender, wake: Arc::new(Mutex::new(writer)) }, Feed { receiver, wake: reader }))
}

impl FeedSender {
    /// Hands a message over and wakes the router. `false` where it has ended.
    pub fn send(&self, message: Message) -> bool {
        let woken = || self.wake.lock().is_ok_and(|mut wake| wake.write_all(b"x").is_ok());
        self.sender.send(message).is_ok() && woken()
    }
}

impl Feed {
    /// The next message. Every message has its byte in the pipe, behind it.
    pub(crate) fn next(&mut self) -> Option<Message> {
        let message = self.receiver.try_recv().ok()?;
        let _ = self.wake.read_exact(&mut [0]);
        Some(message)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
