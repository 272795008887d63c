#[cfg(target_arch = "x86_64")]
use std::is_x86_feature_detected;
use std::string::String;
use std::vec;
use std::vec::Vec;

use etherparse::{Icmpv6Type, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader, UdpHeader};
use proptest::prelude::*;

use super::*;

/// Returns the checksum as in RFC 1071: byte by byte, big-endian words, carries folded at the end.
fn oracle(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for (i, byte) in bytes.iter().enumerate() {
        sum += u64::from(*byte) << (if i % 2 == 0 { 8 } else { 0 });
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Returns bytes without a pattern that words or vectors could share (xorshift64).
fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// Returns a buffer, and an offset from which its slice starts at a multiple of 64.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let buffer = noise(len + 63);
    let at = buffer.as_ptr().align_offset(64);
    (buffer, at)
}

const GUARD: u8 = 0xa5;

/// Copies with one implementation into the middle of guard bytes, and checks bytes, sum and guards.
fn check_copy(implementation: Implementation, space: &mut [u8], dst_at: usize, src: &[u8], want: u16) {
    let alone = |dst: &mut [u8]| implementation.copy(dst, src);
    let inside = |dst: &mut [u8]| {
        let mut sum = Sum::ZERO;
        implementation.0.work(Piece { sum: &mut sum, dst, src });
        sum
    };
    for (how, copy) in [("alone", &alone as &dyn Fn(&mut [u8]) -> Sum), ("inside", &inside)] {
        let name = implementation.name();
        space.fill(GUARD);
        let sum = copy(&mut space[dst_at..dst_at + src.len()]);
        assert_eq!(sum.fold(), want, "{name} {how}: sum of {} bytes copied to {dst_at}", src.len());
        let (before, rest) = space.split_at(dst_at);
        let (copied, after) = rest.split_at(src.len());
        assert!(copied == src, "{name} {how}: bytes of {} copied to {dst_at}", src.len());
        assert!(
            before.iter().chain(after).all(|b| *b == GUARD),
            "{name} {how}: {} bytes to {dst_at} spilled",
            src.len()
        );
    }
}

/// A [`Work`] that is one copy.
struct Piece<'a> {
    sum: &'a mut Sum,
    dst: &'a mut [u8],
    src: &'a [u8],
}

impl arch::Work for Piece<'_> {
    #[inline(always)]
    fn run(self, copier: impl Copier) {
        self.sum.copy_by(copier, self.dst, self.src);
    }
}

#[test]
fn every_implementation_agrees_with_the_oracle_at_every_length_and_alignment() {
    let (data, zero) = aligned(64 + 1100);
    for start in 0..64 {
        for len in 0..=1100 {
            let bytes = &data[zero + start..][..len];
            let want = oracle(bytes);
            assert_eq!(Sum::of(bytes).fold(), want, "dispatch, {len} bytes at {start}");
            for implementation in implementations() {
                let got = implementation.sum(bytes).fold();
                assert_eq!(got, want, "{}: {len} bytes at {start}", implementation.name());
            }
        }
    }
}

#[test]
fn copying_gives_the_same_bytes_and_sum_at_every_length_and_writes_nothing_else() {
    let (data, zero) = aligned(64 + 1100);
    let (mut space, space_zero) = aligned(64 + 1100 + 128);
    for len in 0..=1100 {
        for (src_at, dst_at) in [(0, 0), (0, 33), (17, 0), (1, 1), (34, 63), (len % 64, len * 7 % 64)] {
            let src = &data[zero + src_at..][..len];
            let want = oracle(src);
            for implementation in implementations() {
                check_copy(implementation, &mut space[space_zero..][..64 + 1100 + 64], dst_at, src, want);
            }
            let mut dst = vec![GUARD; len];
            let mut sum = Sum::ZERO;
            sum.copy(&mut dst, src);
            assert_eq!((sum.fold(), &dst[..]), (want, src), "dispatch, {len} bytes");
        }
    }
}

