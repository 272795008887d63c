//! The criteria of a long run: slopes over time with their 95 % intervals, round trips of which each packet is counted,
//! and a balance of the packets of an instance.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::traffic::{Place, socket};

/// Number of windows into which samples are put. Their means, or their 99th percentiles, are independent of one another
/// where single samples are not.
const WINDOWS: usize = 24;

/// A least-squares slope, per hour, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Slope of the fitted line, per hour.
    pub slope: f64,
    /// Lower bound of the interval.
    pub least: f64,
    /// Upper bound of the interval.
    pub most: f64,
}

impl Slope {
    /// Returns the slope through points of (hours, value); `None` if there are fewer than four.
    pub fn of(points: &[(f64, f64)]) -> Option<Slope> {
        if points.len() < 4 {
            return None;
        }
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
        let rest: f64 = points.iter().map(|point| (point.1 - y - slope * (point.0 - x)).powi(2)).sum();
        // The quantile of Student's distribution by Cornish and Fisher.
        let free = count - 2.0;
        let student = 1.96 + 2.37 / free + 2.82 / (free * free);
        let error = student * (rest / free / spread).sqrt();
        Some(Slope { slope, least: slope - error, most: slope + error })
    }

    /// Returns the slope relative to a value.
    pub fn relative(self, to: f64) -> Slope {
        Slope { slope: self.slope / to, least: self.least / to, most: self.most / to }
    }
}

/// Returns the middle of each window of samples, hours, and the result of `of` for its values. The first tenth, in
/// which caches fill, does not count.
pub fn windows(samples: &[(Duration, f64)], of: fn(&mut [f64]) -> f64) -> Vec<(f64, f64)> {
    let samples = &samples[samples.len() / 10..];
    let each = samples.len().div_ceil(WINDOWS).max(1);
    let window = |part: &[(Duration, f64)]| {
        let mut values: Vec<f64> = part.iter().map(|(_, value)| *value).collect();
        let middle = part.iter().map(|(at, _)| at.as_secs_f64()).sum::<f64>() / part.len() as f64 / 3600.0;
        (middle, of(&mut values))
    };
    samples.chunks(each).map(window).collect()
}

/// Returns the mean of the values.
pub fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the 99th percentile of the values.
pub fn p99(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 99 / 100).copied().unwrap_or(0.0)
}

/// A route of datagrams through an instance, on which each is counted.
#[derive(Debug)]
pub struct Route {
    /// Name of the route's instance.
    pub name: &'static str,
    near: UdpSocket,
    far: UdpSocket,
    /// Number of datagrams sent, in both directions.
    pub sent: u64,
    /// Number of datagrams received.
    pub came: u64,
    /// Round-trip times in seconds, each with the time since the start.
    pub times: Vec<(Duration, f64)>,
}

impl Route {
    /// Opens sockets at both ends.
    #[track_caller]
    pub fn new(name: &'static str, near: Place<'_>, far: Place<'_>) -> Route {
        Route { name, near: socket(near), far: socket(far), sent: 0, came: 0, times: Vec::new() }
    }

    /// Sends a datagram, which the other host echoes, and waits at most `longest` in each direction. A datagram that
    /// is late is counted once it is read.
    pub fn round_trip(&mut self, begin: Instant, longest: Duration) {
        let number = self.sent.to_ne_bytes();
        let start = Instant::now();
        let Ok(to) = self.far.local_addr() else { return };
        if self.near.send_to(&number, to).is_err() {
            return;
        }
        self.sent += 1;
        let Some(from) = receive(&self.far, number, longest, &mut self.came) else { return };
        if self.far.send_to(&number, from).is_err() {
            return;
        }
        self.sent += 1;
        if receive(&self.near, number, longest, &mut self.came).is_some() {
            self.times.push((begin.elapsed(), start.elapsed().as_secs_f64()));
        }
    }

    /// Returns the number of datagrams that were not received.
    pub fn lost(&self) -> u64 {
        self.sent - self.came
    }
}

/// Receives datagrams until the one with the given number arrives, and counts them.
fn receive(socket: &UdpSocket, number: [u8; 8], longest: Duration, came: &mut u64) -> Option<std::net::SocketAddr> {
    let begin = Instant::now();
    while let Some(left) = longest.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).ok()?;
        let mut bytes = [0; 64];
        if let Ok((len, from)) = socket.recv_from(&mut bytes) {
            *came += 1;
            if bytes[..len] == number {
                return Some(from);
            }
        }
    }
    None
}

/// The packets of an instance by their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Numbers of packets of wire size that were received on each port, and of those that the instance created itself.
    pub came: BTreeMap<String, u64>,
    /// Packets that were sent on each port, and those that are counted under a drop reason.
    pub left: BTreeMap<String, u64>,
}

impl Balance {
    /// Returns the balance of an instance by its state. Of the drops, those whose packets never came in (`early`) do
    /// not count. `made` and `taken` are numbers of a port: packets that the instance made itself, and packets that
    /// were for itself.
    pub fn of(stat: &Value, early: &[&str], made: &[&str], taken: &[&str]) -> Balance {
        let mut balance = Balance::default();
        let ports = stat["ports"].as_object().expect("ports");
        for (name, port) in ports {
            let count = |direction: &str, key: &str| port[direction][key].as_u64().unwrap_or(0);
            balance.came.insert(format!("{name} received"), count("receive", "segments"));
            balance.left.insert(format!("{name} sent"), count("transmit", "segments"));
            for key in made {
                balance.came.insert(format!("{name} {key}"), count("numbers", key));
            }
            for key in taken {
                balance.left.insert(format!("{name} {key}"), count("numbers", key));
            }
            for (reason, count) in port["drops"].as_object().into_iter().flatten() {
                if !early.contains(&reason.as_str()) {
                    balance.left.insert(format!("{name} {reason}"), count.as_u64().unwrap_or(0));
                }
            }
        }
        balance.came.retain(|_, count| *count > 0);
        balance.left.retain(|_, count| *count > 0);
        balance
    }

    /// Returns the number of received packets that were neither sent nor counted under a drop reason.
    pub fn missing(&self) -> i64 {
        self.came.values().sum::<u64>().cast_signed() - self.left.values().sum::<u64>().cast_signed()
    }
}
