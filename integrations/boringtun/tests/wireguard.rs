//! Tests of two tunnel ends between two kernels, which run a TCP connection through them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use boringtun::noise::Tunn;
use boringtun::x25519::{PublicKey, StaticSecret};
use segue_boringtun::Wireguard;
use segue_lab::{Family, Host, LinkForm, Peer, connect};
use segue_port::tun::{OpenError, Tun, TunConfig};

const DATA: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(90);

fn data() -> Vec<u8> {
    (0..DATA).map(|n| (n * 5 + n / 249) as u8).collect()
}

/// A guard that sets its flag on drop, even after a panic, so that the ends stop and the test with them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens the device of an endpoint in its host; `None` if none can be created.
fn device(host: &Host, end: Peer) -> Option<Tun> {
    let tun = match host.enter(|| Tun::open(&TunConfig::ip("wg0"), [1, 2])).unwrap() {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            segue_lab::skip_this_test(&format!("no TUN device: {error}"));
            return None;
        }
        tun => tun.unwrap(),
    };
    host.run("ip", &["addr", "add", &end.prefix(1, Family::V4), "dev", "wg0"]).unwrap();
    host.run("ip", &["link", "set", "wg0", "up", "mtu", "1420"]).unwrap();
    Some(tun)
}

/// Creates the two endpoints on their hosts, with these sockets; `None` if no devices can be created.
fn endpoints(hosts: &[Host; 2], sockets: [UdpSocket; 2]) -> Option<[Wireguard; 2]> {
    let secrets = [StaticSecret::from([0x40; 32]), StaticSecret::from([0x48; 32])];
    let [near, far] = [PublicKey::from(&secrets[1]), PublicKey::from(&secrets[0])];
    let peers = [&sockets[1], &sockets[0]].map(|socket| socket.local_addr().unwrap());
    let [a, b] = sockets;
    let [secret_a, secret_b] = secrets;
    let end = |host, end, socket, peer, secret, public| {
        let tunn = Tunn::new(secret, public, None, None, end as u32, None);
        Some(Wireguard::new(device(host, end)?, socket, peer, tunn))
    };
    let first = end(&hosts[0], Peer::A, a, peers[0], secret_a, near)?;
    Some([first, end(&hosts[1], Peer::B, b, peers[1], secret_b, far)?])
}

/// Sends [`DATA`] bytes from the first host to the second. Once half of it has arrived, `interrupt` is called with
/// "add", the next bytes are sent, and it is called with "del".
fn transfer(hosts: &[Host; 2], ends: &mut [Wireguard; 2], interrupt: impl Fn(&str)) {
    let listener = hosts[1].enter(|| TcpListener::bind((Peer::B.address(1, Family::V4), 0)).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (say, hear) = mpsc::channel();
    thread::spawn(move || {
        let (mut got, mut stream) = (vec![0; DATA], listener.accept().unwrap().0);
        stream.read_exact(&mut got[..DATA / 2]).unwrap();
        say.send(Vec::new()).unwrap();
        stream.read_exact(&mut got[DATA / 2..]).unwrap();
        say.send(got).unwrap();
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let guard = Stop(&stop);
        for end in ends {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    end.turn().unwrap();
                }
            });
        }
        let data = data();
        let (first, rest) = data.split_at(DATA / 2);
        let (next, last) = rest.split_at(4096);
        let mut stream = hosts[0].enter(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(first).unwrap();
        hear.recv_timeout(PATIENCE).expect("the first half comes in time");
        interrupt("add");
        stream.write_all(next).unwrap();
        interrupt("del");
        stream.write_all(last).unwrap();
        assert!(hear.recv_timeout(PATIENCE).expect("the rest comes in time") == data, "every byte arrives");
        drop(guard);
    });
}

#[test]
fn a_connection_passes_in_trains() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    // Between the ends is the loopback interface of this process.
    let Some(mut ends) = endpoints(&hosts, [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap())) else { return };
    transfer(&hosts, &mut ends, |_| ());
    let stats = ends[1].tun().joiner().stats();
    assert!(stats.packets > 2900 && stats.segments > 0, "{} of {} packets were joined", stats.segments, stats.packets);
}

#[test]
fn a_tunnel_outlasts_a_time_without_a_route() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    connect(&hosts[0], &hosts[1], LinkForm::Veth).unwrap();
    let socket = |(host, end): (&Host, Peer)| {
        let address = SocketAddr::new(end.address(0, Family::V4), 0);
        host.enter(|| UdpSocket::bind(address).unwrap()).unwrap()
    };
    let sockets = [(&hosts[0], Peer::A), (&hosts[1], Peer::B)].map(socket);
    let Some(mut ends) = endpoints(&hosts, sockets) else { return };
    let to = format!("{}/32", Peer::B.address(0, Family::V4));
    transfer(&hosts, &mut ends, |verb| {
        if verb == "del" {
            // What is sent until then has no route.
            thread::sleep(Duration::from_millis(300));
        }
        hosts[0].run("ip", &["route", verb, "unreachable", &to]).unwrap();
    });
}
