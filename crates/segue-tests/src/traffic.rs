//! Traffic between two endpoints, compared byte for byte. All functions panic with the difference, and end in bounded
//! time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Host;
use sha2::{Digest, Sha256};

use crate::{Random, sys};

/// Time limit of a single read, write or connect.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of a transfer, to which a second is added for every [`SLOWEST`] bytes.
const LONGEST: Duration = Duration::from_secs(60);
/// Smallest expected rate, bytes per second, also in a guest without hardware acceleration.
const SLOWEST: u64 = 1 << 20;
/// Time within which a datagram must arrive on a link without loss.
const DATAGRAM_PATIENCE: Duration = Duration::from_secs(20);
const CHUNK_LEN: usize = 128 << 10;

/// A host and one of its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The host that sockets are opened in.
    pub host: &'a Host,
    /// The address that sockets are bound to.
    pub address: IpAddr,
}

/// Length and SHA-256 of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digested {
    /// Length of the file, bytes.
    pub len: u64,
    /// SHA-256 digest of the file, hexadecimal.
    pub sha256: String,
}

/// Length of the file in tests that are not about throughput: 4 MiB.
pub const SHORT: u64 = 4 << 20;

/// Returns the length of a file in the tests of transfers: 4 MiB, 64 MiB if `SEGUE_FULL=1`, 1 GiB if `SEGUE_SOAK=1`.
pub fn long() -> u64 {
    match (segue_testkit::is_set("SEGUE_SOAK"), segue_testkit::is_set("SEGUE_FULL")) {
        (true, _) => 1 << 30,
        (false, true) => 64 << 20,
        (false, false) => 4 << 20,
    }
}

/// Payload lengths of the test datagrams, bytes: the smallest, around the inner and outer MTUs, and far above them.
pub const DATAGRAM_SIZES: &[usize] = &[1, 2, 63, 64, 501, 1300, 1472, 1473, 2600, 9000, 64_000];
/// Payload lengths of the test pings, bytes.
pub const PING_SIZES: &[usize] = &[56, 777, 2500];

/// Sends a file of random content from one endpoint to the other by TCP and compares the SHA-256 digests. Gives the
/// time it took.
#[track_caller]
pub fn file(from: Place<'_>, to: Place<'_>, len: u64, seed: u64) -> Duration {
    file_seen_from(from.address, from, to, len, seed)
}

/// Sends a file like [`file()`], where the receiver behind a NAT must see `seen` as the sender's address.
#[track_caller]
pub fn file_seen_from(seen: IpAddr, from: Place<'_>, to: Place<'_>, len: u64, seed: u64) -> Duration {
    let what = format!("{len} bytes by TCP from {} to {}", from.address, to.address);
    let begin = Instant::now();
    let (sent, got) = transfer(seen, from, to, len, seed).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(got, sent, "{what}: what arrived is not what was sent");
    begin.elapsed()
}

fn transfer(seen: IpAddr, from: Place<'_>, to: Place<'_>, len: u64, seed: u64) -> io::Result<(Digested, Digested)> {
    let listener = inside(to.host, || TcpListener::bind((to.address, 0)))?;
    let address = listener.local_addr()?;
    let sender = inside(from.host, || TcpStream::connect_timeout(&address, PATIENCE))?;
    let (receiver, peer) = listener.accept()?;
    if peer.ip() != seen {
        return Err(io::Error::other(format!("the peer is {peer}")));
    }
    thread::scope(|scope| {
        let sending = scope.spawn(move || send_file(sender, len, seed));
        let got = receive_file(receiver);
        let sent = sending.join().map_err(|_| io::Error::other("the sender panicked"))?;
        Ok((sent.map_err(in_step("send"))?, got.map_err(in_step("receive"))?))
    })
}

fn in_step(step: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{step}: {error}"))
}

/// Sends `len` random bytes, shuts the stream down, and waits until the peer has closed it too.
pub fn send_file(stream: TcpStream, len: u64, seed: u64) -> io::Result<Digested> {
    let (digest, rest) = send_file_and_read(stream, len, seed)?;
    if rest.is_empty() { Ok(digest) } else { Err(io::Error::other("the receiver sent something back")) }
}

