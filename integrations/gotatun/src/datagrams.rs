//! A load of small datagrams, as implementations of QUIC send and receive them: in runs (UDP_SEGMENT, UDP_GRO), with a
//! limited number on their way. iperf3 calls the kernel for each datagram and waits for none: its rate is that at which
//! a queue before the tunnel drops.

use std::env;
use std::error::Error;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use segue_lab::{Cpu, Host, Process};
use segue_port::udp::{Receiver, Sender};

/// Payload of a datagram in bytes.
pub const LEN: usize = 200;
/// Number of datagrams of a run, and of those for which the receiver sends one acknowledgment.
const RUN: u64 = 32;
/// Largest number of datagrams on their way: fewer than the queue of a TUN device holds (500), and a socket's buffer
/// (some 230 single ones), so that no form loses any.
const WINDOW: u64 = 7 * RUN;
const PORT: u16 = 5202;
/// Time without an acknowledgment after which what is on its way counts as lost.
const LOST: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(15);

/// Sends to `to` for some seconds, and prints the number of datagrams that were received, and the seconds.
pub fn send(to: SocketAddr, seconds: u32) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    let (mut sender, mut run) = (Sender::new(), [[0_u8; LEN]; RUN as usize]);
    // Number of datagrams sent, of those up to the last that was acknowledged, and of those received.
    let (mut sent, mut passed, mut received) = (0_u64, 0_u64, 0_u64);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds.into()) {
        if sent + RUN <= passed + WINDOW {
            for datagram in &mut run {
                sent += 1;
                datagram[..8].copy_from_slice(&u64::to_be_bytes(sent));
            }
            match sender.send(&socket, &run, |datagram| (&datagram[..], None)) {
                // What a full queue did not take is lost.
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                _ => continue,
            }
        }
        let mut acknowledgment = [0; 16];
        match socket.recv(&mut acknowledgment) {
            Ok(_) => {
                let [last, count] = [0, 8].map(|at: usize| number(&acknowledgment[at..]));
                (passed, received) = (passed.max(last), received.max(count));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => passed = sent,
            Err(error) => return Err(error.into()),
        }
    }
    println!("{received} {:.6}", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Receives at an address until it is killed, and acknowledges each [`RUN`] of datagrams.
pub fn receive(at: SocketAddr) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(at)?;
    let mut receiver = Receiver::new(&socket);
    println!("ready");
    let (mut last, mut count) = (0_u64, 0_u64);
    loop {
        // Waits.
        socket.peek(&mut [0])?;
        // What waits may be dropped for its checksum.
        let Ok(mut received) = receiver.receive(&socket) else { continue };
        for (datagram, from) in received.iter_mut() {
            last = last.max(number(datagram));
            count += 1;
            if count.is_multiple_of(RUN) {
                socket.send_to(&[last, count].map(u64::to_be_bytes).concat(), from)?;
            }
        }
    }
}

/// Returns the number in the first 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Runs the load from one host to an address of the other, and returns Gbit/s and CPU seconds per gigabyte.
pub fn measure(from: &Host, to: &Host, at: IpAddr, seconds: u32, cpu: &Cpu) -> Result<(f64, f64), Box<dyn Error>> {
    let (program, at) = (env::current_exe()?, SocketAddr::new(at, PORT).to_string());
    let mut receiver = to.command(&program);
    receiver.args(["receive", &at]);
    let mut receiver = Process::spawn(receiver, b"")?;
    receiver.wait_for_line("ready", PATIENCE)?;
    let before = cpu.seconds()?;
    let mut sender = from.command(&program);
    sender.args(["send", &at, &seconds.to_string()]);
    let mut sender = Process::spawn(sender, b"")?;
    sender.wait(Duration::from_secs(seconds.into()) + PATIENCE)?;
    let used = cpu.seconds()? - before;
    let said = sender.stdout();
    let (received, took) = said.trim().split_once(' ').ok_or_else(|| sender.last_words())?;
    let (bytes, took) = (received.parse::<f64>()? * LEN as f64, took.parse::<f64>()?);
    Ok((bytes * 8e-9 / took, used / (bytes * 1e-9)))
}
