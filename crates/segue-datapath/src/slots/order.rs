//! Lists of entries in the order of their last use, for eviction. A list is linked through the slots of the table,
//! so that an entry is added, moved and removed in constant time.

/// Index that marks the end of a list.
const NONE: u32 = u32::MAX;

/// A list of slots, least recently used first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> Self {
        List { first: NONE, last: NONE }
    }
}

impl List {
    /// Returns the slot of the entry that was used least recently.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }
}

/// Links of several lists; each slot is in at most one.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
}

impl Links {
    /// Appends a slot, which must be in no list, as the most recently used one.
    pub(crate) fn push(&mut self, list: &mut List, slot: u32) {
        let len = self.0.len().max(slot as usize + 1);
        self.0.resize(len, Link { before: NONE, behind: NONE });
        self.0[slot as usize] = Link { before: list.last, behind: NONE };
        match self.0.get_mut(list.last as usize) {
            Some(last) => last.behind = slot,
            None => list.first = slot,
        }
        list.last = slot;
    }

    /// Returns the slot of the entry of `list` that was used least recently, but for that in the slot `but`.
    pub(crate) fn oldest_but(&self, list: &List, but: Option<u32>) -> Option<u32> {
        let oldest = list.oldest()?;
        if but != Some(oldest) {
            return Some(oldest);
        }
        self.0.get(oldest as usize).map(|link| link.behind).filter(|behind| *behind != NONE)
    }

    /// Removes a slot from the list that it is in.
    pub(crate) fn remove(&mut self, list: &mut List, slot: u32) {
        let Some(&Link { before, behind }) = self.0.get(slot as usize) else { return };
        match self.0.get_mut(before as usize) {
            Some(link) => link.behind = behind,
            None => list.first = behind,
        }
        match self.0.get_mut(behind as usize) {
            Some(link) => link.before = before,
            None => list.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_leave_in_the_order_of_their_last_use() {
        let (mut links, mut lists) = (Links::default(), [List::default(); 2]);
        // Odd and even slots are in a list each.
        for slot in [5, 0, 3, 8, 1, 2] {
            links.push(&mut lists[slot as usize % 2], slot);
        }
        // 3, in the middle, is used again; then the ends are.
        for slot in [3, 5, 3, 2, 0] {
            let list = &mut lists[slot as usize % 2];
            links.remove(list, slot);
            links.push(list, slot);
        }
        let other = |list: &List, but| links.oldest_but(list, but);
        assert_eq!([None, Some(8), Some(2)].map(|but| other(&lists[0], but)), [Some(8), Some(2), Some(8)]);
        let mut order = Vec::new();
        for list in &mut lists {
            while let Some(slot) = list.oldest() {
                order.push(slot);
                links.remove(list, slot);
            }
        }
        assert_eq!(order, [8, 2, 0, 1, 5, 3]);
        let mut single = List::default();
        links.push(&mut single, 4);
        assert_eq!([None, Some(4)].map(|but| links.oldest_but(&single, but)), [Some(4), None]);
        assert_eq!(lists, [List::default(); 2]);
    }
}
