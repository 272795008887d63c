//! Interface filters for the in-kernel path, on kernels without tcx links (before Linux 6.6).

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;

use segue_fastpath::{Filters, Hook, MARK, is_left_over, is_own};
use segue_host::netlink::filters::{self, Filter};
use segue_host::netlink::{Netlink, Queueing, sockets};

/// Kind of the queueing discipline to which filters with programs are attached.
const CLSACT: &str = "clsact";

/// A connection to the kernel by which filters are added.
pub(super) struct Added<'a>(pub(super) &'a mut Netlink);

impl Filters for Added<'_> {
    fn add(&mut self, interface: u32, hook: Hook, program: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let hook = match hook {
            Hook::Ingress => filters::Hook::Ingress,
            Hook::Egress => filters::Hook::Egress,
        };
        self.0.add_filter(interface, hook, program, name)
    }
}

/// Removes the filters of the in-kernel path that ended processes have left on these interfaces, where this process has
/// its own by now. What cannot be looked at or removed stays, and passes all packets on.
pub(super) fn tidy(interfaces: &BTreeSet<u32>, netlink: &mut Netlink) {
    tidy_by(interfaces, netlink, || sockets::numbers(MARK));
}

/// Removes filters like [`tidy`], where `list` returns the numbers of the marked programs. It is called once at most:
/// each tunnel has an interface, and each instance has local sockets for all of them.
///
/// The last filter of an interface stays: a queueing discipline without filters would be taken for other software's,
/// and to remove it could take a filter along that others have just added.
pub(super) fn tidy_by(
    interfaces: &BTreeSet<u32>,
    netlink: &mut Netlink,
    list: impl FnOnce() -> io::Result<BTreeSet<u32>>,
) {
    let queueing = netlink.queueing().unwrap_or_default();
    let has_hooks = |index: &u32| queueing.get(index).is_some_and(|all| all.iter().any(|one| one.kind == CLSACT));
    let mut found = Vec::new();
    for index in interfaces.iter().copied().filter(has_hooks) {
        let filters = netlink.filters(index).unwrap_or_default();
        // A single one is this process's own, or stays anyway.
        if own(&filters).count() > 1 {
            found.push((index, filters));
        }
    }
    // A mark is made before its filter, so that those listed from now on are of all filters that were found.
    let marks = LazyCell::new(|| list().unwrap_or_default());
    let is_marked = |filter: &Filter| marks.contains(&filter.program);
    for (index, filters) in found {
        let left = left_over(&filters, &is_marked);
        if left.is_empty() {
            continue;
        }
        // Where one has been removed meanwhile, a new one may have its handle.
        let present = netlink.filters(index).unwrap_or_default();
        let left: Vec<&Filter> = left.into_iter().filter(|filter| present.contains(filter)).collect();
        let kept = usize::from(left.len() == present.len());
        for filter in left.into_iter().skip(kept) {
            let _ = netlink.remove_filter(filter);
        }
    }
}

/// Returns the filters of an interface that ended processes have left.
fn left_over<'a>(filters: &'a [Filter], is_marked: &dyn Fn(&Filter) -> bool) -> Vec<&'a Filter> {
    // A kernel that does not list local sockets does not show the mark of this process either.
    let is_unmarked = |filter: &Filter| own(filters).any(is_marked) && !is_marked(filter);
    // Without CAP_SYS_ADMIN it cannot be seen whether a gate leads anywhere.
    let is_left = |filter: &Filter| is_left_over(filter.program).unwrap_or_else(|_| is_unmarked(filter));
    own(filters).filter(|filter| is_left(filter)).collect()
}

/// Returns the filters of the in-kernel path among those of an interface.
fn own(filters: &[Filter]) -> impl Iterator<Item = &Filter> {
    filters.iter().filter(|filter| is_own(&filter.name))
}

/// Returns the kind of other software's filters at an interface, given its queueing disciplines; `None` if there are
/// none. One that may have filters counts as such, unless they are all of the in-kernel path.
pub(super) fn of_others(interface: u32, queueing: &[Queueing], netlink: &mut Netlink) -> Option<String> {
    let kind = queueing.iter().map(|one| &one.kind).find(|kind| matches!(kind.as_str(), CLSACT | "ingress"))?;
    let filters = netlink.filters(interface).unwrap_or_default();
    let is_ours = kind == CLSACT && !filters.is_empty() && filters.iter().all(|filter| is_own(&filter.name));
    (!is_ours).then(|| kind.clone())
}
