//! Configuration of network interfaces by rtnetlink, with a report of each change.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage};
use segue_host::netlink::{Netlink, family};
use segue_host::prefix::Prefix;

use crate::report::Report;

/// Changes to one link, each reported as an equivalent shell command.
pub struct Changes<'a> {
    /// The connection to the kernel.
    pub netlink: &'a mut Netlink,
    /// The receiver of the reports.
    pub out: &'a dyn Report,
    /// The index of the link.
    pub index: u32,
    /// The name of the link.
    pub name: &'a str,
    /// The `ip` command of the namespace of the link: `ip`, or `ip -n NAME`.
    pub ip: &'a str,
}

impl Changes<'_> {
    /// Sets the MTU of the interface, bytes.
    pub fn mtu(&mut self, mtu: u32) -> io::Result<()> {
        self.out.change(&format!("{} link set dev {} mtu {mtu}", self.ip, self.name), "RTM_NEWLINK IFLA_MTU");
        let message = self.link(vec![LinkAttribute::Mtu(mtu)]);
        self.netlink.tell(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Sets the largest packet that the stack passes to the device in one piece (`gso_max_size`), bytes, at most 65536.
    /// Up to that size Linux uses one value for IPv4 and IPv6.
    pub fn gso_max_size(&mut self, bytes: u32) -> io::Result<()> {
        let command = format!("{} link set dev {} gso_max_size {bytes}", self.ip, self.name);
        self.out.change(&command, "RTM_NEWLINK IFLA_GSO_MAX_SIZE");
        let message = self.link(vec![LinkAttribute::GsoMaxSize(bytes)]);
        self.netlink.tell(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Disables the kernel's generation of IPv6 addresses for a link that carries no IPv6 (`addrgenmode none`).
    pub(crate) fn no_generated_addresses(&mut self) -> io::Result<()> {
        let command = format!("{} link set dev {} addrgenmode none", self.ip, self.name);
        self.out.change(&command, "RTM_NEWLINK IFLA_INET6_ADDR_GEN_MODE");
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let message = self.link(vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])])]);
        self.netlink.tell(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Adds an address to the interface. An IPv6 address skips duplicate address detection: no other host is on a
    /// tunnel.
    pub fn address(&mut self, prefix: Prefix) -> io::Result<()> {
        let nodad = if prefix.address.is_ipv6() { " nodad" } else { "" };
        self.out.change(&format!("{} addr add {prefix} dev {}{nodad}", self.ip, self.name), "RTM_NEWADDR");
        let mut message = AddressMessage::default();
        message.header.family = family(prefix.address);
        message.header.prefix_len = prefix.len;
        message.header.index = self.index;
        message.attributes = vec![AddressAttribute::Local(prefix.address), AddressAttribute::Address(prefix.address)];
        if prefix.address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.netlink.tell(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sets the hardware address of the interface.
    pub fn mac(&mut self, mac: [u8; 6]) -> io::Result<()> {
        let text = mac.map(|byte| format!("{byte:02x}")).join(":");
        self.out.change(&format!("{} link set dev {} address {text}", self.ip, self.name), "RTM_NEWLINK IFLA_ADDRESS");
        let message = self.link(vec![LinkAttribute::Address(mac.to_vec())]);
        self.netlink.tell(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Brings the interface up.
    pub fn up(&mut self) -> io::Result<()> {
        self.out.change(&format!("{} link set dev {} up", self.ip, self.name), "RTM_NEWLINK IFF_UP");
        let mut message = self.link(Vec::new());
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.netlink.tell(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn link(&self, attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        message.attributes = attributes;
        message
    }
}
