//! A TUN or TAP device for programs that forward packets themselves: reads split into packets, batches written as
//! trains.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use segue::easy::{Batch, Joiner, Packets, Splitter, Train};
use segue::gro::Config;
use segue::gso::Limits;
use segue::hash::Key;
use segue::reason::Counts;

use super::{MAX_FRAME, OpenError, TunConfig, TunOffloads, TunPort};
use crate::environment::Offloads;
use crate::failures::lost_by_device;
use crate::poll::{Interest, PollSet};
use crate::port::{Drop, Port};
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
            // Packets are read one by one; nothing is joined.
            config.offloads = TunOffloads::WriteOnly;
        }
        TunPort::open(&config).map(|port| Tun::new(port, rules))
    }

    /// Creates a device from a port, such as [`TunPort::from_fd`] returns, with the joining rules `config`. Without
    /// virtio-net headers each write takes one packet; see [`Tun::plain`].
    pub fn new(port: TunPort, config: Config) -> Tun {
        let max_packets = if port.form().is_some() { config.max_packets } else { 0 };
        Tun::plain(port, Config { max_packets, ..config })
    }

    /// Creates a device like [`Tun::new`] whose TCP trains, where it has no virtio-net headers, are IP packets of up to
    /// 64 kB ([`Joiner::plain`]).
    ///
    /// Only for connections that end on this host: it cannot forward such a packet over a link with a smaller MTU, but
    /// drops it or, without DF, has to fragment it.
    pub fn plain(port: TunPort, config: Config) -> Tun {
        let (limits, start, name) = (*port.limits(), port.layer().start(), port.name().to_owned());
        let (splitter, joiner) = match port.form() {
            Some(form) => (Splitter::virtio(form, start), Joiner::virtio(config, limits, form)),
            None => (Splitter::plain(start), Joiner::plain_with(config)),
        };
        let outward = Outward { splitter, buffer: vec![0; MAX_FRAME + 24], unread: 0 };
        Tun { file: port.into_fd().into(), outward, inward: Inward::new(name, joiner.starting_with(start)) }
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.inward.name
    }

    /// Reads once, and returns the packets: a single one, the segments of a train, or none where what was read is
    /// refused. That is counted ([`Tun::unread`]); any user of this host can cause it, by a train with a source route.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where nothing waits; any other error is the device's.
    pub fn read(&mut self) -> io::Result<Packets<'_>> {
        self.outward.read(&self.file)
    }

    /// Writes the packets of a batch, joined into trains where possible, and returns the number of writes.
    ///
    /// A device that refuses a train of a kind that it once took (`EINVAL`) gets no more of that kind. A packet that it
    /// refuses alone, because it is empty, no IP packet or, on a TAP, shorter than an Ethernet header, is dropped and
    /// counted, as is all that is written while the device is down: see [`Tun::drops`]. The packets behind are written.
    ///
    /// # Errors
    /// An error of the device itself: that it is full ([`io::ErrorKind::WouldBlock`]), which a TUN device is only with
    /// a send buffer set (`TUNSETSNDBUF`), or was deleted (`EBADFD`). What was not written until then is dropped.
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

    /// Returns the number of packets and trains that were read but refused: they contradict their virtio-net header, or
    /// are trains that cannot be split ([`ReadError`](segue::easy::ReadError)).
    pub fn unread(&self) -> u64 {
        self.outward.unread
    }

    /// Returns the numbers of packets that the device did not take, by reason: [`Drop::Refused`] for packets that it
    /// never takes, [`Drop::DeviceDown`] for those written while it is down.
    pub fn drops(&self) -> &Counts<Drop> {
        &self.inward.drops
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

    /// Returns the number of packets and trains that were read but refused, as [`Tun::unread`] does.
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

    /// Returns the numbers of packets that the device did not take, by reason, as [`Tun::drops`] does.
    pub fn drops(&self) -> &Counts<Drop> {
        &self.inward.drops
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
        Ok(self.packets(len))
    }

    /// Returns the packets of a read with the given length.
    pub(super) fn packets(&mut self, len: usize) -> Packets<'_> {
        self.splitter.read_or(&self.buffer[..len], |_| self.unread += 1)
    }
}

/// The state of the direction to the device.
#[derive(Debug)]
pub(super) struct Inward {
    name: String,
    pub(super) joiner: Joiner,
    /// Numbers of packets that the device did not take.
    pub(super) drops: Counts<Drop>,
}

impl Inward {
    fn new(name: String, joiner: Joiner) -> Inward {
        Inward { name, joiner, drops: Counts::default() }
    }

