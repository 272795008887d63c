//! The peer process of a local socket: its user, its groups and its process id.

mod sys;

use std::io;
use std::os::unix::net::UnixStream;

use crate::sys::Pid;

/// Returns the user id of the process at the other end of a local socket at the time of its connect (SO_PEERCRED).
pub fn uid(stream: &UnixStream) -> io::Result<u32> {
    sys::credentials(stream).map(|cred| cred.uid)
}

/// Returns the id of the process that listens at the other end of a local socket, as of its listen(2) (SO_PEERCRED).
pub fn pid(stream: &UnixStream) -> io::Result<Pid> {
    sys::credentials(stream).map(|cred| cred.pid)
}

/// Returns whether the process at the other end of a local socket belonged to a group at the time of its connect, as
/// its primary group or as a supplementary one (SO_PEERCRED, SO_PEERGROUPS).
pub fn is_in_group(stream: &UnixStream, group: u32) -> io::Result<bool> {
    Ok(sys::credentials(stream)?.gid == group || sys::groups(stream)?.contains(&group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_pair_is_this_user() {
        let (left, _right) = UnixStream::pair().unwrap();
        assert_eq!(uid(&left).unwrap(), crate::sys::euid());
        let own = sys::credentials(&left).unwrap().gid;
        assert!(is_in_group(&left, own).unwrap());
        let groups = sys::groups(&left).unwrap();
        let other = (40_000..).find(|group| *group != own && !groups.contains(group)).unwrap();
        assert!(!is_in_group(&left, other).unwrap());
        assert!(groups.iter().all(|group| is_in_group(&left, *group).unwrap()));
    }
}
