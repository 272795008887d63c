//! The internal gigabit PHY, and the link partner at the other end of the cable.

use std::collections::BTreeMap;

use segue::time::Nanos;

use crate::regs::mii;

/// The speed of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkSpeed {
    /// Link speed of 10 Mbit/s.
    M10,
    /// Link speed of 100 Mbit/s.
    M100,
    /// Link speed of 1000 Mbit/s.
    M1000,
}

impl LinkSpeed {
    /// Returns the speed in Mbit/s.
    pub const fn mbit(self) -> u32 {
        match self {
            LinkSpeed::M10 => 10,
            LinkSpeed::M100 => 100,
            LinkSpeed::M1000 => 1000,
        }
    }
}

/// The link partner at the other end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partner {
    /// The partner's fastest speed; it supports the slower ones too, all full duplex.
    pub speed: LinkSpeed,
    /// Whether the partner supports symmetric pause.
    pub pause: bool,
}

/// PHY identifier, which Linux knows under the name LAN88xx.
const ID: [u16; 2] = [0x0007, 0xc132];
/// Abilities in the status register: 10, 100, autonegotiation, extended status; the link bit comes on top.
const STATUS: u16 = 0x7949;
const CONTROL_AFTER_RESET: u16 = mii::BMCR_AN_ENABLE | mii::BMCR_FULL_DUPLEX | mii::BMCR_SPEED1000;
const ADVERTISE_AFTER_RESET: u16 = 0x01e1;
/// First of the registers that exist once per page.
const PAGED: u8 = 0x10;

#[derive(Debug)]
pub(super) struct Phy {
    /// Registers below [`PAGED`], and the interrupt registers.
    words: [u16; 32],
    pages: BTreeMap<(u16, u8), u16>,
    mmd: BTreeMap<(u16, u16), u16>,
    mmd_address: u16,
    partner: Option<Partner>,
    /// Duration of autonegotiation, nanoseconds.
    delay: u64,
    /// Time at which autonegotiation ends.
    negotiated_at: Option<Nanos>,
    link: Option<LinkSpeed>,
    /// Whether the link was down since the status was last read.
    was_down: bool,
}

impl Phy {
    pub(super) fn new(partner: Option<Partner>, delay: u64, now: Nanos) -> Phy {
        let mut phy = Phy {
            words: [0; 32],
            pages: BTreeMap::new(),
            mmd: BTreeMap::new(),
            mmd_address: 0,
            partner,
            delay,
            negotiated_at: None,
            link: None,
            was_down: true,
        };
        phy.reset(now);
        phy
    }

    pub(super) fn reset(&mut self, now: Nanos) {
        self.words = [0; 32];
        self.words[usize::from(mii::BMCR)] = CONTROL_AFTER_RESET;
        self.words[usize::from(mii::ADVERTISE)] = ADVERTISE_AFTER_RESET;
        self.words[usize::from(mii::CTRL1000)] = mii::ADV_FULL1000;
        self.pages.clear();
        self.mmd.clear();
        self.negotiate(now);
    }

    /// Returns the link's speed, or `None` while the link is down.
    pub(super) fn link(&self) -> Option<LinkSpeed> {
        self.link
    }

