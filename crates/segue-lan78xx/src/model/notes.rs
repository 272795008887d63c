//! Counters of the model beside those of the chip.

/// What the chip has no counters for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Control requests answered.
    pub controls: u64,
    /// Bulk-in transfers given back.
    pub bulk_in: u64,
    /// Frames in them.
    pub bulk_in_frames: u64,
    /// Bytes of these frames, with their FCS where it was left on them.
    pub bulk_in_bytes: u64,
    /// Bulk-out transfers taken.
    pub bulk_out: u64,
    /// Frames in them.
    pub bulk_out_frames: u64,
    /// Bytes of these frames.
    pub bulk_out_bytes: u64,
    /// Frames that they became: several of one with segmentation.
    pub bulk_out_segments: u64,
    /// Frames with segmentation among those.
    pub lso_frames: u64,
    /// Bytes of the largest of them.
    pub lso_largest: u64,
    /// Frames with a VLAN tag to be put in.
    pub tags_inserted: u64,
    /// Frames with a checksum to be computed, those with segmentation included.
    pub csum_frames: u64,
    /// Losses of sync on bulk-out.
    pub lost_sync: u64,
    /// Bulk-out transfers that ended with a full packet and without a zero-length one.
    pub unterminated: u64,
    /// Received frames longer than the burst cap, or than the transfer that was there for them.
    pub unfit: u64,
    /// Frames with segmentation that were no TCP.
    pub bad_lso: u64,
    /// Frames from the host that said that they have their FCS, and it was wrong.
    pub bad_fcs: u64,
    /// Frames from the host while there was no link, or one of another speed than the MAC's.
    pub no_link: u64,
    /// Frames from the host that were lost because too many were on the wire already.
    pub wire_full: u64,
    /// Received frames that the filters kept out.
    pub filtered: u64,
    /// Frames that came while there was no device, no link or no receiver switched on.
    pub unheard: u64,
    /// Received frames longer than the MAC was told to take.
    pub too_long: u64,
    /// Received frames for which the FIFO had no room.
    pub fifo_full: u64,
    /// Frames lost by the partner because too many waited.
    pub partner_lost: u64,
    /// Received frames that were in the chip when its FIFO or all of it was reset, or when it was unplugged.
    pub flushed: u64,
    /// Received frames in transfers that were done, and whose host was not there any more.
    pub unclaimed: u64,
    /// Frames from the host that were still on their way out when the chip was unplugged.
    pub cut_off: u64,
    /// Frames from the host that are longer than the transmit FIFO, in which the chip has to have them as a whole.
    pub too_big: u64,
    /// Pause frames sent to the partner, those that end a pause included.
    pub pauses_sent: u64,
    /// Interrupt packets sent.
    pub interrupts: u64,
}
