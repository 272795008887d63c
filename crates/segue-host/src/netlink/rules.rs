//! Rules of policy routing (`ip rule`).

use std::io;

use netlink_packet_route::rule::{RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Netlink;

impl Netlink {
    /// Returns whether a routing rule of one family tells packets by what [`Netlink::route`] does not ask for: the
    /// protocol, ports, the user, or the output interface that a socket is bound to.
    ///
    /// # Errors
    /// The kernel's; one that has no rules for the family has none of these.
    pub fn has_selective_rules(&mut self, is_v4: bool) -> io::Result<bool> {
        let mut request = RuleMessage::default();
        request.header.family = if is_v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let found = self.dump(&RouteNetlinkMessage::GetRule(request), &mut |message| match message {
            RouteNetlinkMessage::NewRule(rule) => Some(rule.attributes.iter().any(is_selective)),
            _ => None,
        });
        match found {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => Ok(false),
            found => Ok(found?.contains(&true)),
        }
    }
}

fn is_selective(attribute: &RuleAttribute) -> bool {
    matches!(
        attribute,
        RuleAttribute::Oifname(_)
            | RuleAttribute::UidRange(_)
            | RuleAttribute::IpProtocol(_)
            | RuleAttribute::SourcePortRange(_)
            | RuleAttribute::DestinationPortRange(_)
    )
}
