//! The driver's functions that set the chip's receive filter.

use crate::regs::{self, dp, rfe};
use crate::usb::Transport;

use super::chip::Result;
use super::{Driver, Filter};

impl<T: Transport> Driver<T> {
    /// Sets the receive filter of the chip.
    ///
    /// # Errors
    /// See [`Error`](super::Error).
    pub fn set_filter(&mut self, filter: Filter) -> Result<()> {
        self.filter = filter;
        self.apply_filter()
    }

    pub(super) fn apply_filter(&mut self) -> Result<()> {
        let filter = &self.filter;
        let mut rules = rfe::COE | rfe::BCAST_EN | rfe::DA_PERFECT;
        if self.config.strip_tags {
            rules |= rfe::VLAN_STRIP;
        }
        if filter.promiscuous {
            rules |= rfe::UCAST_EN | rfe::MCAST_EN;
        }
        if filter.all_multicast {
            rules |= rfe::MCAST_EN;
        }
        let exact = usize::from(regs::PERFECT_FILTERS - 1);
        let mut hash = [0_u32; dp::HASH_WORDS];
        for address in filter.multicast.iter().skip(exact) {
            let bit = usize::from(regs::address_hash(*address));
            hash[bit / 32] |= 1 << (bit % 32);
            rules |= rfe::MCAST_HASH;
        }
        let mut vlans = [0_u32; dp::VLAN_WORDS];
        let only_some = filter.vlans.as_ref().filter(|_| !filter.promiscuous);
        for id in only_some.into_iter().flatten().map(|id| usize::from(id & 0xfff)) {
            vlans[id / 32] |= 1 << (id % 32);
            rules |= rfe::VLAN_FILTER;
        }
        if only_some.is_some() {
            // Frames with a priority and VLAN id 0 belong to no VLAN.
            vlans[0] |= 1;
            rules |= rfe::VLAN_FILTER;
        }
        let addresses: Vec<[u8; 6]> = filter.multicast.iter().take(exact).copied().collect();
        self.chip.write_table(dp::VLAN_WORDS, &hash)?;
        if rules & rfe::VLAN_FILTER != 0 {
            self.chip.write_table(0, &vlans)?;
        }
        for n in 1..regs::PERFECT_FILTERS {
            // The filter is invalid while it is being written.
            self.chip.write(regs::maf_hi(n), 0)?;
            if let Some(mac) = addresses.get(usize::from(n) - 1) {
                self.chip.write(regs::maf_lo(n), u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]))?;
                let high = u32::from_le_bytes([mac[4], mac[5], 0, 0]);
                self.chip.write(regs::maf_hi(n), high | regs::MAF_VALID)?;
            }
        }
        self.chip.write(regs::RFE_CTL, rules)
    }
}
