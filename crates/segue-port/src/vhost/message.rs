//! The messages of the vhost-user protocol, as far as a network device needs them, and their parser.
//!
//! The parser never waits: [`Assembler::read`] takes what has come, and returns a message once all of it is there.

use std::fs::{File, Metadata, read_link};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use segue::reason::Reason;

use super::reasons::Stop;
use super::sys::{self, MemoryFs};

/// Longest time from the first byte of a message to its last.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Length of a message's header in bytes: its number, its flags, the length of its payload.
pub(super) const HEADER_LEN: usize = 12;
/// Length in bytes of the largest payload: a table of 8 regions of memory.
const MOST_PAYLOAD: usize = 8 + 8 * Region::LEN;

/// Flags of a message: the version in the two lowest bits, a reply, and a required reply (`need_reply`).
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Flag of a call or kick without a descriptor.
const NO_FD: u64 = 1 << 8;
/// Flag of a ring whose writes are to be logged.
const LOG_RING: u32 = 1;

/// A message of the protocol, not parsed yet.
#[derive(Debug)]
pub struct Message {
    /// Header and payload, bytes.
    pub bytes: Vec<u8>,
    /// File descriptors received with the message, in order.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// Returns the number of the message.
    pub fn number(&self) -> u32 {
        word(&self.bytes, 0)
    }

    /// Returns a message by which a [relay](super::relay) reports the reason for closing a connection.
    pub fn refusal(reason: Stop) -> Message {
        let words = [number::REFUSED, VERSION, 4, reason.index() as u32];
        Message { bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(), fds: Vec::new() }
    }

    /// Sends the message with its descriptors, without waiting.
    ///
    /// # Errors
    /// Where the socket does not take all of it.
    pub fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match sys::send(socket, &self.bytes, &self.fds)? {
            len if len == self.bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Checks the descriptors of a message: memory must be a regular file of tmpfs or hugetlbfs that holds its region,
    /// in whole huge pages where the file has them, and descriptors that wake a side must be event counters. With any
    /// other message a descriptor is of one of both kinds too: a close of a file of FUSE or NFS may wait for another
    /// process. Messages without descriptors pass.
    ///
    /// # Errors
    /// The reason for which the connection is to be closed.
    pub fn check(&self) -> Result<(), Stop> {
        let is_memory = matches!(self.number(), number::SET_MEM_TABLE | number::ADD_MEM_REG | number::REM_MEM_REG);
        let wakes = self.wakes();
        for fd in &self.fds {
            let file = metadata(fd)?;
            let is_counter = is_event_counter(fd).map_err(|_| Stop::Socket)?;
            let in_memory = sys::memory_fs(fd.as_fd()).map_err(|_| Stop::Socket)?.is_some();
            if is_memory && !file.is_file() {
                return Err(Stop::MemoryLength);
            }
            if is_memory && !in_memory {
                return Err(Stop::MemoryFile);
            }
            if wakes && !is_counter {
                return Err(Stop::QueueKick);
            }
            if !(is_counter || file.is_file() && in_memory) {
                return Err(Stop::MessageDescriptors);
            }
        }
        for (region, at) in regions(self) {
            let fd = self.fds.get(at).ok_or(Stop::MessageDescriptors)?;
            let file = metadata(fd)?;
            let end = region.offset.checked_add(region.len);
            if end.is_none_or(|end| end > file.len()) {
                return Err(Stop::MemoryLength);
            }
            // The kernel maps a part of a huge page, and then neither unmaps nor replaces it.
            let fs = sys::memory_fs(fd.as_fd()).map_err(|_| Stop::Socket)?;
            if fs == Some(MemoryFs::Hugetlbfs) && !region.len.is_multiple_of(file.blksize().max(1)) {
                return Err(Stop::MemoryLength);
            }
        }
        Ok(())
    }

    /// Returns whether the message replaces all of the memory.
    pub(super) fn replaces_memory(&self) -> bool {
        self.number() == number::SET_MEM_TABLE
    }

    /// Returns the region of memory that the message takes away, if it does.
    pub(super) fn removed(&self) -> Option<Region> {
        let region = self.payload().get(8..8 + Region::LEN).filter(|_| self.number() == number::REM_MEM_REG)?;
        Some(Region::parse(region))
    }

    /// Returns whether its descriptors wake a side.
    pub(super) fn wakes(&self) -> bool {
        matches!(self.number(), number::SET_VRING_KICK | number::SET_VRING_CALL | number::SET_VRING_ERR)
    }

    /// Returns the payload.
    pub(super) fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or(&[])
    }

    /// Returns whether the front end waits for an acknowledgment.
    pub(super) fn needs_reply(&self) -> bool {
        word(&self.bytes, 4) & NEED_REPLY != 0
    }
}

