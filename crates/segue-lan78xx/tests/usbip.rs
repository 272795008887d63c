//! The server's side of USB/IP, byte by byte, and both ends over TCP.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use segue::time::Nanos;
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::usb::usbip::serve::Server;
use segue_lan78xx::usb::usbip::{Client, Exported, ImportError, Phase, Session, list};
use segue_lan78xx::usb::{Request, Setup, Speed, Transfer, Transport};

fn exported() -> Exported {
    Exported { bus_id: "1-1".into(), is_taken: false }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn import(bus_id: &str) -> Vec<u8> {
    let mut bytes = vec![0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0];
    bytes.extend_from_slice(bus_id.as_bytes());
    bytes.resize(40, 0);
    bytes
}

fn submit(number: u32, input: bool, ep: u32, len: u32, setup: [u8; 8]) -> Vec<u8> {
    [words(&[1, number, 0x1_0002, u32::from(input), ep, 0, len, 0, 0xffff_ffff, 0]), setup.to_vec()].concat()
}

fn unlink(number: u32, target: u32) -> Vec<u8> {
    [words(&[2, number, 0x1_0002, 0, 0, target]), vec![0; 24]].concat()
}

const READ_ID: [u8; 8] = [0xc0, 0xa1, 0, 0, 0, 0, 4, 0];

/// Everything that a session answers to `bytes` in pieces of `piece`.
fn talk(bytes: &[u8], piece: usize) -> (Vec<u8>, Phase) {
    let (mut session, mut model, mut exported) = (Session::default(), Model::new(model::Config::default()), exported());
    for part in bytes.chunks(piece) {
        session.feed(part, &mut model, &mut exported);
        model.advance(Nanos(1));
        session.collect(&mut model);
    }
    (session.output().to_vec(), session.phase())
}

#[test]
fn messages_may_be_cut_anywhere() {
    let wait_in = submit(7, true, 1, 16_384, [0; 8]);
    let bytes = [import("1-1"), wait_in, submit(8, true, 0, 4, READ_ID), unlink(9, 7), unlink(10, 7)].concat();
    let (whole, phase) = talk(&bytes, bytes.len());
    assert_eq!(phase, Phase::Attached);
    // The import with its record, a register, and two answers to requests to take a transfer back.
    assert_eq!(whole.len(), 8 + 312 + 48 + 4 + 48 + 48);
    for piece in 1..60 {
        assert_eq!(talk(&bytes, piece).0, whole, "pieces of {piece}");
    }
    let behind = &whole[320..];
    assert_eq!(behind[..8], words(&[3, 8]), "control goes on while bulk-in waits");
    assert_eq!(behind[20..28], words(&[0, 4]));
    assert_eq!(behind[48..52], 0x7800_0002_u32.to_le_bytes());
    assert_eq!(behind[52..60], words(&[4, 9]));
    assert_eq!(behind[72..76], (-104_i32).to_be_bytes(), "taken back");
    assert_eq!(behind[120..124], [0; 4], "the second time it is not there any more");
}

#[test]
fn what_makes_no_sense_ends_the_connection_and_nothing_else() {
    let attached = import("1-1");
    for (name, bytes) in [
        ("another version", vec![0x01, 0x06, 0x80, 0x03, 0, 0, 0, 0]),
        ("an unknown operation", vec![0x01, 0x11, 0x80, 0x07, 0, 0, 0, 0]),
        ("an unknown command", [attached.clone(), words(&[5; 12])].concat()),
        ("a length past all bounds", [attached.clone(), submit(1, false, 2, 0x7fff_ffff, [0; 8])].concat()),
        ("a direction that is none", [attached.clone(), words(&[1, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0])].concat()),
        ("an endpoint that is none", [attached.clone(), words(&[1, 1, 0, 1, 16, 0, 0, 0, 0, 0, 0, 0])].concat()),
    ] {
        assert_eq!(talk(&bytes, 1000).1, Phase::Over, "{name}");
    }
    let (answer, phase) = talk(&import("1-2"), 1000);
    assert_eq!((answer, phase), (vec![0x01, 0x11, 0, 3, 0, 0, 0, 1], Phase::Over), "a bus id that is not there");
    // Endpoints that the device does not have, and requests that it does not know.
    let stall = submit(3, true, 0, 4, [0xc0, 0x55, 0, 0, 0, 0, 4, 0]);
    let (answer, phase) = talk(&[attached, submit(2, true, 4, 64, [0; 8]), stall].concat(), 1000);
    assert_eq!(phase, Phase::Attached);
    let statuses: Vec<i32> =
        answer[320..].chunks(48).map(|one| i32::from_be_bytes(one[20..24].try_into().unwrap())).collect();
    assert_eq!(statuses, [-32, -71]);
}

#[test]
fn random_bytes_never_do_more_than_end_the_connection() {
    let mut rng = segue_testkit::Rng::new(11);
    for round in 0..3000 {
        let mut bytes = import("1-1");
        for _ in 0..rng.next_u64() % 20 {
            let mut message = submit(
                rng.next_u64() as u32 % 8,
                rng.next_u64().is_multiple_of(2),
                rng.next_u64() as u32 % 4,
                64,
                READ_ID,
            );
            for _ in 0..rng.next_u64() % 4 {
                let at = rng.next_u64() as usize % message.len();
                message[at] = rng.next_u64() as u8;
            }
            bytes.extend(message);
        }
        talk(&bytes, 1 + round % 97);
    }
}

/// A model behind a TCP port until the function returns.
fn served<R>(speed: Speed, work: impl FnOnce(&str) -> R) -> R {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let model = Model::new(model::Config { speed, negotiation: 1_000_000, ..model::Config::default() });
            let mut server = Server::new(listener, "1-1", model, None).unwrap();
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                server.round(Duration::from_millis(20)).unwrap();
            }
        });
        let result = work(&address);
        drop(stop);
        result
    })
}

