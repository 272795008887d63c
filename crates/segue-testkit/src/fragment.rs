//! Fragments of IP packets, made and reassembled by the simplest possible code.

use crate::sum::fold;

/// Splits an IP packet into fragments of at most `mtu` bytes. `id` is the identification for IPv6; IPv4 keeps its own.
/// DF is cleared. A packet of at most `mtu` bytes is returned unchanged.
///
/// # Panics
/// Panics if `mtu` has no room for 8 bytes after the headers.
pub fn fragments(packet: &[u8], mtu: usize, id: u32) -> Vec<Vec<u8>> {
    if packet.len() <= mtu {
        return vec![packet.to_vec()];
    }
    let is_v4 = packet[0] >> 4 == 4;
    let (front, next_at) = if is_v4 { (usize::from(packet[0] & 15) * 4, 9) } else { front_v6(packet) };
    let body = &packet[front..];
    let extra = if is_v4 { 0 } else { 8 };
    let room = mtu - front - extra;
    assert!(room >= 8, "no room in {mtu} bytes");
    let word = u16::from_be_bytes([packet[6], packet[7]]);
    let (base, follows) = if is_v4 { (usize::from(word & 0x1fff) * 8, word & 0x2000 != 0) } else { (0, false) };
    let mut all = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let len = if body.len() - at <= room { body.len() - at } else { room / 8 * 8 };
        let more = follows || at + len < body.len();
        let mut bytes = packet[..front].to_vec();
        if is_v4 {
            if base + at > 0 {
                blank_options(&mut bytes);
            }
            let total = (front + len) as u16;
            let word = ((base + at) / 8) as u16 | u16::from(more) << 13;
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
            bytes[6..8].copy_from_slice(&word.to_be_bytes());
            bytes[10..12].fill(0);
            let checksum = !fold(&bytes);
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            let next = std::mem::replace(&mut bytes[next_at], 44);
            bytes.extend([next, 0]);
            bytes.extend((at as u16 | u16::from(more)).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            let payload = (bytes.len() - 40 + len) as u16;
            bytes[4..6].copy_from_slice(&payload.to_be_bytes());
        }
        bytes.extend(&body[at..at + len]);
        all.push(bytes);
        at += len;
    }
    all
}

/// Returns the length of the per-fragment headers, and the offset of their last next-header field.
fn front_v6(packet: &[u8]) -> (usize, usize) {
    let mut ends = vec![(packet[6], 40, 6)];
    while let Some(&(0 | 43 | 60, at, _)) = ends.last() {
        ends.push((packet[at], at + 8 + usize::from(packet[at + 1]) * 8, at));
    }
    // After the last routing header, else after the hop-by-hop options, else after the fixed header.
    let behind = |kind| (1..ends.len()).rev().find(|&i| ends[i - 1].0 == kind);
    let (_, front, next_at) = ends[behind(43).or_else(|| behind(0)).unwrap_or(0)];
    (front, next_at)
}

fn blank_options(header: &mut [u8]) {
    let mut at = 20;
    while at < header.len() && header[at] != 0 {
        let len = if header[at] == 1 { 1 } else { usize::from(header[at + 1]) };
        if header[at] < 128 {
            header[at..at + len].fill(1);
        }
        at += len;
    }
}

/// Reassembles the fragments of one packet, given in any order.
///
/// # Errors
/// Returns what is wrong, in words: an overlap, a hole, fragments of other packets, a length that is no multiple of 8.
pub fn reassemble(fragments: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let mut parts = Vec::new();
    for bytes in fragments {
        let is_v4 = bytes[0] >> 4 == 4;
        let (front, word, id, next_at) = if is_v4 {
            let word = u16::from_be_bytes([bytes[6], bytes[7]]);
            if word & 0x4000 != 0 {
                return Err("a fragment with DF".into());
            }
            let id = u32::from(u16::from_be_bytes([bytes[4], bytes[5]]));
            (usize::from(bytes[0] & 15) * 4, (word & 0x1fff) << 3 | word >> 13 & 1, id, 9)
        } else {
            let (front, next_at) = front_v6(bytes);
            if bytes[next_at] != 44 || bytes[front + 1] != 0 || bytes[front + 3] & 6 != 0 {
                return Err("no IPv6 fragment".into());
            }
            let word = u16::from_be_bytes([bytes[front + 2], bytes[front + 3]]);
            let id = u32::from_be_bytes([bytes[front + 4], bytes[front + 5], bytes[front + 6], bytes[front + 7]]);
            (front, word, id, next_at)
        };
        let body = bytes[if is_v4 { front } else { front + 8 }..].to_vec();
        let (offset, more) = (usize::from(word & !7), word & 1 != 0);
        if more && body.len() % 8 != 0 {
            return Err(format!("{} bytes in a fragment before the last", body.len()));
        }
        let next = if is_v4 { bytes[9] } else { bytes[front] };
        parts.push((offset, more, body, id, bytes[..front].to_vec(), next_at, next));
    }
    parts.sort();
    let (_, _, _, id, mut head, next_at, next) = parts.first().ok_or("no fragments")?.clone();
    let mut body = Vec::new();
    let count = parts.len();
    for (index, (offset, more, data, part_id, ..)) in parts.into_iter().enumerate() {
        if offset != body.len() {
            return Err(format!("a fragment at {offset} behind {} bytes", body.len()));
        }
        if part_id != id || more != (index + 1 < count) {
            return Err(format!("identification {part_id} and {id}, more {more} on {index} of {count}"));
        }
        body.extend(data);
    }
    if head[0] >> 4 == 4 {
        let total = u16::try_from(head.len() + body.len()).map_err(|e| e.to_string())?;
        head[2..4].copy_from_slice(&total.to_be_bytes());
        head[6..8].fill(0);
        head[10..12].fill(0);
        let checksum = !fold(&head);
        head[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        head[next_at] = next;
        let payload = u16::try_from(head.len() - 40 + body.len()).map_err(|e| e.to_string())?;
        head[4..6].copy_from_slice(&payload.to_be_bytes());
    }
    head.extend(body);
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use crate::build::{Ip, L4, Packet, Udp, V4, V6};

    #[test]
    fn what_is_cut_is_put_together_again() {
        let udp = L4::Udp(Udp { src_port: 1, dst_port: 2, checksum: true });
        let v6 = V6 { extensions: vec![(0, vec![1, 4]), (43, vec![4, 0]), (60, vec![1, 4])], ..V6::new(1, 1, 2) };
        let v4 = V4 { options: vec![7, 7, 4, 0, 0, 0, 0, 0x94, 4, 0, 0], df: false, ..V4::new(1, 1, 2) };
        for ip in [Ip::V4(V4 { df: false, ..V4::new(1, 1, 2) }), Ip::V4(v4), Ip::V6(V6::new(1, 1, 2)), Ip::V6(v6)] {
            let whole = Packet { ip, l4: udp.clone(), data: Rng::new(1).bytes(5000) }.bytes();
            for mtu in [100, 576, 1280, 1500, 4999] {
                let mut parts = fragments(&whole, mtu, 7);
                assert!(parts.len() > 1 && parts.iter().all(|p| p.len() <= mtu));
                parts.reverse();
                assert_eq!(reassemble(&parts).unwrap(), whole);
                parts.pop();
                assert!(reassemble(&parts).is_err());
            }
        }
    }
}
