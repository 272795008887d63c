//! The MAC: filters, frames to and from the wire, flow control and statistics.

use segue::time::Nanos;

use crate::frame::rx::{Header, flag};
use crate::frame::tx::{COMMAND_LEN, Command};
use crate::frame::{ETHERNET_LEN, FCS_LEN, VLAN_LEN};
use crate::regs::{self, dp, fct, flow, int, mac_cr, mac_rx, rfe, stat};

use super::fifo::Received;
use super::{Fault, Model, offload};

/// Length in bytes of the shortest frame without FCS.
const MIN_FRAME: usize = 60;
/// Destination address of pause frames (IEEE 802.3, 31B.1).
const PAUSE_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x01];
const PAUSE_HEAD: [u8; 4] = [0x88, 0x08, 0x00, 0x01];
/// Number of bytes that a frame takes on the wire in addition to its own: FCS, preamble and interframe gap (IEEE 802.3,
/// 4.4.2).
const WIRE_OVERHEAD: usize = FCS_LEN + 8 + 12;
/// Largest number of frames to the partner that wait to be fetched.
const MAX_OUTGOING: usize = 1 << 16;
/// Largest number of bytes in frames to the partner that wait to be fetched: segmentation could otherwise turn one
/// transfer of the host into more than the model should hold.
const MAX_OUTGOING_BYTES: usize = 64 << 20;
/// Longest time that a wire may lag behind its schedule and still catch up, nanoseconds: wake-ups come late, on a
/// loaded machine by milliseconds.
const CATCH_UP: u64 = 5_000_000;

/// Returns the class of a destination address: 0 unicast, 1 broadcast, 2 multicast, in the order of the counters.
fn class(destination: &[u8]) -> usize {
    match destination {
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => 1,
        [first, ..] if first & 1 != 0 => 2,
        _ => 0,
    }
}

/// Returns the index of the size counter for a frame of this length, FCS included.
fn size_class(len: usize) -> usize {
    [64, 127, 255, 511, 1023, 1518].iter().position(|most| len <= *most).unwrap_or(6)
}

impl Model {
    /// Adds `n` to a counter of the chip, which wraps.
    fn count(&mut self, place: usize, n: u64) {
        let range = u64::from(regs::STATISTICS[place].max) + 1;
        self.statistics[place] = ((u64::from(self.statistics[place]) + n) % range) as u32;
    }

    /// Returns the wire time of a frame of `len` bytes without FCS, nanoseconds.
    fn wire_time(&self, len: usize) -> u64 {
        match self.phy.link() {
            Some(speed) if self.config.paced => {
                (len.max(MIN_FRAME) + WIRE_OVERHEAD) as u64 * 8 * 1000 / u64::from(speed.mbit())
            }
            _ => 0,
        }
    }

    /// Returns whether the MAC runs at the speed of the link.
    fn speed_fits(&self) -> bool {
        let control = self.register(regs::MAC_CR);
        let Some(link) = self.phy.link() else { return false };
        let set = [10, 100, 1000, 0][(control >> mac_cr::SPEED_SHIFT & 3) as usize];
        control & mac_cr::AUTO_SPEED != 0 || set == link.mbit()
    }

    /// Updates speed and duplex of a MAC that follows the PHY.
    pub(super) fn follow_link(&mut self) {
        let control = self.register(regs::MAC_CR);
        if let (Some(link), true) = (self.phy.link(), control & mac_cr::AUTO_SPEED != 0) {
            let value = match link.mbit() {
                1000 => 2,
                100 => 1,
                _ => 0,
            };
            let duplex = if control & mac_cr::AUTO_DUPLEX != 0 { mac_cr::FULL_DUPLEX } else { 0 };
            let cleared = control & !(3 << mac_cr::SPEED_SHIFT);
            self.words[usize::from(regs::MAC_CR) / 4] = cleared | value << mac_cr::SPEED_SHIFT | duplex;
        }
    }

