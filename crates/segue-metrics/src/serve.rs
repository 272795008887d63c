//! The HTTP server: `GET /metrics` and `GET /healthz` over HTTP/1.1, one thread, one request for each connection.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use segue_control::model::Instance;
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{self, Want};

use crate::listen::{Listener, Stream};
use crate::request::{Head, Page, Progress, REQUEST_LEN, Refusal, Request};
use crate::text::{self, Format};
use crate::{Scrape, Sentence, textfile};

/// Maximum number of connections at a time. A further one takes the place of the oldest of those that have sent no
/// request yet, or have had [`READ_TIME`] for their answer; while there is none, it waits in the queue of the socket.
const CLIENTS: usize = 32;
/// Longest time until a request is complete, and then until its answer is sent. Time in which the instances are asked
/// does not count.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Time from which on a client that reads its answer gives way to another one.
const READ_TIME: Duration = Duration::from_secs(1);
/// Pause after a client that could not be accepted, for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for which an answer also serves further requests.
const FRESH: Duration = Duration::from_millis(250);

/// A file for node_exporter that is rewritten periodically.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// The path of the file.
    pub path: std::path::PathBuf,
    /// The interval between two writes of the file.
    pub every: Duration,
}

/// A callback that gets the error of a write, and `None` when one succeeds again.
pub type Report = Box<dyn Fn(Option<&io::Error>)>;

/// A server of the metrics endpoint.
pub struct Server {
    /// The sockets that listen.
    pub listeners: Vec<Listener>,
    /// File to be written in addition to serving requests.
    pub file: Option<TextFile>,
    /// The version of the program.
    pub version: String,
    /// Function that returns the description of a reason.
    pub sentence: Sentence,
    /// The callback for a file that could not be written, and for the first success after that.
    pub report: Report,
}

/// The last answers of all instances.
struct Last {
    at: Instant,
    texts: [Rc<str>; 2],
    health: Rc<str>,
}

struct Client {
    stream: Stream,
    request: Head,
    answer: Option<Answer>,
    /// The time of the accept, and then that of the answer.
    since: Instant,
    until: Instant,
}

impl Client {
    /// Returns the time from which on the client gives way to another one.
    fn gives_way_at(&self) -> Instant {
        self.since + if self.answer.is_some() { READ_TIME } else { Duration::ZERO }
    }
}

struct Answer {
    head: Vec<u8>,
    body: Rc<str>,
    sent: usize,
}

