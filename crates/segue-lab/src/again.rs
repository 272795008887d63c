//! A test in a process of its own.

use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// Longest time that the process takes; one that never ends is killed then.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs a test of the calling test program in another process, for which the environment has `variable`, and returns
/// how that ended.
///
/// # Errors
/// Where the process cannot be started or waited for.
pub fn test_again(test: &str, variable: &str) -> io::Result<ExitStatus> {
    let mut again = Command::new(env::current_exe()?);
    again.args(["--exact", test, "--nocapture"]).env(variable, "1").stdin(Stdio::null());
    let (mut child, begin) = (again.spawn()?, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if begin.elapsed() > LONGEST {
            child.kill()?;
            return child.wait();
        }
        thread::sleep(Duration::from_millis(10));
    }
}
