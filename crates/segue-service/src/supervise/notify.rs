//! Notifications to systemd (sd_notify(3)): one datagram for each message, to the socket that the environment names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Longest wait for a service manager whose queue is full, during which no instance is looked after.
const FULL: Duration = Duration::from_secs(1);
/// Time after which a state that could not be sent is sent again.
const AGAIN: Duration = Duration::from_millis(200);
/// The message that traffic can pass.
const READY: &str = "READY=1";

/// A sender of notifications to the service manager; it does nothing if no service manager has started this process.
#[derive(Debug)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Interval at which the service manager expects a message.
    pub(super) watchdog: Option<Duration>,
    /// Time of the last such message.
    alive: Instant,
    /// The state for which a service manager with a full queue had no room, and the time of the last attempt.
    unsent: Option<(String, Instant)>,
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
        Notify { to: socket.ok().zip(address), watchdog, alive: Instant::now(), unsent: None }
    }

    /// Reports that traffic can pass, with one line of status.
    pub(super) fn ready(&mut self, status: &str) {
        self.state(format!("{READY}\nSTATUS={status}"));
    }

    /// Reports the present state in one line.
    pub(super) fn status(&mut self, status: &str) {
        let is_ready_unsent = self.unsent.as_ref().is_some_and(|(unsent, _)| unsent.starts_with(READY));
        if is_ready_unsent {
            return self.ready(status);
        }
        self.state(format!("STATUS={status}"));
    }

    /// Reports that the configuration is read again. The state that counts is the one after it.
    pub(super) fn reloading(&mut self) {
        self.unsent = None;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", segue_port::now().0 / 1000));
    }

    /// Notifies the service manager that the service is stopping.
    pub(super) fn stopping(&mut self) {
        self.unsent = None;
        self.send("STOPPING=1");
    }

    /// Returns the time until the next message is due; `None` if none is.
    pub(super) fn due(&self) -> Option<Duration> {
        let again = self.unsent.as_ref().map(|(_, tried)| AGAIN.saturating_sub(tried.elapsed()));
        self.watch_due().into_iter().chain(again).min()
    }

    /// Returns the time until the next message that the service is alive is due; `None` if none is expected.
    fn watch_due(&self) -> Option<Duration> {
        self.watchdog.map(|often| often.saturating_sub(self.alive.elapsed()))
    }

    /// Reports that the service is alive, if such a message is due, and a state that could not be sent before.
    pub(super) fn keep_alive(&mut self) {
        if self.watch_due() == Some(Duration::ZERO) {
            self.alive();
        }
        if let Some((message, _)) = self.unsent.take_if(|(_, tried)| tried.elapsed() >= AGAIN) {
            // A queue that is still full is not waited for again.
            self.set_nonblocking(true);
            self.state(message);
            self.set_nonblocking(false);
        }
    }

    /// Reports that the service is alive, if such a message is expected: before and after work that takes long.
    pub(super) fn alive(&mut self) {
        if self.watchdog.is_some() {
            self.alive = Instant::now();
            self.send("WATCHDOG=1");
        }
    }

    /// Sends a state, or keeps it for later.
    fn state(&mut self, message: String) {
        self.unsent = (!self.send(&message)).then(|| (message, Instant::now()));
    }

    /// Sends a message. Returns `false` if it may be sent later; a service manager that does not receive messages is
    /// ignored.
    fn send(&self, message: &str) -> bool {
        let Some((socket, address)) = &self.to else { return true };
        let Err(error) = socket.send_to_addr(message.as_bytes(), address) else { return true };
        let is_passing =
            [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ENOMEM].map(Some).contains(&error.raw_os_error());
        !is_passing
    }

    fn set_nonblocking(&self, is_nonblocking: bool) {
        let _ = self.to.as_ref().map(|(socket, _)| socket.set_nonblocking(is_nonblocking));
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::thread;

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

    /// Fills the queue of the service manager, which has a few places (net.unix.max_dgram_qlen).
    fn fill(notify: &Notify) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (_, address) = notify.to.as_ref().unwrap();
        while socket.send_to_addr(b"STATUS=", address).is_ok() {}
    }

    #[test]
    fn a_service_manager_that_does_not_receive_is_not_waited_for() {
        let (mut notify, take) = sender("full", None);
        let begin = Instant::now();
        fill(&notify);
        notify.status("after them");
        assert!(begin.elapsed() < 30 * FULL);
        assert!(take().iter().all(|message| message == "STATUS="));
    }

    #[test]
    fn a_state_for_which_a_service_manager_had_no_room_is_sent_when_it_has() {
        let (mut notify, take) = sender("later", None);
        let is_due_soon = |notify: &Notify| notify.due().is_some_and(|due| due <= AGAIN);
        fill(&notify);
        notify.ready("starts");
        assert!(is_due_soon(&notify));
        thread::sleep(AGAIN);
        let begin = Instant::now();
        notify.keep_alive();
        assert!(begin.elapsed() < FULL && is_due_soon(&notify), "it is tried again, without a wait");
        notify.status("up");
        assert!(take().iter().all(|message| message == "STATUS="));
        thread::sleep(AGAIN);
        notify.keep_alive();
        assert_eq!(take(), ["READY=1\nSTATUS=up"]);
        assert_eq!(notify.due(), None);
        notify.status("up again");
        assert_eq!(take(), ["STATUS=up again"]);
        // The state before a reload or before the end no longer counts.
        for (tell, begin) in [(Notify::reloading as fn(&mut Notify), "RELOADING=1\n"), (Notify::stopping, "STOPPING=1")]
        {
            fill(&notify);
            notify.ready("before");
            take();
            tell(&mut notify);
            thread::sleep(AGAIN);
            notify.keep_alive();
            assert!(matches!(&take()[..], [only] if only.starts_with(begin)), "{begin}");
        }
    }
}
