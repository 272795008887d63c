//! Tests of the first program of docs/adopting.md, and of the example of `segue-port`: two hosts run it, and their
//! kernels run a TCP connection through it.

use std::error::Error;
use std::io::ErrorKind::WouldBlock;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::{Family, Host, LinkForm, Peer, connect};
use segue_port::tun::{OpenError, Tun, TunConfig};
use segue_port::udp::{Receiver, Sender};
use segue_port::{Interest, PollSet};

#[path = "../../../crates/segue-port/examples/tun_vpn.rs"]
#[allow(dead_code, reason = "a program of its own, of which the command line is not used here")]
mod tun_vpn;

const DATA: usize = 4 << 20;
const MTU: u64 = 1400;
const PATIENCE: Duration = Duration::from_secs(60);

/// A cipher of one byte.
struct Cipher;

impl Cipher {
    fn seal(&mut self, datagram: &mut [u8]) {
        datagram.iter_mut().for_each(|byte| *byte ^= 0x5a);
    }

    fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Option<&'a [u8]> {
        datagram.iter_mut().for_each(|byte| *byte ^= 0x5a);
        datagram.get(16..datagram.len().checked_sub(16)?)
    }
}

fn wait(fds: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    let mut set = PollSet::default();
    fds.iter().for_each(|fd| set.add(&Interest::read(*fd)));
    set.wait(Some(Duration::from_millis(100))).map(drop)
}

/// The program, letter by letter.
fn run(peer: SocketAddr, random: [u64; 2], mut cipher: Cipher) -> Result<(), Box<dyn std::error::Error>> {
    use std::os::fd::AsFd;

    let mut tun = Tun::open(&TunConfig::ip("vpn0"), random)?;
    let socket = UdpSocket::bind("[::]:51820")?;
    let (mut sender, mut receiver) = (Sender::new(), Receiver::new(&socket));
    loop {
        wait([tun.as_fd(), socket.as_fd()])?; // poll(2), or what your runtime has
        let mut datagrams = Vec::new();
        match tun.read() {
            Ok(packets) => {
                // None are in what cannot be split, which any user of this host can send; `tun.unread()` counts it.
                for packet in packets.iter() {
                    let mut datagram = Vec::new();
                    packet.append_to(&mut datagram, (16, 16)); // room in front, room behind
                    cipher.seal(&mut datagram);
                    datagrams.push(datagram);
                }
            }
            Err(error) if error.kind() == WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        // Lost, as on a wire, is what is not sent: the socket is full, or there is no route now.
        _ = sender.send(&socket, &datagrams, |datagram| (datagram, Some(peer)));
        match receiver.receive(&socket) {
            Ok(mut received) => {
                let opened = received.iter_mut().filter_map(|(datagram, _)| cipher.open(datagram));
                // So is what the device refuses, all of it while it is down, which `tun.drops()` counts; the packets
                // behind are written. A device that was deleted cannot be read either.
                _ = tun.write(opened);
            }
            Err(error) if error.kind() == WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the function `run` of a text.
fn run_of(text: &str) -> &str {
    let start = text.find("\nfn run(").unwrap() + 1;
    let len = text[start..].find("\n}\n").unwrap();
    &text[start..start + len]
}

#[test]
fn the_program_is_that_of_the_guide() {
    assert_eq!(run_of(include_str!("vpn.rs")), run_of(include_str!("../../../docs/adopting.md")));
}

fn data() -> Vec<u8> {
    (0..DATA).map(|n| (n * 3 + n / 247) as u8).collect()
}

/// Sends [`DATA`] bytes from the first host to the second, when both devices are there, and returns the number of bytes
/// written to the second device, and that of packets.
fn transfer(hosts: &[Host; 2]) -> [u64; 2] {
    let begin = Instant::now();
    for (host, end) in hosts.iter().zip([Peer::A, Peer::B]) {
        while !host.has_device("vpn0") {
            assert!(begin.elapsed() < PATIENCE, "no device");
            thread::sleep(Duration::from_millis(5));
        }
        host.run("ip", &["addr", "add", &end.prefix(1, Family::V4), "dev", "vpn0"]).unwrap();
        host.run("ip", &["link", "set", "vpn0", "up", "mtu", &MTU.to_string()]).unwrap();
    }
    let listener = hosts[1].enter(|| TcpListener::bind((Peer::B.address(1, Family::V4), 0)).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    // `accept` has no time limit: the connection is there before.
    let mut stream = hosts[0].enter(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).unwrap();
    let mut accepted = listener.accept().unwrap().0;
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let server = thread::spawn(move || {
        let mut got = Vec::new();
        accepted.read_to_end(&mut got).unwrap();
        got
    });
    stream.write_all(&data()).unwrap();
    drop(stream);
    assert!(server.join().unwrap() == data(), "every byte arrives");
    let text = hosts[1].enter(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("vpn0:")).unwrap();
    let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
    [(); 2].map(|()| words.next().unwrap())
}

/// Lets both hosts run a program, which gets the address of the other one, until their devices are deleted.
fn carry(program: fn(SocketAddr) -> Result<(), Box<dyn Error>>) {
    if let Some(reason) = segue_lab::unavailable() {
        return segue_lab::skip_this_test(&reason);
    }
    let hosts = ["a", "b"].map(|name| Host::new(name).unwrap());
    match hosts[0].enter(|| Tun::open(&TunConfig::ip("probe0"), [1, 2]).map(drop)).unwrap() {
        Err(OpenError::Denied(error) | OpenError::Unavailable(error)) => {
            return segue_lab::skip_this_test(&format!("no TUN device: {error}"));
        }
        opened => opened.unwrap(),
    }
    connect(&hosts[0], &hosts[1], LinkForm::Veth).unwrap();
    thread::scope(|scope| {
        let ends = [(&hosts[0], Peer::A), (&hosts[1], Peer::B)].map(|(host, end)| {
            let peer = SocketAddr::new(end.other().address(0, Family::V4), 51820);
            scope.spawn(move || host.enter(|| program(peer).map_err(|error| error.to_string())).unwrap())
        });
        let came = thread::scope(|scope| scope.spawn(|| transfer(&hosts)).join());
        for host in &hosts {
            // One whose program has ended is gone.
            let _ = host.run("ip", &["link", "del", "vpn0"]);
        }
        let ended = ends.map(|end| end.join().unwrap());
        let [bytes, packets] = came.unwrap_or_else(|_| panic!("{ended:?}"));
        assert!(bytes > DATA as u64 && bytes / packets > MTU, "{bytes} bytes in {packets} writes, no trains");
        assert!(ended.iter().all(Result::is_err), "{ended:?}");
    });
}

#[test]
fn the_program_of_the_guide_carries_a_connection_until_its_device_is_deleted() {
    carry(|peer| run(peer, [1, 2], Cipher));
}

#[test]
fn the_example_of_the_port_carries_a_connection_until_its_device_is_deleted() {
    carry(|peer| tun_vpn::run("vpn0", "0.0.0.0:51820", peer, [1, 2]));
}
