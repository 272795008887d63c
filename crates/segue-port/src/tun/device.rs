//! A TUN or TAP device for programs that forward packets themselves: reads split into packets, batches written as
//! trains.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use segue::easy::{Batch, Joiner, Packets, Splitter, Train};
use segue::gro::Config;
use segue::gso::Limits;
use segue::hash::Key;

use super::{MAX_FRAME, OpenError, TunConfig, TunOffloads, TunPort};
use crate::environment::Offloads;
use crate::port::Port;
use crate::sys::MAX_IOV;

/// Number of pieces that few trains exceed: those of 64 kB in full segments, and their headers.
const USUAL_PIECES: usize = 64;

/// A TUN or TAP device that returns single packets from reads, and joins the packets of a batch into trains when it
/// writes.
///
/// It is for one program's own loop, blocking or with readiness ([`AsFd`]); the poll loop of `segue-datapath` uses
/// [`TunPort`]. The descriptor does not block; [`io::ErrorKind::WouldBlock`] says that there is nothing to read. It can
/// be sent to another thread at any time, and its directions to two ([`Tun::split`]).
///
/// ```no_run
/// use segue_port::tun::{Tun, TunConfig};
///
/// let mut tun = Tun::open(&TunConfig::ip("vpn0"), [1, 2])?; // two random numbers
/// for packet in tun.read()?.iter() {
///     let mut datagram = vec![0; 16 + packet.len() + 16];
///     packet.write_to(&mut datagram[16..])?; // seal it, send it
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tun {
    file: File,
    outward: Outward,
    inward: Inward,
}

impl Tun {
    /// Opens or creates a device and negotiates offloads with the kernel. `random` is the key of the flow table: 16
    /// bytes of the system's random numbers.
    ///
    /// Where the environment has `SEGUE_OFFLOAD=0` (or `-tun`), each read gives and each write takes one packet with a
    /// complete checksum; `-uso` does so for UDP alone.
    ///
    /// # Errors
    /// As for [`TunPort::open`].
    pub fn open(config: &TunConfig, random: [u64; 2]) -> Result<Tun, OpenError> {
        let (mut config, mut rules) = (config.clone(), Config::vpn(Key(random)));
        let leaves = Offloads::of_environment();
        if !leaves.uso {
            rules.max_udp_packets = 0;
            if config.offloads == TunOffloads::All {
                config.offloads = TunOffloads::NoUdp;
            }
        }
        if !leaves.tun {
            rules.max_packets = 0;
            // With a header: without one, trains are plain packets of 64 kB.
            config.offloads = TunOffloads::WriteOnly;
        }
        TunPort::open(&config).map(|port| Tun::new(port, rules))
    }

    /// Creates a device from a port, such as [`TunPort::from_fd`] returns, with the joining rules `config`.
    pub fn new(port: TunPort, config: Config) -> Tun {
        let (limits, start, name) = (*port.limits(), port.layer().start(), port.name().to_owned());
        let (splitter, joiner) = match port.form() {
            Some(form) => (Splitter::virtio(form, start), Joiner::virtio(config, limits, form)),
            None => (Splitter::plain(start), Joiner::plain(config.key)),
        };
        let outward = Outward { splitter, buffer: vec![0; MAX_FRAME + 24], unread: 0 };
        Tun { file: port.into_fd().into(), outward, inward: Inward { name, joiner: joiner.starting_with(start) } }
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.inward.name
    }

    /// Reads once, and returns the packets: a single one, or the segments of a train.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where nothing waits; [`io::ErrorKind::InvalidData`] for a packet that contradicts
    /// its virtio-net header, which no kernel sends, counted in [`Tun::unread`]; any other error is the device's.
    pub fn read(&mut self) -> io::Result<Packets<'_>> {
        self.outward.read(&self.file)
    }

    /// Writes the packets of a batch, joined into trains where possible, and returns the number of writes.
    ///
    /// A device that refuses a train of a kind that it once took (`EINVAL`) gets no more of that kind.
    ///
    /// # Errors
    /// The first error of the device; what was not written until then is dropped.
    pub fn write<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
        self.inward.write(&self.file, packets)
    }

    /// Returns the two directions of the device, for two threads.
    ///
    /// ```no_run
    /// use segue_port::tun::{Tun, TunConfig};
    ///
    /// let (mut reader, mut writer) = Tun::open(&TunConfig::ip("vpn0"), [1, 2])?.split();
    /// std::thread::spawn(move || writer.write([&[0x45; 20][..]]));
    /// for packet in reader.read()?.iter() {
    ///     println!("{} bytes", packet.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(self) -> (TunReader, TunWriter) {
        let Tun { file, outward, inward } = self;
        let file = Arc::new(file);
        (TunReader { file: Arc::clone(&file), outward }, TunWriter { file, inward })
    }

    /// Returns the file and the state of each direction; the direction from the device comes first.
    #[cfg(feature = "tokio")]
    pub(super) fn into_parts(self) -> (File, Outward, Inward) {
        (self.file, self.outward, self.inward)
    }

    /// Returns the joiner, for its counters and its limits.
    pub fn joiner(&mut self) -> &mut Joiner {
        &mut self.inward.joiner
    }

    /// Returns the number of packets that were read but refused.
    pub fn unread(&self) -> u64 {
        self.outward.unread
    }

    /// Returns the limits of the trains that the device currently accepts.
    pub fn limits(&self) -> &Limits {
        self.inward.joiner.limits()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Tun> for OwnedFd {
    fn from(tun: Tun) -> OwnedFd {
        tun.file.into()
    }
}

/// The direction of a [`Tun`] from the device to the program.
#[derive(Debug)]
pub struct TunReader {
    file: Arc<File>,
    outward: Outward,
}

impl TunReader {
    /// Reads packets from the device, as [`Tun::read`] does.
    ///
    /// # Errors
    /// As for [`Tun::read`].
    pub fn read(&mut self) -> io::Result<Packets<'_>> {
        self.outward.read(&self.file)
    }

    /// Returns the number of packets that were read but refused.
    pub fn unread(&self) -> u64 {
        self.outward.unread
    }
}

