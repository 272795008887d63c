//! The shortest path, for a TCP frame under one IP header, bare or on Ethernet with up to two tags: it checks whether
//! the frame is the expected next segment of a train, most properties of which are known in advance, or may begin a
//! train.

use super::engine::Gro;
use super::form::FormId;
use super::key::L3;
use super::rules::{self, Flush};
use super::table::{ExpectedNext, FirstSegment, FrameMatch, Lookup, Slot};
use super::verify::{self, is_sum_good, pseudo_header};
use crate::checksum::Sum;
use crate::packet::{Csum, Frame, HEAD_BLOCK, Pool, Start};
use crate::wire::{ethernet, ethertype, ipv4, ipv6, protocol, read_u16, read_u32, tcp};

/// The result of examining a frame.
pub(super) enum NextSegment {
    /// The frame is the expected next segment of the train in the given slot; its payload follows this many bytes of
    /// headers and is to be added to that train.
    Continues(usize, usize),
    /// The frame may begin a train, and no flow with its hash is held.
    Starts(FirstSegment),
    /// The frame may begin a train, but no other segment may follow it. No flow with its hash is held.
    Alone { form_id: FormId, seq: u32, why: Flush },
    /// The frame is a segment without payload. No flow with its hash is held.
    Empty,
    /// The frame has payload and no flag that keeps it alone, and does not simply continue a train. The hash of its
    /// flow.
    Other(u64),
    /// The frame neither continues nor begins a train. The hash of its flow, if it was computed.
    Neither(Option<u64>),
}

/// The bytes of a frame that is being examined.
#[derive(Clone, Copy)]
pub(super) struct FrameView<'a> {
    /// First bytes of the frame; those after the frame's end are undefined.
    pub(super) front: &'a [u8; HEAD_BLOCK],
    pub(super) bytes: &'a [u8],
    /// Whether the port has verified the transport checksum; otherwise its state is unknown.
    pub(super) verified: bool,
}

/// Returns whether a frame of Ethernet begins as TCP over IPv4 without options does: two reads say it.
#[inline(always)]
pub(super) fn is_plain_ethernet(front: &[u8; HEAD_BLOCK]) -> bool {
    let word = read_u32(front, ethernet::TYPE).unwrap_or(0);
    word & 0xffff_ff00 == (ethertype::IPV4 as u32) << 16 | 0x4500
        && front[ethernet::LEN + ipv4::PROTOCOL] == protocol::TCP
}

/// Returns whether a bare packet begins as TCP over IPv4 without options does.
#[inline(always)]
fn is_plain_ip(front: &[u8; HEAD_BLOCK]) -> bool {
    front[ipv4::VERSION_IHL] == 0x45 && front[ipv4::PROTOCOL] == protocol::TCP
}

impl<B: AsRef<[u8]>> Gro<B> {
    /// Accounts for a frame of TCP over IPv4 that is the expected next segment of a train, where it lies. Other frames
    /// change nothing, as in [`Gro::next_segment`].
    #[inline(always)]
    pub(super) fn recognise(&mut self, frame: &Frame<B>) -> FrameMatch {
        let verified = matches!(frame.csum, Csum::Verified);
        let is_own = verified || matches!(frame.csum, Csum::Unknown);
        if frame.len() < HEAD_BLOCK || !is_own || !self.has_fast_path {
            return FrameMatch::Unknown;
        }
        let bytes = frame.bytes.bytes();
        let Some(front) = bytes.first_chunk() else { return FrameMatch::Unknown };
        let view = FrameView { front, bytes, verified };
        match frame.start {
            Start::Ethernet if is_plain_ethernet(front) => self.recognise_form::<1>(view),
            Start::Ip if is_plain_ip(front) => self.recognise_form::<0>(view),
            _ => FrameMatch::Unknown,
        }
    }

