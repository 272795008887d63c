//! Forms of packets inside one tunnel: over UDP (VXLAN, Geneve, GUE, FOU), in GRE without checksum and sequence number,
//! or right in IP; behind Ethernet with tags or not.
//!
//! There are too many to list, but few in one place, so they are learned from the frames that the parser has read. The
//! bits that decide what the parser makes of a frame are types, versions, lengths of headers and flags; a frame with
//! the same ones has the same headers at the same places, whatever its addresses and ports, if its length fields are
//! exact.

use alloc::vec::Vec;

use super::key::Tunnelled;
use super::rules::Masks;
use crate::arch::Kernel;
use crate::packet::{
    Csum, Frame, HEAD_BLOCK, Head, Header, Kind, Layer, LayerCsum, Layout, Offload, Packet, Remote, Start, Stop, Unit,
    remote,
};
use crate::wire::parse::MAX_HEADER_BYTES;
use crate::wire::{ethernet, geneve, gre, ipv4, ipv6, protocol, read_u16, read_u32, tcp, udp};

/// Largest number of forms that are kept; another one replaces one that was not found lately.
pub(super) const MOST: usize = 8;

/// As many bytes as all headers may have, in blocks that are compared at once; zero after the headers.
type Blocks = [[u8; HEAD_BLOCK]; MAX_HEADER_BYTES / HEAD_BLOCK];

fn blocks(bytes: &[u8]) -> Blocks {
    let mut blocks = [[0; HEAD_BLOCK]; MAX_HEADER_BYTES / HEAD_BLOCK];
    blocks.as_flattened_mut().iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    blocks
}

/// Returns whether bytes differ in a bit of `mask`, as far as all of them go.
fn differ(a: &[u8], b: &[u8], mask: &[u8]) -> bool {
    a.iter().zip(b).zip(mask).fold(0, |acc, ((a, b), mask)| acc | ((a ^ b) & mask)) != 0
}

/// The identifier of a form, which no other form of the instance has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TunnelFormId(u32);

impl TunnelFormId {
    /// Stands for every packet without a known form.
    pub(super) const NONE: TunnelFormId = TunnelFormId(0);
}

/// A form of packets inside a tunnel: its layout, and what is derived from that.
#[derive(Debug)]
pub(super) struct TunnelForm {
    pub(super) id: TunnelFormId,
    start: Start,
    layout: Layout,
    /// Length of all headers, in bytes.
    pub(super) len: usize,
    /// A word of four bytes that tells the form from packets without the tunnel: its offset, its bits that count, and
    /// their value.
    tell: (usize, u32, u32),
    /// The headers of a packet of this form.
    sample: Blocks,
    /// Bits that decide which headers a packet has.
    decisive: Blocks,
    /// Bits that must be equal in the segments of a train.
    compared: Blocks,
    /// Offset of each length field, and of the first byte that it counts.
    lengths: [Option<(usize, usize)>; 4],
    /// Offset of each IPv4 header, its bit among the headers, and whether it is the innermost IP header.
    pub(super) ipv4s: [Option<(usize, u16, bool)>; 2],
    pub(super) outer: Header,
    /// UDP behind the outer IP header.
    pub(super) around: Option<Header>,
    pub(super) inner: Header,
    /// The innermost header, if that is TCP or UDP.
    pub(super) transport: Option<Header>,
    pub(super) remote: Option<Remote>,
    /// The words that enter the hash of the flow.
    pub(super) words: Tunnelled,
    /// Whether frames had the form since a place for another one was last looked for.
    is_used: bool,
}

