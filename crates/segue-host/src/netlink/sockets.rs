//! Local sockets with abstract names, as `unix_diag` lists those of a network namespace.

use std::io;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use super::until_whole;
use crate::netfilter::{attribute, dump};
use crate::sys;

/// Message type `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// Length of `struct unix_diag_req`.
const REQUEST_LEN: usize = 24;
/// Length of `struct unix_diag_msg`.
const ANSWER_LEN: usize = 16;
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
    let mut request = [0; REQUEST_LEN];
    request[0] = libc::AF_UNIX as u8;
    // All states.
    request[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    let trusted = [0, sys::euid()];
    until_whole(|| {
        let mut found = false;
        dump(NETLINK_SOCK_DIAG, BY_FAMILY, &request, &mut |_, body| {
            let attributes = body.get(ANSWER_LEN..).unwrap_or_default();
            let uid = attribute(attributes, UID).and_then(|bytes| bytes.first_chunk());
            let is_trusted = uid.is_some_and(|uid| trusted.contains(&u32::from_ne_bytes(*uid)));
            let known = attribute(attributes, NAME).and_then(|bytes| bytes.strip_prefix(&[0]));
            let rest = known.and_then(|known| known.strip_prefix(name.as_bytes()));
            found |= is_trusted && rest.is_some_and(|rest| matches!(rest, [] | [b'-', ..]));
        })?;
        Ok(found)
    })
}
