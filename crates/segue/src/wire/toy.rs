//! A tunnel format for tests only, deliberately unusual: a header of 6 to 20 bytes, with the next type at its end.
//!
//! Parsing, GRO and GSO know it only by its row in the table of formats.

use super::{Format, Kind, Next, Shim, Unread, ethertype};

/// UDP port of the toy format.
pub(crate) const PORT: u16 = 7777;

pub(super) const FORMAT: Format = Format { kind: Kind::Toy, name: "toy", port: PORT, read, withdraw: None, flow: 1..3 };

/// Parses a header of the toy format. `bytes[0]` counts pairs of bytes to skip. Then come an identifier of 2 bytes, the
/// skipped bytes, and 3 bytes, the last of which is the next type: 4, 6, or 0 for an Ethernet frame.
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

/// Returns a header of the test format with these fields.
pub(crate) fn header(skip: u8, id: u16, next: u8) -> Vec<u8> {
    let mut bytes = vec![skip];
    bytes.extend(id.to_be_bytes());
    bytes.resize(bytes.len() + usize::from(skip) * 2, 0xa5);
    bytes.extend([1, 2, next]);
    bytes
}
