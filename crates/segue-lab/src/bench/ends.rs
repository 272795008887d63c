//! Senders and receivers of loads that iperf3 does not offer.
//!
//! [`Taker::Sink`] acknowledges by a rule, and not when its processor finds time. A Linux receiver that is busy
//! reading puts together what comes meanwhile and acknowledges it at once, so that with one processor there is an
//! acknowledgement for each batch of frames. This one naps between looks, during which the kernel treats each unit as
//! it comes, and throws away what it got without copying it; its window is far smaller than its memory, so that it
//! never narrows. So each unit of two frames or more is acknowledged, else every second frame.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ready::ready;
use super::{datagrams, frames, rr};
use crate::{Host, LabError, Process, sys};

/// Receive buffer of [`Taker::Sink`], bytes.
const MEMORY: i32 = 32 << 20;
/// Window that [`Taker::Sink`] advertises, bytes.
const WINDOW: i32 = 1 << 20;
const NAP: Duration = Duration::from_millis(1);
const PORT: u16 = 5202;
/// Number of bytes per call of `sendfile(2)`.
pub(super) const CHUNK: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(15);
/// Number of bytes that [`Taker::Drain`] requests with one `read(2)`.
const BUFFER: usize = 256 << 10;

/// Runs the sender or receiver of a load in its own process, with the arguments that the bench passes. Returns the line
/// to print.
pub fn end(words: &str) -> io::Result<String> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let words: Vec<&str> = words.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok()).ok_or_else(wrong);
    let seconds = |at: usize| number(at).map(|seconds| Duration::from_secs(seconds.into()));
    let address = words.get(1).ok_or_else(wrong)?;
    let result = match words[0] {
        "sink" => sink(address, number(2)?)?,
        "drain" => drain(address, number(2)?)?,
        "source" => source(address, number(2)?, seconds(3)?, number(4)? as usize)?,
        "datagram-sink" => datagrams::sink(address, number(2)?)?,
        "datagram-source" => datagrams::source(address, number(2)?, seconds(3)?, number(4)? as usize)?,
        "answer" => rr::answer(address, number(2)?)?,
        "frames" => {
            let station = u8::try_from(number(2)?).map_err(|_| wrong())?;
            let time = Duration::from_millis(number(4)?.into());
            frames::send(address, station, number(3)?, time, number(5)? as usize, number(6)?)?
        }
        "ask" => rr::exchange(address, number(2)?, seconds(3)?)?,
        _ => return Err(wrong()),
    };
    Ok(result.to_string())
}

/// The result of a load: payload bytes, and the seconds in which they arrived.
pub(super) struct LoadResult {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// The receiver of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    /// A receiver that acknowledges each unit and does not copy the payload.
    Sink,
    /// A receiver that reads into memory as soon as there is data, like most programs.
    Drain,
}

/// Sends a file of the given size repeatedly from one host to the address of another one. `begin` is called when all is
/// ready.
pub(super) fn run<T>(
    program: &Path,
    from: &Host,
    (to, address): (&Host, &str),
    (taker, flows, file_len): (Taker, u32, usize),
    seconds: u32,
    begin: impl FnOnce() -> Result<T, LabError>,
) -> Result<(LoadResult, T), LabError> {
    let taker = if taker == Taker::Sink { "sink" } else { "drain" };
    let source = format!("source {address} {flows} {seconds} {file_len}");
    let ([_, value], begun) =
        both(program, (from, source), (to, format!("{taker} {address} {flows}")), seconds, begin)?;
    Ok((came(&value)?, begun))
}

/// Sends datagrams of `len` bytes from one host to the address of another one.
pub(super) fn run_datagrams(
    program: &Path,
    from: &Host,
    (to, address): (&Host, &str),
    (flows, len): (u32, usize),
    seconds: u32,
) -> Result<LoadResult, LabError> {
    let source = format!("datagram-source {address} {flows} {seconds} {len}");
    let sink = format!("datagram-sink {address} {flows}");
    let ([_, value], ()) = both(program, (from, source), (to, sink), seconds, || Ok(()))?;
    came(&value)
}

/// Parses the report of a receiver.
fn came(value: &Value) -> Result<LoadResult, LabError> {
    let came = value["bytes"].as_u64().zip(value["seconds"].as_f64().filter(|seconds| *seconds > 0.0));
    let (bytes, seconds) = came.ok_or_else(|| LabError::Load(format!("the receiver said {value}")))?;
    Ok(LoadResult { bytes, seconds })
}

