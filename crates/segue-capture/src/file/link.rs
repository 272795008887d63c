//! Link types (`LINKTYPE_` values of tcpdump.org): the header in front of the network header of a record.

use segue::packet::Start;
use segue::wire::ethertype;

/// BSD loopback: the address family in the byte order of the capturing machine.
pub const NULL: u16 = 0;
/// Link type of Ethernet II.
pub const ETHERNET: u16 = 1;
/// Link type of IPv4 or IPv6 without a link header.
pub const RAW: u16 = 101;
/// OpenBSD loopback: the address family in network order.
pub const LOOP: u16 = 108;
/// Linux cooked, version 1: 16 bytes, the protocol in the last two.
pub const COOKED: u16 = 113;
/// Link type of IPv4 without a link header.
pub const IPV4: u16 = 228;
/// Link type of IPv6 without a link header.
pub const IPV6: u16 = 229;
/// Linux cooked, version 2: 20 bytes, the protocol in the first two.
pub const COOKED2: u16 = 276;

/// Maximum number of VLAN tags that are skipped after a cooked header.
const MAX_TAGS: usize = 2;

/// Returns the display name of a link type, as in Wireshark and tcpdump.
pub fn name(link: u16) -> &'static str {
    match link {
        NULL | LOOP => "loopback",
        ETHERNET => "Ethernet",
        RAW | 12 | 14 => "raw IP",
        COOKED => "Linux cooked v1",
        IPV4 => "raw IPv4",
        IPV6 => "raw IPv6",
        COOKED2 => "Linux cooked v2",
        _ => "another link",
    }
}

/// Locates the part of a record that [`segue::wire::parse()`] understands; returns its offset and the kind of its first
/// header. `None` if the record is not IP or the link type is unknown.
pub fn start(link: u16, data: &[u8]) -> Option<(usize, Start)> {
    let word = |at: usize| data.get(at..).and_then(|b| b.first_chunk()).map(|b| u16::from_be_bytes(*b));
    match link {
        ETHERNET => Some((0, Start::Ethernet)),
        // 12 and 14 are DLT_RAW of some systems, and occur in files.
        RAW | IPV4 | IPV6 | 12 | 14 => Some((0, Start::Ip)),
        NULL | LOOP => {
            let family: [u8; 4] = *data.first_chunk()?;
            let family = u32::from_be_bytes(family).min(u32::from_le_bytes(family));
            // 2 is AF_INET everywhere; AF_INET6 is 10 on Linux, 24, 28 and 30 on the BSDs and macOS.
            matches!(family, 2 | 10 | 24 | 28 | 30).then_some((4, Start::Ip))
        }
        COOKED => cooked(data, 14, 16),
        COOKED2 => cooked(data, 0, 20),
        _ => None,
    }
    .filter(|(at, _)| word(*at).is_some())
}

/// Locates IP after a cooked header of `len` bytes with its protocol at offset `at`.
fn cooked(data: &[u8], at: usize, mut len: usize) -> Option<(usize, Start)> {
    let word = |at: usize| data.get(at..).and_then(|b| b.first_chunk()).map(|b| u16::from_be_bytes(*b));
    let mut protocol = word(at)?;
    for _ in 0..MAX_TAGS {
        if !matches!(protocol, ethertype::VLAN | ethertype::QINQ) {
            break;
        }
        protocol = word(len + 2)?;
        len += 4;
    }
    matches!(protocol, ethertype::IPV4 | ethertype::IPV6).then_some((len, Start::Ip))
}

/// Writes an EtherType into `prefix`, the bytes in front of the network header, if the link type has a field for it.
pub fn set_protocol(link: u16, prefix: &mut [u8], protocol: u16) {
    let at = match link {
        COOKED if prefix.len() == 16 => 14,
        COOKED2 if prefix.len() == 20 => 0,
        // Behind a tag, or in Ethernet, the type is the last thing.
        ETHERNET | COOKED | COOKED2 => prefix.len().saturating_sub(2),
        _ => return,
    };
    if let Some(place) = prefix.get_mut(at..at + 2) {
        place.copy_from_slice(&protocol.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_header_is_found_behind_every_link() {
        let ip = [0x45; 20];
        let behind = |front: &[u8]| [front, &ip].concat();
        let mut v1 = [0; 16];
        v1[14] = 8;
        let mut v2 = [0; 20];
        v2[..2].copy_from_slice(&[0x86, 0xdd]);
        let mut tagged = [0; 24];
        tagged[..2].copy_from_slice(&[0x81, 0]);
        tagged[22] = 8;
        let cases = [
            (ETHERNET, behind(&[]), Some((0, Start::Ethernet))),
            (RAW, behind(&[]), Some((0, Start::Ip))),
            (IPV4, behind(&[]), Some((0, Start::Ip))),
            (IPV6, behind(&[]), Some((0, Start::Ip))),
            (COOKED, behind(&v1), Some((16, Start::Ip))),
            (COOKED2, behind(&v2), Some((20, Start::Ip))),
            (COOKED2, behind(&tagged), Some((24, Start::Ip))),
            (NULL, behind(&[2, 0, 0, 0]), Some((4, Start::Ip))),
            (LOOP, behind(&[0, 0, 0, 30]), Some((4, Start::Ip))),
            (NULL, behind(&[7, 0, 0, 0]), None),
            (COOKED, behind(&[0; 16]), None),
            (COOKED, vec![0; 15], None),
            (RAW, vec![], None),
            (127, behind(&[]), None),
        ];
        for (link, data, expected) in cases {
            assert_eq!(start(link, &data), expected, "link {link}");
        }
    }

    #[test]
    fn the_protocol_is_written_where_it_is_read() {
        for (link, len) in [(COOKED, 16), (COOKED2, 20), (ETHERNET, 14), (ETHERNET, 18)] {
            let mut prefix = vec![0; len];
            set_protocol(link, &mut prefix, ethertype::IPV6);
            if link == ETHERNET {
                assert_eq!(prefix[len - 2..], [0x86, 0xdd]);
            } else {
                prefix.extend([0x60; 40]);
                assert_eq!(start(link, &prefix), Some((len, Start::Ip)));
            }
        }
    }
}
