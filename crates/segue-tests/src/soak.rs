//! The criteria of a long run: slopes over time with their 95 % intervals, round trips of which each packet is counted,
//! what was counted as dropped between their ends, and a balance of the packets of an instance.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use segue_lab::Host;
use serde_json::Value;

use crate::faults::field;
use crate::traffic::{Place, socket};

/// Most windows into which samples are put. Their means, or their 99th percentiles, are independent of one another
/// where single samples are not.
const WINDOWS: usize = 24;
/// Number of samples of a process's descriptors at a quiet moment, and the time between two.
const QUIET: (u32, Duration) = (15, Duration::from_millis(100));
/// Drop reasons of fragments, which the datagrams of a route are not: those of a flood may wait for half a minute, and
/// would then count among the drops of a calm time.
const FRAGMENTS: [&str; 2] = ["nat_fragment", "nat_tiny_fragment"];
/// Drop reason of packets that wait for a neighbour: those of a flood that is over do so for some seconds more, and
/// would count among the drops of a calm time. In a calm time no datagram of a route may be dropped for it.
const LATE: [&str; 1] = ["route_no_neighbour"];
/// Counters of a host's kernel for packets that it dropped, by the beginning of their lines in `/proc/net/snmp`.
const KERNEL_DROPS: [(&str, &[&str]); 2] = [("Ip:", &["InDiscards", "OutDiscards"]), ("Udp:", &["InErrors"])];
/// Counters of the same drops in `/proc/net/snmp6`.
const KERNEL_DROPS_6: [&str; 3] = ["Ip6InDiscards", "Ip6OutDiscards", "Udp6InErrors"];

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
        let (hours, values): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        Slope::through(&from_mean(&hours), &from_mean(&values), 2)
    }

    /// Returns the slope through points like [`Slope::of`], of what does not go with `others` at the same times: the
    /// coefficient of time in a linear model that has the others' values as well. `None` also where there is no other
    /// one for each point.
    pub fn beside(points: &[(f64, f64)], others: &[(f64, f64)]) -> Option<Slope> {
        if points.len() != others.len() || points.len() < 5 {
            return None;
        }
        let (hours, values): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        let others = from_mean(&others.iter().map(|other| other.1).collect::<Vec<f64>>());
        // By Frisch, Waugh and Lovell it is the slope between the remainders of both.
        let remainder = |of: &[f64]| {
            let of = from_mean(of);
            let part = dot(&of, &others) / dot(&others, &others).max(f64::MIN_POSITIVE);
            of.iter().zip(&others).map(|(of, other)| of - part * other).collect::<Vec<f64>>()
        };
        Slope::through(&remainder(&hours), &remainder(&values), 3)
    }

    /// Returns the slope through values with a mean of zero, in a model of so many `parameters`.
    fn through(hours: &[f64], values: &[f64], parameters: usize) -> Option<Slope> {
        if hours.len() < parameters + 2 {
            return None;
        }
        let spread = dot(hours, hours);
        let slope = dot(hours, values) / spread;
        let rest: f64 = hours.iter().zip(values).map(|(hours, value)| (value - slope * hours).powi(2)).sum();
        // The quantile of Student's distribution by Cornish and Fisher.
        let free = (hours.len() - parameters) as f64;
        let student = 1.96 + 2.37 / free + 2.82 / (free * free);
        let error = student * (rest / free / spread).sqrt();
        Some(Slope { slope, least: slope - error, most: slope + error })
    }

    /// Returns the slope relative to a value.
    pub fn relative(self, to: f64) -> Slope {
        Slope { slope: self.slope / to, least: self.least / to, most: self.most / to }
    }
}

/// Returns the values without their mean.
fn from_mean(values: &[f64]) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter().map(|value| value - mean).collect()
}

/// Returns the sum of the products of two lists.
fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// The 99th percentiles of round trips over time.
#[derive(Debug)]
pub struct Trips {
    /// Middle of each window, hours, and the percentile in it, seconds.
    windows: Vec<(f64, f64)>,
    /// Mean of the percentiles, in seconds.
    pub middle: f64,
}