    /// Returns the time of the next change that happens without an access.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.negotiated_at
    }

    /// Connects a link partner, or disconnects the cable.
    pub(super) fn set_partner(&mut self, partner: Option<Partner>, now: Nanos) {
        self.partner = partner;
        self.negotiate(now);
    }

    /// Takes the link down and restarts autonegotiation.
    fn negotiate(&mut self, now: Nanos) {
        self.set_link(None);
        let powered = self.words[usize::from(mii::BMCR)] & (mii::BMCR_POWER_DOWN | mii::BMCR_ISOLATE) == 0;
        self.negotiated_at = (powered && self.partner.is_some()).then(|| now.after(self.delay));
    }

    fn set_link(&mut self, link: Option<LinkSpeed>) {
        if link == self.link {
            return;
        }
        self.was_down |= link.is_none();
        self.link = link;
        let done = if link.is_some() { mii::INT_AN_DONE } else { 0 };
        self.words[usize::from(mii::INT_STATUS)] |= mii::INT_LINK | done;
    }

    /// Completes autonegotiation that is due. Returns whether the interrupt line is active.
    pub(super) fn advance(&mut self, now: Nanos) -> bool {
        if self.negotiated_at.is_some_and(|at| at <= now) {
            self.negotiated_at = None;
            self.set_link(self.agreed());
        }
        self.interrupt()
    }

    fn interrupt(&self) -> bool {
        let mask = self.words[usize::from(mii::INT_MASK)];
        mask & mii::INT_ENABLE != 0 && self.words[usize::from(mii::INT_STATUS)] & mask & !mii::INT_ENABLE != 0
    }

    /// Returns the fastest speed that both link partners support.
    fn agreed(&self) -> Option<LinkSpeed> {
        let partner = self.partner?;
        let control = self.words[usize::from(mii::BMCR)];
        if control & mii::BMCR_AN_ENABLE == 0 {
            let forced = match (control & mii::BMCR_SPEED1000 != 0, control & mii::BMCR_SPEED100 != 0) {
                (true, _) => LinkSpeed::M1000,
                (_, true) => LinkSpeed::M100,
                _ => LinkSpeed::M10,
            };
            return (forced <= partner.speed).then_some(forced);
        }
        let advertised = self.words[usize::from(mii::ADVERTISE)];
        let own = [
            (LinkSpeed::M1000, self.words[usize::from(mii::CTRL1000)] & mii::ADV_FULL1000 != 0),
            (LinkSpeed::M100, advertised & mii::FULL100 != 0),
            (LinkSpeed::M10, advertised & mii::FULL10 != 0),
        ];
        own.into_iter().find(|(speed, has)| *has && *speed <= partner.speed).map(|(speed, _)| speed)
    }

    pub(super) fn read(&mut self, register: u8) -> u16 {
        let page = self.words[usize::from(mii::PAGE)];
        match register {
            mii::ID1 => ID[0],
            mii::ID2 => ID[1],
            mii::BMSR => {
                let mut status = STATUS;
                if self.link.is_some() {
                    status |= mii::BMSR_AN_COMPLETE | if self.was_down { 0 } else { mii::BMSR_LINK };
                }
                self.was_down = self.link.is_none();
                status
            }
            mii::LPA => match self.partner.filter(|_| self.link.is_some()) {
                None => 0,
                Some(partner) => {
                    let pause = if partner.pause { mii::PAUSE | mii::PAUSE_ASYM } else { 0 };
                    let fast = if partner.speed >= LinkSpeed::M100 { mii::FULL100 | mii::HALF100 } else { 0 };
                    0xc001 | pause | fast | mii::FULL10 | mii::HALF10
                }
            },
            mii::EXPANSION => 0x0004,
            mii::STAT1000 => match self.partner.filter(|_| self.link.is_some()) {
                Some(Partner { speed: LinkSpeed::M1000, .. }) => 0x3000 | mii::LPA_FULL1000,
                _ => 0,
            },
            mii::ESTATUS => 0x3000,
            mii::MMD_DATA => {
                let (function, device) = self.mmd_control();
                if function == 0 {
                    return self.mmd_address;
                }
                self.mmd.get(&(device, self.mmd_address)).copied().unwrap_or(0)
            }
            mii::INT_STATUS if page == 0 => {
                let line = if self.interrupt() { mii::INT_ENABLE } else { 0 };
                line | std::mem::take(&mut self.words[usize::from(mii::INT_STATUS)])
            }
            PAGED.. if page != 0 && register != mii::PAGE => self.pages.get(&(page, register)).copied().unwrap_or(0),
            _ => self.words.get(usize::from(register)).copied().unwrap_or(0xffff),
        }
    }

    pub(super) fn write(&mut self, register: u8, value: u16, now: Nanos) {
        let page = self.words[usize::from(mii::PAGE)];
        match register {
            mii::BMCR if value & mii::BMCR_RESET != 0 => self.reset(now),
            mii::BMCR => {
                let before = self.words[usize::from(mii::BMCR)];
                self.words[usize::from(mii::BMCR)] = value & !mii::BMCR_AN_RESTART;
                let restart = value & mii::BMCR_AN_RESTART != 0 && value & mii::BMCR_AN_ENABLE != 0;
                if restart || before != value & !mii::BMCR_AN_RESTART {
                    self.negotiate(now);
                }
            }
            mii::BMSR | mii::ID1 | mii::ID2 | mii::LPA | mii::EXPANSION | mii::STAT1000 | mii::ESTATUS => {}
            mii::MMD_DATA => {
                let (function, device) = self.mmd_control();
                if function == 0 {
                    self.mmd_address = value;
                } else {
                    // A driver uses a handful of registers; a host that writes all of them must not fill memory.
                    if self.mmd.len() < 1024 || self.mmd.contains_key(&(device, self.mmd_address)) {
                        self.mmd.insert((device, self.mmd_address), value);
                    }
                }
            }
            mii::INT_STATUS if page == 0 => {}
            PAGED.. if page != 0 && register != mii::PAGE => {
                if self.pages.len() < 1024 || self.pages.contains_key(&(page, register)) {
                    self.pages.insert((page, register), value);
                }
            }
            _ => {
                if let Some(word) = self.words.get_mut(usize::from(register)) {
                    *word = value;
                }
            }
        }
    }

    fn mmd_control(&self) -> (u16, u16) {
        let control = self.words[usize::from(mii::MMD_CONTROL)];
        (control >> 14, control & 0x1f)
    }
}
