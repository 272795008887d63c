use segue::gso::{Arena, Frames, Limits, finish, split, split_linear};
use segue::packet::{Csum, Frag, Gso, GsoKind, Kind, LayerCsum, Packet, Remote, Start, TrainCsum, Tunnels, Unit};
use segue_testkit::oracle::{self, Owed, verify, verify_owed};

use crate::input::Input;
use crate::streams;

/// GSO on an arbitrary frame with arbitrary metadata: it ends, both forms agree, no payload is lost or changed, limits are
/// kept, and a train with good headers gives good packets.
pub fn gso(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let start = if how & 1 == 0 { Start::Ethernet } else { Start::Ip };
    let gso =
        Gso { kind: if how & 2 == 0 { GsoKind::Tcp } else { GsoKind::Udp }, size: input.u16(), fixed_ids: input.u16() };
    let can = input.u8();
    let limits = Limits {
        csum: can & 1 != 0,
        outer_csum: can & 2 != 0,
        tso4: can & 4 != 0,
        tso6: can & 8 != 0,
        uso: can & 16 != 0,
        max_bytes: if can & 32 == 0 { 65_535 } else { usize::from(input.u16()) },
        max_segs: if can & 64 == 0 { 65_535 } else { usize::from(input.u8()) },
        max_udp_segs: if can & 64 == 0 { 65_535 } else { usize::from(input.u8()) },
        max_pieces: if can & 128 == 0 { usize::MAX } else { usize::from(input.u8()) },
    };
    let states = input.u8();
    let bytes = input.rest().to_vec();
    let ports = streams::ports();
    let tunnels = ports.gue.iter().fold(Tunnels::NONE, |tunnels, &port| tunnels.with_gue(port));
    let tunnels = ports.vxlan.iter().fold(tunnels, |tunnels, &port| tunnels.with(port, Kind::Vxlan));
    let tunnels = ports.geneve.iter().fold(tunnels, |tunnels, &port| tunnels.with(port, Kind::Geneve));
    let tunnels = ports.fou.iter().fold(tunnels, |tunnels, &(port, protocol)| tunnels.with_fou(port, protocol));

    let mut packet = Packet::default();
    packet.load(Frag::all(bytes.clone()), start, &tunnels);
    packet.offload.unit = match how >> 2 & 7 {
        0 => Unit::Whole(Csum::Partial),
        1 => Unit::Whole(Csum::Verified),
        2 => Unit::Whole(Csum::Unknown),
        3 => Unit::Train { csum: TrainCsum::Stale, gso },
        _ => Unit::Train { csum: TrainCsum::Partial, gso },
    };
    let claimed = states & 0x80 != 0;
    if claimed {
        let state =
            |bits: u8| [LayerCsum::Absent, LayerCsum::Unknown, LayerCsum::Done, LayerCsum::Owed][usize::from(bits & 3)];
        for layer in packet.offload.layers_mut() {
            (layer.udp, layer.gre) = (state(states), state(states >> 2));
            layer.remote = [None, Some(Remote::Transport), Some(Remote::Gre), None][usize::from(states >> 4 & 3)];
        }
    }

    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let count = split(&packet, &limits, &mut arena);
    assert_eq!(split_linear(&packet, &limits, &mut frames), count, "the two forms agree");
    assert_eq!(arena.segments().len(), count.unwrap_or(0));
    assert_eq!(frames.frames().len(), count.unwrap_or(0));
    let mut payload = Vec::new();
    for (segment, frame) in arena.segments().iter().zip(frames.frames()) {
        let mut whole = arena.head(segment).to_vec();
        let range = segment.payload.start as usize..segment.payload.end as usize;
        let pieces: Vec<u8> = packet.payload.pieces(range).flatten().copied().collect();
        payload.extend_from_slice(&pieces);
        whole.extend(pieces);
        assert_eq!(frames.bytes(frame), whole);
        assert_eq!((frame.csum, frame.gso), (segment.csum, segment.gso));
        if let Some(gso) = segment.gso {
            let most = if gso.kind == GsoKind::Tcp { limits.max_segs } else { limits.max_udp_segs };
            assert!(limits.csum && whole.len() <= limits.max_bytes && gso.segs(segment.payload.len()) <= most);
        }
    }
    if count.is_ok() {
        assert!(packet.payload.pieces(0..packet.payload.len()).flatten().eq(&payload), "the payload is what it was");
    }
    let is_train = matches!(packet.offload.unit, Unit::Train { .. });
    if !is_train {
        let _ = finish(&mut packet);
        return;
    }

    // Good headers, nothing claimed about them that they do not say, and a port that does nothing: good packets.
    let from = if start == Start::Ip { oracle::Start::Ip } else { oracle::Start::Ethernet };
    let is_exact = packet.layout.is_exact();
    let is_udp_without = packet.layout.transport().is_some_and(|h| {
        h.kind == Kind::Udp && {
            let at = h.start() + 6;
            bytes[at..at + 2] == [0, 0]
        }
    });
    if claimed
        || !is_exact
        || is_udp_without
        || limits.csum
        || limits.outer_csum
        || verify(&bytes, from, &ports).is_err()
    {
        return;
    }
    for frame in frames.frames() {
        if let Err(what) = verify_owed(frames.bytes(frame), from, &ports, Owed::default()) {
            panic!("a segment is wrong: {what}: {:02x?}", frames.bytes(frame));
        }
    }
}
