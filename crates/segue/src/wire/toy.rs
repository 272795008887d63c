//! A format that only tests know, made to be awkward: a header of 6 to 20 bytes, with its type at the end.
//!
//! Parsing, GRO and GSO know nothing of it but its row in the table of formats.

use super::{Format, Kind, Next, Shim, Unread, ethertype};

/// A port for it.
pub(crate) const PORT: u16 = 7777;

pub(super) const FORMAT: Format = Format { kind: Kind::Toy, name: "toy", port: PORT, read, withdraw: None, flow: 1..3 };

/// `bytes[0]`: pairs of bytes to skip. Then an identifier of 2 bytes, what is skipped, and 3 bytes that end in what follows:
/// 4, 6, or 0 for an Ethernet frame.
fn read(bytes: &[u8]) -> Result<Shim, Unread> {
    let len = 6 + usize::from(*bytes.first().ok_or(Unread::Malformed)? & 7) * 2;
    let next = match bytes.get(len - 1).ok_or(Unread::Malformed)? {
        4 => ethertype::IPV4,
        6 => ethertype::IPV6,
        0 => ethertype::TEB,
        _ => return Err(Unread::Foreign),
    };
    Ok(Shim { len, next: Next::Type(next), remcsum: None })
}

/// A header.
pub(crate) fn header(skip: u8, id: u16, next: u8) -> Vec<u8> {
    let mut bytes = vec![skip];
    bytes.extend(id.to_be_bytes());
    bytes.resize(bytes.len() + usize::from(skip) * 2, 0xa5);
    bytes.extend([1, 2, next]);
    bytes
}
