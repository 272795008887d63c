//! TUN and TAP devices, which carry one packet or train per system call; trains only with offloads that the kernel
//! granted.
//!
//! They differ in [`Layer`]: a TUN device carries IP packets, a TAP device Ethernet frames.

mod device;
pub mod driver;
#[cfg(test)]
mod fragments;
#[cfg(feature = "tokio")]
mod runtime;
mod sys;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tunnel_trains;

use std::fmt;
use std::fs::File;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use segue::gso::Limits;
use segue::packet::{GsoKind, Start};
use segue::virtio::{self, Form, VirtioNet, tun as feature};
use segue::wire::ethernet;

pub use device::{Tun, TunReader, TunWriter};
#[cfg(feature = "tokio")]
pub use runtime::{AsyncTunReader, AsyncTunWriter};

use crate::batch::{RxBatch, TxBatch};
use crate::failures::{ReadFailures, lost_by_device};
use crate::link::{LinkState, LinkWatch};
use crate::messages::SendScratch;
use crate::page::{HEADER_AREA, Scatter};
use crate::port::{Counters, Drop, Fallback, MOST_BYTES, OffloadState, Polled, Port, Sent};
use crate::sys::{MAX_IOV, set_nonblocking};
use crate::vnet;

/// Largest number of datagrams of a UDP train that is written: every kernel with USO accepts as many.
pub(crate) const MAX_UDP_SEGMENTS_OUT: usize = 64;
/// Length of the largest frame in bytes: the largest IP packet after an Ethernet header with two tags.
pub(crate) const MAX_FRAME: usize = 65_535 + ethernet::LEN + 2 * ethernet::VLAN_LEN;

/// Configuration of a device to be opened: from [`TunConfig::ip`] or [`TunConfig::ethernet`], with its fields changed.
///
/// ```
/// use segue_port::tun::{Existing, TunConfig};
///
/// let mut config = TunConfig::ip("vpn%d");
/// config.existing = Existing::Refuse;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TunConfig {
    /// Name of the device, at most 15 bytes; a `%d` in it becomes the first free number.
    pub name: String,
    /// The layer that the device carries.
    pub layer: Layer,
    /// Whether the device may exist already.
    pub existing: Existing,
    /// Offloads that the device is to use.
    pub offloads: TunOffloads,
    /// Whether the device is multi-queue (`IFF_MULTI_QUEUE`): each queue is opened separately, and all of them must set
    /// this.
    pub multi_queue: bool,
}

impl TunConfig {
    /// Returns the configuration of a TUN device of this name, which may exist already, with all offloads.
    pub fn ip(name: impl Into<String>) -> TunConfig {
        TunConfig {
            name: name.into(),
            layer: Layer::Ip,
            existing: Existing::Attach,
            offloads: TunOffloads::All,
            multi_queue: false,
        }
    }

    /// Returns the configuration of a TAP device of this name, which may exist already, with all offloads.
    pub fn ethernet(name: impl Into<String>) -> TunConfig {
        TunConfig { layer: Layer::Ethernet, ..TunConfig::ip(name) }
    }
}

/// The layer that a device carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// IP packets: a TUN device.
    Ip,
    /// Ethernet frames, including VLAN tags: a TAP device.
    Ethernet,
}

impl Layer {
    fn flag(self) -> u16 {
        match self {
            Layer::Ip => sys::IFF_TUN,
            Layer::Ethernet => sys::IFF_TAP,
        }
    }

    fn start(self) -> Start {
        match self {
            Layer::Ip => Start::Ip,
            Layer::Ethernet => Start::Ethernet,
        }
    }
}

/// Treatment of a device that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Existing {
    /// Fails with [`OpenError::Busy`].
    Refuse,
    /// Attaches to the existing device, for devices prepared by an administrator.
    Attach,
}

/// Offloads that a device is to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TunOffloads {
    /// All offloads that the kernel has.
    All,
    /// Checksums and TCP trains are offloaded, UDP trains are not.
    NoUdp,
    /// Offloads are used for writing only: packets read are single and have complete checksums.
    WriteOnly,
    /// Neither offloads nor a virtio-net header: one packet per system call, checksums complete.
    None,
}

