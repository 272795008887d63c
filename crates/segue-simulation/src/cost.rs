//! What a host's work costs, and the hosts.

/// Processor time of pieces of a host's work, nanoseconds on a core of speed 100, and times of the world around it.
///
/// The same for all targets and both forms. Round figures of a desktop core of 2016 at 3.7 GHz, of the size that profiles
/// of Linux's network path show; none of them is taken from the results that are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Entry and exit of an interrupt with its deferred work.
    pub interrupt: f64,
    /// A thread that slept begins to run.
    pub wake: f64,
    /// Entry and exit of a system call.
    pub syscall: f64,
    /// One byte copied.
    pub byte: f64,
    /// Memory for one packet.
    pub packet: f64,
    /// Fresh memory for one transfer.
    pub transfer: f64,
    /// A packet that shares a transfer's memory.
    pub clone: f64,
    /// A frame's header read.
    pub parse: f64,
    /// Into the queue between driver and stack and out of it, a packet.
    pub backlog: f64,
    /// A frame looked at by GRO.
    pub gro: f64,
    /// IP, TCP and socket, a segment or train received.
    pub tcp_rx: f64,
    /// IP, UDP and socket, a datagram received.
    pub udp_rx: f64,
    /// An acknowledgment sent.
    pub ack_tx: f64,
    /// An acknowledgment received.
    pub ack_rx: f64,
    /// A TCP train sent, TCP to driver.
    pub tcp_tx: f64,
    /// A datagram sent, socket to driver.
    pub udp_tx: f64,
    /// A datagram read: socket, and waiting for it.
    pub udp_read: f64,
}

/// The reference.
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
    /// All of them with their names.
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

/// A computer with an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Its name, one word.
    pub name: &'static str,
    /// Its processors.
    pub cores: u32,
    /// Speed of one of them, per cent of the reference core: CoreMark per core, round.
    pub speed: f64,
    /// Processor time of its USB host controller's driver for one transfer there and back, nanoseconds. The only thing that
    /// is fitted, to one cell: TCP sent by the standard form.
    pub urb: f64,
}
