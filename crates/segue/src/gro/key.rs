//! The flow key: the fields that two packets of one flow have in common.

use super::rules::RefusalReason;
use crate::hash;
use crate::packet::{HEAD_BLOCK, Header, Kind, Layout, Packet, Stop};
use crate::wire::{ethernet, gre, ipv4, ipv6, read_u16, read_u32};

const MAX: usize = 128;

/// The key of a flow: addresses, ports, VLAN identifiers and tunnel keys of every level, concatenated.
///
/// Fields that may change during a flow are left out, so that order is kept across the change: MAC addresses (a gateway
/// fails over) and VLAN priorities.
pub(super) struct FlowKey {
    bytes: [u8; MAX],
    len: u8,
}

impl core::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FlowKey({:02x?})", self.bytes())
    }
}

impl PartialEq for FlowKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl FlowKey {
    /// Returns the key of a packet, or the reason why there is none.
    pub(super) fn of<B: AsRef<[u8]>>(packet: &Packet<B>) -> Result<FlowKey, RefusalReason> {
        match packet.layout.stop() {
            Stop::Transport => {}
            Stop::Protocol => return Err(RefusalReason::Protocol),
            Stop::Foreign => return Err(RefusalReason::Tunnel),
            Stop::Fragment => return Err(RefusalReason::Fragment),
            Stop::Malformed => return Err(RefusalReason::Malformed),
            Stop::TooDeep => return Err(RefusalReason::TooDeep),
        }
        let mut key = FlowKey { bytes: [0; MAX], len: 0 };
        each_part(packet, |part| {
            let at = usize::from(key.len);
            key.bytes.get_mut(at..at + part.len()).ok_or(RefusalReason::TooDeep)?.copy_from_slice(part);
            key.len += part.len() as u8;
            Ok(())
        })?;
        Ok(key)
    }

