//! Tests of USB/IP: the server's side byte by byte, and both ends over TCP.

#[path = "support/sys.rs"]
mod sys;

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use segue::time::Nanos;
use segue_lan78xx::driver::{Config, Driver};
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::usb::usbip::serve::Server;
use segue_lan78xx::usb::usbip::{Client, Exported, ImportError, Phase, Record, Session, list};
use segue_lan78xx::usb::{Error, Request, Setup, Speed, Transfer, Transport};

/// Longest time that a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Returns the whole output of a session whose input is `bytes` in pieces of `piece`.
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
    // The reply to the import with its record, a register, and two replies to requests to cancel a transfer.
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
fn a_transfer_completed_before_its_unlink_is_reported_first() {
    let (mut session, mut model, mut exported) = (Session::default(), Model::new(model::Config::default()), exported());
    model.inject(model::Fault::RawTransfer(vec![7; 20]));
    for part in [[import("1-1"), submit(7, true, 1, 100, [0; 8])].concat(), unlink(8, 7)] {
        session.feed(&part, &mut model, &mut exported);
        model.advance(Nanos(1));
    }
    session.collect(&mut model);
    let behind = &session.output()[320..];
    assert_eq!((&behind[..8], &behind[20..28]), (&words(&[3, 7])[..], &words(&[0, 20])[..]));
    assert_eq!((&behind[68..76], &behind[88..92]), (&words(&[4, 8])[..], &[0; 4][..]));
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
        ("an interrupt transfer without an interval", [attached.clone(), submit(1, true, 3, 16, [0; 8])].concat()),
        ("an interval below 0", [attached.clone(), words(&[1, 1, 0, 1, 3, 0, 16, 0, 0, u32::MAX, 0, 0])].concat()),
        ("an endpoint that is none", [attached.clone(), words(&[1, 1, 0, 1, 16, 0, 0, 0, 0, 0, 0, 0])].concat()),
    ] {
        assert_eq!(talk(&bytes, 1000).1, Phase::Over, "{name}");
    }
    let (answer, phase) = talk(&import("1-2"), 1000);
    assert_eq!((answer, phase), (vec![0x01, 0x11, 0, 3, 0, 0, 0, 1], Phase::Over), "a bus id that is not there");
    // Endpoints that the device does not have, and requests that it does not know.
    let stall = submit(3, true, 0, 4, [0xc0, 0x55, 0, 0, 0, 0, 4, 0]);
    let paced = words(&[1, 4, 0, 1, 3, 0, 16, 0, 0, 1, 0, 0]);
    let (answer, phase) = talk(&[attached, submit(2, true, 4, 64, [0; 8]), stall, paced].concat(), 1000);
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

#[test]
fn what_one_client_makes_the_server_hold_has_bounds_and_is_given_up_at_once() {
    let (mut session, mut model, mut exported) = (Session::default(), Model::new(model::Config::default()), exported());
    session.feed(&import("1-1"), &mut model, &mut exported);
    session.sent(usize::MAX);
    let status = |session: &mut Session, number: u32| {
        let answer = session.output().to_vec();
        session.sent(usize::MAX);
        (!answer.is_empty()).then(|| {
            assert_eq!((answer.len(), &answer[..8]), (48, &words(&[3, number])[..]));
            i32::from_be_bytes(answer[20..24].try_into().unwrap())
        })
    };
    // The transmitter is disabled, so that transfers stay pending.
    let mut held = 0;
    for number in 1..200 {
        let transfer = [submit(number, false, 2, 1 << 20, [0; 8]), vec![0; 1 << 20]].concat();
        session.feed(&transfer, &mut model, &mut exported);
        match status(&mut session, number) {
            None => held += 1,
            Some(status) => assert_eq!(status, -12, "no memory"),
        }
    }
    assert_eq!((held, model.pending()), (64, 64), "MiB");
    session.feed(&unlink(1000, 1), &mut model, &mut exported);
    session.sent(usize::MAX);
    let transfer = [submit(201, false, 2, 1 << 20, [0; 8]), vec![0; 1 << 20]].concat();
    session.feed(&transfer, &mut model, &mut exported);
    assert_eq!(status(&mut session, 201), None, "what was taken back made room");
    session.close(&mut model, &mut exported);
    assert_eq!((model.pending(), exported.is_taken), (0, false));

    let mut session = Session::default();
    session.feed(&import("1-1"), &mut model, &mut exported);
    session.sent(usize::MAX);
    let many: Vec<u8> = (1..=200_000).flat_map(|number| submit(number, true, 1, 64, [0; 8])).collect();
    session.feed(&many, &mut model, &mut exported);
    assert_eq!((model.pending(), session.output().len() / 48), (4096, 200_000 - 4096));
    session.close(&mut model, &mut exported);
    assert_eq!(model.pending(), 0);
}

