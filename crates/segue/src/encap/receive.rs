//! Decapsulation.

use core::net::IpAddr;

use super::config::{Carrier, Config, ConfigError, GreOptions, Mode};
use super::ecn;
use super::inner::{self, Inner};
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::packet::{Csum, Frag, Gso, GsoKind, Head, Kind, Layout, Offload, Packet, Remote, Start, Stop, TrainCsum};
use crate::packet::{Tunnels, Unit, remote};
use crate::wire::geneve::{self, Geneve};
use crate::wire::gre::Gre;
use crate::wire::gue::{self, Gue};
use crate::wire::vxlan::{self, Vxlan};
use crate::wire::{Remcsum, ethernet, ethertype, ipv4, ipv6, protocol, read_u16, udp, write_u16};

crate::reasons! {
    /// Why a datagram, or the packet in it, was dropped.
    pub enum Refusal {
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
        InnerSource = "inner_source": "The inner source address is multicast, broadcast or loopback; of a frame, a group address.",
        GreMalformed = "gre_malformed": "The GRE header is cut off, has another version, or flags that are not known.",
        GreMismatch = "gre_mismatch": "Key, checksum or sequence number are not present as this tunnel has them, or the key is another.",
        GreCsum = "gre_csum": "The GRE checksum is wrong.",
        GreSeq = "gre_seq": "The GRE sequence number is older than one seen.",
        RemcsumNoOuterCsum = "remcsum_no_outer_csum": "A remote checksum option without a verified outer UDP checksum.",
        RemcsumOrder = "remcsum_order": "A remote checksum field before the start of its sum, or at an odd distance from it.",
        RemcsumBounds = "remcsum_bounds": "A remote checksum start or field past the packet.",
        RemcsumField = "remcsum_field": "A remote checksum place that is not the checksum field of a header in this packet.",
        RemcsumPrimed = "remcsum_primed": "A remote checksum field that does not hold the pseudo-header sum.",
        Ecn = "ecn": "Congestion was marked outside, and the inner packet has no ECN (RFC 6040).",
    }
}

impl From<gue::Refusal> for Refusal {
    fn from(refusal: gue::Refusal) -> Refusal {
        match refusal {
            gue::Refusal::Truncated => Refusal::GueTruncated,
            gue::Refusal::Version => Refusal::GueVersion,
            gue::Refusal::Control => Refusal::GueControl,
            gue::Refusal::Flags => Refusal::GueFlags,
            gue::Refusal::HeaderLen => Refusal::GueHeaderLen,
        }
    }
}

impl From<vxlan::Refusal> for Refusal {
    fn from(refusal: vxlan::Refusal) -> Refusal {
        match refusal {
            vxlan::Refusal::Truncated => Refusal::VxlanTruncated,
            vxlan::Refusal::NoVni => Refusal::VxlanNoVni,
            vxlan::Refusal::Flags => Refusal::VxlanFlags,
        }
    }
}

impl From<geneve::Refusal> for Refusal {
    fn from(refusal: geneve::Refusal) -> Refusal {
        match refusal {
            geneve::Refusal::Truncated => Refusal::GeneveTruncated,
            geneve::Refusal::Version => Refusal::GeneveVersion,
            geneve::Refusal::Control => Refusal::GeneveControl,
            geneve::Refusal::Options => Refusal::GeneveOptions,
        }
    }
}

impl From<remote::Refusal> for Refusal {
    fn from(refusal: remote::Refusal) -> Refusal {
        match refusal {
            remote::Refusal::Order => Refusal::RemcsumOrder,
            remote::Refusal::Bounds => Refusal::RemcsumBounds,
            remote::Refusal::Field => Refusal::RemcsumField,
        }
    }
}

/// What the port knows of a datagram's UDP checksum. One that was wrong never comes this far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OuterCsum {
    /// It was there, not zero, and right.
    Verified,
    /// There was none: the field was zero.
    Absent,
    /// The port cannot tell.
    #[default]
    Unknown,
}

