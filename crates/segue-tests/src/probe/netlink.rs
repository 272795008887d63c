//! Changes that a process asks the kernel for by the sockets of rtnetlink that it has open.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::Held;
use crate::sys;

/// Longest wait for a moment at which no other thread has asked by a socket.
const PATIENCE: Duration = Duration::from_secs(10);
/// Changes of an interface that there is not, its settings and an address: the types of the messages, and the address
/// family and the length of the body of each.
const CHANGES: [(u16, i32, usize); 2] =
    [(libc::RTM_NEWLINK, libc::AF_UNSPEC, 16), (libc::RTM_DELADDR, libc::AF_INET, 8)];
/// Sequence number of these messages.
const SEQUENCE: u32 = 0x7e57_7e57;
/// Length in bytes of the header of a message (`struct nlmsghdr`: length, type and flags, sequence number, port).
/// An answer has its error number behind it.
const HEADER: usize = 16;
/// Length of the room for an answer, which repeats the message, in bytes.
const ROOM: u64 = 128;

/// A socket of rtnetlink.
struct Socket {
    descriptor: u64,
    /// Address of the socket, which the answers to its messages have.
    port: u32,
}

impl Held {
    /// Returns what the kernel answers to changes of an interface that there is not, which the process asks for by each
    /// of its sockets of rtnetlink: negative error numbers.
    ///
    /// # Errors
    /// Where the process has ended, or cannot be asked.
    pub fn changes(&self) -> io::Result<Vec<i64>> {
        let mut answers = Vec::new();
        for socket in sockets(self.pid())? {
            for change in CHANGES {
                answers.push(self.change(&socket, &message(change))?);
            }
        }
        Ok(answers)
    }

    /// Asks for a change by a socket while no other thread of the process reads there, and returns the answer.
    fn change(&self, socket: &Socket, message: &[u8]) -> io::Result<i64> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let others = self.others()?;
            let answer = self.answer(socket, message)?;
            drop(others);
            match answer {
                Some(answer) => return Ok(answer),
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Stops the other threads of the process.
    fn others(&self) -> io::Result<Vec<sys::Held>> {
        let mut others = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let thread = entry?.file_name().to_string_lossy().parse::<u32>().map_err(io::Error::other)?;
            if thread != self.pid() {
                match sys::Held::new(thread) {
                    // It has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    held => others.push(held?),
                }
            }
        }
        Ok(others)
    }

    /// Sends a message and returns the error number of the answer; `None` where an answer waits in the socket, which is
    /// for another thread.
    fn answer(&self, socket: &Socket, message: &[u8]) -> io::Result<Option<i64>> {
        let (descriptor, len) = (socket.descriptor, message.len() as u64);
        let place = self.write(message)?;
        let answer = place + ROOM;
        let receive = |flags: i32| self.call(libc::SYS_recvfrom, [descriptor, answer, ROOM, flags as u64, 0, 0]);
        if receive(libc::MSG_DONTWAIT | libc::MSG_PEEK)? >= HEADER as i64 && self.read(answer + 12)? == socket.port {
            return Ok(None);
        }
        let sent = self.call(libc::SYS_sendto, [descriptor, place, len, 0, 0, 0])?;
        if sent < 0 {
            return Ok(Some(sent));
        }
        // The kernel answers before the call returns. Notices of changes may be in front of the answer.
        loop {
            let len = receive(libc::MSG_DONTWAIT)?;
            if len < HEADER as i64 {
                return Err(io::Error::other(format!("no answer: {len}")));
            }
            if self.read(answer + 12)? == socket.port && self.read(answer + 8)? != SEQUENCE {
                return Err(io::Error::other("the answer to another thread's question"));
            }
            // Of the word of type and flags the type is the lower half.
            if self.read(answer + 4)? & 0xffff == libc::NLMSG_ERROR as u32 && self.read(answer + 8)? == SEQUENCE {
                return Ok(Some(self.read(answer + HEADER as u64)?.cast_signed().into()));
            }
        }
    }
}

/// Returns the message of a change.
fn message((kind, family, len): (u16, i32, usize)) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut bytes = ((HEADER + len) as u32).to_ne_bytes().to_vec();
    bytes.extend([kind, flags].map(u16::to_ne_bytes).concat());
    bytes.extend([SEQUENCE, 0].map(u32::to_ne_bytes).concat());
    bytes.extend([family as u8, 0, 0, 0]);
    // The index of the interface.
    bytes.extend(i32::MAX.to_ne_bytes());
    bytes.resize(HEADER + len, 0);
    bytes
}

/// Returns the sockets of rtnetlink that a process has open.
fn sockets(pid: u32) -> io::Result<Vec<Socket>> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/netlink"))?;
    // The second column is the protocol, of rtnetlink 0, the third one the port, and the last one the inode.
    let port_of = |inode: &str| {
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let columns = lines.find(|columns| columns.get(1) == Some(&"0") && columns.last() == Some(&inode))?;
        columns[2].parse::<u32>().ok()
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let target = fs::read_link(entry.path())?.display().to_string();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        if let Some(port) = inode.and_then(port_of) {
            let descriptor = entry.file_name().to_string_lossy().parse::<u64>().map_err(io::Error::other)?;
            found.push(Socket { descriptor, port });
        }
    }
    Ok(found)
}
