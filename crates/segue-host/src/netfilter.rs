//! The use of netfilter and IPsec on this host: a packet that bypasses the network layer would evade their rules.

use std::fs;
use std::io;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_XFRM};
use netlink_sys::{Socket, SocketAddr};

use crate::netlink::{changed_meanwhile, is_interrupted, until_whole};

/// Subsystem number of nf_tables in the type of a message.
const NFTABLES: u16 = 10 << 8;
const NEW_CHAIN: u16 = NFTABLES | 3;
const GET_CHAIN: u16 = NFTABLES | 4;
const NEW_RULE: u16 = NFTABLES | 6;
const GET_RULE: u16 = NFTABLES | 7;
/// Message numbers of XFRM policies: `XFRM_MSG_NEWPOLICY`, `XFRM_MSG_GETPOLICY`.
const NEW_POLICY: u16 = 0x13;
const GET_POLICY: u16 = 0x15;
/// Multicast group for changes of nf_tables.
const NFTABLES_GROUP: u32 = 7;
/// Flags of a dump request: `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER_LEN: usize = 16;
/// Length of `struct nfgenmsg`.
const FAMILY_LEN: usize = 4;

/// Attribute numbers of a chain.
const TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
/// Attribute with the chain of a rule.
const RULE_CHAIN: u16 = 2;
/// Mask of the number in an attribute's type.
const TYPE_MASK: u16 = 0x3fff;
/// Hook `NF_INET_FORWARD`: its chains see no packet of a local socket.
const FORWARD: u32 = 2;

/// Numbers of the nf_tables families.
const INET: u8 = 1;
const IPV4: u8 = 2;
const NETDEV: u8 = 5;
const IPV6: u8 = 10;

/// The error where tables of the older iptables can neither be read nor told from the modules.
const UNTOLD: &str = "the kernel names the tables of iptables to root, and to a unit with CAP_DAC_READ_SEARCH in \
                      AmbientCapabilities= and CapabilityBoundingSet=; fastpath on bypasses them";

/// Returns a chain or table of netfilter that sees this host's packets of one family, if there is one: a base chain of
/// nf_tables with rules or a drop policy, or a table of the older iptables. Needs CAP_NET_ADMIN, and for tables that
/// are built into the kernel CAP_DAC_READ_SEARCH or root.
///
/// # Errors
/// The kernel's refusal; a kernel without netfilter has no rules.
pub fn rules(is_v4: bool) -> io::Result<Option<String>> {
    let file = if is_v4 { "/proc/net/ip_tables_names" } else { "/proc/net/ip6_tables_names" };
    let modules = || fs::read_to_string("/proc/modules").unwrap_or_default();
    match iptables(fs::read_to_string(file), modules, is_v4)? {
        Some(table) => Ok(Some(table)),
        None => until_whole(|| nftables(is_v4)),
    }
}

/// Returns a table of the older iptables, given their names, one a line, and what reads `/proc/modules`. The names are
/// for root: the loaded modules tell of tables too, though not in which network namespace they are.
fn iptables(names: io::Result<String>, modules: impl FnOnce() -> String, is_v4: bool) -> io::Result<Option<String>> {
    let (all, one) = if is_v4 { ("ip_tables", "iptable_") } else { ("ip6_tables", "ip6table_") };
    let error = match names {
        Ok(names) => return Ok(names.lines().next().map(|table| format!("iptables table {table}"))),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::NotFound => return Ok(None),
        io::ErrorKind::PermissionDenied => {}
        _ => return Err(error),
    }
    let modules = modules();
    let mut modules = modules.lines().filter_map(|line| line.split(' ').next());
    if modules.clone().any(|module| module == all) {
        return Ok(modules.find(|module| module.starts_with(one)).map(|module| format!("iptables module {module}")));
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, UNTOLD))
}

/// Returns a base chain of nf_tables that sees this host's packets of one family, with rules or a drop policy.
fn nftables(is_v4: bool) -> io::Result<Option<String>> {
    let family = if is_v4 { IPV4 } else { IPV6 };
    let sees = |seen: u8| seen == family || seen == INET || seen == NETDEV;
    let mut chains = Vec::new();
    dump(NETLINK_NETFILTER, GET_CHAIN, &[0; FAMILY_LEN], &mut |kind, body| {
        if let (NEW_CHAIN, Some((&family, attributes))) = (kind, family_of(body)) {
            chains.extend(base_chain(attributes).filter(|_| sees(family)).map(|chain| (family, chain)));
        }
    })?;
    if let Some((_, chain)) = chains.iter().find(|(_, chain)| chain.drops) {
        return Ok(Some(format!("nftables chain {} {}", chain.table, chain.name)));
    }
    if chains.is_empty() {
        return Ok(None);
    }
    let mut found = None;
    dump(NETLINK_NETFILTER, GET_RULE, &[0; FAMILY_LEN], &mut |kind, body| {
        let (NEW_RULE, Some((&family, attributes))) = (kind, family_of(body)) else { return };
        let (table, name) = (text(attributes, TABLE), text(attributes, RULE_CHAIN));
        let base = chains.iter().any(|(of, chain)| {
            *of == family && Some(&chain.table) == table.as_ref() && Some(&chain.name) == name.as_ref()
        });
        if let (true, Some(table), Some(name)) = (base, table, name) {
            found = Some(format!("nftables chain {table} {name}"));
        }
    })?;
    Ok(found)
}

