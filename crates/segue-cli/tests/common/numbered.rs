//! A stream of numbered datagrams from one host to another, none of which may be lost.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use segue_lab::Host;

/// Number of datagrams in flight: far fewer than any socket buffer or queue holds.
const WINDOW: u64 = 64;
/// Number of datagrams sent without a pause. With a pause of 1 ms after them a stream has about 15,000 a second: an
/// interruption of a tenth of a millisecond still loses one, and the machine has time for what is tested.
const BURST: u64 = 16;
/// Time after which a datagram counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// The receiving thread's result: the number of datagrams, or the first one out of order.
type Receiving = JoinHandle<Result<u64, String>>;

/// A stream of numbered datagrams that runs until it is stopped.
pub(crate) struct Numbered {
    stop: std::sync::Arc<AtomicBool>,
    arrived: std::sync::Arc<AtomicU64>,
    threads: Option<(JoinHandle<u64>, Receiving)>,
}

impl Numbered {
    /// Starts a stream between two addresses of their hosts, with payloads of `len` bytes.
    pub(crate) fn start(from: (&Host, SocketAddr), to: (&Host, SocketAddr), len: usize) -> Numbered {
        // So that no datagram waits for an address to be resolved: that queue is short.
        from.0.run("ping", &["-c", "1", "-W", "30", &to.1.ip().to_string()]).unwrap();
        let receiver = to.0.enter(|| UdpSocket::bind(to.1)).unwrap().unwrap();
        let sender = from.0.enter(|| UdpSocket::bind(from.1)).unwrap().unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (stop, arrived) = (std::sync::Arc::new(AtomicBool::new(false)), std::sync::Arc::new(AtomicU64::new(0)));
        let sent = std::sync::Arc::new(AtomicU64::new(u64::MAX));
        let (ended, count) = (std::sync::Arc::clone(&stop), std::sync::Arc::clone(&arrived));
        let total = std::sync::Arc::clone(&sent);
        let sending = thread::spawn(move || {
            let mut data = vec![0x5a; len.max(8)];
            let mut next = 0_u64;
            let mut since = Instant::now();
            let mut last = 0;
            while !ended.load(Ordering::Relaxed) {
                let now = count.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                }
                if next - now >= WINDOW {
                    if since.elapsed() > PATIENCE {
                        break;
                    }
                    thread::sleep(Duration::from_micros(50));
                    continue;
                }
                data[..8].copy_from_slice(&next.to_be_bytes());
                sender.send(&data).unwrap();
                next += 1;
                if next.is_multiple_of(BURST) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            total.store(next, Ordering::Relaxed);
            next
        });
        let (ended, count) = (std::sync::Arc::clone(&stop), std::sync::Arc::clone(&arrived));
        let receiving = thread::spawn(move || {
            let mut data = vec![0; 65_536];
            let mut expected = 0_u64;
            let mut quiet = Instant::now();
            loop {
                match receiver.recv(&mut data) {
                    Ok(got) => {
                        let number = u64::from_be_bytes(data[..8].try_into().unwrap());
                        if number != expected || got != len.max(8) {
                            ended.store(true, Ordering::Relaxed);
                            return Err(format!("number {number} of {got} bytes came where {expected} was next"));
                        }
                        expected += 1;
                        count.store(expected, Ordering::Relaxed);
                        quiet = Instant::now();
                    }
                    // What is missing may be late. Where nothing is, one that came twice would come soon.
                    Err(_) if expected == sent.load(Ordering::Relaxed) && quiet.elapsed() > Duration::from_secs(1) => {
                        return Ok(expected);
                    }
                    Err(_) if quiet.elapsed() > PATIENCE => {
                        ended.store(true, Ordering::Relaxed);
                        return Ok(expected);
                    }
                    Err(_) => {}
                }
            }
        });
        Numbered { stop, arrived, threads: Some((sending, receiving)) }
    }

    /// Waits until `more` datagrams have arrived.
    #[track_caller]
    pub(crate) fn pass(&mut self, more: u64) {
        let (goal, begin) = (self.arrived.load(Ordering::Relaxed) + more, Instant::now());
        while self.arrived.load(Ordering::Relaxed) < goal {
            let ended = self.stop.load(Ordering::Relaxed);
            assert!(!ended, "the stream has ended: {:?}", self.threads.take().map(|threads| threads.1.join()));
            assert!(begin.elapsed() < PATIENCE * 2, "the stream stands still");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the stream and returns the number of datagrams sent, all of which have arrived in order.
    #[track_caller]
    pub(crate) fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let (sending, receiving) = self.threads.take().unwrap();
        let (sent, arrived) = (sending.join().unwrap(), receiving.join().unwrap().unwrap());
        assert_eq!(sent, arrived, "datagrams were lost");
        sent
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
