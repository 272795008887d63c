//! Batched datagrams through a UDP socket that the caller owns, in runs by UDP_SEGMENT and UDP_GRO.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

#[cfg(feature = "tokio")]
use tokio::io::Interest;

#[cfg(feature = "tokio")]
use super::send::is_pending;
use crate::environment::Offloads;
use crate::messages::{Outgoing, RecvScratch, SendScratch};
use crate::port::OffloadState;
use crate::sys::{self, MAX_MESSAGES, UDP_GRO, UDP_SEGMENT};

/// Largest UDP payload of an IPv4 packet, which also limits a run.
const MAX_RUN: usize = 65_507;
/// Largest number of datagrams of a run, which every kernel with UDP_SEGMENT accepts.
const MAX_SEGMENTS: usize = 64;
/// Time after which UDP_SEGMENT is retried where the interface has no checksum offload.
const RETRY: Duration = Duration::from_secs(1);
/// Length of the memory for one received message: the longest run.
const WINDOW: usize = 1 << 16;
/// Number of messages received by one call.
const WINDOWS: usize = 16;

/// A sender of datagrams through a UDP socket owned by the caller, with as few system calls as possible.
///
/// Consecutive datagrams to one address with equal length, of which the last may be shorter, are handed to the kernel
/// as one (UDP_SEGMENT, Linux 4.18), and several such runs by one call. The socket may be connected or not, blocking or
/// not; it is never waited for. One sender may serve several sockets, from any thread.
///
/// ```
/// use std::net::UdpSocket;
/// use segue_port::udp::Sender;
///
/// let (socket, peer) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// let datagrams = [[1; 1200], [2; 1200], [3; 1200]];
/// let to = peer.local_addr()?;
/// let sent = Sender::new().send(&socket, &datagrams, |datagram| (datagram, Some(to)))?;
/// assert_eq!(sent, 3);
/// # let mut buffer = [0; 2000];
/// # assert_eq!((0..3).map(|_| peer.recv(&mut buffer).unwrap()).sum::<usize>(), 3600);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Sender {
    scratch: SendScratch,
    /// Number of datagrams in each message of a call.
    runs: Vec<usize>,
    /// The time at which UDP_SEGMENT is tried again, after a device refused it.
    retry: Option<Instant>,
    refused: u64,
    /// Number of datagrams that [`Sender::send_async`] could not send.
    lost: u64,
    /// Whether every datagram is sent as a separate message.
    is_plain: bool,
}

impl Default for Sender {
    fn default() -> Sender {
        Sender::new()
    }
}

impl Sender {
    /// Creates a sender without queued packets. Where the environment has `SEGUE_OFFLOAD=0` (or `-udp`), it does
    /// without UDP_SEGMENT.
    pub fn new() -> Sender {
        let is_plain = !Offloads::of_environment().udp;
        Sender { scratch: SendScratch::default(), runs: Vec::new(), retry: None, refused: 0, lost: 0, is_plain }
    }

