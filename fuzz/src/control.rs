use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use segue_control::protocol::{Failure, Request, Response, ServiceRequest, ServiceResponse};
use segue_host::sys::{Want, poll};
use segue_service::handover::{Line, Ports, Record, sys};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a parser may hold for the shortest line.
const FREE: usize = 64 << 10;
/// Largest number of descriptors of a handover.
const MOST: usize = 4;

/// Parses an arbitrary line as a request to an instance or to a service, and as the answer of either: a parsed message
/// is written as an equivalent line, and a refusal is one line, too.
pub fn control(data: &[u8]) {
    match bounded(data.len(), FREE, || Request::parse(data)) {
        Ok(request) => {
            let line = request.line();
            assert!(!line.trim_end().contains('\n'), "one request, one line");
            assert_eq!(Request::parse(line.trim_end().as_bytes()).ok(), Some(request));
        }
        Err(error) => {
            let line = Response::from(error).line();
            let Ok(Response::Error(failure)) = Response::parse(line.as_bytes()) else { panic!("{line}") };
            keeps(*failure);
        }
    }
    match bounded(data.len(), FREE, || ServiceRequest::parse(data)) {
        Ok(request) => assert_eq!(ServiceRequest::parse(request.line().as_bytes()).ok(), Some(request)),
        Err(error) => {
            for line in [ServiceResponse::refused(&error, "no request").line(), ServiceResponse::from(error).line()] {
                assert!(!line.contains('\n') && ServiceResponse::parse(line.as_bytes()).is_ok(), "{line}");
            }
        }
    }
    // What an answer is written as may be shorter, by spaces and unknown keys, and then have no room for its values.
    if let Ok(response) = bounded(data.len(), FREE, || Response::parse(data)) {
        let line = response.line();
        let again = bounded(line.len(), FREE, || Response::parse(line.as_bytes()));
        assert!(again.is_ok() || line.len() < data.len(), "{line}");
        if let Response::Error(failure) = response {
            keeps(*failure);
        }
    }
    if let Ok(response) = bounded(data.len(), FREE, || ServiceResponse::parse(data)) {
        let line = response.line();
        let again = bounded(line.len(), FREE, || ServiceResponse::parse(line.as_bytes()));
        assert!(again.is_ok() || line.len() < data.len(), "{line}");
        let text = match response {
            ServiceResponse::Reloaded(reloaded) => reloaded.text(),
            ServiceResponse::Upgraded(upgraded) => upgraded.text(),
            ServiceResponse::Error(failure) => return keeps(*failure),
            ServiceResponse::Service(_) | ServiceResponse::Refused(_) => String::new(),
        };
        // An instance without a name and a reason is a few words.
        assert!(text.len() <= 500 + 20 * data.len(), "{text}");
    }
}

/// Checks that a refusal stays what it is as an error, except for a kind that is not known.
fn keeps(failure: Failure) {
    let known = Failure::from(failure.clone().into_error());
    assert_eq!(Failure { kind: known.kind.clone(), ..failure }, known);
    assert_eq!(Failure::from(known.clone().into_error()), known);
}

/// Sends arbitrary messages instead of those of a handover: invalid ones are refused, and no descriptor of a refused
/// one stays open.
///
/// Before each message a byte says how long it is, and another whether it has a descriptor (bit 0).
pub fn handover(data: &[u8]) {
    let Ok((line, far)) = Line::pair() else { return };
    let far = UnixStream::from(far);
    let (reader, writer) = io::pipe().expect("a pipe");
    let mut input = Input::new(data);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let (len, how) = (usize::from(input.u8()), input.u8());
        // Most messages have the right length.
        let len = if len < 200 { 24 } else { len - 200 };
        let mut bytes = input.take(len).to_vec();
        bytes.resize(len, 0);
        if sys::send(&far, &bytes, (how & 1 != 0).then(|| writer.as_fd())).is_err() {
            break;
        }
    }
    drop(far);
    bounded(data.len(), FREE, || {
        if let Ok(ports) = Ports::take(&line, MOST) {
            let sockets = ports.sockets.receive.len() + ports.sockets.send.len();
            assert!(ports.interfaces.len() + sockets <= MOST);
            assert!(ports.interfaces.iter().all(|(name, _)| name.len() < 24));
            hand_on(ports);
        }
        while line.receive(Duration::ZERO).is_ok() {}
    });
    request_ports(data);
    // The reading end sees the end of the pipe once no copy of the other one is left.
    drop((line, writer));
    let _ = poll(&[(reader.as_fd(), Want::Read)], Duration::from_secs(60));
    segue_host::sys::set_nonblocking(reader.as_fd()).expect("a pipe");
    let left = io::Read::read(&mut &reader, &mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(left, Ok(0), "a descriptor stayed open");
}

