//! Tests of two tunnel endpoints, each with a separate loop, between two kernels that run a TCP connection through
//! them.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use segue_lab::Host;
use segue_loops::{Endpoint, by_io_uring, by_mio};
use segue_port::tun::{OpenError, Tun, TunConfig};

const DATA: usize = 4 << 20;
const MTU: u64 = 1400;
const PATIENCE: Duration = Duration::from_secs(90);

fn data() -> Vec<u8> {
    (0..DATA).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Opens the device of an endpoint in its host; `None` if none can be created.
fn device(host: &Host, number: u8) -> Option<Tun> {
    let tun = match host.enter(|| Tun::open(&TunConfig::ip("vpn0"), [1, 2])).unwrap() {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            segue_lab::skip_this_test(&format!("no TUN device: {error}"));
            return None;
        }
        tun => tun.unwrap(),
    };
    host.run("ip", &["addr", "add", &format!("198.18.0.{number}/24"), "dev", "vpn0"]).unwrap();
    host.run("ip", &["link", "set", "vpn0", "up", "mtu", &MTU.to_string()]).unwrap();
    Some(tun)
}

/// Returns the kernel's counters of the device: bytes and packets that were written to it.
fn written(host: &Host) -> [u64; 2] {
    let text = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("vpn0:")).unwrap();
    let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
    [(); 2].map(|()| words.next().unwrap())
}

/// Runs two VPN ends in `run`, and a connection through them.
fn connect(run: fn(Endpoint, &AtomicBool) -> io::Result<()>) {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    let Some(tuns) = device(&hosts[0], 1).zip(device(&hosts[1], 2)).map(<[Tun; 2]>::from) else { return };
    // Between the ends is the loopback interface of this process.
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let peers = [&sockets[1], &sockets[0]].map(|socket| socket.local_addr().unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends: Vec<_> = tuns
            .into_iter()
            .zip(sockets)
            .zip(peers)
            .map(|((tun, socket), peer)| {
                let (end, stop) = (Endpoint::new(tun, socket, peer).unwrap(), &stop);
                scope.spawn(move || run(end, stop))
            })
            .collect();
        let came = thread::scope(|scope| scope.spawn(|| transfer(&hosts)).join());
        stop.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.join().unwrap().unwrap());
        let [bytes, packets] = came.unwrap();
        assert!(bytes > DATA as u64 && bytes / packets > 2 * MTU, "{bytes} bytes in {packets} writes");
    });
}

/// Sends [`DATA`] bytes from the first host to the second, and returns the number of bytes written to the device there.
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
    written(&hosts[1])
}

#[test]
fn a_connection_passes_in_trains_in_the_loop_of_mio() {
    connect(by_mio::run);
}

#[test]
fn a_connection_passes_in_trains_in_a_loop_on_io_uring() {
    connect(by_io_uring::run);
}
