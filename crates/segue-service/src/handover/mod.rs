//! Handover of open interfaces and sockets from an instance to its successor, so that no packet is lost meanwhile.
//!
//! `segue run` stands between the two. Each of its instances has a [`Line`] to it, which is the instance's standard
//! input. It asks the running instance for the ports over its line and passes them to the successor over the
//! successor's line. When the successor reports on its standard output that it is ready, the running instance is
//! ended. As soon as that has sent its last packets, the successor gets the message to begin.

pub mod sys;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use segue_host::sys::{Want, poll};
use segue_port::udp::Sockets;

use crate::closing::Closing;

/// Length of a record, bytes. A record is always sent whole, with at most one descriptor.
const RECORD_LEN: usize = 24;
/// Longest name of an interface, bytes.
const NAME_LEN: usize = 15;
/// Longest wait until the peer makes room for a record, or sends the next one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time in which a record is sent again.
const AGAIN: Duration = Duration::from_millis(500);

/// A message on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A request for the ports of the instance.
    Request,
    /// The interface with the given name, with its descriptor.
    Interface(String),
    /// A receiving socket, with its descriptor.
    Receive,
    /// A sending socket, with its descriptor.
    Send,
    /// The peer table in memory that is shared, with its descriptor.
    Peers,
    /// The end of the list of ports.
    EndOfPorts,
    /// The next GRE sequence number of the interface's packets.
    Sequence(String, u32),
    /// Permission for the successor to start forwarding.
    Go,
}

impl Record {
    fn emit(&self) -> [u8; RECORD_LEN] {
        let (kind, name, number) = match self {
            Record::Request => (b'?', "", 0),
            Record::Interface(name) => (b'i', name.as_str(), 0),
            Record::Receive => (b'r', "", 0),
            Record::Send => (b's', "", 0),
            Record::Peers => (b'p', "", 0),
            Record::EndOfPorts => (b'.', "", 0),
            Record::Sequence(name, number) => (b'n', name.as_str(), *number),
            Record::Go => (b'!', "", 0),
        };
        let mut bytes = [0; RECORD_LEN];
        bytes[0] = kind;
        bytes[1..5].copy_from_slice(&number.to_be_bytes());
        let name = &name.as_bytes()[..name.len().min(NAME_LEN)];
        bytes[5..5 + name.len()].copy_from_slice(name);
        bytes
    }

    /// Returns whether the record comes with a descriptor.
    fn carries_fd(&self) -> bool {
        matches!(self, Record::Interface(_) | Record::Receive | Record::Send | Record::Peers)
    }

    fn parse(bytes: &[u8; RECORD_LEN]) -> Option<Record> {
        let [kind, a, b, c, d, name @ ..] = bytes;
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = std::str::from_utf8(&name[..len]).ok()?.to_owned();
        Some(match kind {
            b'?' => Record::Request,
            b'i' => Record::Interface(name),
            b'r' => Record::Receive,
            b's' => Record::Send,
            b'p' => Record::Peers,
            b'.' => Record::EndOfPorts,
            b'n' => Record::Sequence(name, u32::from_be_bytes([*a, *b, *c, *d])),
            b'!' => Record::Go,
            _ => return None,
        })
    }
}

/// One end of the socket pair between an instance and its supervisor, which carries records.
#[derive(Debug)]
pub struct Line(UnixStream);

impl Line {
    /// Creates a socket pair: returns the supervisor's end, and the other end for the standard input of an instance.
    pub fn pair() -> io::Result<(Line, OwnedFd)> {
        let (near, far) = sys::pair()?;
        near.set_write_timeout(Some(PATIENCE))?;
        far.set_write_timeout(Some(PATIENCE))?;
        Ok((Line(near), far.into()))
    }

    /// Returns the supervisor's end of a socket pair that the previous program of this process has created.
    pub(crate) fn of(near: OwnedFd) -> Line {
        Line(UnixStream::from(near))
    }

