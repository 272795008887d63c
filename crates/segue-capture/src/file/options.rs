//! Options of pcapng blocks: code, length, value padded to four bytes, in the byte order of the section.

use super::Order;

/// `opt_endofopt`: the end of the options.
pub const END: u16 = 0;
/// `opt_comment`: a comment in UTF-8.
pub const COMMENT: u16 = 1;
/// `shb_userappl` of a section: the program that wrote it.
pub const SHB_USERAPPL: u16 = 4;
/// `if_name` of an interface: its name.
pub const IF_NAME: u16 = 2;
/// `if_tsresol` of an interface: the length of a timestamp tick.
pub const IF_TSRESOL: u16 = 9;
/// `if_fcslen` of an interface: length of the frame check sequence, in bytes here.
pub const IF_FCSLEN: u16 = 13;
/// `if_tsoffset` of an interface: seconds to add to timestamps.
pub const IF_TSOFFSET: u16 = 14;
/// `epb_flags` of a packet: direction, reception type, length of the frame check sequence, link errors.
pub const EPB_FLAGS: u16 = 2;
/// `epb_hash` of a packet: a hash of its bytes.
pub const EPB_HASH: u16 = 3;
/// `epb_queue` of a packet: the queue of the interface that received it.
pub const EPB_QUEUE: u16 = 6;

/// Iterates over codes and values of the options in `bytes`, up to the end option or the first that does not fit.
pub fn list(bytes: &[u8], order: Order) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let head: &[u8; 4] = rest.first_chunk()?;
        let (code, len) = (order.u16([head[0], head[1]]), usize::from(order.u16([head[2], head[3]])));
        if code == END {
            return None;
        }
        let value = rest.get(4..4 + len)?;
        rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    })
}

/// Appends an option; a value of more than 65,535 bytes is truncated.
pub fn push(to: &mut Vec<u8>, order: Order, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    to.extend_from_slice(&order.put16(code));
    to.extend_from_slice(&order.put16(value.len() as u16));
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Appends the end option to a list that is not empty.
pub fn end(to: &mut Vec<u8>, order: Order) {
    if !to.is_empty() {
        push(to, order, END, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_back_as_written_in_both_orders() {
        for order in [Order::Little, Order::Big] {
            let mut bytes = Vec::new();
            push(&mut bytes, order, COMMENT, b"five!");
            push(&mut bytes, order, 0xd347, &[]);
            push(&mut bytes, order, IF_TSRESOL, &[9]);
            end(&mut bytes, order);
            let read: Vec<_> = list(&bytes, order).collect();
            assert_eq!(read, [(COMMENT, &b"five!"[..]), (0xd347, &[][..]), (IF_TSRESOL, &[9][..])]);
            assert_eq!(bytes.len() % 4, 0);
            for cut in 0..bytes.len() {
                assert!(list(&bytes[..cut], order).count() <= 3);
            }
        }
    }
}
