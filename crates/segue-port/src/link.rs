//! The state of an interface in use, as announced by rtnetlink: whether it is up, its MTU, its deletion.
//!
//! A packet socket reports only once that its interface went down, and no later change, its deletion included.

mod sys;
mod tunnels;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use tunnels::TunnelWatch;

use crate::sys::passes;

/// Length of a message's header (`struct nlmsghdr`), bytes.
const HEADER_LEN: usize = 16;
/// Length of the structure after the header in a message about an interface (`struct ifinfomsg`), bytes.
const INFO_LEN: usize = 16;
/// Length in bytes of an attribute's header.
const ATTRIBUTE_LEN: usize = 4;
/// Size in bytes of the buffer for one read. A longer message, that of a card with many virtual functions, is cut off
/// after the MTU.
const BUFFER_LEN: usize = 1 << 14;
/// Largest number of consecutive reads: a process that keeps changing interfaces must not delay packets.
const MOST_READS: usize = 64;
/// The sequence number of the first request. An answer has that of its request; a notification has that of the request
/// that changed the interface, of any process, or 0.
const FIRST_QUESTION: u32 = 0x7365_6775;

/// State of an interface's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Whether the interface is set up.
    pub is_up: bool,
    /// MTU in bytes; `usize::MAX` as long as none was announced.
    pub mtu: usize,
    /// Whether the interface was deleted or moved to another network namespace.
    pub is_gone: bool,
}

/// A socket that follows one interface of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    fd: OwnedFd,
    index: u32,
    state: LinkState,
    /// Whether announcements were lost and no state was answered since.
    is_unsure: bool,
    /// Sequence number of the current requests. Each loss makes a new one: the kernel reports a loss before the
    /// messages that it queued earlier, an answer to an older request included, which does not reflect the lost
    /// changes.
    question: u32,
    buffer: Box<[u8]>,
}

impl LinkWatch {
    /// Follows the interface with the given index; [`LinkWatch::listen`] reads its state.
    ///
    /// # Errors
    /// Where no rtnetlink socket can be opened.
    pub(crate) fn open(index: u32) -> io::Result<LinkWatch> {
        let fd = sys::link_socket()?;
        sys::send(fd.as_fd(), &request(index, FIRST_QUESTION))?;
        let state = LinkState { is_up: true, mtu: usize::MAX, is_gone: false };
        let buffer = vec![0; BUFFER_LEN].into();
        Ok(LinkWatch { fd, index, state, is_unsure: false, question: FIRST_QUESTION, buffer })
    }

    /// Returns the descriptor that is readable when messages are queued.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the state of the last read.
    pub(crate) fn state(&self) -> LinkState {
        self.state
    }

