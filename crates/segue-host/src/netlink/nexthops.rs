//! The nexthop objects of the kernel (`ip nexthop`), which routes refer to by number.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};

use super::{Netlink, changed_meanwhile, is_interrupted, until_whole};

/// Constants of `linux/rtnetlink.h` and `linux/nexthop.h`.
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP_TYPE: u16 = 7;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Lengths of `struct nlmsghdr`, `struct nhmsg`, `struct nlattr` and `struct nexthop_grp` in bytes.
const HEADER: usize = 16;
const MESSAGE: usize = 8;
const ATTRIBUTE: usize = 4;
const MEMBER: usize = 8;

/// A nexthop object of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nexthop {
    /// The index of the output interface.
    pub oif: Option<u32>,
    /// The gateway of the nexthop, if it has one.
    pub via: Option<IpAddr>,
    /// Whether packets are to be encapsulated, for example in MPLS.
    pub has_encap: bool,
    /// The members of a group, by number.
    group: Vec<u32>,
}

/// Nexthop objects by number.
pub type Nexthops = HashMap<u32, Nexthop>;

/// Returns the nexthop object with the number `id`. For a group this is its first member whose interface `is_port`
/// accepts, or else its first member.
pub fn hop(all: &Nexthops, id: u32, is_port: impl Fn(u32) -> bool) -> Option<&Nexthop> {
    let found = all.get(&id)?;
    // A group has no groups as members.
    let mut members = found.group.iter().filter_map(|member| all.get(member));
    if found.group.is_empty() {
        return Some(found);
    }
    members.clone().find(|member| member.oif.is_some_and(&is_port)).or_else(|| members.next())
}

/// Reads all nexthop objects. The result is empty where the kernel has none or does not know them (before Linux 5.3).
pub fn read(netlink: &mut Netlink) -> io::Result<Nexthops> {
    until_whole(|| netlink.past_another_dump(dump))
}

