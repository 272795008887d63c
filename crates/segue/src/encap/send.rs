//! Encapsulation.

use core::net::IpAddr;

use super::config::{Carrier, Config, ConfigError, Mode, SourcePorts, Tos, Ttl};
use super::entropy::FlowHash;
use super::inner::{self, Inner};
use super::{GreOptions, ecn};
use crate::checksum::{Field, Sum};
use crate::packet::{Csum, Kind, Layer, LayerCsum, Layout, Outer, Packet, Remote, Stop, Unit, remote};
use crate::wire::gre::Gre;
use crate::wire::gue::Gue;
use crate::wire::{ethertype, ipv4, ipv6, protocol, udp, write_u16, write_u32};

crate::reasons! {
    /// Why a packet was not put into the tunnel.
    pub enum Refusal {
        InnerMalformed = "inner_malformed": "It does not begin with a whole IPv4 or IPv6 header.",
        InnerLength = "inner_length": "The packet is shorter than its IP header says.",
        InnerVersion = "inner_version": "The tunnel's mode does not take this IP version.",
        TooDeep = "too_deep": "There are too many headers or tunnels around it already.",
        TooLong = "too_long": "With the outer headers it would be longer than an IP packet can be.",
    }
}

/// First of the ports that the flow hash is spread over (RFC 8086, section 3.2.1: the dynamic ports).
const FIRST_SOURCE_PORT: u16 = 49152;
/// Bytes of outer IPv6 and UDP.
const MAX_OUTER_LEN: usize = ipv6::LEN + udp::LEN;

/// Puts packets and trains into a tunnel.
#[derive(Clone, Debug)]
pub struct Encapsulator {
    config: Config,
    /// Whether it was made with remote checksum offload.
    can_remcsum: bool,
    /// Outer IP and UDP with everything that is the same for all packets.
    template: [u8; MAX_OUTER_LEN],
    hash: FlowHash,
    /// Identification of the next outer IPv4 packet.
    next_id: u16,
    /// Sequence number of the next GRE packet.
    next_seq: u32,
}

impl Encapsulator {
    /// A tunnel's sending half; GRE sequence numbers start at 0, as Linux has them.
    pub fn new(config: Config) -> Result<Encapsulator, ConfigError> {
        config.check()?;
        let hash = FlowHash::new(config.seed);
        let template = template(&config);
        Ok(Encapsulator { config, can_remcsum: config.remcsum(), template, hash, next_id: 0, next_seq: 0 })
    }

    /// What it was made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Leaves checksums to the far end from the next packet on, or no longer. Only a tunnel that was made with remote
    /// checksum offload, whose users reckon with the length of its option, can be asked for it; `false` for others.
    pub fn set_remcsum(&mut self, on: bool) -> bool {
        let can = self.can_remcsum;
        if let (true, Carrier::Gue { remcsum }) = (can, &mut self.config.carrier) {
            *remcsum = on;
        }
        can
    }

