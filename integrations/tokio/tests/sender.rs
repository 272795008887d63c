//! Tests that a datagram which cannot be sent costs no other one.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use segue_port::udp::Sender;
use tokio::runtime::Builder;

/// Sends datagrams, the first bytes of which are their numbers, from `from`; returns the number that was lost.
fn send<const N: usize>(from: UdpSocket, datagrams: [(Vec<u8>, Option<SocketAddr>); N]) -> io::Result<u64> {
    from.set_nonblocking(true).unwrap();
    Builder::new_current_thread().enable_io().build().unwrap().block_on(async move {
        let (socket, mut sender) = (tokio::net::UdpSocket::from_std(from).unwrap(), Sender::new());
        sender.send_async(&socket, &datagrams, |(bytes, to)| (bytes, *to)).await?;
        Ok(sender.lost())
    })
}

/// Receives `count` datagrams and returns their first bytes.
fn numbers(to: &UdpSocket, count: usize) -> Vec<u8> {
    to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut memory = [0; 2000];
    let mut receive = || to.recv(&mut memory).map(|_| memory[0]).unwrap();
    (0..count).map(|_| receive()).collect()
}

#[test]
fn a_datagram_that_cannot_be_sent_is_counted_and_those_behind_it_arrive() {
    let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let good = Some(to.local_addr().unwrap());
    // Not without SO_BROADCAST; and too long.
    let denied = Some("255.255.255.255:9".parse().unwrap());
    let datagrams =
        [(vec![1; 99], good), (vec![2; 99], denied), (vec![3; 99], good), (vec![4; 70_000], good), (vec![5; 99], good)];
    assert_eq!(send(from, datagrams).unwrap(), 2);
    assert_eq!(numbers(&to, 3), [1, 3, 5]);
}

#[test]
fn the_error_of_an_earlier_datagram_costs_none() {
    let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let address = to.local_addr().unwrap();
    from.connect(address).unwrap();
    drop(to);
    from.send(&[0; 9]).unwrap();
    // The error waits in the socket, for the next call.
    std::thread::sleep(Duration::from_millis(100));
    let to = UdpSocket::bind(address).unwrap();
    assert_eq!(send(from, [1, 2, 3].map(|number| (vec![number; 99], None))).unwrap(), 0);
    assert_eq!(numbers(&to, 3), [1, 2, 3]);
}

#[test]
fn what_every_datagram_would_meet_is_an_error() {
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = send(from, [(vec![1; 99], None)]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(89), "{error}: not EDESTADDRREQ");
}