    /// Takes a frame from the partner, without FCS. Frames shorter than Ethernet allows are padded.
    pub fn receive(&mut self, mut frame: Vec<u8>) {
        if self.gone {
            self.notes.unheard += 1;
            return;
        }
        if !self.takes_more() {
            self.notes.partner_lost += 1;
            return;
        }
        if frame.len() < MIN_FRAME {
            frame.resize(MIN_FRAME, 0);
        }
        self.mac.incoming.push_back(frame);
    }

    /// Returns whether the partner's queue has room for another frame.
    pub fn takes_more(&self) -> bool {
        self.room() > 0
    }

    /// Returns the number of further frames that the partner can queue.
    pub fn room(&self) -> usize {
        self.config.partner_queue.saturating_sub(self.mac.incoming.len())
    }

    /// Returns the next frame that has reached the partner, without FCS.
    pub fn transmit(&mut self) -> Option<Vec<u8>> {
        if self.mac.outgoing.front()?.0 > self.now {
            return None;
        }
        let (_, frame) = self.mac.outgoing.pop_front()?;
        self.mac.outgoing_bytes -= frame.len();
        Some(frame)
    }

    /// Cuts the cable at an unplug: frames queued at the partner are lost, and so are those that have not reached it.
    pub(super) fn cut_cable(&mut self) {
        self.notes.unheard += self.mac.incoming.drain(..).count() as u64;
        let all = self.mac.outgoing.len();
        self.mac.outgoing.retain(|(at, _)| *at <= self.now);
        self.mac.outgoing_bytes = self.mac.outgoing.iter().map(|(_, frame)| frame.len()).sum();
        self.notes.cut_off += (all - self.mac.outgoing.len()) as u64;
    }

    /// Returns the size of the transmit FIFO, bytes.
    fn tx_fifo(&self) -> usize {
        ((self.register(regs::FCT_TX_FIFO_END) & 0x7f) as usize + 1) * 512
    }

    /// Returns whether the transmit FIFO has room for another frame.
    pub(super) fn mac_takes_more(&self) -> bool {
        if self.is_paused() || self.mac.outgoing.len() >= MAX_OUTGOING {
            return false;
        }
        self.mac.busy_out <= self.now.after(self.wire_time(self.tx_fifo()))
    }

    /// Executes a command of the host.
    pub(super) fn send(&mut self, command: &Command, mut frame: Vec<u8>) {
        self.notes.bulk_out_frames += 1;
        self.notes.bulk_out_bytes += frame.len() as u64;
        // One transfer may have a million short frames, or frames to cut into as many.
        if self.mac.outgoing.len() >= 2 * MAX_OUTGOING {
            self.notes.bulk_out_segments += 1;
            self.notes.wire_full += 1;
            return;
        }
        self.notes.csum_frames += u64::from(command.transport_csum || command.mss.is_some());
        self.notes.tags_inserted += u64::from(command.tag != crate::frame::tx::Tag::Keep);
        if command.mss.is_some() {
            self.notes.lso_frames += 1;
            self.notes.lso_largest = self.notes.lso_largest.max(frame.len() as u64);
        }
        if !command.fcs {
            // The host marks the frame as complete.
            let body = frame.len().saturating_sub(FCS_LEN);
            let right = frame.len() >= MIN_FRAME + FCS_LEN && regs::fcs(&frame[..body]).to_le_bytes() == frame[body..];
            frame.truncate(body);
            if !right {
                self.notes.bad_fcs += 1;
                return self.count(stat::TX_FCS, 1);
            }
        }
        let vlan_type = self.register(regs::VLAN_TYPE) as u16;
        let Some(frames) = offload::apply(command, frame, vlan_type) else {
            self.notes.bad_lso += 1;
            return self.raise(int::TXE);
        };
        for mut frame in frames {
            self.notes.bulk_out_segments += 1;
            if COMMAND_LEN + frame.len() > self.tx_fifo() {
                self.notes.too_big += 1;
                self.raise(int::TXE);
                continue;
            }
            if frame.len() < MIN_FRAME {
                frame.resize(MIN_FRAME, 0);
            }
            let loopback = self.register(regs::MAC_CR) & mac_cr::LOOPBACK != 0;
            if !loopback && !self.speed_fits() {
                self.notes.no_link += 1;
                self.count(stat::TX_CARRIER, 1);
                continue;
            }
            let (class, len) = (class(&frame), frame.len() + FCS_LEN);
            self.count(stat::TX_BYTES + class, len as u64);
            self.count(stat::TX_FRAMES + class, 1);
            self.count(stat::TX_SIZES + size_class(len), 1);
            if loopback { self.mac_receive(frame) } else { self.put_on_wire(frame) }
        }
    }