#[test]
fn many_transfers_are_taken_back_without_looking_for_each() {
    let mut model = Model::new(model::Config::default());
    for id in 0..200_000 {
        model.submit(id, 0x81, model::TransferRequest::In(64));
    }
    let start = std::time::Instant::now();
    model.cancel_all();
    assert!(model.pending() == 0 && start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Runs `work` with the address of a USB/IP server of a model, which stops afterwards.
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

/// Repeats an import while the device is in use: a server notices the disconnect of its last client a little later.
fn when_free<T>(mut import: impl FnMut() -> Result<T, ImportError>) -> Result<T, ImportError> {
    let begin = Instant::now();
    loop {
        match import() {
            Err(ImportError::Refused) if begin.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

#[test]
fn a_device_is_listed_taken_once_and_free_again_when_its_client_is_gone() {
    served(Speed::High, |address| {
        let records = list(address).unwrap();
        assert_eq!((records.len(), records[0].bus_id.as_str(), records[0].identity), (1, "1-1", (0x0424, 0x7800)));
        assert_eq!(records[0].usb_speed(), Some(Speed::High));
        for _ in 0..3 {
            let first = when_free(|| Client::import(address, "1-1")).unwrap();
            assert!(matches!(Client::import(address, "1-1"), Err(ImportError::Refused)));
            drop(first);
        }
        // A silent connection does not affect others.
        let _silent = TcpStream::connect(address).unwrap();
        assert_eq!(list(address).unwrap().len(), 1);
    });
}

#[test]
fn silent_connections_block_no_client_and_are_closed() {
    use std::io::Read;
    served(Speed::High, |address| {
        let owner = Client::import(address, "1-1").unwrap();
        let started = std::time::Instant::now();
        let mut silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..20 {
            assert_eq!(list(address).unwrap().len(), 1);
        }
        let last = silent.last_mut().unwrap();
        last.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(last.read(&mut [0]).unwrap(), 0, "it was closed");
        let after = started.elapsed();
        assert!(after >= Duration::from_secs(4), "{after:?}");
        // The client that has the device keeps it.
        thread::sleep(Duration::from_secs(1));
        assert!(matches!(Client::import(address, "1-1"), Err(ImportError::Refused)));
        drop(owner);
    });
}

#[test]
fn a_server_that_drips_bytes_is_given_up_in_time() {
    use std::io::Write;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                for byte in [1_u8, 0x11, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1].iter().chain(&[b'x'; 312]) {
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(400));
                }
            });
        }
    });
    let started = std::time::Instant::now();
    let Err(ImportError::Io(error)) = list(address) else { panic!("it had no time to answer") };
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

/// Returns how often this thread has waited so far.
fn waits() -> usize {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// Tests that a server cannot take a processor from its client by sending byte by byte.
#[test]
fn a_list_that_comes_byte_by_byte_wakes_its_reader_for_many_at_a_time() {
    use std::io::{Read, Write};
    const BETWEEN: Duration = Duration::from_micros(20);
    let record = Record {
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: 3,
        identity: (0x0424, 0x7800),
        release: 0,
        class: [0; 3],
        interfaces: 0,
    };
    let mut answer = vec![0x01, 0x11, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];
    (0..9).for_each(|_| record.emit(&mut answer));
    let len = answer.len();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        for byte in answer {
            stream.write_all(&[byte]).unwrap();
            let begin = Instant::now();
            while begin.elapsed() < BETWEEN {}
        }
    });
    let (before, begin) = (waits(), Instant::now());
    let found = list(address).unwrap();
    let (woken, took) = (waits() - before, begin.elapsed());
    serving.join().unwrap();
    assert_eq!(found.len(), 9);
    // Two waits in each millisecond at most, however slowly the bytes come.
    let most = (64 + 3 * took.as_millis() as usize).min(len * 3 / 4);
    assert!(woken < most, "{woken} times for {len} bytes in {took:?}");
}

