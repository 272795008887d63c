//! Messages of the USB/IP protocol. All header fields are big-endian.

use crate::usb::{Error, Speed};

/// TCP port of USB/IP.
pub const PORT: u16 = 3240;
/// The protocol's version, 1.1.1.
pub(super) const VERSION: u16 = 0x0111;
/// Length in bytes of the header of operations: version, code, status.
pub(super) const OP_LEN: usize = 8;
/// Length in bytes of a bus id.
pub(super) const BUS_ID_LEN: usize = 32;
/// Length in bytes of a device's record.
pub const RECORD_LEN: usize = 312;
/// Length of the header of each message about a transfer, bytes.
pub(super) const HEADER_LEN: usize = 48;

/// Operation codes of USB/IP.
pub(super) mod op {
    pub(in super::super) const REQ_DEVLIST: u16 = 0x8005;
    pub(in super::super) const REP_DEVLIST: u16 = 0x0005;
    pub(in super::super) const REQ_IMPORT: u16 = 0x8003;
    pub(in super::super) const REP_IMPORT: u16 = 0x0003;
}

/// Command codes of messages about transfers.
pub(super) mod command {
    pub(in super::super) const SUBMIT: u32 = 1;
    pub(in super::super) const UNLINK: u32 = 2;
    pub(in super::super) const RET_SUBMIT: u32 = 3;
    pub(in super::super) const RET_UNLINK: u32 = 4;
}

/// Flags of transfers, called `URB_` in the kernel.
pub(super) mod flag {
    pub(in super::super) const ZERO_PACKET: u32 = 0x40;
    pub(in super::super) const DIR_IN: u32 = 0x200;
}

/// Error number EPIPE in messages, with Linux's value on every machine.
pub(super) const EPIPE: i32 = -32;
pub(super) const EPROTO: i32 = -71;
pub(super) const EOVERFLOW: i32 = -75;
pub(super) const ECONNRESET: i32 = -104;
pub(super) const ESHUTDOWN: i32 = -108;
pub(super) const ETIMEDOUT: i32 = -110;
const ENOENT: i32 = -2;
const ENODEV: i32 = -19;
const ENOMEM: i32 = -12;
const EREMOTEIO: i32 = -121;

pub(super) fn number_of(error: Error) -> i32 {
    match error {
        Error::Stall => EPIPE,
        Error::Cancelled => ECONNRESET,
        Error::Gone => ESHUTDOWN,
        Error::Protocol => EPROTO,
        Error::Overflow => EOVERFLOW,
        Error::Timeout => ETIMEDOUT,
        Error::Memory => ENOMEM,
    }
}

pub(super) fn error_of(number: i32) -> Option<Error> {
    Some(match number {
        // A short read is no error unless it was forbidden.
        0 | EREMOTEIO => return None,
        EPIPE => Error::Stall,
        ECONNRESET | ENOENT => Error::Cancelled,
        ESHUTDOWN | ENODEV => Error::Gone,
        EOVERFLOW => Error::Overflow,
        ETIMEDOUT => Error::Timeout,
        ENOMEM => Error::Memory,
        _ => Error::Protocol,
    })
}

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

/// The header of a message about a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) command: u32,
    pub(super) seqnum: u32,
    pub(super) devid: u32,
    /// Direction of the transfer: 0 to the device, 1 from the device.
    pub(super) direction: u32,
    pub(super) ep: u32,
    /// Fields of SUBMIT: flags, length, start frame, packets, interval. RET_SUBMIT: status, length, start frame,
    /// packets, errors. UNLINK: the sequence number of the transfer. RET_UNLINK: status.
    pub(super) words: [u32; 5],
    pub(super) setup: [u8; 8],
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER_LEN)?;
        Some(Header {
            command: word(bytes, 0),
            seqnum: word(bytes, 4),
            devid: word(bytes, 8),
            direction: word(bytes, 12),
            ep: word(bytes, 16),
            words: [20, 24, 28, 32, 36].map(|at| word(bytes, at)),
            setup: bytes[40..48].try_into().ok()?,
        })
    }

    pub(super) fn emit(&self, to: &mut Vec<u8>) {
        for value in [self.command, self.seqnum, self.devid, self.direction, self.ep].iter().chain(&self.words) {
            to.extend_from_slice(&value.to_be_bytes());
        }
        to.extend_from_slice(&self.setup);
    }
}

/// A server's description of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bus id: the name of the device's port, such as `1-1`.
    pub bus_id: String,
    /// Number of the USB bus.
    pub bus: u32,
    /// Number of the device on the bus.
    pub device: u32,
    /// Speed as USB/IP encodes it: 2 full, 3 high, 5 super.
    pub speed: u32,
    /// USB vendor and product id.
    pub identity: (u16, u16),
    /// Release number of the device.
    pub release: u16,
    /// Class, subclass and protocol of the device.
    pub class: [u8; 3],
    /// Number of interfaces of the device.
    pub interfaces: u8,
}

impl Record {
    /// Returns the speed as an enum, or `None` for one that no adapter has.
    pub fn usb_speed(&self) -> Option<Speed> {
        match self.speed {
            2 => Some(Speed::Full),
            3 => Some(Speed::High),
            5 | 6 => Some(Speed::Super),
            _ => None,
        }
    }

    /// Appends the record's [`RECORD_LEN`] bytes.
    pub fn emit(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(format!("/sys/devices/segue/usb{}/{}", self.bus, self.bus_id).as_bytes());
        to.resize(start + 256, 0);
        to.extend(bus_id_bytes(&self.bus_id));
        for value in [self.bus, self.device, self.speed] {
            to.extend_from_slice(&value.to_be_bytes());
        }
        for value in [self.identity.0, self.identity.1, self.release] {
            to.extend_from_slice(&value.to_be_bytes());
        }
        to.extend(self.class);
        // The configuration in use, the number of configurations, the number of interfaces.
        to.extend([1, 1, self.interfaces]);
    }

    /// Reads a record; `None` if there are too few bytes.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        let bytes = bytes.get(..RECORD_LEN)?;
        let name = &bytes[256..288];
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Some(Record {
            bus_id: String::from_utf8_lossy(&name[..len]).into_owned(),
            bus: word(bytes, 288),
            device: word(bytes, 292),
            speed: word(bytes, 296),
            identity: (half(bytes, 300), half(bytes, 302)),
            release: half(bytes, 304),
            class: [bytes[306], bytes[307], bytes[308]],
            interfaces: bytes[311],
        })
    }
}

pub(super) fn bus_id_bytes(name: &str) -> [u8; BUS_ID_LEN] {
    let mut bytes = [0; BUS_ID_LEN];
    let len = name.len().min(BUS_ID_LEN - 1);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

/// Maximum number of bytes of one transfer: usbfs's default limit for one process.
pub(super) const MAX_TRANSFER: usize = 16 << 20;
