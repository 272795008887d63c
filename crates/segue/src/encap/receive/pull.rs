//! Extraction of the inner packet from a datagram.

use super::decapsulator::Decapsulator;
use super::headers::TunnelHeaders;
use super::inner::set_tos;
use super::received::{OuterCsum, Received, is_zero};
use super::refusal::DecapRefusal;
use super::remcsum::{check_primed, finished_sum, resolve};
use crate::checksum::Sum;
use crate::encap::config::Carrier;
use crate::encap::ecn;
use crate::packet::{Csum, Frag, Head, Layout, Offload, Packet, Remote, Unit};

impl Decapsulator {
    /// Removes the tunnel headers of `datagram`, a UDP payload, and loads the inner packet into `into`. On an error
    /// `into` is empty.
    ///
    /// The inner packet is parsed from scratch. Its layout starts at its IP header, even for a fragment, and bytes
    /// after the packet are cut off. Its offload state has no level for this tunnel. The transport checksum is
    /// [`Csum::Partial`] if it was left to the receiver, [`Csum::Complete`] if the sum of the datagram is known, and
    /// otherwise as for any received packet. Errors above the inner IP header are not judged here: a tunnel carries IP
    /// packets.
    ///
    /// # Errors
    /// [`DecapRefusal`] for a datagram that is not of this tunnel, or that the tunnel must drop.
    pub fn pull<B: AsRef<[u8]>>(
        &mut self,
        datagram: Frag<B>,
        meta: &Received,
        into: &mut Packet<B>,
    ) -> Result<(), DecapRefusal> {
        let result = self.take_out(datagram, meta, into);
        if result.is_err() {
            into.clear();
        }
        result
    }