    /// Puts the outer headers in front of `packet`, whose layout starts at the inner IP header, and adds a level to its
    /// offload state. Padding behind the inner packet is cut off. On a refusal the packet is as it was.
    ///
    /// The headers of a single packet are final but for the checksums that its [`Layer`] says are owed. Those of a train
    /// have 0 for every outer length and for the outer IPv4 header checksum, the first segment's identification and GRE
    /// sequence number, and as many of both are used up as the train has segments: [`gso`](crate::gso) fills in the
    /// rest when it cuts.
    ///
    /// With remote checksum offload, a pending transport checksum stays pending for good, and the level says so
    /// ([`Remote::Transport`]); that is the case for trains, too, whose segments' checksums were verified and can be left
    /// to the far end like any others. Where nothing is pending inside and the GRE header has a checksum, that becomes the
    /// far end's ([`Remote::Gre`]), as Linux does it. Fragments, ICMP and packets with a complete checksum otherwise go
    /// with a plain GUE header; so does what is in a tunnel already, since a packet can have only one option.
    pub fn push<B: AsRef<[u8]>>(&mut self, packet: &mut Packet<B>) -> Result<(), Refusal> {
        let inner = Inner::of(packet).ok_or(Refusal::InnerMalformed)?;
        if !self.config.mode.takes(inner.version) {
            return Err(Refusal::InnerVersion);
        }
        let whole = matches!(packet.offload.unit, Unit::Whole(_));
        let inner_len = if whole { inner.total_len } else { packet.len() };
        let payload_len = inner_len.checked_sub(packet.layout.header_len()).ok_or(Refusal::InnerLength)?;
        if inner_len > packet.len() {
            return Err(Refusal::InnerLength);
        }

        let gre = match self.config.mode {
            Mode::Gre(options) => Some(self.gre_header(&options, inner.version)),
            Mode::Ipip | Mode::Sit | Mode::Ip => None,
        };
        let gre_csum = gre.is_some_and(|gre| gre.checksum.is_some());
        let remote = self.remote(packet, inner_len, gre_csum);

        // Everything that can fail comes before the first change.
        let outer = self.outer_layout(gre, remote);
        let mut layout = packet.layout;
        let mut offload = packet.offload;
        let owed = |owed: bool| if owed { LayerCsum::Owed } else { LayerCsum::Absent };
        let layer = Layer { udp: owed(self.config.csum), gre: owed(gre_csum), remote };
        if !layout.prepend(&outer) || !offload.push_outer(layer) {
            return Err(Refusal::TooDeep);
        }
        let total_len = outer.header_len() + inner_len;
        let countable = if self.config.local.is_ipv4() { total_len } else { total_len - ipv6::LEN };
        let Ok(countable) = u16::try_from(if whole { countable } else { 0 }) else { return Err(Refusal::TooLong) };
        let option = match remote {
            Some(remote) => Some(remote::place(&layout, GUE_IDX, remote).ok_or(Refusal::TooDeep)?),
            None => None,
        };
        let bytes = packet.head.push_front(outer.header_len()).ok_or(Refusal::TooDeep)?;

        let segs = segments(&packet.offload.unit, payload_len);
        let hash = self.hash.of(&inner);
        let (slot, port) = self.source(hash);
        let meta = Outer {
            slot,
            tos: self.tos(&inner),
            ttl: match self.config.ttl {
                Ttl::Inherit => inner.ttl,
                Ttl::Fixed(ttl) => ttl,
            },
            df: self.config.pmtudisc || inner.df,
            skip: self.config.outer_len() as u16, // 28 or 48
        };
        let (outer_bytes, rest) = bytes.split_at_mut(self.config.outer_len());
        outer_bytes.copy_from_slice(&self.template[..outer_bytes.len()]);
        let udp_at = outer_bytes.len() - udp::LEN;
        if self.config.local.is_ipv4() {
            write_ipv4(outer_bytes, &meta, countable, self.next_id);
            self.next_id = self.next_id.wrapping_add(segs as u16);
        } else {
            write_ipv6(outer_bytes, &meta, countable, hash as u32);
        }
        write_u16(outer_bytes, udp_at + udp::SRC_PORT, port);
        let udp_len = if whole { total_len - udp_at } else { 0 };
        // No more than `countable`, which fits.
        write_u16(outer_bytes, udp_at + udp::LENGTH, udp_len as u16);
        let gre_at = match self.config.carrier {
            Carrier::Gue { .. } => {
                Gue::emit(rest, self.config.mode.protocol(inner.version), option);
                Gue::emit_len(option.is_some())
            }
            Carrier::Fou => 0,
        };
        if let Some(gre) = gre {
            gre.emit(&mut rest[gre_at..]);
            if gre.seq.is_some() {
                self.next_seq = self.next_seq.wrapping_add(segs as u32);
            }
        }

        match &mut offload.unit {
            // Of other bytes than those that are there now.
            Unit::Whole(csum @ Csum::Complete(_)) => *csum = Csum::Unknown,
            Unit::Whole(_) => {}
            Unit::Train { gso, .. } => {
                // One bit a header; the outer IPv4 header counts up.
                gso.fixed_ids = gso.fixed_ids.checked_shl(outer.headers().len() as u32).unwrap_or(0);
            }
        }
        packet.payload.truncate(payload_len);
        packet.layout = layout;
        packet.offload = offload;
        packet.outer = Some(meta);
        Ok(())
    }

    /// Whose checksum is left to the far end.
    fn remote<B: AsRef<[u8]>>(&self, packet: &Packet<B>, inner_len: usize, gre_csum: bool) -> Option<Remote> {
        if !self.config.remcsum() || !packet.offload.layers().is_empty() {
            return None;
        }
        match packet.offload.unit {
            // A field that the far end would not find as it must be is completed here.
            Unit::Whole(Csum::Partial) | Unit::Train { .. } => {
                let (sum, field) = inner::primed(&packet.head, &packet.layout, inner_len)?;
                (sum == Sum::of(&field.to_be_bytes())).then_some(Remote::Transport)
            }
            Unit::Whole(_) => gre_csum.then_some(Remote::Gre),
        }
    }

    fn gre_header(&self, options: &GreOptions, version: u8) -> Gre {
        Gre {
            protocol: if version == 4 { ethertype::IPV4 } else { ethertype::IPV6 },
            checksum: options.ocsum.then_some(0),
            key: options.okey,
            seq: options.oseq.then_some(self.next_seq),
        }
    }

