//! Traits that the implementations for all instruction sets share.

/// Number of bytes that [`Kernel::differ`](super::Kernel::differ) compares.
pub(crate) const HEAD_BLOCK: usize = 128;

/// An implementation of copying and summing: a [`Kernel`](super::Kernel), or code compiled into the [`Work`] to which
/// it is passed.
pub(crate) trait Copier: Copy {
    /// Copies `src` to `dst`, of the same length, and returns its plain sum.
    ///
    /// # Panics
    /// If the lengths differ.
    fn copy(self, dst: &mut [u8], src: &[u8]) -> u64;
}

/// A task that copies and sums many pieces. [`Kernel::work`](super::Kernel::work) compiles it once for each instruction
/// set, which saves the dispatch and the call for each piece.
pub(crate) trait Work {
    /// Runs the task with the CPU's copier. Must be inlined everywhere: code that is not inlined is compiled without
    /// the instruction set.
    fn run(self, copier: impl Copier);
}