impl TunnelForm {
    /// Creates the form of a packet that is learnable, as it was received and parsed; `None` if its flow has no words.
    fn new<B: AsRef<[u8]>>(packet: &Packet<B>, masks: &Masks, id: TunnelFormId) -> Option<TunnelForm> {
        let (layout, head) = (packet.layout, packet.head.bytes());
        let (outer, inner, transport) = (*layout.outer_ip()?, *layout.inner_ip()?, layout.transport().copied());
        let mut decisive = [0; MAX_HEADER_BYTES];
        for header in layout.headers() {
            let range = header.start()..header.end();
            decide(header, header.end() == head.len(), head.get(range.clone())?, decisive.get_mut(range)?);
        }
        if masks.moves_stamps()
            && let Some(tcp) = transport.filter(|header| header.kind == Kind::Tcp)
            && usize::from(tcp.len) == tcp::STAMPED_LEN
        {
            // Whether these options are timestamps decides what is compared.
            decisive.get_mut(tcp.start() + tcp::OPTIONS..tcp.start() + tcp::STAMP)?.fill(0xff);
        }
        let mut lengths = layout.headers().iter().filter_map(|header| match (header.kind, header.start()) {
            (Kind::Ipv4, start) => Some((start + ipv4::TOTAL_LEN, start)),
            (Kind::Ipv6, start) => Some((start + ipv6::PAYLOAD_LEN, start + ipv6::LEN)),
            (Kind::Udp, start) => Some((start + udp::LENGTH, start)),
            _ => None,
        });
        let mut ipv4s = layout.headers().iter().enumerate().filter_map(|(index, header)| {
            (header.kind == Kind::Ipv4).then_some((header.start(), 1 << index, *header == inner))
        });
        let around = layout.inside_outer_ip().first().copied().filter(|header| header.kind == Kind::Udp);
        let (at, bits) = match around {
            Some(around) => (around.start() + udp::SRC_PORT, 0x0000_ffff),
            None if outer.kind == Kind::Ipv4 => (outer.start() + ipv4::TTL, 0x00ff_0000),
            None => (outer.start() + ipv6::PAYLOAD_LEN, 0x0000_ff00),
        };
        Some(TunnelForm {
            id,
            start: if layout.starts_with_ethernet() { Start::Ethernet } else { Start::Ip },
            layout,
            len: head.len(),
            tell: (at, bits, read_u32(head, at)? & bits),
            sample: blocks(head),
            decisive: blocks(&decisive),
            compared: compared(masks, &layout, head),
            lengths: core::array::from_fn(|_| lengths.next()),
            ipv4s: core::array::from_fn(|_| ipv4s.next()),
            outer,
            around,
            inner,
            transport,
            remote: packet.offload.layers().first()?.remote,
            words: Tunnelled::of(head, &layout)?,
            is_used: false,
        })
    }

    /// Returns whether a frame has the form, apart from its length fields. `front` has its first bytes.
    #[inline(always)]
    fn is_of_frame(&self, kernel: Kernel, start: Start, front: &[u8; HEAD_BLOCK], bytes: &[u8]) -> bool {
        let (at, bits, value) = self.tell;
        start == self.start
            && bytes.len() >= self.len
            && read_u32(bytes, at).is_some_and(|word| word & bits == value)
            && !self.differs(kernel, (front, bytes), (&self.sample[0], self.sample.as_flattened()), &self.decisive)
            && (self.transport.is_some() || is_end(&self.inner, bytes))
    }

    /// Returns whether a parsed packet has the form.
    fn is_of_packet<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> bool {
        let head = packet.head.bytes();
        self.layout == packet.layout
            && packet.layout.is_exact()
            && head.len() == self.len
            && !differ(head, self.sample.as_flattened(), self.decisive.as_flattened())
    }

    /// Returns whether every length field covers exactly the bytes of a frame of this form.
    #[inline]
    pub(super) fn is_exact(&self, bytes: &[u8]) -> bool {
        let is_right = |&(at, from): &(usize, usize)| {
            read_u16(bytes, at).is_some_and(|length| usize::from(length) + from == bytes.len())
        };
        self.lengths.iter().flatten().all(is_right)
    }

    /// Returns whether a frame of this form, which begins with `front`, differs from a train with the headers `head` in
    /// a bit that must be equal.
    #[inline(always)]
    pub(super) fn differs_from_train(
        &self,
        kernel: Kernel,
        (front, bytes): (&[u8; HEAD_BLOCK], &[u8]),
        head: &Head,
    ) -> bool {
        let Some(first) = head.block().filter(|_| head.len() == self.len) else { return true };
        self.differs(kernel, (front, bytes), (first, head.bytes()), &self.compared)
    }

