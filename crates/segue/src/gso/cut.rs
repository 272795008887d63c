//! Segmentation of a train into packets, for a consumer that accepts no trains.

use alloc::boxed::Box;

use super::arena::Arena;
use super::limits::Limits;
use super::refusal::Refusal;
use super::split::split;
use crate::packet::{Buffer, Csum, Frag, LayerCsum, Packet, Pool, Remote, Unit};

/// Segments `train` into single packets and passes them to `each`, in order, with the pool for returned boxes. Returns
/// the number of packets. Payload is not copied, and summed only if checksums inside a tunnel cover bytes that the far
/// end completes: transport checksums and the outermost UDP checksum stay owed. `arena` is cleared first; it is scratch
/// memory.
///
/// The packets are those that [`split()`] makes: cutting first and splitting for a port afterwards gives the bytes that
/// splitting the train for that port would have given.
///
/// ```
/// use segue::gso::{Arena, cut};
/// use segue::packet::Pool;
/// # use segue::packet::{Frag, Gso, GsoKind, Packet, Start, TrainCsum, Tunnels, Unit};
/// # let mut bytes = vec![0x45, 0, 1, 72, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
/// # bytes.extend([0, 1, 0, 2, 1, 52, 0, 0]);
/// # bytes.resize(328, 7);
/// # let mut train = Packet::default();
/// # train.load(Frag::all(&bytes[..]), Start::Ip, &Tunnels::NONE);
/// # let gso = Gso { kind: GsoKind::Udp, size: 100, fixed_ids: 0 };
/// # train.offload.unit = Unit::Train { csum: TrainCsum::Partial, gso };
/// # segue::gso::request_checksum(&mut train)?;
/// let (mut arena, mut pool, mut lens) = (Arena::new(), Pool::new(8), Vec::new());
/// cut(&train, &mut arena, &mut pool, |packet, pool| {
///     lens.push(packet.len()); // each owes its checksum, and shares the payload
///     pool.put(packet);
/// })?;
/// assert_eq!(lens, [128, 128, 128]);
/// # Ok::<(), segue::gso::Refusal>(())
/// ```
///
/// # Errors
/// A [`Refusal`], also for a single packet; nothing was passed to `each` then.
pub fn cut<B: Buffer + Clone>(
    train: &Packet<B>,
    arena: &mut Arena,
    pool: &mut Pool<B>,
    mut each: impl FnMut(Box<Packet<B>>, &mut Pool<B>),
) -> Result<usize, Refusal> {
    if matches!(train.offload.unit, Unit::Whole(_)) {
        return Err(Refusal::Train);
    }
    arena.clear();
    split(train, &Limits { csum: true, outer_csum: true, ..Limits::NONE }, arena)?;
    let mut offload = train.offload;
    // This holds under a remote checksum option too, where the field is primed for the far end.
    offload.unit = Unit::Whole(Csum::Partial);
    for (level, layer) in offload.layers_mut().iter_mut().enumerate() {
        if layer.udp != LayerCsum::Absent {
            // The outermost one may be left to a port that computes it.
            layer.udp = if level == 0 { LayerCsum::Owed } else { LayerCsum::Done };
        }
        if layer.gre != LayerCsum::Absent && layer.remote != Some(Remote::Gre) {
            layer.gre = LayerCsum::Done;
        }
    }
    // Index of the payload range in which the next segment begins, and how many of its bytes are used.
    let (mut index, mut gone) = (0, 0);
    for segment in arena.segments() {
        let mut packet = pool.take();
        packet.head.set(arena.head(segment));
        let mut left = (segment.payload.end - segment.payload.start) as usize;
        while left > 0
            && let Some(frag) = train.payload.frags().get(index)
        {
            let piece: Frag<B> = frag.clone().skip(gone).first(left);
            left -= piece.len();
            gone += piece.len();
            if gone == frag.len() {
                (index, gone) = (index + 1, 0);
            }
            packet.payload.push(piece);
        }
        packet.layout = train.layout;
        packet.layout.set_end(packet.len());
        packet.offload = offload;
        packet.outer = train.outer;
        each(packet, pool);
    }
    Ok(arena.segments().len())
}
