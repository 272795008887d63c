//! Test of two tunnel ends between two kernels, which run a TCP connection through them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use segue::hash::Key;
use segue_lab::Host;
use segue_quinn_udp::Endpoint;
use tun_rs::{DeviceBuilder, SyncDevice};

const DATA: usize = 4 << 20;
const MTU: u64 = 1400;
const PATIENCE: Duration = Duration::from_secs(90);

fn data() -> Vec<u8> {
    (0..DATA).map(|n| (n * 3 + n / 253) as u8).collect()
}

/// Opens the device of a tunnel end in its host.
fn device(host: &Host, number: u8) -> SyncDevice {
    let device = host.enter(|| DeviceBuilder::new().name("vpn0").offload(true).build_sync()).unwrap().unwrap();
    host.run("ip", &["addr", "add", &format!("198.18.0.{number}/24"), "dev", "vpn0"]).unwrap();
    host.run("ip", &["link", "set", "vpn0", "up", "mtu", &MTU.to_string()]).unwrap();
    device
}

/// Sends [`DATA`] bytes from the first host to the second, and returns the kernel's counters of the device there: bytes
/// and packets written to it.
fn transfer(hosts: &[Host; 2]) -> [u64; 2] {
    let listener = hosts[1].enter(|| TcpListener::bind("198.18.0.2:0").unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut got, mut stream) = (Vec::new(), listener.accept().unwrap().0);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut got).unwrap();
        got
    });
    let mut stream = hosts[0].enter(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&data()).unwrap();
    drop(stream);
    assert!(server.join().unwrap() == data(), "every byte arrives");
    let text = hosts[1].enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("vpn0:")).unwrap();
    let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
    [(); 2].map(|()| words.next().unwrap())
}

#[test]
fn a_connection_passes_in_trains_beside_tun_rs_and_quinn_udp() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return segue_lab::skip_this_test(&format!("no TUN device: {error}"));
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    let devices = [device(&hosts[0], 1), device(&hosts[1], 2)];
    // Between the ends is the loopback interface of this process.
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let peers = [&sockets[1], &sockets[0]].map(|socket| socket.local_addr().unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut ends = Vec::new();
        for ((device, socket), peer) in devices.into_iter().zip(sockets).zip(peers) {
            let (mut end, stop) = (Endpoint::new(device, socket, peer, Key([1, 2])).unwrap(), &stop);
            ends.push(scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    end.turn().unwrap();
                }
                end.sent()
            }));
        }
        let came = thread::scope(|scope| scope.spawn(|| transfer(&hosts)).join());
        stop.store(true, Ordering::Relaxed);
        let sent: Vec<[usize; 2]> = ends.into_iter().map(|end| end.join().unwrap()).collect();
        let [bytes, packets] = came.unwrap();
        assert!(bytes > DATA as u64 && bytes / packets > 2 * MTU, "{bytes} bytes in {packets} writes");
        let [datagrams, calls] = sent[0];
        assert!(datagrams > 2 * calls, "{datagrams} datagrams in {calls} calls");
    });
}
