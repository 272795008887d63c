use segue::gso::{
    Arena, Fragment, Frames, FreeTags, Limits, Refusal, cut, fill, finish, prime, request_checksum, split, split_linear,
};
use segue::packet::{Csum, Frag, Gso, GsoKind, Kind, LayerCsum, Packet, Pool, Remote, Start, TrainCsum, Tunnels, Unit};
use segue::virtio::{self, describe};
use segue::wire::tcp;
use segue_testkit::fragment::reassemble;
use segue_testkit::oracle::{self, Owed, verify, verify_owed};

use crate::input::Input;
use crate::resources::bounded_with;
use crate::streams;

/// Number of bytes that both forms may hold for the shortest frame.
const FREE: usize = 256 << 10;

/// Length of the pieces in which a packet lies if it does not lie in one.
const PIECE: usize = 300;

/// Runs GSO on an arbitrary frame with arbitrary metadata: it terminates, both forms agree, no payload is lost or
/// changed, limits are kept, a train with good headers yields good packets, also one that is cut first, and the
/// fragments of a good packet reassemble to it.
///
/// The first byte says where the frame begins (bit 0: with IP), the protocol of the train (bit 1: UDP), what it is
/// (bits 2 to 4), whether it lies in several pieces (bit 5), and whether the port takes no trains with CWR (bit 7).
pub fn gso(data: &[u8]) {
    bounded_with(data.len(), FREE, || split_up(data));
}

/// Runs the target, and returns the number of bytes of the headers that the input asked for: each byte of payload may
/// become a segment with headers of its own, in both forms.
fn split_up(data: &[u8]) -> usize {
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
        ecn: how & 128 == 0,
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
        (limits.udp_tunnel, limits.udp_tunnel_csum) = (more & 4 != 0, more & 8 != 0);
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
    if how & 32 == 0 {
        packet.load(Frag::all(bytes.clone()), start, &tunnels);
    } else {
        packet.load_ranges(bytes.chunks(PIECE).map(|piece| Frag::all(piece.to_vec())), start, &tunnels);
    }
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

    requested(&bytes, start);
    let (mut arena, mut frames) = (Arena::default(), Frames::default());
    let count = split(&packet, &limits, &mut arena);
    assert_eq!(split_linear(&packet, &limits, &mut frames), count, "the two forms agree");
    assert_eq!(arena.segments().len(), count.unwrap_or(0));
    assert_eq!(frames.frames().len(), count.unwrap_or(0));
    let heads: usize = arena.segments().iter().map(|segment| arena.head(segment).len()).sum();
    let headers = 2 * heads;
    let mut payload = Vec::new();
    for (segment, frame) in arena.segments().iter().zip(frames.frames()) {
        // Packets of other protocols are measured from the end of their link headers.
        let link = packet.layout.header_len();
        let l3 = packet.layout.outer_ip().map_or(link, |ip| ip.start());
        let mut whole = arena.head(segment).to_vec();
        let pieces: Vec<u8> = segment.pieces(&packet).flatten().copied().collect();
        assert_eq!(pieces.len(), segment.payload_len());
        payload.extend_from_slice(&pieces);
        whole.extend(pieces);
        assert_eq!(frames.bytes(frame), whole);
        assert_eq!((frame.csum, frame.gso), (segment.csum, segment.gso));
        assert_eq!(frame.room as usize, limits.header_room);
        let is_padded = packet.layout.is_padded();
        assert!(segment.gso.is_some() || is_padded || whole.len() - l3 <= limits.mtu, "longer than the MTU");
        if let Some(gso) = segment.gso {
            let most = if gso.kind == GsoKind::Tcp { limits.max_segs } else { limits.max_udp_segs };
            if gso.kind == GsoKind::Tcp && !limits.ecn {
                let at = packet.layout.transport().expect("a train has a transport").start() + tcp::FLAGS;
                assert_eq!(arena.head(segment)[at] & tcp::CWR, 0, "a train with CWR is cut for such a port");
            }
            assert!(limits.csum && whole.len() <= limits.max_bytes && gso.segs(segment.payload.len()) <= most);
            let header = describe(segment, arena.head(segment), &packet.layout).expect("a train has a transport");
            let types = virtio::GSO_UDP_TUNNEL_IPV4 | virtio::GSO_UDP_TUNNEL_IPV6;
            let is_tunnel = header.gso_type & types != 0;
            assert_eq!(is_tunnel, packet.layout.ip_levels() == 2, "a train in a tunnel is described as one");
            assert!(!is_tunnel || limits.udp_tunnel, "such trains are only for a port that takes them");
        }
    }
    if count.is_ok() {
        assert_eq!(arena.take_checksummed(), frames.take_checksummed(), "both forms sum the same bytes");
    }
    for number in 0..frames.frames().len() {
        let frame = frames.frames()[number].clone();
        assert_eq!(frames.room_in_front(&frame).len(), limits.header_room);
    }
    arena.clear();
    assert_eq!((arena.segments().len(), arena.push_frame(bytes.len(), true)), (0, Ok(())));
    assert_eq!(arena.segments()[0].payload_len(), bytes.len());
    drop(arena);
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
        return headers;
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
        return headers;
    }
    for frame in frames.frames() {
        if let Err(what) = verify_owed(frames.bytes(frame), from, &ports, Owed::default()) {
            panic!("a segment is wrong: {what}: {:02x?}", frames.bytes(frame));
        }
    }
    frames.clear();
    if split_linear(&packet, &Limits::NONE, &mut frames).is_ok() {
        cut_first(&packet, &bytes, start, &tunnels, &frames);
    }
    headers
}

