//! Floods of hostile frames at a given rate, and a well-behaved host that uses the network at the same time.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use segue_lab::Host;

use crate::traffic::{self, Place};
use crate::wire::{pseudo, sum};
use crate::{Random, sys};

/// Interval of sending, for floods and for the honest host.
const TICK: Duration = Duration::from_millis(1);
/// Time within which the last replies to an honest host must arrive.
const LATE: Duration = Duration::from_secs(2);

/// A flood that continues until it is stopped or dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Sent>>>,
}

/// The frames that a flood has sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Number of frames that the kernel took. Those that an interface had no room for do not count.
    pub frames: u64,
    /// Time of the flood, from its start until it was stopped.
    pub time: Duration,
    /// Rate of the flood, in frames per second.
    pub per_second: u32,
}

impl Sent {
    /// Returns the sent part of the frames for which there was time; 1 if there was time for none.
    pub fn part(&self) -> f64 {
        let due = (self.time.as_secs_f64() * f64::from(self.per_second)).floor();
        if due < 1.0 { 1.0 } else { self.frames as f64 / due }
    }
}

impl Flood {
    /// Starts to send frames from an interface of a host, at a given rate a second.
    #[track_caller]
    pub fn start(
        host: &Host,
        interface: &str,
        per_second: u32,
        mut frame: impl FnMut(&mut Random) -> Vec<u8> + Send + 'static,
    ) -> Flood {
        let socket = traffic::inside(host, || sys::packet_socket(interface)).expect("a packet socket");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The time in which the thread waits for a processor counts.
        let begin = Instant::now();
        let send = move || {
            let (mut tried, mut frames, mut random) = (0_u64, 0_u64, Random::new(1));
            let is_stopped = || stopped.load(Ordering::Relaxed);
            while !is_stopped() {
                let due = begin.elapsed().as_micros() as u64 * u64::from(per_second) / 1_000_000;
                while tried < due && !is_stopped() {
                    frames += u64::from(sys::send_frame(&socket, &frame(&mut random))?);
                    tried += 1;
                }
                thread::sleep(TICK);
            }
            Ok(Sent { frames, time: begin.elapsed(), per_second })
        };
        Flood { stop, thread: Some(thread::spawn(send)) }
    }

    /// Ends the flood, and returns what it has sent.
    ///
    /// # Panics
    /// Where a frame could not be sent for another reason than a lack of room.
    #[track_caller]
    pub fn stop(mut self) -> Sent {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        let Some(Ok(Ok(sent))) = ended else { panic!("the flood failed: {ended:?}") };
        sent
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, None | Some(Ok(Ok(_)))), "the flood failed: {ended:?}");
    }
}

/// A host that accepts and closes TCP connections until it is dropped.
#[derive(Debug)]
pub struct Acceptor {
    /// Local address of the listening TCP socket.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts to listen at an address of a host.
    #[track_caller]
    pub fn start(at: Place<'_>) -> Acceptor {
        let listener = traffic::inside(at.host, || TcpListener::bind((at.address, 0))).expect("a listener");
        listener.set_nonblocking(true).expect("no waiting");
        let address = listener.local_addr().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accept = move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok(connection) => drop(connection),
                    Err(_) => thread::sleep(TICK),
                }
            }
        };
        Acceptor { address, stop, thread: Some(thread::spawn(accept)) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Numbers of connections and datagrams that an honest host tried, and of those that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// Numbers of datagrams of a steady flow that were sent, and that were echoed.
    pub packets: (u32, u32),
    /// Numbers of new flows, half of UDP and half of TCP, that were tried, and that were answered.
    pub flows: (u32, u32),
}

impl Success {
    /// Returns the smaller of the success rates of packets and of flows.
    pub fn part(&self) -> f64 {
        let part = |(tried, done): (u32, u32)| f64::from(done) / f64::from(tried.max(1));
        part(self.packets).min(part(self.flows))
    }
}

