//! Requests and responses of one byte on many connections at once, and how long each took.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ready::ready;
use crate::sys::Poller;

const PORT: u16 = 5203;
/// Time without a byte after which a connection is dead.
const PATIENCE: Duration = Duration::from_secs(5);
/// The reported quantiles in per cent.
pub(super) const QUANTILES: [usize; 4] = [50, 90, 95, 99];

/// Answers every received byte with one byte, until all connections have ended.
pub(super) fn answer(address: &str, connections: u32) -> io::Result<Value> {
    let listener = TcpListener::bind((address, PORT))?;
    println!("ready");
    let poller = Poller::new()?;
    let mut streams = Vec::new();
    for name in 0..connections as usize {
        let (stream, _) = listener.accept()?;
        prepare(&stream)?;
        poller.add(stream.as_fd(), name)?;
        streams.push(Some(stream));
    }
    let (mut left, mut names, mut bytes) = (streams.len(), Vec::new(), [0; 64]);
    while left > 0 {
        poller.wait(PATIENCE, &mut names)?;
        if names.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for name in &names {
            let Some(stream) = &mut streams[*name] else { continue };
            match stream.read(&mut bytes) {
                Ok(len @ 1..) => stream.write_all(&bytes[..len])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => {
                    streams[*name] = None;
                    left -= 1;
                }
            }
        }
    }
    Ok(json!({}))
}

/// Keeps one request in flight on each of the connections; returns transactions and latencies.
pub(super) fn exchange(address: &str, connections: u32, time: Duration) -> io::Result<Value> {
    let poller = Poller::new()?;
    let mut streams = Vec::new();
    for name in 0..connections as usize {
        let stream = TcpStream::connect((address, PORT))?;
        prepare(&stream)?;
        poller.add(stream.as_fd(), name)?;
        streams.push((stream, Instant::now()));
    }
    ready();
    let begin = Instant::now();
    for (stream, sent) in &mut streams {
        *sent = Instant::now();
        stream.write_all(b"?")?;
    }
    let (mut took, mut names) = (Vec::with_capacity(1 << 20), Vec::new());
    while begin.elapsed() < time {
        poller.wait(PATIENCE, &mut names)?;
        if names.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for name in &names {
            let (stream, sent) = &mut streams[*name];
            match stream.read(&mut [0; 1]) {
                Ok(1..) => {
                    let now = Instant::now();
                    took.push(u32::try_from((now - *sent).as_nanos()).unwrap_or(u32::MAX));
                    *sent = now;
                    stream.write_all(b"?")?;
                }
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |percent| quantile(&took, percent);
    let micros: Vec<f64> = QUANTILES.into_iter().map(|percent| f64::from(at(percent)) / 1000.0).collect();
    Ok(json!({ "transactions": took.len(), "seconds": seconds, "micros": micros }))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Returns the smallest value that `percent` of the sorted values do not exceed; 0 without values.
fn quantile(sorted: &[u32], percent: usize) -> u32 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_occurred() {
        let sorted: Vec<u32> = (1..=200).collect();
        assert_eq!(QUANTILES.map(|percent| quantile(&sorted, percent)), [100, 180, 190, 198]);
        assert_eq!((quantile(&[7], 50), quantile(&[7], 99), quantile(&[], 50)), (7, 7, 0));
    }

    #[test]
    fn every_connection_is_answered_and_all_end() {
        let server = thread::spawn(|| answer("127.0.0.1", 20));
        let asked = (0..100).find_map(|_| {
            thread::sleep(Duration::from_millis(20));
            exchange("127.0.0.1", 20, Duration::from_millis(200)).ok()
        });
        let asked = asked.expect("an answer");
        assert!(asked["transactions"].as_u64() >= Some(20), "{asked}");
        let micros: Vec<f64> = asked["micros"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        assert!(micros.len() == 4 && micros.is_sorted() && micros[0] > 0.0, "{asked}");
        server.join().unwrap().unwrap();
    }
}