    /// Reads the queued messages and returns the state. Never waits.
    ///
    /// # Errors
    /// Where the socket has become useless.
    pub(crate) fn listen(&mut self) -> io::Result<LinkState> {
        for _ in 0..MOST_READS {
            match sys::receive(self.fd.as_fd(), &mut self.buffer) {
                Ok(Some(len)) => {
                    let bytes = self.buffer.get(..len).unwrap_or(&self.buffer);
                    self.is_unsure &= !read(bytes, self.index, self.question, &mut self.state);
                }
                // Not from the kernel.
                Ok(None) => {}
                Err(error) => match error.raw_os_error() {
                    // As long as the queue is not empty, the kernel drops an answer as it does announcements. After
                    // each request there is something to read, its answer or the report of a loss, now or at the next
                    // call.
                    Some(libc::EAGAIN) if self.is_unsure => {
                        match sys::send(self.fd.as_fd(), &request(self.index, self.question)) {
                            Err(error) if !passes(&error) => return Err(error),
                            Err(_) => break,
                            Ok(()) => {}
                        }
                    }
                    Some(libc::EAGAIN) => break,
                    Some(libc::EINTR) => {}
                    // Announcements were lost.
                    Some(libc::ENOBUFS) => {
                        self.is_unsure = true;
                        self.question = self.question.wrapping_add(1);
                    }
                    // What it was to read is asked for at the next call.
                    _ if passes(&error) => {
                        self.is_unsure = true;
                        self.question = self.question.wrapping_add(1);
                        break;
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(self.state)
    }
}

/// Returns an `RTM_GETLINK` request for one interface.
fn request(index: u32, question: u32) -> [u8; HEADER_LEN + INFO_LEN] {
    let mut bytes = [0; HEADER_LEN + INFO_LEN];
    bytes[0..4].copy_from_slice(&((HEADER_LEN + INFO_LEN) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes[8..12].copy_from_slice(&question.to_ne_bytes());
    bytes[20..24].copy_from_slice(&index.to_ne_bytes());
    bytes
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Reads those messages in `bytes` that concern the interface `index`. Returns whether the answer to `question` is
/// among them.
fn read(mut bytes: &[u8], index: u32, question: u32, state: &mut LinkState) -> bool {
    let mut is_answered = false;
    while let (Some(len), Some(kind)) = (word(bytes, 0), half(bytes, 4)) {
        let len = len as usize;
        if len < HEADER_LEN {
            break;
        }
        is_answered |= word(bytes, 8) == Some(question);
        let body = bytes.get(HEADER_LEN..len).or_else(|| bytes.get(HEADER_LEN..)).unwrap_or(&[]);
        match kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => read_link(kind, body, index, state),
            // The answer to a request for an interface that is not there.
            kind if i32::from(kind) == libc::NLMSG_ERROR => {
                state.is_gone |= word(body, 0).is_some_and(|code| (code as i32).wrapping_neg() == libc::ENODEV);
            }
            _ => {}
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    is_answered
}

fn read_link(kind: u16, body: &[u8], index: u32, state: &mut LinkState) {
    // Other families report the interface's place in a bridge, and its IPv6 settings.
    let is_ours = body.first() == Some(&(libc::AF_UNSPEC as u8)) && word(body, 4) == Some(index);
    // An index may be used again by another interface.
    let (true, false, Some(flags)) = (is_ours, state.is_gone, word(body, 8)) else { return };
    if kind == libc::RTM_DELLINK {
        state.is_gone = true;
        return;
    }
    state.is_up = flags & libc::IFF_UP as u32 != 0;
    let mut rest = body.get(INFO_LEN..).unwrap_or(&[]);
    while let (Some(len), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let len = usize::from(len);
        if len < ATTRIBUTE_LEN {
            return;
        }
        if kind == libc::IFLA_MTU
            && let Some(mtu) = word(rest, ATTRIBUTE_LEN)
        {
            // 0 stands for no limit.
            state.mtu = if mtu == 0 { usize::MAX } else { mtu as usize };
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet_socket::sys as packet;
    use crate::testing;

    fn message(kind: u16, family: u8, index: u32, flags: u32, mtu: Option<u32>) -> Vec<u8> {
        let mut body = vec![0; INFO_LEN];
        body[0] = family;
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        // A name of odd length in front, which is padded.
        body.extend([7, 0].map(|_: u8| 0));
        let at = body.len() - 2;
        body[at..at + 2].copy_from_slice(&7_u16.to_ne_bytes());
        body.extend(libc::IFLA_IFNAME.to_ne_bytes());
        body.extend(*b"e0\0\0");
        if let Some(mtu) = mtu {
            body.extend(8_u16.to_ne_bytes());
            body.extend(libc::IFLA_MTU.to_ne_bytes());
            body.extend(mtu.to_ne_bytes());
        }
        let mut bytes = vec![0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&((HEADER_LEN + body.len()) as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn after(messages: &[Vec<u8>]) -> LinkState {
        let mut state = LinkState { is_up: true, mtu: usize::MAX, is_gone: false };
        read(&messages.concat(), 7, FIRST_QUESTION, &mut state);
        state
    }

    #[test]
    fn only_what_is_said_of_the_interface_itself_counts() {
        let up = libc::IFF_UP as u32;
        let others = [
            message(libc::RTM_NEWLINK, 0, 8, 0, Some(68)),
            message(libc::RTM_DELLINK, 0, 8, 0, None),
            message(libc::RTM_DELLINK, libc::AF_BRIDGE as u8, 7, up, Some(68)),
            message(libc::RTM_NEWLINK, libc::AF_INET6 as u8, 7, 0, Some(68)),
        ];
        assert_eq!(after(&others), LinkState { is_up: true, mtu: usize::MAX, is_gone: false });
        let mut all = others.to_vec();
        all.push(message(libc::RTM_NEWLINK, 0, 7, 0, Some(1400)));
        assert_eq!(after(&all), LinkState { is_up: false, mtu: 1400, is_gone: false });
        all.push(message(libc::RTM_NEWLINK, 0, 7, up, None));
        assert_eq!(after(&all), LinkState { is_up: true, mtu: 1400, is_gone: false });
        all.push(message(libc::RTM_DELLINK, 0, 7, up, Some(1400)));
        assert!(after(&all).is_gone);
        // Cut off anywhere, nothing is made up.
        let bytes = message(libc::RTM_NEWLINK, 0, 7, up, Some(1400));
        for len in 0..bytes.len() {
            let mtu = after(&[bytes[..len].to_vec()]).mtu;
            assert_eq!(mtu, usize::MAX, "{len} bytes");
        }
    }

    /// Tests that a change lost among 4000 changes of another interface is found by a new request, whatever its
    /// position.
    #[test]
    fn a_change_that_was_announced_to_a_full_queue_is_found_out() {
        let Some(()) = testing::namespace() else { return };
        testing::ip("link add v0 type veth peer name v1");
        let socket = packet::socket().unwrap();
        let index = packet::interface(socket.as_fd(), "v0").unwrap().index;
        let mut watch = LinkWatch::open(index.try_into().unwrap()).unwrap();
        assert_eq!(watch.listen().unwrap(), LinkState { is_up: false, mtu: 1500, is_gone: false });
        let file = std::env::temp_dir().join(format!("segue-link-{}", std::process::id()));
        let mut change = |lines: &str| {
            let others: Vec<String> = (0..4000).map(|n| format!("link set dev lo mtu {}\n", 2000 + n % 2)).collect();
            let (front, behind) = others.split_at(3000);
            std::fs::write(&file, [&front.concat(), lines, &behind.concat()].concat()).unwrap();
            testing::ip(&format!("-batch {}", file.display()));
            std::fs::remove_file(&file).unwrap();
            // The queue takes more than one go.
            (0..1000).map(|_| watch.listen().unwrap()).last().unwrap()
        };
        let is = LinkState { is_up: true, mtu: 1300, is_gone: false };
        assert_eq!(change("link set dev v0 mtu 1300\nlink set dev v0 up\n"), is);
        assert_eq!(change("link set dev v0 down\n"), LinkState { is_up: false, ..is });
        assert!(change("link del dev v0\n").is_gone);
    }

    /// Tests that an answer queued before a loss, which the kernel reports first, does not override newer state.
    #[test]
    fn an_older_answer_in_the_queue_does_not_stand_for_what_was_lost_behind_it() {
        let Some(()) = testing::namespace() else {
            return;
        };
        testing::ip("link add v0 type veth peer name v1");
        testing::ip("link set dev v0 up");
        let socket = packet::socket().unwrap();
        let index = packet::interface(socket.as_fd(), "v0").unwrap().index;
        let file = std::env::temp_dir().join(format!("segue-answer-{}", std::process::id()));
        let others: String = (0..4000).map(|n| format!("link set dev lo mtu {}\n", 2000 + n % 2)).collect();
        std::fs::write(&file, others + "link set dev v0 down\n").unwrap();
        // The answer that waits is the one to the first question.
        let mut watch = LinkWatch::open(index.try_into().unwrap()).unwrap();
        testing::ip(&format!("-batch {}", file.display()));
        std::fs::remove_file(&file).unwrap();
        let last = (0..1000).map(|_| watch.listen().unwrap()).last().unwrap();
        assert_eq!(last, LinkState { is_up: false, mtu: 1500, is_gone: false });
        assert!(!watch.is_unsure);
    }
}