/// Sends 1000 datagrams per second to an echo server, and begins 50 flows per second, for some time.
#[track_caller]
pub fn honest(from: Place<'_>, echo: SocketAddr, tcp: SocketAddr, length: Duration) -> Success {
    let work = || -> io::Result<Success> {
        let udp = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((from.address, 0))?;
            socket.connect(echo)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let (steady, mut waiting) = (udp()?, Vec::new());
        let (begin, mut success, mut bytes) = (Instant::now(), Success::default(), [0; 64]);
        thread::scope(|scope| {
            let mut connecting = Vec::new();
            loop {
                let elapsed = begin.elapsed();
                let due = elapsed.min(length).as_millis() as u32;
                while success.packets.0 < due {
                    success.packets.0 += 1;
                    let _ = steady.send(&success.packets.0.to_ne_bytes());
                }
                while success.flows.0 < due / 20 {
                    success.flows.0 += 1;
                    if success.flows.0 % 2 == 0 {
                        connecting.push(scope.spawn(move || TcpStream::connect_timeout(&tcp, LATE).is_ok()));
                    } else {
                        let flow = udp()?;
                        let _ = flow.send(b"new");
                        waiting.push(flow);
                    }
                }
                while steady.recv(&mut bytes).is_ok() {
                    success.packets.1 += 1;
                }
                let before = waiting.len();
                waiting.retain(|flow| !matches!(flow.recv(&mut [0; 64]), Ok(3)));
                success.flows.1 += (before - waiting.len()) as u32;
                let is_done = success.packets.1 >= success.packets.0 && waiting.is_empty();
                if elapsed >= length && (is_done || elapsed >= length + LATE) {
                    break;
                }
                thread::sleep(TICK);
            }
            let connected = connecting.into_iter().filter_map(|one| one.join().ok()).filter(|ok| *ok).count();
            success.flows.1 += connected as u32;
            Ok(success)
        })
    };
    traffic::inside(from.host, work).unwrap_or_else(|error| match error.kind() {
        ErrorKind::Other => panic!("the honest host: {error}"),
        _ => panic!("the honest host has no sockets: {error}"),
    })
}

/// An Ethernet header for frames of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Stations {
    /// Destination Ethernet address of frames.
    pub to: [u8; 6],
    /// Source Ethernet address of frames.
    pub from: [u8; 6],
}

impl Stations {
    /// Reads the link addresses for frames from one host's interface to another host's.
    #[track_caller]
    pub fn between(from: (&Host, &str), to: (&Host, &str)) -> Stations {
        let mac = |(host, device): (&Host, &str)| {
            let text = host.run("cat", &[&format!("/sys/class/net/{device}/address")]).expect("an interface");
            let bytes: Vec<u8> = text.trim().split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
            <[u8; 6]>::try_from(bytes).expect("an Ethernet address")
        };
        Stations { to: mac(to), from: mac(from) }
    }

    fn frame(&self, to: [u8; 6], ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
        [&to[..], &self.from, &ethertype, payload].concat()
    }

    /// Returns a frame with an IPv4 packet; `fragment` is the word of flags and offset.
    pub fn ipv4(&self, ends: [Ipv4Addr; 2], protocol: u8, ttl: u8, (id, fragment): (u16, u16), data: &[u8]) -> Vec<u8> {
        let len = (20 + data.len()) as u16;
        let mut header = [&[0x45, 0][..], &len.to_be_bytes(), &id.to_be_bytes(), &fragment.to_be_bytes()].concat();
        header.extend([ttl, protocol, 0, 0]);
        header.extend(ends.map(|end| end.octets()).concat());
        let field = !sum(&header);
        header[10..12].copy_from_slice(&field.to_be_bytes());
        self.frame(self.to, [8, 0], &[&header, data].concat())
    }

    /// Returns a frame with a UDP datagram over IPv4, without checksum.
    pub fn udp(&self, ends: [Ipv4Addr; 2], ports: [u16; 2], ttl: u8) -> Vec<u8> {
        let header = [ports[0].to_be_bytes(), ports[1].to_be_bytes(), [0, 18], [0, 0]].concat();
        self.ipv4(ends, 17, ttl, (0, 0x4000), &[&header[..], b"flooding!!"].concat())
    }