    /// Recognises a frame of TCP over IPv4 after `LINK` headers.
    #[inline(always)]
    fn recognise_form<const LINK: usize>(&mut self, view: FrameView<'_>) -> FrameMatch {
        let hash = self.hasher.usual::<LINK, false, true>(view.front);
        let found = self.table.lookup(hash);
        if let Lookup::Slot(at) = found {
            if let Some(header_len) = self.continues_held::<LINK, false>(at, view) {
                // A form has at most a block of headers.
                return FrameMatch::Continues(at, header_len as u16);
            }
        } else if let NextSegment::Starts(first) =
            self.starts::<LINK, false>((hash, matches!(found, Lookup::Empty)), view.front, view.bytes.len())
        {
            return FrameMatch::Starts(first);
        }
        FrameMatch::Plain(hash, found)
    }

    /// Accounts for a frame that is the expected next segment of a train, and returns whether any other frame may begin
    /// one; `found` is what was recognised of it. Other frames change nothing, except that the first segment of their
    /// flow may be verified, and leave if its checksum is wrong, as on the slow path.
    #[inline(always)]
    pub(super) fn next_segment(
        &mut self,
        frame: FrameView<'_>,
        (start, found): (Start, FrameMatch),
        pool: &mut Pool<B>,
    ) -> NextSegment {
        let front = frame.front;
        match (found, start) {
            (FrameMatch::Plain(hash, found), Start::Ethernet) => {
                return self.unexpected::<1, false>((hash, found), frame, pool);
            }
            (FrameMatch::Plain(hash, found), Start::Ip) => return self.unexpected_bare((hash, found), frame, pool),
            (FrameMatch::Continues(..) | FrameMatch::Starts(_) | FrameMatch::Unknown, _) => {}
        }
        if start == Start::Ethernet && is_plain_ethernet(front) {
            return self.next_segment_form::<1, false>(frame, pool);
        }
        self.next_segment_other(front, frame.bytes, (start, frame.verified), pool)
    }

    /// Examines a frame that is not plain IPv4 on untagged Ethernet.
    #[inline(never)]
    fn next_segment_other(
        &mut self,
        front: &[u8; HEAD_BLOCK],
        bytes: &[u8],
        (start, verified): (Start, bool),
        pool: &mut Pool<B>,
    ) -> NextSegment {
        let frame = FrameView { front, bytes, verified };
        let kind = |tags: usize| read_u16(front, ethernet::TYPE + tags * ethernet::VLAN_LEN).unwrap_or(0);
        let is_tag = |kind| matches!(kind, ethertype::VLAN | ethertype::QINQ);
        match (start, kind(0), kind(1)) {
            (Start::Ip, ..) if front[0] >> 4 == 4 => self.next_segment_ip::<0>(ethertype::IPV4, frame, pool),
            (Start::Ip, ..) => self.next_segment_ip::<0>(ethertype::IPV6, frame, pool),
            (_, first, _) if !is_tag(first) => self.next_segment_ip::<1>(first, frame, pool),
            (_, _, second) if !is_tag(second) => self.next_segment_ip::<2>(second, frame, pool),
            _ => self.next_segment_ip::<3>(kind(2), frame, pool),
        }
    }

    /// Examines a frame with `LINK` headers in front of IP, the last of which has the type `kind`.
    #[inline(always)]
    fn next_segment_ip<const LINK: usize>(
        &mut self,
        kind: u16,
        frame: FrameView<'_>,
        pool: &mut Pool<B>,
    ) -> NextSegment {
        let l3 = const { L3[LINK] };
        let (first, v4, v6) = (frame.front[l3], frame.front[l3 + ipv4::PROTOCOL], frame.front[l3 + ipv6::NEXT_HEADER]);
        match (kind, first, v4, v6) {
            (ethertype::IPV4, 0x45, protocol::TCP, _) => self.next_segment_form::<LINK, false>(frame, pool),
            (ethertype::IPV6, 0x60..=0x6f, _, protocol::TCP) => self.next_segment_form::<LINK, true>(frame, pool),
            _ => NextSegment::Neither(None),
        }
    }