/// Runs a program in each host, `far` first, and returns the output of `near` and of `far`. `begin` is called when both
/// are ready; the load starts [`LEAD`](super::ready::LEAD) later.
pub(super) fn both<T>(
    program: &Path,
    near: (&Host, String),
    far: (&Host, String),
    seconds: u32,
    begin: impl FnOnce() -> Result<T, LabError>,
) -> Result<([Value; 2], T), LabError> {
    let start = |(host, words): (&Host, String)| -> Result<Process, LabError> {
        let mut command = host.command(program);
        command.args(["bench", "--end", &words]);
        let mut process = Process::spawn(command, b"")?;
        process.wait_for_line("ready", PATIENCE)?;
        Ok(process)
    };
    let mut far = start(far)?;
    let mut near = start(near)?;
    let begun = begin()?;
    for process in [&mut near, &mut far] {
        if !process.wait(PATIENCE + Duration::from_secs(seconds.into()))?.success() {
            return Err(process.failure("failed"));
        }
    }
    Ok(([said(&near)?, said(&far)?], begun))
}

/// Returns what an end of a load has printed last.
pub(super) fn said(process: &Process) -> Result<Value, LabError> {
    let text = process.stdout();
    let value = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    value.ok_or_else(|| LabError::Load(format!("an end of the load said {text:?}")))
}

fn sink(address: &str, flows: u32) -> io::Result<Value> {
    let listener = TcpListener::bind((address, PORT))?;
    sys::set_option(listener.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, MEMORY)?;
    println!("ready");
    let mut streams: Vec<TcpStream> = (0..flows).map(|_| Ok(listener.accept()?.0)).collect::<io::Result<_>>()?;
    let (mut begin, mut bytes) = (None, 0);
    let mut last = Instant::now();
    while !streams.is_empty() {
        let mut ended = Vec::new();
        for (index, stream) in streams.iter().enumerate() {
            // Again and again: the kernel forgets it when it learns how large segments are.
            sys::set_option(stream.as_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, WINDOW)?;
            loop {
                match sys::discard(stream.as_fd(), 4 << 20) {
                    Ok(0) => break ended.push(index),
                    Ok(len) => {
                        bytes += len as u64;
                        last = Instant::now();
                        begin.get_or_insert(last);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for index in ended.into_iter().rev() {
            streams.swap_remove(index);
        }
        thread::sleep(NAP);
    }
    Ok(json!({ "bytes": bytes, "seconds": (last - begin.unwrap_or(last)).as_secs_f64() }))
}

fn drain(address: &str, flows: u32) -> io::Result<Value> {
    let listener = TcpListener::bind((address, PORT))?;
    println!("ready");
    let streams: Vec<TcpStream> = (0..flows).map(|_| Ok(listener.accept()?.0)).collect::<io::Result<_>>()?;
    let read = |mut stream: TcpStream| -> io::Result<(Instant, Instant, u64)> {
        let (mut buffer, mut bytes) = (vec![0; BUFFER], stream.read(&mut [0; 1])? as u64);
        let begin = Instant::now();
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok((begin, Instant::now(), bytes)),
                len => bytes += len as u64,
            }
        }
    };
    let ended: Vec<(Instant, Instant, u64)> = each(streams, read)?;
    let (begin, end) = (ended.iter().map(|end| end.0).min(), ended.iter().map(|end| end.1).max());
    let seconds = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    Ok(json!({ "bytes": ended.iter().map(|end| end.2).sum::<u64>(), "seconds": seconds }))
}

/// Runs `work` for each item, in parallel threads.
fn each<T: Send, R: Send>(all: Vec<T>, work: impl Fn(T) -> io::Result<R> + Sync) -> io::Result<Vec<R>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))).collect()
    })
}

fn source(address: &str, flows: u32, time: Duration, file_len: usize) -> io::Result<Value> {
    // The host's own memory file system.
    let path = format!("/run/segue/source-{}", std::process::id());
    let mut file = File::create(&path)?;
    let chunk = vec![0x5a; CHUNK];
    for _ in 0..file_len.div_ceil(CHUNK) {
        file.write_all(&chunk)?;
    }
    let senders: Vec<(TcpStream, File)> = (0..flows)
        .map(|_| {
            let stream = TcpStream::connect((address, PORT))?;
            Ok((stream, File::open(&path)?))
        })
        .collect::<io::Result<_>>()?;
    fs::remove_file(&path)?;
    ready();
    let begin = Instant::now();
    each(senders, |(stream, file)| {
        let mut at = 0;
        while begin.elapsed() < time {
            at += sys::send_file(stream.as_fd(), file.as_fd(), at, CHUNK)?;
            at = if at < file_len { at } else { 0 };
        }
        Ok(())
    })?;
    Ok(json!({}))
}
