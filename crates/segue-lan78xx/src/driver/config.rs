//! The factors of the driver, each of which can be set by itself, and the two sets of them that Linux had.

use crate::frame::rx::ChecksumErrors;
use crate::usb::Speed;

/// What frames of a bulk-in transfer are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Each frame for itself; the transfer goes back to the chip.
    EachFrame,
    /// The whole transfer at once, and its frames share that memory.
    WholeTransfer,
}

/// When the chip gets a bulk-in transfer again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resubmit {
    /// Once its frames were taken out, by the poll.
    InPoll,
    /// As soon as it is done, with fresh memory.
    OnCompletion,
}

/// When a bulk-out transfer that is not full is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// When no other is on its way; until then it is filled further.
    WhenIdle,
    /// At once.
    Always,
}

/// All factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bulk-in transfers.
    pub rx_transfers: usize,
    /// Bytes of each; a multiple of the largest packet.
    pub rx_transfer_len: usize,
    /// How frames are taken out.
    pub copying: Copying,
    /// When transfers go back.
    pub resubmit: Resubmit,
    /// Most packets of one poll; the caller's budget counts too. With `None` that one alone counts, and what the last
    /// transfer of a poll holds beyond it is handed over as well.
    pub budget: Option<usize>,
    /// Bulk-out transfers.
    pub tx_transfers: usize,
    /// Bytes of each.
    pub tx_transfer_len: usize,
    /// Whether memory for bulk-out is allocated for each transfer.
    pub tx_fresh: bool,
    /// Whether a train for the chip to cut shares a transfer with other frames.
    pub pack_trains: bool,
    /// When a transfer that is not full is sent.
    pub kick: Kick,
    /// Bytes of the largest train that the chip cuts; `None` leaves cutting to software.
    pub lso: Option<usize>,
    /// Whether received packets are to be joined behind the driver. The driver does not do it: this is for its user.
    pub gro: bool,
    /// BURST_CAP: most packets of a bulk-in transfer.
    pub burst_cap: u8,
    /// BULK_IN_DLY: cycles of 60 MHz for which a bulk-in transfer waits for more.
    pub bulk_in_delay: u16,
    /// What happens to frames with a wrong checksum.
    pub checksum_errors: ChecksumErrors,
    /// Whether the chip takes VLAN tags out, which its checksums need. They are put in again before delivery.
    pub strip_tags: bool,
    /// Whether pause frames are offered to the partner.
    pub pause: bool,
    /// Whether energy efficient Ethernet is offered.
    pub eee: bool,
    /// Largest packet, 68 to 9000.
    pub mtu: usize,
    /// The adapter's address where it is not to be its own.
    pub mac: Option<[u8; 6]>,
    /// What the platform says of its address: it counts where the registers have none, before EEPROM and OTP memory.
    pub platform_mac: Option<[u8; 6]>,
}

/// What a transfer needs besides a train's bytes, with an Ethernet header: Linux's `TX_SKB_MIN_LEN`.
const TRAIN_OVERHEAD: usize = 22;
/// Bytes that the older driver packed into a transfer.
const PACKED: usize = 9000;
/// Room that it kept for headers in a train.
const MAX_HEADER: usize = 128;

impl Config {
    /// The form with NAPI (Linux 5.17 and later): pools, filled transfers, a budget.
    pub const fn napi(speed: Speed) -> Config {
        let (transfers, len, burst_cap) = match speed {
            Speed::Super => (30, 32 << 10, 32),
            Speed::High => (10, 16 << 10, 32),
            Speed::Full => (10, 10 << 10, 160),
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
            burst_cap,
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

    /// The form before (Linux up to 5.16): a fresh transfer for each completion, small ones out, no budget, no joining.
    pub const fn standard(speed: Speed) -> Config {
        // Its queues were limited in bytes, 60 frames of an Ethernet's size.
        let (rx, tx, burst_cap) = match speed {
            Speed::Super => (4, 4, 12),
            Speed::High => (7, 59, 24),
            Speed::Full => (4, 4, 192),
        };
        Config {
            rx_transfers: rx,
            rx_transfer_len: 12 << 10,
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
            burst_cap,
            bulk_in_delay: 0x0800,
            ..Config::napi(speed)
        }
    }
}
