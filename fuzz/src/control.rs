use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use segue_control::protocol::{Request, Response};
use segue_host::sys::{Want, poll};
use segue_service::handover::{Line, Ports, sys};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a parser may hold for the shortest line.
const FREE: usize = 64 << 10;
/// Largest number of descriptors of a handover.
const MOST: usize = 4;

/// Parses an arbitrary line as a request to an instance, and as its answer: a parsed message is written as an
/// equivalent line.
pub fn control(data: &[u8]) {
    bounded(data.len(), FREE, || {
        if let Ok(request) = Request::parse(data) {
            let line = request.line();
            assert!(!line.trim_end().contains('\n'), "one request, one line");
            assert_eq!(Request::parse(line.trim_end().as_bytes()).ok(), Some(request));
        }
    });
    // An answer has numbers, each of which takes more memory than its digits.
    bounded(data.len(), FREE + 200 * data.len(), || {
        if let Ok(response) = serde_json::from_slice::<Response>(data) {
            let line = response.line();
            assert!(serde_json::from_str::<Response>(&line).is_ok(), "{line}");
        }
    });
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
        }
        while line.receive(Duration::ZERO).is_ok() {}
    });
    // The reading end sees the end of the pipe once no copy of the other one is left.
    drop((line, writer));
    let _ = poll(&[(reader.as_fd(), Want::Read)], Duration::from_secs(60));
    segue_host::sys::set_nonblocking(reader.as_fd()).expect("a pipe");
    let left = io::Read::read(&mut &reader, &mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(left, Ok(0), "a descriptor stayed open");
}
