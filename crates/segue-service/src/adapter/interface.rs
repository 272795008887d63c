//! Settings of the adapter's interface: a thread receives them by rtnetlink and passes each new state to the driver.
//!
//! The kernel reports most changes. It does not report that a macvlan or a VLAN with an address of its own needs all
//! frames, so that the thread also asks once a second. The poll loop does not ask by itself, since the kernel answers
//! under the lock of all interfaces, which may be held for long.
//!
//! An interface that moves to another network namespace is taken down there and is out of sight from here, so that
//! its later state is unknown. The adapter is up then, with the last settings of the interface.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use segue_host::netlink::needed;
use segue_host::sys::{self, Want};
use segue_lan78xx::driver::{Host, Interface};

use crate::fault::Vitals;
use crate::heartbeat::Thread;
use crate::started;

/// Interval at which the thread queries the state of the interface.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failure to read a pending message or to pass on a state.
const FAILED_PAUSE: Duration = Duration::from_millis(10);
/// The multicast group of messages about interfaces (rtnetlink(7)).
const RTNLGRP_LINK: u32 = 1;
/// Size of the receive buffer, bytes: a message about an interface with all its attributes has some kilobytes.
const ROOM: usize = 64 << 10;

/// The present name of the interface, which others read.
pub(super) type Name = Arc<Mutex<String>>;

/// The driver's end of the channel from the watching thread, which yields the states of the interface.
#[derive(Debug)]
pub(super) struct InterfaceStates {
    states: Receiver<Interface>,
    /// A pipe with one byte for each state, written before the state is sent.
    bell: PipeReader,
    /// Number of states already taken whose wake-up byte is still to be read.
    owed: usize,
}

impl Host for InterfaceStates {
    fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_change(&mut self) -> Option<Interface> {
        let state = self.states.try_recv().ok();
        self.owed += usize::from(state.is_some());
        // The bytes are there already, so that this does not block. One that cannot be read keeps the descriptor ready,
        // and is read by a later call.
        while self.owed > 0 && self.bell.read(&mut [0]).is_ok() {
            self.owed -= 1;
        }
        state
    }
}

/// The watching thread's end, opened before the process drops its privileges.
pub(super) struct Watcher {
    socket: Socket,
    view: View,
    states: Sender<Interface>,
    bell: PipeWriter,
}

/// Prepares to watch the interface with the given index and name, which belongs to `tap`.
pub(super) fn watch(index: u32, name: &str, tap: OwnedFd) -> io::Result<(InterfaceStates, Watcher)> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.add_membership(RTNLGRP_LINK)?;
    socket.set_non_blocking(true)?;
    let (states, receiver) = channel();
    let (reader, bell) = io::pipe()?;
    Ok((
        InterfaceStates { states: receiver, bell: reader, owed: 0 },
        Watcher { socket, view: View::new(index, name, tap), states, bell },
    ))
}

impl Watcher {
    /// Returns the name of the interface, which follows each change.
    pub(super) fn name(&self) -> Name {
        Arc::clone(&self.view.name)
    }

    /// Starts the thread; it ends with the driver. `vitals` takes its heartbeat.
    pub(super) fn start(self, vitals: Vitals) -> io::Result<()> {
        let work = move || {
            self.run(&vitals);
            vitals.heartbeat.over(Thread::Interface);
        };
        started::spawn("interface", work).map(drop)
    }

    fn run(mut self, vitals: &Vitals) {
        let heartbeat = &vitals.heartbeat;
        let mut query_at = Instant::now();
        let mut buffer = Vec::with_capacity(ROOM);
        loop {
            vitals.beat(Thread::Interface);
            let now = Instant::now();
            if now >= query_at {
                // A request that fails is repeated a second later. The kernel handles it within the call.
                let _ = heartbeat.unwatched(Thread::Interface, || self.request_state());
                query_at = now + QUERY_INTERVAL;
            }
            let ready = sys::poll(&[(self.socket.as_fd(), Want::Read)], query_at.saturating_duration_since(now));
            if ready.is_err() {
                thread::sleep(QUERY_INTERVAL);
            }
            buffer.clear();
            let mut is_silent = true;
            while let Ok(1..) = self.socket.recv(&mut buffer, 0) {
                is_silent = false;
                // The reader of the log may make it wait; a driver that is late has a heartbeat of its own.
                let update = || self.view.update(&buffer);
                if let Some(state) = heartbeat.unwatched(Thread::Interface, update)
                    && !heartbeat.unwatched(Thread::Interface, || self.hand_on(state))
                {
                    return;
                }
                buffer.clear();
                heartbeat.beat(Thread::Interface);
            }
            if is_silent && ready.is_ok_and(|ready| ready == [true]) {
                thread::sleep(FAILED_PAUSE);
            }
        }
    }

