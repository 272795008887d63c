//! Tests of the traffic generators on paths without segue: intact data is accepted, changed or lost data is detected.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};

use segue_lab::{Family, LinkForm, Peer, connect, unavailable};
use segue_tests::traffic::{self, Place};
use segue_tests::{skip, test_name};

fn hosts(name: &str) -> Option<(segue_lab::Host, segue_lab::Host)> {
    if let Some(why) = unavailable() {
        skip(name, &why);
        return None;
    }
    let [a, b] = ["a", "b"].map(|name| segue_lab::Host::new(name).unwrap());
    connect(&a, &b, LinkForm::Nic).unwrap();
    Some((a, b))
}

#[test]
fn everything_passes_a_bare_link() {
    let Some((a, b)) = hosts(test_name!()) else { return };
    for family in Family::ALL {
        let [a, b] = [(&a, Peer::A), (&b, Peer::B)].map(|(host, end)| Place { host, address: end.address(0, *family) });
        traffic::everything(a, b, traffic::SHORT, 1);
        traffic::datagram_train(a, b, 1400, 40, 2);
    }
}

#[test]
fn a_lossy_link_is_found_out() {
    let Some((a, b)) = hosts(test_name!()) else { return };
    // Small packets pass, large ones do not, as behind a tunnel with a wrong MTU.
    let small = ["route", "replace", "198.18.0.0/24", "dev", "eth0", "mtu", "lock", "1400"];
    a.run("ip", &small).unwrap();
    b.run("ip", &["link", "set", "eth0", "mtu", "1300"]).unwrap();
    let [a, b] = [(&a, Peer::A), (&b, Peer::B)].map(|(host, end)| Place { host, address: end.address(0, Family::V4) });
    traffic::datagrams(a, b, &[64], 1);
    assert!(catch_unwind(AssertUnwindSafe(|| traffic::datagrams(a, b, &[1350], 1))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| traffic::pings(a, b, &[1350]))).is_err());
}

#[test]
fn a_file_with_one_other_byte_has_another_digest() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let [sent, got] = [0, 0x10].map(|damage: u8| {
        std::thread::scope(|scope| {
            let middle = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = middle.local_addr().unwrap();
            // Passes everything on, one bit changed.
            scope.spawn(move || {
                let (mut from, mut to) = (middle.accept().unwrap().0, TcpStream::connect(address).unwrap());
                let mut bytes = Vec::new();
                from.read_to_end(&mut bytes).unwrap();
                bytes[100_000] ^= damage;
                to.write_all(&bytes).unwrap();
            });
            let sending = scope.spawn(move || traffic::send_file(TcpStream::connect(at).unwrap(), 300_000, 7).unwrap());
            let got = traffic::receive_file(listener.accept().unwrap().0).unwrap();
            let sent = sending.join().unwrap();
            assert_eq!((got == sent, got.len), (damage == 0, sent.len));
            got
        })
    });
    assert_ne!(sent, got);
}