    /// Returns the earliest usable time of a wire that was last busy until `busy`. If frames `waited`, the next one
    /// began when the wire became free, although the model was not advanced then.
    fn free_since(&self, busy: Nanos, waited: bool) -> Nanos {
        busy.max(if waited { Nanos(self.now.0.saturating_sub(CATCH_UP)) } else { self.now })
    }

    /// Catches the outgoing wire up before frames of the host are put on it.
    pub(super) fn catch_up_out(&mut self) {
        self.mac.busy_out = self.free_since(self.mac.busy_out, self.mac.waited_out);
    }

    /// Returns whether the partner has paused the chip.
    pub(super) fn is_paused(&self) -> bool {
        self.mac.paused_until > self.now
    }

    fn put_on_wire(&mut self, frame: Vec<u8>) {
        if self.mac.outgoing_bytes > MAX_OUTGOING_BYTES {
            self.notes.wire_full += 1;
            return;
        }
        self.mac.outgoing_bytes += frame.len();
        self.mac.busy_out = self.mac.busy_out.after(self.wire_time(frame.len()));
        self.mac.outgoing.push_back((self.mac.busy_out, frame));
    }

    /// Sends the partner's queued frames, as far as the wire allows.
    pub(super) fn pump_wire(&mut self) {
        if !self.mac.incoming.is_empty() {
            self.mac.busy_in = self.free_since(self.mac.busy_in, self.mac.waited_in);
        }
        loop {
            self.flow_control();
            if self.mac.partner_paused || self.mac.busy_in > self.now {
                break;
            }
            let Some(frame) = self.mac.incoming.pop_front() else { break };
            self.mac.busy_in = self.mac.busy_in.after(self.wire_time(frame.len()));
            if self.phy.link().is_some() {
                self.mac_receive(frame);
            } else {
                self.notes.unheard += 1;
            }
        }
        self.mac.waited_in = !self.mac.partner_paused && !self.mac.incoming.is_empty();
    }

    pub(super) fn wire_deadline(&self) -> Option<Nanos> {
        let incoming = !self.mac.partner_paused && !self.mac.incoming.is_empty();
        let outgoing = self.mac.outgoing.front().map(|(at, _)| *at).filter(|at| *at > self.now);
        let held = !self.bulk_out.pending.is_empty() && !self.mac_takes_more();
        let paused = (held && self.mac.paused_until > self.now).then_some(self.mac.paused_until);
        [incoming.then_some(self.mac.busy_in), outgoing, paused].into_iter().flatten().min()
    }

    /// Sends a pause frame when the FIFO fills up, and ends the pause when there is room again.
    fn flow_control(&mut self) {
        let levels = self.register(regs::FCT_FLOW);
        let (on, off) = ((levels & 0x7f) as usize * 512, (levels >> 8 & 0x7f) as usize * 512);
        let enabled = self.register(regs::FLOW) & flow::TX_FCEN != 0 && on > 0 && self.phy.link().is_some();
        let is_full = enabled && self.bulk_in.used() > on;
        if is_full && self.config.paced {
            // A pending transfer has taken the frames that came before the model was advanced. Where frames take no
            // time, a pause takes none either.
            self.pump_in();
        }
        let used = self.bulk_in.used();
        let pause = match self.mac.partner_paused {
            false if is_full && used > off => true,
            true if !enabled || used <= off => false,
            _ => return,
        };
        self.mac.partner_paused = pause;
        self.notes.pauses_sent += 1;
        self.count(stat::TX_PAUSE, 1);
    }