fn dump(netlink: &mut Netlink) -> io::Result<Nexthops> {
    netlink.sequence = netlink.sequence.wrapping_add(1);
    let mut request = Vec::with_capacity(HEADER + MESSAGE);
    request.extend(((HEADER + MESSAGE) as u32).to_ne_bytes());
    request.extend(RTM_GETNEXTHOP.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend(netlink.sequence.to_ne_bytes());
    request.extend([0; 4 + MESSAGE]);
    netlink.socket.send(&request, 0)?;
    let (mut all, mut has_changed) = (Nexthops::new(), false);
    loop {
        let (datagram, _) = netlink.socket.recv_from_full()?;
        has_changed |= is_interrupted(&datagram);
        if add(&mut all, &datagram, netlink.sequence)?.is_break() {
            return if has_changed { Err(changed_meanwhile()) } else { Ok(all) };
        }
    }
}

/// Adds the nexthop objects in a datagram that answers the request with the number `sequence`. Breaks at the end of the
/// dump, and where the kernel does not know such objects.
///
/// # Errors
/// That with which the kernel refuses or ends the dump.
pub fn add(all: &mut Nexthops, datagram: &[u8], sequence: u32) -> io::Result<ControlFlow<()>> {
    let mut rest = datagram;
    while let Some((kind, number, body, behind)) = message(rest) {
        rest = behind;
        match kind {
            _ if number != sequence => {}
            NLMSG_DONE => {
                let code = word(body).map_or(0, u32::cast_signed);
                if code < 0 {
                    return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                }
                return Ok(ControlFlow::Break(()));
            }
            NLMSG_ERROR => {
                let code = word(body).map_or(0, u32::cast_signed).saturating_neg();
                return match code {
                    // Kernels before 5.3 do not know the request.
                    0 | libc::EOPNOTSUPP | libc::EINVAL => Ok(ControlFlow::Break(())),
                    _ => Err(io::Error::from_raw_os_error(code)),
                };
            }
            RTM_NEWNEXTHOP => all.extend(nexthop(body)),
            _ => {}
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Splits off the first message of a datagram: its type, its sequence number, its body, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let len = word(bytes)? as usize;
    let kind = bytes.get(4..6)?.try_into().map(u16::from_ne_bytes).ok()?;
    let body = bytes.get(HEADER..len)?;
    Some((kind, word(bytes.get(8..)?)?, body, bytes.get(len.next_multiple_of(4)..).unwrap_or(&[])))
}

fn nexthop(body: &[u8]) -> Option<(u32, Nexthop)> {
    let (mut id, mut nexthop) = (None, Nexthop::default());
    let mut rest = body.get(MESSAGE..)?;
    while let Some(&[a, b, c, d]) = rest.first_chunk::<ATTRIBUTE>() {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(ATTRIBUTE..len)?;
        match u16::from_ne_bytes([c, d]) {
            NHA_ID => id = word(value),
            NHA_OIF => nexthop.oif = word(value),
            NHA_GATEWAY => {
                let v4 = <[u8; 4]>::try_from(value).map(|bytes| Ipv4Addr::from(bytes).into());
                let v6 = || <[u8; 16]>::try_from(value).map(|bytes| Ipv6Addr::from(bytes).into());
                nexthop.via = v4.or_else(|_| v6()).ok();
            }
            NHA_ENCAP_TYPE => nexthop.has_encap = true,
            NHA_GROUP => nexthop.group = value.chunks_exact(MEMBER).filter_map(word).collect(),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some((id?, nexthop))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn only_the_errors_of_kernels_without_nexthops_mean_that_there_are_none() {
        for (code, is_none) in [
            (0, true),
            (libc::EOPNOTSUPP, true),
            (libc::EINVAL, true),
            (libc::ENOMEM, false),
            (libc::EPERM, false),
            (libc::EBUSY, false),
        ] {
            let mut datagram = (HEADER as u32 + 4).to_ne_bytes().to_vec();
            datagram.extend(NLMSG_ERROR.to_ne_bytes());
            datagram.extend([0; 2]);
            datagram.extend(7_u32.to_ne_bytes());
            datagram.extend([0; 4]);
            datagram.extend((-code).to_ne_bytes());
            let mut all = Nexthops::new();
            match add(&mut all, &datagram, 7) {
                Ok(flow) => assert!(is_none && flow.is_break() && all.is_empty(), "{code}"),
                Err(error) => assert!(!is_none && error.raw_os_error() == Some(code), "{code}: {error}"),
            }
            assert!(add(&mut all, &datagram, 8).unwrap().is_continue(), "the answer to another request");
        }
    }

    #[test]
    fn nexthops_and_groups_are_read_and_nothing_makes_it_panic() {
        let one = [
            vec![2, 0, 0, 0, 0, 0, 0, 0],
            attribute(NHA_ID, &7_u32.to_ne_bytes()),
            attribute(NHA_OIF, &3_u32.to_ne_bytes()),
            attribute(NHA_GATEWAY, &[198, 18, 2, 3]),
        ]
        .concat();
        let via = Some(Ipv4Addr::new(198, 18, 2, 3).into());
        let expected = Nexthop { oif: Some(3), via, ..Nexthop::default() };
        assert_eq!(nexthop(&one), Some((7, expected.clone())));
        let mpls = [one.clone(), attribute(NHA_ENCAP_TYPE, &1_u16.to_ne_bytes())].concat();
        assert_eq!(nexthop(&mpls), Some((7, Nexthop { has_encap: true, ..expected.clone() })));
        let members = [9_u32, 0, 7, 0].map(u32::to_ne_bytes).concat();
        let group =
            [vec![0; MESSAGE], attribute(NHA_ID, &8_u32.to_ne_bytes()), attribute(NHA_GROUP, &members)].concat();
        let other = Nexthop { oif: Some(5), ..Nexthop::default() };
        let mut all = Nexthops::from([(7, expected.clone()), (9, other.clone())]);
        all.extend(nexthop(&group));
        assert_eq!(hop(&all, 8, |index| index == 3), Some(&expected));
        assert_eq!(hop(&all, 8, |_| false), Some(&other));
        assert_eq!(hop(&all, 1, |_| true), None);
        for len in 0..one.len() {
            assert_ne!(nexthop(&one[..len]), nexthop(&one));
            let _ = message(&one[..len]);
        }
    }
}
