//! Completion of a single packet in place.

use super::limits::Limits;
use super::refusal::Refusal;
use super::whole;
use crate::packet::{Buffer, Csum, Packet, Remote, Unit};

/// Completes a single packet in place: the transport checksum if it is owed and no remote checksum option leaves it to
/// the far end, then the GRE and outer UDP checksums that are owed. Returns how many bytes of payload were summed.
///
/// The transport checksum is completed from the primed value in the field: a wrong one gives a wrong checksum, never a
/// right one.
///
/// # Errors
/// A [`Refusal`]; the packet is then unchanged.
pub fn finish<B: Buffer>(packet: &mut Packet<B>) -> Result<u64, Refusal> {
    let mut head = packet.head.clone();
    let filled = whole::fill(head.bytes_mut(), packet, &Limits::NONE)?;
    packet.head = head;
    if filled.completed {
        packet.offload.unit = Unit::Whole(Csum::Verified);
    }
    for layer in packet.offload.layers_mut() {
        layer.udp = done(layer.udp);
        if layer.remote != Some(Remote::Gre) {
            layer.gre = done(layer.gre);
        }
    }
    Ok(filled.summed)
}

fn done(csum: crate::packet::LayerCsum) -> crate::packet::LayerCsum {
    use crate::packet::LayerCsum::{Done, Owed};
    if csum == Owed { Done } else { csum }
}
