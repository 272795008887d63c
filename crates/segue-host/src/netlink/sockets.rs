//! Local sockets with abstract names, as `unix_diag` lists those of a network namespace.

use std::collections::BTreeSet;
use std::io;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::until_whole;
use crate::netfilter::{attribute, dump};
use crate::sys;

/// Message type `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Length of `struct unix_diag_req`.
const REQUEST_LEN: usize = 24;
/// Length of `struct unix_diag_msg`, and the place of the type of a socket in it.
const ANSWER_LEN: usize = 16;
const KIND: usize = 1;
/// The state of a socket that listens, as a bit (`1 << TCP_LISTEN`).
const LISTENING: u32 = 1 << 10;
/// Flags of what is to be shown: `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID`.
const SHOW: u32 = 0x41;
/// Attribute numbers: `UNIX_DIAG_NAME` and `UNIX_DIAG_UID`.
const NAME: u16 = 0;
const UID: u16 = 7;

/// Returns whether a process of root or of this process's user has a socket with this abstract name, or with one that
/// has `-` and more behind it, in this network namespace; a kernel without `unix_diag` shows none.
///
/// # Errors
/// The kernel's.
pub fn has_abstract(name: &str) -> io::Result<bool> {
    let trusted = [0, sys::euid()];
    until_whole(|| {
        let mut found = false;
        each(u32::MAX, name, &mut |socket| found |= socket.uid.is_some_and(|uid| trusted.contains(&uid)))?;
        Ok(found)
    })
}

/// Returns the numbers that follow `name` and `-` in the abstract names of sockets in this network namespace, up to the
/// end or another `-`. Sockets of any user count: whatever one is for, its name is taken.
///
/// # Errors
/// The kernel's.
pub fn numbers(name: &str) -> io::Result<BTreeSet<u32>> {
    until_whole(|| {
        let mut numbers = BTreeSet::new();
        each(u32::MAX, name, &mut |socket| {
            let behind = socket.name.get(name.len() + 1..).unwrap_or_default();
            let digits = behind.split(|byte| *byte == b'-').next().unwrap_or_default();
            numbers.extend(std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok()));
        })?;
        Ok(numbers)
    })
}

/// Returns the users of the stream sockets that listen in this network namespace under this abstract name, or under one
/// that has `-` and more behind it, without the one named `own`, which listens too. `None` where the kernel does not
/// show that one, or not the user of each: it has no `unix_diag`, or is older than Linux 5.3.
///
/// # Errors
/// The kernel's.
pub fn listeners(name: &str, own: &str) -> io::Result<Option<BTreeSet<u32>>> {
    until_whole(|| {
        let (mut has_own, mut has_all) = (false, true);
        let mut users = BTreeSet::new();
        each(LISTENING, name, &mut |socket| {
            if i32::from(socket.kind) != libc::SOCK_STREAM {
                return;
            }
            has_all &= socket.uid.is_some();
            if socket.name == own.as_bytes() {
                has_own = true;
            } else {
                users.extend(socket.uid);
            }
        })?;
        Ok((has_own && has_all).then_some(users))
    })
}

/// A socket with an abstract name.
struct Named<'a> {
    name: &'a [u8],
    /// Type of the socket, such as SOCK_STREAM; each type has names of its own.
    kind: u8,
    /// The user of the process that made it, which Linux shows since 5.3.
    uid: Option<u32>,
}

/// Passes each socket in one of the states (bits) to `found` whose name is `name`, or has `-` and more behind it.
fn each(states: u32, name: &str, found: &mut dyn FnMut(Named<'_>)) -> io::Result<()> {
    let mut request = [0; REQUEST_LEN];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&states.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    dump(NETLINK_SOCK_DIAG, BY_FAMILY, &request, &mut |_, body| {
        let attributes = body.get(ANSWER_LEN..).unwrap_or_default();
        let uid = attribute(attributes, UID).and_then(|bytes| bytes.first_chunk());
        let known = attribute(attributes, NAME).and_then(|bytes| bytes.strip_prefix(&[0]));
        let Some((known, kind)) = known.zip(body.get(KIND).copied()) else { return };
        if matches!(known.strip_prefix(name.as_bytes()), Some([] | [b'-', ..])) {
            found(Named { name: known, kind, uid: uid.map(|uid| u32::from_ne_bytes(*uid)) });
        }
    })
}
