//! What systemd is told (sd_notify(3)): one datagram a message, to the socket that it names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use segue_host::sys;

/// Where to send messages; nobody listens where no service manager has started this process.
#[derive(Debug)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that all is well.
    pub(super) watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says.
    pub(super) fn new() -> Notify {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let bytes = path.as_encoded_bytes();
            match bytes.split_first() {
                Some((b'@', name)) => SocketAddr::from_abstract_name(name).ok(),
                Some((b'/', _)) => SocketAddr::from_pathname(&path).ok(),
                _ => None,
            }
        });
        let socket = UnixDatagram::unbound().ok();
        let usec = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse::<u64>().ok());
        // Twice in the time that it waits, as sd_watchdog_enabled(3) asks for.
        let watchdog = usec.filter(|&usec| usec > 0).map(|usec| Duration::from_micros(usec / 2));
        Notify { to: socket.zip(address), watchdog }
    }

    /// Traffic can pass; one line about it.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The file is read again.
    pub(super) fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", sys::monotonic_usec()));
    }

    /// The end has begun.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// All is well.
    pub(super) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.to {
            // A service manager that does not listen is its own concern.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}
