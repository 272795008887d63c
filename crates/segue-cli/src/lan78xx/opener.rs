//! A device that comes back: the process that moves packets can open nothing any more, so another one, which sees no packet,
//! opens the device again when it is asked to, and hands the descriptor over. It is started before anything else is open,
//! and reaches only what this one device needs.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use segue_lan78xx::usb::usbfs::{self, Usbfs};
use segue_lan78xx::usb::usbip::{Client, RECORD_LEN, Record};
use segue_lan78xx::usb::{Speed, Transport};

use super::sys;
use crate::error::Error;
use crate::out::to_stderr;
use crate::sandbox::{Reach, confine};
use crate::sys::{Forked, fork};

/// Where a device is to be found again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// At this port of this machine.
    Here(String),
    /// At one of the addresses of a USB/IP server, under this bus id.
    Usbip { server: Vec<SocketAddr>, bus_id: String },
}

/// The words between the two processes: `LOOK` asks, and an answer of `ANSWER_LEN` bytes begins with one of the others.
const LOOK: u8 = b'?';
const NOTHING: u8 = 0;
const HERE: u8 = 1;
const IMPORTED: u8 = 2;
const ANSWER_LEN: usize = 1 + RECORD_LEN;

/// The near end of the process that opens devices.
#[derive(Debug)]
pub(super) struct Opener {
    socket: UnixStream,
    asked: bool,
    lost: bool,
}

impl Opener {
    /// Starts the process. Only while this one has one thread.
    pub(super) fn start(source: Source) -> Result<Opener, Error> {
        let failed = |error: io::Error| {
            Error::system("cannot start the process that opens an adapter again", &error, "segue doctor")
                .why("a socket pair or a process could not be made")
        };
        let (near, far) = UnixStream::pair().map_err(failed)?;
        match fork().map_err(failed)? {
            Forked::Parent(_) => Ok(Opener { socket: near, asked: false, lost: false }),
            Forked::Child => {
                let served = sys::keep_only(far).map_err(|error| error.to_string()).and_then(|far| {
                    source.confine()?;
                    serve(far, &source).map_err(|error| error.to_string())
                });
                if let Err(why) = &served {
                    to_stderr(&format!("note: an adapter that was unplugged will not be opened again: {why}\n"));
                }
                std::process::exit(i32::from(served.is_err()))
            }
        }
    }

    /// The device, once it is back. Never waits: what one call asks for, a later one has.
    pub(super) fn look(&mut self) -> Option<Box<dyn Transport>> {
        let mut answer = [0; ANSWER_LEN];
        match sys::receive(&self.socket, &mut answer) {
            Ok((ANSWER_LEN, fd)) => {
                self.asked = false;
                if let Some(device) = fd.and_then(|fd| taken_over(&answer, fd)) {
                    return Some(device);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.lost = true,
        }
        if !self.asked && !self.lost {
            self.asked = true;
            self.lost = sys::send(&self.socket, &[LOOK], None).is_err();
        }
        None
    }
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
    fn confine(&self) -> Result<(), String> {
        confine(&match self {
            Source::Here(_) => Reach {
                read: &["/sys/bus/usb", "/sys/devices"],
                devices: &["/dev/bus/usb"],
                ioctls: &usbfs::OPENING_IOCTLS,
                ..Reach::default()
            },
            Source::Usbip { server, .. } => {
                Reach { tcp_port: server.first().map(SocketAddr::port), ..Reach::default() }
            }
        })
    }

    /// The device, if it is there, and what is to be known of it.
    fn open(&self) -> Option<(Vec<u8>, OwnedFd)> {
        match self {
            Source::Here(port) => {
                let adapter = usbfs::list().ok()?.into_iter().find(|adapter| adapter.port == *port)?;
                let (fd, speed) = usbfs::take(&adapter).ok()?;
                let ([v0, v1], [p0, p1]) = (adapter.identity.0.to_be_bytes(), adapter.identity.1.to_be_bytes());
                Some((vec![HERE, v0, v1, p0, p1, speed as u8], fd))
            }
            Source::Usbip { server, bus_id } => {
                let (stream, record) = Client::import(server.as_slice(), bus_id).ok()?.into_parts();
                let mut words = vec![IMPORTED];
                record.emit(&mut words);
                Some((words, stream.into()))
            }
        }
    }
}

/// Opens the device as often as it is asked for, until the other process has ended.
fn serve(mut socket: UnixStream, source: &Source) -> io::Result<()> {
    let mut word = [0];
    while socket.read(&mut word)? > 0 {
        let (mut answer, fd) = match source.open() {
            Some((answer, fd)) => (answer, Some(fd)),
            None => (vec![NOTHING], None),
        };
        answer.resize(ANSWER_LEN, 0);
        sys::send(&socket, &answer, fd.as_ref().map(AsFd::as_fd))?;
    }
    Ok(())
}
