//! Tests of the adopters' example programs between two kernels: each end is a device in its own network namespace, the
//! kernels on top run a TCP connection, and every byte must arrive. Also tests of what a device refuses, and of long
//! packets.

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use segue::easy::Splitter;
use segue::gro::Config;
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{Form, TUN_OFFLOADS};

use segue_lab::Host;
use segue_port::tun::{Existing, OpenError, Tun, TunConfig, TunOffloads, TunPort};
use segue_port::udp::{Receiver, Sender};
use segue_port::{Port, packet_socket, udp};
use segue_testkit::build::{Ip, V4};
use segue_testkit::flow;

#[path = "../../segue/examples/vpn.rs"]
#[allow(dead_code, unreachable_pub, reason = "a program of its own, of which the rig is not used here")]
mod with_the_engine;

#[path = "../examples/tun_vpn.rs"]
#[allow(dead_code, unreachable_pub, reason = "a program of its own, of which the rig is not used here")]
mod with_the_port;

/// Longest permitted time of a transfer, many times its usual duration.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of bytes that the connection carries.
const DATA: usize = 4 << 20;

/// One end of a VPN.
trait Endpoint {
    /// Opens the TUN device.
    fn open(config: &TunConfig) -> Result<Self, OpenError>
    where
        Self: Sized;
    /// Reads the device once and sends the packets.
    fn outward(&mut self, send: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>;
    /// Writes datagrams to the device.
    fn inward(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()>;
    /// Returns the numbers of packets and of segments in trains that went in, if the end counts them.
    fn joined(&mut self) -> (u64, u64) {
        (0, 0)
    }
}

impl Endpoint for with_the_engine::Vpn<File> {
    fn open(config: &TunConfig) -> Result<Self, OpenError> {
        let port = TunPort::open(config)?;
        assert_eq!(port.form(), Some(Form::Basic));
        let bits = TUN_OFFLOADS[usize::from(!port.limits().uso)];
        Ok(with_the_engine::Vpn::new(port.into_fd().into(), bits, Key([1, 2])))
    }

    fn outward(&mut self, send: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.outward(|datagram| send(datagram))
    }

    fn inward(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        let (front, behind) = with_the_engine::ROOM;
        self.inward(datagrams.iter().map(|datagram| &datagram[front..datagram.len() - behind]));
        Ok(())
    }
}

impl Endpoint for Tun {
    fn open(config: &TunConfig) -> Result<Self, OpenError> {
        TunPort::open(config).map(|port| Tun::new(port, Config::vpn(Key([3, 4]))))
    }

    fn outward(&mut self, send: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        with_the_port::outward(self, |datagram| send(datagram))
    }

    fn inward(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        with_the_port::inward(self, datagrams.iter().map(Vec::as_slice)).map(drop)
    }

    fn joined(&mut self) -> (u64, u64) {
        let stats = self.joiner().stats();
        (stats.packets, stats.segments)
    }
}

/// An end whose device takes trains as plain packets.
struct Plain(Tun);

impl Endpoint for Plain {
    fn open(config: &TunConfig) -> Result<Self, OpenError> {
        TunPort::open(config).map(|port| Plain(Tun::plain(port, Config::vpn(Key([3, 4])))))
    }

    fn outward(&mut self, send: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        Endpoint::outward(&mut self.0, send)
    }

    fn inward(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        self.0.inward(datagrams)
    }

    fn joined(&mut self) -> (u64, u64) {
        self.0.joined()
    }
}

/// An end whose device is opened as by an adopter's program; each read must return one packet.
struct Preset(Tun);

impl Endpoint for Preset {
    fn open(config: &TunConfig) -> Result<Self, OpenError> {
        Tun::open(config, [5, 6]).map(Preset)
    }

    fn outward(&mut self, send: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let packets = self.0.read()?;
        assert_eq!(packets.len(), 1, "a train was read");
        packets.iter().try_for_each(|packet| {
            let mut datagram = Vec::new();
            packet.append_to(&mut datagram, with_the_engine::ROOM);
            send(&datagram)
        })
    }

    fn inward(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        self.0.inward(datagrams)
    }

    fn joined(&mut self) -> (u64, u64) {
        self.0.joined()
    }
}

/// Opens the device of the host 198.18.0.`number` and runs its end until `stop`; `ready` runs once it is up, in the
/// host's namespace like the threads that it starts. `None` where no device can be made.
fn run<E: Endpoint>(
    host: &Host,
    number: u8,
    offloads: TunOffloads,
    wire: &UnixDatagram,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Option<(u64, u64)> {
    let mut config = TunConfig::ip("vpn0");
    (config.existing, config.offloads) = (Existing::Refuse, offloads);
    let mut end = match E::open(&config) {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            segue_lab::skip_this_test(&format!("no TUN device: {error}"));
            return None;
        }
        end => end.unwrap(),
    };
    host.run("ip", &["addr", "add", &format!("198.18.0.{number}/24"), "dev", "vpn0"]).unwrap();
    host.run("ip", &["link", "set", "vpn0", "up", "mtu", "1400"]).unwrap();
    ready();
    let mut buffer = vec![0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let mut idle = false;
        match end.outward(&mut |datagram| wire.send(datagram).map(drop)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => idle = true,
            result => result.unwrap(),
        }
        let mut datagrams = Vec::new();
        while datagrams.len() < 64
            && let Ok(len) = wire.recv(&mut buffer)
        {
            datagrams.push(buffer[..len].to_vec());
        }
        if idle && datagrams.is_empty() {
            thread::sleep(Duration::from_micros(200));
        }
        end.inward(&datagrams).unwrap();
    }
    Some(end.joined())
}

fn data() -> Vec<u8> {
    (0..DATA).map(|n| (n * 7 + n / 253) as u8).collect()
}

/// Sends [`DATA`] bytes through a connection over two ends, and returns the statistics of joining at the receiving one;
/// `None` where devices cannot be made.
#[track_caller]
fn connect<E: Endpoint>(offloads: TunOffloads) -> Option<(u64, u64)> {
    if let Some(reason) = segue_lab::unavailable() {
        segue_lab::skip_this_test(&reason);
        return None;
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    let (wires, stop) = (UnixDatagram::pair().unwrap(), AtomicBool::new(false));
    wires.0.set_nonblocking(true).unwrap();
    wires.1.set_nonblocking(true).unwrap();
    let (say_address, hear_address) = mpsc::channel();
    let (say_done, hear_done) = mpsc::channel();
    let serve = move || {
        let listener = TcpListener::bind("198.18.0.2:0").unwrap();
        say_address.send(listener.local_addr().unwrap()).unwrap();
        thread::spawn(move || {
            let mut got = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
            say_done.send(got).unwrap();
        });
    };
    let call = move || {
        let Ok(address) = hear_address.recv() else { return };
        thread::spawn(move || TcpStream::connect(address).unwrap().write_all(&data()).unwrap());
    };
    thread::scope(|scope| {
        let (stop, wires, hosts) = (&stop, &wires, &hosts);
        let at = |host: usize, number, wire| {
            move |ready: Box<dyn FnOnce() + Send>| {
                hosts[host].enter(move || run::<Lossy<E>>(&hosts[host], number, offloads, wire, stop, ready)).unwrap()
            }
        };
        let (client, server) = (at(0, 1, &wires.0), at(1, 2, &wires.1));
        let server = scope.spawn(move || server(Box::new(serve)));
        let client = scope.spawn(move || client(Box::new(call)));
        let got = hear_done.recv_timeout(PATIENCE);
        stop.store(true, Ordering::Relaxed);
        let (joined, _) = (server.join().unwrap()?, client.join().unwrap()?);
        assert!(got.expect("the connection ends in time") == data(), "every byte arrives");
        Some(joined)
    })
}

/// An end that loses a datagram when the wire is full, like a network.
struct Lossy<E>(E);

impl<E: Endpoint> Endpoint for Lossy<E> {
    fn open(config: &TunConfig) -> Result<Self, OpenError> {
        E::open(config).map(Lossy)
    }

    fn outward(&mut self, send: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.0.outward(&mut |datagram| match send(datagram) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        })
    }

    fn inward(&mut self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        self.0.inward(datagrams)
    }

    fn joined(&mut self) -> (u64, u64) {
        self.0.joined()
    }
}

#[test]
fn a_vpn_on_the_engine_alone_carries_a_connection() {
    connect::<with_the_engine::Vpn<File>>(TunOffloads::All);
}

#[test]
fn a_vpn_on_a_port_carries_a_connection_in_trains() {
    let Some((packets, segments)) = connect::<Tun>(TunOffloads::All) else { return };
    assert!(packets > 3000 && segments > 0, "{segments} of {packets} packets were joined");
}

#[test]
fn a_device_without_headers_takes_plain_packets_of_64_kb() {
    let Some((packets, segments)) = connect::<Plain>(TunOffloads::None) else { return };
    assert!(packets > 3000 && segments > 0, "{segments} of {packets} packets were joined");
}

#[test]
fn a_device_without_headers_takes_packet_by_packet_where_plain_trains_are_not_asked_for() {
    let Some((packets, segments)) = connect::<Tun>(TunOffloads::None) else { return };
    assert!(packets > 3000 && segments == 0, "{segments} of {packets} packets were joined");
}

/// A device in memory that fails with the error, if there is one, which `error` returns for a write.
struct Refusing<F> {
    error: F,
    /// Unit that each read returns.
    unit: Vec<u8>,
    taken: Vec<Vec<u8>>,
}

impl<F> Read for Refusing<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.unit.as_slice().read(out)
    }
}

