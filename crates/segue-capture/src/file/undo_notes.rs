//! Notes in merged files from which [`undo`](crate::undo) restores the packets and blocks exactly.
//!
//! A note is a pcapng option with the code [`OPTION`], from the range that the format leaves to local use (the highest
//! bit is set; no enterprise number is needed). Other readers skip it. The value is [`MAGIC`], one letter for the kind
//! of note, and bytes; a note too long for one option continues in further ones with the letter `c`:
//!
//! - `p`, in a section header: the file was made from a pcap file, whose 24 bytes of header follow.
//! - `s`, in a section header, and `i`, in an interface description: that block as it was before the merge.
//! - `m`, in a packet: the packets that were merged into it ([`encode`] has the format);
//! - `a`, in an acknowledgment: how many others it stands for, which cannot be restored.
//!
//! Notes do not depend on the rules of the merge: headers are kept as differences, payload is in the merged packet
//! itself. Any later version can undo a file.

use std::ops::Range;

use super::{BlockKind, MAX_SNAPLEN, Order, options};

/// Code of the option that holds a note.
pub const OPTION: u16 = 0xd347;
/// First bytes of each note: a name, and the version of the format.
pub const MAGIC: [u8; 5] = *b"sgue\x01";
/// Longest header of a packet in a note in bytes, link header included.
const MAX_HEAD: usize = 1024;
/// Maximum number of bytes of a note in one option.
const CHUNK: usize = 65_000;

/// The kind of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The header of the pcap file that was merged.
    Pcap,
    /// A section header or interface description from before the merge.
    Block,
    /// The original headers, timestamps and options of the packets that were merged.
    Members,
    /// The number of acknowledgments that this one replaces (LEB128). They are not in the file, so it cannot be undone.
    Swallowed,
}

impl NoteKind {
    fn letter(self, is_section: bool) -> u8 {
        match self {
            NoteKind::Pcap => b'p',
            NoteKind::Block if is_section => b's',
            NoteKind::Block => b'i',
            NoteKind::Members => b'm',
            NoteKind::Swallowed => b'a',
        }
    }
}

/// Appends an undo note to a list of pcapng options that has no `opt_endofopt` yet.
pub fn push(to: &mut Vec<u8>, order: Order, about: NoteKind, is_section: bool, note: &[u8]) {
    let mut letter = about.letter(is_section);
    let mut rest = note;
    loop {
        let (now, later) = rest.split_at(rest.len().min(CHUNK));
        let value = [&MAGIC[..], &[letter], now].concat();
        options::push(to, order, OPTION, &value);
        if later.is_empty() {
            return;
        }
        (rest, letter) = (later, b'c');
    }
}

/// Finds the undo note in a list of options.
pub fn find(list: &[u8], order: Order) -> Option<(NoteKind, Vec<u8>)> {
    let mut found: Option<(NoteKind, Vec<u8>)> = None;
    for (code, value) in options::list(list, order) {
        let Some((&letter, bytes)) = value.strip_prefix(&MAGIC[..]).and_then(|rest| rest.split_first()) else {
            continue;
        };
        if code != OPTION {
            continue;
        }
        match (letter, &mut found) {
            (b'c', Some((_, note))) => note.extend_from_slice(bytes),
            (b'p', None) => found = Some((NoteKind::Pcap, bytes.to_vec())),
            (b's' | b'i', None) => found = Some((NoteKind::Block, bytes.to_vec())),
            (b'm', None) => found = Some((NoteKind::Members, bytes.to_vec())),
            (b'a', None) => found = Some((NoteKind::Swallowed, bytes.to_vec())),
            _ => {}
        }
    }
    found
}

/// Copies the options of `list` whose codes `keep` accepts, without the end option.
pub fn filtered(list: &[u8], order: Order, keep: impl Fn(u16) -> bool) -> Vec<u8> {
    let mut kept = Vec::new();
    for (code, value) in options::list(list, order).filter(|(code, _)| keep(*code)) {
        options::push(&mut kept, order, code, value);
    }
    kept
}

/// Returns the offset of the options in a block, after type, length and fixed fields; `None` for a block without known
/// options.
fn options_at(kind: BlockKind) -> Option<usize> {
    match kind {
        BlockKind::Section => Some(24),
        BlockKind::Interface => Some(16),
        BlockKind::Other => None,
    }
}