    fn outer_layout(&self, gre: Option<Gre>, remote: Option<Remote>) -> Layout {
        let mut layout = Layout::empty(Stop::Protocol);
        // Four headers of at most 76 bytes always fit.
        if self.config.local.is_ipv4() {
            layout.push(Kind::Ipv4, ipv4::MIN_LEN);
        } else {
            layout.push(Kind::Ipv6, ipv6::LEN);
        }
        layout.push(Kind::Udp, udp::LEN);
        if let Carrier::Gue { .. } = self.config.carrier {
            layout.push(Kind::Gue, Gue::emit_len(remote.is_some()));
        }
        if let Some(gre) = gre {
            layout.push(Kind::Gre, gre.len());
        }
        layout
    }

    /// Socket and source port of a flow.
    ///
    /// Under GRE sequence numbers all flows take one socket: the far end drops what is older than the newest number that
    /// it saw, so nothing may overtake, and what leaves through several sockets does.
    fn source(&self, hash: u64) -> (u16, u16) {
        match self.config.slots {
            SourcePorts::Slots(_) if self.numbers() => (0, FIRST_SOURCE_PORT),
            // The upper half for the port, so that packets of one socket still differ; the remainders fit 16 bits.
            SourcePorts::Slots(slots) => {
                let slot = (hash as u32) % u32::from(slots.max(1));
                let span = u64::from(u16::MAX - FIRST_SOURCE_PORT) + 1;
                (slot as u16, FIRST_SOURCE_PORT + ((hash >> 32) % span) as u16)
            }
            SourcePorts::Fixed(port) => (0, port),
        }
    }

    /// Whether packets carry GRE sequence numbers.
    fn numbers(&self) -> bool {
        matches!(self.config.mode, Mode::Gre(options) if options.oseq)
    }

    fn tos(&self, inner: &Inner) -> u8 {
        match self.config.tos {
            Tos::Inherit => ecn::encapsulate(inner.tos, inner.tos),
            Tos::Fixed(dscp) => ecn::encapsulate(dscp, inner.tos),
        }
    }
}

/// Place of the GUE header among those that we put in front.
const GUE_IDX: usize = 2;

fn segments(unit: &Unit, payload: usize) -> usize {
    match unit {
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(payload),
    }
}

fn template(config: &Config) -> [u8; MAX_OUTER_LEN] {
    let mut bytes = [0; MAX_OUTER_LEN];
    match (config.local, config.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            bytes[ipv4::VERSION_IHL] = 0x45;
            bytes[ipv4::PROTOCOL] = protocol::UDP;
            bytes[ipv4::SRC].copy_from_slice(&local.octets());
            bytes[ipv4::DST].copy_from_slice(&remote.octets());
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            bytes[ipv6::NEXT_HEADER] = protocol::UDP;
            bytes[ipv6::SRC].copy_from_slice(&local.octets());
            bytes[ipv6::DST].copy_from_slice(&remote.octets());
        }
        // Refused by `Config::check`.
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
    }
    write_u16(&mut bytes, config.outer_len() - udp::LEN + udp::DST_PORT, config.dport);
    bytes
}

/// Fills the fields that differ from packet to packet. `total_len` is 0 for a train, whose header checksum is left out.
///
/// The identification counts up over all packets, with Don't Fragment too, where it would not have to (RFC 6864, section
/// 4): without it, it must be unique, and one rule is simpler than two.
fn write_ipv4(bytes: &mut [u8], meta: &Outer, total_len: u16, id: u16) {
    bytes[ipv4::TOS] = meta.tos;
    bytes[ipv4::TTL] = meta.ttl;
    write_u16(bytes, ipv4::TOTAL_LEN, total_len);
    write_u16(bytes, ipv4::ID, id);
    write_u16(bytes, ipv4::FRAGMENT, if meta.df { ipv4::DF } else { 0 });
    if total_len != 0 {
        let field = Field::complete(Sum::of(&bytes[..ipv4::MIN_LEN]));
        write_u16(bytes, ipv4::CHECKSUM, field.value());
    }
}

/// As [`write_ipv4`]; the flow label is made of the flow hash (RFC 6437, section 3; RFC 6438).
fn write_ipv6(bytes: &mut [u8], meta: &Outer, payload_len: u16, hash: u32) {
    let word = 6 << 28 | u32::from(meta.tos) << 20 | hash & 0x000f_ffff;
    write_u32(bytes, ipv6::VERSION_CLASS_LABEL, word);
    write_u16(bytes, ipv6::PAYLOAD_LEN, payload_len);
    bytes[ipv6::HOP_LIMIT] = meta.ttl;
}