/// Requests ports over a line on which arbitrary messages are left, of which none becomes part of the answer: that is
/// the end of the line here.
fn request_ports(data: &[u8]) {
    let Ok((line, far)) = Line::pair() else { return };
    let far = UnixStream::from(far);
    for bytes in data.chunks(24).take(64) {
        sys::send(&far, bytes, None).expect("an empty line has room");
    }
    far.shutdown(Shutdown::Write).expect("a socket");
    let found = bounded(data.len(), FREE, || Ports::request(&line, MOST)).map_err(|error| error.kind());
    assert_eq!(found.err(), Some(io::ErrorKind::UnexpectedEof));
    let mut bytes = [0; 64];
    assert_eq!(sys::receive(&far, &mut bytes).expect("a request").0, 24);
    assert_eq!(bytes[0], b'?');
}

/// Hands ports on over another line, where the same ones arrive. Names longer than those of interfaces are cut.
fn hand_on(mut ports: Ports) {
    let Ok((near, far)) = Line::pair() else { return };
    ports.give(&near).expect("an empty line has room");
    let far = UnixStream::from(far);
    let mut records = Vec::new();
    loop {
        let mut bytes = [0; 64];
        let (len, fd) = sys::receive(&far, &mut bytes).expect("a whole list");
        records.push((bytes[0], fd.is_some()));
        assert_eq!(len, 24);
        if bytes[0] == b'.' {
            break;
        }
    }
    let count = |kind: u8| records.iter().filter(|(its, has_fd)| *its == kind && *has_fd).count();
    let sockets = [ports.sockets.receive.len(), ports.sockets.send.len()];
    assert_eq!([count(b'i'), count(b'p')], [ports.interfaces.len(), usize::from(ports.peers.is_some())]);
    assert_eq!([count(b'r'), count(b's')], sockets);
    for (record, kind) in [(Record::Request, b'?'), (Record::Go, b'!'), (Record::Sequence("sg0".to_owned(), 7), b'n')] {
        near.say_patiently(&record).expect("an empty line has room");
        let mut bytes = [0; 64];
        assert_eq!(sys::receive(&far, &mut bytes).expect("a record").0, 24);
        assert_eq!(bytes[0], kind);
    }
    // Nothing comes from the other end, and once that is gone nothing can be sent.
    assert_eq!(near.receive(Duration::ZERO).map_err(|error| error.kind()).err(), Some(io::ErrorKind::TimedOut));
    let error = near.receive(Duration::ZERO).expect_err("nothing came");
    assert!(sys::is_passing(&error), "{error}");
    drop(far);
    let ready = poll(&[(near.as_fd(), Want::Read)], Duration::ZERO).expect("a line");
    assert!(ready[0], "the end of a line can be read");
    let error = near.say(&Record::Go, None).expect_err("the other end is gone");
    assert!(!sys::is_passing(&error), "{error}");
    let names: Vec<String> = ports.interfaces.iter().map(|(name, _)| name.clone()).collect();
    assert!(names.iter().all(|name| ports.interface(name).is_some()) && ports.interface("sg0").is_none());
    assert_eq!(ports.outside().is_some(), sockets[0] > 0);
}