/// Converts a section header or interface description for a file with merged packets: the length of the section becomes
/// unknown, a snap length below [`MAX_SNAPLEN`] becomes 0, and a note holds the original block. Other blocks are
/// returned unchanged.
pub fn annotated(kind: BlockKind, raw: &[u8], order: Order) -> Vec<u8> {
    let Some(at) = options_at(kind) else { return raw.to_vec() };
    let Some(list) = raw.get(at..raw.len() - 4) else { return raw.to_vec() };
    let mut body = raw[8..at].to_vec();
    if kind == BlockKind::Section {
        body[8..].fill(0xff);
    } else if order.read32(&body, 4) < MAX_SNAPLEN {
        body[4..].fill(0);
    }
    body.extend(filtered(list, order, |code| code != OPTION));
    push(&mut body, order, NoteKind::Block, kind == BlockKind::Section, raw);
    options::push(&mut body, order, options::END, &[]);
    super::write::wrap(order, if kind == BlockKind::Section { 0x0a0d_0d0a } else { 1 }, &body)
}

/// Copies a section header or interface description without its note.
pub fn unannotated(kind: BlockKind, raw: &[u8], order: Order) -> Vec<u8> {
    let Some((at, list)) = options_at(kind).and_then(|at| Some((at, raw.get(at..raw.len() - 4)?))) else {
        return raw.to_vec();
    };
    let mut body = raw[8..at].to_vec();
    let mut rest = filtered(list, order, |code| code != OPTION);
    options::end(&mut rest, order);
    body.extend(rest);
    super::write::wrap(order, if kind == BlockKind::Section { 0x0a0d_0d0a } else { 1 }, &body)
}

/// Finds the note in a section header or interface description.
pub fn noted(kind: BlockKind, raw: &[u8], order: Order) -> Option<(NoteKind, Vec<u8>)> {
    find(raw.get(options_at(kind)?..raw.len() - 4)?, order)
}

/// Encodes the note of an acknowledgment that replaces `count` others.
pub fn swallowed(count: u64) -> Vec<u8> {
    let mut note = Vec::new();
    number(&mut note, count);
    note
}

/// One packet inside of a merged one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Position in the file, in packets and blocks from the first packet of the same train.
    pub position: u64,
    /// Timestamp in ticks; `None` for a simple packet block.
    pub ticks: Option<u64>,
    /// Original length of the packet in bytes.
    pub len: u32,
    /// Link header and all further headers.
    pub head: Vec<u8>,
    /// Range of the packet's payload in the merged packet.
    pub payload: Range<usize>,
    /// Bytes after the payload: the frame's padding.
    pub trailer: Vec<u8>,
    /// Options of the packet; `None` if they equal those of the merged packet without its note.
    pub options: Option<Vec<u8>>,
    /// Padding and options of the packet's block byte for byte, if a [`Writer`](super::Writer) would write others;
    /// `options` is then `None`.
    pub tail: Option<Vec<u8>>,
}

/// Encodes the note for a merged packet with headers `head` and timestamp `ticks`.
///
/// Numbers are LEB128, signed ones zigzag. First the number of packets; then for each: a byte of flags (1: no
/// timestamp, 2: options follow, 4: a trailer follows, 8: a tail follows), the distance of its position from the
/// previous packet, the signed difference of its timestamp, the length of its header, the differences to the previous
/// header (the number of runs, and for each the bytes to skip, the length and the bytes), the length of its payload,
/// its original length minus the bytes present, then options, trailer and tail, each preceded by its length. The
/// payloads follow each other in the merged packet.
pub fn encode(head: &[u8], ticks: u64, members: &[Member]) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 * members.len());
    number(&mut out, members.len() as u64);
    let (mut before, mut position, mut time) = (head, 0, ticks);
    for member in members {
        let flags = u8::from(member.ticks.is_none())
            | u8::from(member.options.is_some()) << 1
            | u8::from(!member.trailer.is_empty()) << 2
            | u8::from(member.tail.is_some()) << 3;
        out.push(flags);
        number(&mut out, member.position - position);
        position = member.position;
        let this = member.ticks.unwrap_or(time);
        signed(&mut out, this.wrapping_sub(time) as i64);
        time = this;
        number(&mut out, member.head.len() as u64);
        differences(&mut out, before, &member.head);
        number(&mut out, member.payload.len() as u64);
        let have = member.head.len() + member.payload.len() + member.trailer.len();
        signed(&mut out, i64::from(member.len) - have as i64);
        let trailer = Some(&member.trailer[..]).filter(|trailer| !trailer.is_empty());
        for bytes in [member.options.as_deref(), trailer, member.tail.as_deref()].into_iter().flatten() {
            number(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        before = &member.head;
    }
    out
}

/// A note that is being decoded, one packet after the other. It holds no packet but the last, so that a short note with
/// many packets takes little memory.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Offset of the next packet in the note.
    at: usize,
    left: u64,
    position: u64,
    time: u64,
    /// End of the payload of the last packet.
    payload: Option<usize>,
    /// Headers of the last packet.
    head: Vec<u8>,
}

