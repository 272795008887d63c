//! Configuration parameters of the driver, each of which can be set independently, and the two combinations of Linux's
//! driver.

use crate::frame::rx::ChecksumErrors;
use crate::usb::Speed;

/// The method by which frames are copied out of a bulk-in transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Each frame is copied by itself, and the transfer goes back to the chip.
    EachFrame,
    /// The whole transfer is copied at once, and its frames share that memory.
    WholeTransfer,
}

/// The time at which a bulk-in transfer is submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resubmit {
    /// Transfers are resubmitted by the poll, after their frames were taken out.
    InPoll,
    /// Transfers are resubmitted at their completion, with newly allocated memory.
    OnCompletion,
}

/// The time at which a partly filled bulk-out transfer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// A transfer is submitted when no other one is under way; until then it is filled further.
    WhenIdle,
    /// A transfer is submitted immediately.
    Always,
}

/// The configuration of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of bulk-in transfers.
    pub rx_transfers: usize,
    /// Length in bytes of each bulk-in transfer; a multiple of the largest USB packet.
    pub rx_transfer_len: usize,
    /// The method by which frames are copied out of a transfer.
    pub copying: Copying,
    /// The time at which bulk-in transfers are submitted again.
    pub resubmit: Resubmit,
    /// Maximum number of packets of one poll, in addition to the caller's budget. With `None` only the caller's budget
    /// applies, and packets of the last transfer of a poll are delivered even beyond it.
    pub budget: Option<usize>,
    /// Number of bulk-out transfers.
    pub tx_transfers: usize,
    /// Length in bytes of each bulk-out transfer.
    pub tx_transfer_len: usize,
    /// Whether memory is allocated for each bulk-out transfer.
    pub tx_fresh: bool,
    /// Whether a train that the chip segments may share a transfer with other frames.
    pub pack_trains: bool,
    /// The time at which a partly filled bulk-out transfer is sent.
    pub kick: Kick,
    /// Bytes of the largest train that the chip segments; with `None` software segments all trains.
    pub lso: Option<usize>,
    /// Whether received packets are to be merged by GRO. The driver does not do it; this tells its user.
    pub gro: bool,
    /// BURST_CAP: size limit of a bulk-in transfer, in bytes, so that it holds on a bus of any speed.
    pub burst_cap: usize,
    /// BULK_IN_DLY: time for which a bulk-in transfer waits for more frames, in cycles of 60 MHz.
    pub bulk_in_delay: u16,
    /// The treatment of frames with a wrong checksum.
    pub checksum_errors: ChecksumErrors,
    /// Whether the chip strips VLAN tags, which its checksums need. The driver inserts them again before delivery.
    pub strip_tags: bool,
    /// Whether pause frames are advertised to the link partner.
    pub pause: bool,
    /// Whether Energy-Efficient Ethernet is advertised.
    pub eee: bool,
    /// The MTU, 68 to 9000.
    pub mtu: usize,
    /// The MAC address to set instead of the adapter's own.
    pub mac: Option<[u8; 6]>,
    /// The MAC address that the platform provides. It is used if the registers have none, before EEPROM and OTP memory.
    pub platform_mac: Option<[u8; 6]>,
}

/// Number of bytes of a transfer that a train with an Ethernet header cannot use: Linux's `TX_SKB_MIN_LEN`.
const TRAIN_OVERHEAD: usize = 22;
/// Length in bytes of the old driver's bulk-in transfers.
const RX_LEN: usize = 12 << 10;
/// Number of bytes that the old driver packed into a transfer.
const PACKED: usize = 9000;
/// Number of bytes that the old driver reserved for the headers of a train.
const MAX_HEADER: usize = 128;

impl Config {
    /// Returns the configuration of the driver form with NAPI (Linux 5.17 and later): pools of transfers, filled
    /// transfers, a budget.
    pub const fn napi(speed: Speed) -> Config {
        let (transfers, len) = match speed {
            Speed::Super => (30, 32 << 10),
            Speed::High => (10, 16 << 10),
            Speed::Full => (10, 10 << 10),
        };
        Config {
            rx_transfers: transfers,
            rx_transfer_len: len,
            copying: Copying::EachFrame,
            resubmit: Resubmit::InPoll,
            budget: Some(64),
            tx_transfers: 10,
            tx_transfer_len: len,
            tx_fresh: false,
            pack_trains: true,
            kick: Kick::WhenIdle,
            lso: Some(len - TRAIN_OVERHEAD),
            gro: true,
            burst_cap: len,
            bulk_in_delay: 0x2000,
            checksum_errors: ChecksumErrors::Pass,
            strip_tags: true,
            pause: true,
            eee: false,
            mtu: 1500,
            mac: None,
            platform_mac: None,
        }
    }

    /// Returns the configuration of the driver form before NAPI (Linux up to 5.16): memory allocated for each
    /// completion, small bulk-out transfers, no budget, no GRO.
    pub const fn standard(speed: Speed) -> Config {
        // Its queues were limited in bytes, to 60 full Ethernet frames.
        let (rx, tx) = match speed {
            Speed::Super | Speed::Full => (4, 4),
            Speed::High => (7, 59),
        };
        Config {
            rx_transfers: rx,
            rx_transfer_len: RX_LEN,
            copying: Copying::WholeTransfer,
            resubmit: Resubmit::OnCompletion,
            budget: None,
            tx_transfers: tx,
            tx_transfer_len: PACKED,
            tx_fresh: true,
            pack_trains: false,
            kick: Kick::Always,
            lso: Some(PACKED - MAX_HEADER),
            gro: false,
            burst_cap: RX_LEN,
            bulk_in_delay: 0x0800,
            ..Config::napi(speed)
        }
    }
}