    /// Passes a state to the driver. Returns whether the driver is still there.
    fn hand_on(&mut self, state: Interface) -> bool {
        while let Err(error) = self.bell.write_all(b"!") {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return false;
            }
            thread::sleep(FAILED_PAUSE);
        }
        self.states.send(state).is_ok()
    }

    fn request_state(&self) -> io::Result<()> {
        let mut wanted = LinkMessage::default();
        if self.view.away {
            wanted.attributes.push(LinkAttribute::IfName(self.view.name().clone()));
        } else {
            wanted.header.index = self.view.index;
        }
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        let request = RouteNetlinkMessage::GetLink(wanted);
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }
}

/// The last known state of the interface.
#[derive(Debug)]
struct View {
    index: u32,
    name: Name,
    /// The descriptor of the interface, which shows whether the interface still exists in any namespace.
    tap: OwnedFd,
    last: Option<Interface>,
    /// Whether the interface is in another network namespace.
    away: bool,
}

impl View {
    fn new(index: u32, name: &str, tap: OwnedFd) -> View {
        View { index, name: Arc::new(Mutex::new(name.to_owned())), tap, last: None, away: false }
    }

    fn name(&self) -> MutexGuard<'_, String> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the view from a datagram of the kernel. Returns the settings where they are new.
    fn update(&mut self, datagram: &[u8]) -> Option<Interface> {
        let mut rest = datagram;
        let before = self.last;
        while let Ok(message) = needed::message(rest) {
            match &message.payload {
                // A bridge reports its ports with the same messages and its own family: without the counter of
                // promiscuous mode, and as deleted when they leave it.
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) if is_of_interface(link) => {
                    self.see(link);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))
                    if link.header.index == self.index && is_of_interface(link) =>
                {
                    self.miss();
                }
                // The answer to a request.
                NetlinkPayload::Error(error) if error.raw_code() == -libc::ENODEV => self.miss(),
                _ => {}
            }
            let len = (message.header.length as usize).next_multiple_of(4).max(4);
            let Some(behind) = rest.get(len..) else { break };
            rest = behind;
        }
        self.last.filter(|_| self.last != before)
    }

    fn see(&mut self, link: &LinkMessage) {
        let Some(state) = state_of(link) else { return };
        let name = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        });
        // The interface may come back with another index, and another interface may have its index meanwhile.
        let is_it = match self.last.filter(|_| self.away) {
            Some(last) => last.mac == state.mac && name.is_some_and(|name| *name == *self.name()),
            None => link.header.index == self.index,
        };
        if is_it {
            (self.index, self.away, self.last) = (link.header.index, false, Some(state));
            if let Some(name) = name {
                self.name().clone_from(name);
            }
        }
    }

    /// Handles the loss of the interface: it may be in use in another namespace, unless it was deleted.
    fn miss(&mut self) {
        let is_deleted = self.is_deleted();
        let Some(last) = &mut self.last else { return };
        last.up |= !is_deleted;
        if std::mem::replace(&mut self.away, true) {
            return;
        }
        if is_deleted {
            tracing::warn!(id = "adapter", "the interface was deleted");
        } else {
            tracing::info!(
                id = "adapter",
                "the interface has left this network namespace: the adapter is up and set as it was last"
            );
        }
    }

    /// Returns whether the interface was deleted: poll(2) then reports an error for its TAP (Linux, tun_chr_poll). The
    /// kernel detaches the interface before it reports the deletion.
    fn is_deleted(&self) -> bool {
        sys::poll(&[(self.tap.as_fd(), Want::Hangup)], Duration::ZERO).is_ok_and(|ready| ready == [true])
    }
}