/// Returns the kernel's metadata of an open file.
fn metadata(fd: &OwnedFd) -> Result<Metadata, Stop> {
    fd.try_clone().map(File::from).and_then(|file| file.metadata()).map_err(|_| Stop::Socket)
}

/// Returns whether an open file is an event counter (eventfd(2)). Other anonymous files are refused: the owner of a
/// poll set (epoll(7)) can hold its lock while a port polls it, and a close of others may take long.
fn is_event_counter(fd: &OwnedFd) -> io::Result<bool> {
    let name = read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(name.as_os_str() == "anon_inode:[eventfd]")
}

/// A region of a guest's memory, as a front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address in the guest's physical memory.
    pub guest: u64,
    /// Length of the region, bytes.
    pub len: u64,
    /// Address in the front end, by which rings refer to the region.
    pub user: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
}

impl Region {
    /// Length in bytes of a region in a message.
    const LEN: usize = 32;

    fn parse(bytes: &[u8]) -> Region {
        let [guest, len, user, offset] = [0, 8, 16, 24].map(|at| long(bytes, at));
        Region { guest, len, user, offset }
    }
}

/// The index of a queue with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueState {
    pub(super) queue: u32,
    pub(super) value: u32,
}

/// A request of a front end.
#[derive(Debug)]
pub(super) enum Request {
    Features,
    SetFeatures(u64),
    ProtocolFeatures,
    SetProtocolFeatures(u64),
    SetOwner,
    /// A reset of the device; the deprecated RESET_OWNER too.
    Reset,
    QueueNumber,
    MemorySlots,
    SetMemory(Vec<(Region, OwnedFd)>),
    AddMemory(Region, OwnedFd),
    RemoveMemory(Region),
    QueueSize(QueueState),
    QueueBase(QueueState),
    StopQueue(QueueState),
    QueueEnable(QueueState),
    QueueAddress {
        queue: u32,
        descriptors: u64,
        used: u64,
        available: u64,
    },
    Kick(u32, Option<OwnedFd>),
    Call(u32, Option<OwnedFd>),
    /// A descriptor for errors, which is not used.
    Error(u32),
}

/// Numbers of messages (docs/interop/vhost-user of QEMU).
mod number {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_LOG_BASE: u32 = 6;
    pub(super) const SET_LOG_FD: u32 = 7;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const GET_QUEUE_NUM: u32 = 17;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const IOTLB_MSG: u32 = 22;
    pub(super) const POSTCOPY_ADVISE: u32 = 28;
    pub(super) const POSTCOPY_END: u32 = 30;
    pub(super) const RESET_DEVICE: u32 = 34;
    pub(super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(super) const ADD_MEM_REG: u32 = 37;
    pub(super) const REM_MEM_REG: u32 = 38;
    /// Message of a [relay](super::super::relay) with its reason, outside of the protocol.
    pub(super) const REFUSED: u32 = u32::from_be_bytes(*b"sgno");
}

impl Request {
    /// Parses a vhost-user message. Every length and every number of descriptors is checked.
    pub(super) fn parse(message: Message) -> Result<Request, Stop> {
        let number = message.number();
        let (payload, fds) = (message.payload().to_vec(), message.fds);
        let payload = &payload[..];
        let exactly = |len: usize| if payload.len() == len { Ok(()) } else { Err(Stop::MessageLength) };
        let without_fds = || if fds.is_empty() { Ok(()) } else { Err(Stop::MessageDescriptors) };
        let plain = |len| exactly(len).and_then(|()| without_fds());
        let state = || QueueState { queue: word(payload, 0), value: word(payload, 4) };
        Ok(match number {
            number::GET_FEATURES => plain(0).map(|()| Request::Features)?,
            number::SET_FEATURES => plain(8).map(|()| Request::SetFeatures(long(payload, 0)))?,
            number::SET_OWNER => plain(0).map(|()| Request::SetOwner)?,
            number::RESET_OWNER | number::RESET_DEVICE => plain(0).map(|()| Request::Reset)?,
            number::GET_PROTOCOL_FEATURES => plain(0).map(|()| Request::ProtocolFeatures)?,
            number::SET_PROTOCOL_FEATURES => plain(8).map(|()| Request::SetProtocolFeatures(long(payload, 0)))?,
            number::GET_QUEUE_NUM => plain(0).map(|()| Request::QueueNumber)?,
            number::GET_MAX_MEM_SLOTS => plain(0).map(|()| Request::MemorySlots)?,
            number::SET_VRING_NUM => plain(8).map(|()| Request::QueueSize(state()))?,
            number::SET_VRING_BASE => plain(8).map(|()| Request::QueueBase(state()))?,
            number::GET_VRING_BASE => plain(8).map(|()| Request::StopQueue(state()))?,
            number::SET_VRING_ENABLE => plain(8).map(|()| Request::QueueEnable(state()))?,
            number::SET_VRING_ADDR => {
                plain(40)?;
                if word(payload, 4) & LOG_RING != 0 {
                    return Err(Stop::Migration);
                }
                let [descriptors, used, available] = [8, 16, 24].map(|at| long(payload, at));
                Request::QueueAddress { queue: word(payload, 0), descriptors, used, available }
            }
            number::SET_VRING_KICK | number::SET_VRING_CALL | number::SET_VRING_ERR => {
                exactly(8)?;
                let value = long(payload, 0);
                let (queue, has_fd) = ((value & 0xff) as u32, value & NO_FD == 0);
                let mut fds = fds;
                if fds.len() != usize::from(has_fd) {
                    return Err(Stop::MessageDescriptors);
                }
                match number {
                    number::SET_VRING_KICK => Request::Kick(queue, fds.pop()),
                    number::SET_VRING_CALL => Request::Call(queue, fds.pop()),
                    _ => Request::Error(queue),
                }
            }
            number::SET_MEM_TABLE => {
                let count = word(payload, 0) as usize;
                if count > sys::MOST_FDS || payload.len() != 8 + count * Region::LEN {
                    return Err(Stop::MessageLength);
                }
                if fds.len() != count {
                    return Err(Stop::MessageDescriptors);
                }
                let regions = payload[8..].chunks_exact(Region::LEN).map(Region::parse);
                Request::SetMemory(regions.zip(fds).collect())
            }
            number::ADD_MEM_REG => {
                exactly(8 + Region::LEN)?;
                let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Stop::MessageDescriptors)?;
                Request::AddMemory(Region::parse(&payload[8..]), fd)
            }
            number::REM_MEM_REG => {
                // Some front ends send the descriptor again, which is closed.
                exactly(8 + Region::LEN)?;
                Request::RemoveMemory(Region::parse(&payload[8..]))
            }
            number::SET_LOG_BASE | number::SET_LOG_FD => return Err(Stop::Migration),
            number::POSTCOPY_ADVISE..=number::POSTCOPY_END => return Err(Stop::Migration),
            number::REFUSED => {
                let reason = Stop::ALL.get(word(payload, 0) as usize);
                return Err(reason.copied().unwrap_or(Stop::MessageUnknown));
            }
            number::IOTLB_MSG => return Err(Stop::Iommu),
            _ => return Err(Stop::MessageUnknown),
        })
    }
}

