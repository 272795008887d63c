//! Neighbour discovery for IPv6 over Ethernet (RFC 4861): neighbour solicitations, neighbour advertisements and
//! redirects, with the options that carry link addresses.

use core::net::Ipv6Addr;

use super::icmp::{self, emit_v6, is_sum_right_v6};
use super::{address, ethernet, ethertype, ipv6, protocol, read_u16, write_u16};

/// Type of a router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// Type of a router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Type of a neighbour solicitation.
pub const SOLICITATION: u8 = 135;
/// Type of a neighbour advertisement.
pub const ADVERTISEMENT: u8 = 136;
/// ICMPv6 type of a redirect.
pub const REDIRECT: u8 = icmp::v6::REDIRECT;

/// Hop limit of every message, which proves that no router has forwarded it (RFC 4861, section 3.1).
pub const HOP_LIMIT: u8 = 255;
/// Length in bytes of a solicitation or an advertisement without options.
pub const MIN_LEN: usize = 24;
/// Length in bytes of a redirect without options.
pub const REDIRECT_LEN: usize = 40;
/// Offset of the target address in all three messages.
pub const TARGET: usize = 8;
/// Offset of the destination address in a redirect.
pub const REDIRECT_DESTINATION: usize = 24;
/// Length in bytes of the longest Ethernet frame that [`Message::frame`] writes: a redirect with its option.
pub const MAX_FRAME: usize = ethernet::LEN + ipv6::LEN + REDIRECT_LEN + LINK_OPTION_LEN;

/// Flag of an advertisement: its sender is a router.
pub const ROUTER: u8 = 0x80;
/// Flag of an advertisement: it answers a solicitation.
pub const SOLICITED: u8 = 0x40;
/// Flag of an advertisement: its link address replaces a cached one.
pub const OVERRIDE: u8 = 0x20;

/// Option with the link address of the sender of a solicitation.
pub const SOURCE_LINK: u8 = 1;
/// Option with the link address of the target of an advertisement or a redirect.
pub const TARGET_LINK: u8 = 2;
/// Length in bytes of an option with an Ethernet address.
pub const LINK_OPTION_LEN: usize = 8;

/// The message after the IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Requests the link address of the target.
    Solicitation {
        /// The address that the solicitation asks about.
        target: Ipv6Addr,
        /// Link address of the sender; never there in a message from the unspecified address.
        source_link: Option<[u8; 6]>,
    },
    /// Announces the link address of the target.
    Advertisement {
        /// The address that the advertisement is about.
        target: Ipv6Addr,
        /// Link address of the target. An answer to a solicitation that came to one host may leave it out.
        target_link: Option<[u8; 6]>,
        /// The flags [`ROUTER`], [`SOLICITED`] and [`OVERRIDE`]; other bits are 0.
        flags: u8,
    },
    /// Announces a better next hop for a destination.
    Redirect {
        /// The better next hop, or the destination itself where that is a neighbour.
        target: Ipv6Addr,
        /// The destination of the redirected packets.
        destination: Ipv6Addr,
        /// Link address of the target.
        target_link: Option<[u8; 6]>,
    },
}

/// A neighbour discovery message with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Source of the IPv6 packet.
    pub source: Ipv6Addr,
    /// Destination of the IPv6 packet.
    pub destination: Ipv6Addr,
    /// Content of the message.
    pub body: Body,
}

