//! The machine that a table was measured on.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::cpu::Cpu;
use crate::named::Named;

/// Description of the machine of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors on which this process may run.
    pub cpus: usize,
    /// Release of the kernel, as in `uname -r`.
    pub kernel: String,
    /// Source of CPU times, as [`Cpu::method`] names it.
    pub cpu_method: String,
    /// Date and time in UTC (RFC 3339).
    pub date: String,
    /// Further facts: versions, settings of the run.
    #[serde(flatten)]
    pub more: Named<serde_json::Value>,
}

impl Machine {
    /// Describes this machine at the time of the call.
    pub fn here(cpu: &Cpu) -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            cpu: model(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_string(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string(),
            cpu_method: cpu.method().to_string(),
            date: rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()),
            more: Named::default(),
        }
    }
}

/// Returns the processor's model: `model name` on x86, the board's `Model` line on ARM.
fn model(cpuinfo: &str) -> Option<&str> {
    let value = |key: &str| {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == key)
            .map(|(_, v)| v.trim())
    };
    value("model name").or_else(|| value("Model"))
}

/// Formats seconds since 1970 as `YYYY-MM-DDTHH:MM:SSZ`.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z", day + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_year_ends() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn the_model_is_found_on_x86_and_on_arm_boards() {
        assert_eq!(model("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n"), Some("AMD EPYC"));
        assert_eq!(model("processor\t: 0\nBogoMIPS\t: 1\n\nModel\t\t: Raspberry Pi 4\n"), Some("Raspberry Pi 4"));
        assert_eq!(model("processor : 0\n"), None);
    }
}