    /// Sends datagrams in order, and returns the number accepted by the kernel: all, unless the socket is full. `of`
    /// gives the bytes and the destination of each, which is `None` for a connected socket.
    ///
    /// A run that the kernel refuses, because the interface has no checksum offload (before Linux 6.11) or because its
    /// datagrams are longer than the path takes, is sent again datagram by datagram.
    ///
    /// # Errors
    /// The error of the first datagram; [`ErrorKind::WouldBlock`] where the socket is full. After an error further
    /// on, those before it were sent and are counted; the next call, with the rest, meets it again if it lasts.
    pub fn send<'a, T>(
        &mut self,
        socket: impl AsFd,
        datagrams: &'a [T],
        of: impl Fn(&'a T) -> (&'a [u8], Option<SocketAddr>),
    ) -> io::Result<usize> {
        self.send_from(socket, datagrams, |datagram| {
            let (bytes, to) = of(datagram);
            (bytes, to, None)
        })
    }

    /// Sends datagrams like [`Sender::send`]; `of` also gives the local address from which each leaves (`IP_PKTINFO`),
    /// for a socket that is bound to none: one of the family of the destination, or `None` for the kernel's choice.
    ///
    /// ```
    /// use std::net::UdpSocket;
    /// use segue_port::udp::{Receiver, Sender};
    ///
    /// let (server, client) = (UdpSocket::bind("0.0.0.0:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// let mut receiver = Receiver::with_local(&server)?;
    /// client.connect(("127.0.0.2", server.local_addr()?.port()))?;
    /// client.send(b"hello")?;
    /// # let mut wait = [0; 1];
    /// # server.peek(&mut wait)?;
    /// // When the socket is readable: an answer leaves from the address that was asked, here 127.0.0.2.
    /// for (datagram, from, local) in receiver.receive(&server)?.iter_mut_with_local() {
    ///     Sender::new().send_from(&server, &[datagram], |answer| (&answer[..], Some(from), local))?;
    /// }
    /// # let mut answer = [0; 9];
    /// # assert_eq!(client.recv(&mut answer)?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Sender::send`], and for an address that is not one of this host.
    pub fn send_from<'a, T>(
        &mut self,
        socket: impl AsFd,
        datagrams: &'a [T],
        of: impl Fn(&'a T) -> (&'a [u8], Option<SocketAddr>, Option<IpAddr>),
    ) -> io::Result<usize> {
        let (mut done, mut plain_to) = (0, 0);
        while let Some(first) = datagrams.get(done) {
            let (_, to, source) = of(first);
            if self.retry.is_some_and(|at| Instant::now() >= at) {
                self.retry = None;
            }
            let (mut calls, runs) = (self.scratch.begin(), &mut self.runs);
            runs.clear();
            // Length of the run's first datagram, bytes in all, and whether a shorter one has ended it.
            let (mut size, mut bytes, mut ended) = (0, 0, true);
            for (at, datagram) in datagrams.iter().enumerate().skip(done) {
                let (piece, dest, from) = of(datagram);
                let joins = !ended && piece.len() <= size && !piece.is_empty() && bytes + piece.len() <= MAX_RUN;
                let may_join = at >= plain_to && self.retry.is_none() && !self.is_plain;
                if (dest, from) != (to, source) {
                    break;
                }
                let is_full = runs.len() == MAX_MESSAGES;
                match runs.last_mut() {
                    Some(count) if joins && may_join && *count < MAX_SEGMENTS => {
                        *count += 1;
                        if *count == 2 {
                            calls.control(libc::SOL_UDP, UDP_SEGMENT, size as u16);
                        }
                        ended = piece.len() < size;
                        bytes += piece.len();
                    }
                    _ if is_full => break,
                    _ => {
                        calls.message();
                        if let Some(source) = source {
                            leave_from(&mut calls, source);
                        }
                        runs.push(1);
                        (size, bytes, ended) = (piece.len(), piece.len(), piece.is_empty());
                    }
                }
                calls.piece(piece);
            }
            match calls.send(socket.as_fd(), to, 0) {
                Ok(sent) => done += runs[..sent].iter().sum::<usize>(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => match (runs[0], error.raw_os_error()) {
                    (run @ 2.., Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE)) => {
                        self.refused += 1;
                        if self.refused == 1 {
                            notice!(warn, id = "offload", %error, "UDP_SEGMENT is refused; such runs are sent one by one");
                        }
                        plain_to = done + run;
                        if error.raw_os_error() == Some(libc::EIO) {
                            self.retry = Some(Instant::now() + RETRY);
                        }
                    }
                    _ if done > 0 => return Ok(done),
                    _ => return Err(error),
                },
            }
        }
        Ok(done)
    }

    /// Sends all datagrams like [`Sender::send`], and waits on the runtime while the socket is full. A datagram that
    /// the kernel refuses, because there is no route or a rule denies it, is lost, as on a wire, and counted
    /// ([`Sender::lost`]); those behind it are sent. An error that may be about an earlier datagram (ICMP) costs none.
    ///
    /// ```
    /// # async fn send(socket: tokio::net::UdpSocket, to: std::net::SocketAddr) -> std::io::Result<()> {
    /// let datagrams = [[1; 1200], [2; 1200]];
    /// let mut sender = segue_port::udp::Sender::new();
    /// sender.send_async(&socket, &datagrams, |datagram| (datagram, Some(to))).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// An error of the socket or of the runtime, which every other datagram would meet too.
    #[cfg(feature = "tokio")]
    pub async fn send_async<'a, T>(
        &mut self,
        socket: &tokio::net::UdpSocket,
        mut datagrams: &'a [T],
        of: impl Fn(&'a T) -> (&'a [u8], Option<SocketAddr>),
    ) -> io::Result<()> {
        let mut is_repeated = false;
        while !datagrams.is_empty() {
            let sent = match socket.async_io(Interest::WRITABLE, || self.send(socket, datagrams, &of)).await {
                Ok(sent) => sent,
                Err(error) if is_of_socket(&error) => return Err(error),
                Err(error) if !is_repeated && is_pending(&error) => {
                    is_repeated = true;
                    continue;
                }
                Err(_) => {
                    self.lost += 1;
                    1
                }
            };
            datagrams = &datagrams[sent..];
            is_repeated = false;
        }
        Ok(())
    }

    /// Returns the number of datagrams that `send_async`, of the feature `tokio`, lost because the kernel refused them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of runs that the kernel has refused, which were then sent datagram by datagram.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Switches UDP_SEGMENT on or off, for a kernel or a device known to do it wrongly. Off, each datagram is a message
    /// by itself.
    ///
    /// ```
    /// use segue_port::OffloadState;
    /// use segue_port::udp::Sender;
    ///
    /// let mut sender = Sender::new();
    /// sender.set_udp_segment(false);
    /// assert_eq!(sender.udp_segment(), OffloadState::Off);
    /// ```
    pub fn set_udp_segment(&mut self, is_on: bool) {
        self.is_plain = !is_on;
    }

    /// Returns the state of UDP_SEGMENT: [`OffloadState::Off`] where the environment or [`Sender::set_udp_segment`] has
    /// switched it off, [`OffloadState::Refused`] for about a second after an interface without checksum offload has
    /// refused a run.
    pub fn udp_segment(&self) -> OffloadState {
        match self.retry {
            _ if self.is_plain => OffloadState::Off,
            // The time may be over although nothing was sent since.
            Some(at) if Instant::now() < at => OffloadState::Refused(libc::EIO),
            _ => OffloadState::On,
        }
    }
}

