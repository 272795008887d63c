//! Interface filters for the in-kernel path, on kernels without tcx links (before Linux 6.6).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;

use segue_fastpath::{Filters, Hook, is_left_over, is_own, mark_of};
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
    let queueing = netlink.queueing().unwrap_or_default();
    for index in interfaces {
        if queueing.get(index).is_some_and(|all| all.iter().any(|one| one.kind == CLSACT)) {
            tidy_link(*index, netlink);
        }
    }
}

/// Removes filters like [`tidy`] from one interface. The last one stays: a queueing discipline without filters would be
/// taken for other software's, and to remove it could take a filter along that others have just added.
fn tidy_link(interface: u32, netlink: &mut Netlink) {
    let filters = netlink.filters(interface).unwrap_or_default();
    let own: Vec<&Filter> = filters.iter().filter(|filter| is_own(&filter.name)).collect();
    // Each interface of many tunnels has one, and to list the local sockets takes longer the more there are.
    if own.len() < 2 {
        return;
    }
    let is_marked = |filter: &Filter| sockets::is_taken(&mark_of(filter.program));
    // A kernel that does not list local sockets does not show the mark of this process either.
    let has_marks = own.iter().any(|filter| is_marked(filter).unwrap_or(false));
    let is_unmarked = |filter: &Filter| has_marks && !is_marked(filter).unwrap_or(true);
    // Without CAP_SYS_ADMIN it cannot be seen whether a gate leads anywhere.
    let is_left = |filter: &Filter| is_left_over(filter.program).unwrap_or_else(|_| is_unmarked(filter));
    let left: Vec<&Filter> = own.into_iter().filter(|filter| is_left(filter)).collect();
    let kept = usize::from(left.len() == filters.len());
    for filter in left.into_iter().skip(kept) {
        let _ = netlink.remove_filter(filter);
    }
}

/// Returns the kind of other software's filters at an interface, given its queueing disciplines; `None` if there are
/// none. One that may have filters counts as such, unless they are all of the in-kernel path.
pub(super) fn of_others(interface: u32, queueing: &[Queueing], netlink: &mut Netlink) -> Option<String> {
    let kind = queueing.iter().map(|one| &one.kind).find(|kind| matches!(kind.as_str(), CLSACT | "ingress"))?;
    let filters = netlink.filters(interface).unwrap_or_default();
    let is_ours = kind == CLSACT && !filters.is_empty() && filters.iter().all(|filter| is_own(&filter.name));
    (!is_ours).then(|| kind.clone())
}