/// Returns the memory regions that a message hands over, each with the index of its descriptor among those of the
/// message; none for messages of other kinds, and for refused ones.
pub fn regions(message: &Message) -> Vec<(Region, usize)> {
    let payload = message.payload();
    let from = match message.number() {
        number::SET_MEM_TABLE | number::ADD_MEM_REG => payload.get(8..).unwrap_or(&[]),
        _ => &[],
    };
    from.chunks_exact(Region::LEN).map(Region::parse).zip(0..).collect()
}

/// Returns the reply to the message `number` with the given payload.
pub(super) fn reply(number: u32, payload: &[u8]) -> Vec<u8> {
    let words = [number, VERSION | REPLY, payload.len() as u32];
    words.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// A partially received message.
#[derive(Debug)]
pub struct Assembler {
    bytes: [u8; HEADER_LEN + MOST_PAYLOAD],
    len: usize,
    fds: Vec<OwnedFd>,
}

impl Default for Assembler {
    fn default() -> Assembler {
        Assembler { bytes: [0; HEADER_LEN + MOST_PAYLOAD], len: 0, fds: Vec::new() }
    }
}

impl Assembler {
    /// Reads the available bytes of the next message, and returns the message once it is complete. Nothing of the
    /// message after it is read: descriptors belong to the bytes that they came with.
    ///
    /// # Errors
    /// The reason for which the connection is to be closed.
    pub fn read(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Message>, Stop> {
        loop {
            let mut whole = HEADER_LEN;
            if self.len >= HEADER_LEN {
                whole = whole.saturating_add(word(&self.bytes, 8) as usize);
                if whole > self.bytes.len() || word(&self.bytes, 4) & (VERSION_MASK | REPLY) != VERSION {
                    return Err(Stop::MessageLength);
                }
                if self.len == whole {
                    self.len = 0;
                    return Ok(Some(Message {
                        bytes: self.bytes[..whole].to_vec(),
                        fds: std::mem::take(&mut self.fds),
                    }));
                }
            }
            match sys::receive(socket, &mut self.bytes[self.len..whole], &mut self.fds) {
                Ok(0) => return Err(if self.is_empty() { Stop::Ended } else { Stop::MessageIncomplete }),
                Ok(len) => self.len += len,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::InvalidData => return Err(Stop::MessageDescriptors),
                    io::ErrorKind::ConnectionReset => return Err(Stop::Ended),
                    _ => return Err(Stop::Socket),
                },
            }
        }
    }

    /// Returns whether no byte of the next message has been received.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the received bytes of an incomplete message.
    pub fn begun(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
