//! Command `smoltcp ROUNDS SECONDS`, which carries TCP between the kernel and smoltcp over TUN devices: smoltcp with
//! its own device, one packet per call, and with segue's, alternating and in both directions. Prints a line for each:
//! form, direction, Gbit/s, CPU seconds per gigabyte of everything in the process.
//!
//! Both devices have the same loop, the same buffers and a queue that holds a whole window, and the kernel's TCP is
//! reno, which does not pace.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::time::{ClockId, clock_gettime};
use segue::hash::Key;
use segue::virtio::TUN_OFFLOADS;
use segue_lab::Host;
use segue_port::Port;
use segue_port::tun::{TunConfig, TunPort};
use segue_smoltcp::Trains;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::phy::{self, Device, Medium, TunTapInterface};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration as Delay, Instant as Now};
use smoltcp::wire::{HardwareAddress, IpCidr};

/// Ports of smoltcp: the one on which it receives, and the one on which it sends.
const PORTS: [u16; 2] = [9, 19];
const BUFFER: usize = 1 << 20;
/// Largest number of packets that are received before the sockets are served, and sent before packets are received.
const BATCH: usize = 128;
/// Length of a device's queue, in packets: a window of [`BUFFER`] bytes is 719 segments, and TUN drops what exceeds its
/// default of 500.
const QUEUE: &str = "1000";
/// Longest wait for a packet.
const IDLE: Delay = Delay::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves both ports at the address of a network until `stop`. `flush` follows each batch of sent packets.
fn serve<D: Device>(mut device: D, fd: RawFd, net: u8, flush: impl Fn(&mut D), stop: &AtomicBool) {
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, Now::now());
    let address: IpCidr = format!("198.18.{net}.2/24").parse().expect("an address");
    interface.update_ip_addrs(|addresses| addresses.push(address).expect("a place for an address"));
    let mut sockets = SocketSet::new(Vec::new());
    let handles = PORTS.map(|_| {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        sockets.add(tcp::Socket::new(buffer(), buffer()))
    });
    let data = vec![7; BUFFER];
    while !stop.load(Ordering::Relaxed) {
        let now = Now::now();
        let mut receives =
            || interface.poll_ingress_single(now, &mut device, &mut sockets) != PollIngressSingleResult::None;
        let is_drained = !(0..BATCH).all(|_| receives());
        // Between receiving and sending, so that an acknowledgment has the whole window, and before any wait.
        for (handle, port) in handles.into_iter().zip(PORTS) {
            let socket = sockets.get_mut::<tcp::Socket>(handle);
            if !socket.is_open() {
                socket.listen(port).expect("a port");
            }
            if port == PORTS[1] && socket.can_send() {
                socket.send_slice(&data).expect("room");
            }
            // The bytes lie in two pieces where the buffer wraps around.
            while socket.can_recv() {
                socket.recv(|bytes| (bytes.len(), ())).expect("bytes");
            }
            if socket.state() == tcp::State::CloseWait {
                socket.abort();
            }
        }
        // Each call sends one packet of each socket.
        let mut sends = || interface.poll_egress(now, &mut device, &mut sockets) != PollResult::None;
        let _ = (0..BATCH).all(|_| sends());
        flush(&mut device);
        let delay = interface.poll_delay(Now::now(), &sockets).unwrap_or(IDLE);
        if is_drained && delay > Delay::ZERO {
            phy::wait(fd, Some(delay.min(IDLE))).expect("select");
        }
    }
}

/// Runs a connection in one direction and returns Gbit/s and CPU seconds per gigabyte.
fn load(host: &Host, net: u8, port: u16, seconds: f64) -> (f64, f64) {
    let used = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let connect = || loop {
        match TcpStream::connect_timeout(&format!("198.18.{net}.2:{port}").parse().expect("an address"), PATIENCE) {
            Ok(stream) => break stream,
            // The connection before has not ended yet.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut stream = host.enter(connect).expect("a thread");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
    let mut buffer = vec![0; 1 << 18];
    let (begin, before, mut bytes) = (Instant::now(), used(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        let result = if port == PORTS[0] { stream.write(&buffer) } else { stream.read(&mut buffer) };
        bytes += result.expect("the connection stays");
    }
    if port == PORTS[0] {
        // smoltcp resets the connection when it has received everything: the time includes the bytes still queued.
        stream.shutdown(Shutdown::Write).expect("a socket");
        let end = stream.read(&mut buffer).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    }
    let (took, cpu) = (begin.elapsed().as_secs_f64(), used() - before);
    (bytes as f64 * 8e-9 / took, cpu / (bytes as f64 * 1e-9))
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let [rounds, seconds] = &words[..] else { panic!("usage: smoltcp ROUNDS SECONDS") };
    let (rounds, seconds) = (rounds.parse().expect("a number"), seconds.parse().expect("a number"));
    let host = Host::new("kernel").expect("a network namespace");
    host.set_sysctl("ipv4/tcp_congestion_control", "reno").expect("reno");
    let up = |name: &str, net: u8| {
        host.run("ip", &["addr", "add", &format!("198.18.{net}.1/24"), "dev", name]).expect("ip");
        host.run("ip", &["link", "set", name, "up", "mtu", "1500", "txqueuelen", QUEUE]).expect("ip");
    };
    let open = || TunPort::open(&TunConfig::ip("trains0")).map(|port| (port.limits().uso, port.into_fd()));
    let (has_uso, fd) = host.enter(open).expect("a thread").expect("a TUN device");
    up("trains0", 1);
    let file = File::from(fd);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (stop, host) = (&stop, &host);
        scope.spawn(move || {
            let raw = file.as_raw_fd();
            let device = Trains::new(file, TUN_OFFLOADS[usize::from(!has_uso)], Key([1, 2]), 1500);
            serve(device, raw, 1, |device| _ = device.flush().expect("a write"), stop);
        });
        scope.spawn(move || {
            let serve = || {
                let device = TunTapInterface::new("plain0", Medium::Ip).expect("a TUN device");
                let raw = device.as_raw_fd();
                serve(device, raw, 2, |_| (), stop);
            };
            host.enter(serve).expect("a thread");
        });
        let begin = Instant::now();
        while !host.has_device("plain0") && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        up("plain0", 2);
        for _ in 0..rounds {
            for (direction, port) in ["to smoltcp", "from smoltcp"].into_iter().zip(PORTS) {
                for (form, net) in [("alone", 2), ("segue", 1)] {
                    let (gbps, cpu) = load(host, net, port, seconds);
                    println!("{form}: {direction}: {gbps:.4} {cpu:.3}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