impl Trips {
    /// Returns those of a series, of which the first `warm_up` part does not count.
    pub fn of(series: &Series, warm_up: f64) -> Trips {
        let windows = series.windows(warm_up, p99);
        let middle = mean(&mut windows.iter().map(|(_, value)| *value).collect::<Vec<f64>>());
        Trips { windows, middle }
    }

    /// Returns the slope, in parts of the middle for an hour.
    pub fn slope(&self) -> Option<Slope> {
        Slope::of(&self.windows).map(|slope| slope.relative(self.middle))
    }

    /// Returns the slope of what does not go with the machine, whose own trips these are; that of all where they do not
    /// have the same windows.
    pub fn slope_beside(&self, machine: &Trips) -> Option<Slope> {
        let slope = Slope::beside(&self.windows, &machine.windows).or_else(|| Slope::of(&self.windows));
        slope.map(|slope| slope.relative(self.middle))
    }

    /// Returns the percentiles in microseconds, in one line.
    pub fn list(&self) -> String {
        list(&self.windows.iter().map(|(at, value)| (*at, value * 1e6)).collect::<Vec<(f64, f64)>>())
    }
}

/// Samples over time, by the cycle of changes in which each was taken: only whole cycles are alike.
#[derive(Clone, Debug, Default)]
pub struct Series {
    cycles: BTreeMap<u32, Vec<(Duration, f64)>>,
}

impl Series {
    /// Adds a sample that was taken at a time since the start.
    pub fn add(&mut self, cycle: u32, at: Duration, value: f64) {
        self.cycles.entry(cycle).or_default().push((at, value));
    }

    /// Returns the result of `of` for all values.
    pub fn of_all(&self, of: fn(&mut [f64]) -> f64) -> f64 {
        of(&mut self.cycles.values().flatten().map(|(_, value)| *value).collect::<Vec<f64>>())
    }

    /// Returns the middle of each window, hours, and the result of `of` for its values. Each window has the same number
    /// of cycles. Cycles that began in the first `warm_up` part of the time do not count, and the last one, which may
    /// not be whole, does not either.
    pub fn windows(&self, warm_up: f64, of: fn(&mut [f64]) -> f64) -> Vec<(f64, f64)> {
        let cycles: Vec<&Vec<(Duration, f64)>> = self.cycles.values().collect();
        let Some((last, whole)) = cycles.split_last() else { return Vec::new() };
        let warm = last.last().map_or(Duration::ZERO, |(at, _)| at.mul_f64(warm_up));
        let first = whole.iter().position(|cycle| cycle[0].0 >= warm).unwrap_or(whole.len());
        let each = whole[first..].len().div_ceil(WINDOWS).max(1);
        let window = |part: &[&Vec<(Duration, f64)>]| {
            let (times, mut values): (Vec<f64>, Vec<f64>) =
                part.iter().copied().flatten().map(|(at, value)| (at.as_secs_f64(), *value)).unzip();
            (times.iter().sum::<f64>() / times.len() as f64 / 3600.0, of(&mut values))
        };
        let mut found: Vec<(f64, f64)> = whole[first..].rchunks_exact(each).map(window).collect();
        found.reverse();
        found
    }

    /// Returns the first value after the first `warm_up` part of the time, and the last one; `None` without any.
    pub fn ends(&self, warm_up: f64) -> Option<(f64, f64)> {
        let (_, last) = self.cycles.last_key_value()?;
        let (end, last) = *last.last()?;
        let after = self.cycles.values().flatten().find(|(at, _)| *at >= end.mul_f64(warm_up));
        after.map(|(_, first)| (*first, last))
    }
}

/// Returns the values of windows in one line: whether a slope is that of a step or of a rise can be seen.
pub fn list(windows: &[(f64, f64)]) -> String {
    windows.iter().map(|(_, value)| format!(" {value:.0}")).collect()
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
    /// Number of datagrams that the kernel refused to send.
    pub refused: u64,
    /// Round-trip times in seconds while there was no flood.
    pub calm: Series,
    /// Round-trip times in seconds beside a flood, anywhere on the machine.
    pub flooded: Series,
}

impl Route {
    /// Opens sockets at both ends.
    #[track_caller]
    pub fn new(name: &'static str, near: Place<'_>, far: Place<'_>) -> Route {
        let (near, far) = (socket(near), socket(far));
        Route { name, near, far, sent: 0, came: 0, refused: 0, calm: Series::default(), flooded: Series::default() }
    }

