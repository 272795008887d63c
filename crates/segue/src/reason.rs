//! Named reasons: why a packet was refused or dropped, or a train was closed.
//!
//! Every stage has one small `repr(u8)` enum made by [`reasons!`](crate::reasons); the name of a variant is the JSON
//! key, the metric label and the word in the manual, and [`Counts`] is an array with one counter for each.

/// The seal of [`Reason`]: only [`reasons!`](crate::reasons) implements it.
#[doc(hidden)]
pub mod sealed {
    /// A marker of enums that `reasons!` declared.
    pub trait Declared {}
}

/// The trait of every enum that [`reasons!`](crate::reasons) declares, and of no other type.
pub trait Reason: sealed::Declared + Copy + 'static {
    /// Every variant, in the order of their numbers.
    const ALL: &'static [Self];
    /// Returns the reason's name in statistics: `snake_case`, stable.
    fn name(self) -> &'static str;
    /// Returns one sentence that explains the reason to a reader.
    fn help(self) -> &'static str;
    /// Returns the reason's position in [`Reason::ALL`].
    fn index(self) -> usize;
}

/// Largest number of reasons that one enum may have.
pub const MAX_REASONS: usize = 48;

/// One counter for each reason of `R`. `Debug` shows those that are not zero, by name.
#[derive(Clone)]
pub struct Counts<R> {
    counts: [u64; MAX_REASONS],
    reason: core::marker::PhantomData<R>,
}

impl<R: Reason> Default for Counts<R> {
    fn default() -> Self {
        const { assert!(R::ALL.len() <= MAX_REASONS) };
        Counts { counts: [0; MAX_REASONS], reason: core::marker::PhantomData }
    }
}

impl<R: Reason> core::fmt::Debug for Counts<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, n)| *n != 0).map(|(reason, n)| (Word(reason.name()), n))).finish()
    }
}

/// A name, shown without quotes.
struct Word(&'static str);

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

impl<R: Reason> Counts<R> {
    /// Adds one to the count of `reason`.
    pub fn add(&mut self, reason: R) {
        self.add_many(reason, 1);
    }

    /// Adds `n` to the count of `reason`.
    pub fn add_many(&mut self, reason: R, n: u64) {
        let count = &mut self.counts[reason.index()];
        *count = count.wrapping_add(n);
    }

    /// Returns the count of one reason.
    pub fn of(&self, reason: R) -> u64 {
        self.counts[reason.index()]
    }

    /// Returns the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the counts in the order of [`Reason::ALL`].
    pub fn values(&self) -> &[u64] {
        self.counts.get(..R::ALL.len()).unwrap_or(&[])
    }

    /// Returns an iterator over every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> + '_ {
        R::ALL.iter().map(|&reason| (reason, self.of(reason)))
    }
}

/// Declares an enum of reasons: `reasons! { /// doc pub enum Name { Variant = "name": "sentence", .. } }`.
///
/// The enum is an error whose message is the sentence of the variant.
///
/// ```
/// use segue::reason::{Counts, Reason};
///
/// segue::reasons! {
///     /// Why a door stayed shut.
///     pub enum Shut { Locked = "locked": "The door is locked.", Stuck = "stuck": "The door does not move." }
/// }
/// let mut counts = Counts::<Shut>::default();
/// counts.add(Shut::Stuck);
/// assert_eq!(format!("{counts:?}"), "{stuck: 1}");
/// assert_eq!((Shut::Locked.to_string(), Shut::Locked.name()), ("The door is locked.".into(), "locked"));
/// ```
#[macro_export]
macro_rules! reasons {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($variant:ident = $text:literal : $help:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        $vis enum $name { $(#[doc = $help] $variant),+ }
        impl $crate::reason::sealed::Declared for $name {}
        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str($crate::reason::Reason::help(*self))
            }
        }
        impl ::core::error::Error for $name {}

        impl $crate::reason::Reason for $name {
            const ALL: &'static [Self] = &[$($name::$variant),+];
            fn name(self) -> &'static str { match self { $($name::$variant => $text),+ } }
            fn help(self) -> &'static str { match self { $($name::$variant => $help),+ } }
            fn index(self) -> usize { self as usize }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::reasons! {
        /// A test enum with two reasons.
        enum Two { First = "first": "The first.", Second = "second": "The second." }
    }

    #[test]
    fn names_counts_and_totals_agree() {
        let mut counts = Counts::<Two>::default();
        counts.add(Two::Second);
        counts.add_many(Two::First, 3);
        let seen: Vec<_> = counts.iter().map(|(r, n)| (r.name(), n)).collect();
        assert_eq!(seen, [("first", 3), ("second", 1)]);
        assert_eq!((counts.total(), counts.values()), (4, &[3, 1][..]));
        assert_eq!(Two::Second.help(), "The second.");
        assert_eq!(
            (Two::First.to_string(), format!("{counts:?}")),
            ("The first.".into(), "{first: 3, second: 1}".into())
        );
        let error: Box<dyn core::error::Error> = Two::Second.into();
        assert_eq!(error.to_string(), "The second.");
    }
}
