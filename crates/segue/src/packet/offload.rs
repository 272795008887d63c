//! The offload state of a packet: one value, owned by the packet, that cannot contradict itself.

use super::head::Head;
use super::remote::{self, Remote};
use crate::checksum::Sum;
use crate::wire::parse::{Kind, Layout};
use crate::wire::{gre, read_u16, udp};

/// Largest number of tunnel levels around a packet.
pub const MAX_LAYERS: usize = 4;

/// The state of the innermost transport checksum of a single packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Csum {
    /// The state is not known: the field may be right or wrong.
    Unknown,
    /// No checksum: UDP with a zero checksum field.
    Absent,
    /// The field was checked and is right.
    Verified,
    /// The field was not checked, but the sum of all bytes from the outermost IP header to the end is known
    /// (`CHECKSUM_COMPLETE` in Linux).
    Complete(Sum),
    /// The checksum is partial: the field of the innermost transport header holds the pseudo-header sum, uncomplemented
    /// (`CHECKSUM_PARTIAL` in Linux).
    Partial,
    /// The field was checked and is wrong.
    Bad,
}

/// The state of the transport checksums of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainCsum {
    /// The checksum is partial: the field holds the pseudo-header sum over the whole train, uncomplemented.
    Partial,
    /// Every segment was checked before it joined; the field holds the pseudo-header sum over the whole train.
    Stale,
}

/// The transport protocol of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// Consecutive segments of one TCP stream.
    Tcp,
    /// UDP datagrams of equal size, the last one possibly shorter (Linux: `UDP_L4`, USO).
    Udp,
}

/// The instructions for segmenting a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The transport protocol of the segments.
    pub kind: GsoKind,
    /// Transport payload bytes of each segment but the last; never 0.
    pub size: u16,
    /// IPv4 headers (by index in the layout, bit 0 first) whose identification is equal on all segments; it counts up
    /// by one where the bit is clear. The flag [`Gso::CWR`] is kept here too.
    pub fixed_ids: u16,
}

impl Gso {
    /// Flag in [`Gso::fixed_ids`], in a bit that stands for no IPv4 header: CWR is set on every segment, as
    /// accurate ECN uses it, and not only on the first (RFC 3168). Such a train is always cut here, never by a port.
    pub const CWR: u16 = 1 << 15;

    /// Returns whether CWR is set on every segment.
    pub fn is_cwr_on_all(&self) -> bool {
        self.fixed_ids & Gso::CWR != 0
    }

    /// Returns the segmentation of a train after `headers` more headers were prepended.
    #[must_use]
    pub fn behind(self, headers: usize) -> Gso {
        let fixed = (self.fixed_ids & !Gso::CWR).checked_shl(headers as u32).unwrap_or(0);
        Gso { fixed_ids: fixed & !Gso::CWR | self.fixed_ids & Gso::CWR, ..self }
    }

    /// Returns the segmentation of a train after its first `headers` headers were removed.
    #[must_use]
    pub fn without(self, headers: usize) -> Gso {
        let fixed = (self.fixed_ids & !Gso::CWR).checked_shr(headers as u32).unwrap_or(0);
        Gso { fixed_ids: fixed | self.fixed_ids & Gso::CWR, ..self }
    }

    /// Returns the number of segments of a train with `payload` bytes of transport payload: at least 1.
    pub fn segs(&self, payload: usize) -> usize {
        payload.div_ceil(usize::from(self.size).max(1)).max(1)
    }
}

/// A single packet or a train, with the state of the transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A single packet, no train.
    Whole(Csum),
    /// Several segments under one header. Lengths, identification, sequence number and checksums in the header are
    /// those of the first segment or of the whole, as `gso` needs them; outer lengths have no meaning until the train
    /// is split.
    Train {
        /// State of the innermost transport checksums.
        csum: TrainCsum,
        /// The parameters of the segmentation.
        gso: Gso,
    },
}

/// The state of an outer checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCsum {
    /// The header has no checksum.
    Absent,
    /// The header has a checksum of unknown state.
    Unknown,
    /// The header has a checksum that was verified, or that was just computed.
    Done,
    /// The header has a checksum field; the checksum is to be computed when everything inside is final.
    Owed,
}

