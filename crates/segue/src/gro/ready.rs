//! Packets and trains ready to be popped, and the header that a train gets when it is popped.

use alloc::boxed::Box;

use super::pending_first::PendingFirst;
use super::profile::Profile;
use super::table::{Held, Slot};
use super::verify;
use crate::checksum::{Field, Sum};
use crate::packet::{Frame, Gso, GsoKind, Kind, LayerCsum, Packet, TrainCsum, Unit};
use crate::wire::{ipv4, ipv6, tcp, udp, write_u16};

/// An entry of the queue of ready packets.
#[derive(Debug)]
pub(super) enum Ready<B> {
    Packet(Box<Packet<B>>),
    First(PendingFirst<B>),
    /// An unparsed frame that stays alone; its UDP ports are not those of a tunnel.
    Frame(Frame<B>),
    /// All flows of a round that a flush ended, by the first of their slots in the table.
    Round(usize),
}

impl<B: AsRef<[u8]>> Ready<B> {
    /// Returns the entry for the content of a slot; a train gets the header of the whole.
    #[inline(always)]
    pub(super) fn of(slot: Slot<B>, profile: Profile) -> Option<Ready<B>> {
        match slot {
            Slot::Free => None,
            Slot::First(first) => Some(Ready::First(first)),
            Slot::Held(held) if held.is_train() => Some(Ready::Packet(seal(held, profile))),
            Slot::Held(held) => Some(Ready::Packet(held.packet)),
        }
    }
}

/// Returns the value of a length field: zero for a train that is too long for it.
fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(0)
}

/// Turns the header of a train's first packet into the header of the train.
#[inline(never)]
fn seal<B: AsRef<[u8]>>(held: Held<B>, profile: Profile) -> Box<Packet<B>> {
    let Held { mut packet, size, ids, .. } = held;
    let total = packet.len();
    let Packet { head, layout, .. } = &mut *packet;
    let (Some(&transport), Some(ip)) = (layout.transport(), layout.inner_ip()) else { return packet };
    let head = head.bytes_mut();
    for header in layout.headers() {
        let len = total - header.start();
        let bytes = &mut head[header.start()..header.end()];
        match header.kind {
            Kind::Ipv4 => {
                write_u16(bytes, ipv4::TOTAL_LEN, length(len));
                write_u16(bytes, ipv4::CHECKSUM, 0);
                let sum = Field::complete(Sum::of(bytes));
                write_u16(bytes, ipv4::CHECKSUM, sum.value());
            }
            Kind::Ipv6 => {
                write_u16(bytes, ipv6::PAYLOAD_LEN, length(len - ipv6::LEN));
            }
            Kind::Udp => {
                write_u16(bytes, udp::LENGTH, length(len));
            }
            _ => {}
        }
    }
    let pseudo = verify::pseudo(head, ip, &transport, total - transport.start());
    let field = transport.start() + if transport.kind == Kind::Tcp { tcp::CHECKSUM } else { udp::CHECKSUM };
    write_u16(head, field, Field::primed(pseudo).value());

    for layer in packet.offload.layers_mut() {
        for csum in [&mut layer.udp, &mut layer.gre] {
            if *csum != LayerCsum::Absent {
                *csum = LayerCsum::Owed;
            }
        }
    }
    let kind = if transport.kind == Kind::Tcp { GsoKind::Tcp } else { GsoKind::Udp };
    let is_cwr = kind == GsoKind::Tcp && packet.head.bytes()[transport.start() + tcp::FLAGS] & tcp::CWR != 0;
    let fixed_ids = ids.fixed | if is_cwr && profile.joins_cwr() { Gso::CWR } else { 0 };
    let csum = if verify::is_owed(&packet) { TrainCsum::Partial } else { TrainCsum::Stale };
    packet.offload.unit = Unit::Train { csum, gso: Gso { kind, size: size as u16, fixed_ids } };
    packet
}
