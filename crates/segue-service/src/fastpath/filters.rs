//! Interface filters for the in-kernel path, on kernels without tcx links (before Linux 6.6).

use std::io;
use std::os::fd::BorrowedFd;

use segue_fastpath::{Filters, Hook, is_left_over, is_own};
use segue_host::netlink::{Netlink, Queueing, filters};

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

/// Removes the filters of the in-kernel path that ended processes have left on an interface. What cannot be looked at
/// or removed stays, and passes all packets on.
pub(super) fn tidy(interface: u32, queueing: &[Queueing], netlink: &mut Netlink) {
    if !queueing.iter().any(|one| one.kind == CLSACT) {
        return;
    }
    for filter in netlink.filters(interface).unwrap_or_default() {
        if is_own(&filter.name) && is_left_over(filter.program).unwrap_or(false) {
            let _ = netlink.remove_filter(&filter);
        }
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
