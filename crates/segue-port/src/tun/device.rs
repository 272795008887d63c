//! A TUN or TAP device for programs that move packets themselves: reads split into packets, batches written as trains.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use segue::easy::{Joiner, Packets, Splitter};
use segue::gro::Config;
use segue::gso::Limits;
use segue::hash::Key;

use super::{MAX_FRAME, OpenError, TunConfig, TunPort};
use crate::port::Port;

/// Maximum number of pieces of one write: those that the limits of a device allow, and the headers.
const MOST_PIECES: usize = 64;

/// A TUN or TAP device that gives single packets and takes batches of them, which it joins.
///
/// It is for one program's own loop, blocking or with readiness ([`AsFd`]); the poll loop of `segue-datapath` uses
/// [`TunPort`]. The descriptor does not block; [`io::ErrorKind::WouldBlock`] says that there is nothing to read. It can
/// be sent to another thread at any time.
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
    name: String,
    splitter: Splitter,
    joiner: Joiner,
    buffer: Vec<u8>,
    /// Number of packets that contradicted their headers or could not be split.
    unread: u64,
}

impl Tun {
    /// Opens or makes a device and agrees with the kernel on offloads. `random` is the key of the flow table: 16 bytes
    /// of the system's random numbers.
    ///
    /// # Errors
    /// As for [`TunPort::open`].
    pub fn open(config: &TunConfig, random: [u64; 2]) -> Result<Tun, OpenError> {
        TunPort::open(config).map(|port| Tun::new(port, Config::vpn(Key(random))))
    }

    /// Makes a device of a port, with the rules `config` for joining, for one whose descriptor came from elsewhere
    /// ([`TunPort::from_fd`]).
    pub fn new(port: TunPort, config: Config) -> Tun {
        let (limits, start, name) = (*port.limits(), port.layer().start(), port.name().to_owned());
        let (splitter, joiner) = match port.form() {
            Some(form) => (Splitter::virtio(form, start), Joiner::virtio(config, limits, form)),
            None => (Splitter::plain(start), Joiner::plain(config.key)),
        };
        let joiner = joiner.starting_with(start);
        Tun { file: port.into_fd().into(), name, splitter, joiner, buffer: vec![0; MAX_FRAME + 24], unread: 0 }
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads once, and returns the packets that came: one, or the segments of a train.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where nothing waits; [`io::ErrorKind::InvalidData`] for a packet that contradicts
    /// its virtio-net header, which no kernel sends, counted in [`Tun::unread`]; any other error is the device's.
    pub fn read(&mut self) -> io::Result<Packets<'_>> {
        let len = self.file.read(&mut self.buffer)?;
        self.splitter.read(&self.buffer[..len]).map_err(|error| {
            self.unread += 1;
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }

    /// Writes the packets of a batch, joined into trains where they belong together, and returns the number of writes.
    ///
    /// A device that refuses a train of a kind that it once took (`EINVAL`) gets no more of that kind.
    ///
    /// # Errors
    /// The first error of the device; what was not written until then is dropped.
    pub fn write<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
        let mut batch = self.joiner.batch();
        packets.into_iter().for_each(|packet| _ = batch.push(packet));
        let mut writes = 0;
        while let Some(train) = batch.pop() {
            let mut places = [IoSlice::new(&[]); MOST_PIECES];
            let result = match train.gather(&mut places, IoSlice::new) {
                Some(pieces) => self.file.write_vectored(pieces),
                None => self.file.write_vectored(&train.pieces().map(IoSlice::new).collect::<Vec<_>>()),
            };
            match result {
                Ok(_) => writes += 1,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && batch.narrow() => {
                    notice!(
                        warn,
                        id = "offload",
                        device = self.name,
                        "the device refused a train; such trains are cut in software"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(writes)
    }

    /// Returns the joiner, for its counters and its limits.
    pub fn joiner(&mut self) -> &mut Joiner {
        &mut self.joiner
    }

    /// Returns the number of packets that were read and refused.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// Returns the trains that the device takes at present.
    pub fn limits(&self) -> &Limits {
        self.joiner.limits()
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
