//! Human-readable formatting of numbers, in SI units with three significant figures. JSON has exact numbers instead.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use segue_host::clock;

/// Formats bytes as `43 kB`, `18.2 GB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Formats a number as `681 k`.
pub fn count(n: u64) -> String {
    scaled(n as f64, &["", "k", "M", "G", "T", "P", "E"]).trim_end().to_owned()
}

/// Formats bytes for a narrow column: `43k`, `1.2k`, `980`.
pub fn short_bytes(n: f64) -> String {
    scaled(n, &["", "k", "M", "G", "T", "P", "E"]).replace(' ', "")
}

/// Formats a rate with three significant figures for a narrow column: `4.71G`, `47.1M`, `471k`, `12`.
pub fn rate(per_second: f64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (per_second, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", UNITS[unit])
}

/// Formats a duration as `2h14m`, `9d03h`, `12s`.
pub fn short_duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{:02}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes:02}m"),
        (days, hours, _) => format!("{days}d{hours:02}h"),
    }
}

/// Formats a duration as `2 min 14 s`.
pub fn long_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Formats a time as RFC 3339 in UTC with milliseconds.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Formats a time as RFC 3339 in the local time zone with milliseconds and the offset from UTC, for output.
pub fn local_time(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    with_offset(time, clock::offset(i64::try_from(seconds).unwrap_or(0)))
}

/// Converts a time of [`rfc3339`] into that of [`local_time`]; other text stays as it is.
pub fn in_local_time(text: &str) -> String {
    parse_rfc3339(text).map_or_else(|| text.to_owned(), local_time)
}

/// Parses a time as [`rfc3339`] formats it.
fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    if text.len() != "1970-01-01T00:00:00.000Z".len() || !text.ends_with('Z') {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let clock = number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
    // The date is searched for, by its neighbourhood: a year has at most 366 days.
    let first = year.checked_sub(1970)? * 365;
    let days = (first..=first + year / 4 + 366).find(|days| civil_date(*days) == (year, month, day))?;
    UNIX_EPOCH.checked_add(Duration::from_millis((days * 86_400 + clock) * 1000 + number(20, 23)?))
}

/// Formats a time as [`local_time`] does, in a time zone that is `offset` seconds ahead of UTC.
fn with_offset(time: SystemTime, offset: i64) -> String {
    let ahead = Duration::from_secs(offset.unsigned_abs());
    let shifted = if offset < 0 { time.checked_sub(ahead) } else { time.checked_add(ahead) };
    let minutes = offset.unsigned_abs() / 60;
    let sign = if offset < 0 { '-' } else { '+' };
    let text = rfc3339(shifted.unwrap_or(time));
    format!("{}{sign}{:02}:{:02}", text.trim_end_matches('Z'), minutes / 60, minutes % 60)
}

/// Returns the year, month and day of a day that is counted from 1970-01-01, in the Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // Days are counted from 0000-03-01, so that a leap day is the last day of its year; an era has 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Formats a value with three significant figures and the SI prefix that leaves 1 to 999 before it.
fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.5 would print as 1000 in the smaller unit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let number = match value {
        _ if unit == 0 => format!("{value:.0}"),
        v if v < 9.995 => format!("{v:.1}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    };
    format!("{number} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_si_units_and_never_four_figures() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (43_100, "43.1 kB"), (999_600, "1.0 MB")];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(bytes(u64::MAX), "18.4 EB");
        assert_eq!(count(681_000), "681 k");
        assert_eq!(count(12), "12");
        assert_eq!(short_bytes(43_100.0), "43.1k");
        let rates = [(0.0, "0"), (999.4, "999"), (4_000_000.0, "4.00M"), (47_120_000.0, "47.1M"), (4.712e9, "4.71G")];
        for (n, text) in rates {
            assert_eq!(rate(n), text);
        }
        assert_eq!((rate(999_600.0), rate(471_200.0)), ("1.00M".to_owned(), "471k".to_owned()));
    }

    #[test]
    fn durations_keep_their_two_largest_parts() {
        assert_eq!(short_duration(8040), "2h14m");
        assert_eq!(short_duration(9 * 86_400 + 3 * 3600 + 59), "9d03h");
        assert_eq!(short_duration(61), "1m01s");
        assert_eq!(long_duration(Duration::from_secs(134)), "2 min 14 s");
        assert_eq!(long_duration(Duration::from_millis(1500)), "1.5 s");
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
    }
    #[test]
    fn local_times_have_the_distance_from_utc() {
        let at = |offset| with_offset(UNIX_EPOCH + Duration::from_millis(951_782_400_250), offset);
        assert_eq!(at(0), "2000-02-29T00:00:00.250+00:00");
        assert_eq!(at(19_800), "2000-02-29T05:30:00.250+05:30");
        let parsed = |text: &str| parse_rfc3339(text).map(rfc3339);
        for text in ["1970-01-01T00:00:00.000Z", "2000-02-29T00:00:00.250Z", "2026-12-31T23:59:59.999Z"] {
            assert_eq!(parsed(text).as_deref(), Some(text));
        }
        for text in ["", "2026-02-30T00:00:00.000Z", "2026-02-20 00:00:00", "no time at all, but as longZ"] {
            assert_eq!(parsed(text), None, "{text}");
        }
        assert_eq!(at(-12_600), "2000-02-28T20:30:00.250-03:30");
    }
}