impl Message {
    /// Reads the IPv6 packet in `bytes`, which padding may follow.
    ///
    /// `None` for other messages, with extension headers, and for what RFC 4861 has receivers discard (sections 7.1.1,
    /// 7.1.2 and 8.1): another hop limit or code, a wrong checksum, an option of length 0, a target that is multicast,
    /// a solicitation from the unspecified address that has a link address or goes to an address that is not a
    /// solicited-node one, a solicited advertisement to a multicast address, a redirect from an address that is not
    /// link-local. Also `None` where an option with a link address has another length than one with an Ethernet
    /// address.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let (header, rest) = bytes.split_first_chunk::<{ ipv6::LEN }>()?;
        let is_discovery = header[0] >> 4 == 6
            && header[ipv6::NEXT_HEADER] == protocol::ICMPV6
            && header[ipv6::HOP_LIMIT] == HOP_LIMIT;
        let message = rest.get(..usize::from(read_u16(header, ipv6::PAYLOAD_LEN)?)).filter(|_| is_discovery)?;
        let (source, destination) = (address::v6(&header[ipv6::SRC])?, address::v6(&header[ipv6::DST])?);
        let target = address::v6(message.get(TARGET..)?)?;
        let (kind, code) = (message[icmp::TYPE], message[icmp::CODE]);
        if code != 0 || !matches!(kind, SOLICITATION | ADVERTISEMENT | REDIRECT) {
            return None;
        }
        if !is_sum_right_v6(message, source, destination) {
            return None;
        }
        let body = match kind {
            SOLICITATION => {
                let source_link = link_option(&message[MIN_LEN..], SOURCE_LINK)?;
                let is_probe = source.is_unspecified();
                if is_probe && (source_link.is_some() || destination != solicited_node(target)) {
                    return None;
                }
                Body::Solicitation { target, source_link }
            }
            ADVERTISEMENT => {
                let flags = message[icmp::REST] & (ROUTER | SOLICITED | OVERRIDE);
                if flags & SOLICITED != 0 && destination.is_multicast() {
                    return None;
                }
                Body::Advertisement { target, target_link: link_option(&message[MIN_LEN..], TARGET_LINK)?, flags }
            }
            _ => {
                let about = address::v6(message.get(REDIRECT_DESTINATION..)?)?;
                if !source.is_unicast_link_local() || about.is_multicast() {
                    return None;
                }
                let target_link = link_option(&message[REDIRECT_LEN..], TARGET_LINK)?;
                Body::Redirect { target, destination: about, target_link }
            }
        };
        (!target.is_multicast()).then_some(Message { source, destination, body })
    }

    /// Returns the length of the IPv6 packet that [`Message::emit`] writes.
    pub fn packet_len(&self) -> usize {
        let (len, link) = match self.body {
            Body::Solicitation { source_link, .. } => (MIN_LEN, source_link),
            Body::Advertisement { target_link, .. } => (MIN_LEN, target_link),
            Body::Redirect { target_link, .. } => (REDIRECT_LEN, target_link),
        };
        ipv6::LEN + len + if link.is_some() { LINK_OPTION_LEN } else { 0 }
    }

    /// Writes the IPv6 packet into the first [`Message::packet_len`] bytes; `None` if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) -> Option<()> {
        let bytes = bytes.get_mut(..self.packet_len())?;
        let (header, message) = bytes.split_at_mut(ipv6::LEN);
        header.fill(0);
        message.fill(0);
        header[ipv6::VERSION_CLASS_LABEL] = 0x60;
        // At most 48.
        write_u16(header, ipv6::PAYLOAD_LEN, message.len() as u16);
        header[ipv6::NEXT_HEADER] = protocol::ICMPV6;
        header[ipv6::HOP_LIMIT] = HOP_LIMIT;
        header[ipv6::SRC].copy_from_slice(&self.source.octets());
        header[ipv6::DST].copy_from_slice(&self.destination.octets());
        let (kind, target, link, flags) = match self.body {
            Body::Solicitation { target, source_link } => (SOLICITATION, target, (SOURCE_LINK, source_link), 0),
            Body::Advertisement { target, target_link, flags } => {
                (ADVERTISEMENT, target, (TARGET_LINK, target_link), flags & (ROUTER | SOLICITED | OVERRIDE))
            }
            Body::Redirect { target, destination, target_link } => {
                message[REDIRECT_DESTINATION..REDIRECT_LEN].copy_from_slice(&destination.octets());
                (REDIRECT, target, (TARGET_LINK, target_link), 0)
            }
        };
        message[TARGET..TARGET + 16].copy_from_slice(&target.octets());
        if let (option, Some(mac)) = link
            && let Some(place) = message.last_chunk_mut::<LINK_OPTION_LEN>()
        {
            let [a, b, c, d, e, f] = mac;
            // The length counts units of 8 bytes.
            *place = [option, 1, a, b, c, d, e, f];
        }
        emit_v6(message, (self.source, self.destination), kind, 0, u32::from(flags) << 24)
    }

    /// Writes the Ethernet frame with the packet into `bytes` and returns its length; `None` if `bytes` is too short.
    pub fn frame(&self, destination: [u8; 6], source: [u8; 6], bytes: &mut [u8]) -> Option<usize> {
        let (header, packet) = bytes.split_first_chunk_mut::<{ ethernet::LEN }>()?;
        self.emit(packet)?;
        *header = ethernet::header(destination, source, ethertype::IPV6);
        Some(ethernet::LEN + self.packet_len())
    }
}

