//! One connection of a front end: the negotiated features, the guest's memory and its rings.

use std::os::fd::{AsFd, OwnedFd};

use segue::gso::Limits;
use segue::packet::GsoKind;
use segue::virtio::{Form, GSO_ECN, NEEDS_CSUM, VirtioNet, device};

use super::feature::{self, OFFERED};
use super::memory::{MOST_REGIONS, Memory};
use super::message::{self, Message, QueueState, Request};
use super::reasons::Stop;
use super::ring::{Addresses, Flow, Ring, RingFeatures};
use super::sys::Events;
use crate::batch::TxUnit;
use crate::sys::set_nonblocking;

/// Largest frame of a guest and for it, bytes: the largest IP packet after an Ethernet header (virtio 1.2, section
/// 5.1.6.3.1, which has 65,562 with a header of 12 bytes).
pub(super) const MAX_FRAME: usize = 65_550;

/// Index of the queue by which the guest receives.
pub(super) const TO_GUEST: usize = 0;
/// Index of the queue by which the guest sends.
pub(super) const FROM_GUEST: usize = 1;

/// Protocol features: acknowledgments, reset of the device, memory by single regions.
const REPLY_ACK: u64 = 1 << 3;
const RESET_DEVICE: u64 = 1 << 13;
const MEMORY_SLOTS: u64 = 1 << 15;
const PROTOCOL_OFFERED: u64 = REPLY_ACK | RESET_DEVICE | MEMORY_SLOTS;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) features: u64,
    protocol: u64,
    pub(super) memory: Memory,
    pub(super) rings: [Ring; 2],
}

impl Session {
    pub(super) fn new() -> Session {
        Session {
            features: 0,
            protocol: 0,
            memory: Memory::default(),
            rings: [Ring::new(Flow::ToGuest), Ring::new(Flow::FromGuest)],
        }
    }

