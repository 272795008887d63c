//! The receive side: submits transfers to the chip, takes frames out of them, and holds back the frames beyond a poll's
//! budget.

use std::ops::Range;

use segue::checksum::Sum;
use segue::packet::{Csum, Frag, Frame, Start, Tunnels, Unit};
use segue::wire::ethernet;
use segue_port::{Page, PageMut, Polled, Received, RxBatch};

use crate::frame::rx::{Frames, Header, flag};
use crate::frame::{ETHERNET_LEN, VLAN_LEN};
use crate::regs::endpoint;
use crate::usb::{self, Done, Request, Transfer, Transport};

use super::{Copying, Driver, Resubmit};

/// Alignment of frames in a page, bytes.
const ALIGN: usize = 64;
const TAG_TYPE: [u8; 2] = [0x81, 0x00];

/// Header of a frame from the chip, and the frame's range in a page.
type Found = (Header, std::ops::Range<usize>);

impl<T: Transport> Driver<T> {
    /// Submits every idle transfer to the chip, as far as there is time.
    pub(super) fn fill(&mut self) {
        if !self.is_up || self.gone || self.rx.halted || self.is_suspended() {
            return;
        }
        while let Some(transfer) = self.rx.idle.pop_if(|_| !self.chip.is_late()) {
            let (tag, len) = (self.rx.next_tag, self.config.rx_transfer_len);
            self.rx.next_tag = tag.wrapping_add(1);
            self.rx.lent += 1;
            let request = Request { endpoint: endpoint::BULK_IN, tag, len, zero_packet: false };
            self.chip.usb.submit(transfer.lend(request));
        }
    }

    pub(super) fn reap_in(&mut self, transfer: Transfer<Done>) {
        self.rx.lent = self.rx.lent.saturating_sub(1);
        if transfer.result().is_ok() {
            self.rx.clears = 0;
        }
        match transfer.result() {
            // The chip sends an empty transfer when it starts, which has no meaning.
            Ok(0) => self.rx.idle.push(transfer.recycle()),
            Ok(_) => {
                self.numbers.rx_transfers += 1;
                self.rx.done.push_back(transfer);
                // Completed transfers that were not parsed are bounded by the number that the chip has at a time.
                let may = self.rx.done.len() < 2 * self.rx.total;
                if self.config.resubmit == Resubmit::OnCompletion && may {
                    if let Ok(fresh) = Transfer::allocate(self.config.rx_transfer_len) {
                        self.rx.idle.push(fresh);
                        self.fill();
                    } else {
                        // The used memory goes back instead, once it was parsed.
                        self.numbers.no_memory += 1;
                    }
                }
            }
            Err(error) => {
                self.rx.idle.push(transfer.recycle());
                match error {
                    usb::Error::Cancelled => {}
                    usb::Error::Gone => self.lose(),
                    usb::Error::Stall => {
                        self.numbers.rx_errors += 1;
                        self.rx.halted = true;
                    }
                    _ => {
                        self.numbers.rx_errors += 1;
                        self.suspend_submissions(error);
                    }
                }
            }
        }
    }

    /// Drops received frames that were not delivered yet.
    pub(super) fn forget_received(&mut self) {
        let dropped = self.rx.forget(self.config.checksum_errors);
        self.counters.drops.add_many(segue_port::Drop::DeviceDown, dropped);
    }

    /// Delivers received packets, at most `budget`.
    pub(super) fn poll(&mut self, into: &mut RxBatch, budget: usize) -> Polled {
        let budget = budget.min(self.config.budget.unwrap_or(usize::MAX)).max(1);
        // A driver with a budget of its own also keeps the packets that exceed it.
        let most = if self.config.budget.is_some() { budget } else { usize::MAX };
        self.numbers.polls += 1;
        let mut delivered = 0;
        while delivered < budget
            && let Some(packet) = self.rx.overflow.pop_front()
        {
            into.packets.push_back(packet);
            delivered += 1;
        }
        while delivered < budget
            && let Some(transfer) = self.rx.done.pop_front()
        {
            let Some(page) = into.pages.take() else {
                self.rx.done.push_front(transfer);
                return Polled::Starved;
            };
            self.parse(transfer.received(), page, into, (&mut delivered, most));
            // Not resubmitted where a newly allocated transfer has taken its place at completion.
            if self.rx.idle.len() + self.rx.lent < self.rx.total {
                self.rx.idle.push(transfer.recycle());
                self.fill();
            }
        }
        if delivered >= budget {
            self.numbers.full_budgets += 1;
        }
        self.numbers.overflows += delivered.saturating_sub(budget) as u64;
        if self.rx.waiting() { Polled::More } else { Polled::Idle }
    }

