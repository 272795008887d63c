//! The layout of a packet: the offsets of its headers, found by the parser and used by all later stages.

use super::format::Kind;
use super::{ethernet, ipv4, ipv6, udp};

/// Maximum number of headers that a layout holds, all levels together; it is also the nesting limit.
pub const MAX_HEADERS: usize = 16;
/// Maximum number of bytes of headers that a layout covers.
pub const MAX_HEADER_BYTES: usize = 256;

/// The kind, offset and length of one header, in bytes from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the protocol header.
    pub kind: Kind,
    /// Offset of the header's first byte.
    pub off: u16,
    /// Length of the header in bytes.
    pub len: u16,
}

impl Header {
    /// Returns the offset of the first byte.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(self.off)
    }

    /// Returns the offset after the last byte.
    #[inline]
    pub fn end(&self) -> usize {
        usize::from(self.off) + usize::from(self.len)
    }

    /// Returns whether the header is IPv4 or IPv6.
    pub fn is_ip(&self) -> bool {
        matches!(self.kind, Kind::Ipv4 | Kind::Ipv6)
    }
}

/// The first header of a packet.
// It has a word, since the compiler copies the padding after a shorter last field in pieces, which the processor
// cannot forward from store to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Start {
    /// Parsing starts at an Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header, by its first nibble.
    Ip,
}

/// Reason why parsing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The payload of the innermost TCP or UDP header was reached: the normal case.
    Transport,
    /// The next protocol or EtherType is unknown to the parser (ICMP, ARP, GRE of another version, ...).
    Protocol,
    /// A tunnel header has an unknown version, kind or flag. It may be valid, and the packet inside may belong to any
    /// flow.
    Foreign,
    /// The IP header is that of a fragment, possibly an IPv6 atomic one; of IPv6 only the fixed header is listed.
    Fragment,
    /// Lengths in a header contradict each other or the bytes present.
    Malformed,
    /// The packet exceeds [`MAX_HEADERS`], [`MAX_HEADER_BYTES`] or a limit of the IPv6 chain; of an IPv6 header with
    /// such a chain only the fixed header is listed.
    TooDeep,
}

/// The offsets of all headers of a packet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Layout {
    pub(super) end: u32,
    count: u8,
    stop: Stop,
    /// Whether every length inside the outermost IP packet covers exactly the bytes present.
    pub(super) exact: bool,
    /// Whether bytes follow the outermost IP packet.
    pub(super) padded: bool,
    headers: [Header; MAX_HEADERS],
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.headers() == other.headers() && self.stop == other.stop
    }
}

impl core::fmt::Debug for Layout {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Layout").field("headers", &self.headers()).field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Layout {
    /// Returns a layout without headers.
    pub const fn empty(stop: Stop) -> Layout {
        let none = Header { kind: Kind::Ethernet, off: 0, len: 0 };
        Layout { headers: [none; MAX_HEADERS], count: 0, stop, exact: false, padded: false, end: 0 }
    }

    /// Returns the layout of an exact packet with `link` headers in front of IP, the first Ethernet's and the others
    /// VLAN tags, with an IP header of the fixed length and a TCP header of `tcp_len` bytes, or UDP.
    pub(super) const fn common(link: usize, is_v6: bool, tcp_len: Option<usize>) -> Layout {
        let mut layout = Layout::empty(Stop::Transport);
        layout.exact = true;
        let (mut off, mut at) = (0, 0);
        while at < link + 2 {
            let (kind, len) = match (at, tcp_len) {
                _ if at == link && is_v6 => (Kind::Ipv6, ipv6::LEN),
                _ if at == link => (Kind::Ipv4, ipv4::MIN_LEN),
                (_, Some(len)) if at > link => (Kind::Tcp, len),
                _ if at > link => (Kind::Udp, udp::LEN),
                (0, _) => (Kind::Ethernet, ethernet::LEN),
                _ => (Kind::Vlan, ethernet::VLAN_LEN),
            };
            layout.headers[at] = Header { kind, off, len: len as u16 };
            off += len as u16;
            at += 1;
        }
        layout.count = at as u8;
        layout
    }

    /// Returns this layout for a packet of `len` bytes whose IP packet ends at `end`.
    ///
    /// Made in one piece: a copy that is changed afterwards, and then copied again to where it is returned, waits for
    /// the processor to write the changes to memory.
    #[inline(always)]
    pub(super) fn ending(&self, end: usize, len: usize) -> Layout {
        Layout {
            end: end as u32,
            count: self.count,
            stop: self.stop,
            exact: true,
            padded: end != len,
            headers: self.headers,
        }
    }

