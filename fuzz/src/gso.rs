use segue::gso::{Arena, Fragment, Frames, FreeTags, Limits, finish, split, split_linear};
use segue::packet::{Csum, Frag, Gso, GsoKind, Kind, LayerCsum, Packet, Remote, Start, TrainCsum, Tunnels, Unit};
use segue_testkit::fragment::reassemble;
use segue_testkit::oracle::{self, Owed, verify, verify_owed};

use crate::input::Input;
use crate::streams;

/// Runs GSO on an arbitrary frame with arbitrary metadata: it terminates, both forms agree, no payload is lost or
/// changed, limits are kept, a train with good headers yields good packets, and the fragments of a good packet
/// reassemble to it.
pub(crate) fn gso(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let start = if how & 1 == 0 { Start::Ethernet } else { Start::Ip };
    let gso =
        Gso { kind: if how & 2 == 0 { GsoKind::Tcp } else { GsoKind::Udp }, size: input.u16(), fixed_ids: input.u16() };
    let can = input.u8();
    let mut limits = Limits {
        csum: can & 1 != 0,
        outer_csum: can & 2 != 0,
        tso4: can & 4 != 0,
        tso6: can & 8 != 0,
        uso: can & 16 != 0,
        max_bytes: if can & 32 == 0 { 65_535 } else { usize::from(input.u16()) },
        max_segs: if can & 64 == 0 { 65_535 } else { usize::from(input.u8()) },
        max_udp_segs: if can & 64 == 0 { 65_535 } else { usize::from(input.u8()) },
        max_pieces: if can & 128 == 0 { usize::MAX } else { usize::from(input.u8()) },
        ..Limits::NONE
    };
    let states = input.u8();
    if states & 0x40 != 0 {
        limits.mtu = usize::from(input.u16());
        let more = input.u8();
        limits.fragment = match more & 3 {
            0 => Fragment::Never,
            1 => Fragment::Router,
            2 => Fragment::Sender { clears_df: false },
            _ => Fragment::Sender { clears_df: true },
        };
        limits.header_room = usize::from(more >> 2 & 15);
        limits.free_tags = if more & 64 == 0 { FreeTags::None } else { FreeTags::First };
        limits.max_piece = if more & 64 == 0 { usize::MAX } else { usize::from(input.u8()) };
        limits.max_head = if more & 128 == 0 { usize::MAX } else { usize::from(input.u8()) };
    }
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
        // Packets of other protocols are measured from the end of their link headers.
        let link = packet.layout.header_len();
        let l3 = packet.layout.outer_ip().map_or(link, |ip| ip.start());
        let mut whole = arena.head(segment).to_vec();
        let range = segment.payload.start as usize..segment.payload.end as usize;
        let pieces: Vec<u8> = packet.payload.pieces(range).flatten().copied().collect();
        payload.extend_from_slice(&pieces);
        whole.extend(pieces);
        assert_eq!(frames.bytes(frame), whole);
        assert_eq!((frame.csum, frame.gso), (segment.csum, segment.gso));
        assert_eq!(frame.room as usize, limits.header_room);
        let is_padded = packet.layout.is_padded();
        assert!(segment.gso.is_some() || is_padded || whole.len() - l3 <= limits.mtu, "longer than the MTU");
        if let Some(gso) = segment.gso {
            let most = if gso.kind == GsoKind::Tcp { limits.max_segs } else { limits.max_udp_segs };
            assert!(limits.csum && whole.len() <= limits.max_bytes && gso.segs(segment.payload.len()) <= most);
        }
    }
    let is_train = matches!(packet.offload.unit, Unit::Train { .. });
    // Padding is no part of the last fragment.
    let is_cut = !is_train && count.is_ok_and(|count| count > 1);
    let kept = if is_cut && packet.layout.is_padded() { packet.layout.end() - packet.head.len() } else { usize::MAX };
    if count.is_ok() {
        assert!(packet.payload.pieces(0..kept).flatten().eq(&payload), "the payload is what it was");
    }
    let is_plain = start == Start::Ip && packet.layout.ip_levels() == 1 && !claimed;
    if is_cut && is_plain && packet.offload.unit == Unit::Whole(Csum::Unknown) {
        let good = |bytes: &[u8]| verify(bytes, oracle::Start::Ip, &ports).is_ok();
        let all: Vec<Vec<u8>> = frames.frames().iter().map(|frame| frames.bytes(frame).to_vec()).collect();
        // A fragment that is cut again cannot be reassembled, since its beginning or end is missing.
        if good(&bytes) && packet.layout.stop() != segue::packet::Stop::Fragment {
            let together = reassemble(&all).unwrap_or_else(|what| panic!("{what}: {all:02x?}"));
            assert_eq!(together.len(), bytes.len());
            assert!(good(&together), "what is put together is as good");
        }
    }
    if !is_train {
        let _ = finish(&mut packet);
        return;
    }

    // Good headers, no claims about them that they do not make, and a port without offloads must give good packets.
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
