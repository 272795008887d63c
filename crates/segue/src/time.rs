//! Time for the engine: a number of nanoseconds that the caller passes in.

/// Monotonic time in nanoseconds, with any origin. Wraps after 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time `nanos` nanoseconds later, or the last expressible one.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanos))
    }
}