/// Returns whether the host has IPsec policies. Needs CAP_NET_ADMIN.
///
/// # Errors
/// The kernel's refusal; a kernel without IPsec has no policies.
pub fn has_ipsec_policies() -> io::Result<bool> {
    until_whole(|| {
        let mut found = false;
        // `struct xfrm_userpolicy_id` of zeros asks for all.
        dump(NETLINK_XFRM, GET_POLICY, &[0; 64], &mut |kind, _| found |= kind == NEW_POLICY)?;
        Ok(found)
    })
}

/// A watch for changes of nf_tables. It is opened with CAP_NET_ADMIN, and works without it afterwards.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
}

impl Watch {
    /// Begins to watch; `None` where the kernel has no nf_tables.
    ///
    /// # Errors
    /// The system's, where it cannot be told what is added.
    pub fn open() -> io::Result<Option<Watch>> {
        let Some(mut socket) = socket(NETLINK_NETFILTER)? else { return Ok(None) };
        socket.bind_auto()?;
        match socket.add_membership(NFTABLES_GROUP) {
            Err(error) if is_absent(&error) => return Ok(None),
            joined => joined?,
        }
        socket.set_non_blocking(true)?;
        Ok(Some(Watch { socket }))
    }

    /// Returns whether a chain or a rule was added since the last call.
    pub fn changed(&self) -> bool {
        let mut changed = false;
        loop {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => {
                    each_message(&bytes, &mut |kind, _| changed |= matches!(kind, NEW_CHAIN | NEW_RULE));
                }
                // Lost messages are changes too.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(_) => return changed,
            }
        }
    }
}

/// A base chain, attached to a hook.
struct Chain {
    table: String,
    name: String,
    /// Whether the policy drops packets that no rule accepts.
    drops: bool,
}

fn base_chain(attributes: &[u8]) -> Option<Chain> {
    let hook = attribute(attributes, CHAIN_HOOK)?;
    let number = attribute(hook, 1).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_be_bytes(*bytes));
    if number == Some(FORWARD) {
        return None;
    }
    let policy = attribute(attributes, CHAIN_POLICY).and_then(|bytes| bytes.first_chunk());
    let drops = policy.is_some_and(|bytes| u32::from_be_bytes(*bytes) == 0);
    Some(Chain { table: text(attributes, TABLE)?, name: text(attributes, CHAIN_NAME)?, drops })
}

fn family_of(body: &[u8]) -> Option<(&u8, &[u8])> {
    Some((body.first()?, body.get(FAMILY_LEN..)?))
}

fn text(attributes: &[u8], number: u16) -> Option<String> {
    let bytes = attribute(attributes, number)?;
    Some(String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned())
}