    /// Parses a transfer; packets beyond the budget go to the overflow queue.
    fn parse(&mut self, bytes: &[u8], mut page: PageMut, into: &mut RxBatch, (delivered, most): (&mut usize, usize)) {
        let whole = self.config.copying == Copying::WholeTransfer;
        let room = page.bytes_mut();
        let mut found: Vec<Found> = Vec::with_capacity(into_count(bytes.len()));
        let mut end = 0;
        if whole {
            let len = bytes.len().min(room.len());
            room[..len].copy_from_slice(&bytes[..len]);
            end = len;
        }
        for one in Frames::new(bytes, self.config.checksum_errors) {
            let (header, range) = match one {
                Ok(one) => one,
                Err(why) => {
                    self.malformed.add(why);
                    continue;
                }
            };
            let frame = &bytes[range.clone()];
            let tag = header.has(flag::TAGGED) && self.config.strip_tags;
            if whole && !tag {
                found.push((header, range));
                continue;
            }
            let len = frame.len() + if tag { VLAN_LEN } else { 0 };
            let start = end.next_multiple_of(ALIGN);
            // A page has room for four times the largest transfer.
            let Some(place) = room.get_mut(start..start + len) else {
                self.counters.drops.add(segue_port::Drop::NoPage);
                continue;
            };
            if tag {
                let (addresses, rest) = frame.split_at(ethernet::TYPE);
                let (front, behind) = place.split_at_mut(ethernet::TYPE + VLAN_LEN);
                front[..ethernet::TYPE].copy_from_slice(addresses);
                front[ethernet::TYPE..][..2].copy_from_slice(&TAG_TYPE);
                front[ethernet::TYPE + 2..].copy_from_slice(&header.tag.to_be_bytes());
                behind.copy_from_slice(rest);
            } else {
                place.copy_from_slice(frame);
            }
            end = start + len;
            found.push((header, start..end));
        }
        let page = page.freeze(end);
        for (header, range) in found {
            let len = range.len();
            let bytes = Frag::new(page.clone(), range);
            let frame = Frame { bytes, start: Start::Ethernet, csum: Csum::Unknown };
            let received = self.with_sum(&header, frame, into);
            let rx = &mut self.counters.rx;
            (rx.packets, rx.segments, rx.bytes) = (rx.packets + 1, rx.segments + 1, rx.bytes + len as u64);
            if *delivered < most {
                *delivered += 1;
                into.packets.push_back(received);
            } else {
                self.numbers.overflows += 1;
                self.rx.overflow.push_back(received);
            }
        }
    }

    /// Returns a frame with the chip's sum as its checksum state, if the sum is usable. Only frames other than plain
    /// TCP and UDP are parsed for it.
    fn with_sum(&mut self, header: &Header, mut frame: Frame<Page>, into: &mut RxBatch) -> Received {
        let tagged = header.has(flag::TAGGED);
        if header.has(flag::ICSM | flag::SOFT) || tagged && !self.config.strip_tags {
            return Received::Frame(frame);
        }
        // The chip sums from the end of the Ethernet header, without the tag that it stripped.
        let from = ETHERNET_LEN + if tagged { VLAN_LEN } else { 0 };
        let len = frame.len();
        if let Some(ip) = frame.plain_ip() {
            if let Some(sum) = sum_from_ip(header.csum, frame.bytes.bytes(), from..ip, len) {
                frame.csum = Csum::Complete(sum);
                self.numbers.rx_csum += 1;
            }
            return Received::Frame(frame);
        }
        let mut packet = frame.parse(&Tunnels::NONE, &mut into.pool);
        if let Some(ip) = packet.layout.outer_ip()
            && packet.offload.unit == Unit::Whole(Csum::Unknown)
            && packet.layout.transport().is_some()
            && let Some(sum) = sum_from_ip(header.csum, packet.head.bytes(), from..ip.start(), len)
        {
            packet.offload.unit = Unit::Whole(Csum::Complete(sum));
            self.numbers.rx_csum += 1;
        }
        Received::Packet(packet)
    }
}

/// Returns the sum of all bytes of a frame of `len` bytes from its IP header on. `csum` is the chip's sum, which also
/// covers `skipped`, a second VLAN tag in front of IP. `front` are the frame's first bytes.
fn sum_from_ip(csum: u16, front: &[u8], skipped: Range<usize>, len: usize) -> Option<Sum> {
    let mut sum = Sum::ZERO;
    sum.add_u16(csum);
    let ip = skipped.end;
    sum.remove(Sum::of(front.get(skipped)?));
    let mut whole = Sum::ZERO;
    whole.append(sum, len - ip);
    Some(whole)
}

/// Returns the expected number of frames in a transfer of `len` bytes.
fn into_count(len: usize) -> usize {
    (len / 1024).max(4)
}
