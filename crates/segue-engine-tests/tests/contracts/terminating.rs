//! The contract of profile `lro`, which is weaker than transparency: each flow's output stream equals its input stream,
//! and an acknowledgment is missing only if its sender can do without it. Written from the RFCs, without the engine's
//! state: it compares the packets of a flow in their order of arrival.

use std::collections::{HashMap, VecDeque};

use segue::packet::{Kind, Unit};

use crate::properties::{Arrival, Promise, Released, Run, Setting, View, Violation, bare, cut, flow, on_the_wire};

/// The relevant fields of a TCP packet.
#[derive(Debug)]
struct Tcp {
    /// Fields in front of TCP, such as DSCP, ECN, TTL and flow label, without lengths, identification and checksums.
    front: Vec<u8>,
    seq: u32,
    ack: u32,
    /// The AE flag and the other TCP flags.
    flags: u16,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl Tcp {
    fn parse(bytes: &[u8], setting: &Setting) -> Option<Tcp> {
        let layout = segue::wire::parse(bytes, setting.start, &setting.tunnels());
        let header = *layout.transport().filter(|header| header.kind == Kind::Tcp)?;
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let at = header.start();
        let mut front = bytes[..at].to_vec();
        for header in layout.headers() {
            let at = header.start();
            match header.kind {
                Kind::Ipv4 => [2, 3, 4, 5, 10, 11].iter().for_each(|i| front[at + i] = 0),
                Kind::Ipv6 => front[at + 4..at + 6].fill(0),
                Kind::Udp => front[at + 4..at + 8].fill(0),
                Kind::Gre if front[at] & 0x80 != 0 => front[at + 4..at + 6].fill(0),
                _ => {}
            }
        }
        Some(Tcp {
            front,
            seq: word(at + 4),
            ack: word(at + 8),
            flags: word(at + 10) as u16 & 0x0fff,
            window: u16::from_be_bytes([bytes[at + 14], bytes[at + 15]]),
            options: bytes[at + 20..header.end()].to_vec(),
            payload: bytes.get(header.end()..layout.end()).unwrap_or(&[]).to_vec(),
        })
    }

    /// Returns the timestamp and its echo, if they are the only option, in the usual layout.
    fn stamps(&self) -> Option<(u32, u32)> {
        let [1, 1, 8, 10, value @ .., e0, e1, e2, e3] = &self.options[..] else { return None };
        Some((u32::from_be_bytes(value.try_into().ok()?), u32::from_be_bytes([*e0, *e1, *e2, *e3])))
    }

    /// Returns whether the packet is a pure acknowledgment without other information.
    fn is_plain(&self) -> bool {
        self.payload.is_empty() && self.flags == 0x10 && (self.options.is_empty() || self.stamps().is_some())
    }
}

fn ahead(from: u32, to: u32) -> bool {
    (to.wrapping_sub(from) as i32) > 0
}

/// The state of one flow.
#[derive(Default)]
struct Flow {
    /// Arrivals without output yet, in order.
    waiting: VecDeque<usize>,
    /// Acknowledgment numbers of good packets that were released or swallowed, since the last SYN, FIN or RST.
    numbers: Vec<u32>,
    has_syn: bool,
}

pub(crate) fn views(run: &Run, arrivals: &[Arrival], setting: &Setting) -> Result<Vec<View>, Violation> {
    let leaving: Vec<Vec<u8>> = arrivals.iter().map(|arrival| on_the_wire(arrival, setting)).collect();
    let good: Vec<bool> = arrivals.iter().map(|a| setting.judge(&a.bytes, a.port_csum).is_ok()).collect();
    let key = |bytes: &[u8]| flow(bytes, setting).unwrap_or_else(|| [b"unknown", bytes].concat());
    let mut flows: HashMap<Vec<u8>, Flow> = HashMap::new();
    for (index, bytes) in leaving.iter().enumerate() {
        flows.entry(key(bytes)).or_default().waiting.push_back(index);
    }
    let judge = Judge { leaving: &leaving, good: &good, setting };
    let mut views = Vec::new();
    for released in &run.released {
        let segments: Vec<_> = cut(&released.packet)?.into_iter().map(|segment| bare(segment, setting)).collect();
        let flow = flows.entry(key(&segments[0])).or_default();
        views.push(match released.packet.offload.unit {
            Unit::Train { .. } => judge.train(released, &segments, flow)?,
            Unit::Whole(_) => judge.single(segments, flow)?,
        });
    }
    match flows.values().flat_map(|flow| &flow.waiting).next() {
        Some(index) => {
            Err(Violation::new(Promise::Conservation, format!("packet {index} is lost: {:02x?}", leaving[*index])))
        }
        None => Ok(views),
    }
}

struct Judge<'a> {
    leaving: &'a [Vec<u8>],
    good: &'a [bool],
    setting: &'a Setting,
}