/// What came with a datagram from its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Outer DSCP and ECN.
    pub tos: u8,
    /// Outer UDP checksum.
    pub csum: OuterCsum,
    /// The sum of the datagram's bytes from the first to the last, where the port has it; a verified outer checksum
    /// yields it. Checksums inside are then checked without touching payload.
    pub sum: Option<Sum>,
}

/// Takes packets out of a tunnel.
#[derive(Clone, Debug)]
pub struct Decapsulator {
    config: Config,
    /// The sequence number that the next GRE packet has if none is lost; 0 takes anything.
    next_seq: u32,
    checksummed_bytes: u64,
}

impl Decapsulator {
    /// A tunnel's receiving half.
    pub fn new(config: Config) -> Result<Decapsulator, ConfigError> {
        config.check()?;
        Ok(Decapsulator { config, next_seq: 0, checksummed_bytes: 0 })
    }

    /// What it was made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of payload that were read to verify GRE and outer UDP checksums, so far.
    pub fn checksummed_bytes(&self) -> u64 {
        self.checksummed_bytes
    }

    /// Takes the inner packet out of `datagram`, a UDP payload, and loads it `into` a packet. On a refusal that packet is
    /// empty.
    ///
    /// The inner packet is parsed from scratch. Its layout starts at its IP header, also where it is a fragment, and bytes
    /// behind it are cut off. Its offload state has no level for this tunnel any more. The transport checksum is
    /// [`Csum::Partial`] if it was left to us, [`Csum::Complete`] if the sum of the datagram is known, else as for any
    /// packet from a wire. What is wrong above the inner IP header is not judged here: a tunnel carries IP packets.
    pub fn pull<B: AsRef<[u8]>>(
        &mut self,
        datagram: Frag<B>,
        meta: &Received,
        into: &mut Packet<B>,
    ) -> Result<(), Refusal> {
        let result = self.take_out(datagram, meta, into);
        if result.is_err() {
            into.clear();
        }
        result
    }

    /// As [`Decapsulator::pull`], for ports that carry whole packets: `packet` begins with the outer IP header and may
    /// have padding behind it. Addresses, port and outer checksums are verified here.
    pub fn pull_packet<B: AsRef<[u8]>>(&mut self, packet: Frag<B>, into: &mut Packet<B>) -> Result<(), Refusal> {
        let result = self.outer(packet.bytes()).and_then(|outer| {
            let datagram = packet.skip(outer.header_len).first(outer.payload_len);
            self.take_out(datagram, &outer.meta, into)
        });
        if result.is_err() {
            into.clear();
        }
        result
    }

