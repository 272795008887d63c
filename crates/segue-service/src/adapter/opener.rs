//! Reopening of an unplugged device. The process that moves packets can open nothing, so that another one, which sees
//! no packet, opens the device again on request and hands over the descriptor. That process starts before anything
//! else is open, and reaches only what this one device needs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use segue_control::error::Error;
use segue_host::sys::{Forked, fork, keep_only};
use segue_lan78xx::driver::LookupResult;
use segue_lan78xx::regs::{Chip, VENDOR};
use segue_lan78xx::usb::usbfs::{self, Usbfs};
use segue_lan78xx::usb::usbip::{self, Client, ImportError, RECORD_LEN, Record};
use segue_lan78xx::usb::{Speed, Transport};

use crate::handover::sys::{self, is_passing};
use crate::report::to_stderr;
use crate::sandbox::{AccessRights, Helper, NewUser, Rounds, confine};

/// Location at which an unplugged device is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// USB port of this machine.
    Here(String),
    /// One of the addresses of a USB/IP server, with the given bus id.
    Usbip { server: Vec<SocketAddr>, bus_id: String },
}

/// The messages between the two processes: a request is the product id of a chip, and an answer of `ANSWER_LEN` bytes
/// begins with one of these.
const NOTHING: u8 = 0;
const HERE: u8 = 1;
const IMPORTED: u8 = 2;
const OTHER: u8 = 3;
const ANSWER_LEN: usize = 1 + RECORD_LEN;

/// Pause of the opener process after a transient error.
const FAILED_PAUSE: Duration = Duration::from_millis(10);

/// The client's end of the connection to the process that opens devices.
#[derive(Debug)]
pub(super) struct Opener {
    socket: UnixStream,
    asked: bool,
    lost: bool,
}

impl Opener {
    /// Starts the process that opens adapters. This process must have one thread.
    pub(super) fn start(source: Source, name: &str, is_weak: bool) -> Result<(Opener, Helper), Error> {
        let failed = |error: io::Error| {
            Error::system("cannot start the process that opens an adapter again", &error, "segue doctor")
                .why("a socket pair or a process could not be made")
        };
        let rounds = Rounds::new().map_err(failed)?;
        let (near, mut far) = sys::pair().map_err(failed)?;
        // Not the user of the process that moves packets. Device files belong to users, so that with one of them it
        // stays the same.
        let user = match source {
            Source::Here(_) => NewUser::default(),
            Source::Usbip { .. } => NewUser::choose(&format!("{name} opener"))?,
        };
        match fork().map_err(failed)? {
            Forked::Parent(pid) => {
                drop(far);
                // Until the other process has its user, another instance could choose the same one.
                // One that could not be confined has ended, and said so.
                let has_begun = (&near).read_exact(&mut [0]).is_ok();
                drop(user);
                let helper = Helper::new(pid, format!("process that opens {name} again"), has_begun, rounds);
                Ok((Opener { socket: near, asked: false, lost: false }, helper))
            }
            Forked::Child => {
                drop(near);
                let served = user.switch().and_then(|()| {
                    let text = |error: io::Error| error.to_string();
                    far = keep_only(far).map_err(text)?;
                    source.confine(is_weak)?;
                    far.write_all(&[1]).map_err(text)?;
                    serve(far, &source, &rounds).map_err(text)
                });
                if let Err(why) = &served {
                    to_stderr(&format!("note: an adapter that was unplugged will not be opened again: {why}\n"));
                }
                std::process::exit(i32::from(served.is_err()))
            }
        }
    }