    /// Returns whether a feature was negotiated with the guest's driver.
    #[inline]
    pub(super) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Returns whether both queues may be used.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.rings[TO_GUEST].is_ready() && self.rings[FROM_GUEST].is_ready()
    }

    /// Returns the form of the header in front of each packet.
    #[inline]
    pub(super) fn form(&self) -> Form {
        if self.has(feature::VERSION_1 | feature::MRG_RXBUF) { Form::Buffers } else { Form::Basic }
    }

    /// Returns whether the guest's driver accepts a packet or train with the given header, under these limits.
    pub(super) fn takes(&self, limits: &Limits, unit: &TxUnit<'_>, header: &VirtioNet) -> bool {
        let has_ecn = header.gso_type & GSO_ECN == 0 || self.has(1 << device::GUEST_ECN);
        let train = match unit.gso().map(|gso| gso.kind) {
            None => true,
            Some(GsoKind::Tcp) => (limits.tso4 || limits.tso6) && has_ecn,
            Some(GsoKind::Udp) => limits.uso,
        };
        train && (limits.csum || header.flags & NEEDS_CSUM == 0)
    }

    /// Returns the limits of packets and trains that the guest's driver accepts.
    pub(super) fn limits(&self, mtu: usize) -> Limits {
        let limits = Limits::guest(self.features, MAX_FRAME);
        // Bytes are copied, whatever the number of their pieces.
        Limits { mtu, max_pieces: usize::MAX, ..limits }
    }

    /// Handles a message; `kicks` are the kick events of each queue. Returns the reply to send.
    pub(super) fn handle(&mut self, message: Message, kicks: [&Events; 2]) -> Result<Option<Vec<u8>>, Stop> {
        let (number, needs_reply) = (message.number(), message.needs_reply());
        let value = self.act(Request::parse(message)?, kicks)?;
        for ring in &mut self.rings {
            ring.locate(&self.memory)?;
        }
        Ok(match value {
            Some(payload) => Some(message::reply(number, &payload)),
            None if needs_reply && self.protocol & REPLY_ACK != 0 => Some(message::reply(number, &[0; 8])),
            None => None,
        })
    }

    /// Handles a request of the front end. Returns the payload of the reply, where the request has one.
    fn act(&mut self, request: Request, kicks: [&Events; 2]) -> Result<Option<Vec<u8>>, Stop> {
        let number = |value: u64| Ok(Some(value.to_le_bytes().to_vec()));
        match request {
            Request::Features => return number(OFFERED),
            Request::ProtocolFeatures => return number(PROTOCOL_OFFERED),
            Request::QueueNumber => return number(1),
            Request::MemorySlots => return number(MOST_REGIONS as u64),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetProtocolFeatures(features) if features & !PROTOCOL_OFFERED != 0 => return Err(Stop::Features),
            Request::SetProtocolFeatures(features) => self.protocol = features,
            Request::SetOwner => {}
            Request::Reset => {
                for queue in 0..2 {
                    self.stop(queue, kicks);
                    self.rings[queue].enabled = false;
                }
            }
            Request::SetMemory(regions) => self.memory.replace(regions)?,
            Request::AddMemory(region, fd) => self.memory.add(&region, fd)?,
            Request::RemoveMemory(region) => self.memory.remove(&region)?,
            Request::QueueSize(QueueState { queue, value }) => self.ring(queue)?.set_size(value)?,
            Request::QueueBase(QueueState { queue, value }) => self.ring(queue)?.set_base(value),
            Request::QueueEnable(QueueState { queue, value }) => self.ring(queue)?.enabled = value != 0,
            Request::QueueAddress { queue, descriptors, used, available } => {
                let addresses = Addresses { descriptors, available, used };
                let queue = index(queue)?;
                self.rings[queue].set_addresses(addresses, &self.memory)?;
            }
            Request::StopQueue(QueueState { queue, .. }) => {
                let base = self.ring(queue)?.base();
                self.stop(index(queue)?, kicks);
                return Ok(Some([queue, base].iter().flat_map(|word| word.to_le_bytes()).collect()));
            }
            Request::Kick(queue, fd) => {
                let queue = index(queue)?;
                self.set_kick(queue, fd, kicks)?;
            }
            Request::Call(queue, fd) => {
                let ring = self.ring(queue)?;
                if let Some(fd) = &fd {
                    set_nonblocking(fd.as_fd()).map_err(|_| Stop::QueueKick)?;
                }
                ring.set_call(fd);
            }
            Request::Error(queue) => drop(index(queue)?),
        }
        Ok(None)
    }

    fn set_features(&mut self, features: u64) -> Result<(), Stop> {
        let other = features & !OFFERED;
        if other & feature::LOG_ALL != 0 {
            return Err(Stop::Migration);
        }
        if other & feature::ACCESS_PLATFORM != 0 {
            return Err(Stop::Iommu);
        }
        if other != 0 {
            return Err(Stop::Features);
        }
        self.features = features;
        let agreed = RingFeatures { indirect: self.has(feature::INDIRECT), event_idx: self.has(feature::EVENT_IDX) };
        let is_old = !self.has(feature::PROTOCOL);
        for ring in &mut self.rings {
            ring.features = agreed;
            // A front end without protocol features never enables a queue.
            ring.enabled |= is_old;
        }
        Ok(())
    }

    fn ring(&mut self, queue: u32) -> Result<&mut Ring, Stop> {
        index(queue).map(|queue| &mut self.rings[queue])
    }

    fn set_kick(&mut self, queue: usize, fd: Option<OwnedFd>, kicks: [&Events; 2]) -> Result<(), Stop> {
        let ring = &mut self.rings[queue];
        if let Some(old) = ring.kick.take() {
            kicks[queue].remove(old.as_fd());
        }
        // A queue without a kick would have to be polled.
        let fd = fd.ok_or(Stop::QueueKick)?;
        kicks[queue].add(fd.as_fd()).map_err(|_| Stop::QueueKick)?;
        ring.kick = Some(fd);
        Ok(())
    }

    /// Stops a queue and removes its kick from the events.
    fn stop(&mut self, queue: usize, kicks: [&Events; 2]) {
        if let Some(old) = &self.rings[queue].kick {
            kicks[queue].remove(old.as_fd());
        }
        self.rings[queue].stop();
    }

    /// Stops both queues at the end of the session.
    pub(super) fn end(&mut self, kicks: [&Events; 2]) {
        self.stop(TO_GUEST, kicks);
        self.stop(FROM_GUEST, kicks);
        self.memory.clear();
    }
}

fn index(queue: u32) -> Result<usize, Stop> {
    if queue < 2 { Ok(queue as usize) } else { Err(Stop::QueueIndex) }
}
