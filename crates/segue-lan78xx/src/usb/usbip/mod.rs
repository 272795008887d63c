//! The protocol USB/IP 1.1.1 (Linux, Documentation/usb/usbip_protocol.rst), which carries USB over TCP: client and
//! server.
//!
//! [`Session`] is the server's side of one connection without its I/O, [`serve`] runs it for the model; [`Client`] is a
//! [`Transport`](super::Transport). The protocol has no authentication: any host that reaches the port can take the
//! device.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

mod client;
mod greeting;
pub mod serve;
mod session;
mod wire;

pub use client::Client;
pub use greeting::{ImportError, list};
pub use session::{Exported, Phase, Session};
pub use wire::{PORT, RECORD_LEN, Record};

/// Keepalive of a connection: the idle time before the first probe, the interval between probes, and the number of
/// unanswered probes after which the connection is closed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;
/// Time without acknowledgment after which a connection ends (tcp(7), TCP_USER_TIMEOUT).
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// Lets the kernel close a connection whose peer has silently gone, after 14 to 15 s.
fn watch(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES),
    )?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}
