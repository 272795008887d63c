//! Vendor requests and endpoint addresses.

/// Vendor requests; all are addressed to the device with `wValue` 0.
pub mod request {
    /// Request that writes the register `wIndex`, 4 bytes.
    pub const WRITE_REGISTER: u8 = 0xa0;
    /// Request that reads the register `wIndex`, 4 bytes.
    pub const READ_REGISTER: u8 = 0xa1;
    /// Request that reads all statistics, [`STATISTICS_LEN`](crate::regs::STATISTICS_LEN) bytes.
    pub const READ_STATISTICS: u8 = 0xa2;
    /// `bmRequestType` of vendor requests to the device, host to device.
    pub const OUT: u8 = 0x40;
    /// `bmRequestType` of vendor requests to the device, device to host.
    pub const IN: u8 = 0xc0;
}

/// Addresses of the USB endpoints.
pub mod endpoint {
    /// Bulk-in endpoint: received frames.
    pub const BULK_IN: u8 = 0x81;
    /// Bulk-out endpoint: frames to send.
    pub const BULK_OUT: u8 = 0x02;
    /// Interrupt endpoint: event notifications.
    pub const INTERRUPT: u8 = 0x83;
    /// Length in bytes of an interrupt packet, which holds [`INT_STS`](crate::regs::INT_STS).
    pub const INTERRUPT_LEN: usize = 4;
}
