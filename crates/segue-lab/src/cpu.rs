//! CPU seconds used by all processes of the lab.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::processor::Core;
use crate::{LabError, sys};

/// A counter of CPU time: it includes the children of the accounted hosts, the kernel's work in their context, and
/// ksoftirqd, which handles received packets under high load.
///
/// A control group where one can be made (v1 cpuacct, else v2), else the whole machine's busy time. ksoftirqd also
/// works for others, so a machine that does something else counts too much.
///
/// With [`Cpu::on_core`] the children have one processor, and what is counted is the time in which that processor was
/// not idle, so that interrupts are in it too, less the time in which tasks ran there that are not the hosts'.
#[derive(Debug)]
pub struct Cpu {
    group: Option<ControlGroup>,
    softirq: Vec<PathBuf>,
    core: Option<Core>,
    quota: Option<ControlGroup>,
}

#[derive(Debug)]
struct ControlGroup {
    dir: PathBuf,
    version: u8,
    procs: Arc<File>,
}

const PREFIX: &str = "segue-lab-";
/// A pseudo version number for a group of v1's cpu controller, which limits CPU time and does not count it.
const LIMIT_ONLY: u8 = 0;
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Cpu {
    /// Creates the best counter available on this machine. Also ends what labs that were killed left behind in their
    /// control groups.
    pub fn new() -> Cpu {
        let group = v1_parent().and_then(|parent| ControlGroup::make(&parent, 1)).or_else(|| {
            let parent = v2_parent()?;
            ControlGroup::make(&parent, 2)
        });
        Cpu { group, softirq: ksoftirqd(""), core: None, quota: None }
    }

    /// Creates a counter for hosts whose children run on processor `core` only and, with `quota`, for at most that per
    /// cent of the time. Interrupts are outside of the quota: their work is charged to no task.
    pub fn on_core(core: usize, quota: Option<u32>) -> Result<Cpu, LabError> {
        let all_tasks = mount(|kind, options| kind == "cgroup" && has(options, "cpuacct"));
        let watched = Core::watch(core, all_tasks.map(|dir| dir.join("cpuacct.usage_percpu")))
            .map_err(|source| LabError::system(format!("watch processor {core}"), source))?;
        let mut cpu = Cpu { softirq: ksoftirqd(&core.to_string()), core: Some(watched), ..Cpu::new() };
        if let Some(percent) = quota {
            cpu.limit(percent).map_err(|source| LabError::System {
                what: format!("limit a host to {percent} % of a processor"),
                source,
                hint: "run it as root, on a kernel with CONFIG_CFS_BANDWIDTH; in cgroup v2 the cpu controller has to be on".into(),
            })?;
        }
        Ok(cpu)
    }

    fn limit(&mut self, percent: u32) -> io::Result<()> {
        const PERIOD_US: u32 = 10_000;
        let quota = PERIOD_US / 100 * percent;
        let own = self.group.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        if own.version == 2 {
            return fs::write(own.dir.join("cpu.max"), format!("{quota} {PERIOD_US}"));
        }
        let set = |dir: &Path| {
            fs::write(dir.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(dir.join("cpu.cfs_quota_us"), quota.to_string())
        };
        // One hierarchy with both controllers, or one for each.
        if own.dir.join("cpu.cfs_quota_us").exists() {
            return set(&own.dir);
        }
        let parent = parent(|kind, options| kind == "cgroup" && has(options, "cpu"), |list| has(list, "cpu"));
        let other = parent.and_then(|parent| ControlGroup::make(&parent, LIMIT_ONLY));
        let other = other.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        set(&other.dir)?;
        self.quota = Some(other);
        Ok(())
    }

    /// Returns the source of CPU times in words, for `machine.cpu_method`.
    pub fn method(&self) -> &'static str {
        if let Some(core) = &self.core {
            return match self.group.is_some() && core.knows_tasks() {
                true => "the core's busy time less that of other tasks",
                false => "the core's busy time",
            };
        }
        match (&self.group, self.softirq.is_empty()) {
            (Some(ControlGroup { version: 1, .. }), false) => "cgroup v1 cpuacct + ksoftirqd",
            (Some(ControlGroup { version: 1, .. }), true) => "cgroup v1 cpuacct",
            (Some(_), false) => "cgroup v2 cpu.stat + ksoftirqd",
            (Some(_), true) => "cgroup v2 cpu.stat",
            (None, _) => "/proc/stat busy time of the whole machine",
        }
    }

    /// Returns the seconds used since an arbitrary origin: take the difference of two readings.
    pub fn seconds(&self) -> io::Result<f64> {
        // A processor that went away takes its thread with it.
        let softirq: f64 = self.softirq.iter().filter_map(|path| on_cpu(path).ok()).sum();
        if let Some(core) = &self.core {
            let Some((group, tasks)) = self.group.as_ref().zip(core.tasks()) else { return Ok(core.busy()) };
            return Ok(core.busy() - (tasks - group.seconds()? - softirq));
        }
        match &self.group {
            Some(group) => Ok(group.seconds()? + softirq),
            None => {
                busy(&fs::read_to_string("/proc/stat")?).ok_or_else(|| io::Error::other("/proc/stat has no cpu line"))
            }
        }
    }

    /// Returns the control groups and the processor of children that are to be counted.
    pub(crate) fn place(&self) -> sys::Place {
        let groups = self.group.iter().chain(&self.quota).map(|group| Arc::clone(&group.procs)).collect();
        sys::Place { groups, core: self.core(), ..Default::default() }
    }

    /// Adds an existing thread by its id, such as a kernel thread, to the counted ones.
    pub fn adopt(&self, thread: u32) -> io::Result<()> {
        for group in self.group.iter().chain(&self.quota) {
            fs::write(group.dir.join("cgroup.procs"), thread.to_string())?;
        }
        match self.core() {
            Some(core) => sys::run_thread_on(thread, core),
            None => Ok(()),
        }
    }

    /// Returns the processor reserved for the children.
    pub fn core(&self) -> Option<usize> {
        self.core.as_ref().map(|core| core.number)
    }

    /// Returns the directory of the control group, if there is one.
    pub fn directory(&self) -> Option<&Path> {
        self.group.as_ref().map(|group| group.dir.as_path())
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlGroup {
    fn make(parent: &Path, version: u8) -> Option<ControlGroup> {
        sweep(parent);
        // A sweep of another lab may come between two of these steps and take the group away.
        (0..3).find_map(|_| ControlGroup::make_once(parent, version))
    }

    fn make_once(parent: &Path, version: u8) -> Option<ControlGroup> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let procs = match OpenOptions::new().write(true).open(dir.join("cgroup.procs")) {
            Ok(file) => Arc::new(file),
            Err(_) => {
                let _ = fs::remove_dir(&dir);
                return None;
            }
        };
        sys::try_lock(&procs);
        let group = ControlGroup { dir, version, procs };
        // Moving a process may be forbidden where making the directory was not; the kernel says so only when it is
        // tried.
        (group.takes_children() && group.seconds().is_ok()).then_some(group)
    }

    fn takes_children(&self) -> bool {
        let mut probe = Command::new("true");
        probe
            .env("PATH", crate::process::search_path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        sys::prepare_child(&mut probe, sys::Place { groups: vec![Arc::clone(&self.procs)], ..Default::default() });
        probe.status().is_ok_and(|status| status.success())
    }

    fn seconds(&self) -> io::Result<f64> {
        if self.version == LIMIT_ONLY {
            return Ok(0.0);
        }
        let (file, unit) = if self.version == 1 { ("cpuacct.usage", 1e-9) } else { ("cpu.stat", 1e-6) };
        let text = fs::read_to_string(self.dir.join(file))?;
        let number = if self.version == 1 { text.trim() } else { usage_usec(&text).unwrap_or_default() };
        let count: u64 = number.parse().map_err(|_| io::Error::other(format!("{file} has no number")))?;
        Ok(count as f64 * unit)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Removes the control group, with retries for a moment: a child that was just collected leaves it a little later.
fn remove(dir: &Path) {
    for _ in 0..100 {
        match fs::remove_dir(dir) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(Duration::from_millis(5)),
            _ => return,
        }
    }
}

/// Removes the control groups of killed labs, recognised by their free lock, and kills the remaining processes in them.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let dir = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(procs) = OpenOptions::new().read(true).write(true).open(dir.join("cgroup.procs")) else { continue };
        if sys::try_lock(&procs) {
            let members = io::read_to_string(&procs).unwrap_or_default();
            members.lines().filter_map(|line| line.parse().ok()).for_each(sys::kill_member);
            remove(&dir);
        }
    }
}

/// Returns this process's own control group in the v1 hierarchy that has cpuacct.
fn v1_parent() -> Option<PathBuf> {
    parent(|kind, options| kind == "cgroup" && has(options, "cpuacct"), |controllers| has(controllers, "cpuacct"))
}

fn v2_parent() -> Option<PathBuf> {
    parent(|kind, _| kind == "cgroup2", str::is_empty)
}

fn parent(mounted: impl Fn(&str, &str) -> bool, member: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    locate(&mounts, &own, mounted, member)
}

fn locate(
    mounts: &str,
    own: &str,
    mounted: impl Fn(&str, &str) -> bool,
    member: impl Fn(&str) -> bool,
) -> Option<PathBuf> {
    let root = mount_in(mounts, mounted)?;
    // Lines are `ID:CONTROLLERS:/PATH`, with no controllers for v2 (cgroups(7)).
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        member(controllers).then_some(path)
    })?;
    Some(Path::new(root).join(path.trim_start_matches('/')))
}

