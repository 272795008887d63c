//! Encapsulation: the sending half of a tunnel.

use core::net::IpAddr;

use super::config::{Carrier, Config, ConfigError, Df, Mode, SourcePorts, Tos, Ttl};
use super::entropy::Flows;
use super::inner::{self, Inner};
use super::{GreOptions, ecn};
use crate::checksum::{Field, Sum, pseudo_v4, pseudo_v6};
use crate::packet::{Csum, Header, Kind, Layer, LayerCsum, MAX_LAYERS, Outer, Packet, Remote, Unit, remote};
use crate::wire::geneve::{self, Geneve};
use crate::wire::gre::{self, Gre};
use crate::wire::gue::Gue;
use crate::wire::vxlan::{self, Vxlan};
use crate::wire::{Remcsum, ethertype, ipv4, ipv6, protocol, udp, write_u16, write_u32};

crate::reasons! {
    /// The reason why a packet was not encapsulated.
    pub enum EncapRefusal {
        InnerMalformed = "inner_malformed": "It does not begin with a whole IPv4 or IPv6 header, or Ethernet header where frames are inside.",
        InnerLength = "inner_length": "The packet is shorter than its IP header says.",
        InnerVersion = "inner_version": "The tunnel's mode does not take this IP version.",
        TooDeep = "too_deep": "There are too many headers or tunnels around it already.",
        TooLong = "too_long": "With the outer headers it would be longer than an IP packet can be.",
        Loop = "loop": "A packet of this tunnel itself: the route to the other end leads back into the tunnel.",
    }
}

/// First of the source ports that the flow hash selects from (RFC 8086, section 3.2.1: the dynamic ports).
const FIRST_SOURCE_PORT: u16 = 49152;
/// Length of outer IPv6 and UDP, in bytes.
const MAX_OUTER_LEN: usize = ipv6::LEN + udp::LEN;

/// The sending half of a tunnel: encapsulates packets and trains.
/// ```
/// use segue::encap::{Carrier, Config, Encapsulator, Mode};
/// use segue::packet::{Frag, Packet, Start, Tunnels};
///
/// let [here, there] = ["198.18.0.1", "198.18.0.2"].map(|text| text.parse().unwrap());
/// let config = Config::new(Mode::Ipip, Carrier::Gue { remcsum: true }, here, there);
/// let mut tunnel = Encapsulator::new(config)?;
/// let inner = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// let mut packet = Packet::default(); // or a train: its headers are put in front once
/// packet.load(Frag::all(inner), Start::Ip, &Tunnels::NONE);
/// tunnel.push(&mut packet)?;
/// assert_eq!(packet.len(), 20 + 8 + 4 + 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encapsulator {
    config: Config,
    /// Whether the tunnel was configured with remote checksum offload.
    can_remcsum: bool,
    /// Outer IP and UDP headers with every field that is the same for all packets.
    template: [u8; MAX_OUTER_LEN],
    /// The first eight bytes of the outer addresses, which nearly all packets but the tunnel's own do not have.
    own: [u8; 8],
    /// The outer headers, without and with a remote checksum option.
    outer: [OuterHeaders; 2],
    flows: Flows,
    /// Identification of the next outer IPv4 packet.
    next_id: u16,
    /// Sequence number of the next GRE packet.
    next_seq: u32,
    /// Index of the port's peer that packets go to.
    to: u16,
}

impl Encapsulator {
    /// Creates the sending half of a tunnel; GRE sequence numbers start at 0, as in Linux.
    ///
    /// # Errors
    /// As for [`Config::check`].
    pub fn new(config: Config) -> Result<Encapsulator, ConfigError> {
        config.check()?;
        let flows = Flows::new(config.seed);
        let template = template(&config);
        let outer = [false, true].map(|has_option| OuterHeaders::new(&config, has_option));
        let can_remcsum = config.remcsum();
        let own = addresses_begin(&config, &template);
        Ok(Encapsulator { config, can_remcsum, template, own, outer, flows, next_id: 0, next_seq: 0, to: 0 })
    }

    /// Returns the configuration of the tunnel.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the GRE sequence number of the next packet, if packets carry one.
    pub fn sequence(&self) -> Option<u32> {
        self.numbers().then_some(self.next_seq)
    }