#[test]
fn a_device_is_listed_taken_once_and_free_again_when_its_client_is_gone() {
    served(Speed::High, |address| {
        let records = list(address).unwrap();
        assert_eq!((records.len(), records[0].bus_id.as_str(), records[0].identity), (1, "1-1", (0x0424, 0x7800)));
        assert_eq!(records[0].usb_speed(), Some(Speed::High));
        for _ in 0..3 {
            let first = Client::import(address, "1-1").unwrap();
            assert!(matches!(Client::import(address, "1-1"), Err(ImportError::Refused)));
            drop(first);
            // The server hears of it a little later.
            thread::sleep(Duration::from_millis(100));
        }
        // One that says nothing is no harm to others.
        let _silent = TcpStream::connect(address).unwrap();
        assert_eq!(list(address).unwrap().len(), 1);
    });
}

#[test]
fn thirty_transfers_wait_while_control_goes_on_and_come_back_when_cancelled() {
    served(Speed::Super, |address| {
        let mut client = Client::import(address, "1-1").unwrap();
        for tag in 0..30 {
            let request = Request { endpoint: 0x81, tag, len: 32 << 10, zero_packet: false };
            client.submit(Transfer::allocate(32 << 10).unwrap().lend(request));
        }
        let setup = Setup { request_type: 0xc0, request: 0xa1, value: 0, index: 0, length: 4 };
        for _ in 0..100 {
            let mut bytes = [0; 4];
            assert_eq!(client.control_in(setup, &mut bytes), Ok(4));
            assert_eq!(u32::from_le_bytes(bytes) >> 16, 0x7800);
        }
        client.cancel(0x81);
        let mut tags = Vec::new();
        for _ in 0..1000 {
            while let Some(done) = client.reap() {
                assert_eq!(done.result(), Err(segue_lan78xx::usb::Error::Cancelled));
                tags.push(done.request().tag);
            }
            if tags.len() == 30 {
                break;
            }
            client.sleep(1_000_000);
        }
        assert_eq!(tags, (0..30).collect::<Vec<_>>());
    });
}

#[test]
fn the_driver_comes_up_over_tcp_and_hears_of_a_server_that_ends() {
    let mut driver = served(Speed::Super, |address| {
        let client = Client::import(address, "1-1").unwrap();
        let mut driver = Driver::open(client, Config::napi(Speed::Super)).unwrap();
        driver.up().unwrap();
        wait(&mut driver, |driver| driver.link().up);
        assert_eq!(waited_for(&driver), 2, "a timer and the connection");
        driver
    });
    wait(&mut driver, |driver| driver.is_gone() && !driver.link().up);
    assert_eq!(waited_for(&driver), 1, "a closed connection would wake the loop for ever");
}

/// Descriptors that the port's own waits for (proc(5), fdinfo of an epoll).
fn waited_for(driver: &Driver<Client>) -> usize {
    use segue_port::Port;
    use std::os::fd::AsRawFd;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", driver.fd().as_raw_fd())).unwrap();
    info.lines().filter(|line| line.starts_with("tfd:")).count()
}

fn wait(driver: &mut Driver<Client>, done: impl Fn(&Driver<Client>) -> bool) {
    use segue_port::Port;
    let mut rx = segue_port::RxBatch::new(8);
    for _ in 0..5000 {
        driver.receive(&mut rx, 64).unwrap();
        if done(driver) {
            return;
        }
        driver.usb().sleep(1_000_000);
    }
    panic!("it never came");
}
