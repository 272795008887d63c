//! The rate-limited log of refused entries: at most [`LINES`] lines per minute, and the number of entries without a
//! line.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Largest number of entries that get their own line in a minute.
pub const LINES: usize = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// A rate limiter for log lines: the refused entries of the last call, and the number of lines in the current minute.
#[derive(Debug)]
pub struct RefusalLog {
    /// Text at the beginning of each line.
    begin: &'static str,
    /// Refused entries with their reasons at the time of the last lines.
    reported: BTreeSet<String>,
    /// The number of refused entries whose names were not kept.
    unnamed: usize,
    /// Start of the current minute.
    since: Option<Instant>,
    /// Number of lines for single entries in the current minute.
    lines: usize,
    /// Whether the current minute has a line with the number of the other entries.
    has_sum: bool,
    /// Number of entries without a line that no sum has counted.
    left: usize,
}

impl RefusalLog {
    /// Creates a log whose lines begin with the given text.
    pub fn new(begin: &'static str) -> RefusalLog {
        RefusalLog { begin, reported: BTreeSet::new(), unnamed: 0, since: None, lines: 0, has_sum: false, left: 0 }
    }

    /// Returns the lines for the entries that are newly refused or refused for another reason than before; `unnamed` is
    /// the number of further refused entries whose names were not kept.
    pub fn lines<'a>(
        &mut self,
        now: Instant,
        refused: impl Iterator<Item = (&'a str, &'a str)>,
        unnamed: usize,
    ) -> Vec<String> {
        let mut lines: Vec<String> = self.sum(now).into_iter().collect();
        let refused: BTreeSet<String> = refused.map(|(key, why)| format!("{key}: {why}")).collect();
        for text in refused.difference(&self.reported) {
            if self.lines < LINES {
                self.since.get_or_insert(now);
                self.lines += 1;
                lines.push(format!("{} {text}", self.begin));
            } else {
                self.left += 1;
            }
        }
        self.left += unnamed.saturating_sub(self.unnamed);
        (self.reported, self.unnamed) = (refused, unnamed);
        if !self.has_sum {
            lines.extend(self.rest(now));
        }
        lines
    }

    /// Returns the line with the number of entries without a line, once the minute is over.
    pub fn sum(&mut self, now: Instant) -> Option<String> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) < MINUTE) {
            return None;
        }
        (self.since, self.lines, self.has_sum) = (None, 0, false);
        self.rest(now)
    }

    fn rest(&mut self, now: Instant) -> Option<String> {
        let count = std::mem::take(&mut self.left);
        if count == 0 {
            return None;
        }
        self.since.get_or_insert(now);
        self.has_sum = true;
        Some(format!("{} {count} more; segue stat -j counts them by reason", self.begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the log lines for the keys with the given indexes.
    fn lines(log: &mut RefusalLog, now: Instant, numbers: std::ops::Range<u32>, unnamed: usize) -> Vec<String> {
        let keys: Vec<String> = numbers.map(|number| format!("key-{number:03}")).collect();
        log.lines(now, keys.iter().map(|key| (key.as_str(), "it is malformed")), unnamed)
    }

    #[test]
    fn each_refused_entry_has_one_line() {
        let (mut log, now) = (RefusalLog::new("refused"), Instant::now());
        assert_eq!(lines(&mut log, now, 0..1, 0), ["refused key-000: it is malformed"]);
        assert_eq!(lines(&mut log, now, 0..2, 0), ["refused key-001: it is malformed"]);
        assert_eq!(lines(&mut log, now, 1..2, 0), [""; 0]);
        // The same key for another reason, and one that comes again.
        assert_eq!(log.lines(now, [("key-001", "it is too long")].into_iter(), 0), ["refused key-001: it is too long"]);
        assert_eq!(lines(&mut log, now, 0..1, 0), ["refused key-000: it is malformed"]);
        assert_eq!(log.sum(now + MINUTE), None);
    }

    #[test]
    fn a_flood_of_refused_entries_is_counted_and_no_minute_has_more_lines_than_it_may() {
        let (mut log, begin) = (RefusalLog::new("refused"), Instant::now());
        let first = lines(&mut log, begin, 0..100, 0);
        assert_eq!(first.len(), LINES + 1);
        assert_eq!(first[LINES], "refused 80 more; segue stat -j counts them by reason");
        // More of them, ten times a second, each time with other keys.
        let mut said = 0;
        for turn in 1..590 {
            let now = begin + Duration::from_millis(100 * u64::from(turn));
            said += lines(&mut log, now, turn..turn + 100, 0).len();
        }
        assert_eq!(said, 0);
        // 589 turns with one new key each. The next minute has its own lines.
        let next = lines(&mut log, begin + MINUTE, 700..705, 0);
        assert_eq!(next.len(), 6, "{next:?}");
        assert_eq!(next[0], "refused 589 more; segue stat -j counts them by reason");
        assert!(next[1].starts_with("refused key-700: "), "{next:?}");
        assert_eq!(log.sum(begin + 3 * MINUTE), None);
    }

    #[test]
    fn what_has_no_name_is_counted_once() {
        let (mut log, begin) = (RefusalLog::new("the tunnel refuses"), Instant::now());
        let sum = |count: u32| format!("the tunnel refuses {count} more; segue stat -j counts them by reason");
        assert_eq!(lines(&mut log, begin, 0..1, 7), ["the tunnel refuses key-000: it is malformed".to_owned(), sum(7)]);
        assert_eq!(lines(&mut log, begin, 0..1, 9), [""; 0]);
        assert_eq!(lines(&mut log, begin, 0..1, 9), [""; 0]);
        assert_eq!(log.sum(begin + MINUTE / 2), None);
        assert_eq!(log.sum(begin + MINUTE), Some(sum(2)));
        assert_eq!(log.sum(begin + 2 * MINUTE), None);
    }
}
