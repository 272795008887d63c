//! The writer of the frames of a case.

use super::carrier::{Carrier, behind_gre_checksum};
use crate::build::{Ethernet, Ip, L4, Packet, Tunnel, primed};
use crate::flow::Sender;
use crate::sum::with_pseudo;

/// A frame of a conformance case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The bytes from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// Number of the flow; order counts within one.
    pub flow: usize,
    /// Time since the first frame of the case, in nanoseconds.
    pub at: u64,
    /// Payload after the innermost header that was built, in bytes.
    pub data_len: usize,
    /// Padding after the payload, in bytes.
    pub padding: usize,
    pub(super) outer_at: usize,
    pub(super) inner_at: usize,
    /// Offset of the outer UDP checksum in bytes, or `None` without one.
    pub(super) udp_checksum: Option<usize>,
    /// Offset of the GRE checksum in bytes, or `None` without one.
    pub(super) gre_checksum: Option<usize>,
    /// Whether the receiver completes the transport checksum.
    pub(super) is_remote: bool,
}

impl Frame {
    /// Returns the identification of the innermost IP header if that is IPv4.
    pub fn inner_id(&self) -> Option<u16> {
        self.id(self.inner_at)
    }

    /// Returns the identification of the outermost IP header if the frame is tunnelled and that header is IPv4.
    pub fn outer_id(&self) -> Option<u16> {
        if self.outer_at == self.inner_at { None } else { self.id(self.outer_at) }
    }

    fn id(&self, at: usize) -> Option<u16> {
        (self.bytes[at] >> 4 == 4).then(|| u16::from_be_bytes([self.bytes[at + 4], self.bytes[at + 5]]))
    }
}

/// Maximum number of flows in a case.
const FLOWS: usize = 64;

/// A builder of the frames of one conformance row, encapsulated by its carrier.
#[derive(Clone, Debug)]
pub struct Script {
    carrier: Carrier,
    /// Tunnels of the flows that are not selected.
    others: Vec<Option<Tunnel>>,
    senders: Vec<Option<Sender>>,
    flow: usize,
    at: u64,
    is_udp: bool,
    pub(super) frames: Vec<Frame>,
}

impl Script {
    pub(super) fn new(carrier: &Carrier) -> Script {
        let carrier = carrier.clone();
        let others = vec![carrier.around.clone(); FLOWS];
        Script { carrier, others, senders: Vec::new(), flow: 0, at: 0, is_udp: false, frames: Vec::new() }
    }

    /// Returns the template of the flow's next packet; changes persist.
    pub fn packet(&mut self) -> &mut Packet {
        &mut self.sender().next
    }

    /// Returns the sender of the selected flow.
    pub fn sender(&mut self) -> &mut Sender {
        if self.senders.len() <= self.flow {
            self.senders.resize(FLOWS, None);
        }
        let (ip, flow) = (&self.carrier.inner, self.flow as u16 + 1);
        let sender = || {
            if self.is_udp { Sender::udp(ip.clone(), flow) } else { Sender::tcp(ip.clone(), flow, 1000, Vec::new()) }
        };
        self.senders[self.flow].get_or_insert_with(sender)
    }

    /// Selects UDP for all flows that begin after this call.
    pub fn udp(&mut self) {
        self.is_udp = true;
    }

    /// Selects the current flow, one of at most 64. Each has outer headers of its own.
    pub fn flow(&mut self, flow: usize) {
        std::mem::swap(&mut self.carrier.around, &mut self.others[self.flow]);
        std::mem::swap(&mut self.carrier.around, &mut self.others[flow]);
        self.flow = flow;
    }

    /// Advances the time by this many nanoseconds.
    pub fn wait(&mut self, nanoseconds: u64) {
        self.at += nanoseconds;
    }

    /// Returns the outer IP header of the frames that follow.
    pub fn outer(&mut self) -> &mut Ip {
        &mut self.tunnel().ip
    }

    /// Returns the Ethernet header of the frames that follow.
    pub fn link(&mut self) -> &mut Ethernet {
        &mut self.carrier.link
    }

    /// Returns the Ethernet header inside the tunnel.
    pub fn inner_link(&mut self) -> &mut Ethernet {
        self.tunnel().ethernet.as_mut().expect("the row is for Ethernet in tunnels")
    }

    /// Returns the tunnel around this flow's following frames.
    pub fn tunnel(&mut self) -> &mut Tunnel {
        self.carrier.around.as_mut().expect("the row is for tunnels")
    }

    /// Sends `len` bytes in sequence, with `flags` added to ACK.
    pub fn send(&mut self, len: usize, flags: u8) {
        self.with(len, |packet| {
            if let L4::Tcp(tcp) = &mut packet.l4 {
                tcp.flags |= flags;
            }
        });
    }

    /// Sends `count` packets of 100 bytes in sequence.
    pub fn run(&mut self, count: usize) {
        for _ in 0..count {
            self.send(100, 0);
        }
    }