    /// Examines a frame of TCP under IP without options.
    #[inline(always)]
    fn next_segment_form<const LINK: usize, const V6: bool>(
        &mut self,
        frame: FrameView<'_>,
        pool: &mut Pool<B>,
    ) -> NextSegment {
        let hash = self.hasher.usual::<LINK, V6, true>(frame.front);
        let (idx, is_alone) = match self.table.lookup(hash) {
            Lookup::Slot(idx) => (Some(idx), false),
            Lookup::None => (None, false),
            Lookup::Empty => (None, true),
        };
        let Some(idx) = idx else {
            return self.starts::<LINK, V6>((hash, is_alone), frame.front, frame.bytes.len());
        };
        match self.continues_held::<LINK, V6>(idx, frame) {
            Some(header_len) => NextSegment::Continues(idx, header_len),
            None => self.continues_first::<LINK, V6>((hash, idx), frame.front, frame.bytes, frame.verified, pool),
        }
    }

    /// Examines a frame with this hash that does not simply continue the train in this slot.
    #[inline(always)]
    fn unexpected<const LINK: usize, const V6: bool>(
        &mut self,
        (hash, found): (u64, Lookup),
        FrameView { front, bytes, verified }: FrameView<'_>,
        pool: &mut Pool<B>,
    ) -> NextSegment {
        match found {
            Lookup::Slot(at) => self.continues_first::<LINK, V6>((hash, at), front, bytes, verified, pool),
            Lookup::None => self.starts::<LINK, V6>((hash, false), front, bytes.len()),
            Lookup::Empty => self.starts::<LINK, V6>((hash, true), front, bytes.len()),
        }
    }

    /// Examines a bare packet like [`Gro::unexpected`].
    #[inline(never)]
    fn unexpected_bare(
        &mut self,
        (hash, found): (u64, Lookup),
        frame: FrameView<'_>,
        pool: &mut Pool<B>,
    ) -> NextSegment {
        self.unexpected::<0, false>((hash, found), frame, pool)
    }

    /// Returns whether a frame of TCP has payload, an exact length, and no flag that keeps it alone.
    #[inline(always)]
    fn is_data<const LINK: usize, const V6: bool>(&self, front: &[u8; HEAD_BLOCK], total: usize) -> bool {
        let l3 = const { L3[LINK] };
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let (at, from) = if V6 { (l3 + ipv6::PAYLOAD_LEN, l4) } else { (l3 + ipv4::TOTAL_LEN, l3) };
        let len = usize::from(read_u16(front, at).unwrap_or(0)) + from;
        len == total
            && front[l4 + tcp::FLAGS] & self.rules.slow_path_flags == 0
            && total > l4 + tcp::header_len(front[l4 + tcp::OFFSET])
    }

    /// Examines a frame whose flow's train does not expect it: a first segment is moved into a box, and tried again.
    #[inline(never)]
    fn continues_first<const LINK: usize, const V6: bool>(
        &mut self,
        (hash, idx): (u64, usize),
        front: &[u8; HEAD_BLOCK],
        bytes: &[u8],
        verified: bool,
        pool: &mut Pool<B>,
    ) -> NextSegment {
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        if let Some(Slot::First(first)) = self.table.slot_mut(idx)
            && first.next_seq(&self.forms) == read_u32(front, l4 + tcp::SEQ)
        {
            self.unpack(idx, pool);
            if let Some(header_len) = self.continues_held::<LINK, V6>(idx, FrameView { front, bytes, verified }) {
                return NextSegment::Continues(idx, header_len);
            }
        }
        if self.is_data::<LINK, V6>(front, bytes.len()) {
            NextSegment::Other(hash)
        } else {
            NextSegment::Neither(Some(hash))
        }
    }

    /// Checks from the headers whether a frame of these types and of `total` bytes may begin a train.
    #[inline(always)]
    fn starts<const LINK: usize, const V6: bool>(
        &self,
        (hash, is_alone): (u64, bool),
        front: &[u8; HEAD_BLOCK],
        total: usize,
    ) -> NextSegment {
        let l3 = const { L3[LINK] };
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let word = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let (header_len, flags) = (tcp::header_len(front[l4 + tcp::OFFSET]), front[l4 + tcp::FLAGS]);
        let (most, limit) = self.rules.tcp;
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
            && !self.rules.is_lro
            && header_len >= tcp::MIN_LEN
            && l4 + header_len <= total
            && most > 1
            && 2 * total - l3 - l4 - header_len <= limit
            && flags & self.rules.slow_path_flags == 0
            && u32::from(word(l4 + tcp::CHECKSUM)) != ones;
        if !is_good {
            return NextSegment::Neither(Some(hash));
        }
        if l4 + header_len == total {
            return NextSegment::Empty;
        }
        let (form_id, seq) = (FormId::tcp(LINK, V6, header_len), read_u32(front, l4 + tcp::SEQ).unwrap_or(0));
        match rules::closing(flags) {
            None => NextSegment::Starts(FirstSegment { hash, is_alone, form_id, seq }),
            Some(why) => NextSegment::Alone { form_id, seq, why },
        }
    }