    fn write<'b>(&mut self, file: &File, packets: impl IntoIterator<Item = &'b [u8]>) -> io::Result<usize> {
        let mut writes = self.begin(packets);
        while let Some(train) = writes.batch.pop() {
            let (segments, result) = (train.segments(), put(file, &train));
            writes.settle(segments, result)?;
        }
        Ok(writes.done)
    }

    /// Begins to write a batch of the given packets.
    pub(super) fn begin<'b>(&mut self, packets: impl IntoIterator<Item = &'b [u8]>) -> Writes<'_, 'b> {
        let mut batch = self.joiner.batch();
        packets.into_iter().for_each(|packet| _ = batch.push(packet));
        Writes { batch, done: 0, name: &self.name, drops: &mut self.drops }
    }
}

/// The writes of a batch.
pub(super) struct Writes<'j, 'b> {
    pub(super) batch: Batch<'j, 'b>,
    /// Number of trains written.
    pub(super) done: usize,
    name: &'j str,
    drops: &'j mut Counts<Drop>,
}

impl Writes<'_, '_> {
    /// Counts the train that was popped last, of `segments` packets, as written, or as dropped where the device did not
    /// take it; one of a kind that it refuses is popped again, segmented.
    ///
    /// # Errors
    /// An error of the device itself.
    pub(super) fn settle(&mut self, segments: usize, result: io::Result<()>) -> io::Result<()> {
        let Err(error) = result else {
            self.done += 1;
            return Ok(());
        };
        if error.raw_os_error() == Some(libc::EINVAL) && self.batch.narrow() {
            let device = self.name;
            notice!(warn, id = "offload", device, "the device refused a train; such trains are cut in software");
            return Ok(());
        }
        let Some(reason) = lost_by_device(&error) else { return Err(error) };
        self.drops.add_many(reason, segments as u64);
        Ok(())
    }
}

/// Writes a train to the device by one call, and by another one where the device was full and has room again.
pub(super) fn put(file: &File, train: &Train<'_>) -> io::Result<()> {
    loop {
        match put_once(file, train) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_writable(file) => {}
            result => return result,
        }
    }
}

