//! The counters of the chip.

/// Length in bytes of the answer to the request [`READ_STATISTICS`](crate::regs::request::READ_STATISTICS).
pub const STATISTICS_LEN: usize = STATISTICS.len() * 4;

/// Name and range of a counter of the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// The counter's name in the Linux driver's ethtool statistics.
    pub ethtool: &'static str,
    /// The counter's name in segue's JSON and metrics.
    pub name: &'static str,
    /// The counter's largest value before it wraps to zero.
    pub max: u32,
}

const fn counter(ethtool: &'static str, name: &'static str) -> Statistic {
    Statistic { ethtool, name, max: 0xf_ffff }
}

const fn wide(ethtool: &'static str, name: &'static str) -> Statistic {
    Statistic { ethtool, name, max: u32::MAX }
}

/// All counters, in the order of the answer to [`READ_STATISTICS`](crate::regs::request::READ_STATISTICS). Most have 20
/// bits.
pub const STATISTICS: [Statistic; 47] = [
    counter("RX FCS Errors", "rx_fcs_errors"),
    counter("RX Alignment Errors", "rx_alignment_errors"),
    counter("Rx Fragment Errors", "rx_fragment_errors"),
    counter("RX Jabber Errors", "rx_jabber_errors"),
    counter("RX Undersize Frame Errors", "rx_undersize_frame_errors"),
    counter("RX Oversize Frame Errors", "rx_oversize_frame_errors"),
    counter("RX Dropped Frames", "rx_dropped_frames"),
    wide("RX Unicast Byte Count", "rx_unicast_byte_count"),
    wide("RX Broadcast Byte Count", "rx_broadcast_byte_count"),
    wide("RX Multicast Byte Count", "rx_multicast_byte_count"),
    counter("RX Unicast Frames", "rx_unicast_frames"),
    counter("RX Broadcast Frames", "rx_broadcast_frames"),
    counter("RX Multicast Frames", "rx_multicast_frames"),
    counter("RX Pause Frames", "rx_pause_frames"),
    counter("RX 64 Byte Frames", "rx_64_byte_frames"),
    counter("RX 65 - 127 Byte Frames", "rx_65_127_byte_frames"),
    counter("RX 128 - 255 Byte Frames", "rx_128_255_byte_frames"),
    counter("RX 256 - 511 Bytes Frames", "rx_256_511_byte_frames"),
    counter("RX 512 - 1023 Byte Frames", "rx_512_1023_byte_frames"),
    counter("RX 1024 - 1518 Byte Frames", "rx_1024_1518_byte_frames"),
    counter("RX Greater 1518 Byte Frames", "rx_greater_1518_byte_frames"),
    wide("EEE RX LPI Transitions", "eee_rx_lpi_transitions"),
    wide("EEE RX LPI Time", "eee_rx_lpi_time"),
    counter("TX FCS Errors", "tx_fcs_errors"),
    counter("TX Excess Deferral Errors", "tx_excess_deferral_errors"),
    counter("TX Carrier Errors", "tx_carrier_errors"),
    counter("TX Bad Byte Count", "tx_bad_byte_count"),
    counter("TX Single Collisions", "tx_single_collisions"),
    counter("TX Multiple Collisions", "tx_multiple_collisions"),
    counter("TX Excessive Collision", "tx_excessive_collision"),
    counter("TX Late Collisions", "tx_late_collisions"),
    wide("TX Unicast Byte Count", "tx_unicast_byte_count"),
    wide("TX Broadcast Byte Count", "tx_broadcast_byte_count"),
    wide("TX Multicast Byte Count", "tx_multicast_byte_count"),
    counter("TX Unicast Frames", "tx_unicast_frames"),
    counter("TX Broadcast Frames", "tx_broadcast_frames"),
    counter("TX Multicast Frames", "tx_multicast_frames"),
    counter("TX Pause Frames", "tx_pause_frames"),
    counter("TX 64 Byte Frames", "tx_64_byte_frames"),
    counter("TX 65 - 127 Byte Frames", "tx_65_127_byte_frames"),
    counter("TX 128 - 255 Byte Frames", "tx_128_255_byte_frames"),
    counter("TX 256 - 511 Bytes Frames", "tx_256_511_byte_frames"),
    counter("TX 512 - 1023 Byte Frames", "tx_512_1023_byte_frames"),
    counter("TX 1024 - 1518 Byte Frames", "tx_1024_1518_byte_frames"),
    counter("TX Greater 1518 Byte Frames", "tx_greater_1518_byte_frames"),
    wide("EEE TX LPI Transitions", "eee_tx_lpi_transitions"),
    wide("EEE TX LPI Time", "eee_tx_lpi_time"),
];

/// Indices into [`STATISTICS`](super::STATISTICS).
pub mod stat {
    /// Index of the counter of frames received with a wrong FCS.
    pub const RX_FCS: usize = 0;
    /// Index of the counter of frames received with dribble bits (alignment errors).
    pub const RX_ALIGNMENT: usize = 1;
    /// Index of the counter of short frames received with a wrong FCS.
    pub const RX_FRAGMENT: usize = 2;
    /// Index of the counter of long frames received with a wrong FCS.
    pub const RX_JABBER: usize = 3;
    /// Index of the counter of undersize frames received.
    pub const RX_UNDERSIZE: usize = 4;
    /// Index of the counter of oversize frames received.
    pub const RX_OVERSIZE: usize = 5;
    /// Index of the counter of frames dropped because the FIFO was full.
    pub const RX_DROPPED: usize = 6;
    /// Index of the first of three counters of bytes received: unicast, broadcast, multicast.
    pub const RX_BYTES: usize = 7;
    /// Index of the first of three counters of frames received: unicast, broadcast, multicast.
    pub const RX_FRAMES: usize = 10;
    /// Index of the counter of pause frames received.
    pub const RX_PAUSE: usize = 13;
    /// Index of the first of seven counters of frames received, by length.
    pub const RX_SIZES: usize = 14;
    /// Index of the counter of frames sent with a wrong FCS.
    pub const TX_FCS: usize = 23;
    /// Index of the counter of frames lost because there was no link.
    pub const TX_CARRIER: usize = 25;
    /// Index of the first of three counters of bytes sent: unicast, broadcast, multicast.
    pub const TX_BYTES: usize = 31;
    /// Index of the first of three counters of frames sent: unicast, broadcast, multicast.
    pub const TX_FRAMES: usize = 34;
    /// Index of the counter of pause frames sent.
    pub const TX_PAUSE: usize = 37;
    /// Index of the first of seven counters of frames sent, by length.
    pub const TX_SIZES: usize = 38;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_are_47_words_of_20_or_32_bits() {
        assert_eq!(STATISTICS_LEN, 188);
        let wide: Vec<usize> = (0..47).filter(|&n| STATISTICS[n].max == u32::MAX).collect();
        assert_eq!(wide, [7, 8, 9, 21, 22, 31, 32, 33, 45, 46]);
        assert_eq!(STATISTICS[stat::TX_PAUSE].ethtool, "TX Pause Frames");
        assert_eq!(STATISTICS[stat::TX_SIZES].ethtool, "TX 64 Byte Frames");
        assert_eq!(STATISTICS[stat::RX_SIZES + 6].ethtool, "RX Greater 1518 Byte Frames");
    }
}