impl Judge<'_> {
    fn tcp(&self, index: usize) -> Option<Tcp> {
        Tcp::parse(&self.leaving[index], self.setting)
    }

    fn single(&self, segments: Vec<Vec<u8>>, flow: &mut Flow) -> Result<View, Violation> {
        let mut swallowed = Vec::new();
        loop {
            let Some(&index) = flow.waiting.front() else {
                let what = format!("what never came, or came before: {:02x?}", segments[0]);
                return Err(Violation::new(Promise::Transparency, what));
            };
            if self.leaving[index] == segments[0] {
                self.leave(flow);
                return Ok(View { is_train: false, segments, came: vec![Some(index)], swallowed });
            }
            self.may_be_swallowed(flow).map_err(|why| {
                let what = format!("{:02x?} in front of {:02x?}: {why}", self.leaving[index], segments[0]);
                Violation::new(Promise::Conservation, what)
            })?;
            self.leave(flow);
            swallowed.push(index);
        }
    }

    /// Removes the first arrival of a flow, and records its numbers.
    fn leave(&self, flow: &mut Flow) {
        let Some(index) = flow.waiting.pop_front() else { return };
        let Some(tcp) = self.tcp(index).filter(|_| self.good[index]) else { return };
        flow.has_syn |= tcp.flags & 0x02 != 0;
        if tcp.flags & 0x07 != 0 {
            flow.numbers.clear();
        } else {
            flow.numbers.push(tcp.ack);
        }
    }

    /// Checks that the next packet of the flow allows omitting the first one.
    fn may_be_swallowed(&self, flow: &Flow) -> Result<(), &'static str> {
        let [old, new] = [0, 1].map(|place| flow.waiting.get(place).copied());
        let (Some(old), Some(new)) = (old, new) else { return Err("nothing swallowed it") };
        if !self.good[old] || !self.good[new] {
            return Err("a wrong checksum");
        }
        let (Some(old), Some(new)) = (self.tcp(old), self.tcp(new)) else { return Err("no TCP") };
        if !old.is_plain() || !new.is_plain() {
            return Err("no plain acknowledgment");
        }
        if flow.numbers.contains(&old.ack) {
            return Err("a duplicate");
        }
        if !ahead(old.ack, new.ack) {
            return Err("by one that acknowledges no more");
        }
        let taken_back = u64::from(old.window.saturating_sub(new.window)) << 14;
        if taken_back > u64::from(new.ack.wrapping_sub(old.ack)) && !flow.has_syn {
            return Err("the window is taken back");
        }
        if old.front != new.front || old.seq != new.seq {
            return Err("other headers");
        }
        match (old.stamps(), new.stamps()) {
            (None, None) => Ok(()),
            (Some(old), Some(new)) if !ahead(new.0, old.0) && !ahead(new.1, old.1) && old.1 != 0 && new.1 != 0 => {
                Ok(())
            }
            _ => Err("back in time"),
        }
    }

    fn train(&self, released: &Released, cut: &[Vec<u8>], flow: &mut Flow) -> Result<View, Violation> {
        let broken = |what: String| Err(Violation::new(Promise::Transparency, what));
        if let Some(wrong) =
            cut.iter().find(|segment| self.setting.judge(segment, crate::properties::PortCsum::Nothing).is_err())
        {
            return broken(format!("a segment is wrong: {wrong:02x?}"));
        }
        let stream: Vec<u8> = released.packet.payload.pieces(0..usize::MAX).flatten().copied().collect();
        let (mut at, mut came, mut parts) = (0, Vec::new(), Vec::new());
        while at < stream.len() {
            let Some(&index) = flow.waiting.front() else { return broken("more than came".into()) };
            let layout = segue::wire::parse(&self.leaving[index], self.setting.start, &self.setting.tunnels());
            let payload = &self.leaving[index][layout.header_len()..];
            if payload.is_empty() || !stream[at..].starts_with(payload) {
                return broken(format!("a train is not what came: {:02x?}", self.leaving[index]));
            }
            at += payload.len();
            came.push(index);
            parts.push(self.tcp(index));
            self.leave(flow);
        }
        let Some(parts) = parts.into_iter().collect::<Option<Vec<Tcp>>>() else {
            // Datagrams are restored as in other profiles.
            let same = cut.iter().zip(&came).all(|(segment, &index)| self.is_restored(segment, index));
            return if same && cut.len() == came.len() {
                Ok(self.view(came))
            } else {
                broken("other datagrams".into())
            };
        };
        let train = Tcp::parse(&cut[0], self.setting).expect("a train of TCP");
        let (first, last) = (&parts[0], &parts[parts.len() - 1]);
        for (before, after) in parts.iter().zip(&parts[1..]) {
            if after.seq != before.seq.wrapping_add(before.payload.len() as u32) || after.front != first.front {
                return broken(format!("{after:?} does not follow {before:?}"));
            }
            if ahead(after.ack, before.ack) {
                return broken("an acknowledgment number goes back".into());
            }
            if (before.flags ^ after.flags) & !0x89 != 0 || before.flags & 0x09 != 0 || after.flags & 0x80 != 0 {
                return broken(format!("flags {:03x} behind {:03x}", after.flags, before.flags));
            }
            let in_time = match (before.stamps(), after.stamps()) {
                (Some(a), Some(b)) => a == b || (!ahead(b.0, a.0) && !ahead(b.1, a.1) && b.1 != 0),
                _ => before.options == after.options,
            };
            if !in_time {
                return broken(format!("options {:02x?} behind {:02x?}", after.options, before.options));
            }
        }
        let stamps = first.stamps().zip(last.stamps()).map(|(first, last)| (first.0, last.1));
        let is_right = (train.seq, train.ack, train.window) == (first.seq, last.ack, last.window)
            && train.front == first.front
            && train.stamps() == stamps;
        if is_right { Ok(self.view(came)) } else { broken(format!("{train:?} for {first:?} to {last:?}")) }
    }

    /// Returns whether a datagram is the same as when it arrived, except for identification and the representation of
    /// checksums.
    fn is_restored(&self, segment: &[u8], index: usize) -> bool {
        let came = &self.leaving[index];
        let layout = segue::wire::parse(came, self.setting.start, &self.setting.tunnels());
        let mut pair = [segment.to_vec(), came.clone()];
        if pair[0].len() != pair[1].len() {
            return false;
        }
        for header in layout.headers() {
            for bytes in &mut pair {
                let at = header.start();
                match header.kind {
                    Kind::Ipv4 => [4, 5, 10, 11].iter().for_each(|i| bytes[at + i] = 0),
                    Kind::Udp => bytes[at + 6..at + 8].fill(0),
                    Kind::Gre if bytes[at] & 0x80 != 0 => bytes[at + 4..at + 6].fill(0),
                    _ => {}
                }
            }
        }
        pair[0] == pair[1]
    }

    fn view(&self, came: Vec<usize>) -> View {
        View {
            is_train: true,
            segments: came.iter().map(|&index| self.leaving[index].clone()).collect(),
            came: came.into_iter().map(Some).collect(),
            swallowed: Vec::new(),
        }
    }
}