    /// Returns the headers of the packet, outermost first.
    #[inline]
    pub fn headers(&self) -> &[Header] {
        &self.headers[..usize::from(self.count)]
    }

    /// Returns the reason why parsing ended.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// Returns the length of all headers together: the offset of the payload.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.headers().last().map_or(0, Header::end)
    }

    /// Returns whether every length field covers exactly the bytes present: no padding and no trailer at any level.
    pub fn is_exact(&self) -> bool {
        self.exact && !self.padded
    }

    /// Returns whether the layout would be exact without the bytes after the outermost IP packet, as Ethernet pads
    /// short frames.
    pub fn is_padded(&self) -> bool {
        self.exact && self.padded
    }

    /// Returns whether bytes follow the outermost IP packet, whatever the lengths inside of it say.
    pub(crate) fn has_padding(&self) -> bool {
        self.padded
    }

    /// Copies the headers of `other`, which is exact and has at most five, for a packet of `len` bytes whose IP packet
    /// ends at `end`.
    #[inline(always)]
    pub(crate) fn set_short(&mut self, other: &Layout, end: usize, len: usize) {
        const SHORT: usize = 5;
        debug_assert!(other.is_exact() && usize::from(other.count) <= SHORT);
        // Entries after the last header are never read.
        if let (Some(to), Some(from)) = (self.headers.first_chunk_mut::<SHORT>(), other.headers.first_chunk::<SHORT>())
        {
            *to = *from;
        }
        (self.count, self.stop, self.exact) = (other.count, other.stop, true);
        (self.padded, self.end) = (end != len, end as u32);
    }

    /// Returns whether the outermost header is Ethernet's.
    #[inline]
    pub(crate) fn starts_with_ethernet(&self) -> bool {
        self.headers().first().is_some_and(|first| first.kind == Kind::Ethernet)
    }

    /// Removes all headers from the layout.
    pub(crate) fn clear(&mut self) {
        (self.count, self.stop, self.exact, self.padded, self.end) = (0, Stop::Protocol, false, false, 0);
    }

    /// Records that the bytes after the outermost IP packet were cut off.
    pub(crate) fn trimmed(&mut self) {
        self.padded = false;
    }

    /// Sets the length of the packet to `len` bytes without padding.
    pub(crate) fn set_end(&mut self, len: usize) {
        self.padded = false;
        self.end = u32::try_from(len).unwrap_or(u32::MAX);
    }

    /// Returns the end of the outermost IP packet: the bytes present without Ethernet padding.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// Returns the innermost TCP or UDP header, where the parser reached it.
    #[inline]
    pub fn transport(&self) -> Option<&Header> {
        if self.stop == Stop::Transport { self.headers().last() } else { None }
    }

    /// Returns the outermost IP header, or `None` for a frame without one.
    #[inline]
    pub fn outer_ip(&self) -> Option<&Header> {
        self.headers().iter().find(|header| header.is_ip())
    }

    /// Returns the index of the outermost IP header in [`headers`](Self::headers), or `None` for a frame without one.
    #[inline]
    pub fn outer_ip_index(&self) -> Option<usize> {
        self.headers().iter().position(Header::is_ip)
    }

    /// Returns the headers after the outermost IP header, outermost first; none for a frame without one.
    pub fn inside_outer_ip(&self) -> &[Header] {
        self.outer_ip_index().map_or(&[], |outer| &self.headers()[outer + 1..])
    }

    /// Returns the innermost IP header.
    #[inline]
    pub fn inner_ip(&self) -> Option<&Header> {
        self.headers().iter().rfind(|h| h.is_ip())
    }

    /// Returns the index of the innermost IP header in [`headers`](Self::headers), or `None` for a frame without one.
    pub(crate) fn inner_ip_index(&self) -> Option<usize> {
        self.headers().iter().rposition(Header::is_ip)
    }

    /// Returns the number of IP headers: 1 for a plain packet, one more for each tunnel.
    pub fn ip_levels(&self) -> usize {
        self.headers().iter().filter(|h| h.is_ip()).count()
    }

    /// Adds a header after the last one. Returns `false` where a limit is reached.
    pub fn push(&mut self, kind: Kind, len: usize) -> bool {
        let off = self.header_len();
        if usize::from(self.count) == MAX_HEADERS || off + len > MAX_HEADER_BYTES {
            return false;
        }
        // Both fit: MAX_HEADER_BYTES is far below 65536.
        self.headers[usize::from(self.count)] = Header { kind, off: off as u16, len: len as u16 };
        self.count += 1;
        true
    }

    /// Inserts the headers of `outer` before the existing ones. Returns `false`, and changes nothing, where a limit is
    /// reached.
    pub fn prepend(&mut self, outer: &Layout) -> bool {
        let fits = self.has_room(outer.headers().len(), outer.header_len());
        if fits {
            self.put_in_front(outer.headers());
        }
        fits
    }

    /// Returns whether `count` more headers of `len` bytes together keep the limits.
    #[inline]
    pub(crate) fn has_room(&self, count: usize, len: usize) -> bool {
        count + usize::from(self.count) <= MAX_HEADERS && len + self.header_len() <= MAX_HEADER_BYTES
    }

    /// Inserts consecutive headers before the existing ones, if there [`is room`](Self::has_room).
    #[inline]
    pub(crate) fn put_in_front(&mut self, outer: &[Header]) {
        let (added, count) = (outer.len(), usize::from(self.count));
        let shift = outer.last().map_or(0, Header::end);
        debug_assert!(self.has_room(added, shift));
        // The innermost first, so that none is overwritten before it was moved.
        for idx in (0..count).rev() {
            let header = self.headers[idx];
            self.headers[idx + added] = Header { off: header.off + shift as u16, ..header };
        }
        self.headers[..added].copy_from_slice(outer);
        self.count = (added + count) as u8;
        self.end += shift as u32;
    }

    /// Removes the first `count` headers, such as the link header; all where there are fewer.
    pub(crate) fn remove_front(&mut self, count: usize) {
        let count = count.min(usize::from(self.count));
        let Some(shift) = count.checked_sub(1).map(|last| self.headers[last].end()) else { return };
        self.headers.copy_within(count.., 0);
        self.count -= count as u8;
        for header in &mut self.headers[..usize::from(self.count)] {
            header.off -= shift as u16;
        }
        self.end = self.end.saturating_sub(shift as u32);
    }

    /// Returns the layout with a UDP header as the transport if no tunnel header of its port was readable after it. A
    /// datagram to the port of a tunnel need not belong to one, since source ports are chosen from the same numbers.
    /// The same holds for version 1 of GUE, whose header has no bytes, where no IP header follows.
    ///
    /// This is for packets of others. The end of a tunnel knows what must come to its port.
    #[must_use]
    pub fn or_plain(mut self) -> Layout {
        let bare = |header: &Header| header.kind == Kind::Gue && header.len == 0;
        let tunnels = self.headers().iter().rev().take_while(|header| bare(header)).count();
        let count = usize::from(self.count) - tunnels;
        let is_unread = matches!(self.stop, Stop::Malformed | Stop::Foreign | Stop::Protocol);
        if is_unread && self.headers[..count].last().is_some_and(|last| last.kind == Kind::Udp) {
            (self.count, self.stop) = (count as u8, Stop::Transport);
        }
        self
    }

    pub(super) fn stopped(mut self, stop: Stop) -> Layout {
        self.stop = stop;
        self
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn layout(headers: &[(Kind, usize)], stop: Stop) -> Layout {
        let mut layout = Layout::empty(stop);
        assert!(headers.iter().all(|&(kind, len)| layout.push(kind, len)));
        layout.set_end(layout.header_len() + 10);
        layout
    }

    fn places(layout: &Layout) -> Vec<(usize, usize)> {
        layout.headers().iter().map(|header| (header.start(), header.end())).collect()
    }

    const PLAIN: [(Kind, usize); 3] = [(Kind::Ethernet, 14), (Kind::Ipv4, 20), (Kind::Udp, 8)];

    #[test]
    fn headers_and_their_bytes_are_limited() {
        let mut many = layout(&[(Kind::Gue, 0); MAX_HEADERS], Stop::TooDeep);
        assert!(!many.push(Kind::Gue, 0));
        assert_eq!(many.headers().len(), 16);
        let mut long = layout(&[(Kind::Ethernet, 14), (Kind::Gue, MAX_HEADER_BYTES - 14)], Stop::TooDeep);
        assert!(!long.push(Kind::Gue, 1) && long.push(Kind::Gue, 0));
        assert_eq!((long.header_len(), long.headers().len()), (256, 3));
    }

    #[test]
    fn outer_headers_are_put_in_front_up_to_the_same_limits() {
        for (outer, inner, fits) in [(8, 8, true), (9, 8, false), (16, 0, true), (0, 16, true)] {
            let (front, mut all) =
                (vec![(Kind::Vlan, 4); outer], layout(&vec![(Kind::Gre, 4); inner], Stop::Transport));
            let before = places(&all);
            assert_eq!(all.prepend(&layout(&front, Stop::Protocol)), fits, "{outer} and {inner}");
            let expected = if fits { (0..outer + inner).map(|at| (4 * at, 4 * at + 4)).collect() } else { before };
            assert_eq!(places(&all), expected);
            assert_eq!(all.end(), expected.len() * 4 + 10);
        }
        for (outer, inner, fits) in [(128, 128, true), (129, 128, false), (256, 0, true)] {
            let mut all = layout(&[(Kind::Gre, inner)], Stop::Transport);
            assert_eq!(all.prepend(&layout(&[(Kind::Vlan, outer)], Stop::Protocol)), fits, "{outer} and {inner} bytes");
        }
    }

    #[test]
    fn ip_headers_are_found_from_both_ends() {
        let kinds = |layout: &Layout| layout.inside_outer_ip().iter().map(|header| header.kind).collect::<Vec<_>>();
        let tunnelled = [&PLAIN[..], &[(Kind::Gue, 4), (Kind::Ipv6, 40), (Kind::Tcp, 20)]].concat();
        for (headers, outer, inner, inside) in [
            (&PLAIN[..1], None, None, &[][..]),
            (&PLAIN[..2], Some(1), Some(1), &[][..]),
            (&PLAIN[..], Some(1), Some(1), &[Kind::Udp][..]),
            (&PLAIN[1..], Some(0), Some(0), &[Kind::Udp][..]),
            (&tunnelled[..], Some(1), Some(4), &[Kind::Udp, Kind::Gue, Kind::Ipv6, Kind::Tcp][..]),
        ] {
            let found = layout(headers, Stop::Transport);
            assert_eq!((found.outer_ip_index(), found.inner_ip_index()), (outer, inner), "{found:?}");
            let places = [outer, inner].map(|index| index.map(|index| &found.headers()[index]));
            assert_eq!([found.outer_ip(), found.inner_ip()], places, "{found:?}");
            assert_eq!(kinds(&found), inside, "{found:?}");
        }
        assert_eq!(kinds(&Layout::empty(Stop::Protocol)), []);
    }

    #[test]
    fn headers_are_removed_from_the_front() {
        let whole = layout(&PLAIN, Stop::Transport);
        for (count, left) in [(0, vec![(0, 14), (14, 34), (34, 42)]), (1, vec![(0, 20), (20, 28)]), (2, vec![(0, 8)])] {
            let mut layout = whole;
            layout.remove_front(count);
            assert_eq!(places(&layout), left);
            assert_eq!(layout.end(), left.last().unwrap().1 + 10);
        }
        for count in [3, 4, 99] {
            let mut layout = whole;
            layout.remove_front(count);
            assert_eq!((places(&layout), layout.end()), (vec![], 10));
        }
        let mut empty = Layout::empty(Stop::Protocol);
        empty.remove_front(1);
        assert_eq!(places(&empty), []);
    }

    #[test]
    fn a_datagram_whose_tunnel_header_cannot_be_read_is_plain() {
        let bare = [&PLAIN[..], &[(Kind::Gue, 0)], &[(Kind::Gue, 0)]].concat();
        let tunnelled = [&PLAIN[..], &[(Kind::Gue, 4)]].concat();
        for stop in [Stop::Malformed, Stop::Foreign, Stop::Protocol] {
            for headers in [&PLAIN[..], &bare[..4], &bare] {
                assert_eq!(layout(headers, stop).or_plain(), layout(&PLAIN, Stop::Transport), "{stop:?}");
            }
            assert_eq!(layout(&tunnelled, stop).or_plain(), layout(&tunnelled, stop));
            assert_eq!(layout(&PLAIN[..2], stop).or_plain(), layout(&PLAIN[..2], stop));
        }
        for stop in [Stop::Fragment, Stop::TooDeep] {
            assert_eq!(layout(&PLAIN, stop).or_plain(), layout(&PLAIN, stop));
        }
        assert_eq!(layout(&bare, Stop::Transport).or_plain(), layout(&bare, Stop::Transport));
    }

    #[test]
    fn layouts_differ_by_their_headers_and_by_why_they_end() {
        let plain = layout(&PLAIN, Stop::Transport);
        assert_ne!(plain, layout(&PLAIN, Stop::Protocol));
        assert_ne!(plain, layout(&PLAIN[..2], Stop::Transport));
        assert_eq!(plain.headers().last(), plain.transport());
        assert_eq!((plain.ip_levels(), plain.outer_ip_index()), (1, Some(1)));
        assert!(plain.starts_with_ethernet() && !layout(&PLAIN[1..], Stop::Transport).starts_with_ethernet());
        assert!(alloc::format!("{plain:?}").contains("Udp"), "the headers are shown");
    }
}
