//! Faults that can be injected into the model.

/// A fault that happens once, at the next occasion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next frame from the wire is delivered with these error bits of [`crate::frame::rx::flag`], RED added.
    RxError(u32),
    /// The header of the next frame from the wire states this length.
    RxLength(u16),
    /// The next frame from the wire is delivered with ICSM: its checksum field is to be ignored.
    RxIgnoreChecksum,
    /// The next bulk-in transfer is cut to this many bytes.
    ShortTransfer(usize),
    /// The next bulk-in transfer is a zero-length packet.
    EmptyTransfer,
    /// The next bulk-in transfer has these bytes.
    RawTransfer(Vec<u8>),
    /// The next bulk-in transfer is answered with a stall, and the endpoint is halted.
    BulkInStall,
    /// The next bulk-out transfer is answered with a stall, and the endpoint is halted.
    BulkOutStall,
    /// The next control request is answered with a stall.
    ControlStall,
    /// The next interrupt packet has this many bytes.
    InterruptLength(usize),
    /// The device is unplugged after this many more submitted transfers.
    UnplugAfter(u32),
}

/// Permanent defects of the chip. [`Defects::default`] is a chip without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    /// The checksum field of received frames is inverted.
    pub inverted_checksum: bool,
    /// Received frames are placed two bytes too far.
    pub shifted_frames: bool,
}