/// Number of bytes for each header in restored packets that neither their payload nor the note accounts for. Longer
/// headers and options that many packets share are refused beyond this limit and [`MOST_GROWTH`]: a small file must not
/// become a large one. Beside the headers it is less than 14 times as large, blocks and padding included; with them,
/// less than 32 times.
const FREE_HEAD: usize = 128;
/// Number of such bytes for each byte of the merged packet and its note.
const MOST_GROWTH: usize = 8;

/// Returns whether a [`Decoder`] accepts the packets of a note: `len` is the length of the note and of the merged
/// packet together, `carried` that of the options that packets share.
pub fn is_modest(members: &[Member], len: usize, carried: usize) -> bool {
    members.iter().map(|member| member.growth(carried)).sum::<usize>() <= most_growth(len, carried)
}

fn most_growth(len: usize, carried: usize) -> usize {
    MOST_GROWTH.saturating_mul(len + carried)
}

impl Member {
    /// Returns the number of bytes of the packet that neither its payload nor its note accounts for.
    fn growth(&self, carried: usize) -> usize {
        let shared = if self.options.is_none() && self.tail.is_none() { carried } else { 0 };
        self.head.len().saturating_sub(FREE_HEAD) + shared
    }
}

impl Decoder {
    /// Begins to decode the note of a merged packet with timestamp `ticks` and bytes `frame`, whose payload begins
    /// where the header of the first packet ends. The whole note is checked first. `None` if it does not fit the
    /// packet, holds no packet, or grows too much; `carried` is the length of the options that packets share.
    pub fn new(note: &[u8], ticks: u64, frame: &[u8], carried: usize) -> Option<Decoder> {
        let mut from = NoteReader(note);
        let left = from.number()?;
        let head = frame.get(..frame.len().min(MAX_HEAD))?.to_vec();
        let decoder = Decoder { at: note.len() - from.0.len(), left, position: 0, time: ticks, payload: None, head };
        let mut all = decoder.clone();
        let (mut growth, most) = (0, most_growth(note.len() + frame.len(), carried));
        while let Some(member) = all.next(note, frame) {
            growth += member.growth(carried);
            if growth > most {
                return None;
            }
        }
        let is_whole = all.left == 0 && all.at == note.len() && all.payload == Some(frame.len());
        is_whole.then_some(decoder)
    }

    /// Returns whether more packets follow in the note.
    pub fn has_more(&self) -> bool {
        self.left > 0
    }