impl AsFd for TunReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The direction of a [`Tun`] from the program to the device.
#[derive(Debug)]
pub struct TunWriter {
    file: Arc<File>,
    inward: Inward,
}

impl TunWriter {
    /// Writes packets to the device, as [`Tun::write`] does.
    ///
    /// # Errors
    /// As for [`Tun::write`].
    pub fn write<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
        self.inward.write(&self.file, packets)
    }

    /// Returns the joiner, for its counters and its limits.
    pub fn joiner(&mut self) -> &mut Joiner {
        &mut self.inward.joiner
    }
}

impl AsFd for TunWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The state of the direction from the device.
#[derive(Debug)]
pub(super) struct Outward {
    splitter: Splitter,
    pub(super) buffer: Vec<u8>,
    /// Number of packets that contradicted their headers or could not be split.
    pub(super) unread: u64,
}

impl Outward {
    fn read(&mut self, mut file: &File) -> io::Result<Packets<'_>> {
        let len = file.read(&mut self.buffer)?;
        self.packets(len)
    }

    /// Returns the packets of a read with the given length.
    pub(super) fn packets(&mut self, len: usize) -> io::Result<Packets<'_>> {
        self.splitter.read(&self.buffer[..len]).map_err(|error| {
            self.unread += 1;
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }
}

/// The state of the direction to the device.
#[derive(Debug)]
pub(super) struct Inward {
    name: String,
    pub(super) joiner: Joiner,
}

impl Inward {
    fn write<'b>(&mut self, file: &File, packets: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
        let (name, mut batch) = self.batch(packets);
        let mut writes = 0;
        while let Some(train) = batch.pop() {
            let result = put(file, &train);
            writes += settle(result, &mut batch, name)?;
        }
        Ok(writes)
    }

    /// Begins a batch with the given packets; also returns the device's name.
    pub(super) fn batch<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) -> (&str, Batch<'_, 'b>) {
        let mut batch = self.joiner.batch();
        packets.into_iter().for_each(|packet| _ = batch.push(packet));
        (&self.name, batch)
    }
}

/// Writes a train to the device by one call.
pub(super) fn put(mut file: &File, train: &Train<'_>) -> io::Result<()> {
    let mut places = [IoSlice::new(&[]); USUAL_PIECES];
    let result = match train.gather(&mut places, IoSlice::new) {
        Some(pieces) => file.write_vectored(pieces),
        None => put_many(file, train),
    };
    result.map(drop)
}

/// Writes a train of more pieces than [`USUAL_PIECES`], without an allocation too.
#[inline(never)]
fn put_many(mut file: &File, train: &Train<'_>) -> io::Result<usize> {
    let mut places = [IoSlice::new(&[]); MAX_IOV];
    match train.gather(&mut places, IoSlice::new) {
        Some(pieces) => file.write_vectored(pieces),
        // As the kernel answers.
        None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Returns the number of trains written by the last write, 1 or 0: a train that the device refused is written again,
/// segmented.
pub(super) fn settle(result: io::Result<()>, batch: &mut Batch<'_, '_>, name: &str) -> io::Result<usize> {
    match result {
        Ok(()) => Ok(1),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && batch.narrow() => {
            notice!(warn, id = "offload", device = name, "the device refused a train; such trains are cut in software");
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_its_directions_are_for_any_thread() {
        fn check<T: Send + Sync>() {}
        check::<Tun>();
        check::<TunReader>();
        check::<TunWriter>();
        #[cfg(feature = "tokio")]
        check::<(crate::tun::AsyncTunReader, crate::tun::AsyncTunWriter)>();
    }
}