    /// Returns a descriptor that hangs up when the opener process has ended.
    pub(super) fn line(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// Returns the device, once it is connected again with the given chip. The call does not wait: a later one returns
    /// the answer to an earlier one.
    pub(super) fn lookup(&mut self, chip: Chip) -> LookupResult<Box<dyn Transport>> {
        let mut answer = [0; ANSWER_LEN];
        let mut found = LookupResult::Unknown;
        match sys::receive(&self.socket, &mut answer) {
            Ok((ANSWER_LEN, fd)) => {
                self.asked = false;
                found = understood(&answer, fd);
                if matches!(found, LookupResult::Back(_)) {
                    return found;
                }
            }
            // There was no room for the descriptor, with which the device was released: it is asked for again.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => self.asked = false,
            Err(error) if is_passing(&error) => {}
            _ => self.lose(),
        }
        if !self.asked && !self.lost {
            match sys::send(&self.socket, &chip.product().to_be_bytes(), None) {
                Ok(()) => self.asked = true,
                // The next call asks again.
                Err(error) if is_passing(&error) => {}
                Err(_) => self.lose(),
            }
        }
        // Without the process the device is never found again.
        if self.lost { LookupResult::Nothing } else { found }
    }

    fn lose(&mut self) {
        if !std::mem::replace(&mut self.lost, true) {
            tracing::warn!(
                id = "adapter",
                "the process that opens the adapter again has ended: it stays away until segue is started again"
            );
        }
    }
}

fn understood(answer: &[u8; ANSWER_LEN], fd: Option<OwnedFd>) -> LookupResult<Box<dyn Transport>> {
    let [word, v0, v1, p0, p1, ..] = *answer;
    if word == OTHER {
        return LookupResult::Other((u16::from_be_bytes([v0, v1]), u16::from_be_bytes([p0, p1])));
    }
    fd.and_then(|fd| taken_over(answer, fd)).map_or(LookupResult::Nothing, LookupResult::Back)
}

fn taken_over(answer: &[u8; ANSWER_LEN], fd: OwnedFd) -> Option<Box<dyn Transport>> {
    match answer[0] {
        HERE => {
            let [_, v0, v1, p0, p1, speed, ..] = *answer;
            let speed = match speed {
                0 => Speed::Full,
                1 => Speed::High,
                _ => Speed::Super,
            };
            let identity = (u16::from_be_bytes([v0, v1]), u16::from_be_bytes([p0, p1]));
            Some(Box::new(Usbfs::of(fd, identity, speed)))
        }
        IMPORTED => {
            let record = Record::parse(&answer[1..])?;
            Some(Box::new(Client::of(TcpStream::from(fd), record).ok()?))
        }
        _ => None,
    }
}

impl Source {
    fn confine(&self, is_weak: bool) -> Result<(), String> {
        let reach = match self {
            Source::Here(_) => AccessRights {
                read: &["/sys/bus/usb", "/sys/devices"],
                devices: &["/dev/bus/usb"],
                ioctls: &usbfs::OPENING_IOCTLS,
                ..AccessRights::default()
            },
            Source::Usbip { server, .. } => AccessRights {
                tcp_port: server.first().map(SocketAddr::port),
                families: &[libc::AF_INET, libc::AF_INET6],
                ..AccessRights::default()
            },
        };
        confine(&reach, is_weak)
    }

    /// Opens the device, if it is present with the given chip; returns it with its identity. A device with another chip
    /// is not taken from its user, not even for a moment.
    fn open(&self, chip: Chip) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let is_it = |(vendor, product)| Chip::of(vendor, product) == Some(chip);
        match self {
            Source::Here(port) => {
                let adapter = usbfs::list().ok()?.into_iter().find(|adapter| adapter.port == *port)?;
                if !is_it(adapter.identity) {
                    return Some((with_identity(OTHER, adapter.identity), None));
                }
                let (fd, speed) = usbfs::take(&adapter).ok()?;
                let mut words = with_identity(HERE, adapter.identity);
                words.push(speed as u8);
                Some((words, Some(fd)))
            }
            Source::Usbip { server, bus_id } => {
                let records = usbip::list(server.as_slice()).ok()?;
                let record = records.into_iter().find(|record| record.bus_id == *bus_id)?;
                if !is_it(record.identity) {
                    return Some((with_identity(OTHER, record.identity), None));
                }
                match Client::import_accepted(server.as_slice(), bus_id, None, &is_it) {
                    Ok(client) => {
                        let (stream, record) = client.into_parts();
                        let mut words = vec![IMPORTED];
                        record.emit(&mut words);
                        Some((words, Some(stream.into())))
                    }
                    // The device was attached after the list was read.
                    Err(ImportError::Other(identity)) => Some((with_identity(OTHER, identity), None)),
                    Err(_) => None,
                }
            }
        }
    }
}

fn with_identity(word: u8, (vendor, product): (u16, u16)) -> Vec<u8> {
    let ([v0, v1], [p0, p1]) = (vendor.to_be_bytes(), product.to_be_bytes());
    vec![word, v0, v1, p0, p1]
}

/// Opens the device on each request, until the requesting process has ended.
fn serve(socket: UnixStream, source: &Source, rounds: &Rounds) -> io::Result<()> {
    match answer(socket, source, rounds) {
        // The other process ended with an answer unread, or before the answer.
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => Ok(()),
        done => done,
    }
}