    /// Sends a datagram, which the other host echoes, and waits at most `longest` in each direction; returns the time
    /// of the round trip, `None` if one was lost or not sent. A datagram that is late is counted once it is read.
    pub fn round_trip(&mut self, longest: Duration) -> Option<Duration> {
        let number = self.sent.to_ne_bytes();
        let start = Instant::now();
        let mut send = |socket: &UdpSocket, to: SocketAddr| {
            let is_sent = socket.send_to(&number, to).is_ok();
            let count = if is_sent { &mut self.sent } else { &mut self.refused };
            *count += 1;
            is_sent.then_some(())
        };
        send(&self.near, self.far.local_addr().ok()?)?;
        let from = receive(&self.far, number, longest, &mut self.came)?;
        send(&self.far, from)?;
        receive(&self.near, number, longest, &mut self.came).map(|_| start.elapsed())
    }

    /// Reads late datagrams until none is missing, for at most `longest`.
    pub fn drain(&mut self, longest: Duration) {
        let begin = Instant::now();
        while self.lost() > 0 && begin.elapsed() < longest {
            for socket in [&self.near, &self.far] {
                let is_set = socket.set_read_timeout(Some(Duration::from_millis(50))).is_ok();
                self.came += u64::from(is_set && socket.recv_from(&mut [0; 64]).is_ok());
            }
        }
    }

    /// Returns the number of datagrams that were not received; a negative one where some were received twice.
    pub fn lost(&self) -> i64 {
        self.sent.cast_signed() - self.came.cast_signed()
    }
}

/// Round trips that no instance is on, from one host to a thread in another that sends back what it receives: where
/// they become slower, the machine does.
#[derive(Debug)]
pub struct Comparison {
    near: UdpSocket,
    far: SocketAddr,
    is_over: Arc<AtomicBool>,
    sent: u64,
    /// Round-trip times in seconds while there was no flood.
    pub calm: Series,
}

impl Comparison {
    /// Starts the thread.
    #[track_caller]
    pub fn start(near: Place<'_>, far: Place<'_>) -> Comparison {
        let (near, other) = (socket(near), socket(far));
        let far = other.local_addr().expect("an address");
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        thread::spawn(move || {
            let mut bytes = [0; 64];
            while !ends.load(Ordering::Relaxed) {
                if let Ok((len, from)) = other.recv_from(&mut bytes) {
                    _ = other.send_to(&bytes[..len], from);
                }
            }
        });
        Comparison { near, far, is_over, sent: 0, calm: Series::default() }
    }

    /// Sends a datagram, and waits at most `longest` for the answer; returns the time of the round trip.
    pub fn round_trip(&mut self, longest: Duration) -> Option<Duration> {
        let number = self.sent.to_ne_bytes();
        let start = Instant::now();
        self.near.send_to(&number, self.far).ok()?;
        self.sent += 1;
        receive(&self.near, number, longest, &mut 0).map(|_| start.elapsed())
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        _ = self.near.send_to(&[], self.far);
    }
}

/// Receives datagrams until the one with the given number arrives, and counts them.
fn receive(socket: &UdpSocket, number: [u8; 8], longest: Duration, came: &mut u64) -> Option<SocketAddr> {
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

/// Datagrams that a route lost in a time, and packets that were counted as dropped on it meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Number of datagrams that were sent and not received.
    pub lost: i64,
    /// Number of packets that instances, interfaces and kernels of the route counted as dropped.
    pub counted: i64,
}

/// A route with all that counts packets which are dropped on it.
///
/// Counted are the drops of its instances under all reasons but those of fragments, and beside no flood that of packets
/// which wait for neighbours, errors and drops of the interfaces that its datagrams pass, and what the kernels of its
/// hosts discard in IP, and at UDP sockets for want of room or for a wrong checksum. A packet may be counted at two of
/// these places, and packets of others are counted too, so the sum is an upper bound: close where there is no flood on
/// the route, and far too high where there is one.
///
/// Not counted is what a kernel drops for want of a link address or by a queueing discipline of an interface that is
/// down, and what is inside of an instance at the moment of its end. A caller that has no datagram on its way while it
/// kills an instance or sets a link down loses none of them there.
pub struct Track<'a> {
    /// The route itself, with its datagrams.
    pub route: Route,
    hosts: Vec<(&'a Host, Vec<String>)>,
    instances: Vec<Box<dyn Fn() -> Value + 'a>>,
    /// Number of drops in counters that began again at zero.
    ended: i64,
    before: Loss,
    /// Number of packets that were counted under the reasons in [`LATE`].
    late: i64,
    /// Losses while there was no flood.
    pub calm: Loss,
    /// Losses beside a flood.
    pub flooded: Loss,
}

