//! Input and output files: pipes, and the temporary file that is renamed when complete.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use segue_capture::CaptureError;
use segue_capture::file::compression::{Compression, Compressor, Decompressor};
use segue_capture::file::{Format, ReadError, Reader, Writer};
use segue_control::error::{Error, Kind, printable_line};
use segue_host::file::Identity;
use segue_host::output::{Foreign, Unfinished, behind_links};
use segue_host::signals::Signals;
use segue_host::sys::{Want, fail_at_file_limit, poll};

use super::args;
use super::watch::{BATCH, Shared, Watch};
use crate::out::Out;

/// The input file or stdin; a signal interrupts its reads.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    waits: bool,
    watch: Shared,
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut watch = self.watch.borrow_mut();
        loop {
            if self.waits {
                // What was made of the input so far does not wait with it.
                if !watch.pending.is_empty() && !poll(&[(self.file.as_fd(), Want::Read)], Duration::ZERO)?[0] {
                    watch.flush()?;
                }
                watch.wait(&self.file, Want::Read)?;
            }
            watch.look()?;
            // An output without a temporary file gets what was read before.
            if watch.stopped.is_some() {
                return Ok(0);
            }
            match self.file.read(out) {
                // Another reader took the data of the pipe.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) => {
                    watch.done += n as u64;
                    return Ok(n);
                }
                failed => return failed,
            }
        }
    }
}

/// The output: stdout, or a file that gets its name only when complete.
#[derive(Debug)]
pub(super) struct OutputFile {
    watch: Shared,
    /// The temporary file; `None` for what the watch writes.
    beside: Option<Unfinished>,
    replaces: bool,
    /// Whether a file had the name when this one was created.
    is_taken: bool,
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(beside) = &self.beside {
            // Of one packet of the input may come much before the next read.
            self.watch.borrow_mut().look()?;
            return beside.file().write(bytes);
        }
        let mut watch = self.watch.borrow_mut();
        watch.pending.extend_from_slice(bytes);
        if watch.pending.len() >= BATCH {
            watch.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.watch.borrow_mut().flush()
    }
}

impl OutputFile {
    /// Writes the rest, and renames the complete file to its final name.
    fn commit(mut self) -> io::Result<()> {
        self.flush()?;
        self.watch.borrow_mut().check()?;
        self.beside.take().map_or(Ok(()), |beside| beside.publish(self.replaces))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.beside.is_none() {
            let _ = self.watch.borrow_mut().flush();
        }
    }
}

/// The writer of an output file.
pub(super) type Sink = Writer<BufWriter<Compressor<OutputFile>>>;

/// The reader of an input file.
pub(super) type Input = Reader<Decompressor<Source>>;

/// A running command: the names in its messages, its input, and the watch.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    action: &'static str,
    allow_cut: bool,
    watch: Shared,
    input: Option<PathBuf>,
    /// Identity of the input where it is a regular file, stdin included.
    pub(super) regular: Option<Identity>,
    /// Compression format of the input.
    compression: Compression,
}