/// Returns whether the device has room. A full one wakes an edge-triggered epoll, such as that of a runtime, only after
/// a poll has found it full (`tun_chr_poll`, `tun_sock_write_space`); a write is no such poll.
#[cold]
fn is_writable(file: &File) -> bool {
    let mut set = PollSet::default();
    set.add(&Interest { fd: file.as_fd(), read: false, write: true });
    set.wait(Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

/// Writes a train to the device by one call.
fn put_once(mut file: &File, train: &Train<'_>) -> io::Result<()> {
    let mut places = [IoSlice::new(&[]); USUAL_PIECES];
    let result = match train.gather(&mut places, IoSlice::new) {
        Some(pieces) => file.write_vectored(pieces),
        None => put_many(file, train),
    };
    match result? {
        // Without a header, an empty packet does not reach the driver, which would refuse it.
        0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::net::UdpSocket;
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::super::sys;
    use super::super::tests::{ENDS, PATIENCE, addresses, device, expect_datagrams, tap};
    use super::*;
    use crate::sys::{UDP_SEGMENT, set_option, set_value};
    use crate::testing::{self, Fill, bytes};

    /// Builds the datagrams of `len` bytes that carry `data` from behind the device to the kernel's port `target`.
    fn datagrams(target: u16, data: &[u8], len: usize) -> Vec<Vec<u8>> {
        let (here, there) = addresses(ENDS[0]);
        let packet = |part| testing::ip_packet((there, here), 17, 6, &testing::udp(9, target, part), Fill::Good);
        data.chunks(len).map(packet).collect()
    }

    #[test]
    fn a_packet_that_the_device_refuses_costs_no_other() {
        for offloads in [TunOffloads::All, TunOffloads::None] {
            let Some(port) = device(offloads) else { return };
            let mut tun = Tun::new(port, Config::vpn(Key([1, 2])));
            let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
            let data = bytes(200, 5);
            let good = datagrams(socket.local_addr().unwrap().port(), &data, 100);
            for (refused, bad) in (1..).zip([&[][..], &[0; 20]]) {
                let writes = tun.write([bad].into_iter().chain(good.iter().map(Vec::as_slice))).unwrap();
                assert!((1..=2).contains(&writes), "{writes} writes");
                expect_datagrams(&socket, &data, 100);
                assert_eq!((tun.drops().of(Drop::Refused), tun.drops().total()), (refused, refused));
            }
        }
    }

    #[test]
    fn a_train_that_cannot_be_split_is_counted_and_does_not_end_a_loop() {
        // Loose source and record route by way of 198.18.0.2: any user may set it.
        const ROUTE: [u8; 8] = [131, 7, 4, 198, 18, 0, 2, 0];
        let Some(port) = device(TunOffloads::All) else { return };
        if !port.limits().uso {
            return segue_lab::skip_this_test("this kernel has no UDP trains for TUN devices");
        }
        let mut tun = Tun::new(port, Config::vpn(Key([1, 2])));
        let [routed, other] = [(); 2].map(|()| UdpSocket::bind("198.18.0.1:0").unwrap());
        set_value(routed.as_fd(), libc::IPPROTO_IP, libc::IP_OPTIONS, &ROUTE).unwrap();
        set_option(routed.as_fd(), libc::SOL_UDP, UDP_SEGMENT, 500).unwrap();
        routed.send_to(&bytes(2000, 1), "198.18.0.3:7").unwrap();
        other.send_to(&bytes(321, 2), "198.18.0.2:7").unwrap();
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "the datagram behind it did not come");
            let packets = match tun.read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                packets => packets.expect("a loop goes on"),
            };
            if packets.iter().any(|packet| packet.len() == 28 + 321) {
                break;
            }
        }
        assert_eq!(tun.unread(), 1);
    }

    #[test]
    fn a_device_that_is_down_counts_what_it_loses_and_one_that_is_gone_is_an_error() {
        let Some(port) = device(TunOffloads::All) else { return };
        let mut tun = Tun::new(port, Config::vpn(Key([1, 2])));
        let packets = datagrams(7, &bytes(300, 5), 100);
        let packets = || packets.iter().map(Vec::as_slice);
        testing::ip("link set sg0 down");
        assert_eq!(tun.write(packets()).unwrap(), 0);
        assert_eq!((tun.drops().of(Drop::DeviceDown), tun.drops().total()), (3, 3));
        testing::ip("link del sg0");
        assert_eq!(tun.write(packets()).unwrap_err().raw_os_error(), Some(libc::EBADFD));
        assert_eq!(tun.drops().total(), 3);
    }

    #[test]
    fn a_descriptor_that_blocks_does_not_after_it_was_taken_over() {
        let Some(port) = device(TunOffloads::All) else { return };
        drop(port);
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
        sys::attach(file.as_fd(), "sg1", sys::IFF_TUN | sys::IFF_NO_PI | sys::IFF_VNET_HDR).unwrap();
        let mut tun = Tun::new(TunPort::from_fd(file.into(), TunOffloads::All).unwrap(), Config::vpn(Key([1, 2])));
        let (say, hear) = mpsc::channel();
        // Down since it exists, so that the kernel has sent nothing.
        thread::spawn(move || say.send(tun.read().map(|packets| packets.len()).map_err(|error| error.kind())));
        let read = hear.recv_timeout(PATIENCE).expect("a read that ends");
        assert_eq!(read, Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_full_device_wakes_an_edge_triggered_wait() {
        let Some(port) = tap(TunOffloads::All) else { return };
        // What is written waits in the slow queue of another interface, and is the device's as long.
        testing::ip("link add br0 type bridge");
        testing::ip("link add va type veth peer name vb");
        for name in ["br0", "va", "vb"] {
            testing::ip(&format!("link set {name} up"));
        }
        testing::ip("link set tp0 master br0");
        testing::ip("link set va master br0");
        let mut tc = Command::new("tc");
        tc.args("qdisc add dev va root tbf rate 200kbit burst 2000 latency 60s".split(' '));
        if !tc.status().is_ok_and(|status| status.success()) {
            return segue_lab::skip_this_test("this kernel has no token bucket filter");
        }
        let mut bridge = Command::new("bridge");
        bridge.args("fdb add 02:00:00:00:00:07 dev va master static".split(' '));
        assert!(bridge.status().unwrap().success());
        testing::set_send_buffer(port.fd(), 20_000).unwrap();
        let mut tun = Tun::new(port, Config::vpn(Key([1, 2])));
        let edges = testing::watch_writable(tun.as_fd()).unwrap();
        assert!(testing::next_edge(edges.as_fd(), PATIENCE).unwrap(), "it has room at first");
        let mut frame = [0; 1400];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
        let error = (0..1000).find_map(|_| tun.write([&frame[..]]).err()).expect("it is full once");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(testing::next_edge(edges.as_fd(), PATIENCE).unwrap(), "it has room again");
        assert_eq!((tun.write([&frame[..]]).unwrap(), tun.drops().total()), (1, 0));
    }

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
