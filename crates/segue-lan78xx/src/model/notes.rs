//! The model's own counters, in addition to those of the chip.

/// Counts of events that the chip itself has no counters for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Number of control requests answered.
    pub controls: u64,
    /// Number of bulk-in transfers completed.
    pub bulk_in: u64,
    /// Number of frames in completed bulk-in transfers.
    pub bulk_in_frames: u64,
    /// Number of bytes of frames in completed bulk-in transfers, including their FCS unless it was stripped.
    pub bulk_in_bytes: u64,
    /// Number of bulk-out transfers processed.
    pub bulk_out: u64,
    /// Number of frames in bulk-out transfers.
    pub bulk_out_frames: u64,
    /// Number of bytes of frames in bulk-out transfers.
    pub bulk_out_bytes: u64,
    /// Number of frames on the wire made from the frames in bulk-out transfers: several for one with segmentation.
    pub bulk_out_segments: u64,
    /// Number of frames from the host with segmentation.
    pub lso_frames: u64,
    /// Length in bytes of the largest frame with segmentation.
    pub lso_largest: u64,
    /// Number of frames from the host with a VLAN tag to insert or replace.
    pub tags_inserted: u64,
    /// Number of frames from the host with a checksum to compute, including those with segmentation.
    pub csum_frames: u64,
    /// Number of losses of sync on bulk-out.
    pub lost_sync: u64,
    /// Number of bulk-out transfers that ended with a full packet and no zero-length packet.
    pub unterminated: u64,
    /// Number of received frames longer than the burst cap or than the transfer to fill.
    pub unfit: u64,
    /// Number of frames from the host with segmentation that were not TCP.
    pub bad_lso: u64,
    /// Number of frames from the host marked as having an FCS, with a wrong one.
    pub bad_fcs: u64,
    /// Number of frames from the host without a link, or with a link whose speed differs from the MAC's.
    pub no_link: u64,
    /// Number of frames from the host lost because too many were on the wire already.
    pub wire_full: u64,
    /// Number of received frames rejected by the filters.
    pub filtered: u64,
    /// Number of frames from the partner that arrived without a device, a link or an enabled receiver.
    pub unheard: u64,
    /// Number of received frames longer than the MAC's limit.
    pub too_long: u64,
    /// Number of received frames lost because the FIFO was full.
    pub fifo_full: u64,
    /// Number of frames lost by the partner because its queue was full.
    pub partner_lost: u64,
    /// Number of received frames lost in the chip when its FIFO or the whole chip was reset, or when it was unplugged.
    pub flushed: u64,
    /// Number of received frames in completed transfers whose host had disconnected.
    pub unclaimed: u64,
    /// Number of frames from the host still in transmission when the chip was unplugged.
    pub cut_off: u64,
    /// Number of frames from the host longer than the transmit FIFO, which has to hold a frame as a whole.
    pub too_big: u64,
    /// Number of pause frames sent to the partner, those that end a pause included.
    pub pauses_sent: u64,
    /// Number of interrupt packets sent.
    pub interrupts: u64,
}
