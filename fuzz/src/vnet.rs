use segue::gso::{Arena, Frames, Limits, SegmentCsum, split, split_linear};
use segue::packet::{Csum, Frag, Packet, Pool, Start, TrainCsum, Tunnels, Unit};
use segue::virtio::{
    self, Form, GSO_NONE, GSO_UDP_TUNNEL_IPV4, GSO_UDP_TUNNEL_IPV6, Loaded, Place, SctpPlace, State,
    TAP_TUNNEL_OFFLOADS, TUN_OFFLOADS, VirtioNet, describe, describe_frame, device,
};
use segue_testkit::sum;

use crate::resources::bounded_with;

/// Length of the longest form, bytes.
const LONGEST: usize = 24;
/// Number of bytes that a packet and its segments may hold in addition to those of the input.
const FREE: usize = 256 << 10;
/// Length of the ranges in which a packet is loaded once more, bytes: headers cross them.
const PIECE: usize = 23;
/// Features of a guest that takes no UDP trains.
const GUEST: u64 = 1 << device::GUEST_CSUM | 1 << device::GUEST_TSO4 | 1 << device::GUEST_TSO6;

/// Runs the virtio-net header codec on the front of the input, and loads what is behind it as the packet of that header
/// in each of the forms, at an IP and at an Ethernet header: a header that is read and written again keeps every
/// meaningful byte, too few bytes are refused, every way to load a packet gives the same one, and a packet that is
/// accepted can be sent to each kind of port, from which it is accepted again.
pub fn vnet(data: &[u8]) {
    bounded_with(data.len(), FREE, || {
        let mut headers = 0;
        for form in (0..=LONGEST).filter_map(Form::of_len) {
            assert!(!form.is_empty());
            let Some(header) = VirtioNet::parse(data, form) else {
                assert!(data.len() < form.len());
                continue;
            };
            let bytes = header.emit(form);
            // Two bytes behind the kind of the hash have no meaning.
            for field in [0..10, 10..12, 12..18, 20..LONGEST] {
                if field.end <= form.len() {
                    assert_eq!(bytes[field.clone()], data[field]);
                }
            }
            assert_eq!(VirtioNet::parse(&bytes, form), Some(header));
            let native = VirtioNet::parse_native(data, form).expect("as many bytes as before");
            assert_eq!(native.emit_native(form), bytes);
            for start in [Start::Ip, Start::Ethernet] {
                headers += received(&header, &data[form.len()..], start);
            }
        }
        headers
    });
}

/// Returns all bytes of a packet.
fn whole(packet: &Packet<Vec<u8>>) -> Vec<u8> {
    let payload = packet.payload.pieces(0..usize::MAX).flatten();
    packet.head.bytes().iter().chain(payload).copied().collect()
}

/// Loads `bytes` with `header` in every way, and sends what was accepted. Returns the number of bytes of the headers
/// that this has made.
fn received(header: &VirtioNet, bytes: &[u8], start: Start) -> usize {
    let (mut packet, mut ranges, mut plain) = (Packet::default(), Packet::default(), Packet::default());
    let loaded = virtio::load(header, Frag::all(bytes.to_vec()), start, &mut packet);
    let pieces = bytes.chunks(PIECE).map(|piece| Frag::all(piece.to_vec()));
    assert_eq!(virtio::load_ranges(header, pieces, start, &mut ranges), loaded, "in ranges");
    if bytes.is_empty() {
        assert_eq!(loaded, Err(virtio::Refusal::Short));
        return 0;
    }
    plain.load(Frag::all(bytes.to_vec()), start, &Tunnels::NONE);
    match virtio::check(header, &plain) {
        Ok(State::Unit(unit)) => assert_eq!((loaded, packet.offload.unit), (Ok(Loaded::Ready), unit)),
        Ok(State::Owed(place)) => assert_eq!(loaded, Ok(Loaded::Owed(place))),
        Ok(State::OwedSctp(place)) => assert_eq!(loaded, Ok(Loaded::OwedSctp(place))),
        // A train in a tunnel is for `load` alone.
        Err(why) => assert!(loaded == Err(why) || header.gso_type != GSO_NONE && loaded == Ok(Loaded::Ready)),
    }
    match virtio::frame(header, Frag::all(bytes.to_vec()), start) {
        Ok(frame) => {
            let parsed = frame.parse(&Tunnels::NONE, &mut Pool::new(1));
            assert_eq!((loaded, packet.offload), (Ok(Loaded::Ready), parsed.offload));
            assert_eq!(packet.layout, parsed.layout);
        }
        Err(back) => assert_eq!(back.as_slice(), Some(bytes)),
    }
    match loaded {
        Err(_) => 0,
        Ok(Loaded::Owed(place)) => {
            completed(place, bytes, start);
            0
        }
        Ok(Loaded::OwedSctp(place)) => {
            completed_sctp(place, bytes, start);
            0
        }
        Ok(Loaded::Ready) => {
            assert_eq!((packet.layout, packet.offload), (ranges.layout, ranges.offload));
            assert!(whole(&packet) == bytes && whole(&ranges) == bytes, "the bytes are what they were");
            let tap = Limits::tun(TUN_OFFLOADS[0] | TAP_TUNNEL_OFFLOADS);
            let limits = [tap, Limits::tun(TUN_OFFLOADS[2]), Limits::guest(GUEST, 1500), Limits::plain()];
            limits.iter().map(|limits| sent(&packet, limits, start)).sum()
        }
    }
}