/// Returns the Ethernet address in the last option of the given type, `Some(None)` without such an option, and `None`
/// if an option is truncated, has length 0, or is of that type and has no Ethernet address.
fn link_option(mut options: &[u8], wanted: u8) -> Option<Option<[u8; 6]>> {
    let mut found = None;
    while !options.is_empty() {
        let (kind, units) = (options[0], *options.get(1)?);
        let (option, others) = options.split_at_checked(usize::from(units) * LINK_OPTION_LEN)?;
        if option.is_empty() || kind == wanted && option.len() != LINK_OPTION_LEN {
            return None;
        }
        if kind == wanted {
            found = Some(*option.get(2..)?.first_chunk()?);
        }
        options = others;
    }
    Some(found)
}

/// Returns the solicited-node multicast address of `target` (RFC 4291, section 2.7.1).
pub const fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    const PREFIX: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(PREFIX | target.to_bits() & 0x00ff_ffff)
}

/// Returns the Ethernet address that frames to an IPv6 multicast address go to (RFC 2464, section 7).
pub const fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
    const HOST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0x12, 0x3456);
    const ROUTER_ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

    fn messages() -> Vec<Message> {
        let mut all = Vec::new();
        for link in [None, Some(MAC)] {
            let advertisement = |flags| Body::Advertisement { target: HOST, target_link: link, flags };
            for (source, destination, body) in [
                (ROUTER_ADDRESS, solicited_node(HOST), Body::Solicitation { target: HOST, source_link: link }),
                (ROUTER_ADDRESS, HOST, Body::Solicitation { target: HOST, source_link: link }),
                (HOST, ROUTER_ADDRESS, advertisement(SOLICITED)),
                (HOST, ROUTER_ADDRESS, advertisement(SOLICITED | OVERRIDE | ROUTER)),
                (HOST, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), advertisement(OVERRIDE)),
                (ROUTER_ADDRESS, HOST, Body::Redirect { target: HOST, destination: HOST, target_link: link }),
            ] {
                all.push(Message { source, destination, body });
            }
        }
        all
    }

    fn bytes(message: &Message) -> Vec<u8> {
        let mut bytes = vec![0xee; message.packet_len()];
        message.emit(&mut bytes).unwrap();
        bytes
    }

    /// Returns the packet with its checksum corrected after a change.
    fn summed(mut bytes: Vec<u8>, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
        let message = &mut bytes[ipv6::LEN..];
        let rest = u32::from_be_bytes(message[4..8].try_into().unwrap());
        let (kind, code) = (message[0], message[1]);
        emit_v6(message, (source, destination), kind, code, rest).unwrap();
        bytes
    }

    #[test]
    fn every_message_reads_back_as_written_and_no_shorter_one_does() {
        for message in messages() {
            let mut packet = bytes(&message);
            assert_eq!(Message::parse(&packet), Some(message));
            for len in 0..packet.len() {
                assert_eq!(Message::parse(&packet[..len]), None, "{len} of {message:?}");
                assert_eq!(message.emit(&mut packet.clone()[..len]), None);
            }
            packet.extend([0; 6]);
            assert_eq!(Message::parse(&packet), Some(message), "with padding");
            let mut frame = [0; MAX_FRAME];
            let len = message.frame([1; 6], MAC, &mut frame).unwrap();
            assert_eq!(frame[..ethernet::LEN], ethernet::header([1; 6], MAC, ethertype::IPV6));
            assert_eq!(Message::parse(&frame[ethernet::LEN..len]), Some(message));
            assert!((0..len).all(|len| message.frame([1; 6], MAC, &mut [0; MAX_FRAME][..len]).is_none()));
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        for message in messages() {
            let packet = bytes(&message);
            // Behind traffic class and flow label, which mean nothing here.
            for at in 4..packet.len() {
                let mut spoiled = packet.clone();
                spoiled[at] ^= 0x55;
                assert_eq!(Message::parse(&spoiled), None, "byte {at} of {message:?}");
            }
        }
    }

    #[test]
    fn what_rfc_4861_has_receivers_discard_is_not_read() {
        let unspecified = Ipv6Addr::UNSPECIFIED;
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let probe = |destination, source_link| Message {
            source: unspecified,
            destination,
            body: Body::Solicitation { target: HOST, source_link },
        };
        let good = probe(solicited_node(HOST), None);
        assert_eq!(Message::parse(&bytes(&good)), Some(good));
        let solicited = Body::Advertisement { target: HOST, target_link: Some(MAC), flags: SOLICITED };
        let redirect = |destination| Body::Redirect { target: HOST, destination, target_link: None };
        let mut bad = vec![
            bytes(&probe(HOST, None)),
            bytes(&probe(solicited_node(HOST), Some(MAC))),
            bytes(&Message { source: HOST, destination: group, body: solicited }),
            bytes(&Message { source: HOST, destination: HOST, body: redirect(HOST) }),
            bytes(&Message { source: ROUTER_ADDRESS, destination: HOST, body: redirect(group) }),
        ];
        for message in messages() {
            let body = match message.body {
                Body::Solicitation { source_link, .. } => Body::Solicitation { target: group, source_link },
                Body::Advertisement { target_link, flags, .. } => {
                    Body::Advertisement { target: group, target_link, flags }
                }
                Body::Redirect { destination, target_link, .. } => {
                    Body::Redirect { target: group, destination, target_link }
                }
            };
            bad.push(bytes(&Message { body, ..message }));
            let mut code = bytes(&message);
            code[ipv6::LEN + icmp::CODE] = 1;
            bad.push(summed(code, message.source, message.destination));
            let mut forwarded = bytes(&message);
            forwarded[ipv6::HOP_LIMIT] = 254;
            bad.push(forwarded);
        }
        for packet in bad {
            assert_eq!(Message::parse(&packet), None, "{packet:02x?}");
        }
    }

    #[test]
    fn options_are_walked_by_their_lengths() {
        let message = Message {
            source: HOST,
            destination: ROUTER_ADDRESS,
            body: Body::Advertisement { target: HOST, target_link: None, flags: SOLICITED },
        };
        let with = |options: &[u8]| {
            let mut packet = bytes(&message);
            packet.extend(options);
            let len = packet.len() - ipv6::LEN;
            write_u16(&mut packet, ipv6::PAYLOAD_LEN, len as u16);
            Message::parse(&summed(packet, HOST, ROUTER_ADDRESS)).map(|message| match message.body {
                Body::Advertisement { target_link, .. } => target_link,
                other => panic!("{other:?}"),
            })
        };
        let link = [&[TARGET_LINK, 1][..], &MAC].concat();
        let unknown = [&[200, 2][..], &[9; 14]].concat();
        assert_eq!(with(&[]), Some(None));
        assert_eq!(with(&unknown), Some(None));
        assert_eq!(with(&[&unknown[..], &link].concat()), Some(Some(MAC)));
        assert_eq!(with(&[&[SOURCE_LINK, 1, 9, 9, 9, 9, 9, 9][..], &link].concat()), Some(Some(MAC)));
        for bad in [&[0, 0, 0, 0, 0, 0, 0, 0][..], &[200, 1, 0], &[200], &[TARGET_LINK, 2], &link[..7]] {
            assert_eq!(with(bad), None, "{bad:?}");
        }
        assert_eq!(with(&[&[TARGET_LINK, 2][..], &[7; 14]].concat()), None, "no Ethernet address");
    }

    #[test]
    fn groups_of_a_target() {
        let group = solicited_node(HOST);
        assert_eq!(group, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff12, 0x3456));
        assert_eq!(multicast_mac(group), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn the_longest_frame_is_a_redirect_with_a_link_address() {
        let longest = messages().iter().map(|message| ethernet::LEN + message.packet_len()).max();
        assert_eq!((longest, MAX_FRAME), (Some(MAX_FRAME), 102));
    }
}
