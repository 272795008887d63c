//! Tests of the padding of short frames, and of the sums that ports know.

use segue::checksum::Sum;
use segue::gro::{Gro, Profile, RefusalReason};
use segue::packet::{Csum, Frag, Packet, Pool, Start, TrainCsum, Tunnels, Unit};
use segue::time::Nanos;
use segue_testkit::Rng;
use segue_testkit::build::Ethernet;

use crate::bench::{Stream, every, frames, run, tcp4, tcp6, udp4};

const TRIMMING: [Profile; 2] = [Profile::linux(), Profile::Lro];

/// Returns frames with payloads of `lens`, each padded with `fill` to 60 bytes and `more`.
fn padded(lens: &[usize], fill: u8, more: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut sender = tcp4();
    let bare = frames(&Ethernet::default(), lens.iter().map(|&len| sender.send(len, 0).bytes()));
    let long = bare.iter().map(|frame| {
        let mut frame = frame.clone();
        frame.resize(frame.len().max(60) + more, fill);
        frame
    });
    (long.collect(), bare)
}

#[test]
fn padding_of_any_content_is_cut_off_before_frames_join() {
    for profile in TRIMMING {
        for (fill, more) in [(0, 0), (0xff, 0), (0x37, 1), (0, 18)] {
            let (long, bare) = padded(&[4, 4, 4, 1], fill, more);
            let (outcome, left) = Stream::new(long).ethernet().profile(profile).run_unchecked();
            assert_eq!((outcome.sizes, outcome.stats.trimmed), (vec![4], 4));
            if profile != Profile::Lro {
                assert_eq!(left, bare);
            }
            assert_eq!(outcome.trains[0].payload.len(), 13, "no padding in the stream");
        }
    }
}

#[test]
fn strict_refuses_padding_and_gives_it_back() {
    let (long, _) = padded(&[4, 4, 1], 0x37, 0);
    let stream = Stream::new(long).ethernet();
    assert_eq!(stream.gives(&[1, 1, 1]).stats.alone.of(RefusalReason::Padding), 3);
}

#[test]
fn what_is_refused_keeps_its_padding() {
    for profile in TRIMMING {
        let (mut long, _) = padded(&[4, 4, 4], 0x37, 0);
        // A wrong header checksum.
        long[1][24] ^= 1;
        let (outcome, left) = Stream::new(long.clone()).ethernet().profile(profile).run_unchecked();
        assert_eq!((outcome.stats.alone.of(RefusalReason::IpChecksum), outcome.stats.trimmed), (1, 0));
        assert_eq!(left, long, "nothing was joined");
    }
}

#[test]
fn what_is_joined_to_nothing_leaves_with_its_padding() {
    for profile in TRIMMING {
        for acks in [false, true] {
            for (lens, what) in [(&[1][..], "alone"), (&[0], "an acknowledgment"), (&[4, 1], "of two flows")] {
                let (mut long, _) = padded(lens, 0x37, 3);
                // The second frame is of another flow, or missing; the others of the first flow then join.
                if let Some(second) = long.get_mut(1) {
                    // Another port, and the checksum for it.
                    (second[35], second[51]) = (second[35] ^ 1, second[51] ^ 1);
                }
                let stream = Stream::new(long.clone()).ethernet().profile(profile).config(|c| c.acks = acks);
                let (outcome, left) = stream.run_unchecked();
                assert_eq!((left, outcome.stats.trimmed), (long, 0), "{profile:?} {what}");
            }
        }
    }
}

#[test]
fn padding_inside_a_tunnel_is_refused() {
    // A UDP length shorter than the IP packet is no link padding.
    let mut packets = run(&mut udp4(), 1);
    packets[0][25] -= 4;
    let stream = Stream::new(packets);
    for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
        assert_eq!(stream.clone().profile(profile).gives(&[1]).stats.alone.of(RefusalReason::Padding), 1);
    }
}

#[test]
fn padding_without_payload_is_an_acknowledgment_and_no_data() {
    let (long, _) = padded(&[0, 0], 0x37, 0);
    let outcome = Stream::new(long).ethernet().linux().gives(&[1, 1]);
    assert_eq!(outcome.stats.alone.of(RefusalReason::NoPayload), 2);
}

#[test]
fn padding_that_crosses_ranges_is_cut_off() {
    let (long, bare) = padded(&[4, 4, 3], 0x91, 0);
    // Every way to cut a frame in two, headers included, and some ways to cut it in many.
    for at in 1..60 {
        for step in [60, 1, 7] {
            for profile in TRIMMING {
                let mut gro = Gro::new(segue::gro::Config { profile, ..Default::default() });
                let mut pool = Pool::new(4);
                for frame in &long {
                    let (front, back) = frame.split_at(at);
                    let ranges = std::iter::once(front).chain(back.chunks(step));
                    let mut packet = pool.take();
                    packet.load_ranges(ranges.map(|range| Frag::all(range.to_vec())), Start::Ethernet, &Tunnels::NONE);
                    gro.push(packet, Nanos(0), &mut pool);
                }
                gro.flush();
                let train = gro.pop().unwrap();
                assert_eq!(gro.stats().segments, 3, "{at} {step}: {:?}", gro.stats());
                let payload: Vec<u8> = train.payload.pieces(0..99).flatten().copied().collect();
                assert_eq!(payload, bare.iter().flat_map(|frame| frame[54..].to_vec()).collect::<Vec<u8>>());
            }
        }
    }
}