    /// Processes a frame from the wire.
    fn mac_receive(&mut self, mut frame: Vec<u8>) {
        let control = self.register(regs::MAC_RX);
        if control & mac_rx::RXEN == 0 || !self.speed_fits() && self.register(regs::MAC_CR) & mac_cr::LOOPBACK == 0 {
            self.notes.unheard += 1;
            return;
        }
        if frame[..6] == PAUSE_ADDRESS && frame[12..16] == PAUSE_HEAD {
            self.count(stat::RX_PAUSE, 1);
            let settings = self.register(regs::FLOW);
            if settings & flow::RX_FCEN != 0 {
                let quanta = u64::from(u16::from_be_bytes([frame[16], frame[17]]));
                let mbit = self.phy.link().map_or(1000, |link| u64::from(link.mbit()));
                self.mac.paused_until = self.now.after(quanta * 512 * 1000 / mbit);
            }
            if settings & flow::FPF == 0 {
                return;
            }
        }
        let vlan_type = (self.register(regs::VLAN_TYPE) as u16).to_be_bytes();
        let tag = (frame[12..14] == vlan_type).then(|| u16::from_be_bytes([frame[14], frame[15]]));
        let len = frame.len() + FCS_LEN;
        let mut most = (control >> mac_rx::MAX_SIZE_SHIFT & mac_rx::MAX_SIZE) as usize;
        if control & mac_rx::VLAN_FSE != 0 && tag.is_some() {
            most += VLAN_LEN;
        }
        let mut flags = 0;
        if len > most {
            self.count(stat::RX_OVERSIZE, 1);
            if self.register(regs::FCT_RX_CTL) & fct::BAD == 0 {
                self.notes.too_long += 1;
                return;
            }
            frame.truncate(most.saturating_sub(FCS_LEN).max(MIN_FRAME));
            flags |= flag::RED | flag::LONG;
        }
        let fault = self.take_fault(|fault| matches!(fault, Fault::RxError(_)));
        if let Some(Fault::RxError(errors)) = fault {
            flags |= flag::RED | errors & (flag::HARD | flag::SOFT);
            for (error, place) in [
                (flag::FCS, stat::RX_FCS),
                (flag::DRIBBLE, stat::RX_ALIGNMENT),
                (flag::LONG, stat::RX_OVERSIZE),
                (flag::RUNT, stat::RX_UNDERSIZE),
            ] {
                if errors & error != 0 {
                    self.count(place, 1);
                }
            }
        } else {
            let class = class(&frame);
            self.count(stat::RX_BYTES + class, len as u64);
            self.count(stat::RX_FRAMES + class, 1);
            self.count(stat::RX_SIZES + size_class(len), 1);
        }
        match self.filter(&frame, tag) {
            Some(matched) => flags |= matched,
            None => return self.notes.filtered += 1,
        }
        self.store(frame, tag, flags);
    }

    /// Returns the header flags of a frame that the receive filter accepts, else `None`.
    fn filter(&self, frame: &[u8], tag: Option<u16>) -> Option<u32> {
        let rules = self.register(regs::RFE_CTL);
        let has = |rule| rules & rule != 0;
        let address: [u8; 6] = frame.get(..6)?.try_into().ok()?;
        let perfect = has(rfe::DA_PERFECT) && self.perfect_filter(address);
        let hit = usize::from(regs::address_hash(address));
        let hashed = self.table[dp::VLAN_WORDS + hit / 32] >> (hit % 32) & 1 == 1;
        let (mut flags, taken) = match class(&address) {
            1 => (flag::BAM, has(rfe::BCAST_EN)),
            2 => (flag::MAM, has(rfe::MCAST_EN) || perfect || has(rfe::MCAST_HASH) && hashed),
            _ => (0, has(rfe::UCAST_EN) || perfect || has(rfe::DA_HASH) && hashed),
        };
        let own = self.register(regs::RX_ADDRL).to_le_bytes();
        let rest = self.register(regs::RX_ADDRH).to_le_bytes();
        if address[..4] == own && address[4..] == rest[..2] {
            flags |= flag::UAM;
        }
        if perfect {
            flags |= flag::PFF;
        }
        let vlan = match tag {
            Some(tag) if has(rfe::VLAN_FILTER) => {
                let id = usize::from(tag & 0xfff);
                self.table[id / 32] >> (id % 32) & 1 == 1
            }
            Some(_) => true,
            None => !has(rfe::DISCARD_UNTAGGED),
        };
        (taken && vlan).then_some(flags)
    }

