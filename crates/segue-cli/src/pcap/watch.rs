//! The signals, the progress line and what an output without a temporary file has not got yet, while a capture is
//! processed.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use segue_control::units;
use segue_host::signals::{SignalAction, Signals};
use segue_host::sys::{Want, poll};

use crate::out::to_stderr;

/// Time between two updates of the progress line.
const REDRAW: Duration = Duration::from_millis(200);
/// Time between two attempts to open a named pipe without a reader.
const RETRY: Duration = Duration::from_millis(50);
/// Longest wait for a reader of the output to take more after a signal to stop.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Number of bytes for an output without a temporary file that wait for a write at most.
pub(super) const BATCH: usize = 64 << 10;
/// Number of reads between two checks of clock and signals.
const LOOKS: u32 = 4;

/// The signals and the progress line while a file is processed.
#[derive(Debug)]
pub(super) struct Watch {
    signals: Signals,
    /// Time of the first signal to stop.
    pub(super) stopped: Option<Instant>,
    /// The output where it has no temporary file: stdout, a pipe, a device. A stop leaves it what was read before.
    pub(super) direct: Option<Rc<File>>,
    /// Bytes that the output has not got yet. They do not wait with the input.
    pub(super) pending: Vec<u8>,
    /// Whether the output failed, be it in a read of the input.
    pub(super) has_write_error: bool,
    bar: Option<Bar>,
    /// Number of bytes read.
    pub(super) done: u64,
    looks: u32,
}

#[derive(Debug)]
struct Bar {
    total: Option<u64>,
    start: Instant,
    drawn: Option<Instant>,
}

/// The signal and progress state that input and output share.
pub(super) type Shared = Rc<RefCell<Watch>>;

impl Watch {
    /// Begins to watch; `total` is the length of the input in bytes, if known, for a progress line.
    pub(super) fn new(signals: Signals, shows_progress: bool, total: Option<u64>) -> Shared {
        let bar = shows_progress.then(|| Bar { total, start: Instant::now(), drawn: None });
        let (pending, has_write_error) = (Vec::new(), false);
        let watch = Watch { signals, stopped: None, direct: None, pending, has_write_error, bar, done: 0, looks: 0 };
        Rc::new(RefCell::new(watch))
    }

    /// Handles signals that arrived; returns an error if one of them ends the command.
    pub(super) fn check(&mut self) -> io::Result<()> {
        while let Some((action, _)) = self.signals.receive()? {
            match action {
                SignalAction::Stop | SignalAction::Hangup => self.stopped = self.stopped.or(Some(Instant::now())),
                SignalAction::StopNow => (self.stopped, self.direct) = (Some(Instant::now()), None),
                SignalAction::Counters => to_stderr(&format!("{} read\n", units::bytes(self.done))),
                SignalAction::Child => {}
            }
        }
        let must_end = self.stopped.is_some() && self.direct.is_none();
        if must_end { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }

    /// Opens a named pipe for writing as soon as it has a reader.
    pub(super) fn open_pipe(&mut self, path: &Path) -> io::Result<File> {
        loop {
            self.check()?;
            match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
                opened => return opened,
            }
            poll(&[(self.signals.as_fd(), Want::Read)], RETRY)?;
        }
    }

    /// Waits until `file` is ready. After a signal to stop no input is waited for.
    pub(super) fn wait(&mut self, file: &File, want: Want) -> io::Result<()> {
        loop {
            self.check()?;
            let is_over = self.stopped.is_some() && want == Want::Read;
            if is_over || poll(&[(file.as_fd(), want), (self.signals.as_fd(), Want::Read)], LAST_WAIT)?[0] {
                return Ok(());
            }
            if self.stopped.is_some_and(|stopped| stopped.elapsed() >= LAST_WAIT) {
                return Err(io::Error::other("interrupted"));
            }
        }
    }

    /// Writes what is pending.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(file) = self.direct.clone() else { return Ok(()) };
        let (pending, mut done) = (mem::take(&mut self.pending), 0);
        // A writable pipe accepts this much without blocking (PIPE_BUF).
        let most = if file.metadata()?.is_file() { BATCH } else { 4096 };
        while done < pending.len() {
            self.wait(&file, Want::Write)?;
            match (&*file).write(&pending[done..pending.len().min(done + most)]) {
                Ok(len @ 1..) => done += len,
                // Another writer filled the pipe.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                failed => {
                    self.has_write_error = true;
                    return failed.and(Err(ErrorKind::WriteZero.into()));
                }
            }
        }
        Ok(())
    }

    /// Handles signals and draws the progress line, now and then: both cost more than a small read.
    pub(super) fn look(&mut self) -> io::Result<()> {
        self.looks += 1;
        if self.looks < LOOKS {
            return Ok(());
        }
        self.looks = 0;
        self.check()?;
        self.draw();
        Ok(())
    }

    fn draw(&mut self) {
        let now = Instant::now();
        if let Some(bar) = &mut self.bar
            && bar.drawn.is_none_or(|drawn| now - drawn >= REDRAW)
            && now - bar.start >= REDRAW
        {
            bar.drawn = Some(now);
            to_stderr(&bar.line(self.done, now - bar.start));
        }
    }

    pub(super) fn erase(&mut self) {
        if let Some(Bar { drawn: Some(_), .. }) = self.bar.take() {
            to_stderr("\r\x1b[K");
        }
    }
}

impl Bar {
    fn line(&self, done: u64, since: Duration) -> String {
        let rate = done as f64 / since.as_secs_f64().max(0.001);
        let speed = units::bytes(rate as u64);
        match self.total {
            Some(total) if total > 0 => {
                let part = (done as f64 / total as f64).min(1.0);
                let filled = (part * 24.0) as usize;
                let left = Duration::from_secs_f64((total.saturating_sub(done)) as f64 / rate.max(1.0));
                format!(
                    "\r[{}{}] {:>3.0} %  {} of {}  {speed}/s  {} left\x1b[K",
                    "#".repeat(filled),
                    "-".repeat(24 - filled),
                    part * 100.0,
                    units::bytes(done),
                    units::bytes(total),
                    units::short_duration(left.as_secs()),
                )
            }
            _ => format!("\r{}  {speed}/s\x1b[K", units::bytes(done)),
        }
    }
}