impl Server {
    /// Serves requests until a signal requests the end.
    pub fn run(self, signals: &mut Signals) -> io::Result<()> {
        let mut clients: Vec<Client> = Vec::new();
        let mut last: Option<Last> = None;
        let mut next_file = Instant::now();
        let mut next_client = None;
        let mut failed = false;
        loop {
            let now = Instant::now();
            if let Some(file) = self.file.as_ref().filter(|_| now >= next_file) {
                next_file = now + file.every;
                failed = self.write(file, &mut last, failed);
                prolong(&mut clients, now);
            }
            let now = Instant::now();
            next_client = next_client.filter(|&next| next > now);
            let file_due = self.file.as_ref().map(|_| next_file);
            // The first place that another client may take.
            let next_place = clients.iter().map(Client::gives_way_at).min().filter(|_| clients.len() >= CLIENTS);
            let next_place = next_place.filter(|&next| next > now);
            let due =
                clients.iter().map(|client| client.until).chain(file_due).chain(next_client).chain(next_place).min();
            let timeout = due.map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(now));
            let timeout = if segue_host::stdout::flush() { timeout.min(Duration::from_secs(1)) } else { timeout };
            let mut fds = vec![(signals.as_fd(), Want::Read)];
            let want = |client: &Client| if client.answer.is_some() { Want::Write } else { Want::Read };
            fds.extend(clients.iter().map(|client| (client.stream.as_fd(), want(client))));
            let first_listener = fds.len();
            if next_place.is_none() && next_client.is_none() {
                fds.extend(self.listeners.iter().map(|listener| (listener.as_fd(), Want::Read)));
            }
            // One additional millisecond, so that the wait does not end just before the deadline.
            let ready = sys::poll(&fds, timeout + Duration::from_millis(1))?;
            drop(fds);
            if ready[0] {
                while let Some((action, _)) = signals.receive()? {
                    if matches!(action, SignalAction::Stop | SignalAction::StopNow) {
                        if let Some(file) = &self.file {
                            // What no longer runs must not be reported for ever.
                            let _ = std::fs::remove_file(&file.path);
                        }
                        return Ok(());
                    }
                }
            }
            let now = Instant::now();
            let mut at = 0;
            clients.retain_mut(|client| {
                at += 1;
                now < client.until && (!ready[at] || self.step(client, &mut last))
            });
            prolong(&mut clients, now);
            // Those that have had a chance to send a request, or to read their answer.
            let mut late = clients.iter().filter(|client| client.gives_way_at() <= now).count();
            for (listener, _) in self.listeners.iter().zip(&ready[first_listener..]).filter(|(_, ready)| **ready) {
                // The client waits in the queue of the socket, which stays readable.
                if accept(listener, &mut clients, &mut late, now).is_err() {
                    next_client = Some(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Writes the file for node_exporter, and reports a failure after none, and a success after one. Returns whether it
    /// has failed.
    fn write(&self, file: &TextFile, last: &mut Option<Last>, has_failed: bool) -> bool {
        let written = textfile::write(&file.path, &self.fresh(last).texts[0]);
        match (&written, has_failed) {
            (Err(error), false) => (self.report)(Some(error)),
            (Ok(()), true) => (self.report)(None),
            _ => {}
        }
        written.is_err()
    }

    /// Advances a client's connection. Returns whether it continues.
    fn step(&self, client: &mut Client, last: &mut Option<Last>) -> bool {
        if client.answer.is_none() {
            let mut bytes = [0; 2048];
            let progress = match client.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(len) => client.request.add(&bytes[..len]),
                Err(error) => return is_later(&error),
            };
            match progress {
                Progress::Partial => return true,
                Progress::Whole => {
                    client.answer = Some(self.answer(client.request.parse(), last));
                    client.since = Instant::now();
                    client.until = client.since + CLIENT_TIME;
                }
                Progress::TooLong => {
                    let why = format!("the head of a request has {REQUEST_LEN} bytes at most\n");
                    client.answer = Some(plain("431 Request Header Fields Too Large", &why));
                }
            }
        }
        let Some(answer) = &mut client.answer else { return true };
        loop {
            let (head, body) = (answer.head.as_slice(), answer.body.as_bytes());
            let rest = match answer.sent.checked_sub(head.len()) {
                None => &head[answer.sent..],
                Some(at) => &body[at..],
            };
            if rest.is_empty() {
                return false;
            }
            match client.stream.write(rest) {
                Ok(0) => return false,
                Ok(len) => answer.sent += len,
                Err(error) => return is_later(&error),
            }
        }
    }

    fn answer(&self, request: Result<Request, Refusal>, last: &mut Option<Last>) -> Answer {
        let request = match request {
            Ok(request) => request,
            Err(Refusal::Syntax) => return plain("400 Bad Request", "expected a request of HTTP/1.1\n"),
            Err(Refusal::Method) => return plain("405 Method Not Allowed\r\nAllow: GET, HEAD", "expected GET\n"),
        };
        let mut answer = match request.page {
            Page::Metrics(format) => {
                let body = Rc::clone(&self.fresh(last).texts[usize::from(format == Format::OpenMetrics)]);
                made("200 OK", format.media_type(), body)
            }
            Page::Health => {
                let body = Rc::clone(&self.fresh(last).health);
                let status = if &*body == WELL { "200 OK" } else { "503 Service Unavailable" };
                made(status, PLAIN, body)
            }
            Page::Index => plain("200 OK", "segue: /metrics, /healthz\n"),
            Page::Missing => plain("404 Not Found", "there are /metrics and /healthz\n"),
        };
        if request.is_head {
            answer.body = Rc::from("");
        }
        answer
    }

    /// Returns the state of the instances, queried at most [`FRESH`] ago.
    fn fresh<'a>(&self, last: &'a mut Option<Last>) -> &'a Last {
        let now = Instant::now();
        let old = last.take().filter(|last| now.saturating_duration_since(last.at) < FRESH);
        last.insert(old.unwrap_or_else(|| {
            let scrape = Scrape::now(&self.version);
            let samples = scrape.samples(self.sentence);
            let texts =
                [Format::Prometheus, Format::OpenMetrics].map(|format| Rc::from(text::render(&samples, format)));
            Last { at: Instant::now(), texts, health: Rc::from(health(&scrape)) }
        }))
    }
}

/// Gives clients the time since `begin`, in which the instances were asked and no client was served.
fn prolong(clients: &mut [Client], begin: Instant) {
    let asked = begin.elapsed();
    clients.iter_mut().for_each(|client| client.until += asked);
}

/// Accepts the clients that wait at a listener, as many as there may be: each of the `late` clients that give way at
/// the time `now`, the oldest first, does to one.
///
/// # Errors
/// Where none can be accepted at the moment. The next attempt should be made after [`ACCEPT_PAUSE`].
fn accept(listener: &Listener, clients: &mut Vec<Client>, late: &mut usize, now: Instant) -> io::Result<()> {
    while clients.len() < CLIENTS || *late > 0 {
        match listener.accept() {
            Ok(stream) => {
                if clients.len() >= CLIENTS
                    && let Some(oldest) = clients.iter().position(|client| client.gives_way_at() <= now)
                {
                    clients.remove(oldest);
                    *late -= 1;
                }
                // The instances may have taken seconds to answer since the time `now`.
                let since = Instant::now();
                let until = since + CLIENT_TIME;
                clients.push(Client { stream, request: Head::default(), answer: None, since, until });
            }
            Err(error) if is_later(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const PLAIN: &str = "text/plain; charset=utf-8";
const WELL: &str = "ok\n";

/// Returns `ok`, or a line for each problem of an instance.
fn health(scrape: &Scrape) -> String {
    let problems = |instance: &'_ Instance| -> Vec<String> {
        instance.failures().map(|note| format!("{}: {}", instance.name, note.what)).collect()
    };
    let mut lines: Vec<String> = scrape.instances.iter().flat_map(problems).collect();
    lines.extend(scrape.failed.iter().map(|error| error.message.clone()));
    if scrape.instances.is_empty() && scrape.failed.is_empty() {
        lines.push("nothing runs".to_owned());
    }
    if lines.is_empty() {
        return WELL.to_owned();
    }
    lines.iter().map(|line| line.replace(char::is_control, "?") + "\n").collect()
}

fn plain(status: &str, body: &str) -> Answer {
    made(status, PLAIN, Rc::from(body))
}

fn made(status: &str, media_type: &str, body: Rc<str>) -> Answer {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nConnection: close\r\n\
         X-Content-Type-Options: nosniff\r\n\r\n",
        body.len()
    );
    Answer { head: head.into_bytes(), body, sent: 0 }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
