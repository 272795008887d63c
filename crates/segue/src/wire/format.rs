//! The table of tunnel formats over UDP, and the properties of a format.
//!
//! To add a format: a file beside this one with a `pub const FORMAT`, and a row of the table. Parsing, GRO and GSO
//! follow.

use core::ops::Range;

use super::{geneve, gue, vxlan};

/// Type of the next header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// EtherType of the payload.
    Type(u16),
    /// IP protocol number of the payload.
    Protocol(u8),
}

/// A remote checksum option. Its values count from the first byte after the header that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remcsum {
    /// Offset at which the sum starts.
    pub start: u16,
    /// Offset of the checksum field, not relative to `start`.
    pub offset: u16,
}

/// The fields of a tunnel header that the parser needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shim {
    /// Length in bytes of the header; always even.
    pub len: usize,
    /// Type of the next header.
    pub next: Next,
    /// Remote checksum option, if the header has one.
    pub remcsum: Option<Remcsum>,
}

/// Reason why the header inside a tunnel cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unread {
    /// The header has an unknown version, kind or flag. It may well be valid.
    Foreign,
    /// Lengths in the header contradict each other or the bytes present.
    Malformed,
}

/// A tunnel format over UDP, as the parser, GRO and GSO need it.
///
/// Packets of a flow can be joined only where their tunnel headers are equal byte for byte.
#[derive(Debug)]
pub struct Format {
    /// Kind of its header in a layout.
    pub kind: Kind,
    /// Name of the format in messages.
    pub name: &'static str,
    /// UDP port that IANA assigned.
    pub port: u16,
    /// The function that reads a header at the start of a UDP payload, of which at least the first bytes are given.
    pub read: fn(&[u8]) -> Result<Shim, Unread>,
    /// The function that removes the remote checksum option from a header without moving other bytes; `None` for
    /// formats without such an option.
    pub withdraw: Option<fn(&mut [u8])>,
    /// The bytes of the header that distinguish flows, such as a network identifier.
    pub flow: Range<usize>,
}

macro_rules! formats {
    ($($(#[doc = $doc:literal])* $(#[cfg($($cfg:tt)*)])? $kind:ident = $module:ident;)*) => {
        /// Kind of a protocol header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Kind {
            /// Ethernet II without tags: addresses and one type field.
            Ethernet,
            /// One VLAN tag: tag control information and the type that follows.
            Vlan,
            /// IPv4 with its options.
            Ipv4,
            /// IPv6 with its extension headers.
            Ipv6,
            /// UDP, eight bytes.
            Udp,
            /// TCP with its options.
            Tcp,
            /// GRE with its options.
            Gre,
            $($(#[doc = $doc])* $(#[cfg($($cfg)*)])? $kind,)*
        }

        /// Every tunnel format, in the order of their kinds.
        pub const FORMATS: &[Format] = &[$($(#[cfg($($cfg)*)])? $module::FORMAT,)*];
    };
}

#[cfg(test)]
use super::toy;

formats! {
    /// GUE with its options; 0 bytes long in version 1.
    Gue = gue;
    /// VXLAN with its header of 8 bytes.
    Vxlan = vxlan;
    /// Geneve with its options.
    Geneve = geneve;
    /// Toy: a format for tests only.
    #[cfg(test)]
    Toy = toy;
}

impl Kind {
    /// Number of kinds; their values start at 0.
    pub(crate) const COUNT: usize = Kind::Gre as usize + 1 + FORMATS.len();

    /// Returns the tunnel format over UDP for a header kind, if there is one.
    pub fn format(self) -> Option<&'static Format> {
        FORMATS.get((self as usize).checked_sub(Kind::Gre as usize + 1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_found_by_its_kind() {
        for format in FORMATS {
            assert_eq!(format.kind.format().map(|found| found.name), Some(format.name));
        }
        for kind in [Kind::Ethernet, Kind::Vlan, Kind::Ipv4, Kind::Ipv6, Kind::Udp, Kind::Tcp, Kind::Gre] {
            assert!(kind.format().is_none(), "{kind:?}");
        }
    }
}