/// Checksum state of one tunnel level: all headers from one IP header up to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// State of the outer UDP checksum.
    pub udp: LayerCsum,
    /// State of the GRE checksum.
    pub gre: LayerCsum,
    /// The checksum that a remote checksum option of this level leaves to the receiver.
    pub remote: Option<Remote>,
}

impl Layer {
    /// A tunnel level without checksums.
    pub const NONE: Layer = Layer { udp: LayerCsum::Absent, gre: LayerCsum::Absent, remote: None };
}

/// The offload state of a packet: which checksums are known or owed, at each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// The packet without its tunnel levels.
    pub unit: Unit,
    layers: [Layer; MAX_LAYERS],
    count: u8,
}

impl Offload {
    /// The state of a packet without any verified or pending checksum.
    pub const UNKNOWN: Offload =
        Offload { unit: Unit::Whole(Csum::Unknown), layers: [Layer::NONE; MAX_LAYERS], count: 0 };

    /// Returns the state of a packet without tunnel levels.
    pub const fn plain(unit: Unit) -> Offload {
        Offload { unit, ..Offload::UNKNOWN }
    }

    /// Returns the state of a received packet according to its headers, with nothing verified.
    ///
    /// Under a remote checksum option for the innermost transport header the transport checksum is [`Csum::Partial`];
    /// it may be relied on only once the outer checksum has been verified.
    #[inline]
    pub fn received(head: &Head, layout: &Layout) -> Offload {
        let levels = layout.ip_levels();
        if levels < 2 {
            // Without a tunnel no header has a state of its own.
            return Offload::plain(Unit::Whole(Offload::received_csum(head, layout)));
        }
        Offload::received_tunnel(head, layout, levels)
    }

    /// Returns the state of a received packet's transport checksum according to its header.
    #[inline]
    fn received_csum(head: &Head, layout: &Layout) -> Csum {
        match layout.transport() {
            Some(header)
                if header.kind == Kind::Udp && read_u16(head.bytes(), header.start() + udp::CHECKSUM) == Some(0) =>
            {
                Csum::Absent
            }
            _ => Csum::Unknown,
        }
    }

    #[inline(never)]
    fn received_tunnel(head: &Head, layout: &Layout, levels: usize) -> Offload {
        let mut offload = Offload::UNKNOWN;
        let mut level = 0;
        for (index, header) in layout.headers().iter().enumerate() {
            let bytes = head.bytes().get(header.start()..).unwrap_or(&[]);
            if header.is_ip() {
                level += 1;
                if level < levels {
                    offload.push_inner(Layer::NONE);
                }
                continue;
            }
            let Some(layer) = offload.last_mut().filter(|_| level < levels) else { continue };
            match header.kind {
                Kind::Udp if read_u16(bytes, udp::CHECKSUM) != Some(0) => layer.udp = LayerCsum::Unknown,
                Kind::Gre if read_u16(bytes, 0).is_some_and(|flags| flags & gre::CSUM != 0) => {
                    layer.gre = LayerCsum::Unknown;
                }
                _ => layer.remote = remote::option(head, layout, index).and_then(Result::ok).or(layer.remote),
            }
        }
        if offload.layers().iter().any(|l| l.remote == Some(Remote::Transport)) {
            offload.unit = Unit::Whole(Csum::Partial);
        } else {
            offload.unit = Unit::Whole(Offload::received_csum(head, layout));
        }
        offload
    }

    /// Returns the tunnel levels, outermost first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers[..usize::from(self.count)]
    }

    /// Returns the tunnel levels, outermost first, for modification.
    pub fn layers_mut(&mut self) -> &mut [Layer] {
        &mut self.layers[..usize::from(self.count)]
    }

    /// Adds a level around all others; returns `false` if there are [`MAX_LAYERS`] already.
    pub fn push_outer(&mut self, layer: Layer) -> bool {
        let count = usize::from(self.count);
        if count == MAX_LAYERS {
            return false;
        }
        if count > 0 {
            self.layers.copy_within(..count, 1);
        }
        self.layers[0] = layer;
        self.count += 1;
        true
    }

    fn push_inner(&mut self, layer: Layer) {
        if let Some(place) = self.layers.get_mut(usize::from(self.count)) {
            *place = layer;
            self.count += 1;
        }
    }

    fn last_mut(&mut self) -> Option<&mut Layer> {
        self.layers_mut().last_mut()
    }
}