/// Returns whether a failed send is not about its datagram: the socket is gone, shut down, or has no destination for
/// datagrams without one, or the runtime ends.
#[cfg(feature = "tokio")]
fn is_of_socket(error: &io::Error) -> bool {
    let errors = [libc::EBADF, libc::ENOTSOCK, libc::EPIPE, libc::EDESTADDRREQ];
    error.raw_os_error().is_none_or(|number| errors.contains(&number))
}

/// Sets the local address from which the last message leaves.
fn leave_from(calls: &mut Outgoing<'_, '_>, source: IpAddr) {
    match source {
        IpAddr::V4(address) => {
            let [spec, none] = [u32::from_ne_bytes(address.octets()), 0].map(|s_addr| libc::in_addr { s_addr });
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec, ipi_addr: none };
            calls.control(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        IpAddr::V6(address) => {
            let address = libc::in6_addr { s6_addr: address.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: 0 };
            calls.control(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
}

/// A receiver of datagrams from a UDP socket owned by the caller, with as few system calls as possible.
///
/// The kernel hands over a run of datagrams of one flow in one piece (UDP_GRO, Linux 5.0), and several such runs by one
/// call. What came may be changed where it lies, such as opened by a cipher. It takes 1 MiB of memory.
///
/// ```
/// use std::net::UdpSocket;
/// use segue_port::udp::Receiver;
///
/// let (socket, peer) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// let mut receiver = Receiver::new(&socket);
/// peer.send_to(b"hello", socket.local_addr()?)?;
/// # let mut wait = [0; 1];
/// # socket.peek(&mut wait)?;
/// // When the socket is readable:
/// for (datagram, from) in receiver.receive(&socket)?.iter_mut() {
///     assert_eq!((&*datagram, from), (&b"hello"[..], peer.local_addr()?));
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    scratch: RecvScratch,
    memory: Vec<u8>,
    /// The run in each window.
    got: Vec<Option<Run>>,
}

/// A run of datagrams in a window: number of its bytes, length of each datagram, its sender, and the address to which
/// it was sent.
type Run = (usize, usize, SocketAddr, Option<IpAddr>);

impl Receiver {
    /// Creates a receiver, and enables UDP_GRO on the socket; a kernel without it delivers single datagrams. Where the
    /// environment has `SEGUE_OFFLOAD=0` (or `-udp`), it asks for single datagrams.
    pub fn new(socket: impl AsFd) -> Receiver {
        // Only slower without.
        let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, UDP_GRO, i32::from(Offloads::of_environment().udp));
        Receiver { scratch: RecvScratch::default(), memory: vec![0; WINDOWS * WINDOW], got: Vec::new() }
    }

    /// Creates a receiver like [`Receiver::new`] that also learns the local address to which each datagram was sent
    /// (`IP_PKTINFO`), for a socket that is bound to none: see [`Datagrams::iter_mut_with_local`].
    ///
    /// # Errors
    /// Where the kernel refuses that option.
    pub fn with_local(socket: impl AsFd) -> io::Result<Receiver> {
        // On a socket for both families, that of IPv6 gives IPv4 addresses too, in their mapped form.
        sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
            .or_else(|_| sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1))?;
        Ok(Receiver::new(socket))
    }

    /// Receives the queued datagrams without blocking.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] where nothing waits, or an error of the socket, such as
    /// [`ErrorKind::ConnectionRefused`] on a connected one.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<Datagrams<'_>> {
        self.fill(socket)?;
        Ok(Datagrams { memory: &mut self.memory, got: &self.got })
    }

    /// Waits on the runtime until the socket is readable, and receives the queued datagrams.
    ///
    /// ```
    /// # async fn receive(socket: tokio::net::UdpSocket) -> std::io::Result<()> {
    /// let mut receiver = segue_port::udp::Receiver::new(&socket);
    /// for (datagram, from) in receiver.receive_async(&socket).await?.iter_mut() {
    ///     println!("{} bytes of {from}", datagram.len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A call that is dropped while it waits has received nothing.
    ///
    /// # Errors
    /// As for [`Receiver::receive`], but for [`ErrorKind::WouldBlock`].
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&mut self, socket: &tokio::net::UdpSocket) -> io::Result<Datagrams<'_>> {
        socket.async_io(Interest::READABLE, || self.fill(socket)).await?;
        Ok(Datagrams { memory: &mut self.memory, got: &self.got })
    }

    fn fill(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.got.clear();
        let mut call = self.scratch.begin();
        self.memory.chunks_exact_mut(WINDOW).for_each(|window| call.window(window));
        let count = call.receive(socket.as_fd())?;
        for index in 0..count {
            let received = self.scratch.received(index);
            let size = received.segment_len.unwrap_or(received.len);
            // A window without a sender has none of its datagrams given out; those behind it keep their places.
            self.got.push(received.peer.map(|from| (received.len, size, from, received.local)));
        }
        Ok(())
    }
}

