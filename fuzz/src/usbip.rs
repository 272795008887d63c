use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use segue::time::Nanos;
use segue_host::sys::{Want, poll};
use segue_lan78xx::model::{self, Fault, Model};
use segue_lan78xx::regs::VENDOR;
use segue_lan78xx::usb::usbip::{Client, Exported, Phase, RECORD_LEN, Record, Session, list};
use segue_lan78xx::usb::{Guard, Request, Setup, Speed, Transfer, Transport};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a session with its model may hold without input.
const FREE: usize = 1 << 20;
/// Largest number of bytes of pending transfers of one client (16 MiB in the kernel's usbfs; a message of 48 bytes
/// requests them).
const HELD: usize = 64 << 20;
/// Length of each transfer of the client, bytes.
const TRANSFER: usize = 2048;
/// Largest number of bytes that the server's side writes at once, so that no socket buffer fills up.
const MOST: usize = 32 << 10;

/// Passes arbitrary bytes of a client to the server's side of a connection, in pieces of the length that the first byte
/// names. Memory is bounded by what the client asks for, and the outcome does not depend on the pieces.
///
/// A last byte from 0x80 to 0xbf says more about the device: the speed of its bus (bits 0 and 1), whether another
/// client has it (bit 2), and the number of transfers after which it is unplugged (bits 3 to 5).
pub fn usbip_server(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else { return };
    let how = data.last().filter(|how| **how & 0xc0 == 0x80).map_or(0, |how| how & 0x3f);
    let speed = [Speed::Super, Speed::High, Speed::Full, Speed::Super][usize::from(how & 3)];
    let is_taken = how & 4 != 0;
    let talk = |piece: usize| {
        let mut model = Model::new(model::Config { speed, ..model::Config::default() });
        if how >> 3 != 0 {
            model.inject(Fault::UnplugAfter(u32::from(how >> 3) - 1));
        }
        let mut exported = Exported { bus_id: "1-1".into(), is_taken };
        let mut session = Session::default();
        let mut replies = 0;
        for (number, part) in data.chunks(piece).enumerate() {
            session.feed(part, &mut model, &mut exported);
            model.advance(Nanos(number as u64));
            session.collect(&mut model);
            if replies == 0 {
                is_told(session.output(), speed);
            }
            let len = session.output().len();
            replies += len;
            // A socket may take a part of it.
            let part = len - len / 3;
            session.sent(part);
            assert_eq!(session.output().len(), len - part);
            session.sent(len - part);
        }
        let phase = session.phase();
        session.close(&mut model, &mut exported);
        let left = (exported.is_taken, model.pending());
        assert_eq!(left, (is_taken, 0), "a connection that has ended holds nothing");
        (phase, replies)
    };
    // One message may ask for a transfer that fills the limit, and each reply carries what was asked for.
    let (phase, _) = bounded(data.len(), FREE + 2 * HELD, || talk(data.len().max(1)));
    let (again, _) = bounded(data.len(), FREE + 2 * HELD, || talk(usize::from(piece).max(1)));
    assert_eq!(phase == Phase::Greeting, again == Phase::Greeting, "pieces of {piece}");
}

/// Checks the record of the device in the first reply, if that is one to an import or a list.
fn is_told(output: &[u8], speed: Speed) {
    let at = match output {
        [1, 0x11, 0, 3, 0, 0, 0, 0, ..] => 8,
        [1, 0x11, 0, 5, 0, 0, 0, 0, ..] => 12,
        _ => return,
    };
    let Some(record) = output.get(at..).and_then(Record::parse) else { return };
    assert_eq!((record.bus_id.as_str(), record.identity.0, record.usb_speed()), ("1-1", VENDOR, Some(speed)));
    let mut bytes = Vec::new();
    record.emit(&mut bytes);
    assert_eq!(output.get(at..at + RECORD_LEN), Some(&bytes[..]));
}

fn record() -> Record {
    Record {
        bus_id: "1-1".to_owned(),
        bus: 1,
        device: 2,
        speed: 3,
        identity: (0x0424, 0x7800),
        release: 0,
        class: [0xff; 3],
        interfaces: 1,
    }
}

