//! What the implementations for each instruction set have in common.

/// Bytes that [`Kernel::differ`](super::Kernel::differ) compares.
pub(crate) const HEAD_BLOCK: usize = 128;

/// What copies and sums: a [`Kernel`](super::Kernel), or one that is compiled into the [`Work`] it is handed to.
pub(crate) trait Copier: Copy {
    /// Copies `src` to `dst`, which is of the same length, and returns its plain sum.
    ///
    /// # Panics
    /// If the lengths differ.
    fn copy(self, dst: &mut [u8], src: &[u8]) -> u64;
}

/// Work in which many pieces are copied and summed. [`Kernel::work`](super::Kernel::work) compiles it once for each instruction set, which spares
/// each piece the choice and the call.
pub(crate) trait Work {
    /// Does it. To be inlined always: what is not is compiled without the instruction set.
    fn run(self, copier: impl Copier);
}