/// Sends random bytes like [`send_file`], and returns the receiver's answer.
pub fn send_file_and_read(mut stream: TcpStream, len: u64, seed: u64) -> io::Result<(Digested, Vec<u8>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut random, mut hash) = (Random::new(seed), Sha256::new());
    let mut chunk = vec![0; CHUNK_LEN];
    let mut left = len;
    while left > 0 {
        let part = &mut chunk[..CHUNK_LEN.min(usize::try_from(left).unwrap_or(CHUNK_LEN))];
        random.fill(part);
        hash.update(&part);
        stream.write_all(part)?;
        left -= part.len() as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok((Digested { len, sha256: hex(hash) }, answer))
}

/// Reads a stream until its end, and returns its length and SHA-256 digest.
pub fn receive_file(mut stream: TcpStream) -> io::Result<Digested> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut hash, mut len) = (Sha256::new(), 0);
    let mut chunk = vec![0; CHUNK_LEN];
    let begin = Instant::now();
    loop {
        if begin.elapsed() > LONGEST + Duration::from_secs(len / SLOWEST) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("only {len} bytes after {:?}", begin.elapsed()),
            ));
        }
        match stream.read(&mut chunk)? {
            0 => return Ok(Digested { len, sha256: hex(hash) }),
            got => {
                hash.update(&chunk[..got]);
                len += got as u64;
            }
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends one datagram of each size to the other endpoint, which echoes it; both endpoints compare every byte. None may
/// be lost.
#[track_caller]
pub fn datagrams(from: Place<'_>, to: Place<'_>, sizes: &[usize], seed: u64) {
    let [near, far] = [from, to].map(|place| socket(place));
    let mut random = Random::new(seed);
    for size in sizes {
        let what = format!("a datagram of {size} bytes between {} and {}", from.address, to.address);
        let bytes = random.bytes(*size);
        let address = near.local_addr().expect("an address");
        one_datagram(&near, &far, far.local_addr().expect("an address"), &bytes, &what);
        one_datagram(&far, &near, address, &bytes, &format!("{what}, on its way back"));
    }
}

#[track_caller]
fn one_datagram(near: &UdpSocket, far: &UdpSocket, to: SocketAddr, bytes: &[u8], what: &str) {
    let mut buffer = vec![0; 1 << 16];
    near.send_to(bytes, to).unwrap_or_else(|error| panic!("{what}: not sent: {error}"));
    let (len, peer) = far.recv_from(&mut buffer).unwrap_or_else(|error| panic!("{what}: not received: {error}"));
    assert_eq!(peer, near.local_addr().expect("an address"), "{what}");
    assert!(buffer[..len] == *bytes, "{what}: {}", difference(bytes, &buffer[..len]));
}

/// Sends `count` datagrams of `size` bytes in one system call (`UDP_SEGMENT`); all must arrive, whole and in order.
#[track_caller]
pub fn datagram_train(from: Place<'_>, to: Place<'_>, size: u16, count: usize, seed: u64) {
    let [near, far] = [from, to].map(|place| socket(place));
    sys::set_udp_segment(&near, size).expect("UDP_SEGMENT");
    let bytes = Random::new(seed).bytes(usize::from(size) * count);
    near.send_to(&bytes, far.local_addr().expect("an address")).expect("a train is sent");
    let mut buffer = vec![0; 1 << 16];
    for (number, sent) in bytes.chunks(usize::from(size)).enumerate() {
        let len = far.recv(&mut buffer).unwrap_or_else(|error| panic!("datagram {number} of {count}: {error}"));
        assert!(buffer[..len] == *sent, "datagram {number} of {count}: {}", difference(sent, &buffer[..len]));
    }
}

/// Returns a counter of a host's TCP (`/proc/net/snmp`, `/proc/net/netstat`).
#[track_caller]
pub fn tcp_counter(host: &Host, name: &str) -> u64 {
    let text = host.run("cat", &["/proc/net/snmp", "/proc/net/netstat"]).unwrap();
    let words =
        |prefix| text.lines().filter_map(move |line| line.strip_prefix(prefix)).flat_map(|line| line.split(' '));
    // A line of names is followed by one of as many values.
    let lines = |prefix| (words(prefix).count() / 2, words(prefix).collect::<Vec<_>>());
    let found = ["Tcp: ", "TcpExt: "].map(lines).map(|(half, words)| {
        let (names, values) = words.split_at(half);
        names.iter().position(|known| *known == name).map(|at| values[at].parse().unwrap())
    });
    found.into_iter().flatten().next().unwrap()
}

/// Opens a UDP socket at an endpoint, with a time limit for receiving.
#[track_caller]
pub fn socket(place: Place<'_>) -> UdpSocket {
    socket_on(place, 0)
}

/// Opens a UDP socket like [`socket`], at an endpoint with the given port.
#[track_caller]
pub fn socket_on(place: Place<'_>, port: u16) -> UdpSocket {
    let socket = inside(place.host, || UdpSocket::bind((place.address, port)));
    let socket = socket.unwrap_or_else(|error| panic!("bind to {}: {error}", place.address));
    socket.set_read_timeout(Some(DATAGRAM_PATIENCE)).expect("a time limit");
    socket
}

/// Sends datagrams of the given sizes on the connected `socket`, and checks that the peer echoes them byte for byte.
/// UDP promises nothing, and a guest that starts a program for each datagram is slow: one that is not echoed in time is
/// sent again, a few times.
#[track_caller]
pub fn echoes(socket: &UdpSocket, sizes: &[usize], random: &mut Random) {
    const TRIES: usize = 20;
    socket.set_read_timeout(Some(DATAGRAM_PATIENCE)).expect("a time limit");
    let far = socket.peer_addr().map_or_else(|error| error.to_string(), |far| far.ip().to_canonical().to_string());
    let mut buffer = vec![0; 1 << 16];
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    for size in sizes {
        let bytes = random.bytes(*size);
        let send = || socket.send(&bytes).unwrap_or_else(|error| panic!("{size} bytes to {far}: {error}"));
        let mut tries = 1;
        send();
        loop {
            match socket.recv(&mut buffer) {
                Ok(len) if buffer[..len] == bytes => break,
                // Sent twice, for it was late.
                Ok(len) if earlier.iter().any(|sent| buffer[..len] == *sent) => {}
                Ok(len) => panic!("{size} bytes echoed by {far}: {len} came back, or others"),
                Err(error) if tries == TRIES => panic!("{size} bytes echoed by {far}: {error}"),
                Err(_) => {
                    tries += 1;
                    send();
                }
            }
        }
        earlier.push(bytes);
    }
}

/// Sends a ping of each size and checks that every reply carries the same data.
#[track_caller]
pub fn pings(from: Place<'_>, to: Place<'_>, sizes: &[usize]) {
    for size in sizes {
        let (size, address) = (size.to_string(), to.address.to_string());
        // Bytes that differ from their neighbours, so that a shift is seen; ping compares them.
        // One that is answered late is not sent again, and nothing counts as lost before the time is over. A lost
        // one costs the deadline, -w; with -W 60 ping of iputils 20221126 waited three minutes behind a narrow link.
        let words = ["-n", "-c", "1", "-i", "60", "-w", "20", "-p", "0123456789abcdef", "-s", &size, &address];
        let text = from.host.run("ping", &words).unwrap_or_else(|error| panic!("{error}"));
        assert!(text.contains(" 0% packet loss") && !text.contains("wrong data"), "{text}");
    }
}

/// Sends a file of `len` bytes, datagrams of all sizes, and pings, each in both directions.
#[track_caller]
pub fn everything(a: Place<'_>, b: Place<'_>, len: u64, seed: u64) {
    for (from, to, seed) in [(a, b, seed), (b, a, seed + 1)] {
        file(from, to, len, seed);
        datagrams(from, to, DATAGRAM_SIZES, seed);
        pings(from, to, PING_SIZES);
    }
}

/// Runs `work`, which opens sockets, inside of a host.
pub fn inside<T: Send>(host: &Host, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    host.enter(work).map_err(io::Error::other)?
}

fn difference(sent: &[u8], got: &[u8]) -> String {
    let first = sent.iter().zip(got).position(|(sent, got)| sent != got);
    let place = first.map_or_else(|| "none in the common part".into(), |place| format!("at byte {place}"));
    format!("{} bytes sent, {} received, first difference {place}", sent.len(), got.len())
}