    /// Checks whether a frame is the expected next segment of the train in a slot, and returns the length of its
    /// headers. If the train's first segment has a wrong checksum, it leaves.
    #[inline(always)]
    fn continues_held<const LINK: usize, const V6: bool>(
        &mut self,
        idx: usize,
        FrameView { front, bytes, verified }: FrameView<'_>,
    ) -> Option<usize> {
        let l3 = const { L3[LINK] };
        let l4 = const { L3[LINK] + if V6 { ipv6::LEN } else { ipv4::MIN_LEN } };
        let Some(Slot::Held(held)) = self.table.slot_mut(idx) else { return None };
        if held.expected != ExpectedNext::new(LINK, bytes.len()) || held.left < 2 {
            return None;
        }
        let form = self.forms.get(held.key.form())?;
        let train = held.packet.head.block()?;
        // The compared bits include types, versions and all lengths, so form and size are equal; the fragment fields;
        // and the TCP flags, so nothing closes the train.
        if self.kernel.differ(train, front, &form.strict, form.len) {
            return None;
        }
        let word = |front: &[u8; HEAD_BLOCK], at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
        let ones = self.rules.ones;
        if read_u32(front, l4 + tcp::SEQ) != Some(held.next_seq) || u32::from(word(front, l4 + tcp::CHECKSUM)) == ones {
            return None;
        }
        if !V6 {
            // If the second segment counts up, all must.
            let counted = if held.ids.fixed & (1 << LINK) == 0 { held.segs as u16 } else { 0 };
            if word(front, l3 + ipv4::ID) != word(train, l3 + ipv4::ID).wrapping_add(counted)
                || u32::from(word(front, l3 + ipv4::CHECKSUM)) == ones
                || !is_sum_good(&front[l3..l4])
            {
                return None;
            }
        }
        // The first segment is verified when all else says that this one joins it.
        if !held.verified {
            let checksummed = &mut self.stats.checksummed_bytes;
            if verify::verify_known::<V6, B>(&mut held.packet, (l3, l4), checksummed).is_err() {
                self.finish(idx, Flush::BadChecksum);
                return None;
            }
            held.verified = true;
        }
        if !verified {
            let mut whole = pseudo_header::<V6>(&front[l3..l4], protocol::TCP, bytes.len() - l4);
            whole.append(Sum::of(bytes.get(l4..)?), bytes.len() - l4);
            if whole.fold() != 0xffff {
                return None;
            }
            self.stats.checksummed_bytes += held.size as u64;
        }
        held.segs += 1;
        held.left -= 1;
        held.next_seq = held.next_seq.wrapping_add(held.size as u32);
        self.held_trains += usize::from(held.segs == 2);
        self.stats.packets += 1;
        self.held_packets += 1;
        Some(form.len)
    }
}

#[cfg(test)]
mod tests {
    use segue_testkit::build::{Ethernet, Ip, L4, Packet as Built, Tcp, V4, V6};

    use super::super::{Config, Generation, Profile};
    use super::*;

    const SEQ: u32 = 0x0102_0304;

    /// A frame of TCP on untagged Ethernet.
    #[derive(Clone, Copy, Debug)]
    struct Shape {
        is_v6: bool,
        /// Length of the payload.
        len: usize,
        /// Length of the options of TCP.
        options: usize,
        flags: u8,
    }

    impl Shape {
        fn l4(self) -> usize {
            ethernet::LEN + if self.is_v6 { ipv6::LEN } else { ipv4::MIN_LEN }
        }

