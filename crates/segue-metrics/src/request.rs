//! The head of an HTTP request: its length, and what it asks for. Nothing here does I/O.

use crate::text::Format;

/// Longest head of a request, bytes. One that ends in the read that goes past it is answered all the same.
pub const REQUEST_LEN: usize = 8192;

/// A head that is being received.
#[derive(Clone, Debug, Default)]
pub struct Head {
    bytes: Vec<u8>,
}

/// The state of a head after a part of it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More of it is to come.
    Partial,
    /// The empty line after it has been received.
    Whole,
    /// More than [`REQUEST_LEN`] bytes have been received.
    TooLong,
}

/// A document that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The metrics, in a text format.
    Metrics(Format),
    /// Whether all is well.
    Health,
    /// The list of documents.
    Index,
    /// A document that there is not.
    Missing,
}

/// A request that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The document that is asked for.
    pub page: Page,
    /// Whether only the head of the answer is asked for.
    pub is_head: bool,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The first line is not that of a request of HTTP/1.
    Syntax,
    /// A method other than GET and HEAD.
    Method,
}

impl Head {
    /// Appends bytes of a client.
    pub fn add(&mut self, bytes: &[u8]) -> Progress {
        self.bytes.extend_from_slice(bytes);
        let ends =
            self.bytes.windows(4).any(|end| end == b"\r\n\r\n") || self.bytes.windows(2).any(|end| end == b"\n\n");
        match self.bytes.len() {
            _ if ends => Progress::Whole,
            len if len > REQUEST_LEN => Progress::TooLong,
            _ => Progress::Partial,
        }
    }

    /// Parses the head.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub fn parse(&self) -> Result<Request, Refusal> {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut lines = text.lines();
        let mut first = lines.next().unwrap_or_default().split_ascii_whitespace();
        let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
        if !first.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
            return Err(Refusal::Syntax);
        }
        if method != "GET" && method != "HEAD" {
            return Err(Refusal::Method);
        }
        let accept =
            lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("accept"));
        let page = match target.split('?').next().unwrap_or_default() {
            "/metrics" => Page::Metrics(Format::accepted(accept.map_or("", |(_, value)| value))),
            "/healthz" => Page::Health,
            "/" => Page::Index,
            _ => Page::Missing,
        };
        Ok(Request { page, is_head: method == "HEAD" })
    }
}