    /// Continues GRE sequence numbers at `next`, as a successor of another process must: the receiver drops packets
    /// with older numbers than the newest received.
    pub fn go_on(&mut self, next: u32) {
        self.next_seq = next;
    }

    /// Enables or disables remote checksum offload from the next packet on. Only a tunnel that was configured with it,
    /// whose users allow for the length of the option, can be switched; returns `false` for others.
    pub fn set_remcsum(&mut self, on: bool) -> bool {
        let can = self.can_remcsum;
        if let (true, Carrier::Gue { remcsum } | Carrier::Vxlan { remcsum, .. }) = (can, &mut self.config.carrier) {
            *remcsum = on;
        }
        can
    }

    /// Prepends the outer headers to `packet`, whose layout must start at the inner IP header, or at the Ethernet
    /// header if the mode carries frames, and adds a level to its offload state. Padding after an inner IP packet is
    /// cut off; that of a frame is kept. On an error the packet is unchanged.
    ///
    /// The headers of a single packet are final except for the checksums that its [`Layer`] says are owed. Those of a
    /// train have 0 for every outer length and for the outer IPv4 header checksum, and the first segment's
    /// identification and GRE sequence number; as many of both are used up as the train has segments.
    /// [`gso`](crate::gso) fills in the rest when it splits.
    ///
    /// With remote checksum offload, a pending transport checksum stays pending permanently, and the level says so
    /// ([`Remote::Transport`]); so do the checksums of trains, whose segments were verified and can be left to the far
    /// end like any others. If nothing is pending inside and the GRE header has a checksum, that one is left to the far
    /// end ([`Remote::Gre`]), as in Linux. Fragments, ICMP and other packets with a complete checksum are sent with a
    /// plain header; so are packets that are in a tunnel already, since a packet can have only one option, and over
    /// VXLAN those whose offsets its header cannot express.
    ///
    /// # Errors
    /// [`EncapRefusal`] for a packet that the tunnel does not carry.
    pub fn push<B: AsRef<[u8]>>(&mut self, packet: &mut Packet<B>) -> Result<(), EncapRefusal> {
        let measured = self.measure(packet)?;
        // All fallible steps come before the first change.
        let wrapping = self.wrapping(packet, &measured)?;
        let bytes = packet.head.push_front(wrapping.outer_len).ok_or(EncapRefusal::TooDeep)?;

        let segs = segments(&packet.offload.unit, measured.payload_len);
        let (outer_bytes, rest) = bytes.split_at_mut(self.config.outer_len());
        let meta = self.write_outer(outer_bytes, &measured, &wrapping, segs);
        self.write_tunnel_headers(rest, measured.inner.version, &wrapping, segs);

        packet.payload.truncate(measured.payload_len);
        let outer = self.outer[usize::from(wrapping.option.is_some())].headers();
        packet.layout.put_in_front(outer);
        // A frame without IP is no tunnel level, and has no state for owed checksums: its outer checksum is computed at
        // once.
        if measured.inner.version != 0 {
            packet.offload.push_outer(wrapping.layer);
        }
        match &mut packet.offload.unit {
            // The known sum does not cover the outer headers.
            Unit::Whole(csum @ Csum::Complete(_)) => *csum = Csum::Unknown,
            Unit::Whole(_) => {}
            // There is one bit for each header; the outer IPv4 identification counts up.
            Unit::Train { gso, .. } => *gso = gso.behind(outer.len()),
        }
        packet.outer = Some(meta);
        if measured.inner.version == 0 {
            self.complete(packet, wrapping.layer);
        }
        Ok(())
    }

    /// Returns whether an IP packet is one of this tunnel: from its local to its remote address, with its UDP port or
    /// IP protocol. No TTL would end its loop, since each turn puts a new outer header in front.
    /// [`push`](Self::push) refuses it ([`EncapRefusal::Loop`]).
    ///
    /// A later fragment of UDP has no port, and is none: it may be of any datagram between the two hosts. The loop of
    /// one of the tunnel ends by the packets around it.
    ///
    /// What is in a frame is never taken for it: other hosts behind a bridge may have the same addresses. So a packet
    /// that is yet to be put into a frame of the tunnel has to be looked at before.
    #[cold]
    pub fn is_own<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> bool {
        Inner::of(packet).is_some_and(|inner| self.has_sent(packet, &inner))
    }

