use segue::checksum::{Field, Sum, implementations};

use crate::input::Input;

/// Compares checksums of arbitrary bytes, added in pieces of arbitrary lengths, with RFC 1071 written out word by word,
/// for all implementations of this CPU; and the incremental update of RFC 1624 with a new sum.
pub(crate) fn checksum(data: &[u8]) {
    let mut input = Input::new(data);
    let (cut, skip, at, new) = (input.u16(), input.u8(), input.u16(), input.u16());
    let data = input.rest();
    // An odd start moves every vector load off its alignment.
    let bytes = &data[data.len().min(usize::from(skip) % 64)..];
    let expected = oracle(bytes);

    assert_eq!(Sum::of(bytes).fold(), expected);
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
    for implementation in implementations() {
        assert_eq!(implementation.sum(bytes).fold(), expected, "{}", implementation.name());
        let mut copy = vec![0; bytes.len()];
        assert_eq!(implementation.copy(&mut copy, bytes).fold(), expected, "{}", implementation.name());
        assert_eq!(copy, bytes, "{}", implementation.name());
    }

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
    }
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