/// Cuts a good train first, and completes its packets afterwards: they are those of `frames`, which it gives at once.
fn cut_first(packet: &Packet<Vec<u8>>, bytes: &[u8], start: Start, tunnels: &Tunnels, frames: &Frames) {
    let mut train = Packet::default();
    train.load(Frag::all(bytes), start, tunnels);
    train.offload = packet.offload;
    let (mut arena, mut pool, mut late, mut next) = (Arena::new(), Pool::new(1), Frames::new(), 0);
    let count = cut(&train, &mut arena, &mut pool, |one, pool| {
        late.clear();
        assert_eq!(split_linear(&one, &Limits::NONE, &mut late), Ok(1));
        let (early, late) = (frames.bytes(&frames.frames()[next]), late.bytes(&late.frames()[0]));
        assert_eq!(early, late, "packet {next} differs");
        next += 1;
        pool.put(one);
    });
    assert_eq!((count, next), (Ok(frames.frames().len()), frames.frames().len()));
}

/// Requests the checksum of a packet, and completes it later: it is that which is computed at once. A device would sum
/// what is behind a datagram, too, so that one with bytes there is refused.
fn requested(bytes: &[u8], start: Start) {
    let (mut filled, mut primed) = (bytes.to_vec(), bytes.to_vec());
    let (computed, outcome) = (fill(&mut filled, start), prime(&mut primed, start));
    let mut packet = Packet::default();
    packet.load(Frag::all(bytes), start, &Tunnels::NONE);
    assert_eq!(request_checksum(&mut packet), outcome);
    assert!(computed == outcome || computed.is_ok() && outcome == Err(Refusal::Trailing), "{computed:?} {outcome:?}");
    assert!(computed.is_ok() || filled == bytes, "refused, and changed");
    if outcome.is_err() {
        assert!(primed == bytes && packet.head.bytes() == &bytes[..packet.head.len()], "refused, and changed");
        return;
    }
    assert_eq!(packet.head.bytes(), &primed[..packet.head.len()]);
    // A jumbogram's length fields say nothing.
    let is_sized = packet.layout.is_exact() && bytes.len() <= usize::from(u16::MAX);
    if is_sized && finish(&mut packet).is_ok() {
        assert_eq!(packet.offload.unit, Unit::Whole(Csum::Verified));
        assert_eq!(packet.head.bytes(), &filled[..packet.head.len()]);
    }
}