#[test]
fn copying_works_between_all_pairs_of_alignments() {
    let (data, zero) = aligned(64 + 1500);
    let (mut space, space_zero) = aligned(64 + 1500 + 64);
    for len in [1, 63, 65, 1023, 1024, 1460] {
        for src_at in 0..64 {
            let src = &data[zero + src_at..][..len];
            let want = oracle(src);
            for dst_at in 0..64 {
                for implementation in implementations() {
                    check_copy(implementation, &mut space[space_zero..][..64 + len + 64], dst_at, src, want);
                }
            }
        }
    }
}

#[test]
fn uniform_bytes_give_the_extreme_sums() {
    for implementation in implementations() {
        for len in (0..=1100).chain([65_535, 65_536, 1 << 20, (1 << 20) + 1, (4 << 20) + 77]) {
            for value in [0x00, 0x7f, 0x80, 0xff] {
                let (bytes, want) = (vec![value; len], oracle_uniform(value, len));
                let got = implementation.sum(&bytes).fold();
                assert_eq!(got, want, "{}: {len} times {value:#x}", implementation.name());
                check_copy(implementation, &mut vec![0; 1 + len + 64], 1, &bytes, want);
            }
        }
    }
}

/// Computes what [`oracle`] returns for `len` bytes `value`, without reading each.
fn oracle_uniform(value: u8, len: usize) -> u16 {
    let mut sum = u64::from(value) * ((len as u64 / 2) * 0x101 + (len as u64 % 2) * 0x100);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[test]
fn words_just_below_and_above_the_sign_do_not_confuse_the_vectors() {
    for word in [0x7fffu16, 0x8000, 0x8001, 0xff7f, 0x0080, 0x7f80, 0x807f] {
        let bytes: Vec<u8> = (0..40_000).flat_map(|_| word.to_be_bytes()).collect();
        for implementation in implementations() {
            for len in [80_000, 79_999, 1460, 1461, 65] {
                let bytes = &bytes[..len];
                assert_eq!(
                    implementation.sum(bytes).fold(),
                    oracle(bytes),
                    "{} {len} {word:#x}",
                    implementation.name()
                );
            }
        }
    }
}

#[test]
fn megabytes_do_not_overflow_anything() {
    let (data, zero) = aligned((3 << 20) + 200);
    let mut dst = vec![0; (3 << 20) + 200];
    for (start, len) in [(0, 1 << 20), (1, 1 << 20), (33, (1 << 20) - 1), (5, (3 << 20) + 129)] {
        let src = &data[zero + start..][..len];
        let want = oracle(src);
        for implementation in implementations() {
            assert_eq!(implementation.sum(src).fold(), want, "{}: {len} at {start}", implementation.name());
            check_copy(implementation, &mut dst[..len + 1], 1, src, want);
        }
    }
}

#[test]
fn gigabytes_fed_in_pieces_do_not_overflow_anything() {
    // All ones is the worst case: each piece adds its largest possible plain sum. 2^50 bytes as appended sums.
    let piece = vec![0xff; 1 << 20];
    for implementation in implementations() {
        let mut sum = implementation.sum(&piece);
        let mut len = piece.len();
        for _ in 0..30 {
            sum.append(sum, len);
            // Only its parity matters; 32 bits do not hold it.
            len = len.wrapping_mul(2);
        }
        assert_eq!(sum.fold(), 0xffff);
        sum.add(&[0x00, 0x02]);
        assert_eq!(sum.fold(), 0x0002);
    }
}

#[test]
fn any_two_cuts_of_a_small_input_give_the_sum_of_the_whole() {
    let data = noise(70);
    for len in 0..=data.len() {
        let bytes = &data[..len];
        let want = oracle(bytes);
        for first in 0..=len {
            for second in first..=len {
                let mut added = Sum::ZERO;
                let mut appended = Sum::ZERO;
                let mut copied = Sum::ZERO;
                let mut dst = [0; 70];
                for range in [0..first, first..second, second..len] {
                    let piece = &bytes[range.clone()];
                    added.add(piece);
                    appended.append(Sum::of(piece), piece.len());
                    copied.copy(&mut dst[range], piece);
                }
                assert_eq!(added.fold(), want, "add {first} {second} {len}");
                assert_eq!(appended, added, "append {first} {second} {len}");
                assert_eq!(copied, added, "copy {first} {second} {len}");
                assert_eq!(&dst[..len], bytes);
            }
        }
    }
}

#[test]
fn integers_are_added_as_their_big_endian_bytes_at_either_parity() {
    for prefix in [&[][..], &[0x5a]] {
        let mut sum = Sum::of(prefix);
        sum.add_u16(0x1234);
        sum.add_u32(0x89ab_cdef);
        let bytes = [prefix, &[0x12, 0x34, 0x89, 0xab, 0xcd, 0xef]].concat();
        assert_eq!(sum, Sum::of(&bytes));
        assert_eq!(sum.fold(), oracle(&bytes));
    }
}

#[test]
fn a_folded_sum_from_elsewhere_can_be_appended_with_an_odd_length() {
    let (front, middle, back) = (noise(13), noise(77), noise(9));
    let mut from_elsewhere = Sum::ZERO;
    from_elsewhere.add_u16(oracle(&middle));
    let mut sum = Sum::of(&front);
    sum.append(from_elsewhere, middle.len());
    sum.add(&back);
    assert_eq!(sum.fold(), oracle(&[front, middle, back].concat()));
}

#[test]
fn equality_is_that_of_numbers_and_parity() {
    assert_eq!(Sum::of(&[0xff, 0xff]), Sum::ZERO);
    assert_ne!(Sum::of(&[0xff, 0xff]).fold(), Sum::ZERO.fold());
    assert_ne!(Sum::of(&[0x12]), Sum::of(&[0x12, 0x00]));
    assert_ne!(Sum::of(&[0x12, 0x34]), Sum::of(&[0x12, 0x35]));
    assert_eq!(std::format!("{:?}", Sum::of(&[0x12])), "Sum(0x1200, odd)");
}

#[test]
fn removing_nothing_from_nothing_leaves_nothing() {
    let mut sum = Sum::ZERO;
    sum.remove(Sum::of(&[0; 40]));
    assert_eq!(sum.fold(), 0);
}

#[test]
#[should_panic(expected = "length")]
fn copying_between_different_lengths_panics() {
    let mut sum = Sum::ZERO;
    sum.copy(&mut [0; 100], &[0; 101]);
}

#[test]
fn dispatch_takes_the_best_of_what_is_available_or_what_is_chosen() {
    let names: Vec<&str> = implementations().map(Implementation::name).collect();
    assert_eq!(names.first(), Some(&"scalar"));
    assert_eq!(names.last(), Some(&implementation()));
    #[cfg(target_arch = "x86_64")]
    {
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let expected = [
            ("scalar", true),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("avx512", avx512),
            ("avx512-vnni", avx512 && is_x86_feature_detected!("avx512vnni")),
        ];
        let expected: Vec<&str> = expected.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        assert_eq!(names, expected, "the standard library sees other features");
    }
    // Other tests of this process are not affected: all implementations give the same. The best is the last.
    for one in implementations() {
        one.choose();
        assert_eq!(implementation(), one.name());
    }
}

#[test]
fn the_example_of_rfc_1071_section_3_comes_out() {
    let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(sum.fold(), 0xddf2);
    assert_eq!(Field::complete(sum).value(), 0x220d);
}

#[test]
fn the_example_of_rfc_1624_section_4_comes_out() {
    // Equation 3 gives 0x0000 where equation 2 of RFC 1141 gives 0xffff.
    assert_eq!(Field::from_wire(0xdd2f).update(0x5555, 0x3285), Field::from_wire(0x0000));
}

#[test]
fn a_word_changed_in_every_possible_way_is_followed_by_update() {
    // Exhaustive in one word at a time: from each of a few values to every value, and back.
    let mut data = [0x45, 0, 0, 0, 0xff, 0xff, 0x12, 0x34];
    for old in [0x0000u16, 0x0001, 0x7fff, 0x8000, 0xcafe, 0xfffe, 0xffff] {
        data[2..4].copy_from_slice(&old.to_be_bytes());
        let before = Field::complete(Sum::of(&data));
        for new in 0..=u16::MAX {
            data[2..4].copy_from_slice(&new.to_be_bytes());
            let after = Field::complete(Sum::of(&data));
            assert_eq!(before.update(old, new), after, "{old:#x} to {new:#x}");
            assert_eq!(after.update(new, old), before, "{new:#x} to {old:#x}");
        }
    }
}

#[test]
fn udp_zero_is_sent_as_all_ones() {
    // RFC 768. A datagram of ten bytes, ports 1000 and 2000, payload 65 fa, that sums to 0xffff exactly.
    let mut sum = Sum::ZERO;
    sum.add_u16(0x8e43);
    sum.add(&[0x03, 0xe8, 0x07, 0xd0, 0x00, 0x0a, 0x00, 0x00, 0x65, 0xfa]);
    assert_eq!(sum.fold(), 0xffff);
    assert_eq!(Field::complete(sum).value(), 0x0000);
    assert_eq!(Field::complete_udp(sum).value(), 0xffff);
    // Only zero is replaced.
    sum.add_u16(1);
    assert_eq!(Field::complete_udp(sum), Field::complete(sum));
    assert_eq!(Field::complete_udp(sum).value(), 0xfffe);
    // Both forms verify.
    sum.remove(Sum::of(&[0, 1]));
    sum.add_u16(0xffff);
    assert_eq!(sum.fold(), 0xffff);
}

#[test]
fn a_primed_field_completed_over_the_segment_is_the_full_checksum() {
    let (src, dst) = ([198, 18, 0, 1], [198, 18, 0, 2]);
    let mut segment = noise(333);
    let pseudo = pseudo_v4(src, dst, 6, segment.len());
    segment[16..18].copy_from_slice(&Field::primed(pseudo).value().to_be_bytes());
    // The checksum is completed by summing the segment with the primed value left in place.
    let completed = Field::complete(Sum::of(&segment));
    segment[16..18].copy_from_slice(&completed.value().to_be_bytes());
    let mut check = pseudo;
    check.add(&segment);
    assert_eq!(check.fold(), 0xffff);
}

#[test]
fn a_length_beyond_16_bits_is_summed_whole() {
    // 0x00012345 adds 0x0001 and 0x2345 to an otherwise known sum.
    let mut want = pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 0);
    want.add_u32(0x0001_2345);
    assert_eq!(pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 0x0001_2345), want);
    let mut header = Vec::from([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    header.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xbe, 0xef]);
    let (src, dst) = (header[..16].try_into().unwrap(), header[16..].try_into().unwrap());
    header.extend([0x00, 0x01, 0x23, 0x45, 0, 0, 0, 17]); // RFC 8200 section 8.1
    assert_eq!(pseudo_v6(src, dst, 17, 0x0001_2345).fold(), oracle(&header));
}