    /// Returns the instance's end of the socket pair, which is this process's standard input.
    pub(crate) fn of_stdin() -> io::Result<Line> {
        let fd = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Line(UnixStream::from(fd)))
    }

    /// Sends a handover record.
    pub fn say(&self, record: &Record, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        sys::send(&self.0, &record.emit(), fd)
    }

    /// Sends a record without a descriptor, again and again for a moment where the kernel has no memory for it.
    pub fn say_patiently(&self, record: &Record) -> io::Result<()> {
        let until = Instant::now() + AGAIN;
        loop {
            match self.say(record, None) {
                Err(error) if sys::is_passing(&error) && Instant::now() < until => thread::sleep(AGAIN / 50),
                done => return done,
            }
        }
    }

    /// Returns the next record of the peer, if it comes within `patience`.
    pub fn receive(&self, patience: Duration) -> io::Result<(Record, Option<OwnedFd>)> {
        let ready = poll(&[(self.0.as_fd(), Want::Read)], patience)?;
        if !ready.first().is_some_and(|ready| *ready) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut bytes = [0; RECORD_LEN];
        // The socket keeps the borders of messages: each is one record.
        let (len, fd) = sys::receive(&self.0, &mut bytes)?;
        match len {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            RECORD_LEN => {
                let record = Record::parse(&bytes).filter(|record| record.carries_fd() == fd.is_some());
                record.map(|record| (record, fd)).ok_or(io::ErrorKind::InvalidData.into())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The ports of an instance.
#[derive(Debug, Default)]
pub struct Ports {
    /// Interface descriptors by name.
    pub interfaces: Vec<(String, OwnedFd)>,
    /// Sockets for outer packets.
    pub sockets: Sockets,
    /// Shared memory of the peer table, of a tunnel that has one.
    pub peers: Option<OwnedFd>,
}

impl Ports {
    /// Sends the ports over a line. This process keeps its own copies.
    pub fn give(&self, line: &Line) -> io::Result<()> {
        for (name, fd) in &self.interfaces {
            line.say(&Record::Interface(name.clone()), Some(fd.as_fd()))?;
        }
        for fd in &self.sockets.receive {
            line.say(&Record::Receive, Some(fd.as_fd()))?;
        }
        for fd in &self.sockets.send {
            line.say(&Record::Send, Some(fd.as_fd()))?;
        }
        if let Some(fd) = &self.peers {
            line.say(&Record::Peers, Some(fd.as_fd()))?;
        }
        line.say(&Record::EndOfPorts, None)
    }

    /// Requests the ports of the instance at the other end, and receives them as [`Ports::take`] does. What is left of
    /// the answer to an earlier request, which was not awaited, is no part of them.
    pub fn request(line: &Line, most: usize) -> io::Result<Ports> {
        let until = Instant::now() + PATIENCE;
        let is_record = |received: io::Result<_>| match received {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::InvalidData,
        };
        // With any number of them, a worker could keep the service here without end.
        while is_record(line.receive(Duration::ZERO)) && Instant::now() < until {}
        line.say(&Record::Request, None)?;
        Ports::take(line, most)
    }

    /// Receives the records that [`Ports::give`] sends: at most `most` descriptors of ports, and one of peers.
    pub fn take(line: &Line, most: usize) -> io::Result<Ports> {
        let mut ports = Ports::default();
        let until = Instant::now() + PATIENCE;
        loop {
            if ports.interfaces.len() + ports.sockets.receive.len() + ports.sockets.send.len() > most {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match line.receive(until.saturating_duration_since(Instant::now()))? {
                (Record::Interface(name), Some(fd)) => ports.interfaces.push((name, fd)),
                (Record::Receive, Some(fd)) => ports.sockets.receive.push(fd),
                (Record::Send, Some(fd)) => ports.sockets.send.push(fd),
                // With any number of them, a worker could keep the service here without end.
                (Record::Peers, Some(fd)) if ports.peers.is_none() => ports.peers = Some(fd),
                (Record::EndOfPorts, _) => return Ok(ports),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Closes all ports, which removes the interfaces unless another process has them open.
    pub(crate) fn close(self, closing: Closing) {
        closing.close(self.interfaces.into_iter().map(|(_, fd)| fd).collect());
    }

    /// Removes and returns the interface `name`.
    pub fn interface(&mut self, name: &str) -> Option<OwnedFd> {
        let at = self.interfaces.iter().position(|(known, _)| known == name)?;
        Some(self.interfaces.swap_remove(at).1)
    }

    /// Removes and returns the sockets, if there are any.
    pub fn outside(&mut self) -> Option<Sockets> {
        (!self.sockets.receive.is_empty()).then(|| std::mem::take(&mut self.sockets))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn messages_arrive_and_other_bytes_are_refused() {
        let (near, far) = Line::pair().unwrap();
        let far = Line(UnixStream::from(far));
        let name = "fifteen-bytes-1".to_owned();
        let records = [
            Record::Request,
            Record::Interface(name.clone()),
            Record::Receive,
            Record::Send,
            Record::EndOfPorts,
            Record::Sequence(name, 0xfedc_ba98),
            Record::Go,
        ];
        let null = File::open("/dev/null").unwrap();
        for record in &records {
            near.say(record, record.carries_fd().then(|| null.as_fd())).unwrap();
        }
        for record in records {
            assert_eq!(far.receive(PATIENCE).unwrap().0, record);
        }
        assert_eq!(far.receive(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        sys::send(&near.0, b"entirely something else!", None).unwrap();
        assert_eq!(far.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(far.receive(PATIENCE).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn ports_arrive_as_they_were_and_each_is_given_once() {
        let (near, far) = Line::pair().unwrap();
        let file = |path: &str| OwnedFd::from(File::open(path).unwrap());
        let ports = Ports {
            interfaces: vec![("one".to_owned(), file("/dev/null")), ("two".to_owned(), file("/dev/zero"))],
            sockets: Sockets { receive: vec![file("/dev/full")], send: Vec::new() },
            peers: Some(file("/dev/random")),
        };
        ports.give(&near).unwrap();
        let mut taken = Ports::take(&Line(UnixStream::from(far)), 3).unwrap();
        let is = |fd: OwnedFd, path: &str| {
            use std::os::unix::fs::MetadataExt;
            File::from(fd).metadata().unwrap().rdev() == std::fs::metadata(path).unwrap().rdev()
        };
        assert!(is(taken.interface("two").unwrap(), "/dev/zero"));
        assert!(taken.interface("two").is_none());
        assert!(is(taken.interface("one").unwrap(), "/dev/null"));
        assert!(is(taken.outside().unwrap().receive.remove(0), "/dev/full"));
        assert!(taken.outside().is_none());
        assert!(is(taken.peers.take().unwrap(), "/dev/random"));
    }

    #[test]
    fn what_is_left_of_an_answer_that_was_not_awaited_is_no_part_of_the_next_one() {
        let (near, far) = Line::pair().unwrap();
        let far = Line(UnixStream::from(far));
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let interfaces = vec![("one".to_owned(), file()), ("two".to_owned(), file())];
        let sockets = Sockets { receive: vec![file()], send: vec![file()] };
        let ports = Ports { interfaces, sockets, peers: Some(file()) };
        ports.give(&far).unwrap();
        assert_eq!(Ports::take(&near, 0).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // Another one came too late.
        ports.give(&far).unwrap();
        sys::send(&far.0, b"no record", None).unwrap();
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(far.receive(PATIENCE).unwrap().0, Record::Request);
                ports.give(&far).unwrap();
            });
            Ports::request(&near, 4).unwrap()
        });
        let names: Vec<&str> = taken.interfaces.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, taken.sockets.receive.len(), taken.sockets.send.len()), (vec!["one", "two"], 1, 1));
        assert!(taken.peers.is_some());
        assert_eq!(near.receive(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut, "nothing is left");
    }

    #[test]
    fn a_record_with_the_wrong_number_of_descriptors_is_refused() {
        let (near, far) = Line::pair().unwrap();
        let far = Line(UnixStream::from(far));
        let is_refused = |record: Record, fd: Option<BorrowedFd<'_>>, most: usize| {
            near.say(&record, fd).unwrap();
            near.say(&Record::EndOfPorts, None).unwrap();
            let refused = Ports::take(&far, most).is_err_and(|error| error.kind() == io::ErrorKind::InvalidData);
            while far.receive(Duration::ZERO).is_ok() {}
            refused
        };
        let null = File::open("/dev/null").unwrap();
        let one = || Record::Interface("one".to_owned());
        assert!(is_refused(one(), None, 1), "an interface without its descriptor");
        assert!(is_refused(Record::Go, None, 1), "what is no port");
        assert!(is_refused(Record::Request, Some(null.as_fd()), 1), "a request with a descriptor");
        assert!(is_refused(one(), Some(null.as_fd()), 0), "more than there can be");
        assert!(!is_refused(one(), Some(null.as_fd()), 1));
        near.say(&Record::Peers, Some(null.as_fd())).unwrap();
        assert!(is_refused(Record::Peers, Some(null.as_fd()), 1), "peers twice");
    }
}
