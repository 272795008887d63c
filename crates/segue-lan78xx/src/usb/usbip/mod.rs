//! USB/IP 1.1.1 (Linux, Documentation/usb/usbip_protocol.rst): USB devices over TCP, both ends.
//!
//! [`Session`] is the server's side of one connection without its I/O, [`serve`] runs it for the model; [`Client`] is a
//! [`Transport`](super::Transport). Neither side has any protection: whoever reaches the port has the device.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

mod client;
pub mod serve;
mod session;
mod wire;

pub use client::{Client, ImportError, list};
pub use session::{Exported, Phase, Session};
pub use wire::{PORT, RECORD_LEN, Record};

/// A connection on which nothing came for so long is asked whether it is still there, and so often in all.
const QUIET: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_secs(3);
const ASKED: u32 = 3;
/// A connection on which nothing is acknowledged for so long is over (tcp(7), TCP_USER_TIMEOUT).
const UNHEARD: Duration = Duration::from_secs(15);

/// Lets the kernel end a connection whose other end is gone without a word, after 14 to 15 s.
fn watch(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET).with_interval(ASK_AGAIN).with_retries(ASKED))?;
    socket.set_tcp_user_timeout(Some(UNHEARD))
}
