//! Time for the engine: a number of nanoseconds that the caller passes in.

/// Monotonic time in nanoseconds, with any origin, or a duration. Ends after 584 years.
///
/// ```
/// use core::time::Duration;
/// use segue::time::Nanos;
///
/// let (now, hold) = (Nanos(5_000), Nanos::micros(20));
/// assert_eq!((now + hold, hold.as_micros()), (Nanos(25_000), 20));
/// assert_eq!(Nanos::from(Duration::from_micros(20)), hold);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin, and the length of an empty span of time.
    pub const ZERO: Nanos = Nanos(0);

    /// Returns this many microseconds, or the last expressible time.
    pub const fn micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1000))
    }

    /// Returns the time `nanos` nanoseconds later, or the last expressible one.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanos))
    }

    /// Returns the whole microseconds of the time or span.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1000
    }
}

impl core::ops::Add for Nanos {
    type Output = Nanos;

    /// Returns the time `span` later, or the last expressible one.
    fn add(self, span: Nanos) -> Nanos {
        self.after(span.0)
    }
}

impl From<core::time::Duration> for Nanos {
    /// Converts a span of time; one of more than 584 years becomes the longest.
    fn from(span: core::time::Duration) -> Nanos {
        Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}
