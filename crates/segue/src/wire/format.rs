//! The table of tunnel formats that stand behind UDP, and what a format has to say.
//!
//! To add one: a file beside this one with a `pub const FORMAT`, and a row of the table. Parsing, GRO and GSO follow.

use core::ops::Range;

use super::{geneve, gue, vxlan};

/// What the next header is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// By EtherType.
    Type(u16),
    /// By IP protocol number.
    Protocol(u8),
}

/// A remote checksum option: places counted from the first byte after the header that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remcsum {
    /// Where the sum starts.
    pub start: u16,
    /// Where the field is (absolute, not relative to `start`).
    pub offset: u16,
}

/// What a header says to whoever looks through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shim {
    /// Bytes of the header; even.
    pub len: usize,
    /// What follows it.
    pub next: Next,
    /// Its remote checksum option, where it has one.
    pub remcsum: Option<Remcsum>,
}

/// Why nobody can say what is behind a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is of a version or kind, or has flags, that are not known here. Nothing need be wrong with it.
    Foreign,
    /// Its lengths contradict each other or the bytes present.
    Malformed,
}

/// A tunnel format behind UDP: all that the parser, GRO and GSO need to know of it.
///
/// Its header must be the same, byte for byte, on all packets of a flow that are to be joined.
#[derive(Debug)]
pub struct Format {
    /// What its header is called in a layout.
    pub kind: Kind,
    /// Its name, for people.
    pub name: &'static str,
    /// Its assigned UDP port.
    pub port: u16,
    /// Reads a header at the start of a UDP payload, of which the first bytes are given.
    pub read: fn(&[u8]) -> Result<Shim, Unread>,
    /// Takes the remote checksum option out of a header, where it has one, without moving anything; for formats that have such
    /// an option.
    pub withdraw: Option<fn(&mut [u8])>,
    /// The bytes of the header that tell flows apart, such as a network identifier.
    pub flow: Range<usize>,
}

macro_rules! formats {
    ($($(#[doc = $doc:literal])* $(#[cfg($($cfg:tt)*)])? $kind:ident = $module:ident;)*) => {
        /// What a header is.
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
            /// UDP.
            Udp,
            /// TCP with its options.
            Tcp,
            /// GRE with its options.
            Gre,
            $($(#[doc = $doc])* $(#[cfg($($cfg)*)])? $kind,)*
        }

        /// Every format, in the order of their kinds.
        pub const FORMATS: &[Format] = &[$($(#[cfg($($cfg)*)])? $module::FORMAT,)*];
    };
}

#[cfg(test)]
use super::toy;

formats! {
    /// GUE with its options; 0 bytes long in version 1.
    Gue = gue;
    /// VXLAN.
    Vxlan = vxlan;
    /// Geneve with its options.
    Geneve = geneve;
    /// A format that only tests know.
    #[cfg(test)]
    Toy = toy;
}

impl Kind {
    /// How many there are; their numbers start at 0.
    pub(crate) const COUNT: usize = Kind::Gre as usize + 1 + FORMATS.len();

    /// The tunnel format behind UDP that it is, if it is one.
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
