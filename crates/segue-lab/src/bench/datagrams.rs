//! Sender and receiver of a load of large datagrams with flow control.
//!
//! UDP has no flow control: a sender fills a queue, the rest is dropped, and a datagram with one lost fragment is lost
//! as a whole. So the receiver reports now and then what it has received, and the sender keeps a small window in
//! flight.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ready::ready;

const PORT: u16 = 5210;
/// Number of datagrams of a flow in flight. Their fragments fit every queue.
const WINDOW: u64 = 32;
/// Number of datagrams after which the receiver reports.
const STRIDE: u64 = 8;
/// Time after which datagrams in flight count as lost.
const LOST: Duration = Duration::from_millis(50);
/// Time that the receiver waits for the first datagram; [`END`] is the time for each further one.
const PATIENCE: Duration = Duration::from_secs(15);
const END: Duration = Duration::from_millis(500);

fn each<T: Send>(flows: u32, work: impl Fn(u16) -> io::Result<T> + Sync) -> io::Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let ports = (0..flows).filter_map(|flow| PORT.checked_add(u16::try_from(flow).ok()?));
        let threads: Vec<_> = ports.map(|port| scope.spawn(move || work(port))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))).collect()
    })
}

/// Prints `ready`, then receives until no more datagrams arrive.
pub(super) fn sink(address: &str, flows: u32) -> io::Result<Value> {
    let sockets = (0..flows).filter_map(|flow| PORT.checked_add(u16::try_from(flow).ok()?));
    let sockets: Vec<UdpSocket> = sockets.map(|port| UdpSocket::bind((address, port))).collect::<io::Result<_>>()?;
    println!("ready");
    let got = each(flows, |port| receive(&sockets[usize::from(port - PORT)]))?;
    let begin = got.iter().map(|(begin, ..)| *begin).min().unwrap_or_else(Instant::now);
    let end = got.iter().map(|(_, end, _)| *end).max().unwrap_or(begin);
    let bytes: u64 = got.iter().map(|(.., bytes)| bytes).sum();
    Ok(json!({ "bytes": bytes, "seconds": (end - begin).as_secs_f64() }))
}

/// Receives datagrams; returns the arrival times of the first and last one, and the number of bytes.
fn receive(socket: &UdpSocket) -> io::Result<(Instant, Instant, u64)> {
    let (mut buffer, mut bytes, mut count) = (vec![0; 1 << 16], 0, 0u64);
    let (mut begin, mut last) = (Instant::now(), Instant::now());
    socket.set_read_timeout(Some(PATIENCE))?;
    loop {
        let (len, peer) = match socket.recv_from(&mut buffer) {
            Ok(got) => got,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
            Err(error) => return Err(error),
        };
        last = Instant::now();
        if count == 0 {
            begin = last;
            socket.set_read_timeout(Some(END))?;
        }
        (bytes, count) = (bytes + len as u64, count + 1);
        // The sender's number, so that what was lost is known to be gone.
        if let Some(number) = buffer[..len].first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
            && number % STRIDE == 0
        {
            socket.send_to(&number.to_be_bytes(), peer)?;
        }
    }
    Ok((begin, last, bytes))
}

/// Sends datagrams of `len` bytes for `time`. `lost` in the result counts the waits without a report.
pub(super) fn source(address: &str, flows: u32, time: Duration, len: usize) -> io::Result<Value> {
    ready();
    let lost = each(flows, |port| send(&format!("{address} {port}"), time, len.max(8)))?;
    Ok(json!({ "lost": lost.iter().sum::<u64>() }))
}

fn send(to: &str, time: Duration, len: usize) -> io::Result<u64> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let (address, port) = to.split_once(' ').ok_or_else(wrong)?;
    let to = SocketAddr::new(address.parse().map_err(|_| wrong())?, port.parse().map_err(|_| wrong())?);
    let socket = match to {
        SocketAddr::V4(_) => UdpSocket::bind("0.0.0.0:0")?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    let (begin, mut datagram, mut answer) = (Instant::now(), vec![0x5a; len], [0; 8]);
    let (mut sent, mut known, mut lost) = (0u64, 0u64, 0);
    while begin.elapsed() < time {
        while sent - known < WINDOW {
            sent += 1;
            datagram[..8].copy_from_slice(&sent.to_be_bytes());
            match socket.send(&datagram) {
                Err(error) if error.raw_os_error() != Some(libc::ENOBUFS) => return Err(error),
                _ => {}
            }
        }
        match socket.recv(&mut answer) {
            Ok(8) => known = known.max(u64::from_be_bytes(answer)).min(sent),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                (known, lost) = (sent, lost + 1);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_on_loopback_arrives() {
        thread::scope(|scope| {
            let sink = scope.spawn(|| sink("127.0.0.1", 2));
            thread::sleep(Duration::from_millis(100));
            let sent = source("127.0.0.1", 2, Duration::from_millis(100), 9000).unwrap();
            let got = sink.join().unwrap().unwrap();
            assert!(got["bytes"].as_u64().unwrap() > 1_000_000, "{got} {sent}");
            assert_eq!(got["bytes"].as_u64().unwrap() % 9000, 0);
        });
    }
}