/// Completes the owed checksum at `place`: two bytes inside the packet change, to the sum of all from its start to the
/// end, and the packet needs nothing more.
fn completed(place: Place, bytes: &[u8], start: Start) {
    assert!(place.start <= place.field && place.field + 2 <= bytes.len());
    let mut filled = bytes.to_vec();
    place.fill(&mut filled);
    let value = match !sum::fold(&bytes[place.start..]) {
        0 => u16::MAX,
        value => value,
    };
    let mut expected = bytes.to_vec();
    expected[place.field..][..2].copy_from_slice(&value.to_be_bytes());
    assert_eq!(filled, expected);
    let loaded = virtio::load(&VirtioNet::default(), Frag::all(filled), start, &mut Packet::default());
    assert_eq!(loaded, Ok(Loaded::Ready));
}

/// Completes the checksum of the SCTP packet at `place`: only its four bytes change, and the packet needs nothing more.
fn completed_sctp(place: SctpPlace, bytes: &[u8], start: Start) {
    assert!(place.field() + 4 <= place.end && place.end <= bytes.len());
    let mut filled = bytes.to_vec();
    place.fill(&mut filled);
    let field = place.field()..place.field() + 4;
    assert_eq!((&filled[..field.start], &filled[field.end..]), (&bytes[..field.start], &bytes[field.end..]));
    let loaded = virtio::load(&VirtioNet::default(), Frag::all(filled), start, &mut Packet::default());
    assert_eq!(loaded, Ok(Loaded::Ready));
}

/// Splits a packet for a port with `limits`, and receives each segment with the header that describes it: it is what
/// was sent. Returns the number of bytes of the headers of the segments.
fn sent(packet: &Packet<Vec<u8>>, limits: &Limits, start: Start) -> usize {
    let (mut arena, mut frames) = (Arena::new(), Frames::new());
    let count = split(packet, limits, &mut arena);
    assert_eq!(split_linear(packet, limits, &mut frames), count);
    let mut headers = 0;
    for (segment, frame) in arena.segments().iter().zip(frames.frames()) {
        let head = arena.head(segment);
        headers += 2 * head.len();
        let header = describe(segment, head, &packet.layout).expect("a segment can be described");
        let bytes = frames.bytes(frame);
        assert_eq!(describe_frame(frame, bytes, &packet.layout), Some(header));
        let is_tunnel = header.gso_type & (GSO_UDP_TUNNEL_IPV4 | GSO_UDP_TUNNEL_IPV6) != 0;
        assert!(!is_tunnel || limits.udp_tunnel, "a train in a tunnel for a port that takes none");
        let form = if is_tunnel { Form::Tunnel } else { Form::Basic };
        let header = VirtioNet::parse(&header.emit(form), form).expect("a whole header");
        let mut again = Packet::default();
        let loaded = virtio::load(&header, Frag::all(bytes.to_vec()), start, &mut again);
        let unit = again.offload.unit;
        match (segment.gso, segment.csum) {
            (Some(gso), _) => {
                let train = Unit::Train { csum: TrainCsum::Partial, gso };
                assert_eq!((loaded, unit), (Ok(Loaded::Ready), train), "{header:?} {bytes:02x?}");
            }
            (None, SegmentCsum::Partial) => match loaded {
                Ok(Loaded::Ready) => assert_eq!(unit, Unit::Whole(Csum::Partial)),
                // The checksum lies in a tunnel that is not looked into, or in front of padding.
                Ok(Loaded::Owed(place)) => assert_eq!(place.start, usize::from(header.csum_start)),
                Ok(Loaded::OwedSctp(place)) => panic!("{place:?}: {header:?} {bytes:02x?}"),
                Err(why) => panic!("{why:?}: {header:?} {bytes:02x?}"),
            },
            (None, SegmentCsum::Verified | SegmentCsum::AsIs) => {
                assert_eq!(loaded, Ok(Loaded::Ready), "{header:?} {bytes:02x?}");
            }
        }
    }
    headers
}
