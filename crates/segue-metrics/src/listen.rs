//! The endpoint on which metrics are served: an address, a unix socket, or a socket that the service manager passes.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use segue_control::error::{Error, Kind, printable};
use segue_control::place;
use segue_host::activation::passed;
use segue_host::address;
use segue_host::file::Identity;
use segue_host::sys::{connect_path, with_umask};

/// Default TCP port of the endpoint.
pub const PORT: u16 = 9780;

/// An endpoint on which metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A TCP address to listen on.
    Tcp(SocketAddr),
    /// Path of a unix socket to listen on.
    Unix(PathBuf),
    /// Name of a socket that the service manager passes (LISTEN_FDNAMES of sd_listen_fds(3)).
    Passed(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => write!(f, "http://{address}/metrics"),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Passed(name) => write!(f, "fd:{name}"),
        }
    }
}

/// Parses an endpoint: `ADDRESS[:PORT]`, `unix:/PATH` or `fd:NAME`.
pub fn parse(text: &str) -> Result<Place, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match Path::new(path).is_absolute() {
            true => Ok(Place::Unix(path.into())),
            false => Err("expected unix:/PATH, a path from the root".to_owned()),
        };
    }
    if let Some(name) = text.strip_prefix("fd:") {
        return match name.is_empty() {
            true => Err("expected fd:NAME, as FileDescriptorName= of the socket unit has it".to_owned()),
            false => Ok(Place::Passed(name.to_owned())),
        };
    }
    address::parse(text, PORT)
        .map(Place::Tcp)
        .ok_or_else(|| format!("expected ADDRESS[:PORT], as 127.0.0.1:{PORT} or [::1], unix:/PATH or fd:NAME"))
}

/// A socket that accepts scrapes.
#[derive(Debug)]
pub enum Listener {
    /// A listener on a TCP address.
    Tcp(TcpListener),
    /// A listener on a unix socket.
    Unix(UnixListener, Option<SocketFile>),
}

/// The file of a unix socket, removed on drop unless another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    is: Identity,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.is.remove(&self.path);
    }
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Opens the endpoint `place`. The process must have one thread, since the file mode mask is changed for a moment.
    pub fn open(at: &Place) -> Result<Listener, Error> {
        let failed = |error: &io::Error| {
            let made = Error::system(format!("cannot serve metrics at {at}"), error, "segue help metrics");
            match error.kind() {
                io::ErrorKind::AddrInUse => made
                    .kind(Kind::InUse)
                    .why("another process listens there")
                    .hint("ss -ltnp                                        shows which\n--listen with another port"),
                io::ErrorKind::AddrNotAvailable => {
                    made.why("no interface of this host has that address").hint("ip address")
                }
                io::ErrorKind::PermissionDenied => made.kind(Kind::NoPermission).why("this user may not listen there"),
                _ => made.why("the kernel refused"),
            }
        };
        let listener = match at {
            Place::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp).map_err(|error| failed(&error))?,
            Place::Unix(path) => unix(path).map_err(|error| error.unwrap_or_else(|error| failed(&error)))?,
            Place::Passed(name) => adopt(name)?,
        };
        listener.set_nonblocking().map_err(|error| failed(&error))?;
        Ok(listener)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener, _) => listener.set_nonblocking(true),
        }
    }

    /// Returns the address of a TCP endpoint; `None` for others.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    /// Returns whether hosts other than this one can reach the address.
    pub fn is_public(&self) -> bool {
        self.address().is_some_and(|address| !is_loopback(address.ip()))
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Listener::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Listener::Unix(listener, _) => Stream::Unix(listener.accept()?.0),
        };
        match &stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(stream)
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip == Ipv6Addr::LOCALHOST || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a unix socket for its owner and group. One that a process has left behind is replaced.
fn unix(path: &Path) -> Result<Listener, Result<Error, io::Error>> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let is_control = path.extension().is_some_and(|end| end == "sock");
    if is_control && place::is_searched(folder) {
        let why = format!("there NAME.sock in {} is the control socket of an instance", folder.display());
        let hint = format!("--listen unix:{}", path.with_extension("metrics").display());
        return Err(Ok(Error::new(Kind::Conflict, "this is a place for control sockets", hint).why(why)));
    }
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        match connect_path(path).map_err(|error| (error.kind(), error)) {
            Err((io::ErrorKind::ConnectionRefused, _)) => fs::remove_file(path).map_err(Err)?,
            // The queue of its listener may be full.
            Ok(_) | Err((io::ErrorKind::WouldBlock, _)) => return Err(Err(io::ErrorKind::AddrInUse.into())),
            Err((_, error)) => return Err(Err(error)),
        }
    }
    let listener = with_umask(0o117, || UnixListener::bind(path)).map_err(Err)?;
    let file = SocketFile { path: path.to_owned(), is: Identity::of(path).map_err(Err)? };
    Ok(Listener::Unix(listener, Some(file)))
}

/// Takes the socket that the service manager passes under `name`.
fn adopt(name: &str) -> Result<Listener, Error> {
    let missing = |why: String| {
        Error::new(
            Kind::NotFound,
            format!("no socket is passed under the name {}", printable(name)),
            "man systemd.socket",
        )
        .why(why)
    };
    let fd: OwnedFd = passed(name).ok_or_else(|| {
        missing("LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES of the environment do not have it".to_owned())
    })?;
    let listener = TcpListener::from(fd);
    // Only a TCP socket has an address of this form; a unix socket is taken as one.
    match listener.local_addr() {
        Ok(_) => Ok(Listener::Tcp(listener)),
        Err(_) => {
            let listener = UnixListener::from(OwnedFd::from(listener));
            match listener.local_addr() {
                Ok(_) => Ok(Listener::Unix(listener, None)),
                Err(error) => Err(missing(format!("it is no stream socket: {error}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn places_are_addresses_paths_and_names() {
        let tcp = |text: &str| Ok(Place::Tcp(text.parse().unwrap()));
        assert_eq!(parse("127.0.0.1:9000"), tcp("127.0.0.1:9000"));
        assert_eq!(parse("127.0.0.1"), tcp("127.0.0.1:9780"));
        assert_eq!((parse("::1"), parse("[::1]")), (tcp("[::1]:9780"), tcp("[::1]:9780")));
        assert_eq!(parse("unix:/run/x"), Ok(Place::Unix("/run/x".into())));
        assert_eq!(parse("fd:metrics"), Ok(Place::Passed("metrics".to_owned())));
        for wrong in ["", "localhost", ":9000", "unix:x", "unix:", "fd:", "127.0.0.1:70000"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_socket_that_was_left_behind_is_replaced_and_one_that_answers_is_not() {
        let path = std::env::temp_dir().join(format!("segue-metrics-{}", std::process::id()));
        drop(UnixListener::bind(&path).unwrap());
        let place = Place::Unix(path.clone());
        let first = Listener::open(&place).unwrap();
        assert_eq!(Listener::open(&place).unwrap_err().kind, Kind::InUse);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_whose_queue_is_full_is_in_use() {
        let path = std::env::temp_dir().join(format!("segue-metrics-full-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let _listener = UnixListener::bind(&path).unwrap();
        // Connections whose client is gone stay in the queue.
        while connect_path(&path).is_ok() {}
        let (answers, answer) = mpsc::channel();
        let place = Place::Unix(path.clone());
        thread::spawn(move || answers.send(Listener::open(&place).unwrap_err().kind));
        assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(Kind::InUse));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_loopback_addresses_are_private() {
        for (ip, loopback) in [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("::", false)] {
            assert_eq!(is_loopback(ip.parse().unwrap()), loopback, "{ip}");
        }
    }
}