    fn take_out<B: AsRef<[u8]>>(
        &mut self,
        datagram: Frag<B>,
        meta: &Received,
        into: &mut Packet<B>,
    ) -> Result<(), Refusal> {
        let has_udp = self.config.carrier != Carrier::Bare;
        if meta.csum == OuterCsum::Absent && has_udp && !self.config.zero_csum6 && self.config.local.is_ipv6() {
            return Err(Refusal::OuterCsumAbsent);
        }
        let bytes = datagram.bytes();
        let tunnel = self.tunnel_headers(bytes)?;
        if tunnel.option.is_some() && meta.csum != OuterCsum::Verified {
            return Err(Refusal::RemcsumNoOuterCsum);
        }

        let rest = bytes.get(tunnel.len..).unwrap_or(&[]);
        let inner = self.inner(rest, &tunnel)?;
        let (packet, trailer) = rest.split_at_checked(inner.len).ok_or(Refusal::InnerMalformed)?;
        let mut layout = inner.layout;
        into.head.set(packet.get(..layout.header_len()).unwrap_or(&[]));

        let option = tunnel.option.map(|option| resolve(option, &tunnel, &mut into.head, &layout)).transpose()?;
        // Padding of a frame is no part of what the far end left to us.
        let packet = match option {
            Some(Remote::Transport) if layout.is_padded() => {
                let end = layout.end();
                layout.trimmed();
                packet.get(..end).ok_or(Refusal::InnerMalformed)?
            }
            _ => packet,
        };
        let primed = match option {
            Some(Remote::Transport) => Some(check_primed(&into.head, &layout, packet.len())?),
            Some(Remote::Gre) | None => None,
        };
        let unfinished = match (self.config.unfinished, option) {
            (Some(most), None) if check_primed(&into.head, &layout, packet.len()).is_ok() => {
                Some(packet.len() - inner.l3 > usize::from(most))
            }
            _ => None,
        };
        let mut sum = meta.sum.map(|mut sum| {
            sum.remove(Sum::of(&bytes[..tunnel.gre_at]));
            sum
        });
        if let Some(gre) = tunnel.gre {
            if let Some(field) = gre.checksum {
                match option {
                    // Covered by the outer checksum, if it holds the zero of which the far end's sum was made.
                    Some(Remote::Gre) if field % 0xffff == 0 => {}
                    Some(Remote::Gre) => return Err(Refusal::RemcsumPrimed),
                    // Whoever joined packets has checked them, and left the field of the first.
                    _ if unfinished == Some(true) => {}
                    _ => {
                        let primed = primed.or_else(|| check_primed(&into.head, &layout, packet.len()).ok());
                        let primed = primed.filter(|_| option.is_some() || unfinished.is_some());
                        let headers = primed.map(|field| {
                            let transport = layout.transport().map_or(0, |header| header.start());
                            finished_sum(
                                bytes,
                                tunnel.gre_at..tunnel.len + transport,
                                field,
                                packet.len() - transport,
                                trailer,
                            )
                        });
                        let checked = headers.or(sum).unwrap_or_else(|| {
                            self.checksummed_bytes += rest.len() as u64;
                            Sum::of(&bytes[tunnel.gre_at..])
                        });
                        if !is_zero(checked) {
                            return Err(Refusal::GreCsum);
                        }
                        if headers.is_none() {
                            sum = Some(checked);
                        }
                    }
                }
            }
            self.sequence(gre.seq)?;
        }
        // A frame without IP has no field to carry a mark.
        let tos = match inner.tos {
            Some(tos) => Some((tos, ecn::combine(tos, meta.tos).ok_or(Refusal::Ecn)?)),
            None => None,
        };

        if let Some(sum) = &mut sum {
            sum.remove(Sum::of(&bytes[tunnel.gre_at..tunnel.len + inner.l3]));
        }
        // A trailer may start in the middle of a word, and is rare.
        let mut sum = sum.filter(|_| trailer.is_empty() && inner.tos.is_some() && !layout.is_padded());
        if let Some((_, new)) = tos.filter(|(old, new)| old != new) {
            set_tos(&mut into.head, inner.l3, new, &mut sum);
        }
        into.offload = Offload::received(&into.head, &layout);
        match (option, into.offload.unit, sum) {
            (Some(Remote::Transport), ..) => into.offload.unit = Unit::Whole(Csum::Partial),
            (_, Unit::Whole(Csum::Unknown), _) if unfinished.is_some() => {
                into.offload.unit = self.as_left(&layout, unfinished == Some(true), inner.l3);
            }
            (_, Unit::Whole(Csum::Unknown), Some(sum)) => into.offload.unit = Unit::Whole(Csum::Complete(sum)),
            _ => {}
        }
        let payload_len = packet.len() - layout.header_len();
        into.layout = layout;
        into.outer = None;
        into.payload.clear();
        into.payload.push(datagram.skip(tunnel.len + layout.header_len()).first(payload_len));
        Ok(())
    }