/// Reason for which a device could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no TUN driver, or `/dev/net/tun` is missing.
    Unavailable(io::Error),
    /// The process lacks CAP_NET_ADMIN and does not own the device.
    Denied(io::Error),
    /// Another process has the device open, or it exists and [`Existing::Refuse`] was given.
    Busy(String),
    /// The name is empty, too long, or belongs to a device of another kind.
    Name(String),
    /// Another system call failed.
    Call(&'static str, io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Unavailable(error) => write!(f, "/dev/net/tun cannot be opened: {error}"),
            OpenError::Denied(error) => write!(f, "not permitted to make a TUN or TAP device: {error}"),
            OpenError::Busy(name) => write!(f, "device {name} is already in use"),
            OpenError::Name(name) => write!(f, "{name:?} is no usable name for the device"),
            OpenError::Call(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Unavailable(error) | OpenError::Denied(error) | OpenError::Call(_, error) => Some(error),
            OpenError::Busy(_) | OpenError::Name(_) => None,
        }
    }
}

/// A TUN or TAP device as a port, for the poll loop of `segue-datapath` or a similar one; other programs use [`Tun`].
///
/// ```no_run
/// use segue_port::tun::{TunConfig, TunPort};
/// use segue_port::{Polled, Port, RxBatch};
///
/// let mut port = TunPort::open(&TunConfig::ip("sg0"))?;
/// let (limits, form) = (*port.limits(), port.form()); // what a user of the bare descriptor needs
/// let mut batch = RxBatch::new(64);
/// while port.receive(&mut batch, 64)? != Polled::Idle {
///     while let Some(packet) = batch.pop_packet() {
///         batch.pool.put(packet); // after it was sent elsewhere: TxBatch::push, Port::transmit
///     }
/// }
/// let fd = port.into_fd();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it removes the device unless it is persistent.
#[derive(Debug)]
pub struct TunPort {
    file: File,
    name: String,
    layer: Layer,
    header: Option<Form>,
    granted: u32,
    offloads: TunOffloads,
    refused: [Option<i32>; 2],
    limits: Limits,
    counters: Counters,
    scatter: Scatter,
    /// Ranges of the current poll's reads.
    reads: Vec<Range<usize>>,
    scratch: SendScratch,
    watch: Option<LinkWatch>,
    failures: ReadFailures,
    #[cfg(test)]
    refuse_trains: Option<i32>,
}

