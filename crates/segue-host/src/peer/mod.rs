//! The peer process of a local socket: its user, its groups and its process id.

mod sys;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::sys::{Pid, Want, poll};

/// Returns the user id of the process at the other end of a local socket at the time of its connect (SO_PEERCRED).
pub fn uid(stream: &UnixStream) -> io::Result<u32> {
    sys::credentials(stream).map(|cred| cred.uid)
}

/// Returns the id of the process that listens at the other end of a local socket, as of its listen(2) (SO_PEERCRED).
pub fn pid(stream: &UnixStream) -> io::Result<Pid> {
    sys::credentials(stream).map(|cred| cred.pid)
}

/// Returns the id of the process that answers `request` within `longest`, which need not be the one that listens: a
/// service manager passes its sockets on. It is 0 for a process that cannot be seen from this process namespace.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] where no answer comes by then.
pub fn answering_pid(mut stream: &UnixStream, request: &[u8], longest: Duration) -> io::Result<Pid> {
    sys::note_senders(stream)?;
    stream.write_all(request)?;
    if poll(&[(stream.as_fd(), Want::Read)], longest)? != [true] {
        return Err(io::ErrorKind::TimedOut.into());
    }
    sys::sender(stream)?.map(|cred| cred.pid).ok_or(io::ErrorKind::UnexpectedEof.into())
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

    #[test]
    fn the_process_that_answers_is_found_although_another_one_has_opened_the_socket() {
        use std::os::fd::OwnedFd;
        use std::process::Command;
        let (near, far) = UnixStream::pair().unwrap();
        let stdin = OwnedFd::from(far.try_clone().unwrap());
        let mut other = Command::new("cat").stdin(stdin).stdout(OwnedFd::from(far)).spawn().unwrap();
        let answering = answering_pid(&near, b"x", Duration::from_secs(60)).unwrap();
        assert_eq!(u32::try_from(answering).unwrap(), other.id());
        assert_ne!(pid(&near).unwrap(), answering);
        drop(near);
        assert!(other.wait().unwrap().success());
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_any_longer() {
        let (near, far) = UnixStream::pair().unwrap();
        let silent = answering_pid(&near, b"request", Duration::from_millis(10)).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        drop(far);
        let gone = answering_pid(&near, b"", Duration::from_secs(60)).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::ConnectionReset);
    }
}