#[test]
fn a_client_whose_machine_lost_power_does_not_keep_the_device() {
    use socket2::{Domain, Protocol, SockAddr, Socket, Type};
    use std::io::Read;
    served(Speed::High, |address| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let address: std::net::SocketAddr = address.parse().unwrap();
        socket.connect(&SockAddr::from(address)).unwrap();
        socket.send(&import("1-1")).unwrap();
        let mut reply = [0; 320];
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (&socket).read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "the device is this client's");
        assert!(matches!(Client::import(address, "1-1"), Err(ImportError::Refused)));
        if !sys::vanish(socket) {
            return segue_lab::skip_this_test("no right to let a connection vanish (CAP_NET_ADMIN)");
        }
        let next = when_free(|| Client::import(address, "1-1"));
        assert!(next.is_ok(), "the device is still taken");
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

/// Length in bytes of a message without data.
const MESSAGE: usize = 48;

/// Returns a client that has imported a device, and the server's end of its connection.
fn connected() -> (Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let record = Record::parse(&[&[0; 256][..], &b"1-1"[..], &[0; 29], &words(&[1, 2, 5]), &[0; 12]].concat()).unwrap();
    (Client::of(near, record).unwrap(), far)
}

/// Submits a transfer of 64 bytes.
fn lend(client: &mut Client, endpoint: u8) {
    let request = Request { endpoint, tag: 0, len: 64, zero_packet: false };
    client.submit(Transfer::allocate(64).unwrap().lend(request));
}

/// Waits for the result of a transfer.
fn result(client: &mut Client) -> Result<usize, Error> {
    let begin = Instant::now();
    loop {
        match client.reap() {
            Some(done) => return done.result(),
            None => assert!(begin.elapsed() < PATIENCE, "no transfer has come back"),
        }
        client.sleep(1_000_000);
    }
}

#[test]
fn the_interrupt_endpoint_is_asked_for_with_an_interval_that_linux_takes() {
    use std::io::Read;
    let (mut client, mut far) = connected();
    for (endpoint, interval) in [(0x83, 8_u32), (0x81, 0)] {
        lend(&mut client, endpoint);
        let mut message = [0; MESSAGE];
        far.read_exact(&mut message).unwrap();
        assert_eq!(message[36..40], interval.to_be_bytes(), "{endpoint:#x}");
    }
}

/// Tests that a transfer comes back by the reply to its UNLINK, as Linux's server ends one that has completed before it
/// could be cancelled, and that its own reply of another server may still come.
#[test]
fn a_transfer_that_ends_by_the_reply_to_its_unlink_comes_back() {
    use std::io::{Read, Write};
    const COMPLETED: [u8; 64] = [7; 64];
    let (mut client, mut far) = connected();
    let mut number = 0;
    // More of them than are remembered.
    for _ in 0..100 {
        for (status, expected) in [(0, Error::Cancelled), (-32, Error::Stall), (-104, Error::Cancelled)] {
            for endpoint in [0x81, 2] {
                let outgoing = if endpoint == 2 { COMPLETED.len() } else { 0 };
                lend(&mut client, endpoint);
                client.cancel(endpoint);
                far.read_exact(&mut vec![0; 2 * MESSAGE + outgoing]).unwrap();
                far.write_all(&words(&[4, number + 2, 0, 0, 0, status as u32, 0, 0, 0, 0, 0, 0])).unwrap();
                assert_eq!(result(&mut client), Err(expected), "{endpoint:#x} {status}");
                if status == 0 {
                    far.write_all(&words(&[3, number + 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0])).unwrap();
                    far.write_all(&COMPLETED[outgoing..]).unwrap();
                }
                number += 2;
            }
        }
    }
    lend(&mut client, 0x81);
    far.write_all(&[words(&[3, number + 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0]), COMPLETED.to_vec()].concat()).unwrap();
    assert_eq!(result(&mut client), Ok(64), "the connection goes on");
    // The first one that ended with a stall is not remembered any more.
    far.write_all(&words(&[3, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).unwrap();
    lend(&mut client, 0x81);
    assert_eq!(result(&mut client), Err(Error::Gone));
}

#[test]
fn each_transfer_is_asked_back_once_by_a_client_whose_server_does_not_answer() {
    use std::io::Read;
    let (mut client, mut far) = connected();
    let server = thread::spawn(move || {
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).unwrap();
        bytes.len() / MESSAGE
    });
    for tag in 0..30 {
        let request = Request { endpoint: 0x81, tag, len: 2048, zero_packet: false };
        client.submit(Transfer::allocate(2048).unwrap().lend(request));
    }
    for _ in 0..1000 {
        client.cancel(0x81);
    }
    client.release();
    assert_eq!(server.join().unwrap(), 30 + 30, "messages");
}

#[test]
fn the_driver_comes_up_over_tcp_and_notices_the_end_of_its_server() {
    // With transfers under way, and with none whose completion could report it.
    for is_up in [true, false] {
        let mut driver = served(Speed::Super, |address| {
            let client = Client::import(address, "1-1").unwrap();
            let mut driver = Driver::open(client, Config::napi(Speed::Super)).unwrap();
            driver.up().unwrap();
            wait(&mut driver, |driver| driver.link().up);
            assert_eq!(waited_for(&driver), 2, "a timer and the connection");
            if !is_up {
                driver.down().unwrap();
            }
            driver
        });
        wait(&mut driver, |driver| driver.is_gone() && !driver.link().up);
        assert_eq!(driver.numbers().unplugs, 1);
        assert_eq!(waited_for(&driver), 1, "a closed connection would wake the loop for ever");
    }
}

/// Starts a server that accepts connections, sends the first `answers` bytes of its replies, and then stalls.
fn halting(server: &str, answers: usize) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (place, server) = (listener.local_addr().unwrap(), server.to_owned());
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(server).unwrap();
        let (mut back, mut forth) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut forth, &mut far);
            far.shutdown(std::net::Shutdown::Both)
        });
        let mut left = answers;
        let mut bytes = [0; 512];
        while left > 0 {
            let most = left.min(bytes.len());
            let len = back.read(&mut bytes[..most]).unwrap_or(0);
            if len == 0 || near.write_all(&bytes[..len]).is_err() {
                return;
            }
            left -= len;
        }
        // The connection stays open as long as the client does.
        let _ = std::io::copy(&mut back, &mut std::io::sink());
    });
    place
}