impl TunPort {
    /// Opens or creates a device and negotiates its offloads with the kernel.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: &TunConfig) -> Result<TunPort, OpenError> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => OpenError::Denied(error),
            _ => OpenError::Unavailable(error),
        })?;
        let mut flags = config.layer.flag() | sys::IFF_NO_PI;
        if config.offloads != TunOffloads::None {
            flags |= sys::IFF_VNET_HDR;
        }
        if config.existing == Existing::Refuse {
            flags |= sys::IFF_TUN_EXCL;
        }
        if config.multi_queue {
            flags |= sys::IFF_MULTI_QUEUE;
        }
        let name = sys::attach(file.as_fd(), &config.name, flags).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => OpenError::Busy(config.name.clone()),
            Some(libc::EPERM | libc::EACCES) => OpenError::Denied(error),
            Some(libc::EINVAL) => OpenError::Name(config.name.clone()),
            _ => OpenError::Call("TUNSETIFF", error),
        })?;
        // All queues of a device are opened alike.
        let is_tunnel = config.layer == Layer::Ethernet && takes_all(config.offloads);
        let form = if is_tunnel { Form::Tunnel } else { Form::Basic };
        TunPort::attached(file, name, flags, config.offloads, form)
    }

    /// Takes over a descriptor that is already attached to a TUN or TAP device without packet information, and makes it
    /// and its duplicates non-blocking.
    ///
    /// ```no_run
    /// use std::os::fd::OwnedFd;
    ///
    /// use segue::{gro::Config, hash::Key};
    /// use segue_port::tun::{OpenError, Tun, TunOffloads, TunPort};
    ///
    /// fn device(fd: OwnedFd, random: [u64; 2]) -> Result<Tun, OpenError> {
    ///     Ok(Tun::new(TunPort::from_fd(fd, TunOffloads::All)?, Config::vpn(Key(random))))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Name`] where the descriptor is of another kind, or the error of setting the offloads.
    pub fn from_fd(fd: OwnedFd, offloads: TunOffloads) -> Result<TunPort, OpenError> {
        let (name, flags) = sys::attached(fd.as_fd()).map_err(|error| OpenError::Call("TUNGETIFF", error))?;
        if flags & sys::IFF_NO_PI == 0 || flags & (sys::IFF_TUN | sys::IFF_TAP) == 0 {
            return Err(OpenError::Name(name));
        }
        set_nonblocking(fd.as_fd()).map_err(|error| OpenError::Call("F_SETFL", error))?;
        // The form is the device's, not the descriptor's: the process that the descriptor is from may still use it.
        let current = sys::header_len(fd.as_fd()).map_err(|error| OpenError::Call("TUNGETVNETHDRSZ", error));
        let is_tunnel = flags & sys::IFF_TAP != 0 && current? == Form::Tunnel.len() as i32;
        let form = if is_tunnel { Form::Tunnel } else { Form::Basic };
        TunPort::attached(File::from(fd), name, flags, offloads, form)
    }

    /// Negotiates the offloads of a device, with a virtio-net header of the given form, or of the basic form where the
    /// kernel has no offloads that need another one.
    fn attached(
        file: File,
        name: String,
        flags: u16,
        offloads: TunOffloads,
        mut form: Form,
    ) -> Result<TunPort, OpenError> {
        let layer = if flags & sys::IFF_TAP != 0 { Layer::Ethernet } else { Layer::Ip };
        let with_header = flags & sys::IFF_VNET_HDR != 0;
        let offloads = if with_header { offloads } else { TunOffloads::None };
        let mut refused = [None; 2];
        let mut granted = 0;
        if with_header {
            // A persistent device keeps the settings of its last user, so that all are set, the header's length too.
            let tunnels = virtio::TUN_OFFLOADS[0] | virtio::TAP_TUNNEL_OFFLOADS;
            if form == Form::Tunnel && takes_all(offloads) {
                if set_form(&file, form).is_ok() && sys::set_offload(file.as_fd(), tunnels).is_ok() {
                    granted = tunnels;
                } else {
                    form = Form::Basic;
                }
            }
            set_form(&file, form).map_err(|error| OpenError::Call("TUNSETVNETHDRSZ", error))?;
            if let Err(error) = sys::set_little_endian(file.as_fd())
                && cfg!(target_endian = "big")
            {
                return Err(OpenError::Call("TUNSETVNETLE", error));
            }
            let uso = feature::USO4 | feature::USO6;
            let sets: &[u32] = if granted == 0 { &virtio::TUN_OFFLOADS } else { &[] };
            for &bits in sets {
                let wanted = match offloads {
                    // For writing, the offloads that the kernel knows are found out, and withdrawn below.
                    TunOffloads::All | TunOffloads::WriteOnly => true,
                    TunOffloads::NoUdp => bits & uso == 0,
                    TunOffloads::None => false,
                };
                if !wanted {
                    continue;
                }
                match sys::set_offload(file.as_fd(), bits) {
                    Ok(()) => {
                        granted = bits;
                        break;
                    }
                    Err(error) => {
                        let place = usize::from(bits & uso == 0);
                        refused[place] = refused[place].or(error.raw_os_error());
                    }
                }
            }
        }
        if (granted == 0 || offloads == TunOffloads::WriteOnly)
            && let Err(error) = sys::set_offload(file.as_fd(), 0)
            && with_header
        {
            return Err(OpenError::Call("TUNSETOFFLOAD", error));
        }
        let limits = Limits {
            max_bytes: if layer == Layer::Ip { 65_535 } else { MAX_FRAME },
            max_pieces: MAX_IOV - 2,
            ..Limits::tun(granted)
        };
        Ok(TunPort {
            file,
            name,
            layer,
            header: with_header.then_some(form),
            granted,
            offloads,
            refused,
            limits,
            counters: Counters::default(),
            scatter: Scatter::default(),
            reads: Vec::new(),
            scratch: SendScratch::default(),
            watch: None,
            failures: ReadFailures::default(),
            #[cfg(test)]
            refuse_trains: None,
        })
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the layer that the device carries.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// Returns a duplicate of the descriptor, for another process that takes the device over.
    ///
    /// # Errors
    /// Where this process may open no more files.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Lets the driver choose each packet's queue by `program`, a socket-type BPF program whose result is taken modulo
    /// the number of queues. Without one, a flow moves to the queue by which its other direction was written last, and
    /// its packets may overtake each other.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub fn steer(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        sys::set_steering(self.file.as_fd(), program)
    }

    /// Returns a function that recreates the port in another thread, because packet memory belongs to one thread.
    /// Packets that it holds are dropped, so that a port is packed before its first use.
    pub fn pack(self) -> impl FnOnce() -> TunPort + Send {
        let TunPort { file, name, layer, header, granted, offloads, refused, limits, watch, counters, .. } = self;
        move || TunPort {
            file,
            name,
            layer,
            header,
            granted,
            offloads,
            refused,
            limits,
            counters,
            scatter: Scatter::default(),
            reads: Vec::new(),
            failures: ReadFailures::default(),
            scratch: SendScratch::default(),
            watch,
            #[cfg(test)]
            refuse_trains: None,
        }
    }

    /// Makes the port refuse packets longer than the interface's MTU, even though the kernel would accept them, for a
    /// device that represents a link. `index` is the interface's in the network namespace of this thread.
    ///
    /// # Errors
    /// Where no rtnetlink socket can be opened.
    pub fn follow_link(&mut self, index: u32) -> io::Result<()> {
        self.watch = Some(LinkWatch::open(index)?);
        Ok(())
    }

    /// Returns the form of the virtio-net header in front of each packet of the descriptor; `None` for a device without
    /// that header. Its fields are little-endian. A TAP has [`Form::Tunnel`] from Linux 6.17 on, and a persistent one
    /// keeps it: its next user must set the length (`TUNSETVNETHDRSZ`). A new device has 10 bytes.
    pub fn form(&self) -> Option<Form> {
        self.header
    }

    /// Returns the descriptor and drops the rest of the port. What a user of the descriptor must know, [`Port::limits`]
    /// and [`TunPort::form`], is to be asked before.
    pub fn into_fd(self) -> OwnedFd {
        self.file.into()
    }

    /// Appends the packets read to the batch.
    fn deliver(&mut self, into: &mut RxBatch) {
        let TunPort { scatter, reads, counters, header: form, layer, .. } = self;
        let skip = form.map_or(0, Form::len);
        scatter.freeze();
        for range in reads.drain(..) {
            let front = scatter.frags(range.start..range.end.min(range.start + HEADER_AREA)).next();
            let header = match form {
                Some(form) => front.and_then(|front| VirtioNet::parse(front.bytes(), *form)),
                None => Some(VirtioNet::default()),
            };
            let body = (range.start + skip).min(range.end)..range.end;
            let (Some(header), false) = (header, body.is_empty()) else {
                counters.drops.add(Drop::VnetShort);
                continue;
            };
            vnet::deliver(&header, scatter.frags(body), layer.start(), into, counters);
        }
        scatter.release();
    }

    /// Writes a packet or train to the device. Returns the kernel's error.
    fn write(&mut self, batch: &TxBatch, entry: usize) -> io::Result<()> {
        let unit = batch.unit_at(entry, batch.position(entry));
        #[cfg(test)]
        if let (Some(errno), Some(_)) = (self.refuse_trains, unit.gso()) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let header = match self.header {
            Some(form) => {
                let header = vnet::header_of(&unit);
                Some((header.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?.emit(form), form.len()))
            }
            None => None,
        };
        let mut out = self.scratch.begin();
        out.message();
        if let Some((bytes, len)) = &header {
            out.piece(&bytes[..*len]);
        }
        out.piece(unit.head());
        for piece in unit.pieces() {
            out.piece(piece);
        }
        out.write(self.file.as_fd()).map(drop)
    }

    /// Stops accepting trains of `kind`, or trains in a UDP tunnel.
    fn narrow(&mut self, kind: GsoKind, is_tunnel: bool) {
        if is_tunnel {
            self.limits.refuse_tunnels();
        } else {
            self.limits.refuse(kind);
        }
        self.counters.fallbacks.add(match kind {
            _ if is_tunnel => Fallback::TapTunnelTrain,
            GsoKind::Tcp => Fallback::TunTcpTrain,
            GsoKind::Udp => Fallback::TunUdpTrain,
        });
        notice!(
            warn,
            id = "offload",
            device = self.name,
            ?kind,
            is_tunnel,
            "the device refused a train; such trains are cut in software"
        );
    }
}

