//! Test of the server with clients over TCP, while instances do not answer. The directory that a process asks is set
//! once, so that another test would ask the same one.

use std::fs::{self, DirBuilder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::time::Duration;
use std::{env, process, thread};

use segue_control::place;
use segue_host::signals::Signals;
use segue_metrics::listen::{Listener, Place};
use segue_metrics::serve::Server;

/// Longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a server, which ends with the process, and returns its address.
fn serve() -> SocketAddr {
    let listener = Listener::open(&Place::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    let address = listener.address().unwrap();
    thread::spawn(move || {
        let server = Server {
            listeners: vec![listener],
            file: None,
            version: "1".to_owned(),
            sentence: |_, _| None,
            report: Box::new(|_| {}),
        };
        server.run(&mut Signals::new().unwrap()).unwrap();
    });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Asserts that the server answers the request of a client.
#[track_caller]
fn assert_answered(mut client: TcpStream) {
    let mut bytes = Vec::new();
    let end = client.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.starts_with("HTTP/1.1 200 "), "{end:?}: {text}");
}

#[test]
fn a_client_is_answered_though_the_instances_were_asked_for_longer_than_its_time() {
    let folder = env::temp_dir().join(format!("segue-metrics-serve-{}", process::id()));
    DirBuilder::new().mode(0o755).create(&folder).unwrap();
    place::search_only(folder.clone());
    // One instance hangs. Another one is replaced, and its successor does not answer: together they take twice the
    // three seconds of an answer, one more than a client has.
    let _mute = UnixListener::bind(folder.join("mute.sock")).unwrap();
    let replaced = UnixListener::bind(folder.join("replaced.sock")).unwrap();
    let (asked, was_asked) = mpsc::channel();
    thread::spawn(move || {
        drop(replaced.accept());
        asked.send(()).unwrap();
        let mut mute = Vec::new();
        loop {
            mute.push(replaced.accept());
        }
    });
    let address = serve();
    let (mut first, mut second, mut third) = (connect(address), connect(address), connect(address));
    // All are accepted once the last one has its answer, so that the time of the second one has begun.
    third.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_answered(third);
    first.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    was_asked.recv_timeout(PATIENCE).unwrap();
    second.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert_answered(second);
    assert_answered(first);
    fs::remove_dir_all(&folder).unwrap();
}
