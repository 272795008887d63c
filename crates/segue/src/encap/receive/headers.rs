//! The tunnel headers, between outer IP or UDP and the inner packet.

use super::decapsulator::Decapsulator;
use super::refusal::DecapRefusal;
use crate::encap::config::{Carrier, GreOptions, Mode};
use crate::wire::geneve::Geneve;
use crate::wire::gre::Gre;
use crate::wire::gue::Gue;
use crate::wire::vxlan::{self, Vxlan};
use crate::wire::{Remcsum, ethertype, protocol};

/// Number of older packets in a row, each newer than the one before, by which a sender is known that began its GRE
/// sequence numbers anew.
const ANEW: u32 = 16;
/// Least distance of the last of them from the newest number. Packets that are late on their way are not as late, and a
/// sender that has sent fewer before it began anew soon has sent as many again.
const FAR_BEHIND: u32 = 1024;

impl Decapsulator {
    /// Parses the tunnel headers, between outer IP or UDP and the inner packet.
    #[inline(always)]
    pub(super) fn tunnel_headers(&self, bytes: &[u8]) -> Result<TunnelHeaders, DecapRefusal> {
        let plain = |len| TunnelHeaders { gre_at: len, len, version: 0, option: None, gre: None };
        let mut found = match self.config.carrier {
            Carrier::Gue { .. } => {
                let header = Gue::parse(bytes)?;
                let version = match (self.config.mode, header.protocol) {
                    (Mode::Gre(_) | Mode::GreTap(_), protocol::GRE) => 0,
                    (Mode::Ipip | Mode::Ip, protocol::IPV4) => 4,
                    (Mode::Sit | Mode::Ip, protocol::IPV6) => 6,
                    (Mode::Ethernet, protocol::ETHERNET) => 0,
                    _ => return Err(DecapRefusal::InnerProtocol),
                };
                TunnelHeaders { version, option: header.remcsum, ..plain(header.len) }
            }
            // The port or the protocol number tells; the mode is checked against the inner header later.
            Carrier::Fou | Carrier::Bare => {
                TunnelHeaders { version: bytes.first().map_or(0, |byte| byte >> 4), ..plain(0) }
            }
            Carrier::Vxlan { vni, takes_remcsum, .. } => {
                let header = Vxlan::parse(bytes)?;
                if header.vni != vni {
                    return Err(DecapRefusal::Vni);
                }
                if header.remcsum.is_some() && !takes_remcsum {
                    return Err(DecapRefusal::RemcsumUnwanted);
                }
                TunnelHeaders { option: header.remcsum, ..plain(vxlan::LEN) }
            }
            Carrier::Geneve { vni } => {
                let header = Geneve::parse(bytes)?;
                if header.vni != vni {
                    return Err(DecapRefusal::Vni);
                }
                if header.is_critical {
                    return Err(DecapRefusal::GeneveCritical);
                }
                if header.protocol != ethertype::TEB {
                    return Err(DecapRefusal::InnerProtocol);
                }
                plain(header.len)
            }
        };
        if let Some(options) = self.config.mode.gre() {
            let gre = Gre::parse(bytes.get(found.gre_at..).unwrap_or(&[])).ok_or(DecapRefusal::GreMalformed)?;
            if !gre_matches(&gre, options) {
                return Err(DecapRefusal::GreMismatch);
            }
            found.version = match (gre.protocol, self.config.mode.is_ethernet()) {
                (ethertype::IPV4, false) => 4,
                (ethertype::IPV6, false) => 6,
                (ethertype::TEB, true) => 0,
                _ => return Err(DecapRefusal::InnerProtocol),
            };
            found.len += gre.len();
            found.gre = Some(gre);
        }
        Ok(found)
    }

    /// Refuses packets older than the newest one, as Linux does; RFC 2890, section 2.2, would also let a receiver
    /// reorder. Unlike Linux it follows a sender that begins anew.
    pub(super) fn sequence(&mut self, seq: Option<u32>) -> Result<(), DecapRefusal> {
        if let (Some(GreOptions { iseq: true, .. }), Some(seq)) = (self.config.mode.gre(), seq) {
            if self.next_seq != 0 && (seq.wrapping_sub(self.next_seq) as i32) < 0 && !self.begins_anew(seq) {
                return Err(DecapRefusal::GreSeq);
            }
            self.older = (0, 0);
            self.next_seq = seq.wrapping_add(1);
        }
        Ok(())
    }

    /// Returns whether a packet that is older than the newest one is, with those before it, a new beginning.
    #[cold]
    fn begins_anew(&mut self, seq: u32) -> bool {
        let (next, count) = self.older;
        let ascends = count > 0 && (seq.wrapping_sub(next) as i32) >= 0;
        let count = if ascends { count + 1 } else { 1 };
        self.older = (seq.wrapping_add(1), count);
        count >= ANEW && self.next_seq.wrapping_sub(seq) >= FAR_BEHIND
    }
}

/// The tunnel headers of a datagram.
pub(super) struct TunnelHeaders {
    /// Length of GUE, VXLAN or Geneve in bytes, which is the offset of GRE, if there is any.
    pub(super) gre_at: usize,
    /// Total length of the headers in bytes.
    pub(super) len: usize,
    /// Inner IP version that the headers announce, or that of the first nibble if they do not.
    pub(super) version: u8,
    pub(super) option: Option<Remcsum>,
    pub(super) gre: Option<Gre>,
}

/// Returns whether a header has the options that the tunnel's packets have. As in Linux an unconfigured sequence number
/// is ignored, while an unconfigured key or checksum means another tunnel.
fn gre_matches(gre: &Gre, options: &GreOptions) -> bool {
    gre.key == options.ikey && gre.checksum.is_some() == options.icsum && (gre.seq.is_some() || !options.iseq)
}
