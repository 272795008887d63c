//! A service under faults and changes for a while: nothing of it grows. 15 seconds; `SEGUE_DRIFT` seconds where that is
//! set, and from 20 minutes on the slopes of its memory are bounded, too.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use segue_tests::faults::{Fault, PATIENCE, Service, parent, tail};
use segue_tests::{sys, test_name};

/// Number of tunnels. The last two have faults and reloads.
const TUNNELS: u8 = 4;
/// Number of tunnels whose processes stay.
const CALM: u8 = 2;
/// Bound of the growth of a process, kB an hour, and time from which on a slope says something.
const MOST_GROWTH: f64 = 256.0;
const LONG: Duration = Duration::from_secs(20 * 60);

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(200);

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: f64,
    resident_kb: f64,
    descriptors: usize,
}

fn sample(pid: u32, begin: Instant) -> Sample {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = segue_tests::faults::field(&status, "VmRSS").parse().unwrap();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    Sample { at: begin.elapsed().as_secs_f64() / 3600.0, resident_kb: resident, descriptors }
}

/// Returns the slope of the memory by least squares and the upper end of its 95 % interval, kB an hour. The first
/// tenth, in which caches fill, does not count.
fn slope(samples: &[Sample]) -> (f64, f64) {
    let samples = &samples[samples.len() / 10..];
    let count = samples.len() as f64;
    let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|s| s.at), mean(|s| s.resident_kb));
    let spread: f64 = samples.iter().map(|s| (s.at - x).powi(2)).sum();
    let slope = samples.iter().map(|s| (s.at - x) * (s.resident_kb - y)).sum::<f64>() / spread;
    let rest: f64 = samples.iter().map(|s| (s.resident_kb - y - slope * (s.at - x)).powi(2)).sum();
    (slope, slope + 1.96 * (rest / (count - 2.0) / spread).sqrt())
}

/// Returns the process of a tunnel, once it answers.
fn pid_of(service: &Service, net: u8) -> u32 {
    let begin = Instant::now();
    loop {
        if let Some(pid) = service.pid(&format!("sg{net}")) {
            return pid;
        }
        assert!(begin.elapsed() < PATIENCE, "sg{net} does not answer: {}", tail(&service.near));
        thread::sleep(PAUSE);
    }
}

#[test]
fn a_service_under_faults_and_changes_grows_nowhere() {
    let Some(service) = Service::start(test_name!(), TUNNELS, "", &[]) else { return };
    let longest = std::env::var("SEGUE_DRIFT").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let longest = Duration::from_secs(longest);
    let begin = Instant::now();
    let calm: Vec<u32> = (1..=CALM).map(|net| pid_of(&service, net)).collect();
    let mut processes: Vec<u32> = calm.iter().flat_map(|pid| [*pid, parent(*pid)]).collect();
    processes.push(service.near.id());
    let mut samples: BTreeMap<u32, Vec<Sample>> = BTreeMap::new();
    let mut latencies = Vec::new();
    let (mut round, mut killed) = (0_u32, None::<Instant>);
    while begin.elapsed() < longest || round < 12 {
        for net in 1..=TUNNELS {
            let sent = Instant::now();
            assert!(service.passes(net, PATIENCE), "sg{net}, round {round}: {}", tail(&service.near));
            if net <= CALM {
                latencies.push((begin.elapsed(), sent.elapsed()));
            }
        }
        // Faults of one tunnel, reloads, and changes of the link that all share.
        match round % 8 {
            // More than three faults in a minute delay the restart.
            1 if killed.is_none_or(|last| last.elapsed() > Duration::from_secs(25)) => {
                killed = Some(Instant::now());
                service.fault(TUNNELS, Fault::Worker(libc::SIGKILL));
            }
            3 => sys::signal(service.near.id(), libc::SIGHUP).unwrap(),
            5 => {
                for state in ["down", "up"] {
                    service.ground.b.run("ip", &["link", "set", "dev", "eth0", state]).unwrap();
                }
            }
            7 => {
                for mtu in ["1400", "1500"] {
                    service.ground.a.run("ip", &["link", "set", "dev", "eth0", "mtu", mtu]).unwrap();
                }
            }
            _ => {}
        }
        for pid in &processes {
            samples.entry(*pid).or_default().push(sample(*pid, begin));
        }
        round += 1;
        thread::sleep(PAUSE);
    }
    let after: Vec<u32> = (1..=CALM).map(|net| pid_of(&service, net)).collect();
    assert_eq!(calm, after, "what had no fault has its process");
    for (pid, samples) in &samples {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let (first, last) = samples.split_at(samples.len() / 2);
        let end = samples[samples.len() - 1];
        println!("{} {pid}: {} kB, {} descriptors", name.trim(), end.resident_kb, end.descriptors);
        // While it reloads or starts an instance, the service has descriptors for that.
        let least = |part: &[Sample]| part.iter().map(|sample| sample.descriptors).min();
        assert!(least(last) <= least(first), "{name}: {first:?} {last:?}");
        if begin.elapsed() >= LONG {
            let (slope, most) = slope(samples);
            println!("{} {pid}: {slope:.0} kB an hour, at most {most:.0}", name.trim());
            assert!(most <= MOST_GROWTH, "{} {pid}: {slope:.0} kB an hour, at most {most:.0}", name.trim());
        }
    }
    let p99 = |part: &[(Duration, Duration)]| {
        let mut times: Vec<Duration> = part.iter().map(|(_, time)| *time).collect();
        times.sort();
        times[times.len() * 99 / 100]
    };
    let (early, late) = latencies.split_at(latencies.len() / 2);
    println!("{round} rounds; p99 of a round trip {:?}, then {:?}", p99(early), p99(late));
}