    /// The state of a packet whose transport checksum this host's kernel left unfinished: one packet, or several that it
    /// joined, whose size it does not say. They are cut to what fits the inside.
    fn as_left(&self, layout: &Layout, is_train: bool, l3: usize) -> Unit {
        let (Some(most), Some(transport), true) = (self.config.unfinished, layout.transport(), is_train) else {
            return Unit::Whole(Csum::Partial);
        };
        let headers = layout.header_len() - l3;
        let kind = if transport.kind == Kind::Tcp { GsoKind::Tcp } else { GsoKind::Udp };
        match u16::try_from(usize::from(most).saturating_sub(headers)) {
            // Datagrams cannot be cut but where they were joined.
            Ok(size) if size > 0 && kind == GsoKind::Tcp => {
                Unit::Train { csum: TrainCsum::Partial, gso: Gso { kind, size, fixed_ids: 0 } }
            }
            _ => Unit::Whole(Csum::Partial),
        }
    }

    /// What is inside, whose first byte is that of `rest`.
    fn inner(&self, rest: &[u8], tunnel: &TunnelHeaders) -> Result<Inside, Refusal> {
        if self.config.mode.is_ethernet() {
            let layout = crate::wire::parse(rest, Start::Ethernet, &Tunnels::NONE);
            let source = rest.get(ethernet::SRC).filter(|_| layout.header_len() >= ethernet::LEN);
            if source.ok_or(Refusal::InnerMalformed)?[0] & ethernet::GROUP != 0 {
                return Err(Refusal::InnerSource);
            }
            let l3 = layout.headers().iter().find(|header| header.is_ip()).map(|header| header.start());
            let tos = l3.and_then(|l3| Inner::read(rest.get(l3..)?)).map(|inner| inner.tos);
            return Ok(Inside { layout, len: rest.len(), l3: l3.unwrap_or(0), tos });
        }
        let inner = Inner::read(rest).ok_or(Refusal::InnerMalformed)?;
        let packet = rest.get(..inner.total_len).ok_or(Refusal::InnerMalformed)?;
        let layout = inner_layout(packet, &inner)?;
        if !self.config.mode.takes(inner.version) || tunnel.version != inner.version {
            return Err(Refusal::InnerVersion);
        }
        if inner.source_is_martian() {
            return Err(Refusal::InnerSource);
        }
        Ok(Inside { layout, len: inner.total_len, l3: 0, tos: Some(inner.tos) })
    }

    /// Everything between outer IP or UDP and what is inside.
    fn tunnel_headers(&self, bytes: &[u8]) -> Result<TunnelHeaders, Refusal> {
        let plain = |len| TunnelHeaders { gre_at: len, len, version: 0, option: None, gre: None };
        let mut found = match self.config.carrier {
            Carrier::Gue { .. } => {
                let header = Gue::parse(bytes)?;
                let version = match (self.config.mode, header.protocol) {
                    (Mode::Gre(_) | Mode::GreTap(_), protocol::GRE) => 0,
                    (Mode::Ipip | Mode::Ip, protocol::IPV4) => 4,
                    (Mode::Sit | Mode::Ip, protocol::IPV6) => 6,
                    (Mode::Ethernet, protocol::ETHERNET) => 0,
                    _ => return Err(Refusal::InnerProtocol),
                };
                TunnelHeaders { version, option: header.remcsum, ..plain(header.len) }
            }
            // The port or the protocol number says which; the mode is checked against the inner header later.
            Carrier::Fou | Carrier::Bare => {
                TunnelHeaders { version: bytes.first().map_or(0, |byte| byte >> 4), ..plain(0) }
            }
            Carrier::Vxlan { vni, takes_remcsum, .. } => {
                let header = Vxlan::parse(bytes)?;
                if header.vni != vni {
                    return Err(Refusal::Vni);
                }
                if header.remcsum.is_some() && !takes_remcsum {
                    return Err(Refusal::RemcsumUnwanted);
                }
                TunnelHeaders { option: header.remcsum, ..plain(vxlan::LEN) }
            }
            Carrier::Geneve { vni } => {
                let header = Geneve::parse(bytes)?;
                if header.vni != vni {
                    return Err(Refusal::Vni);
                }
                if header.is_critical {
                    return Err(Refusal::GeneveCritical);
                }
                if header.protocol != ethertype::TEB {
                    return Err(Refusal::InnerProtocol);
                }
                plain(header.len)
            }
        };
        if let Some(options) = self.config.mode.gre() {
            let gre = Gre::parse(bytes.get(found.gre_at..).unwrap_or(&[])).ok_or(Refusal::GreMalformed)?;
            if !gre_matches(&gre, options) {
                return Err(Refusal::GreMismatch);
            }
            found.version = match (gre.protocol, self.config.mode.is_ethernet()) {
                (ethertype::IPV4, false) => 4,
                (ethertype::IPV6, false) => 6,
                (ethertype::TEB, true) => 0,
                _ => return Err(Refusal::InnerProtocol),
            };
            found.len += gre.len();
            found.gre = Some(gre);
        }
        Ok(found)
    }