        /// Returns the bytes of the frame, whose IPv4 header was changed.
        fn with_ip(self, change: impl FnOnce(&mut V4)) -> Vec<u8> {
            let (src_port, dst_port, options) = (4000, 80, vec![1; self.options]);
            let tcp = Tcp { src_port, dst_port, seq: SEQ, ack: 1, flags: self.flags, window: 9, urgent: 0, options };
            let mut v4 = V4::new(1, 1, 2);
            change(&mut v4);
            let ip = if self.is_v6 { Ip::V6(V6::new(1, 1, 2)) } else { Ip::V4(v4) };
            Ethernet::default().wrap(&Built { ip, l4: L4::Tcp(tcp), data: vec![7; self.len] }.bytes())
        }

        fn bytes(self) -> Vec<u8> {
            self.with_ip(|_| ())
        }

        fn padded(self) -> Vec<u8> {
            [self.bytes(), vec![0]].concat()
        }
    }

    fn shapes(len: usize, flags: u8) -> impl Iterator<Item = Shape> {
        [false, true].into_iter().flat_map(move |is_v6| [0, 12, 40].map(|options| Shape { is_v6, len, options, flags }))
    }

    fn front(bytes: &[u8]) -> [u8; HEAD_BLOCK] {
        let mut front = [0; HEAD_BLOCK];
        let len = bytes.len().min(HEAD_BLOCK);
        front[..len].copy_from_slice(&bytes[..len]);
        front
    }

    /// Tests that data is told by payload, an exact length and the flags together: of each case but the first only one
    /// is missing.
    #[test]
    fn data_has_payload_an_exact_length_and_no_flag_of_the_slow_path() {
        let gro: Gro<Vec<u8>> = Gro::new(Config::default());
        let is_data = |shape: Shape, bytes: &[u8]| match shape.is_v6 {
            true => gro.is_data::<1, true>(&front(bytes), bytes.len()),
            false => gro.is_data::<1, false>(&front(bytes), bytes.len()),
        };
        for shape in shapes(1, tcp::ACK) {
            assert!(is_data(shape, &shape.bytes()), "{shape:?}");
            assert!(!is_data(shape, &shape.padded()), "{shape:?}, padded");
            let empty = Shape { len: 0, ..shape };
            assert!(!is_data(empty, &empty.bytes()), "{empty:?}");
            for (flag, expected) in
                [(tcp::SYN, false), (tcp::RST, false), (tcp::URG, false), (tcp::PSH, true), (tcp::FIN, true)]
            {
                let flagged = Shape { flags: tcp::ACK | flag, ..shape };
                assert_eq!(is_data(flagged, &flagged.bytes()), expected, "{flagged:?}");
            }
        }
    }

    /// The train that a frame may begin.
    #[derive(Debug, PartialEq, Eq)]
    enum Begins {
        Train,
        /// A train that no other segment may follow.
        Closed,
        /// None, since the frame has no payload.
        Empty,
        Nothing,
    }

    fn begins(config: Config, shape: Shape, bytes: &[u8]) -> Begins {
        let gro: Gro<Vec<u8>> = Gro::new(config);
        let found = match shape.is_v6 {
            true => gro.starts::<1, true>((5, true), &front(bytes), bytes.len()),
            false => gro.starts::<1, false>((5, true), &front(bytes), bytes.len()),
        };
        let expected = FormId::tcp(1, shape.is_v6, tcp::MIN_LEN + shape.options);
        match found {
            NextSegment::Starts(FirstSegment { hash: 5, is_alone: true, form_id, seq: SEQ }) if form_id == expected => {
                Begins::Train
            }
            NextSegment::Alone { form_id, seq: SEQ, why: Flush::Push | Flush::Fin } if form_id == expected => {
                Begins::Closed
            }
            NextSegment::Empty => Begins::Empty,
            NextSegment::Neither(Some(5)) => Begins::Nothing,
            _ => panic!("{shape:?} begins a train of other fields"),
        }
    }

