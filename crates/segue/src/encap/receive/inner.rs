//! The inner packet of a datagram.

use super::decapsulator::Decapsulator;
use super::headers::TunnelHeaders;
use super::refusal::DecapRefusal;
use crate::checksum::{Field, Sum};
use crate::encap::inner::Inner;
use crate::packet::{Csum, Gso, GsoKind, Head, Kind, Layout, Start, TrainCsum, Tunnels, Unit};
use crate::wire::{ethernet, ipv4, read_u16, write_u16};

impl Decapsulator {
    /// Returns the state of a packet whose transport checksum this host's kernel left unfinished: a single packet, or
    /// several that the kernel joined without stating their size, which are segmented to the inner MTU.
    pub(super) fn unfinished_offload(&self, layout: &Layout, is_train: bool, l3: usize) -> Unit {
        let (Some(most), Some(transport), true) = (self.config.unfinished, layout.transport(), is_train) else {
            return Unit::Whole(Csum::Partial);
        };
        let headers = layout.header_len() - l3;
        let kind = if transport.kind == Kind::Tcp { GsoKind::Tcp } else { GsoKind::Udp };
        match u16::try_from(usize::from(most).saturating_sub(headers)) {
            // Datagrams can be cut only where they were joined, which is unknown.
            Ok(size) if size > 0 && kind == GsoKind::Tcp => {
                Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind, size, fixed_ids: 0 } }
            }
            _ => Unit::Whole(Csum::Partial),
        }
    }

    /// Parses the inner packet, which begins with the first byte of `rest`.
    pub(super) fn inner(&self, rest: &[u8], tunnel: &TunnelHeaders) -> Result<InnerPacket, DecapRefusal> {
        if self.config.mode.is_ethernet() {
            let layout = crate::wire::parse(rest, Start::Ethernet, &Tunnels::NONE);
            let source = rest.get(ethernet::SRC).filter(|_| layout.header_len() >= ethernet::LEN);
            let source = source.and_then(|mac| mac.first_chunk()).ok_or(DecapRefusal::InnerMalformed)?;
            if !ethernet::is_station(*source) {
                return Err(DecapRefusal::InnerSource);
            }
            let l3 = layout.outer_ip().map(|ip| ip.start());
            let tos = l3.and_then(|l3| Inner::read(rest.get(l3..)?)).map(|inner| inner.tos);
            return Ok(InnerPacket { layout, len: rest.len(), l3: l3.unwrap_or(0), tos });
        }
        let inner = Inner::read(rest).ok_or(DecapRefusal::InnerMalformed)?;
        let packet = rest.get(..inner.total_len).ok_or(DecapRefusal::InnerMalformed)?;
        let layout = crate::wire::parse(packet, Start::Ip, &Tunnels::NONE);
        if layout.headers().is_empty() {
            return Err(DecapRefusal::InnerMalformed);
        }
        if !self.config.mode.takes(inner.version) || tunnel.version != inner.version {
            return Err(DecapRefusal::InnerVersion);
        }
        if inner.source_is_martian() {
            return Err(DecapRefusal::InnerSource);
        }
        Ok(InnerPacket { layout, len: inner.total_len, l3: 0, tos: Some(inner.tos) })
    }
}

/// The offset and the layout of an inner packet.
pub(super) struct InnerPacket {
    pub(super) layout: Layout,
    /// Length in bytes, padding of a frame included.
    pub(super) len: usize,
    /// Offset of the inner IP header; 0 if there is none.
    pub(super) l3: usize,
    /// DSCP and ECN byte of the inner IP header, if there is one.
    pub(super) tos: Option<u8>,
}

/// Changes the DSCP and ECN byte of the IP header at `l3`. A wrong header checksum stays wrong; `sum` is updated.
pub(in crate::encap) fn set_tos(head: &mut Head, l3: usize, tos: u8, sum: &mut Option<Sum>) {
    let Some(bytes) = head.bytes_mut().get_mut(l3..) else { return };
    let Some(&old) = bytes.first_chunk::<2>() else { return };
    let version = old[0] >> 4;
    let new = match version {
        4 => [old[0], tos],
        _ => [old[0] & 0xf0 | tos >> 4, tos << 4 | old[1] & 0x0f],
    };
    bytes[..2].copy_from_slice(&new);
    if version == 4 {
        // The change of the checksum offsets that of the byte: the sum stays the same.
        let field = read_u16(bytes, ipv4::CHECKSUM).map_or(0, |field| {
            Field::from_wire(field).update(u16::from_be_bytes(old), u16::from_be_bytes(new)).value()
        });
        write_u16(bytes, ipv4::CHECKSUM, field);
    } else if let Some(sum) = sum {
        sum.remove(Sum::of(&old));
        // Removing the complement adds the value, at an even offset whatever the sum's parity.
        sum.remove(Sum::of(&new.map(|byte| !byte)));
    }
}