    /// Returns whether two rows of headers, each given by its first block and by all of its bytes, differ in a bit of
    /// `mask`.
    #[inline(always)]
    fn differs(
        &self,
        kernel: Kernel,
        (front, bytes): (&[u8; HEAD_BLOCK], &[u8]),
        (first, other): (&[u8; HEAD_BLOCK], &[u8]),
        mask: &Blocks,
    ) -> bool {
        if kernel.differ(front, first, &mask[0], self.len.min(HEAD_BLOCK)) {
            return true;
        }
        let rest = HEAD_BLOCK..self.len.max(HEAD_BLOCK);
        match (bytes.get(rest.clone()), other.get(rest)) {
            _ if self.len <= HEAD_BLOCK => false,
            (Some(bytes), Some(other)) => differ(bytes, other, &mask[1]),
            _ => true,
        }
    }

    /// Returns whether the outer UDP header of a frame of this form has a checksum.
    #[inline(always)]
    pub(super) fn has_outer_sum(&self, bytes: &[u8]) -> bool {
        self.around.is_some_and(|around| read_u16(bytes, around.start() + udp::CHECKSUM) != Some(0))
    }

    /// Returns the state of the innermost checksum of a frame of this form, of whose checksum a port says `csum`: what
    /// is verified of a datagram says nothing about the packet inside.
    pub(super) fn inner_csum(&self, csum: Csum) -> Csum {
        if csum == Csum::Verified && self.around.is_some() { Csum::Unknown } else { csum }
    }

    /// Loads an exact frame of this form into `packet`, with the result that parsing it has. The form has no remote
    /// checksum option.
    pub(super) fn load<B: AsRef<[u8]>>(&self, frame: Frame<B>, packet: &mut Packet<B>) {
        let bytes = frame.bytes.bytes();
        let is_absent =
            |header: &Header| header.kind == Kind::Udp && read_u16(bytes, header.start() + udp::CHECKSUM) == Some(0);
        let csum = match self.inner_csum(frame.csum) {
            Csum::Unknown if self.transport.as_ref().is_some_and(is_absent) => Csum::Absent,
            csum => csum,
        };
        let udp = if self.has_outer_sum(bytes) { LayerCsum::Unknown } else { LayerCsum::Absent };
        let mut offload = Offload::plain(Unit::Whole(csum));
        offload.push_outer(Layer { udp, ..Layer::NONE });
        packet.load_exact(frame.bytes, &self.layout, offload);
    }
}

/// Returns whether a form may be learned of an exact packet inside one tunnel: whether its headers follow from the bits
/// that decide alone, and packets like it are many.
fn is_learnable<B: AsRef<[u8]>>(packet: &Packet<B>) -> bool {
    let (layout, head) = (&packet.layout, &packet.head);
    let is_complete = match (layout.transport(), layout.headers().last()) {
        // Segments without payload may have any options, and each of their lengths would be a form.
        (Some(transport), _) => {
            let is_usual = matches!(usize::from(transport.len), tcp::MIN_LEN | tcp::STAMPED_LEN);
            is_usual || transport.kind == Kind::Udp || !packet.payload.is_empty()
        }
        (None, Some(last)) => layout.stop() == Stop::Protocol && last.is_ip() && is_end(last, head.bytes()),
        (None, None) => false,
    };
    is_complete && (0..layout.headers().len()).all(|index| is_usual(head, layout, index))
}

/// Returns whether a header is without all that changes where the headers behind it are, or that no train has: options
/// of IP, parts of packets, GRE with a checksum or a sequence number, a transport that is not right behind IP, and
/// misplaced remote checksums.
fn is_usual(head: &Head, layout: &Layout, index: usize) -> bool {
    let Some(header) = layout.headers().get(index) else { return false };
    let word = |at: usize| read_u16(head.bytes(), header.start() + at);
    match header.kind {
        Kind::Ipv4 => {
            usize::from(header.len) == ipv4::MIN_LEN && word(ipv4::FRAGMENT).is_some_and(|word| word & !ipv4::DF == 0)
        }
        Kind::Ipv6 => usize::from(header.len) == ipv6::LEN,
        Kind::Tcp | Kind::Udp => layout.headers().get(index.wrapping_sub(1)).is_some_and(Header::is_ip),
        Kind::Gre => word(0).is_some_and(|flags| flags & (gre::CSUM | gre::SEQ) == 0),
        _ => !matches!(remote::option(head, layout, index), Some(Err(_))),
    }
}

