//! Router advertisements on the interfaces of a router: the kernel is set to ignore them, if this process is permitted
//! to.

use std::fs;
use std::io;

use crate::report::Report;

/// Sets `accept_ra` of both interfaces to 0, so that no station on their links changes the kernel's IPv6 routes, which
/// the router follows. Where `/proc/sys` cannot be written, the router ignores such routes nevertheless.
pub(super) fn ignore(interfaces: [&str; 2], out: &dyn Report) {
    for name in interfaces {
        let path = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
        match fs::read_to_string(&path) {
            // Without the file there is no IPv6.
            Err(_) => continue,
            Ok(text) if text.trim() == "0" => continue,
            Ok(_) => {}
        }
        match fs::write(&path, "0") {
            Ok(()) => out.change(&format!("sysctl -w net.ipv6.conf.{name}.accept_ra=0"), "write"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::info!(
                    id = "routes",
                    "{path} cannot be set to 0 ({error}); routes from advertisements are not used"
                )
            }
        }
    }
}
