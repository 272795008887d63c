//! The virtio-net header in both directions: the description of a received packet by a kernel or guest, which is
//! checked against its bytes, and that of a packet to send.
//!
//! The header ([`VirtioNet`]) precedes every packet of a TUN or TAP device opened with `IFF_VNET_HDR`, of a
//! packet socket with `PACKET_VNET_HDR`, and of a virtio queue. Its offsets come from outside and lead to writes, so
//! nothing of it is believed: [`load`] parses the packet and refuses what contradicts it. `hdr_len` is ignored, since
//! Linux sets it to 0, to the right value or to the length of the whole packet.
//!
//! ```
//! use segue::packet::{Frag, Packet, Start};
//! use segue::virtio::{self, Form, Loaded, VirtioNet};
//!
//! # fn read() -> Vec<u8> {
//! #     [&[0; 10][..], &[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]].concat()
//! # }
//! let buffer = read(); // one read of a TUN device: 10 bytes of header, then a packet or a train
//! let header = VirtioNet::parse(&buffer, Form::Basic).expect("a whole header");
//! let mut packet = Packet::default();
//! let body = Frag::new(&buffer[..], Form::Basic.len()..buffer.len());
//! match virtio::load(&header, body, Start::Ip, &mut packet)? {
//!     Loaded::Ready => {} // to gso::split, to a tunnel, to gro
//!     Loaded::Owed(place) => panic!("a checksum at byte {} is to be computed first", place.field),
//!     Loaded::OwedSctp(place) => panic!("that of the SCTP packet at byte {}", place.start),
//! }
//! # Ok::<(), virtio::Refusal>(())
//! ```

mod describe;
mod features;
mod load;
mod tunnelled;

pub use describe::{describe, describe_frame};
pub use features::{TAP_TUNNEL_OFFLOADS, TUN_OFFLOADS, device, tun};
pub use load::{Loaded, Place, SctpPlace, State, check, frame, load, load_ranges};

pub use crate::wire::virtio::*;

/// Largest number of datagrams of a UDP train that a kernel delivers: 128 since Linux 6.9.
pub const MAX_UDP_SEGMENTS: usize = 128;

crate::reasons! {
    /// The reason why a packet contradicts its virtio-net header.
    pub enum Refusal {
        Short = "vnet_short": "Shorter than the virtio-net header, or empty after it.",
        GsoType = "gso_type": "A train of a type that is unknown, or that does not fit the packet.",
        GsoHeaders = "gso_headers": "A train whose headers do not parse, are tunnelled, have SYN or RST, or do not cover it.",
        GsoChecksumPlace = "gso_csum_place": "A train whose csum_start and csum_offset do not match its transport header.",
        GsoSize = "gso_size": "A train with a segment size of 0 or 65535.",
        GsoSegments = "gso_segments": "A UDP train of more than 128 segments.",
        ChecksumBounds = "csum_bounds": "A partial checksum whose field lies past the end of the packet.",
    }
}
