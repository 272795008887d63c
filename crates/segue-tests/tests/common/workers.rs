//! Helpers of the tests of two workers: their processors, the links, and the workers' shares.

use std::fs;
use std::process::{self, Command};
use std::sync::OnceLock;

use segue_lab::{Host, cores};
use segue_tests::{Stat, until};

/// Returns the processors that this process could use before it was bound to one of them.
fn processors() -> &'static [usize] {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    ALL.get_or_init(cores)
}

/// Binds a thread, or with `-a` among the options all those of a process, to one processor.
#[track_caller]
fn bind(options: &[&str], processor: usize, thread: u64) {
    let (processor, thread) = (processor.to_string(), thread.to_string());
    let bound = || {
        let output = Command::new("taskset").args(options).args(["-p", "-c", &processor, &thread]).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        // Of all threads of a process one may end meanwhile.
        let is_over = options.contains(&"-a") && words.contains("No such process");
        assert!(output.status.success() || is_over, "{words}");
        output.status.success().then_some(())
    };
    until("the threads of this process cannot be bound", bound);
}

/// Binds all threads of this process, and all processes that it starts from now on, to one processor. Otherwise the
/// kernel itself lets packets overtake each other, where a sender continues on another processor while the first one
/// still has a packet of its own in a queue. The workers are then moved by [`in_parallel`].
#[track_caller]
pub(crate) fn on_one_processor() {
    bind(&["-a"], processors()[0], process::id().into());
}

/// Binds the two workers of an instance to two processors, on which they run at the same time, unless this process may
/// use one processor only.
///
/// The kernel keeps the order of a flow all the same: between a host and a worker are queues that all processors share,
/// those of TUN and TAP devices and of the links of [`cable`] and of `LinkForm::Nic`.
#[track_caller]
pub(crate) fn in_parallel(stat: &Stat) {
    let pid = stat.json()["pid"].as_u64().expect("a process id");
    // The first worker is the main thread, the second one may start after the instance answers.
    let workers = [pid, until("no second worker", || second_worker(pid))];
    let processors = processors();
    for (at, worker) in workers.into_iter().enumerate() {
        bind(&[], processors[(at + 1) % processors.len()], worker);
    }
}

/// Returns the id of the second worker's thread.
fn second_worker(pid: u64) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut paths = threads.flatten().map(|entry| entry.path());
    let is_second = |name: String| name.trim_end() == "worker 1";
    let path = paths.find(|path| fs::read_to_string(path.join("comm")).is_ok_and(is_second))?;
    path.file_name()?.to_str()?.parse().ok()
}

/// Joins `eth0` of a host to `port` of another host, and brings both up.
///
/// A veth pair whose sender has no TSO and whose receiver has GRO has one queue for all processors. Other pairs have
/// one for each, and TCP, which sends from the processor of its thread and from those on which acknowledgements arrive,
/// would overtake itself there. Towards the host there is one for each: a worker stays on its processor, and with GRO
/// at the host the kernel lets the last segment of a train of a packet socket overtake the others, because only that
/// one belongs to the socket (`skb_prepare_for_gro`, Linux 5.14 to 6.18).
#[track_caller]
pub(crate) fn cable(host: &Host, middle: &Host, port: &str, address: &str) {
    let ip = |host: &Host, line: &str| host.run("ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
    ip(middle, &format!("link add {port} type veth peer name eth0 netns {}", host.net_path()));
    host.run("ethtool", &["-K", "eth0", "tso", "off"]).unwrap();
    middle.run("ethtool", &["-K", port, "gro", "on"]).unwrap();
    ip(middle, &format!("link set {port} addrgenmode none"));
    ip(middle, &format!("link set {port} up"));
    ip(host, &format!("addr add {address} dev eth0"));
    ip(host, "link set eth0 up");
}

/// Returns the units that each worker of an instance has received from a port.
#[track_caller]
pub(crate) fn shares(stat: &Stat, port: &str) -> Vec<u64> {
    let workers = stat.json()["workers"].as_array().expect("workers");
    workers.iter().map(|worker| worker["ports"][port]["receive"]["packets"].as_u64().unwrap_or(0)).collect()
}