/// Verifies the segment after a pseudo header, with the checksum field that another implementation wrote into it.
fn expect_good(mut pseudo: Sum, segment: &[u8], what: String) {
    pseudo.add(segment);
    assert_eq!(pseudo.fold(), 0xffff, "{what}");
}

proptest! {
    #[test]
    fn pseudo_headers_agree_with_etherparse(
        src4: [u8; 4], dst4: [u8; 4], src6: [u8; 16], dst6: [u8; 16], ports: (u16, u16),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let ip4 = Ipv4Header::new(0, 64, IpNumber::TCP, src4, dst4).unwrap();
        let ip6 = Ipv6Header {
            traffic_class: 0,
            flow_label: Ipv6FlowLabel::ZERO,
            payload_length: 0,
            next_header: IpNumber::UDP,
            hop_limit: 64,
            source: src6,
            destination: dst6,
        };

        let mut tcp = TcpHeader::new(ports.0, ports.1, 7, 1000);
        tcp.checksum = tcp.calc_checksum_ipv4(&ip4, &payload).unwrap();
        let segment = [&tcp.to_bytes()[..], &payload].concat();
        expect_good(pseudo_v4(src4, dst4, 6, segment.len()), &segment, "TCP over IPv4".into());
        tcp.checksum = tcp.calc_checksum_ipv6(&ip6, &payload).unwrap();
        let segment = [&tcp.to_bytes()[..], &payload].concat();
        expect_good(pseudo_v6(src6, dst6, 6, segment.len()), &segment, "TCP over IPv6".into());

        let udp = UdpHeader::with_ipv4_checksum(ports.0, ports.1, &ip4, &payload).unwrap();
        let mut blank = udp.clone();
        blank.checksum = 0;
        let mut sum = pseudo_v4(src4, dst4, 17, 8 + payload.len());
        sum.add(&blank.to_bytes());
        sum.add(&payload);
        prop_assert_eq!(Field::complete_udp(sum).value(), udp.checksum);
        let udp = UdpHeader::with_ipv6_checksum(ports.0, ports.1, &ip6, &payload).unwrap();
        let segment = [&udp.to_bytes()[..], &payload].concat();
        expect_good(pseudo_v6(src6, dst6, 17, segment.len()), &segment, "UDP over IPv6".into());

        let echo = Icmpv6Type::EchoRequest(etherparse::IcmpEchoHeader { id: ports.0, seq: ports.1 });
        let header = echo.to_header(src6, dst6, &payload).unwrap();
        let message = [&header.to_bytes()[..], &payload].concat();
        expect_good(pseudo_v6(src6, dst6, 58, message.len()), &message, "ICMPv6".into());
    }

    #[test]
    fn pieces_of_any_length_give_the_sum_of_the_whole(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20),
    ) {
        let whole = pieces.concat();
        let mut sum = Sum::ZERO;
        for piece in &pieces {
            sum.add(piece);
        }
        prop_assert_eq!(sum.fold(), oracle(&whole));
        prop_assert_eq!(sum, Sum::of(&whole));
    }

    #[test]
    fn appending_is_associative(a: Vec<u8>, b: Vec<u8>, c: Vec<u8>) {
        let mut left = Sum::of(&a);
        left.append(Sum::of(&b), b.len());
        left.append(Sum::of(&c), c.len());
        let mut tail = Sum::of(&b);
        tail.append(Sum::of(&c), c.len());
        let mut right = Sum::of(&a);
        right.append(tail, b.len() + c.len());
        prop_assert_eq!(left, right);
        prop_assert_eq!(left.fold(), oracle(&[a, b, c].concat()));
    }

    #[test]
    fn removing_a_part_is_the_same_as_zeroing_it(
        mut data in proptest::collection::vec(any::<u8>(), 2..400), cut: (usize, usize), after: Vec<u8>,
    ) {
        let start = (cut.0 % data.len()) & !1;
        let len = cut.1 % (data.len() - start + 1);
        let part = start..start + len;
        let mut sum = Sum::of(&data);
        sum.remove(Sum::of(&data[part.clone()]));
        sum.add(&after);
        data[part].fill(0);
        data.extend(&after);
        prop_assert_eq!(sum, Sum::of(&data));
    }

    #[test]
    fn update_is_recomputing(
        mut header in proptest::collection::vec(any::<u8>(), 20..60), at: usize, new: u16, new_u32: u32,
    ) {
        header[0] = 0x45; // no IP header is all zero, which alone has two right checksums
        let before = Field::complete(Sum::of(&header));
        let at = 2 + at % (header.len() - 6) / 2 * 2;
        let old = u16::from_be_bytes([header[at], header[at + 1]]);
        let mut changed = header.clone();
        changed[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(before.update(old, new), Field::complete(Sum::of(&changed)));

        let old = u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        header[at..at + 4].copy_from_slice(&new_u32.to_be_bytes());
        prop_assert_eq!(before.update_u32(old, new_u32), Field::complete(Sum::of(&header)));
    }

    #[test]
    fn update_keeps_a_wrong_field_wrong_by_as_much(wrong: u16, old: u16, new: u16) {
        let field = Field::from_wire(wrong).update(old, new).update(new, old);
        prop_assert_eq!(field.value() % 0xffff, wrong % 0xffff);
    }
}
