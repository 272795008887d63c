//! Test of an echo server on smoltcp behind a TUN device: the kernel's TCP sends to it and reads every byte back.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use segue::hash::Key;
use segue::virtio::TUN_OFFLOADS;
use segue_lab::Host;
use segue_port::Port;
use segue_port::tun::{OpenError, TunConfig, TunPort};
use segue_smoltcp::Trains;
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

const DATA: usize = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A guard that sets its flag on drop, even after a panic, so that the server ends and the test with it.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the server until `stop`; returns the bytes that smoltcp sent back and the writes that they took.
fn serve(mut device: Trains, stop: &AtomicBool) -> (u64, u64) {
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| addresses.push("198.18.0.2/24".parse::<IpCidr>().unwrap()).unwrap());
    let mut sockets = SocketSet::new(Vec::new());
    let buffer = || tcp::SocketBuffer::new(vec![0; 256 * 1024]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    // Before the first poll: a connection would be refused in between.
    socket.listen(7).unwrap();
    let handle = sockets.add(socket);
    let (mut writes, mut bytes) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        interface.poll(Instant::now(), &mut device, &mut sockets);
        let socket = sockets.get_mut::<tcp::Socket>(handle);
        let mut idle = true;
        while socket.can_recv() && socket.can_send() {
            let room = socket.send_capacity() - socket.send_queue();
            let data = socket.recv(|data| (data.len().min(room), data[..data.len().min(room)].to_vec())).unwrap();
            bytes += socket.send_slice(&data).unwrap() as u64;
            idle = data.is_empty();
            if idle {
                break;
            }
        }
        while interface.poll_egress(Instant::now(), &mut device, &mut sockets) != PollResult::None {}
        let wrote = device.flush().unwrap();
        writes += wrote as u64;
        if idle && wrote == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
    (bytes, writes)
}

#[test]
fn smoltcp_echoes_a_stream_of_the_kernel_in_trains() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let host = Host::new("smoltcp").unwrap();
    // A port stays on its thread; its descriptor does not.
    let open = || TunPort::open(&TunConfig::ip("smol0")).map(|port| (port.limits().uso, port.into_fd()));
    let (has_uso, fd) = match host.enter(open).unwrap() {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            return segue_lab::skip_this_test(&format!("no TUN device: {error}"));
        }
        opened => opened.unwrap(),
    };
    host.run("ip", &["addr", "add", "198.18.0.1/24", "dev", "smol0"]).unwrap();
    host.run("ip", &["link", "set", "smol0", "up", "mtu", "1500"]).unwrap();
    let device = Trains::new(File::from(fd), TUN_OFFLOADS[usize::from(!has_uso)], Key([1, 2]), 1500);
    let stop = AtomicBool::new(false);
    let data: Vec<u8> = (0..DATA).map(|n| (n * 3 + n / 251) as u8).collect();
    let (bytes, writes) = thread::scope(|scope| {
        let server = scope.spawn(|| serve(device, &stop));
        let stops = Stop(&stop);
        let got = host.enter(|| {
            let mut stream = TcpStream::connect("198.18.0.2:7").unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut other = stream.try_clone().unwrap();
            let sent = &data;
            thread::scope(|scope| {
                scope.spawn(move || other.write_all(sent).unwrap());
                let mut got = vec![0; DATA];
                stream.read_exact(&mut got).unwrap();
                got
            })
        });
        drop(stops);
        assert!(got.unwrap() == data, "every byte comes back");
        server.join().unwrap()
    });
    assert!(bytes == DATA as u64 && writes > 0);
    // The data is 1437 packets: written in pairs they would take 719 writes, and the acknowledgments come on top.
    assert!(writes < 700, "{writes} writes");
}

#[test]
fn the_device_is_as_short_as_is_promised() {
    let lines = include_str!("../src/lib.rs").lines().map(str::trim);
    let count = lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    assert!(count <= 76, "{count} lines");
}