impl<'a> Track<'a> {
    /// Makes the track of a route through `hosts`, each with the interfaces that datagrams pass, and through
    /// `instances`, whose states the functions return.
    pub fn new(
        route: Route,
        hosts: Vec<(&'a Host, Vec<String>)>,
        instances: Vec<Box<dyn Fn() -> Value + 'a>>,
    ) -> Track<'a> {
        let [before, calm, flooded] = [Loss::default(); 3];
        let mut track = Track { route, hosts, instances, ended: 0, before, late: 0, calm, flooded };
        (track.before, track.late) = (track.now(), track.late());
        track
    }

    /// Returns the number of packets that were counted as dropped so far.
    pub fn counted(&self) -> i64 {
        let by_kernels = self.hosts.iter().map(|(host, devices)| dropped_by_kernel(host, devices)).sum::<u64>();
        let counts = |reason: &str| !FRAGMENTS.contains(&reason) && !LATE.contains(&reason);
        (by_kernels + self.by_instances(&counts)).cast_signed() + self.ended
    }

    fn late(&self) -> i64 {
        self.by_instances(&|reason| LATE.contains(&reason)).cast_signed()
    }

    fn by_instances(&self, counts: &dyn Fn(&str) -> bool) -> u64 {
        self.instances.iter().map(|state| dropped_by_instance(&state(), counts)).sum()
    }

    /// Keeps the count of before a change after which an instance, or its interface, may count from zero.
    pub fn keep(&mut self, before: i64) {
        self.ended += (before - self.counted()).max(0);
    }

    /// Ends a time with or without a flood: its losses are added to those of its kind.
    pub fn close(&mut self, is_flooded: bool) {
        let (now, late) = (self.now(), self.late());
        let sums = if is_flooded { &mut self.flooded } else { &mut self.calm };
        sums.lost += now.lost - self.before.lost;
        sums.counted += now.counted - self.before.counted;
        if is_flooded {
            // A process that has ended took its counters with it.
            sums.counted += (late - self.late).max(0);
        }
        (self.before, self.late) = (now, late);
    }

    fn now(&self) -> Loss {
        Loss { lost: self.route.lost(), counted: self.counted() }
    }
}

/// Returns the number of packets that an instance dropped for reasons that count.
fn dropped_by_instance(stat: &Value, counts: &dyn Fn(&str) -> bool) -> u64 {
    let ports = stat["ports"].as_object().expect("ports");
    let drops = ports.values().filter_map(|port| port["drops"].as_object()).flatten();
    let counted = drops.filter(|(reason, _)| counts(reason));
    counted.map(|(_, count)| count.as_u64().unwrap_or(0)).sum()
}

/// Returns the number of packets that the kernel of a host dropped at these interfaces, in IP, and at UDP sockets.
fn dropped_by_kernel(host: &Host, devices: &[String]) -> u64 {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let [dev, v4, v6] = host.enter(|| ["dev", "snmp", "snmp6"].map(read)).expect("a host can be entered");
    dropped_of(&dev, &v4, &v6, devices)
}

