//! What is seen at once of a frame of TCP behind Ethernet without tags: whether it is the very next segment of a train, of
//! which nearly everything is known by then, or good for the first of one.

use super::Gro;
use super::form::Which;
use super::key::L3;
use super::quick::{is_sum_good, pseudo};
use super::table::Follow;
use crate::checksum::Sum;
use crate::packet::{Csum, HEAD_BLOCK, Start};
use crate::wire::{ethernet, ethertype, ipv4, ipv6, protocol, read_u32, tcp};

/// What is seen at once of a frame.
pub(super) enum Next {
    /// It is the very next segment of the train at this place. Behind so many bytes of headers its payload is to be put there.
    Is(usize, usize),
    /// It is good for the first of a train, and nothing with such a hash is held. It has this form and sequence number.
    Starts { hash: u64, which: Which, seq: u32 },
    /// Nothing. The hash of its flow, where it was made.
    Not(Option<u64>),
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Takes note of a frame that is the very next segment of a train, and tells whether it may start one. Of all others
    /// nothing is noted.
    #[inline(always)]
    pub(super) fn follow(&mut self, front: &[u8; HEAD_BLOCK], bytes: &[u8], start: Start, csum: Csum) -> Next {
        if start != Start::Ethernet || !matches!(csum, Csum::Verified | Csum::Unknown) {
            return Next::Not(None);
        }
        let word = read_u32(front, ethernet::TYPE).unwrap_or(0);
        if word & 0xffff_ff00 == (ethertype::IPV4 as u32) << 16 | 0x4500
            && front[ethernet::LEN + ipv4::PROTOCOL] == protocol::TCP
        {
            return self.follow_form::<false>(front, bytes, csum);
        }
        if word & 0xffff_f000 == (ethertype::IPV6 as u32) << 16 | 0x6000
            && front[ethernet::LEN + ipv6::NEXT_HEADER] == protocol::TCP
        {
            return self.follow_form::<true>(front, bytes, csum);
        }
        Next::Not(None)
    }

    /// The same of TCP behind Ethernet without a tag.
    #[inline(always)]
    fn follow_form<const V6: bool>(&mut self, front: &[u8; HEAD_BLOCK], bytes: &[u8], csum: Csum) -> Next {
        let hash = self.hasher.usual::<1, V6, true>(front);
        match self.follow_hash::<V6>(hash, front, bytes, csum) {
            Some((place, header_len)) => Next::Is(place, header_len),
            None if !self.rules.is_lro && self.table.is_free(hash) => self.first::<V6>(hash, front, bytes.len()),
            None => Next::Not(Some(hash)),
        }
    }

    /// Whether a frame of these types and of `total` bytes is good for the first of a train, as far as can be seen at once.
    #[inline(always)]
    fn first<const V6: bool>(&self, hash: u64, front: &[u8; HEAD_BLOCK], total: usize) -> Next {
        const LINK: usize = 1;
        let l3 = const { L3[LINK] };
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let word = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let (header_len, flags) = (tcp::header_len(front[l4 + tcp::OFFSET]), front[l4 + tcp::FLAGS]);
        let ones = self.rules.ones;
        let is_ip_good = if V6 {
            usize::from(word(l3 + ipv6::PAYLOAD_LEN)) + l4 == total
        } else {
            usize::from(word(l3 + ipv4::TOTAL_LEN)) + l3 == total
                && u32::from(word(l3 + ipv4::CHECKSUM)) != ones
                && word(l3 + ipv4::FRAGMENT) & !ipv4::DF == 0
                && is_sum_good(&front[l3..l4])
        };
        let is_good = is_ip_good
            && header_len >= tcp::MIN_LEN
            && l4 + header_len < total
            && flags & (self.rules.long_flags | tcp::FIN | tcp::PSH) == 0
            && u32::from(word(l4 + tcp::CHECKSUM)) != ones;
        if !is_good {
            return Next::Not(Some(hash));
        }
        let seq = read_u32(front, l4 + tcp::SEQ).unwrap_or(0);
        Next::Starts { hash, which: Which::tcp(LINK, V6, header_len), seq }
    }

    /// The same of a flow with this hash.
    #[inline(always)]
    fn follow_hash<const V6: bool>(
        &mut self,
        hash: u64,
        front: &[u8; HEAD_BLOCK],
        bytes: &[u8],
        csum: Csum,
    ) -> Option<(usize, usize)> {
        const LINK: usize = 1;
        let l3 = const { L3[LINK] };
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let (place, held) = self.table.first_mut(hash)?;
        if held.follow != Follow::new(LINK, bytes.len()) || !held.verified || held.left < 2 {
            return None;
        }
        let form = self.forms.get(held.is.which())?;
        let train = held.packet.head.block()?;
        // Among what is equal are types, versions and all lengths, so that the form and the size are; fragmentation; and flags
        // of TCP, so that nothing closes the train.
        if self.kernel.differ(train, front, &form.strict, form.len) {
            return None;
        }
        let word = |front: &[u8; HEAD_BLOCK], at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let ones = self.rules.ones;
        if read_u32(front, l4 + tcp::SEQ) != Some(held.next_seq) || u32::from(word(front, l4 + tcp::CHECKSUM)) == ones {
            return None;
        }
        if !V6 {
            // A second segment that counts up decides that all do.
            let counted = if held.ids.fixed & (1 << LINK) == 0 { held.segs as u16 } else { 0 };
            if word(front, l3 + ipv4::ID) != word(train, l3 + ipv4::ID).wrapping_add(counted)
                || u32::from(word(front, l3 + ipv4::CHECKSUM)) == ones
                || !is_sum_good(&front[l3..l4])
            {
                return None;
            }
        }
        if !matches!(csum, Csum::Verified) {
            let mut whole = pseudo::<V6>(&front[l3..l4], protocol::TCP, bytes.len() - l4);
            whole.append(Sum::of(bytes.get(l4..)?), bytes.len() - l4);
            if whole.fold() != 0xffff {
                return None;
            }
            self.stats.checksummed_bytes += held.size as u64;
        }
        held.segs += 1;
        held.left -= 1;
        held.next_seq = held.next_seq.wrapping_add(held.size as u32);
        self.stats.packets += 1;
        self.held_packets += 1;
        Some((place, form.len))
    }
}