impl<F: FnMut(&[u8]) -> Option<i32>> Write for Refusing<F> {
    fn write(&mut self, unit: &[u8]) -> io::Result<usize> {
        if let Some(number) = (self.error)(unit) {
            return Err(io::Error::from_raw_os_error(number));
        }
        self.taken.push(unit.to_vec());
        Ok(unit.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write(&pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets the engine's program write packets to a device that fails as `error` says. Returns the packets that the device
/// took, sorted, and the number of writes that the program calls lost.
fn write(packets: &[Vec<u8>], error: impl FnMut(&[u8]) -> Option<i32>) -> (Vec<Vec<u8>>, u64) {
    let mut device = Refusing { error, unit: Vec::new(), taken: Vec::new() };
    let mut vpn = with_the_engine::Vpn::new(&mut device, TUN_OFFLOADS[0], Key([1, 2]));
    vpn.inward(packets.iter().map(Vec::as_slice));
    let (lost, mut came) = (vpn.lost, Vec::new());
    let mut splitter = Splitter::virtio(Form::Basic, Start::Ip);
    for unit in &device.taken {
        for packet in splitter.read(unit).unwrap().iter() {
            came.push(Vec::new());
            packet.append_to(came.last_mut().unwrap(), (0, 0));
        }
    }
    came.sort();
    (came, lost)
}

#[test]
fn what_a_device_refuses_costs_the_engines_program_no_other_packet() {
    let run = |number| flow::Sender::tcp(Ip::V4(V4::new(1, 1, 2)), number, 7, Vec::new()).run(5_500, 1_000, 0x18);
    let packets: Vec<Vec<u8>> = (0..3).flat_map(run).map(|packet| packet.bytes()).collect();
    let mut all = packets.clone();
    all.sort();
    let is_train = |unit: &[u8]| unit[1] != 0;
    let (came, lost) = write(&packets, |_| None);
    assert_eq!((came == all, lost), (true, 0));
    let mut refused = 0;
    let (came, lost) = write(&packets, |unit| {
        refused += u32::from(is_train(unit));
        is_train(unit).then_some(libc::EINVAL)
    });
    assert_eq!((came == all, lost), (true, 0), "trains come cut");
    assert_eq!(refused, 1, "the kind is not tried again");
    let mut first = true;
    let (came, lost) = write(&packets, |_| std::mem::take(&mut first).then_some(libc::EIO));
    assert_eq!((came.len(), lost), (packets.len() - 6, 1), "a train of six is lost");
    // No IP packet, as any peer may send it.
    let with_bad = [&[vec![0; 20]], &packets[..]].concat();
    let (came, lost) = write(&with_bad, |unit| (unit[10] == 0).then_some(libc::EINVAL));
    assert_eq!((came == all, lost), (true, 1));
}

#[test]
fn a_packet_of_any_length_leaves_the_engines_program() {
    for len in [9_190, 9_200, 65_535] {
        let mut packet = vec![7; len];
        packet[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 59, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let unit = [&[0; 10][..], &packet].concat();
        let device = Refusing { error: |_: &[u8]| None, unit, taken: Vec::new() };
        let mut sent = Vec::new();
        let mut vpn = with_the_engine::Vpn::new(device, TUN_OFFLOADS[0], Key([1, 2]));
        vpn.outward(|datagram| {
            sent.push(datagram.to_vec());
            Ok(())
        })
        .unwrap();
        let (front, behind) = with_the_engine::ROOM;
        assert_eq!((sent.len(), sent[0].len(), &sent[0][front..front + len]), (1, front + len + behind, &packet[..]));
    }
}

#[test]
fn a_packet_longer_than_9_kb_leaves_the_program_of_a_port() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let host = Host::new("long").unwrap();
    let work = || {
        let mut tun = match <Tun as Endpoint>::open(&TunConfig::ip("vpn0")) {
            Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
                return segue_lab::skip_this_test(&format!("no TUN device: {error}"));
            }
            tun => tun.unwrap(),
        };
        host.run("ip", &["addr", "add", "198.18.0.1/24", "dev", "vpn0"]).unwrap();
        host.run("ip", &["link", "set", "vpn0", "up", "mtu", "12000"]).unwrap();
        UdpSocket::bind("198.18.0.1:0").unwrap().send_to(&[7; 11_000], "198.18.0.2:9").unwrap();
        let (mut sent, begin) = (Vec::new(), Instant::now());
        while !sent.contains(&(8 + 28 + 11_000 + 16)) {
            assert!(begin.elapsed() < PATIENCE, "only datagrams of {sent:?} bytes");
            let outward = with_the_port::outward(&mut tun, |datagram| {
                sent.push(datagram.len());
                Ok(())
            });
            if let Err(error) = outward {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
            }
        }
    };
    host.enter(work).unwrap();
}

/// Runs the test itself in another process, because an environment variable applies to a whole process.
#[test]
fn the_environment_switches_trains_off() {
    if env::var_os("SEGUE_OFFLOAD").is_none() {
        let mut again = Command::new(env::current_exe().unwrap());
        let output = again.args(["--exact", "the_environment_switches_trains_off", "--nocapture"]);
        let output = output.env("SEGUE_OFFLOAD", "0").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let (address, datagrams) = (to.local_addr().unwrap(), [[7; 1000]; 20]);
    let sent = Sender::new().send(&from, &datagrams, |datagram| (datagram, Some(address))).unwrap();
    assert_eq!(sent, datagrams.len());
    let (mut receiver, mut runs, begin) = (Receiver::new(&to), 0, Instant::now());
    while runs < datagrams.len() {
        assert!(begin.elapsed() < PATIENCE, "{runs} came");
        let Ok(mut got) = receiver.receive(&to) else { continue };
        let count = got.iter_mut().filter(|(datagram, _)| datagram.len() == 1000).count();
        assert_eq!(got.runs(), count, "each message is one datagram");
        runs += count;
    }
    let Some((packets, segments)) = connect::<Preset>(TunOffloads::All) else { return };
    assert!(packets > 3000 && segments == 0, "{segments} of {packets} packets were joined");
}

#[test]
fn the_error_of_the_kernel_is_the_source_of_that_of_a_port() {
    let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
    let errors: [(Box<dyn Error>, bool); 4] = [
        (Box::new(OpenError::Denied(denied())), true),
        (Box::new(OpenError::Busy("vpn0".into())), false),
        (Box::new(udp::OpenError::Call("bind", denied())), true),
        (Box::new(packet_socket::OpenError::Denied(denied())), true),
    ];
    for (error, is_of_kernel) in errors {
        assert_eq!(error.source().map(ToString::to_string), is_of_kernel.then(|| denied().to_string()), "{error}");
    }
}

/// Returns the number of lines of a program that are neither empty nor comments, without its test harness.
fn lines(program: &str) -> usize {
    let program = program.split("// The rig").next().unwrap_or_default();
    program.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn the_programs_are_as_short_as_is_promised() {
    let engine = lines(include_str!("../../segue/examples/vpn.rs"));
    let port = lines(include_str!("../examples/tun_vpn.rs"));
    assert!(engine <= 45 && port <= 35, "{engine} and {port} lines");
}