    #[inline]
    fn has_sent<B: AsRef<[u8]>>(&self, packet: &Packet<B>, inner: &Inner) -> bool {
        inner.addresses_begin() == self.own && self.has_own_headers(packet, inner)
    }

    /// Returns whether a packet has the addresses of the tunnel's ends, and its port or protocol.
    #[cold]
    fn has_own_headers<B: AsRef<[u8]>>(&self, packet: &Packet<B>, inner: &Inner) -> bool {
        if inner.addresses() != addresses(&self.config, &self.template) {
            return false;
        }
        let at = if inner.version == 4 { ipv4::PROTOCOL } else { ipv6::NEXT_HEADER };
        let Some(&first) = packet.head.bytes().get(at) else { return false };
        let mut number = [first];
        if (inner.version, first) == (6, protocol::FRAGMENT) {
            // The fragment header, which is left in the payload, begins with the number.
            packet.payload.copy_to(0..1, &mut number);
        }
        match (self.config.carrier, inner.ports) {
            (Carrier::Bare, _) => self.config.mode.protocols().contains(&number[0]),
            (_, Some((number, ports))) => number == protocol::UDP && ports as u16 == self.config.dport,
            // A later fragment of the tunnel makes two turns at most: what it is sent in has the port, or is cut into a
            // part that has it, and a rest that is not cut again.
            (_, None) => false,
        }
    }

    /// Reads the inner header of a packet, and measures the part of it that is encapsulated.
    #[inline]
    fn measure<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> Result<Measured, EncapRefusal> {
        let is_frame = self.config.mode.is_ethernet();
        let inner = if is_frame { Inner::of_frame(packet) } else { Inner::of(packet) };
        let inner = inner.ok_or(EncapRefusal::InnerMalformed)?;
        if !is_frame && !self.config.mode.takes(inner.version) {
            return Err(EncapRefusal::InnerVersion);
        }
        if !is_frame && self.has_sent(packet, &inner) {
            return Err(EncapRefusal::Loop);
        }
        let is_whole = matches!(packet.offload.unit, Unit::Whole(_));
        let len = if is_whole && !is_frame { inner.total_len } else { packet.len() };
        let payload_len = len.checked_sub(packet.layout.header_len()).ok_or(EncapRefusal::InnerLength)?;
        if len > packet.len() {
            return Err(EncapRefusal::InnerLength);
        }
        Ok(Measured { inner, is_whole, len, payload_len })
    }

    /// Plans the outer headers of a packet, which its layout and its offload state have room for.
    #[inline]
    fn wrapping<B: AsRef<[u8]>>(&self, packet: &Packet<B>, measured: &Measured) -> Result<Wrapping, EncapRefusal> {
        let version = measured.inner.version;
        let gre = self.config.mode.gre().map(|options| self.gre_header(options, version));
        let has_gre_csum = gre.is_some_and(|gre| gre.checksum.is_some());
        let remote = self.remote(packet, measured.len, has_gre_csum);
        let outer = &self.outer[usize::from(remote.is_some())];
        let owed = |owed: bool| if owed { LayerCsum::Owed } else { LayerCsum::Absent };
        let has_udp_csum = self.config.csum && self.config.carrier != Carrier::Bare;
        let layer = Layer { udp: owed(has_udp_csum), gre: owed(has_gre_csum), remote };
        let outer_len = outer.header_len();
        let has_level = version == 0 || packet.offload.layers().len() < MAX_LAYERS;
        if !has_level || !packet.layout.has_room(outer.headers().len(), outer_len) {
            return Err(EncapRefusal::TooDeep);
        }
        let total_len = outer_len + measured.len;
        let stated = if self.config.local.is_ipv4() { total_len } else { total_len - ipv6::LEN };
        let stated = u16::try_from(if measured.is_whole { stated } else { 0 }).map_err(|_| EncapRefusal::TooLong)?;
        let option = match remote {
            Some(remote) => {
                let between = outer.len_after_shim();
                Some(remote::place_in_front(&packet.layout, between, remote).ok_or(EncapRefusal::TooDeep)?)
            }
            None => None,
        };
        Ok(Wrapping { outer_len, layer, gre, option, total_len, stated })
    }