#[test]
fn a_packet_in_ranges_is_the_packet_in_one() {
    let mut rng = Rng::new(9);
    for sender in every() {
        let frame =
            Ethernet { tags: vec![(0x8100, 3)], ..Ethernet::default() }.wrap(&sender.clone().send(300, 0).bytes());
        // The whole frame, and everything shorter than any header.
        for len in (0..120).chain([frame.len()]) {
            let frame = &frame[..len];
            let mut whole = Packet::default();
            whole.load(Frag::all(frame.to_vec()), Start::Ethernet, &Tunnels::NONE);
            let (mut ranges, mut at) = (Vec::new(), 0);
            while at < len {
                let end = (at + 1 + rng.below(90)).min(len);
                ranges.push(Frag::all(frame[at..end].to_vec()));
                at = end;
            }
            let mut parts = Packet::default();
            parts.load_ranges(ranges, Start::Ethernet, &Tunnels::NONE);
            assert_eq!((parts.layout, parts.head.bytes()), (whole.layout, whole.head.bytes()), "{len}");
            assert_eq!((parts.layout.is_exact(), parts.layout.end()), (whole.layout.is_exact(), whole.layout.end()));
            assert_eq!((parts.len(), parts.offload), (len, whole.offload));
        }
    }
}

/// Returns the state reported by a port that sums whole frames from the IP header on, padding included.
fn complete(frame: &[u8]) -> Unit {
    Unit::Whole(Csum::Complete(Sum::of(&frame[14..])))
}

#[test]
fn a_known_sum_is_kept_right_when_padding_is_cut_off() {
    // Odd and even lengths of packet and padding, in one range and in two.
    for len in 1..6 {
        for more in 0..4 {
            let (long, bare) = padded(&[len], 0x91, more);
            for cut in [55, 57, 58, 59, 60] {
                let mut packet = Packet::default();
                let ranges = [&long[0][..cut], &long[0][cut..]].map(|range| Frag::all(range.to_vec()));
                packet.load_ranges(ranges, Start::Ethernet, &Tunnels::NONE);
                packet.offload.unit = complete(&long[0]);
                assert!(packet.trim() && packet.layout.is_exact() && !packet.trim());
                let Unit::Whole(Csum::Complete(sum)) = packet.offload.unit else { panic!("a sum") };
                assert_eq!(sum.fold(), Sum::of(&bare[0][14..]).fold(), "{len} {more} {cut}");
                // The sum continues where the packet ends.
                let (mut longer, mut expected) = (sum, Sum::of(&bare[0][14..]));
                longer.add(&[1, 2, 3]);
                expected.add(&[1, 2, 3]);
                assert_eq!(longer.fold(), expected.fold());
            }
        }
    }
}

#[test]
fn known_sums_verify_padded_frames_without_touching_payload() {
    for profile in TRIMMING {
        let (long, _) = padded(&[5, 5, 5, 2], 0x91, 1);
        let units: Vec<_> = long.iter().map(|frame| complete(frame)).collect();
        let stream = Stream::new(long).ethernet().profile(profile);
        let outcome = units.into_iter().enumerate().fold(stream, |s, (i, unit)| s.unit(i, unit)).run_unchecked().0;
        assert_eq!((outcome.sizes, outcome.stats.checksummed_bytes), (vec![4], 0));
    }
}

#[test]
fn a_train_of_known_sums_is_checked_and_has_no_sum() {
    for sender in every() {
        for profile in [Profile::Strict, Profile::linux(), Profile::Lro] {
            let packets = run(&mut sender.clone(), 4);
            let units: Vec<_> = packets.iter().map(|p| Unit::Whole(Csum::Complete(Sum::of(p)))).collect();
            let stream = Stream::new(packets).profile(profile);
            let outcome = units.into_iter().enumerate().fold(stream, |s, (i, unit)| s.unit(i, unit)).run_unchecked().0;
            let unit = outcome.trains[0].offload.unit;
            assert!(matches!(unit, Unit::Train { csum: TrainCsum::Stale, .. }), "{unit:?}");
        }
    }
}

#[test]
fn each_refused_frame_keeps_its_own_sum() {
    let mut sender = tcp6();
    let packets: Vec<_> = [100, 0, 100, 0].map(|len| sender.send(len, 0).bytes()).to_vec();
    let units: Vec<_> = packets.iter().map(|p| Unit::Whole(Csum::Complete(Sum::of(p)))).collect();
    let stream = units.iter().enumerate().fold(Stream::new(packets.clone()), |s, (i, unit)| s.unit(i, *unit));
    let outcome = stream.run_unchecked().0;
    let kept: Vec<_> = outcome.trains.iter().map(|packet| packet.offload.unit).collect();
    assert_eq!(kept, units, "in order, none with the sum of another");
}

#[test]
fn a_frame_whose_sum_says_that_it_is_wrong_stays_out_and_spoils_nothing() {
    let packets = run(&mut tcp4(), 4);
    let units = packets.iter().map(|p| Csum::Complete(Sum::of(p)));
    let mut stream = units.enumerate().fold(Stream::new(packets.clone()), |s, (i, csum)| s.unit(i, Unit::Whole(csum)));
    stream = stream.unit(2, Unit::Whole(Csum::Complete(Sum::of(b"something else"))));
    let outcome = stream.gives(&[2, 1, 1]);
    assert_eq!(outcome.stats.alone.of(RefusalReason::BadChecksum), 1);
    assert_eq!(outcome.trains[1].offload.unit, Unit::Whole(Csum::Bad));
    assert!(matches!(outcome.trains[2].offload.unit, Unit::Whole(Csum::Complete(_))));
}
