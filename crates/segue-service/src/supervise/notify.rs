//! Notifications to systemd (sd_notify(3)): one datagram for each message, to the socket that the environment names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// A sender of notifications to the service manager; it does nothing if no service manager has started this process.
#[derive(Debug)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Interval at which the service manager expects a message.
    pub(super) watchdog: Option<Duration>,
    /// Time of the last such message.
    alive: Instant,
}

impl Notify {
    /// Returns the sender that the environment describes.
    pub(super) fn new() -> Notify {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let bytes = path.as_encoded_bytes();
            match bytes.split_first() {
                Some((b'@', name)) => SocketAddr::from_abstract_name(name).ok(),
                Some((b'/', _)) => SocketAddr::from_pathname(&path).ok(),
                _ => None,
            }
        });
        let usec = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse::<u64>().ok());
        // Half of the time-out, as sd_watchdog_enabled(3) recommends.
        let watchdog = usec.filter(|&usec| usec > 0).map(|usec| Duration::from_micros(usec / 2));
        Notify::to(address, watchdog)
    }

    /// Returns the sender to an address, which reports at the interval `watchdog` that the service is alive.
    pub(super) fn to(address: Option<SocketAddr>, watchdog: Option<Duration>) -> Notify {
        Notify { to: UnixDatagram::unbound().ok().zip(address), watchdog, alive: Instant::now() }
    }

    /// Reports that traffic can pass, with one line of status.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports the present state in one line.
    pub(super) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Reports that the configuration is read again.
    pub(super) fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", segue_port::now().0 / 1000));
    }

    /// Notifies the service manager that the service is stopping.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Reports that the service is alive, if such a message is due.
    pub(super) fn keep_alive(&mut self) {
        if self.watchdog.is_some_and(|often| self.alive.elapsed() >= often) {
            self.alive = Instant::now();
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.to {
            // A service manager that does not receive messages is ignored.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}
