//! Where the headers of a packet are: what the parser finds, and all later stages go by.

use super::format::Kind;

/// Most headers that a layout holds, all levels together; it is also the nesting limit.
pub const MAX_HEADERS: usize = 16;
/// Most bytes of headers that a layout covers.
pub const MAX_HEADER_BYTES: usize = 256;

/// One header's place, in bytes from the start of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// First byte.
    pub off: u16,
    /// Bytes.
    pub len: u16,
}

impl Header {
    /// First byte.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(self.off)
    }

    /// First byte after it.
    #[inline]
    pub fn end(&self) -> usize {
        usize::from(self.off) + usize::from(self.len)
    }

    /// Whether it is IPv4 or IPv6.
    pub fn is_ip(&self) -> bool {
        matches!(self.kind, Kind::Ipv4 | Kind::Ipv6)
    }
}

/// Why parsing ended where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// At the payload of the innermost TCP or UDP header: the normal case.
    Transport,
    /// At a protocol or EtherType that is not one of ours (ICMP, ARP, GRE of another version, ...).
    Protocol,
    /// At a tunnel header of a version or kind, or with flags, that are not known here. Nothing need be wrong with it, and what
    /// is inside may belong to any flow.
    Foreign,
    /// Behind the IP header of a fragment, an IPv6 atomic one included; of IPv6 only the fixed header is listed.
    Fragment,
    /// At a header whose lengths contradict each other or the bytes present.
    Malformed,
    /// At [`MAX_HEADERS`], [`MAX_HEADER_BYTES`] or a limit of the IPv6 chain.
    TooDeep,
}

/// Where every header of a packet is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Layout {
    pub(super) end: u32,
    count: u8,
    stop: Stop,
    /// Whether every length inside the outermost IP packet covers what is there.
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
    /// No headers; `stop` says why.
    pub const fn empty(stop: Stop) -> Layout {
        let none = Header { kind: Kind::Ethernet, off: 0, len: 0 };
        Layout { headers: [none; MAX_HEADERS], count: 0, stop, exact: false, padded: false, end: 0 }
    }

    /// The headers, outermost first.
    #[inline]
    pub fn headers(&self) -> &[Header] {
        &self.headers[..usize::from(self.count)]
    }

    /// Why parsing ended.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// Bytes of all headers: where the payload starts.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.headers().last().map_or(0, Header::end)
    }

    /// Whether every length field covers exactly the bytes present: no padding and no trailer at any level.
    pub fn is_exact(&self) -> bool {
        self.exact && !self.padded
    }

    /// Whether bytes behind the outermost IP packet, as Ethernet pads short frames with, are all that keeps the layout from
    /// being exact.
    pub fn is_padded(&self) -> bool {
        self.exact && self.padded
    }

    /// Becomes `other`, which is exact and has no more than five headers, for a packet that ends at `end`.
    #[inline(always)]
    pub(crate) fn set_short(&mut self, other: &Layout, end: usize) {
        const SHORT: usize = 5;
        debug_assert!(other.is_exact() && usize::from(other.count) <= SHORT);
        // What is behind the last header means nothing.
        if let (Some(to), Some(from)) = (self.headers.first_chunk_mut::<SHORT>(), other.headers.first_chunk::<SHORT>())
        {
            *to = *from;
        }
        (self.count, self.stop, self.exact, self.padded, self.end) = (other.count, other.stop, true, false, end as u32);
    }

    /// Whether the outermost header is that of Ethernet.
    #[inline]
    pub(crate) fn starts_with_ethernet(&self) -> bool {
        self.headers().first().is_some_and(|first| first.kind == Kind::Ethernet)
    }

    /// Forgets all headers.
    pub(crate) fn clear(&mut self) {
        (self.count, self.stop, self.exact, self.padded, self.end) = (0, Stop::Protocol, false, false, 0);
    }

    /// Says that what followed the outermost IP packet was cut off.
    pub(crate) fn trimmed(&mut self) {
        self.padded = false;
    }

    /// Says that the packet is now one of `len` bytes, without padding.
    pub(crate) fn set_end(&mut self, len: usize) {
        self.padded = false;
        self.end = u32::try_from(len).unwrap_or(u32::MAX);
    }

    /// Bytes up to the end of the outermost IP packet: what is present less Ethernet padding.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// The innermost TCP or UDP header, where parsing got there.
    #[inline]
    pub fn transport(&self) -> Option<&Header> {
        if self.stop == Stop::Transport { self.headers().last() } else { None }
    }

    /// Returns the outermost IP header, or `None` for a frame without one.
    #[inline]
    pub fn outer_ip(&self) -> Option<&Header> {
        self.headers().iter().find(|header| header.is_ip())
    }

    /// The innermost IP header.
    #[inline]
    pub fn inner_ip(&self) -> Option<&Header> {
        self.headers().iter().rfind(|h| h.is_ip())
    }

    /// Number of IP headers: 1 for a plain packet, one more for each tunnel.
    pub fn ip_levels(&self) -> usize {
        self.headers().iter().filter(|h| h.is_ip()).count()
    }

    /// Adds a header behind the last one; `false` where a limit is reached.
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

    /// Puts the headers of `outer` in front of these. `false`, and nothing is changed, where a limit is reached.
    pub fn prepend(&mut self, outer: &Layout) -> bool {
        let shift = outer.header_len();
        let total = usize::from(outer.count) + usize::from(self.count);
        if total > MAX_HEADERS || shift + self.header_len() > MAX_HEADER_BYTES {
            return false;
        }
        let mut headers = outer.headers;
        for (to, from) in headers[usize::from(outer.count)..].iter_mut().zip(self.headers()) {
            *to = Header { off: from.off + shift as u16, ..*from };
        }
        self.headers = headers;
        self.count = total as u8;
        self.end += shift as u32;
        true
    }

    /// Takes the first `count` headers off, as what stands in front of IP is; all where there are fewer.
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

    /// The same, with a UDP header behind which no header of its port's tunnel could be read as the transport: a datagram
    /// to the port of a tunnel need not be of one (source ports are chosen from the same numbers). So with version 1 of GUE,
    /// of whose header there is nothing to see, where no IP header follows.
    ///
    /// For who looks at packets of others. Who ends a tunnel knows what must come to its port.
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
