//! The wire formats of the engine in the types of the assembler: offsets and lengths of 16 bits, values of 32.

use segue::wire;

/// Sizes of the Ethernet header.
pub(crate) mod ethernet {
    use super::wire::ethernet;

    pub(crate) const LEN: i16 = ethernet::LEN as i16;
    pub(crate) const SRC: i16 = ethernet::SRC.start as i16;
    pub(crate) const TYPE: i16 = ethernet::TYPE as i16;
    /// Length of both addresses, with which the header begins.
    pub(crate) const ADDRESSES_LEN: i16 = TYPE;
    pub(crate) const VLAN_LEN: i16 = ethernet::VLAN_LEN as i16;
    /// Offset of the EtherType in a VLAN tag, from the tag control information on.
    pub(crate) const VLAN_TYPE: i16 = ethernet::VLAN_TYPE as i16;
    /// Bit of an address's first byte that marks group addresses.
    pub(crate) const GROUP: i32 = ethernet::GROUP as i32;
}

/// EtherTypes in host byte order.
pub(crate) mod ethertype {
    use super::wire::ethertype;

    pub(crate) const IPV4: i32 = ethertype::IPV4 as i32;
    pub(crate) const IPV6: i32 = ethertype::IPV6 as i32;
    pub(crate) const VLANS: [i32; 2] = [ethertype::VLAN as i32, ethertype::QINQ as i32];
}

/// IP protocol numbers.
pub(crate) mod number {
    use super::wire::protocol;

    pub(crate) const IPV4: i32 = protocol::IPV4 as i32;
    pub(crate) const TCP: i32 = protocol::TCP as i32;
    pub(crate) const UDP: i32 = protocol::UDP as i32;
    pub(crate) const IPV6: i32 = protocol::IPV6 as i32;
    pub(crate) const GRE: i32 = protocol::GRE as i32;
    pub(crate) const ICMPV6: i32 = protocol::ICMPV6 as i32;
    pub(crate) const FRAGMENT: i32 = protocol::FRAGMENT as i32;
    /// IPv6 extension headers before the transport header, those of fragments aside.
    pub(crate) const EXTENSIONS: [i32; 3] =
        [protocol::HOP_BY_HOP as i32, protocol::ROUTING as i32, protocol::DESTINATION as i32];
}

/// Field offsets of the IPv4 header.
pub(crate) mod ipv4 {
    use super::wire::ipv4;

    /// Length of the IPv4 header without options, bytes.
    pub(crate) const LEN: i16 = ipv4::MIN_LEN as i16;
    /// First byte of a header without options: version and length.
    pub(crate) const FIRST: i32 = 0x40 | (LEN as i32 / 4);
    pub(crate) const TOS: i16 = ipv4::TOS as i16;
    pub(crate) const TOTAL_LEN: i16 = ipv4::TOTAL_LEN as i16;
    pub(crate) const ID: i16 = ipv4::ID as i16;
    pub(crate) const FRAGMENT: i16 = ipv4::FRAGMENT as i16;
    pub(crate) const TTL: i16 = ipv4::TTL as i16;
    pub(crate) const PROTOCOL: i16 = ipv4::PROTOCOL as i16;
    pub(crate) const CHECKSUM: i16 = ipv4::CHECKSUM as i16;
    pub(crate) const SRC: i16 = ipv4::SRC.start as i16;
    pub(crate) const DST: i16 = ipv4::DST.start as i16;
    pub(crate) const ADDRESS_LEN: i16 = DST - SRC;
    pub(crate) const DF: i32 = ipv4::DF as i32;
    /// Bits of the fragment field that only fragments have: MF and the offset.
    pub(crate) const IS_FRAGMENT: i32 = (ipv4::MF | ipv4::OFFSET) as i32;
    pub(crate) const OFFSET: i32 = ipv4::OFFSET as i32;
}

/// Field offsets of the IPv6 header.
pub(crate) mod ipv6 {
    use super::wire::ipv6;

    pub(crate) const LEN: i16 = ipv6::LEN as i16;
    pub(crate) const FRAGMENT_LEN: i16 = ipv6::FRAGMENT_LEN as i16;
    pub(crate) const FRAGMENT: i16 = ipv6::FRAGMENT as i16;
    pub(crate) const FRAGMENT_ID: i16 = ipv6::FRAGMENT_ID as i16;
    pub(crate) const OFFSET: i32 = ipv6::OFFSET as i32;
    /// Bits of the fragment field that an atomic fragment (RFC 6946) has not: MF and the offset.
    pub(crate) const IS_FRAGMENT: i32 = (ipv6::MF | ipv6::OFFSET) as i32;
    pub(crate) const PAYLOAD_LEN: i16 = ipv6::PAYLOAD_LEN as i16;
    pub(crate) const NEXT_HEADER: i16 = ipv6::NEXT_HEADER as i16;
    pub(crate) const HOP_LIMIT: i16 = ipv6::HOP_LIMIT as i16;
    pub(crate) const SRC: i16 = ipv6::SRC.start as i16;
    pub(crate) const DST: i16 = ipv6::DST.start as i16;
    pub(crate) const ADDRESS_LEN: i16 = DST - SRC;
}

/// Field offsets of the UDP header.
pub(crate) mod udp {
    use super::wire::udp;

    pub(crate) const LEN: i16 = udp::LEN as i16;
    pub(crate) const DST_PORT: i16 = udp::DST_PORT as i16;
    pub(crate) const LENGTH: i16 = udp::LENGTH as i16;
    pub(crate) const CHECKSUM: i16 = udp::CHECKSUM as i16;
}

/// Field offsets of the TCP header.
pub(crate) mod tcp {
    use super::wire::tcp;

    /// Offset of the byte whose upper half is the length of the header, in words of four bytes.
    pub(crate) const OFFSET: i16 = tcp::OFFSET as i16;
    pub(crate) const CHECKSUM: i16 = tcp::CHECKSUM as i16;
}

/// Field offsets of the GRE header.
pub(crate) mod gre {
    use super::wire::gre;

    /// Length of the GRE header without optional fields, bytes (RFC 2784).
    pub(crate) const LEN: i16 = gre::MIN_LEN as i16;
    pub(crate) const CSUM: i32 = gre::CSUM as i32;
    pub(crate) const KEY: i32 = gre::KEY as i32;
}

/// Returns the offset of the source address in an IP header, and the length of an address.
pub(crate) fn source(is_v4: bool) -> (i16, i16) {
    if is_v4 { (ipv4::SRC, ipv4::ADDRESS_LEN) } else { (ipv6::SRC, ipv6::ADDRESS_LEN) }
}

/// Returns the offset of the destination address in an IP header.
pub(crate) fn destination(is_v4: bool) -> i16 {
    if is_v4 { ipv4::DST } else { ipv6::DST }
}

/// Returns the length of an IP header without options.
pub(crate) fn ip_len(is_v4: bool) -> i16 {
    if is_v4 { ipv4::LEN } else { ipv6::LEN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_the_engines_constants_is_what_the_standards_say() {
        // RFC 791, section 3.1, and RFC 8200, section 3.
        assert_eq!((ipv4::FIRST, ipv4::IS_FRAGMENT), (0x45, 0x3fff));
        assert_eq!((source(true), destination(true), ip_len(true)), ((12, 4), 16, 20));
        assert_eq!((source(false), destination(false), ip_len(false)), ((8, 16), 24, 40));
        assert_eq!((ipv6::IS_FRAGMENT, ethernet::ADDRESSES_LEN), (0xfff9, 12));
        assert_eq!(ethertype::VLANS, [0x8100, 0x88a8]);
    }
}