/// Returns whether no header is read behind the IP header `ip` of a packet that begins with `bytes`, whatever follows:
/// its protocol is none of the parser's.
fn is_end(ip: &Header, bytes: &[u8]) -> bool {
    let is_v6 = ip.kind == Kind::Ipv6;
    match bytes.get(ip.start() + if is_v6 { ipv6::NEXT_HEADER } else { ipv4::PROTOCOL }) {
        Some(&(protocol::HOP_BY_HOP | protocol::ROUTING | protocol::FRAGMENT | protocol::DESTINATION)) => !is_v6,
        Some(&(protocol::TCP | protocol::UDP | protocol::GRE | protocol::ETHERNET)) => false,
        Some(&number) => !matches!(number, protocol::IPV4 | protocol::IPV6),
        None => false,
    }
}

/// All bits of the first four bytes.
const FOUR: &[(usize, u8)] = &[(0, 0xff), (1, 0xff), (2, 0xff), (3, 0xff)];

/// Bits that decide which headers follow a header and where, by its kind: the offset of each byte, and its bits. Those
/// of other kinds are all but the ones that part flows.
const DECISIVE: &[(Kind, &[(usize, u8)])] = &[
    (Kind::Ethernet, &[(ethernet::TYPE, 0xff), (ethernet::TYPE + 1, 0xff)]),
    (Kind::Vlan, &[(ethernet::VLAN_TYPE, 0xff), (ethernet::VLAN_TYPE + 1, 0xff)]),
    (
        Kind::Ipv4,
        &[
            (ipv4::VERSION_IHL, 0xff),
            (ipv4::FRAGMENT, !((ipv4::DF >> 8) as u8)),
            (ipv4::FRAGMENT + 1, 0xff),
            (ipv4::PROTOCOL, 0xff),
        ],
    ),
    (Kind::Ipv6, &[(ipv6::VERSION_CLASS_LABEL, 0xf0), (ipv6::NEXT_HEADER, 0xff)]),
    (Kind::Udp, &[(udp::DST_PORT, 0xff), (udp::DST_PORT + 1, 0xff)]),
    (Kind::Tcp, &[(tcp::OFFSET, 0xf0)]),
    (Kind::Gre, FOUR),
    // And the length of each option.
    (Kind::Geneve, FOUR),
];

/// Sets in `bits`, which stand for the bytes of a header, those that decide. The protocol of an IP header that is the
/// last one must only be none that is read, and the port of UDP that is the last none of a tunnel; both are left to be
/// checked.
fn decide(header: &Header, is_last: bool, bytes: &[u8], bits: &mut [u8]) {
    let Some((kind, decisive)) = DECISIVE.iter().find(|(kind, _)| *kind == header.kind) else {
        bits.fill(0xff);
        if let Some(flow) = header.kind.format().and_then(|format| bits.get_mut(format.flow.clone())) {
            flow.fill(0);
        }
        return;
    };
    for &(at, decides) in *decisive {
        let is_free =
            matches!((kind, at), (Kind::Udp, _) | (Kind::Ipv4, ipv4::PROTOCOL) | (Kind::Ipv6, ipv6::NEXT_HEADER));
        if let Some(bits) = bits.get_mut(at).filter(|_| !(is_last && is_free)) {
            *bits = decides;
        }
    }
    // The last byte of an option's header has its length.
    let mut at = geneve::MIN_LEN + 3;
    while *kind == Kind::Geneve
        && let (Some(length), Some(bits)) = (bytes.get(at), bits.get_mut(at))
    {
        *bits = geneve::WORDS;
        at += 4 + usize::from(length & geneve::WORDS) * 4;
    }
}

