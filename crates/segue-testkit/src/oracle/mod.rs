//! Checks a frame from first byte to last.
//!
//! [`verify`] walks the headers with code of its own and checks every length field and every IPv4, TCP, UDP, ICMP,
//! ICMPv6 and GRE checksum. A remote checksum option is carried out on a copy, as a receiver would, before what it
//! covers is checked. [`verify_owed`] is for frames that a port still has to complete.

mod report;
#[cfg(test)]
mod tests;
mod walk;

pub use report::{Csum, Level, Owed, Ports, Report, Start, Transport};
use walk::Walk;

/// Checks `bytes`, which must be ready for a wire.
///
/// # Errors
/// A sentence on the first fault found.
pub fn verify(bytes: &[u8], start: Start, ports: &Ports) -> Result<Report, String> {
    verify_owed(bytes, start, ports, Owed::default())
}

/// Checks a frame whose pending checksums the port still completes; all other fields must be correct after that. See
/// [`verify`].
///
/// # Errors
/// A sentence on the first fault found; a checksum that is owed although it is complete is a fault too.
pub fn verify_owed(bytes: &[u8], start: Start, ports: &Ports, owed: Owed) -> Result<Report, String> {
    let mut bytes = bytes.to_vec();
    if owed.inner || owed.outer {
        let walk = Walk::run(&bytes, start, ports, false)?;
        if owed.inner {
            let place = walk.innermost.ok_or("a checksum is owed, but there is no transport header")?;
            place.complete(&mut bytes)?;
        }
        if owed.outer {
            let place = walk.outermost.ok_or("an outer checksum is owed, but there is no outer UDP header")?;
            place.complete(&mut bytes)?;
        }
    }
    let mut report = Walk::run(&bytes, start, ports, true)?.report;
    if owed.inner
        && let Some(transport) = &mut report.transport
    {
        transport.csum = Csum::Owed;
    }
    Ok(report)
}
