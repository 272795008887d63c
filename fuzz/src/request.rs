//! Requests to the server of metrics.

use segue_metrics::request::{Head, Page, Progress, REQUEST_LEN};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that a reader may hold for the shortest request.
const FREE: usize = 64 << 10;
/// Most bytes of one read of the server.
const READ: usize = 2048;

/// Passes arbitrary bytes in pieces, which a byte with their length precedes (in units of eight bytes; 0 for as many as
/// the server reads at once), to the reader of a request's head: it is whole at the first empty line, however it comes,
/// and too long without one soon after its limit. A whole one is refused, or asks for a page that its text names.
pub fn request(data: &[u8]) {
    bounded(data.len(), FREE, || {
        let mut input = Input::new(data);
        let (mut head, mut text, mut progress) = (Head::default(), Vec::new(), Progress::Partial);
        while progress == Progress::Partial && !input.is_empty() {
            let len = usize::from(input.u8()) * 8;
            let piece = input.take(if len == 0 { READ } else { len });
            text.extend_from_slice(piece);
            progress = head.add(piece);
        }
        let mut at_once = Head::default();
        assert_eq!(at_once.add(&text), progress, "in pieces");
        let ends = text.windows(2).any(|end| end == b"\n\n") || text.windows(4).any(|end| end == b"\r\n\r\n");
        assert_eq!(progress == Progress::Whole, ends);
        assert_eq!(progress == Progress::TooLong, !ends && text.len() > REQUEST_LEN);
        assert!(text.len() <= REQUEST_LEN + READ);
        let parsed = head.parse();
        assert_eq!(at_once.parse(), parsed);
        let Ok(request) = parsed else { return };
        let text = String::from_utf8_lossy(&text);
        let named = match request.page {
            Page::Metrics(_) => "/metrics",
            Page::Health => "/healthz",
            Page::Index => "/",
            Page::Missing => "",
        };
        assert!(text.contains(named) && text.contains(if request.is_head { "HEAD" } else { "GET" }), "{text}");
        // What a client of the standard would send for it.
        let accept = match request.page {
            Page::Metrics(format) => format.media_type(),
            _ => "*/*",
        };
        let method = if request.is_head { "HEAD" } else { "GET" };
        let path = if named.is_empty() { "/nothing" } else { named };
        let mut plain = Head::default();
        assert_eq!(
            plain.add(format!("{method} {path} HTTP/1.1\r\nAccept: {accept}\r\n\r\n").as_bytes()),
            Progress::Whole
        );
        assert_eq!(plain.parse(), Ok(request));
    });
}