fn mount(mounted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mount_in(&mounts, mounted).map(PathBuf::from)
}

fn mount_in(mounts: &str, mounted: impl Fn(&str, &str) -> bool) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (dir, kind, options) = (words.next()?, words.next()?, words.next()?);
        mounted(kind, options).then_some(dir)
    })
}

fn has(list: &str, word: &str) -> bool {
    list.split(',').any(|item| item == word)
}

fn usage_usec(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec ")).map(str::trim)
}

/// Returns the `schedstat` files of all ksoftirqd threads, or of one processor's thread; empty in a PID namespace
/// without them.
fn ksoftirqd(core: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
        comm.trim().strip_prefix("ksoftirqd/").is_some_and(|number| core.is_empty() || core == number)
    };
    entries.filter(ours).map(|path| path.join("schedstat")).filter(|path| on_cpu(path).is_ok()).collect()
}

/// Returns the seconds on a processor from the first field of schedstat, which is in nanoseconds.
fn on_cpu(path: &Path) -> io::Result<f64> {
    let text = fs::read_to_string(path)?;
    let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    first.map(|nanos| nanos as f64 * 1e-9).ok_or_else(|| io::Error::other("schedstat has no number"))
}

/// Returns the sum of user, nice, system, irq and softirq time of all processors. /proc/stat counts in USER_HZ, which
/// is 100 on every architecture that Rust's standard library runs on except alpha.
fn busy(stat: &str) -> Option<f64> {
    let fields: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    let ticks: u64 = [0, 1, 2, 5, 6].iter().filter_map(|index| fields.get(*index)).sum();
    Some(ticks as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_both_generations() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "4:memory:/m\n2:cpu,cpuacct:/a/b\n0::/user.slice/x.scope\n";
        let v1 = locate(mounts, own, |k, o| k == "cgroup" && has(o, "cpuacct"), |c| has(c, "cpuacct"));
        assert_eq!(v1.unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct/a/b"));
        let v2 = locate(mounts, own, |k, _| k == "cgroup2", str::is_empty);
        assert_eq!(v2.unwrap(), Path::new("/sys/fs/cgroup/unified/user.slice/x.scope"));
        assert_eq!(locate("", own, |_, _| true, |_| true), None);
    }

    #[test]
    fn idle_and_stolen_time_are_not_busy_time() {
        let stat = "cpu  100 10 200 99999 5000 30 60 7000 1 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy(stat), Some(4.0));
        assert_eq!(busy("intr 1 2 3\n"), None);
    }

    #[test]
    fn the_v2_counter_is_read_in_microseconds() {
        assert_eq!(usage_usec("usage_usec 1500000\nuser_usec 1\n"), Some("1500000"));
        assert_eq!(usage_usec("user_usec 1\n"), None);
    }

    #[test]
    fn what_a_killed_lab_left_is_swept_and_a_living_one_is_not() {
        let living = Cpu::new();
        let Some(parent) = living.directory().and_then(Path::parent).map(Path::to_path_buf) else {
            return crate::skip_this_test("no control groups");
        };
        let dead = parent.join(format!("{PREFIX}{}-dead", std::process::id()));
        fs::create_dir(&dead).unwrap();
        let procs = Arc::new(OpenOptions::new().write(true).open(dead.join("cgroup.procs")).unwrap());
        let mut left = Command::new("sleep");
        left.arg("60");
        sys::prepare_child(&mut left, sys::Place { groups: vec![procs], ..Default::default() });
        let mut left = left.spawn().unwrap();
        sweep(&parent);
        assert!(!left.wait().unwrap().success());
        assert!(!dead.exists() && living.directory().is_some_and(Path::exists));
    }

    #[test]
    fn a_child_that_works_is_counted_and_its_group_goes_away() {
        let cpu = Cpu::new();
        let before = cpu.seconds().unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        sys::prepare_child(&mut child, cpu.place());
        assert!(child.status().unwrap().success());
        let used = cpu.seconds().unwrap() - before;
        assert!(used > 0.01, "{used} s by {}", cpu.method());
        let dir = cpu.directory().map(Path::to_path_buf);
        drop(cpu);
        assert!(dir.is_none_or(|dir| !dir.exists()));
    }
}
