//! Test of two tunnel ends between two kernels, which run a TCP connection through them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use boringtun::noise::Tunn;
use boringtun::x25519::{PublicKey, StaticSecret};
use segue_boringtun::Wireguard;
use segue_lab::Host;
use segue_port::tun::{OpenError, Tun, TunConfig};

const DATA: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(90);

fn data() -> Vec<u8> {
    (0..DATA).map(|n| (n * 5 + n / 249) as u8).collect()
}

/// Opens the device of an endpoint in its host; `None` if none can be created.
fn device(host: &Host, number: u8) -> Option<Tun> {
    let tun = match host.enter(|| Tun::open(&TunConfig::ip("wg0"), [1, 2])).unwrap() {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            segue_lab::skip_this_test(&format!("no TUN device: {error}"));
            return None;
        }
        tun => tun.unwrap(),
    };
    host.run("ip", &["addr", "add", &format!("198.18.0.{number}/24"), "dev", "wg0"]).unwrap();
    host.run("ip", &["link", "set", "wg0", "up", "mtu", "1420"]).unwrap();
    Some(tun)
}

#[test]
fn a_connection_passes_in_trains() {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let hosts = ["client", "server"].map(|name| Host::new(name).unwrap());
    let secrets = [StaticSecret::from([0x40; 32]), StaticSecret::from([0x48; 32])];
    let publics = [PublicKey::from(&secrets[1]), PublicKey::from(&secrets[0])];
    // Between the ends is the loopback interface of this process.
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let peers = [&sockets[1], &sockets[0]].map(|socket| socket.local_addr().unwrap());
    let mut ends = Vec::new();
    for (at, ((socket, secret), (peer, public))) in
        sockets.into_iter().zip(secrets).zip(peers.into_iter().zip(publics)).enumerate()
    {
        let Some(tun) = device(&hosts[at], 1 + at as u8) else { return };
        ends.push(Wireguard::new(tun, socket, peer, Tunn::new(secret, public, None, None, at as u32, None)));
    }
    let stop = AtomicBool::new(false);
    let (say, hear) = mpsc::channel();
    let listener = hosts[1].enter(|| TcpListener::bind("198.18.0.2:0").unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        say.send(got).unwrap();
    });
    thread::scope(|scope| {
        for end in &mut ends {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    end.turn().unwrap();
                }
            });
        }
        let host = &hosts[0];
        scope.spawn(move || {
            let call = || {
                TcpStream::connect_timeout(&address, PATIENCE).and_then(|mut stream| {
                    stream.set_write_timeout(Some(PATIENCE))?;
                    stream.write_all(&data())
                })
            };
            host.enter(call).unwrap()
        });
        let got = hear.recv_timeout(PATIENCE);
        stop.store(true, Ordering::Relaxed);
        assert!(got.expect("the connection ends in time") == data(), "every byte arrives");
    });
    let stats = ends[1].tun().joiner().stats();
    assert!(stats.packets > 2900 && stats.segments > 0, "{} of {} packets were joined", stats.segments, stats.packets);
}