/// The datagrams received by one call.
#[derive(Debug)]
pub struct Datagrams<'a> {
    memory: &'a mut [u8],
    got: &'a [Option<Run>],
}

impl Datagrams<'_> {
    /// Returns the datagrams in their order, each with the address of its sender.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&mut [u8], SocketAddr)> {
        self.iter_mut_with_local().map(|(datagram, from, _)| (datagram, from))
    }

    /// Returns the datagrams like [`Datagrams::iter_mut`], each also with the local address to which it was sent;
    /// `None` from a receiver that was not created by [`Receiver::with_local`].
    pub fn iter_mut_with_local(&mut self) -> impl Iterator<Item = (&mut [u8], SocketAddr, Option<IpAddr>)> {
        let windows = self.memory.chunks_exact_mut(WINDOW).zip(self.got);
        let runs = windows.filter_map(|(window, run)| Some((window, run.as_ref()?)));
        runs.flat_map(|(window, (len, size, from, local))| {
            let whole = &mut window[..(*len).min(WINDOW)];
            // An empty datagram is one too.
            let (empty, whole) = if whole.is_empty() { (Some(whole), &mut [][..]) } else { (None, whole) };
            empty.into_iter().chain(whole.chunks_mut((*size).max(1))).map(|datagram| (datagram, *from, *local))
        })
    }

    /// Returns the number of messages received, each with one run of datagrams.
    pub fn runs(&self) -> usize {
        self.got.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, UdpSocket};
    use std::thread;

    use super::*;
    use crate::testing::{self, bytes};

    /// Receives until `count` datagrams have arrived; returns them with their senders, and the number of runs.
    fn receive(receiver: &mut Receiver, socket: &UdpSocket, count: usize) -> (Vec<(Vec<u8>, SocketAddr)>, usize) {
        let (mut all, mut runs, begin) = (Vec::new(), 0, Instant::now());
        while all.len() < count {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} of {count} came", all.len());
            match receiver.receive(socket) {
                Ok(mut got) => {
                    runs += got.runs();
                    all.extend(got.iter_mut().map(|(datagram, from)| (datagram.to_vec(), from)));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        (all, runs)
    }

    #[test]
    fn datagrams_of_all_lengths_arrive_in_order_at_two_addresses() {
        if testing::namespace().is_none() {
            return;
        }
        testing::wait_for_local(Ipv6Addr::LOCALHOST);
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let [from, a, b] = [(); 3].map(|()| UdpSocket::bind(host).unwrap());
            let (mut at_a, mut at_b) = (Receiver::new(&a), Receiver::new(&b));
            let lens = [1200, 1200, 1200, 700, 700, 0, 0, 3, 1300, 1300, 1, 1, 1, 1400, 9, 9000, 9000];
            let to = |at: usize| if at % 11 < 6 { &a } else { &b };
            let datagrams: Vec<_> =
                lens.into_iter().enumerate().map(|(at, len)| (bytes(len, at), to(at).local_addr().unwrap())).collect();
            let mut sender = Sender::new();
            let sent = sender.send(&from, &datagrams, |(bytes, to)| (bytes, Some(*to))).unwrap();
            assert_eq!(sent, datagrams.len());
            for (receiver, socket) in [(&mut at_a, &a), (&mut at_b, &b)] {
                let here = socket.local_addr().unwrap();
                let wanted: Vec<_> = datagrams.iter().filter(|(_, to)| *to == here).map(|(bytes, _)| bytes).collect();
                let (got, runs) = receive(receiver, socket, wanted.len());
                assert!(got.iter().all(|(_, peer)| *peer == from.local_addr().unwrap()));
                assert!(got.iter().map(|(bytes, _)| bytes).eq(wanted));
                assert!(sender.refused() > 0 || runs < got.len(), "{runs} runs");
            }
        }
    }

    #[test]
    fn a_message_without_a_sender_leaves_the_others_their_bytes() {
        let mut memory = [1_u8, 2, 3].map(|byte| vec![byte; WINDOW]).concat();
        let [a, b] = [7, 8].map(|port| SocketAddr::from(([198, 18, 0, 1], port)));
        let got = [Some((2, 2, a, None)), None, Some((5, 3, b, Some(a.ip())))];
        let mut datagrams = Datagrams { memory: &mut memory, got: &got };
        assert_eq!(datagrams.runs(), 2);
        let given: Vec<_> =
            datagrams.iter_mut_with_local().map(|(bytes, from, local)| (bytes.to_vec(), from, local)).collect();
        let wanted = [(vec![1_u8; 2], a, None), (vec![3; 3], b, Some(a.ip())), (vec![3; 2], b, Some(a.ip()))];
        assert_eq!(given, wanted);
    }

    #[test]
    fn a_run_that_the_kernel_refuses_is_sent_datagram_by_datagram() {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        let mut receiver = Receiver::new(&to);
        // The kernel cuts nothing without checksums (EINVAL).
        sys::set_option(from.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let datagrams: Vec<_> = (0..9).map(|at| bytes(1000, at)).collect();
        let mut sender = Sender::new();
        assert_eq!(sender.send(&from, &datagrams, |bytes| (bytes, None)).unwrap(), 9);
        assert_eq!(sender.refused(), 1);
        let (got, _) = receive(&mut receiver, &to, 9);
        assert!(got.iter().map(|(bytes, _)| bytes).eq(&datagrams));
        assert_eq!(sender.udp_segment(), OffloadState::On, "other runs may pass");
        // One without UDP_SEGMENT is refused nothing.
        let mut plain = Sender::new();
        plain.set_udp_segment(false);
        assert_eq!(plain.udp_segment(), OffloadState::Off);
        assert_eq!(plain.send(&from, &datagrams, |bytes| (bytes, None)).unwrap(), 9);
        assert_eq!((plain.refused(), receive(&mut receiver, &to, 9).0.len()), (0, 9));
    }

    #[test]
    fn a_refusal_ends_with_its_time_although_nothing_is_sent() {
        let mut sender = Sender::new();
        sender.set_udp_segment(true);
        sender.retry = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(sender.udp_segment(), OffloadState::Refused(libc::EIO));
        sender.retry = Some(Instant::now());
        assert_eq!(sender.udp_segment(), OffloadState::On);
    }

    #[test]
    fn what_is_sent_before_an_error_is_counted() {
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let good = (vec![1; 100], to.local_addr().unwrap());
        let bad = (vec![1; 70_000], to.local_addr().unwrap());
        let mut sender = Sender::new();
        let datagrams = [good.clone(), good.clone(), bad, good];
        assert_eq!(sender.send(&from, &datagrams, |(bytes, to)| (bytes, Some(*to))).unwrap(), 2);
        let error = sender.send(&from, &datagrams[2..], |(bytes, to)| (bytes, Some(*to))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn an_answer_leaves_from_the_address_that_was_asked() {
        for host in ["0.0.0.0:0", "[::]:0"] {
            let (server, client) = (UdpSocket::bind(host).unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            let mut receiver = Receiver::with_local(&server).unwrap();
            // Every address of 127.0.0.0/8 is one of this host; without a choice the kernel takes 127.0.0.1.
            let asked = SocketAddr::new(IpAddr::from([127, 0, 0, 7]), server.local_addr().unwrap().port());
            client.send_to(&bytes(100, 1), asked).unwrap();
            server.peek(&mut [0]).unwrap();
            let mut got = receiver.receive(&server).unwrap();
            let (from, local) = got.iter_mut_with_local().map(|(_, from, local)| (from, local)).next().unwrap();
            assert_eq!(local.map(|address| address.to_canonical()), Some(asked.ip()), "{host}");
            let answers: Vec<_> = (0..5).map(|at| bytes(1000, at)).collect();
            let sent = Sender::new().send_from(&server, &answers, |bytes| (bytes, Some(from), local)).unwrap();
            assert_eq!(sent, answers.len());
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            for answer in &answers {
                let mut memory = [0; 2000];
                let (len, from) = client.recv_from(&mut memory).unwrap();
                assert_eq!((&memory[..len], from), (&answer[..], asked), "{host}");
            }
            // An address that is not one of this host is no source.
            let other = Some(IpAddr::from([198, 18, 255, 1]));
            assert!(Sender::new().send_from(&server, &answers[..1], |bytes| (bytes, Some(from), other)).is_err());
        }
    }

    #[test]
    fn both_are_for_any_thread() {
        fn check<T: Send + Sync>() {}
        check::<Sender>();
        check::<Receiver>();
    }
}
