use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use segue::time::Nanos;
use segue_lan78xx::model::{self, Model};
use segue_lan78xx::usb::usbip::{Client, Exported, Phase, Record, Session};
use segue_lan78xx::usb::{Request, Setup, Transfer, Transport};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a session with its model may hold without input.
const FREE: usize = 4 << 20;
/// Largest number of bytes of pending transfers of one client (16 MiB in the kernel's usbfs; a message of 48 bytes
/// requests them).
const HELD: usize = 64 << 20;
/// Length of each transfer of the client, bytes.
const TRANSFER: usize = 2048;
/// Largest number of bytes that the server's side writes at once, so that no socket buffer fills up.
const MOST: usize = 32 << 10;

/// Passes arbitrary bytes of a client to the server's side of a connection, in pieces of the length that the first byte
/// names. Memory and output are bounded by what the client asks for, and the outcome does not depend on the pieces.
pub fn usbip_server(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else { return };
    let talk = |piece: usize| {
        let mut model = Model::new(model::Config::default());
        let mut exported = Exported { bus_id: "1-1".into(), is_taken: false };
        let mut session = Session::default();
        let mut replies = 0;
        for (number, part) in data.chunks(piece).enumerate() {
            session.feed(part, &mut model, &mut exported);
            model.advance(Nanos(number as u64));
            session.collect(&mut model);
            replies += session.output().len();
            let len = session.output().len();
            session.sent(len);
        }
        let phase = session.phase();
        session.close(&mut model, &mut exported);
        assert!(!exported.is_taken && model.pending() == 0, "a connection that has ended holds nothing");
        (phase, replies)
    };
    // One message may ask for a transfer that fills the limit, and each reply carries what was asked for.
    let (phase, _) = bounded(data.len(), FREE + 2 * HELD, || talk(data.len().max(1)));
    let (again, _) = bounded(data.len(), FREE + 2 * HELD, || talk(usize::from(piece).max(1)));
    assert_eq!(phase == Phase::Greeting, again == Phase::Greeting, "pieces of {piece}");
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
/// Six bytes say how the client behaves; the rest is what the server sends.
pub fn usbip_client(data: &[u8]) {
    let mut input = Input::new(data);
    let how: [u8; 6] = std::array::from_fn(|_| input.u8());
    let answers = input.rest();
    let answers = &answers[..answers.len().min(MOST)];
    let parsed = Record::parse(answers);
    if let Some(record) = parsed {
        let mut bytes = Vec::new();
        record.emit(&mut bytes);
        assert_eq!(bytes.len(), segue_lan78xx::usb::usbip::RECORD_LEN);
    }
    let Ok((near, mut far)) = UnixStream::pair() else { return };
    near.set_nonblocking(true).expect("a socket");
    // What the client asks is never read, and fits the buffer; a socket of another family serves as well as TCP.
    far.write_all(answers).expect("an empty buffer");
    far.shutdown(std::net::Shutdown::Write).expect("a socket");
    let stream = TcpStream::from(OwnedFd::from(near));
    bounded(data.len(), FREE, || {
        let Ok(mut client) = Client::of(stream, record()) else { return };
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
        while let Some(done) = client.reap() {
            assert!(done.received().len() <= done.request().len.min(TRANSFER));
            waiting -= 1;
        }
        assert_eq!(waiting, 0, "every transfer has come back");
        assert!(client.is_gone());
    });
    let _ = far.set_nonblocking(true).map(|()| far.read(&mut [0; 512]));
}