    fn perfect_filter(&self, address: [u8; 6]) -> bool {
        (0..regs::PERFECT_FILTERS).any(|n| {
            let (high, low) = (self.register(regs::maf_hi(n)), self.register(regs::maf_lo(n)));
            high & regs::MAF_VALID != 0
                && high & regs::MAF_SOURCE == 0
                && low.to_le_bytes() == address[..4]
                && high.to_le_bytes()[..2] == address[4..]
        })
    }

    /// Puts a frame into the FIFO, with the header that describes it.
    fn store(&mut self, mut frame: Vec<u8>, tag: Option<u16>, mut flags: u32) {
        let rules = self.register(regs::RFE_CTL);
        let fcs = regs::fcs(&frame);
        let fcs = if flags & flag::FCS != 0 { !fcs } else { fcs };
        let mut header = Header::default();
        let stripped = tag.is_some() && rules & rfe::VLAN_STRIP != 0;
        if let Some(tag) = tag {
            flags |= flag::TAGGED;
            header.tag = tag;
        }
        if stripped {
            frame.drain(12..12 + VLAN_LEN);
        }
        let place = offload::place(&frame, self.register(regs::VLAN_TYPE) as u16);
        match place {
            Some(place) => {
                flags |= match place.protocol {
                    6 if !place.is_fragment => flag::TCP,
                    17 if !place.is_fragment => flag::UDP,
                    _ => flag::IP,
                };
                flags |= if place.is_v6 { flag::V6 } else { 0 };
                let (ip, transport) = offload::verify(&frame, &place);
                if !ip && rules & rfe::IP_COE != 0 {
                    flags |= flag::RED | flag::ICE;
                }
                if !transport && rules & rfe::TCPUDP_COE != 0 {
                    flags |= flag::RED | flag::TCE;
                }
            }
            None => flags |= flag::ICSM,
        }
        if rules & rfe::COE == 0 || self.take_fault(|fault| matches!(fault, Fault::RxIgnoreChecksum)).is_some() {
            flags |= flag::ICSM;
        }
        // With the tag left in, the chip sums from the wrong offset.
        let from = if tag.is_some() && !stripped { 12 } else { ETHERNET_LEN };
        header.csum = offload::sum(0, &frame[from..]);
        if self.defects.inverted_checksum {
            header.csum = !header.csum;
        }
        header.flags = flags;
        if self.register(regs::MAC_RX) & mac_rx::FCS_STRIP == 0 {
            frame.extend_from_slice(&fcs.to_le_bytes());
        }
        let said_len = match self.take_fault(|fault| matches!(fault, Fault::RxLength(_))) {
            Some(Fault::RxLength(len)) => Some(len),
            _ => None,
        };
        let received = Received { header, bytes: frame, said_len };
        if self.register(regs::FCT_RX_CTL) & fct::EN == 0 {
            self.notes.unheard += 1;
            return;
        }
        // A pending transfer takes frames out of the FIFO while others arrive.
        let size = ((self.register(regs::FCT_RX_FIFO_END) & 0x7f) as usize + 1) * 512;
        if self.bulk_in.used() + received.room() > size {
            self.pump_in();
        }
        if self.bulk_in.used() + received.room() > size {
            self.words[usize::from(regs::FCT_RX_CTL) / 4] |= fct::OVERFLOW | fct::DROP;
            self.raise(int::RDFO);
            self.notes.fifo_full += 1;
            return self.count(stat::RX_DROPPED, 1);
        }
        self.bulk_in.push(received);
    }
}