    /// Returns the next packet; `None` after the last one, or where the note does not fit the packet.
    pub fn next(&mut self, note: &[u8], frame: &[u8]) -> Option<Member> {
        self.left.checked_sub(1)?;
        let mut from = NoteReader(note.get(self.at..)?);
        let flags = from.byte()?;
        let position = self.position.checked_add(from.number()?)?;
        let time = self.time.wrapping_add(from.signed()? as u64);
        let head_len = usize::try_from(from.number()?).ok().filter(|len| *len <= MAX_HEAD.min(frame.len()))?;
        let head = from.patched(&self.head, head_len)?;
        let start = self.payload.unwrap_or(head_len);
        let end = start.checked_add(usize::try_from(from.number()?).ok()?)?;
        frame.get(start..end)?;
        let missing = from.signed()?;
        let options = if flags & 2 != 0 { Some(from.bytes()?.to_vec()) } else { None };
        let trailer = if flags & 4 != 0 { from.bytes()?.to_vec() } else { Vec::new() };
        let tail = if flags & 8 != 0 { Some(from.bytes()?.to_vec()) } else { None };
        let have = i64::try_from(head_len + (end - start) + trailer.len()).ok()?;
        let len = u32::try_from(have.checked_add(missing)?).ok()?;
        self.head.clone_from(&head);
        (self.at, self.left) = (note.len() - from.0.len(), self.left - 1);
        (self.position, self.time, self.payload) = (position, time, Some(end));
        let ticks = (flags & 1 == 0).then_some(time);
        Some(Member { position, ticks, len, head, payload: start..end, trailer, options, tail })
    }
}

/// Encodes the runs in which `this` differs from `before`; bytes past the end of `before` count as zero.
fn differences(out: &mut Vec<u8>, before: &[u8], this: &[u8]) {
    let differs = |at: usize| this[at] != before.get(at).copied().unwrap_or(0);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in (0..this.len()).filter(|&at| differs(at)) {
        match runs.last_mut() {
            // Two equal bytes in between cost no more than a new run.
            Some(run) if at - run.end <= 2 => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    number(out, runs.len() as u64);
    let mut at = 0;
    for run in runs {
        number(out, (run.start - at) as u64);
        number(out, run.len() as u64);
        out.extend_from_slice(&this[run.clone()]);
        at = run.end;
    }
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, (value << 1 ^ value >> 63) as u64);
}

struct NoteReader<'a>(&'a [u8]);

