//! The share of CPU time spent in checksum routines, by `perf` where it is installed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{checked_output, search_path};
use crate::{LabError, Process, sys, which};

/// Sampling rate of `perf`, samples per second. An odd number does not run in step with a timer.
const RATE: &str = "499";
/// Names of the kernel's routines that read payload to compute a checksum.
const KERNEL: &[&str] = &[
    "csum_partial",
    "do_csum",
    "csum_partial_copy_generic",
    "csum_partial_copy_nocheck",
    "csum_and_copy_from_user",
    "csum_and_copy_to_user",
    "csum_and_copy_from_iter_full",
    "csum_and_copy_to_iter",
    "skb_checksum",
    "__skb_checksum",
    "skb_copy_and_csum_bits",
    "skb_copy_and_csum_datagram_msg",
];
/// Parts of the names of segue's checksum routines, demangled or not.
const OURS: &[&str] = &["sum_avx", "copy_avx", "scalar::sum", "6scalar3sum", "scalar::copy", "6scalar4copy"];

/// Length to which the kernel truncates a task's name.
const NAME_LEN: usize = 15;

/// Longest time that `perf` gets to begin, and to write its data, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running `perf` profile.
pub(super) struct Profile {
    /// The name that the kernel shows for segue's tasks.
    program: String,
    perf: Process,
    path: PathBuf,
    cores: Vec<usize>,
}

impl Profile {
    /// Starts sampling these processors; `None` if `perf` cannot.
    pub(super) fn start(program: &Path, cores: &[usize]) -> Result<Option<Profile>, LabError> {
        if which("perf").is_none() {
            return Ok(None);
        }
        let path = std::env::temp_dir().join(format!("segue-profile-{}", std::process::id()));
        let list = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = perf();
        command.args(["record", "-q", "-e", "cpu-clock", "-F", RATE, "-C", &list, "-N", "-B", "-o"]).arg(&path);
        let mut perf = Process::spawn(command, b"")?;
        let begin = Instant::now();
        while !path.exists() {
            if perf.ended().is_some() || begin.elapsed() > PATIENCE {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        Ok(Some(Profile { program: name.chars().take(NAME_LEN).collect(), perf, path, cores: cores.to_vec() }))
    }

    /// Stops sampling and returns the shares of checksum routines. Returns for each processor the share of the load's
    /// time in checksum routines in per cent; `None` where `perf` did not write its samples in time.
    pub(super) fn shares(mut self) -> Result<Option<Vec<f64>>, LabError> {
        self.perf.stop(PATIENCE);
        if fs::metadata(&self.path).map_or(0, |data| data.len()) == 0 {
            return Ok(None);
        }
        let text = checked_output(perf().args(["script", "-F", "comm,cpu,ip,sym", "-i"]).arg(&self.path))?;
        Ok(self.cores.iter().map(|core| share(&text, &self.program, *core)).collect())
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        self.perf.stop(Duration::from_secs(1));
        let _ = fs::remove_file(&self.path);
    }
}

fn perf() -> Command {
    let mut command = Command::new("perf");
    command.env("LC_ALL", "C").env("PATH", search_path()).stdin(Stdio::null()).process_group(0);
    sys::prepare_child(&mut command, sys::Place::default());
    command
}

/// Returns the share of checksum routines in the load's samples on `core` in per cent; `None` without samples.
fn share(text: &str, program: &str, core: usize) -> Option<f64> {
    let (mut all, mut summing) = (0_u32, 0_u32);
    for (name, symbol) in text.lines().filter_map(|line| sample(line, program, core)) {
        all += 1;
        let ours = || name == program && OURS.iter().any(|part| symbol.contains(part));
        summing += u32::from(KERNEL.contains(&symbol) || ours());
    }
    (all > 0).then(|| 100.0 * f64::from(summing) / f64::from(all))
}

/// Returns task and symbol of a line `TASK [CPU] IP SYMBOL`, if it belongs to the load: its programs, the kernel's
/// threads for received frames, and interrupts of the thread that watches an idle processor.
fn sample<'a>(line: &'a str, program: &str, core: usize) -> Option<(&'a str, &'a str)> {
    let (name, rest) = line.split_once(" [")?;
    let (cpu, rest) = rest.split_once(']')?;
    let (ip, symbol) = rest.trim().split_once(' ')?;
    let name = name.trim();
    let is_kernel = ip.len() == 16 && ip.starts_with('f');
    let is_load = name == program
        || name == "iperf3"
        || name.starts_with("napi/")
        || name.starts_with("ksoftirqd/")
        || name.starts_with("watch-core") && is_kernel;
    (is_load && cpu.parse() == Ok(core)).then(|| (name, symbol.trim()))
}

#[cfg(test)]
mod tests {
    const SCRIPT: &str = "          iperf3 [001]  ffffffff8161c5f2 csum_partial
           segue [001]      557b1b348460 segue::arch::x86::sum_avx512_vnni
           segue [001]      557b1b348461 _ZN5segue4arch3x868sum_avx217h0123456789abcdefE
           segue [001]      557b1b348462 segue::arch::x86::differ_avx2
     napi/n1-123 [001]  ffffffff8161c5f3 __netif_receive_skb_core
    watch-core-1 [001]  ffffffff8161c5f4 csum_partial
    watch-core-1 [001]      7f151c58e5c2 clock_gettime
         swapper [001]  ffffffff821f4dab pv_native_safe_halt
           rustc [001]      7f151c58e5c2 csum_partial
           segue [000]      557b1b348462 segue::gso::split
";

    #[test]
    fn the_share_is_of_the_loads_own_samples_on_that_processor() {
        let share = |core| super::share(SCRIPT, "segue", core);
        assert_eq!((share(1), share(0), share(2)), (Some(100.0 * 4.0 / 6.0), Some(0.0), None));
        assert_eq!(super::share(SCRIPT, "other", 1), Some(100.0 * 2.0 / 3.0));
    }
}
