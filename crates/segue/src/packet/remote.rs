//! Which checksum a remote checksum option means.
//!
//! The option carries two numbers from outside that end in a two-byte write. They are accepted only where they name the
//! checksum field of a header that the parser found: the innermost TCP or UDP header with the sum starting at that
//! header, or the checksum of the GRE header that follows the tunnel header, with the sum starting at it.

use super::head::Head;
use crate::wire::parse::{Kind, Layout};
use crate::wire::{Remcsum, gre, read_u16, tcp, udp};

crate::reasons! {
    /// Why a remote checksum option is not believed.
    pub enum Refusal {
        Order = "remcsum_order": "The field lies before the start of the sum, or at an odd distance from it.",
        Bounds = "remcsum_bounds": "The start or the field lies past the payload.",
        Field = "remcsum_field": "The place is not the checksum field of a header in this payload.",
    }
}

/// Whose checksum the far end is to finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// That of the innermost transport header, which is primed.
    Transport,
    /// That of the GRE header, which holds zero.
    Gre,
}

/// Place of the checksum field in a transport header, counted from its start: 16 for TCP, 6 for UDP.
pub const fn field_offset(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Tcp => Some(tcp::CHECKSUM),
        Kind::Udp => Some(udp::CHECKSUM),
        _ => None,
    }
}

/// The option that a sender must put into the tunnel header at `index` for `remote`: places counted from its end.
pub fn place(layout: &Layout, index: usize, remote: Remote) -> Option<Remcsum> {
    let base = layout.headers().get(index)?.end();
    let (start, offset) = match remote {
        Remote::Gre => (base, gre::CHECKSUM),
        Remote::Transport => {
            let transport = layout.transport()?;
            (transport.start(), field_offset(transport.kind)?)
        }
    };
    let start = start.checked_sub(base)?;
    Some(Remcsum { start: u16::try_from(start).ok()?, offset: u16::try_from(start + offset).ok()? })
}

/// Takes the option out of the header in `bytes`, where it has one; nothing moves.
pub fn withdraw(bytes: &mut [u8], kind: Kind) {
    if let Some(withdraw) = kind.format().and_then(|format| format.withdraw) {
        withdraw(bytes);
    }
}

/// The option of the tunnel header at `index` of the layout, where it has one, and what it means.
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
