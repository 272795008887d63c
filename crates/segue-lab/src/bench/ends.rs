//! The two ends of a load whose receiver acknowledges as a rule says and not as its processor finds time.
//!
//! A Linux receiver that is busy reading puts together what comes meanwhile and acknowledges it at once, so that with one
//! processor there is an acknowledgement for each batch of frames. This one naps between looks, during which the kernel treats
//! each unit as it comes, and throws away what it got without copying it; its window is far smaller than its memory, so that it
//! never narrows. So each unit of two frames or more is acknowledged, else every second frame.

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bed::CONGESTION;
use super::datagrams;
use crate::{Host, LabError, Process, sys};

/// What the receiver asks the kernel to keep, in bytes, and what it lets the sender send.
const MEMORY: i32 = 32 << 20;
const WINDOW: i32 = 1 << 20;
const NAP: Duration = Duration::from_millis(1);
const PORT: u16 = 5202;
/// What one `sendfile(2)` is asked to send.
const CHUNK: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(15);

/// One of the ends, as a program of its own: `words` are those that `run` gives it. Returns what it prints.
pub fn end(words: &str) -> io::Result<String> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let words: Vec<&str> = words.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok()).ok_or_else(wrong);
    let result = match (words.first(), words.get(1)) {
        (Some(&"sink"), Some(address)) => sink(address, number(2)?)?,
        (Some(&"source"), Some(address)) => source(address, number(2)?, Duration::from_secs(number(3)?.into()))?,
        (Some(&"datagram-sink"), Some(address)) => datagrams::sink(address, number(2)?)?,
        (Some(&"datagram-source"), Some(address)) => {
            datagrams::source(address, number(2)?, Duration::from_secs(number(3)?.into()), number(4)? as usize)?
        }
        _ => return Err(wrong()),
    };
    Ok(result.to_string())
}

/// What came of a load.
pub(super) struct Came {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// Sends a stream from one host to the address of another one.
pub(super) fn run(program: &Path, from: &Host, to: (&Host, &str), flows: u32, seconds: u32) -> Result<Came, LabError> {
    let address = to.1;
    let words = [format!("sink {address} {flows}"), format!("source {address} {flows} {seconds}")];
    run_ends(program, [from, to.0], words, seconds)
}

/// Sends datagrams of `len` bytes.
pub(super) fn run_datagrams(
    program: &Path,
    from: &Host,
    (to, address): (&Host, &str),
    (flows, len): (u32, usize),
    seconds: u32,
) -> Result<Came, LabError> {
    let words =
        [format!("datagram-sink {address} {flows}"), format!("datagram-source {address} {flows} {seconds} {len}")];
    run_ends(program, [from, to], words, seconds)
}

fn run_ends(program: &Path, [from, to]: [&Host; 2], words: [String; 2], seconds: u32) -> Result<Came, LabError> {
    let [sink, source] = words;
    let start = |host: &Host, words: String| {
        let mut command = host.command(program);
        command.args(["bench", "--end", &words]);
        Process::spawn(command, b"")
    };
    let mut sink = start(to, sink)?;
    sink.wait_for_line("ready", PATIENCE)?;
    let mut source = start(from, source)?;
    for process in [&mut source, &mut sink] {
        if !process.wait(PATIENCE + Duration::from_secs(seconds.into()))?.success() {
            return Err(process.failure("failed"));
        }
    }
    let text = sink.stdout();
    let value: Option<Value> = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    let came = value.as_ref().and_then(|value| {
        Some(Came { bytes: value["bytes"].as_u64()?, seconds: value["seconds"].as_f64().filter(|s| *s > 0.0)? })
    });
    came.ok_or_else(|| LabError::Load(format!("the receiver said {text:?}")))
}

fn sink(address: &str, flows: u32) -> io::Result<Value> {
    let listener = TcpListener::bind((address, PORT))?;
    sys::set_option(listener.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, MEMORY)?;
    println!("ready");
    let mut streams: Vec<TcpStream> = (0..flows).map(|_| Ok(listener.accept()?.0)).collect::<io::Result<_>>()?;
    let (begin, mut bytes) = (Instant::now(), 0);
    let mut last = begin;
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
    Ok(json!({ "bytes": bytes, "seconds": (last - begin).as_secs_f64() }))
}

fn source(address: &str, flows: u32, time: Duration) -> io::Result<Value> {
    // The host's own memory file system.
    let path = format!("/run/segue/source-{}", std::process::id());
    fs::write(&path, vec![0x5a; CHUNK])?;
    let senders: Vec<(TcpStream, File)> = (0..flows)
        .map(|_| {
            let stream = TcpStream::connect((address, PORT))?;
            sys::set_congestion(stream.as_fd(), CONGESTION)?;
            Ok((stream, File::open(&path)?))
        })
        .collect::<io::Result<_>>()?;
    fs::remove_file(&path)?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let send = |(stream, file): (TcpStream, File)| -> io::Result<()> {
            while begin.elapsed() < time {
                sys::send_file(stream.as_fd(), file.as_fd(), CHUNK)?;
            }
            Ok(())
        };
        let threads: Vec<_> = senders.into_iter().map(|pair| scope.spawn(move || send(pair))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })?;
    Ok(json!({}))
}
