//! The reasons why a datagram is dropped.

use crate::packet::remote;
use crate::wire::{geneve, gue, vxlan};

crate::reasons! {
    /// The reason why a datagram, or its inner packet, was dropped.
    pub enum DecapRefusal {
        OuterMalformed = "outer_malformed": "The outer IP or UDP header contradicts the bytes present.",
        OuterFragment = "outer_fragment": "An outer IP fragment: put it together first.",
        OuterProtocol = "outer_protocol": "The outer packet is not UDP, or has not the tunnel's protocol where it goes without UDP.",
        OuterAddress = "outer_address": "The outer addresses are not those of this tunnel.",
        OuterPort = "outer_port": "The outer destination port is not ours.",
        OuterIpCsum = "outer_ip_csum": "The outer IPv4 header checksum is wrong.",
        OuterCsum = "outer_csum": "The outer UDP checksum is wrong.",
        OuterCsumAbsent = "outer_csum_absent": "No outer UDP checksum over IPv6, where the tunnel is not set to do without.",
        GueTruncated = "gue_truncated": "The datagram ends inside the GUE header.",
        GueVersion = "gue_version": "GUE version 2 or 3, or version 1 whose payload is neither IPv4 nor IPv6.",
        GueControl = "gue_control": "A GUE control message.",
        GueFlags = "gue_flags": "A GUE flag or private flag that is not known.",
        GueHeaderLen = "gue_header_len": "A GUE header length too short for what the flags announce.",
        VxlanTruncated = "vxlan_truncated": "The datagram ends inside the VXLAN header.",
        VxlanNoVni = "vxlan_no_vni": "The VXLAN header has no valid network identifier.",
        VxlanFlags = "vxlan_flags": "A VXLAN flag that is not known, or a reserved bit.",
        GeneveTruncated = "geneve_truncated": "The datagram ends inside the Geneve header.",
        GeneveVersion = "geneve_version": "A Geneve version other than 0.",
        GeneveControl = "geneve_control": "A Geneve control packet.",
        GeneveOptions = "geneve_options": "Geneve options whose lengths contradict each other.",
        GeneveCritical = "geneve_critical": "A critical option of Geneve that is not known, as none is.",
        Vni = "vni": "The network identifier is another.",
        RemcsumUnwanted = "remcsum_unwanted": "A remote checksum over VXLAN, where the tunnel is not set to take it.",
        InnerProtocol = "inner_protocol": "The tunnel header announces a protocol that the tunnel's mode does not have.",
        InnerVersion = "inner_version": "The inner packet's IP version is not what its tunnel or header announces.",
        InnerMalformed = "inner_malformed": "The inner IP or Ethernet header contradicts the bytes present.",
        InnerSource = "inner_source": "The inner source address is multicast, broadcast or loopback; of a frame, a group address, zero, or the interface's own.",
        GreMalformed = "gre_malformed": "The GRE header is cut off, has another version, or flags that are not known.",
        GreMismatch = "gre_mismatch": "Key, checksum or sequence number are not present as this tunnel has them, or the key is another.",
        GreCsum = "gre_csum": "The GRE checksum is wrong.",
        GreSeq = "gre_seq": "The GRE sequence number is older than one seen.",
        RemcsumNoOuterCsum = "remcsum_no_outer_csum": "A remote checksum option without a verified outer UDP checksum.",
        RemcsumOrder = "remcsum_order": "A remote checksum field before the start of its sum, or at an odd distance from it.",
        RemcsumBounds = "remcsum_bounds": "A remote checksum start or field past the packet.",
        RemcsumField = "remcsum_field": "A remote checksum offset that is not the checksum field of a header in this packet.",
        RemcsumPrimed = "remcsum_primed": "A remote checksum field that does not hold the pseudo-header sum.",
        Ecn = "ecn": "Congestion was marked outside, and the inner packet has no ECN (RFC 6040).",
    }
}

impl From<gue::Refusal> for DecapRefusal {
    fn from(refusal: gue::Refusal) -> DecapRefusal {
        match refusal {
            gue::Refusal::Truncated => DecapRefusal::GueTruncated,
            gue::Refusal::Version => DecapRefusal::GueVersion,
            gue::Refusal::Control => DecapRefusal::GueControl,
            gue::Refusal::Flags => DecapRefusal::GueFlags,
            gue::Refusal::HeaderLen => DecapRefusal::GueHeaderLen,
        }
    }
}

impl From<vxlan::Refusal> for DecapRefusal {
    fn from(refusal: vxlan::Refusal) -> DecapRefusal {
        match refusal {
            vxlan::Refusal::Truncated => DecapRefusal::VxlanTruncated,
            vxlan::Refusal::NoVni => DecapRefusal::VxlanNoVni,
            vxlan::Refusal::Flags => DecapRefusal::VxlanFlags,
        }
    }
}

impl From<geneve::Refusal> for DecapRefusal {
    fn from(refusal: geneve::Refusal) -> DecapRefusal {
        match refusal {
            geneve::Refusal::Truncated => DecapRefusal::GeneveTruncated,
            geneve::Refusal::Version => DecapRefusal::GeneveVersion,
            geneve::Refusal::Control => DecapRefusal::GeneveControl,
            geneve::Refusal::Options => DecapRefusal::GeneveOptions,
        }
    }
}

impl From<remote::Refusal> for DecapRefusal {
    fn from(refusal: remote::Refusal) -> DecapRefusal {
        match refusal {
            remote::Refusal::Order => DecapRefusal::RemcsumOrder,
            remote::Refusal::Bounds => DecapRefusal::RemcsumBounds,
            remote::Refusal::Field => DecapRefusal::RemcsumField,
        }
    }
}