#[test]
fn a_guard_ends_a_set_up_wherever_it_waits() {
    use segue_lan78xx::usb::{Guard, Verdict};
    use std::io::Write;
    use std::sync::Arc;
    served(Speed::Super, |address| {
        // During the import, at the configuration, and in the middle of the register accesses.
        for answers in [0, 100, 320, 320 + 48 + 2000] {
            for verdict in [Verdict::Stopped, Verdict::TooLong] {
                let done = when_free(|| {
                    let (reader, mut stop) = std::io::pipe().unwrap();
                    let longest = Duration::from_millis(if verdict == Verdict::TooLong { 300 } else { 60_000 });
                    let guard = Arc::new(Guard::new(reader.into(), longest));
                    assert_eq!(guard.verdict(), None);
                    let began = Instant::now();
                    let signal = thread::spawn(move || {
                        thread::sleep(Duration::from_millis(300));
                        if verdict == Verdict::Stopped {
                            stop.write_all(b"!").unwrap();
                        }
                        stop
                    });
                    let place = halting(address, answers);
                    let client = Client::import_guarded(place, "1-1", Some(Arc::clone(&guard)));
                    if matches!(client, Err(ImportError::Refused)) {
                        drop(signal.join().unwrap());
                        return client.map(|_| true);
                    }
                    let is_up = client.is_ok_and(|client| Driver::open(client, Config::napi(Speed::Super)).is_ok());
                    let took = began.elapsed();
                    assert!(took < Duration::from_secs(20), "{answers} {verdict:?}: {took:?}");
                    assert_eq!(guard.verdict(), Some(verdict), "{answers}");
                    drop(signal.join().unwrap());
                    Ok(is_up)
                });
                assert!(matches!(done, Ok(false)), "{answers} {verdict:?}");
            }
        }
    });
}

#[test]
fn a_device_that_refuses_to_be_configured_is_told_from_a_server_of_another_kind() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut model = Model::new(model::Config::default());
    model.inject(model::Fault::ControlStall);
    let mut server = Server::new(listener, "1-1", model, None).unwrap();
    let client = thread::spawn(move || Client::import(address, "1-1").map(drop));
    while !client.is_finished() {
        server.round(Duration::from_millis(10)).unwrap();
    }
    let error = client.join().unwrap().unwrap_err();
    assert!(matches!(error, ImportError::Configuration(segue_lan78xx::usb::Error::Stall)), "{error:?}");
}

#[test]
fn a_device_that_is_not_accepted_gets_no_request_and_is_released() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = Server::new(listener, "1-1", Model::new(model::Config::default()), None).unwrap();
    let client = thread::spawn(move || {
        let refused = Client::import_accepted(address, "1-1", None, &|identity| identity != (0x0424, 0x7800));
        let accepts = |identity| identity == (0x0424, 0x7800);
        (refused.map(drop), when_free(|| Client::import_accepted(address, "1-1", None, &accepts)))
    });
    while !client.is_finished() {
        server.round(Duration::from_millis(10)).unwrap();
    }
    let (refused, taken) = client.join().unwrap();
    assert!(matches!(refused, Err(ImportError::Other((0x0424, 0x7800)))), "{refused:?}");
    assert!(taken.is_ok());
    // The counters are those of the second device alone.
    assert_eq!(server.model.notes().controls, 1);
}

/// Returns the descriptors in the port's epoll set (proc(5), fdinfo of an epoll).
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
