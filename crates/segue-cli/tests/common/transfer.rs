//! The transfer of bytes over a TCP connection between two hosts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use segue_lab::Host;

/// Sends `data` from one host to `address` of the other and returns the received bytes. Each step of it may last
/// `patience`.
pub(crate) fn transfer(from: &Host, to: &Host, address: SocketAddr, data: &[u8], patience: Duration) -> Vec<u8> {
    let listener = to.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let mut client = from.enter(|| TcpStream::connect_timeout(&address, patience)).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(patience)).unwrap();
    client.set_write_timeout(Some(patience)).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut got = Vec::new();
            server.read_to_end(&mut got).map(|_| got)
        });
        client.write_all(data).unwrap();
        drop(client);
        reader.join().unwrap().unwrap()
    })
}