impl Job {
    /// Opens the input of a command and reads its file header.
    pub(super) fn open(args: &args::Input, action: &'static str, out: &Out) -> Result<(Job, Input), Error> {
        let Some(path) = &args.input else {
            let hint = format!("segue pcap {action} --help");
            return Err(Error::new(Kind::Missing, "no capture file was given", hint));
        };
        let is_stdin = path.as_os_str() == "-";
        let name = if is_stdin { "stdin".to_owned() } else { name_of(path) };
        let file = if is_stdin {
            let fd = io::stdin().as_fd().try_clone_to_owned();
            File::from(fd.map_err(|error| Error::system("cannot read stdin", &error, "give a file name"))?)
        } else {
            // Opening a named pipe would block until it has a writer. Opened without blocking, the first read waits
            // for the writer, and a signal ends the wait.
            let is_fifo = fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo());
            let flags = if is_fifo { libc::O_NONBLOCK } else { 0 };
            OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
                let hint = "check the name and the rights of the file";
                let made = Error::system(format!("cannot open {name}"), &error, hint);
                match error.kind() {
                    io::ErrorKind::NotFound => made.kind(Kind::NotFound).why("no file has this name"),
                    io::ErrorKind::PermissionDenied => made.why("this user may not read it"),
                    _ => made.why("a capture is read from it"),
                }
            })?
        };
        let data = file.metadata().ok();
        let regular = data.as_ref().is_some_and(|data| data.is_file());
        if data.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(Error::new(Kind::BadValue, format!("{name} is a directory"), "give a capture file"));
        }
        if is_stdin && io::stdin().is_terminal() {
            return Err(Error::new(
                Kind::Usage,
                "stdin is a terminal, and a capture file is not typed",
                format!("tcpdump -w - | segue pcap {action} - ..."),
            ));
        }
        let shown = args.progress == "auto" && !out.quiet && io::stderr().is_terminal();
        let data = data.filter(|_| regular);
        let (total, regular_file) = (data.as_ref().map(|data| data.len()), data.map(|data| Identity::from(&data)));
        let failed = |error: io::Error| Error::system("cannot listen to signals", &error, "try again");
        let signals = fail_at_file_limit().and_then(|()| Signals::of_command()).map_err(failed)?;
        let watch = Watch::new(signals, shown, total);
        let input = (!is_stdin).then(|| path.clone());
        let source = Source { file, waits: !regular, watch: Rc::clone(&watch) };
        let mut job = Job {
            name,
            action,
            allow_cut: args.allow_cut,
            watch,
            input,
            regular: regular_file,
            compression: Compression::None,
        };
        let source = Decompressor::new(source, args.max_ratio).map_err(|error| job.fatal(&error.into()))?;
        job.compression = source.compression();
        let reader = Reader::new(source).map_err(|error| job.fatal(&error))?;
        Ok((job, reader))
    }

    /// Opens the input of a command with an output. An input that `-i` cannot replace is refused before it is opened.
    pub(super) fn open_to(
        args: &args::Input,
        output: &args::Output,
        action: &'static str,
        out: &Out,
    ) -> Result<(Job, Input), Error> {
        // Standard streams and missing files have messages of their own.
        let input = args.input.as_deref().filter(|path| output.in_place && path.as_os_str() != "-");
        if let Some((path, data)) = input.and_then(|path| Some((path, fs::metadata(path).ok()?)))
            && !data.is_file()
            && !data.is_dir()
        {
            let path = name_of(path);
            let what = if data.file_type().is_fifo() { "a named pipe" } else { "no regular file" };
            let hint = format!("segue pcap {action} {path} OUT");
            return Err(Error::new(Kind::Usage, format!("{path} is {what} and cannot be replaced in place"), hint)
                .why("-i reads a file to its end and puts another one in its place"));
        }
        Job::open(args, action, out)
    }

    /// Creates the output in the format of `-F`, else of its file name, else of the input.
    pub(super) fn create(&self, args: &args::Output, from: Format, out: &Out) -> Result<Sink, Error> {
        let format = |path: Option<&Path>| -> Format {
            // The ending of the compression follows that of the format.
            let path = path.map(|path| match Compression::of_name(path) {
                Compression::None => path.to_owned(),
                _ => path.with_extension(""),
            });
            let extension = path.as_deref().and_then(Path::extension).map(|e| e.to_string_lossy().to_ascii_lowercase());
            match (args.format.as_deref(), extension.as_deref()) {
                (Some("pcap"), _) | (None, Some("pcap" | "cap" | "dmp")) => Format::Pcap,
                (Some("pcapng"), _) | (None, Some("pcapng" | "ntar")) => Format::Pcapng,
                _ => from,
            }
        };
        let usage = |message: String, hint: String| Error::new(Kind::Usage, message, hint);
        let command = format!("segue pcap {}", self.action);
        let path = match (&args.output, args.in_place, &self.input) {
            (Some(output), false, _) => output.clone(),
            (None, true, Some(input)) => input.clone(),
            (None, true, None) => {
                return Err(usage("stdin cannot be replaced in place".into(), format!("{command} - OUT")));
            }
            (None, false, _) => {
                let hint = format!("{command} {} OUT, or -i to replace it when done", self.name);
                return Err(Error::new(Kind::Missing, "no output file", hint));
            }
            (Some(_), true, _) => {
                return Err(usage(
                    "-i replaces the input, so there is no output file".into(),
                    format!("{command} -i {}", self.name),
                ));
            }
        };
        if path.as_os_str() == "-" {
            return self.stdout(format(None), out);
        }
        let form = if args.in_place && args.format.is_none() { from } else { format(Some(&path)) };
        // A file that is replaced stays as it is, whatever its name.
        let compression = if args.in_place { self.compression } else { Compression::of_name(&path) };
        if form != from {
            out.note(&format!("note: {} becomes {} in {}", from.name(), form.name(), name_of(&path)));
        }
        let same = |a: &Path, b: &Path| match (fs::metadata(a), fs::metadata(b)) {
            (Ok(a), Ok(b)) => Identity::from(&a) == Identity::from(&b),
            _ => false,
        };
        if !args.in_place && self.input.as_deref().is_some_and(|input| same(input, &path)) {
            let (input, shown) = (&self.name, name_of(&path));
            let which = if *input == shown { input.clone() } else { format!("{input}, {shown}") };
            return Err(usage(
                format!("input and output are the same file ({which})"),
                format!("{command} -i {input}            replaces it when done"),
            ));
        }
        let target = behind_links(&path, args.in_place).map_err(|Foreign { path, what }| {
            let message = format!("{} is {what} of another user", name_of(&path));
            Error::new(Kind::Conflict, message, "choose a new name, or another folder")
                .why("that user would have the capture, or lead it elsewhere")
        })?;
        let existing = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found.map_err(|error| self.cannot_write(&path, &error))?),
        };
        if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(Error::new(Kind::BadValue, format!("{} is a directory", name_of(&path)), "name a file in it"));
        }
        // Devices and pipes are written in place; only regular files get a temporary file.
        if let Some(data) = existing.as_ref().filter(|data| !data.is_file()) {
            let file = match data.file_type().is_fifo() {
                true => self.watch.borrow_mut().open_pipe(&path),
                false => OpenOptions::new().write(true).open(&path),
            };
            return Ok(self.direct(file.map_err(|error| self.cannot_write(&path, &error))?, form, compression));
        }
        if existing.is_some() && !args.force && !args.in_place {
            return Err(exists(&path));
        }
        // A symbolic link is kept, and its target replaced.
        let beside = Unfinished::create(target, existing.as_ref()).map_err(|error| self.cannot_write(&path, &error))?;
        let (replaces, is_taken) = (args.force || args.in_place, existing.is_some());
        let target = OutputFile { watch: Rc::clone(&self.watch), beside: Some(beside), replaces, is_taken };
        Ok(Writer::new(BufWriter::with_capacity(1 << 18, Compressor::new(target, compression)), form))
    }

    /// Returns the writer of an output without a temporary file.
    fn direct(&self, file: File, format: Format, compression: Compression) -> Sink {
        self.watch.borrow_mut().direct = Some(Rc::new(file));
        let target = OutputFile { watch: Rc::clone(&self.watch), beside: None, replaces: false, is_taken: false };
        // The watch has a buffer, which it writes before the input waits.
        Writer::new(BufWriter::with_capacity(0, Compressor::new(target, compression)), format)
    }

    fn stdout(&self, format: Format, out: &Out) -> Result<Sink, Error> {
        if out.json {
            return Err(Error::new(
                Kind::Conflict,
                "with -j the summary goes to stdout, and so would the capture",
                "name an output file, or leave out -j",
            ));
        }
        if io::stdout().is_terminal() {
            return Err(Error::new(
                Kind::Usage,
                "stdout is a terminal, and a capture file would garble it",
                format!("segue pcap {} {} - | tcpdump -r -", self.action, self.name),
            ));
        }
        let fd = io::stdout().as_fd().try_clone_to_owned();
        let file = File::from(fd.map_err(|error| Error::system("cannot write to stdout", &error, "name a file"))?);
        if let Ok(data) = file.metadata()
            && self.regular == Some(Identity::from(&data))
        {
            let hint = format!("segue pcap {} IN OUT", self.action);
            return Err(Error::new(Kind::Usage, format!("stdout is the input itself ({})", self.name), hint)
                .why("what is written would be read again, without end"));
        }
        Ok(self.direct(file, format, Compression::None))
    }

    /// Writes the rest of the output and renames the file to its final name. An existing file is replaced only by what
    /// a whole input became, unless `--allow-cut` was given; `fault` is what the input lacks.
    pub(super) fn finish(&self, sink: Sink, fault: Option<impl Display>) -> Result<(), Error> {
        let done = sink.finish().and_then(|buffered| buffered.into_inner().map_err(|error| error.into_error()));
        let output = done.and_then(Compressor::finish).map_err(|error| self.write_failed(&error))?;
        if let (Some(what), false, true) = (fault, self.allow_cut, output.is_taken) {
            self.erase();
            let hint = "name a new OUT, or --allow-cut replaces it by what is whole";
            let why = "the existing file is left as it is: the new one would not be whole";
            return Err(Error::new(Kind::Damaged, format!("{}: {what}", self.name), hint).why(why));
        }
        output.commit().map_err(|error| self.write_failed(&error))?;
        if self.watch.borrow().stopped.is_some() { Err(self.stopped()) } else { Ok(()) }
    }

    /// Returns the message for an error that ended the command.
    pub(super) fn failed(&self, error: CaptureError) -> Error {
        self.erase();
        match error {
            CaptureError::Read(error) => self.fatal(&error),
            CaptureError::Write(error) => self.write_failed(&error),
            CaptureError::NothingToUndo => self.nothing_to_undo(),
            CaptureError::Swallowed { packet } => {
                let text = format!("the merge that made {} cannot be undone", self.name);
                Error::new(Kind::Conflict, text, "segue pcap merge --profile strict          can be undone")
                    .why(format!("packet {packet} stands for acknowledgments that profile lro swallowed"))
            }
            CaptureError::NoComments => {
                Error::new(Kind::Conflict, "`--explain` with pcap", "segue pcap merge IN OUT.pcapng --explain")
                    .why("pcap has no place for comments")
            }
            other => Error::new(Kind::Damaged, format!("{}: {other}", self.name), "look at it with: xxd"),
        }
    }

    /// Returns the message of `split --undo` for a file without notes.
    pub(super) fn nothing_to_undo(&self) -> Error {
        Error::new(
            Kind::NotFound,
            format!("there is nothing to undo in {}", self.name),
            format!("segue pcap split {} OUT           cuts by the MTU", self.name),
        )
        .why("no packet carries the note that segue pcap merge leaves in pcapng files")
    }

    /// Returns the result for a truncated or damaged input after processing: an error unless `--allow-cut` was given.
    pub(super) fn verdict(&self, fault: Option<&ReadError>, out: &Out) -> Result<(), Error> {
        self.erase();
        let Some(what) = fault else { return Ok(()) };
        if self.allow_cut {
            out.note(&format!("note: {}: {what}", self.name));
            return Ok(());
        }
        Err(Error::new(
            Kind::Damaged,
            format!("{}: {what}", self.name),
            "--allow-cut takes what is whole as all there is",
        )
        .why("all whole packets before it were used, nothing after it"))
    }

    /// Erases the progress line from the terminal.
    pub(super) fn erase(&self) {
        self.watch.borrow_mut().erase();
    }

    fn fatal(&self, error: &ReadError) -> Error {
        let name = &self.name;
        match error {
            ReadError::Io(error) if self.watch.borrow().has_write_error => self.write_failed(error),
            ReadError::Io(_) if self.watch.borrow().stopped.is_some() => self.stopped(),
            ReadError::Io(error) => {
                self.erase();
                Error::system(format!("cannot read {name}"), error, "check the file and its disk")
            }
            ReadError::Compressed(with) => Error::new(
                Kind::NotAvailable,
                format!("{name} is compressed ({with})"),
                format!("{} {name} | segue pcap {} - ...", unpacker(with), self.action),
            ),
            ReadError::Cut { .. } | ReadError::Damaged { .. } => {
                Error::new(Kind::Damaged, format!("{name}: {error}"), "capture again, or look at it with: xxd")
            }
            _ => Error::new(Kind::Damaged, format!("cannot read {name}: {error}"), "give a pcap or pcapng file"),
        }
    }

    /// Returns the message for an error of the output.
    fn write_failed(&self, error: &io::Error) -> Error {
        if self.watch.borrow().stopped.is_some() {
            return self.stopped();
        }
        self.erase();
        match error.kind() {
            // The reader closed the pipe, as `head` does.
            io::ErrorKind::BrokenPipe => std::process::exit(0),
            io::ErrorKind::AlreadyExists => {
                Error::new(Kind::InUse, "the output file was created in the meantime", "-f replaces it")
            }
            io::ErrorKind::Other => {
                Error::new(Kind::BadValue, format!("cannot write: {error}"), "write pcapng: -F pcapng")
            }
            // A block that no reader accepts.
            io::ErrorKind::InvalidInput => {
                Error::new(Kind::BadValue, format!("cannot write: {error}"), "write pcap: -F pcap")
            }
            _ => Error::system("cannot write the output", error, "write to a place with room for it"),
        }
    }

    fn stopped(&self) -> Error {
        self.erase();
        let is_direct = self.watch.borrow().direct.is_some();
        let what = if is_direct { "interrupted; the output ends here" } else { "interrupted; nothing was written" };
        Error::new(Kind::Interrupted, what, "run it again")
    }

    fn cannot_write(&self, path: &Path, error: &io::Error) -> Error {
        if self.watch.borrow().stopped.is_some() {
            return self.stopped();
        }
        let made = Error::system(format!("cannot write {}", name_of(path)), error, "name a place where you may write");
        match error.kind() {
            io::ErrorKind::NotFound => made.why("its folder does not exist"),
            io::ErrorKind::PermissionDenied => made.why("this user may not make a file in its folder"),
            _ => made.why("the output is made in its folder, and gets its name once it is complete"),
        }
    }
}

fn unpacker(with: &str) -> &str {
    match with {
        "gzip" => "zcat",
        "zstd" => "zstdcat",
        "xz" => "xzcat",
        "bzip2" => "bzcat",
        other => other,
    }
}

fn exists(path: &Path) -> Error {
    Error::new(Kind::Conflict, format!("{} exists", name_of(path)), "-f replaces it, or choose a new name")
}

/// Returns the name of a file in a form that is safe to print: that of a capture may come from anywhere.
fn name_of(path: &Path) -> String {
    printable_line(&path.display().to_string())
}