    /// Writes outer IP and UDP, and returns the fields that a datagram port needs.
    #[inline]
    fn write_outer(&mut self, bytes: &mut [u8], measured: &Measured, wrapping: &Wrapping, segs: usize) -> Outer {
        let inner = &measured.inner;
        let hash = self.flows.of_inner(inner);
        let (slot, port) = match self.config.carrier {
            // There is one socket for each protocol number.
            Carrier::Bare => (u16::from(self.config.mode == Mode::Ip && inner.version == 6), 0),
            _ => self.source(hash),
        };
        let meta = Outer {
            slot,
            to: self.to,
            tos: self.tos(inner),
            ttl: match self.config.ttl {
                Ttl::Inherit => inner.ttl,
                Ttl::Fixed(ttl) => ttl,
            },
            df: match self.config.df {
                Df::Unset => false,
                Df::Inherit => inner.df,
                Df::Set => true,
            },
            skip: self.config.outer_len() as u16, // 28 or 48
        };
        bytes.copy_from_slice(&self.template[..bytes.len()]);
        if self.config.carrier == Carrier::Bare {
            let next = if self.config.local.is_ipv4() { ipv4::PROTOCOL } else { ipv6::NEXT_HEADER };
            bytes[next] = self.config.mode.protocol(inner.version);
        }
        if self.config.local.is_ipv4() {
            write_ipv4(bytes, &meta, wrapping.stated, self.next_id);
            self.next_id = self.next_id.wrapping_add(segs as u16);
        } else {
            write_ipv6(bytes, &meta, wrapping.stated, hash as u32);
        }
        if self.config.carrier != Carrier::Bare {
            let udp_at = bytes.len() - udp::LEN;
            write_u16(bytes, udp_at + udp::SRC_PORT, port);
            let udp_len = if measured.is_whole { wrapping.total_len - udp_at } else { 0 };
            // It is at most `stated`, which fits.
            write_u16(bytes, udp_at + udp::LENGTH, udp_len as u16);
        }
        meta
    }

    /// Writes the headers between outer UDP or IP and an inner packet of this IP version.
    #[inline]
    fn write_tunnel_headers(&mut self, bytes: &mut [u8], version: u8, wrapping: &Wrapping, segs: usize) {
        let gre_at = match self.config.carrier {
            Carrier::Gue { .. } => {
                Gue::emit(bytes, self.config.mode.protocol(version), wrapping.option);
                Gue::emit_len(wrapping.option.is_some())
            }
            Carrier::Vxlan { vni, .. } => {
                Vxlan { vni, remcsum: wrapping.option }.emit(bytes);
                vxlan::LEN
            }
            Carrier::Geneve { vni } => {
                Geneve::emit(bytes, vni);
                geneve::MIN_LEN
            }
            Carrier::Fou | Carrier::Bare => 0,
        };
        if let Some(gre) = wrapping.gre {
            gre.emit(&mut bytes[gre_at..]);
            if gre.seq.is_some() {
                self.next_seq = self.next_seq.wrapping_add(segs as u32);
            }
        }
    }

