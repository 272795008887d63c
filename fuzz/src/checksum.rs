use segue::checksum::{Field, Sum, implementation, implementations, pseudo_v4, pseudo_v6};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that the sums may hold for the shortest input.
const FREE: usize = 64 << 10;

/// Compares checksums of arbitrary bytes, added in pieces of arbitrary lengths, with RFC 1071 written out word by word,
/// for all implementations of this CPU; the incremental update of RFC 1624 with a new sum; and the pseudo headers with
/// their bytes.
pub(crate) fn checksum(data: &[u8]) {
    bounded(data.len(), FREE, || sums(data));
}

/// Compares all sums of the bytes.
fn sums(data: &[u8]) {
    let mut input = Input::new(data);
    let (cut, skip, at, new) = (input.u16(), input.u8(), input.u16(), input.u16());
    let data = input.rest();
    // An odd start moves every vector load off its alignment.
    let bytes = &data[data.len().min(usize::from(skip) % 64)..];
    let expected = oracle(bytes);

    assert_eq!(Sum::of(bytes).fold(), expected);
    assert!(format!("{:?}, {:?}", Sum::of(bytes), Field::from_wire(expected)).contains(&format!("{expected:#06x}")));
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    let mut pieces = Sum::of(head);
    pieces.add(tail);
    assert_eq!(pieces.fold(), expected);
    let mut joined = Sum::of(head);
    joined.append(Sum::of(tail), tail.len());
    assert_eq!(joined.fold(), expected);
    let mut copied = Sum::of(head);
    let mut copy = vec![0; tail.len()];
    copied.copy(&mut copy, tail);
    assert_eq!((copied.fold(), copy.as_slice()), (expected, tail));
    let fastest = implementations().last().expect("one at least");
    assert_eq!(implementation(), fastest.name(), "the last one is in use");
    for implementation in implementations() {
        assert_eq!(implementation.sum(bytes).fold(), expected, "{}", implementation.name());
        let mut copy = vec![0; bytes.len()];
        assert_eq!(implementation.copy(&mut copy, bytes).fold(), expected, "{}", implementation.name());
        assert_eq!(copy, bytes, "{}", implementation.name());
    }

    let mut without = Sum::of(bytes);
    without.remove(Sum::of(head));
    let mut zeros = Sum::ZERO;
    zeros.append(Sum::ZERO, head.len());
    zeros.add(tail);
    assert_eq!(without, zeros, "without its beginning it is the sum of the rest");
    pseudo(bytes);

    // One 16-bit word at an even offset changes, as when a NAT rewrites a port.
    let at = usize::from(at) / 2 * 2;
    if let Some(&[hi, lo]) = bytes.get(at..at + 2) {
        let mut changed = bytes.to_vec();
        changed[at..at + 2].copy_from_slice(&new.to_be_bytes());
        let updated = Field::complete(Sum::of(bytes)).update(u16::from_be_bytes([hi, lo]), new);
        // Data with its checksum in it sums to all ones; only all-zero data has a sum of zero, which no incremental
        // update can know (RFC 1624 section 3).
        let mut check = Sum::of(&changed);
        if check.fold() != 0 {
            let padding = [0][..changed.len() % 2].to_vec();
            check.add(&padding);
            check.add_u16(updated.value());
            assert_eq!(check.fold(), 0xffff);
        }
        let long = Field::from_wire(u16::from_be_bytes([hi, lo])).update_u32(u32::from(new) << 16 | 5, 0x0001_0007);
        let short = Field::from_wire(u16::from_be_bytes([hi, lo])).update(new, 1).update(5, 7);
        assert_eq!(long, short);
    }
}

/// Compares the pseudo header of addresses that the first bytes are with its sum byte by byte (RFC 768, RFC 8200
/// section 8.1), and the fields made of it.
fn pseudo(bytes: &[u8]) {
    let Some((addresses, rest)) = bytes.split_first_chunk::<32>() else { return };
    let (protocol, len) = (addresses[31], rest.len());
    let (source, destination) = addresses.split_at(16);
    let to_array = |bytes: &[u8]| *bytes.first_chunk::<16>().expect("half of them");
    let long = pseudo_v6(to_array(source), to_array(destination), protocol, len);
    let mut written = addresses.to_vec();
    written.extend_from_slice(&(len as u32).to_be_bytes());
    written.extend_from_slice(&[0, 0, 0, protocol]);
    assert_eq!((long, long.fold()), (Sum::of(&written), oracle(&written)));
    let [a, b, c, d, e, f, g, h] = *addresses.first_chunk().expect("eight of them");
    let short = pseudo_v4([a, b, c, d], [e, f, g, h], protocol, len);
    written.truncate(8);
    written.extend_from_slice(&[0, protocol]);
    written.extend_from_slice(&(len as u32).to_be_bytes());
    assert_eq!((short, short.fold()), (Sum::of(&written), oracle(&written)));
    assert_eq!(Field::primed(short).value(), oracle(&written));
    let (complete, udp) = (Field::complete(short), Field::complete_udp(short));
    assert_eq!(complete.value(), !oracle(&written));
    assert!(udp.value() != 0 && (udp == complete || complete.value() == 0), "{udp:?} {complete:?} {short:?}");
}

/// Computes the checksum of RFC 1071, section 1, word by word.
fn oracle(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for word in bytes.chunks(2) {
        sum += u64::from(word[0]) << 8 | word.get(1).map_or(0, |&b| u64::from(b));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