    /// Decapsulates a whole packet, like [`Decapsulator::pull`]: `packet` begins with the outer IP header and may have
    /// padding after it. Addresses, port and outer checksums are verified here.
    ///
    /// # Errors
    /// As for [`Decapsulator::pull`].
    pub fn pull_packet<B: AsRef<[u8]>>(&mut self, packet: Frag<B>, into: &mut Packet<B>) -> Result<(), DecapRefusal> {
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
    ) -> Result<(), DecapRefusal> {
        let has_udp = self.config.carrier != Carrier::Bare;
        if meta.csum == OuterCsum::Absent && has_udp && !self.config.zero_csum6 && self.config.local.is_ipv6() {
            return Err(DecapRefusal::OuterCsumAbsent);
        }
        let bytes = datagram.bytes();
        let tunnel = self.tunnel_headers(bytes)?;
        if tunnel.option.is_some() && meta.csum != OuterCsum::Verified {
            return Err(DecapRefusal::RemcsumNoOuterCsum);
        }

        let rest = bytes.get(tunnel.len..).unwrap_or(&[]);
        let contents = self.contents(rest, &tunnel, &mut into.head)?;
        let mut sum = meta.sum.map(|mut sum| {
            sum.remove(Sum::of(&bytes[..tunnel.gre_at]));
            sum
        });
        if let Some(gre) = tunnel.gre {
            if let Some(field) = gre.checksum {
                sum = self.verify_gre(bytes, field, &tunnel, &contents, &into.head, sum)?;
            }
            self.sequence(gre.seq)?;
        }
        let Contents { layout, l3, packet, trailer, option, unfinished, .. } = contents;
        // A frame without IP has no field for a congestion mark.
        let tos = match contents.tos {
            Some(tos) => Some((tos, ecn::combine(tos, meta.tos).ok_or(DecapRefusal::Ecn)?)),
            None => None,
        };

        if let Some(sum) = &mut sum {
            sum.remove(Sum::of(&bytes[tunnel.gre_at..tunnel.len + l3]));
        }
        // A trailer may start in the middle of a word, and is rare.
        let mut sum = sum.filter(|_| trailer.is_empty() && tos.is_some() && !layout.is_padded());
        if let Some((_, new)) = tos.filter(|(old, new)| old != new) {
            set_tos(&mut into.head, l3, new, &mut sum);
        }
        into.offload = Offload::received(&into.head, &layout);
        match (option, into.offload.unit, sum) {
            (Some(Remote::Transport), ..) => into.offload.unit = Unit::Whole(Csum::Partial),
            (_, Unit::Whole(Csum::Unknown), _) if unfinished.is_some() => {
                into.offload.unit = self.unfinished_offload(&layout, unfinished == Some(true), l3);
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

    /// Reads the inner packet in `rest`, the bytes after the tunnel headers, puts its headers into `head`, and
    /// resolves the remote checksum option.
    #[inline]
    fn contents<'a>(
        &self,
        rest: &'a [u8],
        tunnel: &TunnelHeaders,
        head: &mut Head,
    ) -> Result<Contents<'a>, DecapRefusal> {
        let inner = self.inner(rest, tunnel)?;
        let (packet, trailer) = rest.split_at_checked(inner.len).ok_or(DecapRefusal::InnerMalformed)?;
        let mut layout = inner.layout;
        head.set(packet.get(..layout.header_len()).unwrap_or(&[]));

        let option = tunnel.option.map(|option| resolve(option, tunnel, head, &layout)).transpose()?;
        // Padding of a frame is not covered by the checksum that the remote end left to the receiver.
        let packet = match option {
            Some(Remote::Transport) if layout.is_padded() => {
                let end = layout.end();
                layout.trimmed();
                packet.get(..end).ok_or(DecapRefusal::InnerMalformed)?
            }
            _ => packet,
        };
        let primed = match option {
            Some(Remote::Transport) => Some(check_primed(head, &layout, packet.len())?),
            Some(Remote::Gre) | None => None,
        };
        let unfinished = match (self.config.unfinished, option) {
            (Some(most), None) if check_primed(head, &layout, packet.len()).is_ok() => {
                Some(packet.len() - inner.l3 > usize::from(most))
            }
            _ => None,
        };
        Ok(Contents { layout, l3: inner.l3, tos: inner.tos, packet, trailer, option, primed, unfinished })
    }

    /// Verifies the GRE checksum `field` of `bytes`. `sum` is the sum from the GRE header on, if it is known; the
    /// result is the same, if it is known afterwards.
    fn verify_gre(
        &mut self,
        bytes: &[u8],
        field: u16,
        tunnel: &TunnelHeaders,
        contents: &Contents<'_>,
        head: &Head,
        sum: Option<Sum>,
    ) -> Result<Option<Sum>, DecapRefusal> {
        let Contents { layout, packet, trailer, option, primed, unfinished, .. } = contents;
        match option {
            // The outer checksum covers it, if it holds the zero with which the far end computed the sum.
            Some(Remote::Gre) if field.is_multiple_of(0xffff) => return Ok(sum),
            Some(Remote::Gre) => return Err(DecapRefusal::RemcsumPrimed),
            // The kernel that joined packets has verified them, and left the field of the first.
            _ if *unfinished == Some(true) => return Ok(sum),
            _ => {}
        }
        let primed = primed.or_else(|| check_primed(head, layout, packet.len()).ok());
        let primed = primed.filter(|_| option.is_some() || unfinished.is_some());
        let headers = primed.map(|field| {
            let transport = layout.transport().map_or(0, |header| header.start());
            let headers = tunnel.gre_at..tunnel.len + transport;
            finished_sum(bytes, headers, field, packet.len() - transport, trailer)
        });
        let checked = headers.or(sum).unwrap_or_else(|| {
            self.checksummed_bytes += (bytes.len() - tunnel.len) as u64;
            Sum::of(&bytes[tunnel.gre_at..])
        });
        if !is_zero(checked) {
            return Err(DecapRefusal::GreCsum);
        }
        Ok(if headers.is_some() { sum } else { Some(checked) })
    }
}

/// The inner packet of a datagram, and the state of its checksums according to the tunnel headers.
struct Contents<'a> {
    layout: Layout,
    /// Offset of the inner IP header; 0 if there is none.
    l3: usize,
    /// DSCP and ECN of the inner IP header, if there is one.
    tos: Option<u8>,
    /// Bytes of the inner packet, without padding if its checksum is still to be completed.
    packet: &'a [u8],
    /// The bytes after the inner packet.
    trailer: &'a [u8],
    /// Checksum that the sender left to the receiver.
    option: Option<Remote>,
    /// Value of the primed transport checksum, if the sender left it to the receiver.
    primed: Option<u16>,
    /// Set if this host's kernel left the transport checksum unfinished: whether the packet is a train.
    unfinished: Option<bool>,
}