    /// Sends `len` bytes in sequence in a packet that `edit` changes.
    pub fn with(&mut self, len: usize, edit: impl FnOnce(&mut Packet)) {
        self.edited(len, edit, |_| {});
    }

    /// Sends `len` bytes in sequence; `edit` changes the bytes of the IP packet, checksums included.
    pub fn bytes(&mut self, len: usize, edit: impl FnOnce(&mut Vec<u8>)) {
        self.edited(len, |_| {}, edit);
    }

    /// Sends `len` bytes in sequence; `edit` changes the bytes of the frame from the outermost IP header on.
    pub fn outer_bytes(&mut self, len: usize, edit: impl FnOnce(&mut [u8])) {
        self.send(len, 0);
        let frame = self.frames.last_mut().expect("one was sent");
        edit(&mut frame.bytes[frame.outer_at..]);
    }

    /// Sends `len` bytes in sequence; `edit` changes the bytes after the outer UDP header, whose checksum is then
    /// recomputed.
    pub fn shim_bytes(&mut self, len: usize, edit: impl FnOnce(&mut [u8])) {
        self.outer_bytes(len, |bytes| {
            let (at, addresses) = if bytes[0] >> 4 == 4 { (20, 12..20) } else { (40, 8..40) };
            edit(&mut bytes[at + 8..]);
            if bytes[at + 6..at + 8] != [0, 0] {
                bytes[at + 6..at + 8].fill(0);
                let (src, dst) = bytes[addresses.clone()].split_at(addresses.len() / 2);
                let checksum = !with_pseudo(src, dst, 17, &bytes[at..]);
                bytes[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
            }
        });
    }

    /// Sends `len` bytes in sequence in a frame with `padding` bytes after the packet.
    pub fn padded(&mut self, len: usize, padding: &[u8]) {
        self.send(len, 0);
        let frame = self.frames.last_mut().expect("one was sent");
        frame.bytes.extend(padding);
        frame.padding = padding.len();
    }

    /// Sends `len` bytes in sequence; `edit` changes the bytes of the TCP or UDP header, and their checksum is
    /// recomputed.
    pub fn header(&mut self, len: usize, edit: impl FnOnce(&mut [u8])) {
        self.bytes(len, |bytes| {
            let (start, field, _) = primed(bytes).expect("TCP or UDP with a checksum");
            edit(&mut bytes[start..]);
            bytes[field..field + 2].fill(0);
            let addresses = if bytes[0] >> 4 == 4 { 12..20 } else { 8..40 };
            let (src, dst) = bytes[addresses.clone()].split_at(addresses.len() / 2);
            let protocol = if field == start + 16 { 6 } else { 17 };
            let checksum = !with_pseudo(src, dst, protocol, &bytes[start..]);
            let checksum = if checksum == 0 && protocol == 17 { 0xffff } else { checksum };
            bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        });
    }

    /// Returns the payload length that makes a packet of 65535 bytes from the outermost IP header on.
    pub fn most(&self) -> usize {
        let mut copy = self.clone();
        copy.send(1, 0);
        let frame = &copy.frames[copy.frames.len() - 1];
        65_535 - (frame.bytes.len() - 1 - frame.outer_at)
    }

    /// Sends frame `index` of the case again.
    pub fn again(&mut self, index: usize) {
        let frame = Frame { at: self.at, ..self.frames[index].clone() };
        self.frames.push(frame);
    }

    fn edited(&mut self, len: usize, edit: impl FnOnce(&mut Packet), change: impl FnOnce(&mut Vec<u8>)) {
        let mut packet = self.sender().send(len, 0);
        edit(&mut packet);
        let data_len = packet.data.len();
        let mut inner = packet.bytes();
        change(&mut inner);
        let outer = match &self.carrier.around {
            Some(around) => around.wrap(&inner),
            None => inner.clone(),
        };
        let bytes = self.carrier.link.wrap(&outer);
        let outer_at = bytes.len() - outer.len();
        let inner_at = bytes.len() - inner.len();
        let is_remote = self.carrier.is_remote();
        let (mut udp_checksum, mut gre_checksum) = (None, None);
        if let Some(around) = &mut self.carrier.around {
            let ip_len = if matches!(around.ip, Ip::V4(_)) { 20 } else { 40 };
            udp_checksum = around.udp.filter(|(udp, _)| udp.checksum).map(|_| outer_at + ip_len + 6);
            gre_checksum = behind_gre_checksum(around).map(|behind| inner_at - behind);
            if let Ip::V4(ip) = &mut around.ip {
                ip.id = ip.id.wrapping_add(1);
            }
        }
        self.frames.push(Frame {
            bytes,
            flow: self.flow,
            at: self.at,
            data_len,
            padding: 0,
            outer_at,
            inner_at,
            udp_checksum,
            gre_checksum,
            is_remote,
        });
    }
}