fn is_of_interface(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
}

fn state_of(link: &LinkMessage) -> Option<Interface> {
    let (mut mtu, mut mac, mut promiscuous) = (None, None, link.header.flags.contains(LinkFlags::Promisc));
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => mtu = Some(*bytes as usize),
            LinkAttribute::Address(address) => mac = <[u8; 6]>::try_from(&address[..]).ok(),
            // The flag shows only what a user has set by hand; the counter includes bridges and captures.
            LinkAttribute::Promiscuity(count) => promiscuous |= *count > 0,
            _ => {}
        }
    }
    Some(Interface { up: link.header.flags.contains(LinkFlags::Up), mtu: mtu?, mac: mac?, promiscuous })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Returns a descriptor without events, instead of the TAP of an existing interface.
    fn tap() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn told(links: Vec<LinkMessage>) -> Vec<u8> {
        links.into_iter().flat_map(|link| datagram(RouteNetlinkMessage::NewLink(link))).collect()
    }

    fn datagram(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn link(index: u32, up: bool, mtu: u32, promiscuity: u32) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        let address = LinkAttribute::Address(vec![2, 0, 0, 0, 0, 7]);
        link.attributes = vec![LinkAttribute::Mtu(mtu), address, LinkAttribute::Promiscuity(promiscuity)];
        link
    }

    #[test]
    fn the_latest_link_message_of_the_interface_applies() {
        let state = |up, mtu, promiscuous| Some(Interface { up, mtu, mac: [2, 0, 0, 0, 0, 7], promiscuous });
        let words = told(vec![link(7, true, 1500, 0), link(8, false, 9000, 1), link(7, true, 1400, 2)]);
        let update = |index, words: &[u8]| View::new(index, "lan0", tap()).update(words);
        assert_eq!(update(7, &words), state(true, 1400, true));
        assert_eq!(update(8, &words), state(false, 9000, true));
        assert_eq!(update(9, &words), None);
        for len in 0..words.len() {
            let _ = update(7, &words[..len]);
        }
        assert_eq!(update(0, &told(vec![LinkMessage::default()])), None, "neither MTU nor address");
        let mut by_hand = link(7, false, 68, 0);
        by_hand.header.flags = LinkFlags::Promisc;
        assert_eq!(update(7, &told(vec![by_hand])), state(false, 68, true));
    }

    #[test]
    fn a_bridge_that_reports_its_port_does_not_end_promiscuous_mode() {
        let mut view = View::new(7, "lan0", tap());
        let mut update = |link| view.update(&told(vec![link])).map(|state| state.promiscuous);
        assert_eq!(update(link(7, true, 1500, 1)), Some(true), "it has become a port of a bridge");
        let mut port = link(7, true, 1500, 0);
        port.header.interface_family = AddressFamily::Bridge;
        port.attributes.retain(|attribute| !matches!(attribute, LinkAttribute::Promiscuity(_)));
        assert_eq!(update(port), None);
        assert_eq!(update(link(7, true, 1500, 0)), Some(false), "it has left the bridge");
    }

    #[test]
    fn interface_in_another_namespace_keeps_its_last_settings_and_is_followed_after_return() {
        let named = |index, up, name: &str, mac| {
            let mut link = link(index, up, 1400, 0);
            link.attributes[1] = LinkAttribute::Address(vec![2, 0, 0, 0, 0, mac]);
            link.attributes.push(LinkAttribute::IfName(name.to_owned()));
            told(vec![link])
        };
        let gone = |family| {
            let mut link = link(7, false, 1400, 0);
            link.header.interface_family = family;
            datagram(RouteNetlinkMessage::DelLink(link))
        };
        let mut view = View::new(7, "lan0", tap());
        let mut update = |bytes: &[u8]| view.update(bytes).map(|is| (is.up, is.mtu));
        assert_eq!(update(&gone(AddressFamily::Unspec)), None, "it was never seen");
        assert_eq!(update(&named(7, true, "lan0", 7)), Some((true, 1400)));
        assert_eq!(update(&named(7, false, "eth7", 7)), Some((false, 1400)), "it has another name now");
        assert_eq!(update(&gone(AddressFamily::Bridge)), None, "it leaves a bridge");
        // The interface was taken down for the move.
        assert_eq!(update(&gone(AddressFamily::Unspec)), Some((true, 1400)));
        assert_eq!(update(&gone(AddressFamily::Unspec)), None, "said once");
        for (name, mac) in [("eth7", 8), ("lan0", 7)] {
            assert_eq!(update(&named(7, false, name, mac)), None, "another one that has its index");
        }
        assert_eq!(update(&named(9, false, "eth7", 7)), Some((false, 1400)));
        assert_eq!(update(&named(7, true, "lan0", 7)), None, "its index is another one now");
        assert_eq!(update(&named(9, true, "eth7", 7)), Some((true, 1400)));
    }

    #[test]
    fn an_interface_that_was_deleted_is_not_taken_for_one_that_left() {
        // A pipe without a reader reports an error as well.
        let (reader, writer) = io::pipe().unwrap();
        let mut view = View::new(7, "lan0", writer.into());
        assert_eq!(view.update(&told(vec![link(7, false, 1400, 0)])).map(|is| is.up), Some(false));
        assert!(!view.is_deleted());
        drop(reader);
        assert!(view.is_deleted());
        let mut gone = link(7, false, 1400, 0);
        gone.header.interface_family = AddressFamily::Unspec;
        assert_eq!(view.update(&datagram(RouteNetlinkMessage::DelLink(gone))), None, "it is up nowhere");
    }

    #[test]
    fn missing_interface_is_reported_and_an_existing_one_is_found_by_name() {
        let lo = segue_host::netlink::Netlink::open().unwrap().link_named("lo").unwrap().expect("there is always lo");
        let (_states, mut watcher) = watch(lo.index, "lo", tap()).unwrap();
        let answer = |watcher: &mut Watcher| {
            watcher.request_state().unwrap();
            let ready = sys::poll(&[(watcher.socket.as_fd(), Want::Read)], Duration::from_secs(10)).unwrap();
            assert_eq!(ready, [true]);
            let mut buffer = Vec::with_capacity(ROOM);
            watcher.socket.recv(&mut buffer, 0).unwrap();
            watcher.view.update(&buffer).map(|state| state.up)
        };
        assert_eq!((answer(&mut watcher), watcher.view.away), (Some(lo.up), false));
        watcher.view.index = i32::MAX as u32;
        answer(&mut watcher);
        assert!(watcher.view.away);
        answer(&mut watcher);
        assert_eq!((watcher.view.away, watcher.view.index), (false, lo.index));
    }

    #[test]
    fn the_state_of_an_interface_is_heard_soon_and_once() {
        let lo = segue_host::netlink::Netlink::open().unwrap().link_named("lo").unwrap().expect("there is always lo");
        let (mut states, watcher) = watch(lo.index, "lo", tap()).unwrap();
        let vitals = Vitals::new(1).unwrap();
        watcher.start(vitals.clone()).unwrap();
        let ready = sys::poll(&[(states.fd(), Want::Read)], Duration::from_secs(10)).unwrap();
        assert_eq!(ready, [true]);
        let state = (0..1000).find_map(|_| {
            states.next_change().or_else(|| {
                thread::sleep(Duration::from_millis(1));
                None
            })
        });
        assert_eq!(state.map(|state| (state.up, state.mtu)), Some((lo.up, lo.mtu as usize)));
        assert_eq!(sys::poll(&[(states.fd(), Want::Read)], Duration::from_millis(1500)).unwrap(), [false]);
        // It counts its rounds, of which there is one a second at least.
        let number = || vitals.heartbeat.of(Thread::Interface).load(Ordering::Relaxed);
        let (first, begin) = (number(), Instant::now());
        while number() == first {
            assert!(begin.elapsed() < Duration::from_secs(60), "no heartbeat");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!vitals.heartbeat.is_stuck(Thread::Interface, Duration::from_secs(60)));
    }
}
