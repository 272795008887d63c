//! Tests of tunnel ends on a runtime of tokio: two on one with several threads, between two kernels, which run a TCP
//! connection through them, and one whose device is deleted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use segue_lab::Host;
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

#[test]
fn a_connection_passes_in_trains_on_a_runtime_of_several_threads() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    let Some(tuns) = device(&hosts[0], 1).zip(device(&hosts[1], 2)).map(<[Tun; 2]>::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_io().build().unwrap();
    // Between the ends is the loopback interface of this process.
    let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let peers = [&sockets[1], &sockets[0]].map(|socket| socket.local_addr().unwrap());
    for ((tun, socket), peer) in tuns.into_iter().zip(sockets).zip(peers) {
        socket.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
            segue_tokio::run(tun, socket, peer).await
        });
    }
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
    let [bytes, packets] = written(&hosts[1]);
    assert!(bytes > DATA as u64 && bytes / packets > 2 * MTU, "{bytes} bytes in {packets} writes");
}

#[test]
fn a_deleted_device_ends_a_tunnel_that_waits_for_packets() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let host = Host::new("deleted").unwrap();
    let Some(tun) = device(&host, 1) else { return };
    // Down, the kernel sends nothing to it.
    host.run("ip", &["link", "set", "vpn0", "down"]).unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let peer = socket.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap();
    let (say, hear) = mpsc::channel();
    runtime.spawn(async move {
        let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
        say.send(segue_tokio::run(tun, socket, peer).await).unwrap();
    });
    let early = hear.recv_timeout(Duration::from_millis(300));
    assert!(early.is_err(), "it waits: {early:?}");
    host.run("ip", &["link", "del", "vpn0"]).unwrap();
    let ended = hear.recv_timeout(PATIENCE).expect("it ends");
    assert_eq!(ended.unwrap_err().raw_os_error(), Some(77), "EBADFD");
}