impl<'a> NoteReader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.number()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }

    /// Decodes a header of `len` bytes: `before`, changed by the runs that follow.
    fn patched(&mut self, before: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut head = before[..before.len().min(len)].to_vec();
        head.resize(len, 0);
        let mut at = 0_usize;
        for _ in 0..self.number()? {
            at = at.checked_add(usize::try_from(self.number()?).ok()?)?;
            let run = self.bytes()?;
            let end = at.checked_add(run.len())?;
            head.get_mut(at..end)?.copy_from_slice(run);
            at = end;
        }
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use segue_testkit::Rng;

    use super::*;

    fn member(position: u64, ticks: Option<u64>, head: &[u8], payload: Range<usize>) -> Member {
        let len = (head.len() + payload.len()) as u32;
        Member { position, ticks, len, head: head.to_vec(), payload, trailer: Vec::new(), options: None, tail: None }
    }

    fn train() -> (Vec<u8>, Vec<Member>) {
        let frame = [&b"HEADER--"[..], &[7; 20]].concat();
        let mut members = vec![
            member(0, Some(1000), b"HEADER00", 8..18),
            member(3, Some(990), b"HxADyR01", 18..25),
            member(4, None, b"HxADyRzz", 25..28),
        ];
        members[1].trailer = vec![0, 0, 1];
        members[1].len += 3;
        members[2].options = Some(vec![1, 0, 0, 0]);
        members[2].len += 1500;
        members[0].tail = Some(vec![9, 9, 9]);
        members[1].tail = Some(Vec::new());
        (frame, members)
    }

    /// Decodes a note into its members.
    fn decode(note: &[u8], ticks: u64, frame: &[u8]) -> Option<Vec<Member>> {
        let mut decoder = Decoder::new(note, ticks, frame, 0)?;
        Some(std::iter::from_fn(|| decoder.next(note, frame)).collect())
    }

    #[test]
    fn a_train_reads_back_as_it_was_noted() {
        let (frame, members) = train();
        let note = encode(&frame[..8], 1000, &members);
        assert_eq!(decode(&note, 1000, &frame), Some(members));
    }

    #[test]
    fn a_note_that_is_cut_changed_or_of_another_packet_is_refused_or_harmless() {
        let (frame, members) = train();
        let note = encode(&frame[..8], 1000, &members);
        for cut in 0..note.len() {
            assert_eq!(decode(&note[..cut], 1000, &frame), None, "cut at {cut}");
        }
        assert_eq!(decode(&note, 1000, &frame[..27]), None);
        for at in 0..note.len() {
            for bit in 0..8 {
                let mut bad = note.clone();
                bad[at] ^= 1 << bit;
                for member in decode(&bad, 1000, &frame).unwrap_or_default() {
                    assert!(member.payload.end <= frame.len() && member.head.len() <= MAX_HEAD);
                }
            }
        }
    }

    #[test]
    fn a_short_note_does_not_become_long_packets() {
        let frame = [0; 1500];
        let members = |count: usize, head: usize| {
            let payload = |at: usize| if at + 1 < count { head..head } else { head..frame.len() };
            (0..count).map(|at| member(at as u64, Some(9), &frame[..head], payload(at))).collect::<Vec<_>>()
        };
        let is_refused = |count, head, carried| {
            let note = encode(&frame[..head], 9, &members(count, head));
            Decoder::new(&note, 9, &frame, carried).is_none()
        };
        assert_eq!(
            [(1, 1000, 0), (10, 1000, 0), (5000, 128, 0)].map(|(n, head, with)| is_refused(n, head, with)),
            [false; 3]
        );
        assert_eq!([(100, 128, 100), (2, 128, 60_000)].map(|(n, head, with)| is_refused(n, head, with)), [false; 2]);
        assert_eq!(
            [(5000, 1000, 0), (5000, 128, 1000), (20, 128, 60_000)].map(|(n, head, with)| is_refused(n, head, with)),
            [true; 3]
        );
    }

    #[test]
    fn blocks_are_noted_and_come_back() {
        use super::super::{Interface, Resolution, interface_block, section_block};
        for order in [Order::Little, Order::Big] {
            let mut list = Vec::new();
            options::push(&mut list, order, options::SHB_USERAPPL, b"somebody");
            let interface = Interface {
                link: 1,
                fcs_len: 0,
                snaplen: 96,
                resolution: Resolution::NANO,
                offset_seconds: -3,
                name: Some("eth0".into()),
            };
            let blocks = [
                (BlockKind::Section, section_block(order, &list)),
                (BlockKind::Interface, interface_block(order, &interface)),
            ];
            for (kind, block) in blocks {
                let changed = annotated(kind, &block, order);
                assert_eq!(noted(kind, &changed, order), Some((NoteKind::Block, block.clone())));
                let bare = unannotated(kind, &changed, order);
                assert_eq!((noted(kind, &bare, order), bare.len()), (None, block.len()));
                // Twice noted, the inner note is in the outer one.
                let twice = annotated(kind, &changed, order);
                assert_eq!(noted(kind, &twice, order), Some((NoteKind::Block, changed)));
            }
        }
    }

    #[test]
    fn a_long_note_goes_on_in_further_options() {
        for order in [Order::Little, Order::Big] {
            let note: Vec<u8> = (0..150_000_u32).map(|n| n as u8).collect();
            let mut list = Vec::new();
            options::push(&mut list, order, options::COMMENT, b"kept");
            push(&mut list, order, NoteKind::Members, false, &note);
            assert_eq!(find(&list, order), Some((NoteKind::Members, note)));
            let rest = filtered(&list, order, |code| code != OPTION);
            assert_eq!(options::list(&rest, order).collect::<Vec<_>>(), [(options::COMMENT, &b"kept"[..])]);
        }
    }

    #[test]
    fn every_number_reads_back_from_the_fewest_bytes_and_from_no_fewer() {
        let mut rng = Rng::new(7);
        let ends = (0..64).flat_map(|bits| [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits]);
        let any: Vec<u64> = (0..20_000).map(|round| rng.next_u64() >> (round % 64)).collect();
        for value in ends.chain(any) {
            let mut bytes = Vec::new();
            number(&mut bytes, value);
            let len = (u64::BITS - value.leading_zeros()).div_ceil(7).max(1) as usize;
            assert_eq!(bytes.len(), len, "{value}");
            assert!((0..len).all(|cut| NoteReader(&bytes[..cut]).number().is_none()), "{value}");
            signed(&mut bytes, value as i64);
            bytes.push(0xa5);
            let mut reader = NoteReader(&bytes);
            assert_eq!((reader.number(), reader.signed(), reader.0), (Some(value), Some(value as i64), &[0xa5][..]));
        }
    }
}