/// Passes arbitrary bytes of a server to a client that has some transfers and a control request waiting. Each transfer
/// comes back once, with no more bytes than it has, and the connection's end is no wait.
///
/// Six bytes say how the client behaves; the rest is what the server sends. By the last of the six the client is one
/// that lists the server's devices (bit 1), or imports one (bit 2), over TCP. There the answers after the first record
/// may come later (bit 3). An import may be guarded (bit 4) by a guard that has stopped (5) or whose time is over (6),
/// and may want one kind of device alone (7).
pub fn usbip_client(data: &[u8]) {
    let mut input = Input::new(data);
    let how: [u8; 6] = std::array::from_fn(|_| input.u8());
    let answers = input.rest();
    let answers = &answers[..answers.len().min(MOST)];
    if how[5] & 6 != 0 {
        return bounded(data.len(), FREE, || greet(answers, how[5]));
    }
    let parsed = Record::parse(answers);
    if let Some(record) = parsed {
        let mut bytes = Vec::new();
        record.emit(&mut bytes);
        assert_eq!(bytes.len(), RECORD_LEN);
        assert_eq!(record.usb_speed().is_some(), matches!(record.speed, 2 | 3 | 5 | 6));
    }
    let Ok((near, mut far)) = UnixStream::pair() else { return };
    near.set_nonblocking(true).expect("a socket");
    // What the client asks is never read, and fits the buffer; a socket of another family serves as well as TCP.
    far.write_all(answers).expect("an empty buffer");
    far.shutdown(Shutdown::Write).expect("a socket");
    let stream = TcpStream::from(OwnedFd::from(near));
    bounded(data.len(), FREE, || {
        let Ok(mut client) = Client::of(stream, record()) else { return };
        assert_eq!((client.identity(), client.speed()), (record().identity, Speed::High));
        assert!(client.fd().is_some() && client.deadline().is_none());
        let mut waiting = 0;
        for (at, byte) in how.iter().take(4).enumerate() {
            let endpoint = if byte & 1 != 0 { 0x81 } else { 2 };
            let request = Request { endpoint, len: usize::from(*byte) * 8, tag: at as u32, zero_packet: byte & 2 != 0 };
            let Ok(transfer) = Transfer::allocate(TRANSFER) else { return };
            client.submit(transfer.lend(request));
            waiting += 1;
            if byte & 4 != 0 {
                client.cancel(endpoint);
            }
        }
        let setup = Setup { request_type: 0xc0, request: 0xa1, value: 0, index: u16::from(how[4]), length: 4 };
        let mut bytes = [0; 4];
        assert!(client.control_in(setup, &mut bytes).unwrap_or(0) <= bytes.len());
        if how[5] & 1 != 0 {
            let _ = client.clear_halt(0x81);
        }
        let (is_due, before) = (client.deadline().is_some(), waiting);
        while let Some(done) = client.reap() {
            assert!(done.received().len() <= done.request().len.min(TRANSFER));
            waiting -= 1;
        }
        assert!(!is_due || before > 0, "nothing is due where nothing waits");
        assert_eq!(waiting, 0, "every transfer has come back");
        assert!(client.is_gone());
        let begin = client.now();
        client.sleep(1);
        assert!(client.now() > begin, "the clock of a client goes on");
        client.release();
    });
    let _ = far.set_nonblocking(true).map(|()| far.read(&mut [0; 512]));
}

/// Sends arbitrary bytes over TCP to a client that imports a device, or lists all of them.
fn greet(answers: &[u8], how: u8) {
    let imports = how & 4 != 0;
    let Ok((stop, mut stopper)) = io::pipe() else { return };
    if how & 32 != 0 {
        stopper.write_all(b"!").expect("an empty pipe");
    }
    let longest = if how & 64 != 0 { Duration::ZERO } else { Duration::from_secs(60) };
    let guard = (how & 16 != 0).then(|| Arc::new(Guard::new(OwnedFd::from(stop), longest)));
    let accepts = |identity: (u16, u16)| how & 128 == 0 || identity == (VENDOR, 0x7800);
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) else { return };
    let address = listener.local_addr().expect("a bound socket");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = poll(&[(listener.as_fd(), Want::Read)], Duration::from_secs(10));
            let is_set = listener.set_nonblocking(true).is_ok();
            let Some((mut server, _)) = listener.accept().ok().filter(|_| is_set) else { return };
            let len = if how & 8 != 0 { answers.len().min(8 + RECORD_LEN) } else { answers.len() };
            let (first, rest) = answers.split_at(len);
            let _ = server.write_all(first);
            if !rest.is_empty() {
                std::thread::sleep(Duration::from_millis(2));
                let _ = server.write_all(rest);
            }
            let _ = server.shutdown(Shutdown::Write);
            // What the client asks is read: a connection with unread bytes would be reset.
            let _ = io::copy(&mut server, &mut io::sink());
        });
        let error = if imports {
            let imported = if how & 0xf0 == 0 {
                Client::import(address, "1-1")
            } else {
                Client::import_accepted(address, "1-1", guard, &accepts)
            };
            match imported {
                Ok(client) => {
                    assert!(client.into_parts().1.usb_speed().is_some());
                    None
                }
                Err(error) => Some(error),
            }
        } else {
            match list(address) {
                Ok(records) => {
                    assert!(records.len() * RECORD_LEN <= answers.len());
                    None
                }
                Err(error) => Some(error),
            }
        };
        assert!(error.is_none_or(|error| !error.to_string().is_empty()));
        // A server to which the client did not get still waits for one.
        let _ = TcpStream::connect(address);
    });
}