/// Returns the value of the first attribute with the given number.
pub(crate) fn attribute(mut bytes: &[u8], number: u16) -> Option<&[u8]> {
    loop {
        let (len, kind) = (bytes.first_chunk::<2>()?, bytes.get(2..4)?.first_chunk::<2>()?);
        let len = usize::from(u16::from_ne_bytes(*len)).max(4);
        if u16::from_ne_bytes(*kind) & TYPE_MASK == number {
            return bytes.get(4..len);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

/// Passes the type and the body of each message of an answer to `each`. Returns whether the answer has ended, or its
/// error.
fn each_message(mut bytes: &[u8], each: &mut dyn FnMut(u16, &[u8])) -> Option<io::Result<()>> {
    while let (Some(len), Some(kind)) = (bytes.first_chunk::<4>(), bytes.get(4..6)) {
        let len = u32::from_ne_bytes(*len) as usize;
        let kind = u16::from_ne_bytes([kind[0], kind[1]]);
        let body = bytes.get(HEADER_LEN..len)?;
        match kind {
            // The end of a list has the error that cut it short, if there is one.
            NLMSG_DONE | NLMSG_ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return Some(if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) });
            }
            _ => each(kind, body),
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// Requests a list and passes each entry to `each`. A kernel without the protocol has an empty list.
///
/// # Errors
/// The kernel's, and [`io::ErrorKind::Interrupted`] for a list that changed while it was read.
pub(crate) fn dump(protocol: isize, kind: u16, body: &[u8], each: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
    let Some(mut socket) = socket(protocol)? else { return Ok(()) };
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut message = Vec::with_capacity(HEADER_LEN + body.len());
    message.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(DUMP.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    socket.send(&message, 0)?;
    let mut has_changed = false;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        has_changed |= is_interrupted(&bytes);
        match each_message(&bytes, each) {
            None => {}
            Some(Err(error)) if is_absent(&error) => return Ok(()),
            Some(Ok(())) if has_changed => return Err(changed_meanwhile()),
            Some(outcome) => return outcome,
        }
    }
}

/// Opens a socket of a netlink protocol; `None` where the kernel lacks it.
fn socket(protocol: isize) -> io::Result<Option<Socket>> {
    match Socket::new(protocol) {
        Err(error) if is_absent(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Returns whether an error stands for a kernel without the subsystem.
fn is_absent(error: &io::Error) -> bool {
    const ABSENT: [i32; 5] = [libc::EINVAL, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT, libc::ENOENT];
    error.raw_os_error().is_some_and(|number| ABSENT.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_base_chain_is_one_with_a_hook_that_sees_local_packets() {
        let chain = |hook: Option<u32>, policy: u32| {
            let mut bytes = attr(TABLE, b"filter\0");
            bytes.extend(attr(CHAIN_NAME, b"input\0"));
            if let Some(hook) = hook {
                bytes.extend(attr(CHAIN_HOOK | 0x8000, &attr(1, &hook.to_be_bytes())));
                bytes.extend(attr(CHAIN_POLICY, &policy.to_be_bytes()));
            }
            base_chain(&bytes).map(|chain| (chain.table, chain.name, chain.drops))
        };
        let named = |drops| Some(("filter".to_owned(), "input".to_owned(), drops));
        assert_eq!(chain(Some(1), 1), named(false));
        assert_eq!(chain(Some(3), 0), named(true));
        assert_eq!(chain(Some(FORWARD), 0), None);
        assert_eq!(chain(None, 0), None);
    }

    #[test]
    fn a_list_that_an_error_cut_short_is_that_error() {
        let message = |kind: u16, code: i32| {
            let mut bytes = 20_u32.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.resize(HEADER_LEN, 0);
            bytes.extend(code.to_ne_bytes());
            let ended = each_message(&bytes, &mut |_, _| panic!("no entry"));
            ended.map(|outcome| outcome.map_err(|error| error.raw_os_error()))
        };
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            assert_eq!(message(kind, 0), Some(Ok(())));
            assert_eq!(message(kind, -libc::ENOMEM), Some(Err(Some(libc::ENOMEM))));
        }
    }

    #[test]
    fn tables_of_iptables_whose_names_are_for_root_are_told_by_modules_or_not_at_all() {
        let refused = |error: i32| Err(io::Error::from_raw_os_error(error));
        let loaded = "iptable_nat 16384 1 - Live 0x0\nx_tables 1 1 - Live 0x0\nip_tables 3 1 iptable_nat, Live 0x0\n\
                      ip6_tables 3 0 - Live 0x0\n";
        for (names, modules, is_v4, expected) in [
            (Ok("filter\nnat\n".to_owned()), "", true, Ok(Some("iptables table filter"))),
            (Ok(String::new()), loaded, true, Ok(None)),
            (refused(libc::ENOENT), "", true, Ok(None)),
            (refused(libc::EACCES), loaded, true, Ok(Some("iptables module iptable_nat"))),
            (refused(libc::EACCES), loaded, false, Ok(None)),
            (refused(libc::EACCES), "nf_tables 9 0 - Live 0x0\n", true, Err(UNTOLD)),
            (refused(libc::EACCES), "", false, Err(UNTOLD)),
        ] {
            let found = iptables(names, || modules.to_owned(), is_v4).map_err(|error| error.to_string());
            assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expected, "{modules} {is_v4}");
        }
        let other = iptables(refused(libc::EIO), || loaded.to_owned(), true).unwrap_err();
        assert_eq!(other.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn attributes_that_are_cut_off_are_no_attributes() {
        let whole = attr(7, &[1, 2, 3, 4]);
        for len in 0..whole.len() {
            assert_eq!(attribute(&whole[..len], 7), None, "{len}");
        }
        assert_eq!(attribute(&whole, 7), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&[0; 16], 7), None);
    }
}
