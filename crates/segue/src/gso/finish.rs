//! Completion of a single packet in place.

use super::limits::Limits;
use super::refusal::Refusal;
use super::whole;
use crate::packet::{Buffer, Csum, Packet, Remote, Unit};

/// Completes a single packet in place: the transport checksum if it is owed and no remote checksum option leaves it to
/// the receiver, then the GRE and outer UDP checksums that are owed. Returns how many bytes of payload were summed.
///
/// The transport checksum is completed from the primed value in the field: a wrong one gives a wrong checksum, never a
/// right one.
///
/// ```
/// use segue::gso;
/// use segue::packet::{Csum, Frag, Packet, Start, Tunnels, Unit};
///
/// // A UDP datagram without payload and without checksum.
/// let bytes = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0];
/// let mut packet = Packet::default();
/// packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
/// gso::request_checksum(&mut packet)?;
/// gso::finish(&mut packet)?;
/// assert_eq!(packet.offload.unit, Unit::Whole(Csum::Verified));
/// # Ok::<(), gso::Refusal>(())
/// ```
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
