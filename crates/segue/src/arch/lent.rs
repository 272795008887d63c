//! Borrowed bytes without a lifetime in their type: the memory of a caller inside an engine that outlives it.
//!
//! A [`Gro`](crate::gro::Gro) owns its buffers, so one that is kept over many batches cannot hold `&'batch [u8]`. It
//! holds [`Lent`] instead, and a [`Loan`] with the lifetime of the batch stands between it and everything else.
#![allow(unsafe_code, reason = "a slice without its lifetime")]

use core::marker::PhantomData;

/// A slice of at most 4 GiB without its lifetime, and the number by which its owner identifies it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    start: *const u8,
    len: u32,
    number: u32,
}

// SAFETY: a Lent is a shared slice of bytes, which may be read from any thread.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    /// Returns the number under which the slice was lent.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl AsRef<[u8]> for Lent {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a Lent is made by `Loan::lend` and `Loan::lend_all` only, from a slice that lives longer than the
        // loan, and is kept nowhere but in the loan's value, which gives out nothing that outlives the borrow of the
        // loan. Code that takes a new loan of a value replaces it first if an earlier loan was forgotten instead of
        // dropped, and dropping a Lent reads nothing.
        unsafe { core::slice::from_raw_parts(self.start, self.len as usize) }
    }
}

/// A value in which bytes that live for `'b` may be kept. Dropping it empties the value.
pub(crate) struct Loan<'v, 'b, T: Borrower> {
    value: &'v mut T,
    bytes: PhantomData<&'b [u8]>,
}

/// A value that keeps [`Lent`] bytes during a [`Loan`], and nowhere else.
pub(crate) trait Borrower {
    /// Returns whether the value may hold bytes of an earlier loan that was leaked (`mem::forget`).
    fn is_stale(&self) -> bool;
    /// Replaces all state that may hold bytes by fresh state, without reading it, and marks the value as lent to.
    fn renew(&mut self);
    /// Marks the value as lent to.
    fn begin(&mut self);
    /// Removes all bytes and the mark. Must not panic with bytes left.
    fn end(&mut self);
}

impl<'v, 'b, T: Borrower> Loan<'v, 'b, T> {
    /// Begins a loan of `value`.
    pub(crate) fn new(value: &'v mut T) -> Loan<'v, 'b, T> {
        if value.is_stale() {
            value.renew();
        }
        value.begin();
        Loan { value, bytes: PhantomData }
    }

    /// Passes `bytes` to `keep`, which may keep them in the value only. Bytes past 4 GiB are not lent.
    #[inline(always)]
    pub(crate) fn lend<R>(&mut self, bytes: &'b [u8], number: u32, keep: impl FnOnce(&mut T, Lent) -> R) -> R {
        let len = bytes.len().min(u32::MAX as usize) as u32;
        keep(self.value, Lent { start: bytes.as_ptr(), len, number })
    }

    /// Lends the pieces of one packet like [`Loan::lend`], all under one number. `keep` may keep what the iterator
    /// gives in the value only.
    pub(crate) fn lend_all<R>(
        &mut self,
        pieces: impl IntoIterator<Item = &'b [u8]>,
        number: u32,
        keep: impl FnOnce(&mut T, &mut dyn Iterator<Item = Lent>) -> R,
    ) -> R {
        let lent =
            |bytes: &'b [u8]| Lent { start: bytes.as_ptr(), len: bytes.len().min(u32::MAX as usize) as u32, number };
        keep(self.value, &mut pieces.into_iter().map(lent))
    }

    /// Returns a reference to the value inside. What is read from it lives no longer than the borrow.
    #[inline(always)]
    pub(crate) fn value(&self) -> &T {
        self.value
    }

    /// Returns a mutable reference to the value. No [`Lent`] may be moved out of it.
    #[inline(always)]
    pub(crate) fn value_mut(&mut self) -> &mut T {
        self.value
    }
}

impl<T: Borrower> Drop for Loan<'_, '_, T> {
    fn drop(&mut self) {
        self.value.end();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A value that keeps one slice.
    #[derive(Default)]
    struct Slot {
        lent: Option<Lent>,
        is_in_use: bool,
    }

    impl Slot {
        fn contents(&self) -> Vec<u8> {
            let Some(lent) = &self.lent else { return Vec::new() };
            let bytes: &[u8] = lent.as_ref();
            bytes.to_vec()
        }
    }

    impl Borrower for Slot {
        fn is_stale(&self) -> bool {
            self.is_in_use
        }

        fn renew(&mut self) {
            *self = Slot::default();
        }

        fn begin(&mut self) {
            self.is_in_use = true;
        }

        fn end(&mut self) {
            *self = Slot::default();
        }
    }

    #[test]
    fn lent_bytes_are_read_by_two_threads_at_once_and_by_a_thread_that_ends_the_loan() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut slot = Slot::default();
        let mut loan = Loan::new(&mut slot);
        loan.lend(&bytes, 7, |slot, lent| slot.lent = Some(lent));
        let shared = loan.value();
        let read = thread::scope(|scope| {
            let other = scope.spawn(|| shared.contents());
            [shared.contents(), other.join().unwrap()]
        });
        assert_eq!(read, [&bytes[..], &bytes]);
        let read = thread::scope(|scope| scope.spawn(move || loan.value().contents()).join().unwrap());
        assert_eq!(read, bytes);
        assert!(slot.lent.is_none() && !slot.is_in_use, "the loan has ended");
    }
}
