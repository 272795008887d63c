//! The fast path of [`split`](super::split()): a train that passes whole with the headers that it has.

use super::check::{check, pseudo};
use super::limits::{Limits, MAX_IP_LEN, MAX_SEGS, MIN_TCP_SIZE};
use crate::checksum::{Field, Sum};
use crate::packet::{Buffer, Gso, GsoKind, Kind, Packet, Unit};
use crate::wire::{ipv4, ipv6, read_u16, tcp};

/// Returns how the port must cut a train of TCP that it takes whole and whose headers are those of the whole already,
/// as in one that GRO has made. `None` for any other, of which a plan finds out the same in more steps.
pub(super) fn gso_of<B: Buffer>(packet: &Packet<B>, limits: &Limits) -> Option<Gso> {
    let Unit::Train { gso, .. } = packet.offload.unit else { return None };
    let (head, layout, payload) = (packet.head.bytes(), &packet.layout, packet.payload.len());
    let [.., ip, transport] = layout.headers() else { return None };
    let takes = if ip.kind == Kind::Ipv4 { limits.tso4 } else { limits.tso6 };
    let (size, whole) = (usize::from(gso.size), head.len() + payload);
    let is_taken = takes
        && limits.csum
        && payload > size
        && payload <= size.saturating_mul(limits.max_segs.min(MAX_SEGS))
        && payload <= limits.max_piece
        && whole <= limits.max_bytes.min(ip.start() + MAX_IP_LEN)
        && head.len() <= limits.max_head
        && head.len() + size <= limits.mtu
        && packet.payload.frags().len() < limits.max_pieces;
    let is_plain = gso.kind == GsoKind::Tcp
        && gso.size >= MIN_TCP_SIZE
        && !gso.is_cwr_on_all()
        && layout.transport()?.kind == Kind::Tcp
        && layout.ip_levels() == 1
        && packet.offload.layers().is_empty()
        && check(head, layout).is_ok();
    if !is_taken || !is_plain {
        return None;
    }
    let header = head.get(ip.start()..ip.end())?;
    let is_whole = match (ip.kind, header.len()) {
        (Kind::Ipv4, ipv4::MIN_LEN) => {
            usize::from(read_u16(header, ipv4::TOTAL_LEN)?) == whole - ip.start()
                && read_u16(header, ipv4::CHECKSUM) != Some(0xffff)
                && Sum::of(header).fold() == 0xffff
        }
        (Kind::Ipv6, ipv6::LEN) => usize::from(read_u16(header, ipv6::PAYLOAD_LEN)?) == whole - ip.end(),
        _ => false,
    };
    let primed = Field::primed(pseudo(head, ip, Kind::Tcp, whole - transport.start())?).value();
    let is_whole = is_whole && read_u16(head, transport.start() + tcp::CHECKSUM) == Some(primed);
    let flags = *head.get(transport.start() + tcp::FLAGS)?;
    (is_whole && flags & (tcp::SYN | tcp::RST) == 0).then_some(gso)
}