    /// Drops what is older than the newest packet, as Linux does: RFC 2890, section 2.2, would let a receiver sort instead.
    fn sequence(&mut self, seq: Option<u32>) -> Result<(), Refusal> {
        if let (Some(GreOptions { iseq: true, .. }), Some(seq)) = (self.config.mode.gre(), seq) {
            if self.next_seq != 0 && (seq.wrapping_sub(self.next_seq) as i32) < 0 {
                return Err(Refusal::GreSeq);
            }
            self.next_seq = seq.wrapping_add(1);
        }
        Ok(())
    }

    /// Verifies outer IP and UDP.
    fn outer(&mut self, bytes: &[u8]) -> Result<OuterHeaders, Refusal> {
        let layout = crate::wire::parse(bytes, Start::Ip, &Tunnels::NONE);
        let Some(ip) = layout.headers().first() else {
            return Err(match layout.stop() {
                Stop::Fragment | Stop::Malformed => Refusal::OuterMalformed,
                Stop::Transport | Stop::Protocol | Stop::TooDeep => Refusal::OuterProtocol,
            });
        };
        if layout.stop() == Stop::Fragment && layout.headers().len() == 1 {
            return Err(Refusal::OuterFragment);
        }
        let outer = Inner::read(bytes).ok_or(Refusal::OuterMalformed)?;
        let is_ours = |bytes: &[u8]| {
            let (source, destination) = bytes.split_at(bytes.len() / 2);
            is_address(source, self.config.remote) && is_address(destination, self.config.local)
        };
        let check_ip = || match () {
            () if !is_ours(outer.addresses()) => Err(Refusal::OuterAddress),
            () if ip.kind == Kind::Ipv4 && !is_zero(Sum::of(&bytes[ip.start()..ip.end()])) => Err(Refusal::OuterIpCsum),
            () => Ok(()),
        };
        if self.config.carrier == Carrier::Bare {
            // The last header of a chain of extensions says what follows; the parser has walked it.
            let last = match ip.kind {
                Kind::Ipv4 => bytes.get(ipv4::PROTOCOL).copied(),
                _ => last_protocol(bytes),
            };
            if !last.is_some_and(|last| self.config.mode.protocols().contains(&last)) {
                return Err(Refusal::OuterProtocol);
            }
            check_ip()?;
            let end = layout.end().min(bytes.len());
            let payload_len = end.checked_sub(ip.end()).ok_or(Refusal::OuterMalformed)?;
            let meta = Received { tos: outer.tos, csum: OuterCsum::Absent, sum: None };
            return Ok(OuterHeaders { header_len: ip.end(), payload_len, meta });
        }
        let [_, udp, ..] = layout.headers() else {
            return Err(match layout.stop() {
                Stop::Malformed => Refusal::OuterMalformed,
                _ => Refusal::OuterProtocol,
            });
        };
        if udp.kind != Kind::Udp {
            return Err(Refusal::OuterProtocol);
        }
        // The parser vouches for both headers and for the UDP length.
        let header = &bytes[udp.start()..udp.end()];
        let udp_len = usize::from(read_u16(header, udp::LENGTH).ok_or(Refusal::OuterMalformed)?);
        let payload = bytes.get(udp.end()..udp.start() + udp_len).ok_or(Refusal::OuterMalformed)?;
        check_ip()?;
        if read_u16(header, udp::DST_PORT) != Some(self.config.port) {
            return Err(Refusal::OuterPort);
        }
        let mut meta = Received { tos: outer.tos, csum: OuterCsum::Absent, sum: None };
        if read_u16(header, udp::CHECKSUM) != Some(0) {
            let sum = Sum::of(payload);
            self.checksummed_bytes += payload.len() as u64;
            let mut all = match (self.config.remote, self.config.local) {
                (IpAddr::V4(from), IpAddr::V4(to)) => pseudo_v4(from.octets(), to.octets(), protocol::UDP, udp_len),
                (IpAddr::V6(from), IpAddr::V6(to)) => pseudo_v6(from.octets(), to.octets(), protocol::UDP, udp_len),
                // Refused by `Config::check`.
                (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return Err(Refusal::OuterAddress),
            };
            all.add(header);
            all.append(sum, payload.len());
            if !is_zero(all) {
                return Err(Refusal::OuterCsum);
            }
            meta.csum = OuterCsum::Verified;
            meta.sum = Some(sum);
        }
        Ok(OuterHeaders { header_len: udp.end(), payload_len: payload.len(), meta })
    }
}

/// What [`Decapsulator::outer`] found.
struct OuterHeaders {
    header_len: usize,
    payload_len: usize,
    meta: Received,
}

/// What [`Decapsulator::inner`] found.
struct Inside {
    layout: Layout,
    /// Bytes of it, padding of a frame included.
    len: usize,
    /// Where its IP header is; 0 where it has none.
    l3: usize,
    /// DSCP and ECN of that header, where it has one.
    tos: Option<u8>,
}

/// What stands between outer IP or UDP and what is inside.
struct TunnelHeaders {
    /// Bytes of GUE, VXLAN or Geneve: where GRE starts, if there is any.
    gre_at: usize,
    /// Bytes in all.
    len: usize,
    /// The inner IP version that they announce, or that the first nibble has where nothing does.
    version: u8,
    option: Option<Remcsum>,
    gre: Option<Gre>,
}

/// Whether a header has what the tunnel's packets have. As in Linux a sequence number that nobody asked for is ignored,
/// while a key or checksum nobody asked for means another tunnel.
fn gre_matches(gre: &Gre, options: &GreOptions) -> bool {
    gre.key == options.ikey && gre.checksum.is_some() == options.icsum && (gre.seq.is_some() || !options.iseq)
}

/// Parses a packet of exactly one IP length, and lists the fixed IP header also where the parser gave up in front of it.
fn inner_layout(packet: &[u8], inner: &Inner) -> Result<Layout, Refusal> {
    let mut layout = crate::wire::parse(packet, Start::Ip, &Tunnels::NONE);
    if !layout.headers().is_empty() {
        return Ok(layout);
    }
    let listed = match (layout.stop(), inner.version) {
        (Stop::TooDeep, 4) => layout.push(Kind::Ipv4, ipv4::header_len(packet[ipv4::VERSION_IHL])),
        (Stop::TooDeep, _) => layout.push(Kind::Ipv6, ipv6::LEN),
        (Stop::Malformed | Stop::Protocol | Stop::Fragment | Stop::Transport, _) => false,
    };
    if listed { Ok(layout) } else { Err(Refusal::InnerMalformed) }
}

/// What a remote checksum option means in this packet. `head` has the inner headers, before and after.
fn resolve(option: Remcsum, tunnel: &TunnelHeaders, head: &mut Head, inner: &Layout) -> Result<Remote, Refusal> {
    // The places count from the end of the header with the option, so it does not matter which that is, and its surplus
    // words, for which there may be no room, are left out.
    let gre_len = tunnel.len - tunnel.gre_at;
    let mut layout = *inner;
    let mut outer = Layout::empty(Stop::Protocol);
    outer.push(Kind::Gue, gue::REMCSUM_LEN);
    if let Some(gre) = tunnel.gre {
        outer.push(Kind::Gre, gre.len());
    }
    let bytes = head.push_front(gue::REMCSUM_LEN + gre_len).filter(|_| layout.prepend(&outer));
    let bytes = bytes.ok_or(Refusal::RemcsumField)?;
    Gue::emit(bytes, 0, Some(option));
    if let Some(gre) = tunnel.gre {
        gre.emit(&mut bytes[gue::REMCSUM_LEN..]);
    }
    let resolved = remote::option(head, &layout, 0);
    head.pull_front(gue::REMCSUM_LEN + gre_len);
    match resolved {
        Some(resolved) => Ok(resolved?),
        None => Err(Refusal::RemcsumField),
    }
}

/// The value of the pending field, where it is the pseudo-header sum of the packet that is there.
///
/// A packet with a length that says less than the one around it is refused: the sum would run further than the length
/// that the receiver's transport believes.
fn check_primed(head: &Head, layout: &Layout, len: usize) -> Result<u16, Refusal> {
    match inner::primed(head, layout, len) {
        Some((sum, field)) if layout.is_exact() && sum == Sum::of(&field.to_be_bytes()) => Ok(field),
        _ => Err(Refusal::RemcsumPrimed),
    }
}

/// The sum over a GRE header and its payload as it will be when the transport checksum is finished: a segment of
/// `segment_len` bytes whose checksum is right sums to the complement of its pseudo header, so its bytes need not be read.
fn finished_sum(
    bytes: &[u8],
    headers: core::ops::Range<usize>,
    primed: u16,
    segment_len: usize,
    trailer: &[u8],
) -> Sum {
    let mut sum = Sum::of(bytes.get(headers).unwrap_or(&[]));
    sum.append(Sum::of(&(!primed).to_be_bytes()), segment_len);
    sum.add(trailer);
    sum
}

/// Changes the DSCP and ECN byte of the IP header at `l3`. A header checksum that was wrong stays wrong; `sum` follows.
fn set_tos(head: &mut Head, l3: usize, tos: u8, sum: &mut Option<Sum>) {
    let Some(bytes) = head.bytes_mut().get_mut(l3..) else { return };
    let Some(&old) = bytes.first_chunk::<2>() else { return };
    let version = old[0] >> 4;
    let new = match version {
        4 => [old[0], tos],
        _ => [old[0] & 0xf0 | tos >> 4, tos << 4 | old[1] & 0x0f],
    };
    bytes[..2].copy_from_slice(&new);
    if version == 4 {
        // The change of the checksum makes up for that of the byte: the sum stays the same.
        let field = read_u16(bytes, ipv4::CHECKSUM).map_or(0, |field| {
            Field::from_wire(field).update(u16::from_be_bytes(old), u16::from_be_bytes(new)).value()
        });
        write_u16(bytes, ipv4::CHECKSUM, field);
    } else if let Some(sum) = sum {
        sum.remove(Sum::of(&old));
        // To take out the complement is to put in the value, at an even place whatever the sum's parity.
        sum.remove(Sum::of(&new.map(|byte| !byte)));
    }
}

/// The protocol behind an IPv6 header and its extension headers.
fn last_protocol(bytes: &[u8]) -> Option<u8> {
    match ipv6::chain(*bytes.get(ipv6::NEXT_HEADER)?, bytes.get(ipv6::LEN..)?) {
        ipv6::Chain::End { next, .. } => Some(next),
        ipv6::Chain::Fragment | ipv6::Chain::Truncated | ipv6::Chain::TooLong => None,
    }
}

fn is_address(bytes: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => bytes == address.octets(),
        IpAddr::V6(address) => bytes == address.octets(),
    }
}

/// Whether a sum is one of the two zeros of ones-complement arithmetic, as that of data with a good checksum is.
fn is_zero(sum: Sum) -> bool {
    sum.fold().is_multiple_of(0xffff)
}