    /// Computes the outer checksums of a frame without IP, whose offload state has no level for owed checksums.
    fn complete<B: AsRef<[u8]>>(&self, packet: &mut Packet<B>, owed: Layer) {
        let mut payload = Sum::ZERO;
        packet.payload.frags().iter().for_each(|frag| payload.add(frag.bytes()));
        let len = packet.payload.len();
        let place = |kind| packet.layout.headers().iter().find(|header| header.kind == kind).map(Header::start);
        let is_owed = |csum| csum == LayerCsum::Owed;
        let gre = place(Kind::Gre).filter(|_| is_owed(owed.gre));
        let udp = place(Kind::Udp).filter(|_| is_owed(owed.udp));
        let head = packet.head.bytes_mut();
        if let Some(at) = gre {
            let mut sum = Sum::of(&head[at..]);
            sum.append(payload, len);
            write_u16(head, at + gre::CHECKSUM, Field::complete(sum).value());
        }
        if let Some(at) = udp {
            let udp_len = head.len() - at + len;
            let mut sum = match (self.config.local, self.config.remote) {
                (IpAddr::V4(from), IpAddr::V4(to)) => pseudo_v4(from.octets(), to.octets(), protocol::UDP, udp_len),
                (IpAddr::V6(from), IpAddr::V6(to)) => pseudo_v6(from.octets(), to.octets(), protocol::UDP, udp_len),
                // Refused by `Config::check`.
                (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return,
            };
            sum.append(Sum::of(&head[at..]), head.len() - at);
            sum.append(payload, len);
            write_u16(head, at + udp::CHECKSUM, Field::complete_udp(sum).value());
        }
    }

    /// Directs further packets to `remote`, an address of the configured family; [`Outer::to`] then is `number`, the
    /// index of the port's peer. An address of the other family changes nothing.
    pub fn aim(&mut self, remote: IpAddr, number: u16) {
        if remote.is_ipv4() == self.config.remote.is_ipv4() {
            self.config.remote = remote;
            self.template = template(&self.config);
            self.own = addresses_begin(&self.config, &self.template);
            self.to = number;
        }
    }

    /// Returns the checksum that is left to the receiver.
    fn remote<B: AsRef<[u8]>>(&self, packet: &Packet<B>, inner_len: usize, gre_csum: bool) -> Option<Remote> {
        if !self.config.remcsum() || !packet.offload.layers().is_empty() {
            return None;
        }
        match packet.offload.unit {
            // A field that is not primed as the far end expects is completed here.
            Unit::Whole(Csum::Partial) | Unit::Train { .. } => {
                if let Carrier::Vxlan { .. } = self.config.carrier {
                    let transport = packet.layout.transport()?;
                    let start = u16::try_from(transport.start()).ok()?;
                    let offset = start + u16::try_from(remote::field_offset(transport.kind)?).ok()?;
                    Vxlan::is_representable(Remcsum { start, offset }).then_some(())?;
                }
                let (sum, field) = inner::primed(&packet.head, &packet.layout, inner_len)?;
                (sum == Sum::of(&field.to_be_bytes())).then_some(Remote::Transport)
            }
            Unit::Whole(_) => gre_csum.then_some(Remote::Gre),
        }
    }

    fn gre_header(&self, options: &GreOptions, version: u8) -> Gre {
        Gre {
            protocol: match version {
                _ if self.config.mode.is_ethernet() => ethertype::TEB,
                4 => ethertype::IPV4,
                _ => ethertype::IPV6,
            },
            checksum: options.ocsum.then_some(0),
            key: options.okey,
            seq: options.oseq.then_some(self.next_seq),
        }
    }

    /// Returns the socket and the source port of a flow.
    ///
    /// With GRE sequence numbers all flows use one socket: the far end drops packets older than the newest number that
    /// it saw, so packets must not be reordered, and those of several sockets are.
    fn source(&self, hash: u64) -> (u16, u16) {
        match self.config.slots {
            SourcePorts::Slots(_) if self.numbers() => (0, FIRST_SOURCE_PORT),
            // The port uses the upper half, so that packets of one socket still differ; the remainders fit 16 bits.
            SourcePorts::Slots(slots) => {
                let slot = (hash as u32) % u32::from(slots.max(1));
                let span = u64::from(u16::MAX - FIRST_SOURCE_PORT) + 1;
                (slot as u16, FIRST_SOURCE_PORT + ((hash >> 32) % span) as u16)
            }
            SourcePorts::Fixed(port) => (0, port),
        }
    }

    /// Returns whether packets carry GRE sequence numbers.
    fn numbers(&self) -> bool {
        self.config.mode.gre().is_some_and(|options| options.oseq)
    }

    fn tos(&self, inner: &Inner) -> u8 {
        match self.config.tos {
            Tos::Inherit => ecn::encapsulate(inner.tos, inner.tos),
            Tos::Fixed(dscp) => ecn::encapsulate(dscp, inner.tos),
        }
    }
}

/// The inner packet that goes into a tunnel.
struct Measured {
    inner: Inner,
    /// Whether the packet is a single one, not a train.
    is_whole: bool,
    /// Length of the packet in bytes, without padding after an inner IP packet.
    len: usize,
    /// Length of the part of the packet in its payload, in bytes.
    payload_len: usize,
}

/// The outer headers of a packet.
struct Wrapping {
    /// Length of the outer headers, in bytes.
    outer_len: usize,
    /// The offload state of the tunnel level that the outer headers add.
    layer: Layer,
    gre: Option<Gre>,
    option: Option<Remcsum>,
    /// Length of the packet with the outer headers, in bytes.
    total_len: usize,
    /// Value of the outer IP length field; 0 for a train.
    stated: u16,
}

/// Maximum number of outer headers: IP, UDP, GUE or another tunnel header, and GRE.
const MAX_OUTER_HEADERS: usize = 4;
/// Index of the GUE or VXLAN header among the outer headers.
const SHIM_IDX: usize = 2;

/// The outer headers of a tunnel. They take a quarter of the bytes of a layout: there are two for each peer.
#[derive(Clone, Copy, Debug)]
struct OuterHeaders {
    headers: [Header; MAX_OUTER_HEADERS],
    count: u8,
}

impl OuterHeaders {
    /// Returns the outer headers by the configuration, with a remote checksum option if `has_option` is set.
    fn new(config: &Config, has_option: bool) -> OuterHeaders {
        let ip = if config.local.is_ipv4() { (Kind::Ipv4, ipv4::MIN_LEN) } else { (Kind::Ipv6, ipv6::LEN) };
        let udp = (config.carrier != Carrier::Bare).then_some((Kind::Udp, udp::LEN));
        let shim = match config.carrier {
            Carrier::Gue { .. } => Some((Kind::Gue, Gue::emit_len(has_option))),
            Carrier::Vxlan { .. } => Some((Kind::Vxlan, vxlan::LEN)),
            Carrier::Geneve { .. } => Some((Kind::Geneve, geneve::MIN_LEN)),
            Carrier::Fou | Carrier::Bare => None,
        };
        let gre = config.mode.gre().map(|options| (Kind::Gre, options.send_len()));
        let none = Header { kind: Kind::Ipv4, off: 0, len: 0 };
        let mut outer = OuterHeaders { headers: [none; MAX_OUTER_HEADERS], count: 0 };
        let mut off = 0;
        for (header, (kind, len)) in outer.headers.iter_mut().zip([Some(ip), udp, shim, gre].into_iter().flatten()) {
            // All together have at most 76 bytes.
            *header = Header { kind, off, len: len as u16 };
            off += len as u16;
            outer.count += 1;
        }
        outer
    }