    #[test]
    fn a_frame_begins_a_train_if_another_one_like_it_fits() {
        let config = Config::default();
        for shape in shapes(100, tcp::ACK) {
            let bytes = shape.bytes();
            let limit = bytes.len() - ethernet::LEN + shape.len;
            for (limited, expected) in [
                (config, Begins::Train),
                (Config { max_bytes: limit, ..config }, Begins::Train),
                (Config { max_bytes: limit - 1, ..config }, Begins::Nothing),
                (Config { max_packets: 2, ..config }, Begins::Train),
                (Config { max_packets: 1, ..config }, Begins::Nothing),
                (Config { profile: Profile::Lro, ..config }, Begins::Nothing),
            ] {
                assert_eq!(begins(limited, shape, &bytes), expected, "{shape:?} {limited:?}");
            }
        }
    }

    #[test]
    fn a_frame_begins_a_train_by_its_flags_lengths_and_checksum() {
        let config = Config::default();
        for shape in shapes(3, tcp::ACK) {
            for (flag, len, expected) in [
                (tcp::PSH, 3, Begins::Closed),
                (tcp::FIN, 3, Begins::Closed),
                (tcp::PSH, 0, Begins::Empty),
                (0, 0, Begins::Empty),
                (tcp::SYN, 3, Begins::Nothing),
                (tcp::RST, 3, Begins::Nothing),
                (tcp::URG, 0, Begins::Nothing),
            ] {
                let flagged = Shape { len, flags: tcp::ACK | flag, ..shape };
                assert_eq!(begins(config, flagged, &flagged.bytes()), expected, "{flagged:?}");
            }
            assert_eq!(begins(config, shape, &shape.padded()), Begins::Nothing, "{shape:?}, padded");
            let changed = |at: usize, value: u8| {
                let mut bytes = shape.bytes();
                bytes[shape.l4() + at] = value;
                bytes
            };
            // A TCP header that is too short, and one that is longer than the frame.
            assert_eq!(begins(config, shape, &changed(tcp::OFFSET, 0x40)), Begins::Nothing, "{shape:?}");
            if shape.options < 40 {
                assert_eq!(begins(config, shape, &changed(tcp::OFFSET, 0xf0)), Begins::Nothing, "{shape:?}");
            }
            // Only the profile that restores all bytes minds how a checksum of zero is written.
            let mut ones = shape.bytes();
            ones[shape.l4() + tcp::CHECKSUM..][..2].fill(0xff);
            let linux = Config { profile: Profile::Linux(Generation::V6_18), ..config };
            assert_eq!(begins(config, shape, &ones), Begins::Nothing, "{shape:?}");
            assert_eq!(begins(linux, shape, &ones), Begins::Train, "{shape:?}");
        }
    }

    /// Tests the fields of IPv4 of which each alone keeps a frame from the shortest path.
    #[test]
    fn a_frame_begins_a_train_by_its_ipv4_header() {
        let config = Config::default();
        let shape = Shape { is_v6: false, len: 100, options: 0, flags: tcp::ACK };
        let ip = |change: fn(&mut V4)| begins(config, shape, &shape.with_ip(change));
        assert_eq!(ip(|ip| ip.df = false), Begins::Train);
        assert_eq!(ip(|ip| (ip.df, ip.fragment) = (false, Some((0, true)))), Begins::Nothing);
        assert_eq!(ip(|ip| (ip.df, ip.fragment) = (false, Some((8, false)))), Begins::Nothing);
        let checksum = ethernet::LEN + ipv4::CHECKSUM;
        let mut wrong = shape.bytes();
        wrong[checksum] ^= 1;
        assert_eq!(begins(config, shape, &wrong), Begins::Nothing);
        // With this identification the checksum is zero, which may be written as ones.
        let plain = shape.with_ip(|ip| ip.id = 0);
        let id = u16::from_be_bytes([plain[checksum], plain[checksum + 1]]);
        let mut zero = shape.with_ip(|ip| ip.id = id);
        assert_eq!(zero[checksum..][..2], [0, 0]);
        assert_eq!(begins(config, shape, &zero), Begins::Train);
        zero[checksum..][..2].fill(0xff);
        assert_eq!(begins(config, shape, &zero), Begins::Nothing);
    }
}
