//! The structs of `segue.h`.

/// Memory of the caller with a packet in it.
#[repr(C)]
pub struct SegueBuf {
    pub(crate) base: *const u8,
    pub(crate) len: usize,
    /// State of the checksum: 0 for unknown, 1 for verified, 2 for owed with a primed field.
    pub(crate) csum: u32,
}

/// Memory of the caller that receives a packet: `room` bytes, of which `len` are used afterwards.
#[repr(C)]
pub struct SegueOut {
    pub(crate) base: *mut u8,
    pub(crate) room: usize,
    pub(crate) len: usize,
}

impl SegueOut {
    /// Returns whether the memory has `len` bytes after its first `offset` bytes.
    pub(crate) fn holds(&self, offset: usize) -> bool {
        self.room.checked_sub(offset).is_some_and(|room| self.len <= room)
    }
}

/// A piece of a train, with the layout of an `iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeguePiece {
    pub(crate) base: *const u8,
    pub(crate) len: usize,
}

/// A train: `count` pieces from `first` on.
#[repr(C)]
pub struct SegueTrain {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) len: usize,
    pub(crate) segments: usize,
}

/// A packet in several pieces.
#[repr(C)]
pub struct SegueChain {
    pub(crate) pieces: *const SeguePiece,
    pub(crate) count: usize,
    /// State of the checksum, as in [`SegueBuf`].
    pub(crate) csum: u32,
}

/// Configuration of a joiner.
#[repr(C)]
pub struct SegueJoinerConfig {
    /// Size of this struct in bytes, as the caller was compiled.
    pub(crate) size: usize,
    /// Key of the flow table; random where it is zero.
    pub(crate) key: [u64; 2],
    /// `TUN_F_` bits of the device; 0xffffffff for plain packets of 64 kB.
    pub(crate) offloads: u32,
    /// Length of the virtio-net header: 10, 12, 20 or 24; 0 with plain packets.
    pub(crate) header_len: u32,
    /// First header of the packets: 0 for an IP header, 1 for an Ethernet header.
    pub(crate) ethernet: u32,
    /// Profile: 0 for strict, 1 for linux.
    pub(crate) profile: u32,
}

/// Configuration of a tunnel.
#[repr(C)]
#[derive(Default)]
pub struct SegueTunnelConfig {
    /// Size of this struct in bytes, as the caller was compiled.
    pub(crate) size: usize,
    /// Mode: 0 for IP in IP, 1 for GRE.
    pub(crate) mode: u32,
    /// Carrier: 0 for IP, 1 for FOU, 2 for GUE, 3 for GUE with remote checksum offload.
    pub(crate) carrier: u32,
    /// Version of the outer addresses: 4 or 6.
    pub(crate) version: u32,
    /// UDP port of both ends; 0 for the usual one.
    pub(crate) port: u16,
    /// The addresses, of which IPv4 uses the first four bytes.
    pub(crate) local: [u8; 16],
    pub(crate) remote: [u8; 16],
    /// Key of the flow hash, which callers compiled before it was added do not have; random where it is zero.
    pub(crate) key: [u64; 2],
}

impl SegueTunnelConfig {
    /// The fewest bytes of a configuration: the fields of the first version. With its padding that is not always what
    /// is in front of `key`, whose alignment is above that of the other fields on most machines of 32 bits.
    pub(crate) const LEAST: usize = std::mem::offset_of!(SegueTunnelConfig, remote) + size_of::<[u8; 16]>();
}

/// Returns the size of each struct and the offsets of its fields, for the test that compares them with those of C.
pub fn layout() -> String {
    use std::mem::offset_of;
    let mut text = String::new();
    macro_rules! list {
        ($name:literal, $type:ident, $($field:ident),+) => {
            text += concat!($name, " ");
            text += &size_of::<$type>().to_string();
            $(text += &format!(concat!(" ", stringify!($field), "@{}"), offset_of!($type, $field));)+
            text.push('\n');
        };
    }
    list!("segue_out", SegueOut, base, room, len);
    list!("segue_buf", SegueBuf, base, len, csum);
    list!("segue_piece", SeguePiece, base, len);
    list!("segue_train", SegueTrain, first, count, len, segments);
    list!("segue_chain", SegueChain, pieces, count, csum);
    list!("segue_joiner_config", SegueJoinerConfig, size, key, offloads, header_len, ethernet, profile);
    list!("segue_tunnel_config", SegueTunnelConfig, size, mode, carrier, version, port, local, remote, key);
    text
}
