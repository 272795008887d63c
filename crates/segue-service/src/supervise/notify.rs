//! Notifications to systemd (sd_notify(3)): one datagram for each message, to the socket that the environment names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Longest wait for a service manager whose queue is full, during which no instance is looked after.
const FULL: Duration = Duration::from_secs(1);

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
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_write_timeout(Some(FULL)).map(|()| socket));
        Notify { to: socket.ok().zip(address), watchdog, alive: Instant::now() }
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

    /// Returns the time until the next message that the service is alive is due; `None` if none is expected.
    pub(super) fn due(&self) -> Option<Duration> {
        self.watchdog.map(|often| often.saturating_sub(self.alive.elapsed()))
    }

    /// Reports that the service is alive, if such a message is due.
    pub(super) fn keep_alive(&mut self) {
        if self.due() == Some(Duration::ZERO) {
            self.alive();
        }
    }

    /// Reports that the service is alive, if such a message is expected: before and after work that takes long.
    pub(super) fn alive(&mut self) {
        if self.watchdog.is_some() {
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// Returns a sender, and a function that takes the messages that it has sent.
    fn sender(name: &str, watchdog: Option<Duration>) -> (Notify, impl Fn() -> Vec<String>) {
        let address = SocketAddr::from_abstract_name(format!("segue-{name}-{}", std::process::id())).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        let take = move || {
            let mut bytes = [0; 256];
            let next = || match manager.recv(&mut bytes) {
                Ok(len) => Some(String::from_utf8_lossy(&bytes[..len]).into_owned()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    None
                }
            };
            std::iter::from_fn(next).collect()
        };
        (Notify::to(Some(address), watchdog), take)
    }

    #[test]
    fn the_next_message_of_a_service_that_is_alive_is_due_an_interval_after_the_last_one() {
        let often = Duration::from_secs(3600);
        let (mut notify, taken) = sender("due", Some(often));
        notify.keep_alive();
        assert_eq!(taken(), [""; 0], "it is not due");
        notify.alive = Instant::now().checked_sub(often / 2).unwrap();
        let half = notify.due().unwrap();
        assert!(half <= often / 2, "a wait that begins between two messages is no longer than the time that is left");
        notify.alive = Instant::now().checked_sub(often).unwrap();
        assert_eq!(notify.due(), Some(Duration::ZERO));
        notify.keep_alive();
        assert_eq!(taken(), ["WATCHDOG=1"]);
        assert!(notify.due().unwrap() > often / 2);
        // In front of long work it is sent although it is not due.
        notify.alive();
        assert_eq!(taken(), ["WATCHDOG=1"]);
    }

    #[test]
    fn a_service_without_a_watchdog_sends_it_nothing() {
        let (mut notify, taken) = sender("none", None);
        assert_eq!(notify.due(), None);
        notify.keep_alive();
        notify.alive();
        assert_eq!(taken(), [""; 0]);
        notify.status("up");
        assert_eq!(taken(), ["STATUS=up"]);
    }
    #[test]
    fn a_service_manager_that_does_not_receive_is_not_waited_for() {
        let (notify, take) = sender("full", None);
        let begin = Instant::now();
        // The queue of such a socket has a few places (net.unix.max_dgram_qlen).
        let fill = UnixDatagram::unbound().unwrap();
        fill.set_nonblocking(true).unwrap();
        let (_, address) = notify.to.as_ref().unwrap();
        while fill.send_to_addr(b"STATUS=", address).is_ok() {}
        notify.status("after them");
        assert!(begin.elapsed() < 30 * FULL);
        assert!(take().iter().all(|message| message == "STATUS="));
    }
}
