//! Remote checksum options: which checksum an option names.
//!
//! The option carries two numbers from outside that lead to a two-byte write. They are accepted only if they name the
//! checksum field of a header that the parser found: that of the innermost TCP or UDP header with the sum starting at
//! that header, or that of the GRE header that follows the tunnel header, with the sum starting at it.

use super::head::Head;
use crate::wire::parse::{Kind, Layout};
use crate::wire::{Remcsum, gre, read_u16, tcp, udp};

crate::reasons! {
    /// The reason why a remote checksum option is not accepted.
    pub enum Refusal {
        Order = "remcsum_order": "The field lies before the start of the sum, or at an odd distance from it.",
        Bounds = "remcsum_bounds": "The start or the field lies past the payload.",
        Field = "remcsum_field": "The place is not the checksum field of a header in this payload.",
    }
}

/// The checksum that the receiver is to complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// The checksum of the innermost transport header, which is primed.
    Transport,
    /// The checksum of the GRE header, which holds zero.
    Gre,
}

/// Returns the offset of the checksum field in a transport header: 16 for TCP, 6 for UDP.
pub const fn field_offset(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Tcp => Some(tcp::CHECKSUM),
        Kind::Udp => Some(udp::CHECKSUM),
        _ => None,
    }
}

/// Returns the option that a sender must write into the tunnel header at `index` for `remote`; its offsets count from
/// the end of that header.
pub fn place(layout: &Layout, index: usize, remote: Remote) -> Option<Remcsum> {
    let base = layout.headers().get(index)?.end();
    let start = match remote {
        Remote::Gre => 0,
        Remote::Transport => layout.transport()?.start().checked_sub(base)?,
    };
    starting_at(start, layout, remote)
}

/// Returns the option like [`place`], for a packet that is not in the tunnel yet: `between` bytes of other headers will
/// be between the tunnel header and the packet.
pub(crate) fn place_in_front(layout: &Layout, between: usize, remote: Remote) -> Option<Remcsum> {
    let start = match remote {
        Remote::Gre => 0,
        Remote::Transport => between + layout.transport()?.start(),
    };
    starting_at(start, layout, remote)
}

/// Returns the option whose sum starts `start` bytes after the end of the tunnel header.
fn starting_at(start: usize, layout: &Layout, remote: Remote) -> Option<Remcsum> {
    let offset = match remote {
        Remote::Gre => gre::CHECKSUM,
        Remote::Transport => field_offset(layout.transport()?.kind)?,
    };
    Some(Remcsum { start: u16::try_from(start).ok()?, offset: u16::try_from(start + offset).ok()? })
}

/// Removes the option from the header in `bytes`, if it has one, without moving any byte.
pub fn withdraw(bytes: &mut [u8], kind: Kind) {
    if let Some(withdraw) = kind.format().and_then(|format| format.withdraw) {
        withdraw(bytes);
    }
}

/// Returns which checksum the option of the tunnel header at `index` of the layout names, or `None` if there is no
/// option.
pub fn option(head: &Head, layout: &Layout, index: usize) -> Option<Result<Remote, Refusal>> {
    let header = layout.headers().get(index)?;
    let format = header.kind.format()?;
    let option = (format.read)(head.bytes().get(header.start()..)?).ok()?.remcsum?;
    Some(resolve(head, layout, index, option))
}

fn resolve(head: &Head, layout: &Layout, index: usize, option: Remcsum) -> Result<Remote, Refusal> {
    if option.offset < option.start || !(option.offset - option.start).is_multiple_of(2) {
        return Err(Refusal::Order);
    }
    let base = layout.headers()[index].end();
    if base + usize::from(option.offset) + 2 > layout.end() || base + usize::from(option.start) >= layout.end() {
        return Err(Refusal::Bounds);
    }
    let gre_has_checksum = layout.headers().get(index + 1).is_some_and(|next| {
        next.kind == Kind::Gre && read_u16(head.bytes(), next.start()).is_some_and(|flags| flags & gre::CSUM != 0)
    });
    if gre_has_checksum && place(layout, index, Remote::Gre) == Some(option) {
        return Ok(Remote::Gre);
    }
    if place(layout, index, Remote::Transport) == Some(option) {
        return Ok(Remote::Transport);
    }
    Err(Refusal::Field)
}