/// Returns the sum of the drops in the text of `/proc/net/dev`, of `/proc/net/snmp` and of `/proc/net/snmp6`.
pub fn dropped_of(dev: &str, v4: &str, v6: &str, devices: &[String]) -> u64 {
    let number = |word: &str| word.parse::<u64>().unwrap_or(0);
    let of_device = |line: &str| {
        let (_, numbers) = line.split_once(':').filter(|(name, _)| devices.iter().any(|dev| dev == name.trim()))?;
        let numbers: Vec<u64> = numbers.split_whitespace().map(number).collect();
        // Errors and drops of received packets, and of sent ones.
        Some([2, 3, 10, 11].iter().filter_map(|column| numbers.get(*column)).sum::<u64>())
    };
    let of_protocol = |(start, names): &(&str, &[&str])| {
        let mut lines = v4.lines().filter(|line| line.starts_with(*start)).map(str::split_whitespace);
        let (keys, values) = lines.next().zip(lines.next())?;
        Some(keys.zip(values).filter(|(key, _)| names.contains(key)).map(|(_, value)| number(value)).sum::<u64>())
    };
    let of_v6 = |line: &str| {
        let (key, value) = line.split_once(char::is_whitespace)?;
        KERNEL_DROPS_6.contains(&key).then(|| number(value.trim()))
    };
    dev.lines().filter_map(of_device).sum::<u64>()
        + KERNEL_DROPS.iter().filter_map(of_protocol).sum::<u64>()
        + v6.lines().filter_map(of_v6).sum::<u64>()
}

/// Returns the anonymous memory of a process, in kB: what it has allocated. Pages of files come and go with the load of
/// the machine.
#[track_caller]
pub fn anonymous_kb(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the memory of a process");
    ["Anonymous", "Swap"].iter().map(|key| field(&text, key).parse::<f64>().expect("a size")).sum()
}

/// Returns the number of open descriptors of a process.
#[track_caller]
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors of a process").count()
}

/// Returns the number of open descriptors of each process at a quiet moment, when the caller has no connection to any:
/// the least of a while, since a process may not have had the time yet to close what the last client left.
pub fn quiet_descriptors(pids: impl Iterator<Item = u32> + Clone) -> BTreeMap<u32, usize> {
    let mut fewest = BTreeMap::new();
    for _ in 0..QUIET.0 {
        thread::sleep(QUIET.1);
        for pid in pids.clone() {
            let count = descriptors(pid);
            fewest.entry(pid).and_modify(|fewest: &mut usize| *fewest = count.min(*fewest)).or_insert(count);
        }
    }
    fewest
}

/// Counters of a kind of instance that its balance needs besides those of all.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    /// Numbers of a port: packets that the instance made itself.
    pub made: &'static [&'static str],
    /// Numbers of a port: packets that were for the instance itself.
    pub taken: &'static [&'static str],
    /// Drop reasons of packets some of which a port had counted as received, and some not.
    pub unsure: &'static [&'static str],
}

/// The packets of an instance by their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Numbers of packets of wire size that were received on each port, and of those that the instance created itself.
    pub came: BTreeMap<String, u64>,
    /// Packets that were sent on each port, and those that are counted under a drop reason.
    pub left: BTreeMap<String, u64>,
    /// Number of packets that may have been received, or not.
    pub unsure: u64,
}

impl Balance {
    /// Returns the balance of an instance by its state. Of the drops, those whose packets never came in (`early`) do
    /// not count.
    pub fn of(stat: &Value, early: &[&str], account: Account) -> Balance {
        let mut balance = Balance::default();
        let ports = stat["ports"].as_object().expect("ports");
        for (name, port) in ports {
            let count = |direction: &str, key: &str| port[direction][key].as_u64().unwrap_or(0);
            balance.came.insert(format!("{name} received"), count("receive", "segments"));
            balance.left.insert(format!("{name} sent"), count("transmit", "segments"));
            for key in account.made {
                balance.came.insert(format!("{name} {key}"), count("numbers", key));
            }
            for key in account.taken {
                balance.left.insert(format!("{name} {key}"), count("numbers", key));
            }
            for (reason, count) in port["drops"].as_object().into_iter().flatten() {
                let count = count.as_u64().unwrap_or(0);
                if account.unsure.contains(&reason.as_str()) {
                    balance.unsure += count;
                } else if !early.contains(&reason.as_str()) {
                    balance.left.insert(format!("{name} {reason}"), count);
                }
            }
        }
        balance.came.retain(|_, count| *count > 0);
        balance.left.retain(|_, count| *count > 0);
        balance
    }

    /// Returns the number of received packets that were neither sent nor counted under a drop reason, whichever of the
    /// unsure ones were received.
    pub fn missing(&self) -> i64 {
        let missing = self.came.values().sum::<u64>().cast_signed() - self.left.values().sum::<u64>().cast_signed();
        missing - missing.clamp(0, self.unsure.cast_signed())
    }
}