    /// Returns whether `packet` belongs to the key.
    pub(super) fn is_of<B: AsRef<[u8]>>(&self, packet: &Packet<B>) -> bool {
        let mut rest = self.bytes();
        let matched = each_part(packet, |part| {
            rest = rest.strip_prefix(part).ok_or(RefusalReason::Malformed)?;
            Ok(())
        });
        matched.is_ok() && rest.is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Passes the parts of a packet's key to `each`, in order.
fn each_part<B: AsRef<[u8]>>(
    packet: &Packet<B>,
    mut each: impl FnMut(&[u8]) -> Result<(), RefusalReason>,
) -> Result<(), RefusalReason> {
    let head = packet.head.bytes();
    for header in packet.layout.headers() {
        let bytes = head.get(header.start()..header.end()).ok_or(RefusalReason::Malformed)?;
        let vlan;
        let part = match header.kind {
            Kind::Ethernet => bytes.get(..0),
            Kind::Vlan => {
                vlan = read_u16(bytes, 0).map(|tag| (tag & ethernet::VLAN_ID).to_be_bytes());
                vlan.as_ref().map(|id| &id[..])
            }
            Kind::Ipv4 => bytes.get(ipv4::SRC.start..ipv4::DST.end),
            Kind::Ipv6 => bytes.get(ipv6::SRC.start..ipv6::DST.end),
            Kind::Tcp | Kind::Udp => bytes.get(..4),
            Kind::Gre => bytes.get(..2),
            kind => kind.format().and_then(|format| bytes.get(format.flow.clone())),
        };
        each(&[header.kind as u8])?;
        each(part.ok_or(RefusalReason::Malformed)?)?;
        if header.kind == Kind::Gre
            && let Some(tunnel) = gre::Gre::parse(bytes).and_then(|gre| gre.key)
        {
            each(&tunnel.to_be_bytes())?;
        }
    }
    Ok(())
}

/// The hash function of flows.
///
/// Almost all packets are TCP or UDP outside tunnels or inside one. The fields of their flow fit a few words, and the
/// hash of these is a multiplication for two of them: NH of UMAC (RFC 4418, section 5.2.2, there with 32-bit words),
/// where two inputs collide for at most one in 2^64 keys, folded to 64 bits. All others take SipHash. Without the key
/// an attacker cannot choose colliding flows, and a bucket of the table is bounded anyway.
#[derive(Debug)]
pub(super) struct Hasher {
    key: hash::Key,
    words: [u64; 6],
    /// The keys of packets inside a tunnel: one for each word, and two for the kinds of their headers.
    tunnelled: [u64; Tunnelled::MOST + 2],
}

/// The parts of a packet with one IP level and no tunnel that enter its flow's hash. IP options and extension headers
/// do not matter.
#[derive(Clone, Copy)]
pub(super) struct Plain {
    /// Number of headers in front of IP: 0 for none, 1 for Ethernet, 2 and 3 for Ethernet with tags.
    pub(super) link: usize,
    pub(super) is_v6: bool,
    pub(super) is_tcp: bool,
    /// Offset of the transport header, in bytes.
    pub(super) l4: usize,
}

/// Offset of the IP header, by the number of headers in front of it.
pub(super) const L3: [usize; 4] =
    [0, ethernet::LEN, ethernet::LEN + ethernet::VLAN_LEN, ethernet::LEN + 2 * ethernet::VLAN_LEN];

impl Plain {
    /// Returns the hashed parts of a packet with the given headers, the last of which is a transport header, or `None`
    /// for another form.
    fn of(headers: &[Header]) -> Option<Plain> {
        let (transport, front) = headers.split_last()?;
        let (ip, front) = front.split_last()?;
        let is_link = match front {
            [] => true,
            [link, tags @ ..] => link.kind == Kind::Ethernet && tags.iter().all(|tag| tag.kind == Kind::Vlan),
        };
        let fits = is_link
            && ip.is_ip()
            && matches!(transport.kind, Kind::Tcp | Kind::Udp)
            && L3.get(front.len()).is_some_and(|&l3| l3 == ip.start());
        fits.then(|| Plain {
            link: front.len(),
            is_v6: ip.kind == Kind::Ipv6,
            is_tcp: transport.kind == Kind::Tcp,
            l4: transport.start(),
        })
    }
}

/// The words of a packet inside one tunnel that enter its flow's hash, by their places: the addresses, ports, VLAN
/// identifiers, GRE flags and tunnel keys of both levels. Values alone enter it, and places do not, since the lengths
/// of headers may change during a flow.
#[derive(Clone, Debug)]
pub(super) struct Tunnelled {
    /// The kinds of all headers behind a 1, four bits for each.
    kinds: u64,
    /// Offset of a word, and the code of its bits that count; none after the last one.
    words: [(u8, u8); Tunnelled::MOST],
    count: u8,
}

impl Tunnelled {
    /// Largest number of words: those of two IPv6 headers, and eight more.
    const MOST: usize = 16;
    /// Code of the bits of a VLAN identifier. Codes up to 8 are numbers of bytes.
    const VLAN_ID: u8 = 9;
    /// The bits of a word that count, by their code. A word is read with its first byte as the lowest.
    const BITS: [u64; 10] = {
        let mut bits = [0; 10];
        let mut bytes = 1;
        while bytes <= 8 {
            bits[bytes] = u64::MAX >> (64 - 8 * bytes);
            bytes += 1;
        }
        bits[Tunnelled::VLAN_ID as usize] = ethernet::VLAN_ID.swap_bytes() as u64;
        bits
    };

    /// Returns the words of a packet with these headers; `None` for one that is not inside exactly one tunnel, or has
    /// too many headers or words. What the key of a flow has decides that, so it is the same in all of a flow, and the
    /// words of two flows differ.
    pub(super) fn of(head: &[u8], layout: &Layout) -> Option<Tunnelled> {
        const { assert!(Kind::COUNT <= 16) };
        if layout.ip_levels() != 2 {
            return None;
        }
        let mut found = Tunnelled { kinds: 1, words: [(0, 0); Tunnelled::MOST], count: 0 };
        for header in layout.headers() {
            found.kinds = found.kinds.checked_mul(16)? | u64::from(header.kind as u8);
            let at = header.start();
            match header.kind {
                Kind::Ethernet => {}
                Kind::Vlan => found.push(at, Tunnelled::VLAN_ID)?,
                Kind::Ipv4 => found.push(at + ipv4::SRC.start, 8)?,
                Kind::Ipv6 => {
                    for word in 0..4 {
                        found.push(at + ipv6::SRC.start + 8 * word, 8)?;
                    }
                }
                Kind::Tcp | Kind::Udp => found.push(at, 4)?,
                Kind::Gre => {
                    found.push(at, 2)?;
                    let flags = read_u16(head, at)?;
                    let skipped = if flags & gre::CSUM != 0 { 4 } else { 0 };
                    if flags & gre::KEY != 0 {
                        found.push(at + gre::MIN_LEN + skipped, 4)?;
                    }
                }
                kind => match kind.format()?.flow.clone() {
                    flow if flow.is_empty() => {}
                    flow if flow.len() <= 8 => found.push(at + flow.start, flow.len() as u8)?,
                    _ => return None,
                },
            }
        }
        Some(found)
    }

    fn push(&mut self, at: usize, code: u8) -> Option<()> {
        *self.words.get_mut(usize::from(self.count))? = (u8::try_from(at).ok()?, code);
        self.count += 1;
        Some(())
    }
}

impl Hasher {
    pub(super) fn new(key: hash::Key) -> Hasher {
        let words: [u64; 6] = core::array::from_fn(|i| key.hash(&[i as u8]));
        Hasher { key, words, tunnelled: core::array::from_fn(|i| key.hash(&[(words.len() + i) as u8])) }
    }

    /// Returns the hash of a packet with this key.
    pub(super) fn of<B: AsRef<[u8]>>(&self, packet: &Packet<B>, key: &FlowKey) -> u64 {
        let (head, layout) = (packet.head.bytes(), &packet.layout);
        if let Some(hash) = Plain::of(layout.headers()).and_then(|plain| self.plain(head, plain)) {
            return hash;
        }
        match Tunnelled::of(head, layout) {
            Some(tunnelled) => self.tunnelled(head, &tunnelled),
            None => self.key.hash(key.bytes()),
        }
    }

    /// Returns the hash of a packet inside a tunnel that begins with `front`.
    #[inline]
    pub(super) fn tunnelled(&self, front: &[u8], tunnelled: &Tunnelled) -> u64 {
        let [keys @ .., key_a, key_b] = &self.tunnelled;
        let ((pairs, _), (keys, _)) = (tunnelled.words.as_chunks::<2>(), keys.as_chunks::<2>());
        let word = |&(at, code): &(u8, u8)| {
            read_u64(front, usize::from(at)).unwrap_or(0) & Tunnelled::BITS.get(usize::from(code)).unwrap_or(&0)
        };
        let mut product = nh(tunnelled.kinds, *key_a, 0, *key_b);
        for ([a, b], [key_a, key_b]) in pairs.iter().zip(keys).take(usize::from(tunnelled.count).div_ceil(2)) {
            product = product.wrapping_add(nh(word(a), *key_a, word(b), *key_b));
        }
        fold(product)
    }

    /// Returns the hash of a packet of the given form; `None` if `head` is too short for it.
    #[inline(always)]
    pub(super) fn plain(&self, head: &[u8], plain: Plain) -> Option<u64> {
        let Plain { link, is_v6, is_tcp, l4 } = plain;
        let addresses = L3.get(link)? + if is_v6 { ipv6::SRC.start } else { ipv4::SRC.start };
        let word = |index: usize| read_u64(head, addresses + 8 * index);
        let words = if is_v6 { [word(0)?, word(1)?, word(2)?, word(3)?] } else { [word(0)?, 0, 0, 0] };
        Some(self.words(head, link, is_v6, is_tcp, words, read_u32(head, l4)?))
    }

    /// Returns the hash of a packet of a known form that begins with `front`.
    #[inline(always)]
    pub(super) fn usual<const LINK: usize, const V6: bool, const TCP: bool>(&self, front: &[u8; HEAD_BLOCK]) -> u64 {
        let l3 = const { L3[LINK] };
        let l4 = l3 + if V6 { ipv6::LEN } else { ipv4::MIN_LEN };
        let addresses = l3 + if V6 { ipv6::SRC.start } else { ipv4::SRC.start };
        let word = |index: usize| read_u64(front, addresses + 8 * index).unwrap_or(0);
        let words = if V6 { [word(0), word(1), word(2), word(3)] } else { [word(0), 0, 0, 0] };
        self.words(front, LINK, V6, TCP, words, read_u32(front, l4).unwrap_or(0))
    }

    #[inline(always)]
    fn words(&self, head: &[u8], link: usize, is_v6: bool, is_tcp: bool, words: [u64; 4], ports: u32) -> u64 {
        let [k0, k1, k2, k3, k4, k5] = self.words;
        let mut what = ((link << 24) | (usize::from(is_v6) << 26) | (usize::from(is_tcp) << 27)) as u64;
        if link > 1 {
            let id = |at| read_u16(head, at).map_or(0, |tag| u64::from(tag & ethernet::VLAN_ID));
            what |= id(L3[1]) | if link > 2 { id(L3[2]) << 12 } else { 0 };
        }
        let rest = (what << 32) | u64::from(ports);
        let product = if is_v6 {
            let (source, destination) = (nh(words[0], k0, words[1], k1), nh(words[2], k2, words[3], k3));
            source.wrapping_add(destination).wrapping_add(nh(rest, k4, 0, k5))
        } else {
            nh(words[0], k0, rest, k1)
        };
        fold(product)
    }
}

/// Returns a hash of 64 bits, the lower of which select a bucket, and the upper ones a set of the memory of
/// acknowledgments.
#[inline(always)]
fn fold(product: u128) -> u64 {
    (product as u64) ^ (product >> 64) as u64
}

#[inline(always)]
fn nh(a: u64, key_a: u64, b: u64, key_b: u64) -> u128 {
    u128::from(a.wrapping_add(key_a)) * u128::from(b.wrapping_add(key_b))
}

#[inline(always)]
fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
