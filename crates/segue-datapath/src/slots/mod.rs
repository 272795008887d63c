//! Tables that outsiders fill and empty. An entry has a slot, a number that stays the same as long as it exists; other
//! structures refer to it by that number.

mod index;
mod map;
mod order;

pub(crate) use index::Index;
pub(crate) use map::SlotMap;
pub(crate) use order::{Links, List};
