//! The cost of each piece of a host's work, and the parameters of a computer.

/// Processor time of each piece of a host's work, nanoseconds on a core of speed 100.
///
/// The costs are the same for all targets and all forms of the driver. They are round figures for a desktop core of
/// 2016 at 3.7 GHz, of the size that profiles of Linux's network path show; none is taken from the results that the
/// simulation is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Cost of the entry and exit of an interrupt with its deferred work.
    pub interrupt: f64,
    /// Cost of waking a sleeping thread.
    pub wake: f64,
    /// Cost of the entry and exit of a system call.
    pub syscall: f64,
    /// Cost of copying one byte.
    pub byte: f64,
    /// Cost of allocating a packet.
    pub packet: f64,
    /// Cost of allocating memory for one USB transfer.
    pub transfer: f64,
    /// Cost of cloning a packet that shares a transfer's memory.
    pub clone: f64,
    /// Cost of parsing a frame's header.
    pub parse: f64,
    /// Cost of passing a packet through the queue between driver and stack.
    pub backlog: f64,
    /// Cost of the GRO processing of one frame.
    pub gro: f64,
    /// Cost of the IP, TCP and socket processing of a received segment or train.
    pub tcp_rx: f64,
    /// Cost of the IP, UDP and socket processing of a received datagram.
    pub udp_rx: f64,
    /// Cost of sending an acknowledgment.
    pub ack_tx: f64,
    /// Cost of processing a received acknowledgment.
    pub ack_rx: f64,
    /// Cost of sending a TCP train, from TCP to the driver.
    pub tcp_tx: f64,
    /// Cost of sending a datagram, from the socket to the driver.
    pub udp_tx: f64,
    /// Cost of reading a datagram from its socket, including the wait for it.
    pub udp_read: f64,
}

/// The costs on the reference core.
pub const COSTS: Costs = Costs {
    interrupt: 1500.0,
    wake: 2500.0,
    syscall: 300.0,
    byte: 0.15,
    packet: 200.0,
    transfer: 600.0,
    clone: 120.0,
    parse: 40.0,
    backlog: 150.0,
    gro: 120.0,
    tcp_rx: 900.0,
    udp_rx: 600.0,
    ack_tx: 700.0,
    ack_rx: 700.0,
    tcp_tx: 1500.0,
    udp_tx: 1800.0,
    udp_read: 900.0,
};

impl Costs {
    /// Returns all costs with their names.
    pub const fn named(&self) -> [(&'static str, f64); 17] {
        [
            ("interrupt", self.interrupt),
            ("wake", self.wake),
            ("syscall", self.syscall),
            ("byte", self.byte),
            ("packet", self.packet),
            ("transfer", self.transfer),
            ("clone", self.clone),
            ("parse", self.parse),
            ("backlog", self.backlog),
            ("gro", self.gro),
            ("tcp_rx", self.tcp_rx),
            ("udp_rx", self.udp_rx),
            ("ack_tx", self.ack_tx),
            ("ack_rx", self.ack_rx),
            ("tcp_tx", self.tcp_tx),
            ("udp_tx", self.udp_tx),
            ("udp_read", self.udp_read),
        ]
    }
}

/// The parameters of a computer with an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Name of the computer, one word.
    pub name: &'static str,
    /// Number of processor cores.
    pub cores: u32,
    /// Speed of one core, per cent of the reference core: CoreMark per core, rounded.
    pub speed: f64,
    /// Processor time of the USB host controller's driver for one transfer, submission and completion, nanoseconds.
    /// This is the only fitted parameter; it is fitted to one published result: TCP sent by the standard form.
    pub urb: f64,
}