/// Returns the bits that must be equal in the segments of a train with these headers.
fn compared(masks: &Masks, layout: &Layout, head: &[u8]) -> Blocks {
    let mut bits = masks.all(layout, head);
    for header in layout.headers().iter().filter(|header| header.kind == Kind::Gre) {
        // It has no checksum, so that the key is where that would be; on the slow path the flow says that it is equal.
        if let Some(bits) = bits.get_mut(header.start()..header.end()) {
            bits.fill(0xff);
        }
    }
    blocks(&bits)
}

/// The forms of packets inside tunnels that were learned.
#[derive(Debug)]
pub(super) struct TunnelForms {
    /// At most [`MOST`] of them; memory is allocated for each when it is learned.
    forms: Vec<TunnelForm>,
    /// Place of the form that was found last, which is not replaced.
    recent: usize,
    /// Place from which on one is looked for that is replaced.
    hand: usize,
    /// Number of forms that were ever learned.
    learned: u32,
}

impl TunnelForms {
    pub(super) const fn new() -> TunnelForms {
        TunnelForms { forms: Vec::new(), recent: 0, hand: 0, learned: 0 }
    }

    /// Returns whether none was learned.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Forgets all forms.
    pub(super) fn clear(&mut self) {
        self.forms.clear();
        (self.recent, self.hand) = (0, 0);
    }

    /// Returns the form at a place, which is valid until the next one is learned.
    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> Option<&TunnelForm> {
        self.forms.get(at)
    }

    /// Returns the place of the form that a frame has, apart from its length fields. `front` has its first bytes.
    #[inline]
    pub(super) fn find(
        &mut self,
        kernel: Kernel,
        start: Start,
        front: &[u8; HEAD_BLOCK],
        bytes: &[u8],
    ) -> Option<usize> {
        if self.forms.get(self.recent)?.is_of_frame(kernel, start, front, bytes) {
            return Some(self.recent);
        }
        self.find_other(kernel, start, front, bytes)
    }

    /// Returns what [`TunnelForms::find`] does, for a frame that has not the recent form.
    #[inline(never)]
    fn find_other(&mut self, kernel: Kernel, start: Start, front: &[u8; HEAD_BLOCK], bytes: &[u8]) -> Option<usize> {
        let at = self.forms.iter().position(|form| form.is_of_frame(kernel, start, front, bytes))?;
        if let Some(recent) = self.forms.get_mut(self.recent) {
            recent.is_used = true;
        }
        self.recent = at;
        Some(at)
    }

    /// Returns the form of a parsed packet.
    pub(super) fn of<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> TunnelFormId {
        if packet.offload.layers().len() != 1 {
            return TunnelFormId::NONE;
        }
        self.forms.iter().find(|form| form.is_of_packet(packet)).map_or(TunnelFormId::NONE, |form| form.id)
    }

    /// Learns the form of a packet that was parsed from a frame, if it is another one.
    #[inline]
    pub(super) fn learn<B: AsRef<[u8]>>(&mut self, packet: &Packet<B>, masks: &Masks) {
        if packet.offload.layers().len() == 1 && packet.layout.is_exact() {
            self.learn_exact(packet, masks);
        }
    }

    /// Learns the form of an exact packet inside one tunnel.
    #[cold]
    #[inline(never)]
    fn learn_exact<B: AsRef<[u8]>>(&mut self, packet: &Packet<B>, masks: &Masks) {
        if !is_learnable(packet) || self.of(packet) != TunnelFormId::NONE {
            return;
        }
        let id = self.learned.wrapping_add(1).max(1);
        let Some(form) = TunnelForm::new(packet, masks, TunnelFormId(id)) else { return };
        self.learned = id;
        if self.forms.len() == MOST {
            // A form that was found since the last look at it has a second chance.
            while self.hand == self.recent
                || self.forms.get_mut(self.hand).is_some_and(|form| core::mem::take(&mut form.is_used))
            {
                self.hand = (self.hand + 1) % MOST;
            }
            if let Some(place) = self.forms.get_mut(self.hand) {
                *place = form;
            }
            self.hand = (self.hand + 1) % MOST;
        } else if self.forms.try_reserve_exact(1).is_ok() {
            self.forms.push(form);
        }
    }
}