fn answer(mut socket: UnixStream, source: &Source, rounds: &Rounds) -> io::Result<()> {
    let mut product = [0; 2];
    loop {
        rounds.count();
        match socket.read_exact(&mut product) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if is_passing(&error) => {
                thread::sleep(FAILED_PAUSE);
                continue;
            }
            read => read?,
        }
        let chip = Chip::of(VENDOR, u16::from_be_bytes(product));
        let found = chip.and_then(|chip| source.open(chip));
        let (mut answer, fd) = found.unwrap_or((vec![NOTHING], None));
        answer.resize(ANSWER_LEN, 0);
        while let Err(error) = sys::send(&socket, &answer, fd.as_ref().map(AsFd::as_fd)) {
            if !is_passing(&error) {
                return Err(error);
            }
            rounds.count();
            thread::sleep(FAILED_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use segue_lan78xx::model::{Config, Model};
    use segue_lan78xx::usb::usbip::serve::Server;

    use super::*;

    /// Returns the outcome of a lookup for a LAN7800 on a server that exports a device with `chip`, whether the device
    /// was imported, and the number of requests that it received.
    fn looked(chip: Chip, bus_id: &str) -> (LookupResult<Box<dyn Transport>>, bool, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = Source::Usbip { server: vec![listener.local_addr().unwrap()], bus_id: bus_id.to_owned() };
        let model = Model::new(Config { chip, speed: Speed::High, ..Config::default() });
        let mut server = Server::new(listener, "1-1", model, None).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let rounds = Rounds::new().unwrap();
        let counts = rounds.clone();
        let serving = thread::spawn(move || serve(far, &source, &counts));
        let mut opener = Opener { socket: near, asked: false, lost: false };
        let until = Instant::now() + Duration::from_secs(20);
        let mut was_taken = false;
        let found = loop {
            assert!(Instant::now() < until, "nothing was said");
            server.round(Duration::from_millis(1)).unwrap();
            was_taken |= server.is_attached();
            // The server is checked between its rounds, each of which could take and release the device.
            match opener.lookup(Chip::Lan7800) {
                LookupResult::Unknown => {}
                found => break found,
            }
        };
        let asked = server.model.notes().controls;
        // The next request may be under way.
        drop(opener);
        drop(server);
        serving.join().unwrap().unwrap();
        assert!(rounds.number() > 1, "one for each request");
        (found, was_taken, asked)
    }

    #[test]
    fn another_chip_is_named_and_neither_taken_nor_asked_anything() {
        let (found, was_taken, asked) = looked(Chip::Lan7850, "1-1");
        assert!(matches!(found, LookupResult::Other((0x0424, 0x7850))), "{:?}", found_name(&found));
        assert_eq!((was_taken, asked), (false, 0));
        let (found, was_taken, asked) = looked(Chip::Lan7800, "1-2");
        assert!(matches!(found, LookupResult::Nothing), "{:?}", found_name(&found));
        assert_eq!((was_taken, asked), (false, 0));
        let (found, was_taken, asked) = looked(Chip::Lan7800, "1-1");
        let LookupResult::Back(device) = found else { panic!("{:?}", found_name(&found)) };
        assert_eq!((device.identity(), was_taken, asked), ((0x0424, 0x7800), true, 1));
    }

    fn found_name(found: &LookupResult<Box<dyn Transport>>) -> &'static str {
        match found {
            LookupResult::Unknown => "unknown",
            LookupResult::Nothing => "nothing",
            LookupResult::Other(_) => "another one",
            LookupResult::Back(_) => "back",
        }
    }

    #[test]
    fn an_answer_without_room_for_its_descriptor_is_asked_for_again_and_the_end_of_the_opener_is_not() {
        let (near, far) = sys::pair().unwrap();
        let mut opener = Opener { socket: near, asked: true, lost: false };
        // The kernel marks it as one whose descriptor did not fit.
        sys::send(&far, &[HERE; ANSWER_LEN + 1], None).unwrap();
        assert!(matches!(opener.lookup(Chip::Lan7800), LookupResult::Unknown));
        let mut request = [0; 2];
        assert_eq!(sys::receive(&far, &mut request).unwrap().0, 2, "it is asked again");
        sys::send(&far, &[NOTHING; ANSWER_LEN], None).unwrap();
        assert!(matches!(opener.lookup(Chip::Lan7800), LookupResult::Nothing) && !opener.lost);
        drop(far);
        assert!(matches!(opener.lookup(Chip::Lan7800), LookupResult::Nothing) && opener.lost);
    }

    #[test]
    fn opener_ends_cleanly_with_unread_or_undeliverable_replies() {
        // The port is closed.
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let source = Source::Usbip { server: vec![closed], bus_id: "1-1".to_owned() };
        for waits in [true, false] {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(&Chip::Lan7800.product().to_be_bytes()).unwrap();
            let source = source.clone();
            if waits {
                let serving = thread::spawn(move || serve(far, &source, &Rounds::new().unwrap()));
                // The first byte of the answer is read; the rest stays.
                near.read_exact(&mut [0]).unwrap();
                drop(near);
                serving.join().unwrap().unwrap();
            } else {
                drop(near);
                serve(far, &source, &Rounds::new().unwrap()).unwrap();
            }
        }
    }
}