/// Returns whether the device is to take every kind of train that its kernel knows.
fn takes_all(offloads: TunOffloads) -> bool {
    matches!(offloads, TunOffloads::All | TunOffloads::WriteOnly)
}

/// Sets the form of the virtio-net header.
fn set_form(file: &File, form: Form) -> io::Result<()> {
    let len = form.len() as i32;
    if sys::set_header_len(file.as_fd(), len)? == len { Ok(()) } else { Err(ErrorKind::Unsupported.into()) }
}

impl Port for TunPort {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn offloads(&self) -> Vec<(&'static str, OffloadState)> {
        let wanted = |uso: bool| match self.offloads {
            TunOffloads::All => true,
            TunOffloads::NoUdp => !uso,
            TunOffloads::WriteOnly | TunOffloads::None => false,
        };
        let state = |bits: u32, taken: bool, uso: bool| match (self.granted & bits != 0, taken) {
            _ if !wanted(uso) => OffloadState::Off,
            (true, true) => OffloadState::On,
            (true, false) => OffloadState::Refused(libc::EINVAL),
            (false, _) => OffloadState::Refused(self.refused[usize::from(!uso)].unwrap_or(libc::EINVAL)),
        };
        let names = match self.layer {
            Layer::Ip => ["tun_csum", "tun_tso4", "tun_tso6", "tun_tso_ecn", "tun_uso"],
            Layer::Ethernet => ["tap_csum", "tap_tso4", "tap_tso6", "tap_tso_ecn", "tap_uso"],
        };
        let states = [
            state(feature::CSUM, true, false),
            state(feature::TSO4, self.limits.tso4, false),
            state(feature::TSO6, self.limits.tso6, false),
            state(feature::TSO_ECN, true, false),
            state(feature::USO4, self.limits.uso, true),
        ];
        // Most kernels do not have it, which is no fault of theirs.
        let tunnel = (self.granted & feature::UDP_TUNNEL_GSO != 0)
            .then(|| ("tap_udp_tunnel", state(feature::UDP_TUNNEL_GSO, self.limits.udp_tunnel, true)));
        names.into_iter().zip(states).chain(tunnel).collect()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive(&mut self, into: &mut RxBatch, budget: usize) -> io::Result<Polled> {
        let mut polled = Polled::More;
        let (mut reads, mut bytes) = (0, 0);
        while reads < budget && bytes < MOST_BYTES {
            if !self.scatter.make_room(&mut into.pages) {
                polled = Polled::Starved;
                break;
            }
            self.counters.rx.calls += 1;
            match self.scatter.read(self.file.as_fd(), 0) {
                Ok(len) => {
                    self.failures.end();
                    let range = self.scatter.commit(0..len);
                    self.reads.push(range);
                    reads += 1;
                    bytes += len;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.failures.end();
                        polled = Polled::Idle;
                        break;
                    }
                    _ => {
                        self.deliver(into);
                        self.failures.add(error, &mut self.counters)?;
                        return Ok(Polled::Idle);
                    }
                },
            }
        }
        self.deliver(into);
        Ok(polled)
    }

