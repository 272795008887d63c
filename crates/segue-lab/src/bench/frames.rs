//! Sender of Ethernet frames at a constant rate: UDP datagrams of many flows, in turn.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::sys::FrameSender;

/// Address to which the datagrams go.
const TARGET: [u8; 4] = [198, 18, 3, 1];
/// The network from which they come, without its last byte.
const SOURCE: [u8; 3] = [198, 18, 1];
/// Number of sources.
const SOURCES: u32 = 200;
/// The first source port.
const PORT: u32 = 1024;
/// The discard port.
const DISCARD: u16 = 9;
/// Length of the shortest frame without its check sequence (FCS).
const SHORTEST: usize = 60;
/// Length of the FCS, which a virtual link does not carry. Frame sizes include it, as those of RFC 2544 do.
const FCS: usize = 4;
/// Number of frames that are due together.
const BATCH: usize = FrameSender::MOST;

/// Returns the Ethernet address of a host by its number, as the frames have it; 0 is the sender's.
pub(super) fn station(number: u8) -> String {
    format!("02:00:00:00:00:{number:02x}")
}

/// Sends frames of `size` bytes to the station of a number, from `device`. Returns how many it has offered in how many
/// seconds, those that the device refused among them.
pub(super) fn send(device: &str, number: u8, rate: u32, time: Duration, size: usize, flows: u32) -> io::Result<Value> {
    let socket = FrameSender::open(device)?;
    let len = size.saturating_sub(FCS).max(SHORTEST);
    let flows = flows.max(1);
    // Whole batches.
    let frames: Vec<Vec<u8>> = (0..flows.next_multiple_of(BATCH as u32))
        .map(|at| frame(number, len, at % flows).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput)))
        .collect::<io::Result<_>>()?;
    let mut schedule = Schedule { rate: f64::from(rate.max(1)), passed: 0.0 };
    let (begin, mut sent) = (Instant::now(), 0u64);
    for batch in frames.chunks(BATCH).cycle() {
        loop {
            let now = begin.elapsed();
            if now >= time {
                return Ok(json!({ "sent": sent, "seconds": now.as_secs_f64() }));
            }
            let wait = schedule.wait(now);
            if wait.is_zero() {
                break;
            }
            thread::sleep(wait.min(time - now));
        }
        offer(&socket, batch)?;
        sent += batch.len() as u64;
    }
    // The batches have no end.
    Ok(Value::Null)
}

/// Offers each frame once.
fn offer(socket: &FrameSender, mut frames: &[Vec<u8>]) -> io::Result<()> {
    while !frames.is_empty() {
        let taken = match socket.send(frames) {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => 0,
            other => other?,
        };
        // A call ends at the first frame that the other end of the link has no room for.
        let done = if taken == frames.len() { taken } else { taken + 1 };
        frames = &frames[done..];
    }
    Ok(())
}

/// The time at which each batch is due.
#[derive(Debug)]
struct Schedule {
    /// Frames per second.
    rate: f64,
    /// Number of frames that were due so far.
    passed: f64,
}

impl Schedule {
    /// Returns how long to wait for the next batch; zero when it is due, and then counts it. What is very late is given
    /// up: a burst would be a load of its own.
    fn wait(&mut self, now: Duration) -> Duration {
        let batch = BATCH as f64;
        let late = self.rate * now.as_secs_f64() - self.passed;
        if late < batch {
            return Duration::from_secs_f64((batch - late) / self.rate).max(Duration::from_nanos(1));
        }
        if late > (4.0 * batch).max(self.rate / 1000.0) {
            self.passed += late - batch;
        }
        self.passed += batch;
        Duration::ZERO
    }
}

/// Makes a frame of `len` bytes; `None` where a length or a port does not fit its field.
fn frame(number: u8, len: usize, flow: u32) -> Option<Vec<u8>> {
    let ip_len = u16::try_from(len.checked_sub(14)?).ok()?;
    let udp_len = ip_len.checked_sub(20)?;
    let port = u16::try_from(PORT.checked_add(flow)?).ok()?;
    let [a, b, c] = SOURCE;
    let source = [a, b, c, u8::try_from(10 + flow % SOURCES).ok()?];

    let mut ip: Vec<u8> = vec![0x45, 0];
    ip.extend(ip_len.to_be_bytes());
    // No identification, DF, a TTL of 64, UDP.
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(source.iter().chain(&TARGET));
    let sum = !folded(total(&ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    let mut udp: Vec<u8> = Vec::new();
    [port, DISCARD, udp_len, 0].iter().for_each(|word| udp.extend(word.to_be_bytes()));
    udp.resize(usize::from(udp_len), 0);
    let sum = !folded(total(&ip[12..]) + 17 + u32::from(udp_len) + total(&udp));
    // 0 would say that there is none (RFC 768).
    let sum = if sum == 0 { u16::MAX } else { sum };
    udp.get_mut(6..8)?.copy_from_slice(&sum.to_be_bytes());

    let ethernet = [2, 0, 0, 0, 0, number, 2, 0, 0, 0, 0, 0, 8, 0];
    Some([&ethernet[..], &ip, &udp].concat())
}

/// Returns the sum of the words of a range with an even number of bytes.
fn total(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum()
}

/// Returns the sum with its carries added (RFC 1071).
fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_a_frame_of_its_own_with_right_checksums() {
        let mut all: Vec<Vec<u8>> = (0..1000).map(|flow| frame(2, 60, flow).unwrap()).collect();
        for frame in &all {
            assert_eq!((frame.len(), &frame[..6]), (60, &[2, 0, 0, 0, 0, 2][..]));
            assert_eq!(folded(total(&frame[14..34])), 0xffff);
            assert_eq!(folded(total(&frame[26..34]) + 17 + 26 + total(&frame[34..])), 0xffff);
            assert_eq!((&frame[16..18], &frame[38..40]), (&[0, 46][..], &[0, 26][..]), "lengths");
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 1000);
        assert_eq!(frame(1, 1514, 0).unwrap().len(), 1514);
        assert!(frame(1, 60, 65_000).is_none() && frame(1, 20, 0).is_none() && frame(1, 70_000, 0).is_none());
        assert_eq!(station(2), "02:00:00:00:00:02");
    }

    /// Counts the frames that are due until `end` (us), with a look at the clock every 50 us but none in `stall`.
    fn due(rate: f64, end: u64, stall: std::ops::Range<u64>) -> usize {
        let mut schedule = Schedule { rate, passed: 0.0 };
        let times = (0..end).step_by(50).filter(|at| !stall.contains(at)).map(Duration::from_micros);
        times.map(|now| if schedule.wait(now).is_zero() { BATCH } else { 0 }).sum()
    }

    #[test]
    fn frames_are_due_at_the_rate_and_a_stall_is_not_made_up_for() {
        for rate in [1_000.0, 100_000.0, 400_000.0] {
            let calm = due(rate, 1_000_000, 0..0);
            assert!((calm as f64 - rate).abs() <= 2.0 * BATCH as f64, "{rate}: {calm}");
        }
        let stalled = due(100_000.0, 1_000_000, 300_000..500_000);
        assert!((stalled as f64 - 80_000.0).abs() <= 4.0 * BATCH as f64, "{stalled}");
        // A short one is.
        let late = due(100_000.0, 1_000_000, 300_000..301_000);
        assert!((late as f64 - 100_000.0).abs() <= 2.0 * BATCH as f64, "{late}");
    }
}