    /// Returns a frame with a TCP segment over IPv4 that has SYN.
    pub fn syn(&self, ends: [Ipv4Addr; 2], ports: [u16; 2], seq: u32) -> Vec<u8> {
        let mut header = [ports[0].to_be_bytes(), ports[1].to_be_bytes()].concat();
        header.extend(seq.to_be_bytes());
        header.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        let [source, destination] = ends.map(|end| end.octets());
        let total = u32::from(pseudo(&source, &destination, 6, 20)) + u32::from(sum(&header));
        let field = !((total & 0xffff) + (total >> 16)) as u16;
        header[16..18].copy_from_slice(&field.to_be_bytes());
        self.ipv4(ends, 6, 64, (0, 0x4000), &header)
    }

    /// Builds a broadcast ARP request.
    pub fn arp(&self, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
        arp.extend([&self.from[..], &sender.octets(), &[0; 6], &target.octets()].concat());
        self.frame([0xff; 6], [8, 6], &arp)
    }

    /// Returns a frame with an ICMPv6 message of neighbour discovery to a group; its checksum is filled in.
    pub fn discovery(&self, source: Ipv6Addr, group: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
        complete([source, group], 58, &mut message, 2);
        let octets = group.octets();
        let to = [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]];
        self.frame(to, [0x86, 0xdd], &ipv6([source, group], (58, 255), &message))
    }

    /// Returns a frame with a UDP datagram over IPv6.
    pub fn udp6(&self, ends: [Ipv6Addr; 2], ports: [u16; 2]) -> Vec<u8> {
        let header = [ports[0].to_be_bytes(), ports[1].to_be_bytes(), [0, 18], [0, 0]].concat();
        let mut datagram = [&header[..], b"flooding!!"].concat();
        complete(ends, 17, &mut datagram, 6);
        self.frame(self.to, [0x86, 0xdd], &ipv6(ends, (17, 64), &datagram))
    }

    /// Returns a neighbour solicitation for `target`.
    pub fn solicitation(&self, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
        let target = target.octets();
        let mut group = [0; 16];
        group[..13].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]);
        group[13..].copy_from_slice(&target[13..]);
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target, &[1, 1], &self.from].concat();
        self.discovery(source, group.into(), message)
    }

    /// Returns a router advertisement of high preference: a default route, a prefix that is on the link, and a route.
    pub fn advertisement(&self, source: Ipv6Addr, on_link: (Ipv6Addr, u8), route: (Ipv6Addr, u8)) -> Vec<u8> {
        let hour = 3600_u32.to_be_bytes();
        let mut message = vec![134, 0, 0, 0, 64, 0x08, 0x0e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
        message.extend([&[3, 4, on_link.1, 0xc0][..], &hour, &hour, &[0; 4], &on_link.0.octets()].concat());
        message.extend([&[24, 3, route.1, 0x08][..], &hour, &route.0.octets()].concat());
        message.extend([&[1, 1][..], &self.from].concat());
        self.discovery(source, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), message)
    }
}

/// Returns an IPv6 packet with the given next header and hop limit.
fn ipv6(ends: [Ipv6Addr; 2], (next, hop_limit): (u8, u8), data: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((data.len() as u16).to_be_bytes());
    packet.extend([next, hop_limit]);
    packet.extend([&ends.map(|end| end.octets()).concat(), data].concat());
    packet
}

/// Fills in the checksum at `at` of what an IPv6 packet carries.
fn complete(ends: [Ipv6Addr; 2], next: u8, data: &mut [u8], at: usize) {
    let [source, destination] = ends.map(|end| end.octets());
    let total = u32::from(pseudo(&source, &destination, next, data.len())) + u32::from(sum(data));
    let field = !((total & 0xffff) + (total >> 16)) as u16;
    data[at..at + 2].copy_from_slice(&field.to_be_bytes());
}