    fn transmit(&mut self, batch: &mut TxBatch) -> io::Result<Sent> {
        for entry in 0..batch.entries() {
            loop {
                let Some(unit) = batch.units_of(entry).next() else { break };
                let (len, segments, gso) = (unit.len(), unit.segments(), unit.gso());
                let is_tunnel = unit.layout().ip_levels() > 1;
                self.counters.tx.calls += 1;
                let Err(error) = self.write(batch, entry) else {
                    self.counters.tx.add(len, segments);
                    batch.sent_of(entry, 1);
                    continue;
                };
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => {
                        self.counters.blocked += 1;
                        return Ok(Sent::Blocked);
                    }
                    Some(libc::EINVAL) if gso.is_some() => {
                        self.narrow(gso.map_or(GsoKind::Tcp, |gso| gso.kind), is_tunnel);
                        return Ok(Sent::Narrowed);
                    }
                    _ => {}
                }
                let Some(reason) = lost_by_device(&error) else { return Err(error) };
                self.counters.drops.add_many(reason, segments as u64);
                batch.sent_of(entry, 1);
            }
        }
        Ok(Sent::All)
    }

    fn mac(&self) -> Option<[u8; 6]> {
        if self.layer == Layer::Ethernet { sys::mac(self.fd()).ok() } else { None }
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(LinkWatch::fd)
    }

    /// Reads the state of the interface, except its deletion, which reads of the device report: a device moved to
    /// another network namespace continues to work there, and is no longer followed.
    fn listen(&mut self) -> io::Result<()> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        let state = watch.listen()?;
        self.limits.mtu = if state.is_gone { usize::MAX } else { state.mtu };
        Ok(())
    }

    fn link(&self) -> Option<LinkState> {
        self.watch.as_ref().map(LinkWatch::state)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