    /// Returns the headers, outermost first.
    #[inline]
    fn headers(&self) -> &[Header] {
        &self.headers[..usize::from(self.count)]
    }

    /// Returns the length of all headers together, in bytes.
    #[inline]
    fn header_len(&self) -> usize {
        self.headers().last().map_or(0, Header::end)
    }

    /// Returns the length of the headers after that of GUE or VXLAN, in bytes.
    #[inline]
    fn len_after_shim(&self) -> usize {
        self.headers().get(SHIM_IDX).map_or(0, |shim| self.header_len() - shim.end())
    }
}

fn segments(unit: &Unit, payload: usize) -> usize {
    match unit {
        Unit::Whole(_) => 1,
        Unit::Train { gso, .. } => gso.segs(payload),
    }
}

/// Returns source and destination of the outer headers.
fn addresses<'a>(config: &Config, template: &'a [u8; MAX_OUTER_LEN]) -> &'a [u8] {
    match config.local.is_ipv4() {
        true => &template[ipv4::SRC.start..ipv4::DST.end],
        false => &template[ipv6::SRC.start..ipv6::DST.end],
    }
}

fn addresses_begin(config: &Config, template: &[u8; MAX_OUTER_LEN]) -> [u8; 8] {
    addresses(config, template).first_chunk().copied().unwrap_or_default()
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
    if config.carrier != Carrier::Bare {
        write_u16(&mut bytes, config.outer_len() - udp::LEN + udp::DST_PORT, config.dport);
    }
    bytes
}

/// Fills in the fields of the outer IPv4 header that differ from packet to packet. `total_len` is 0 for a train, whose
/// header checksum is left out.
///
/// The identification counts up over all packets, also with Don't Fragment, where it would not have to (RFC 6864,
/// section 4): without DF it must be unique, and one rule is simpler than two.
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

/// Fills in the fields of the outer IPv6 header; the flow label is derived from the flow hash (RFC 6437, section 3; RFC
/// 6438).
fn write_ipv6(bytes: &mut [u8], meta: &Outer, payload_len: u16, hash: u32) {
    let word = 6 << 28 | u32::from(meta.tos) << 20 | hash & 0x000f_ffff;
    write_u32(bytes, ipv6::VERSION_CLASS_LABEL, word);
    write_u16(bytes, ipv6::PAYLOAD_LEN, payload_len);
    bytes[ipv6::HOP_LIMIT] = meta.ttl;
}
