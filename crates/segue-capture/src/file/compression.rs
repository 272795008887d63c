//! Compressed capture files: gzip (RFC 1952) and zstd (RFC 8878).
//!
//! [`Decompressor`] reads either, or a file that is not compressed, as a stream; [`Compressor`] writes either. Files of
//! several members or frames are read whole. Memory is bounded by the window of the format: 32 KiB of gzip, at most
//! 128 MiB of zstd, which is zstd's own limit. A small file that expands to a huge one is given up ([`MAX_RATIO`]).
//!
//! Of a file that is cut or damaged, a [`Reader`](super::Reader) returns every whole record in front of the fault, then
//! [`ReadError::Damaged`](super::ReadError::Damaged), whose offset is in the decompressed data. Of a damaged block of
//! zstd it cannot be said where its data begins, so that those of the 512 KiB in front of it may be missing.

use std::io::{self, BufRead, BufReader, Chain, Cursor, ErrorKind, Read, Write};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use ruzstd::decoding::errors::{FrameDecoderError, FrameHeaderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::source::Fault;

/// Default limit of decompressed bytes per compressed byte. gzip itself reaches 1032; captures rarely 100.
pub const MAX_RATIO: u64 = 1000;
/// Number of decompressed bytes up to which the compression ratio is not limited.
const FREE: u64 = 64 << 20;
/// Length in bytes of a frame that [`Compressor`] writes.
const FRAME: usize = 1 << 20;

/// Most bytes that a damaged zstd block leaves in the decoder: a block's own 128 KiB, and one sequence more.
const HALF_BLOCK: usize = 512 << 10;
/// A last block of zstd without content (RFC 8878, section 3.1.1.2), and a checksum.
const END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

const CUT: Fault = Fault("the compressed data is cut off");
const WRONG: Fault = Fault("the compressed data is damaged");
const DICTIONARY: Fault = Fault("the compressed data needs a dictionary, which is not in the file");
const HUGE: Fault = Fault("the compressed data expands far more than a capture does");

/// Compression format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// The file is not compressed.
    None,
    /// The file is compressed by gzip.
    Gzip,
    /// The file is compressed by Zstandard.
    Zstd,
}

impl Compression {
    /// Returns the compression that the extension of a file name selects: `.gz`, `.zst`, or none.
    pub fn of_name(path: &Path) -> Compression {
        match path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("gz") => Compression::Gzip,
            Some("zst" | "zstd") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// Returns the name: `gzip` or `zstd`; `None` where there is no compression.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Compression::None => None,
            Compression::Gzip => Some("gzip"),
            Compression::Zstd => Some("zstd"),
        }
    }
}

/// An input whose first bytes have been read ahead.
type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

/// An input that counts the bytes read from it.
struct Counted<R> {
    input: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(out)?;
        self.count += len as u64;
        Ok(len)
    }
}

/// A reader of the decompressed content of a file, or of an uncompressed file.
pub struct Decompressor<R> {
    form: Form<R>,
    /// Number of decompressed bytes that the reader has returned.
    given: u64,
    max_ratio: u64,
}

enum Form<R> {
    Plain(Whole<R>),
    Gzip(Box<MultiGzDecoder<BufReader<Counted<Whole<R>>>>>),
    Zstd(Box<Zstd<BufReader<Counted<Whole<R>>>>>),
}

impl<R> std::fmt::Debug for Decompressor<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor").field("compression", &self.compression()).field("given", &self.given).finish()
    }
}

impl<R: Read> Decompressor<R> {
    /// Reads the first bytes of `input` to detect its compression. `max_ratio` is the limit of decompressed bytes
    /// for each compressed one, after the first 64 MiB; 0 is no limit.
    ///
    /// # Errors
    /// The error of reading.
    pub fn new(mut input: R, max_ratio: u64) -> io::Result<Decompressor<R>> {
        let mut first = Vec::with_capacity(4);
        input.by_ref().take(4).read_to_end(&mut first)?;
        let kind = match first[..] {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Compression::Zstd,
            _ => Compression::None,
        };
        let whole = Cursor::new(first).chain(input);
        let buffered = |whole| BufReader::with_capacity(1 << 16, Counted { input: whole, count: 0 });
        let form = match kind {
            Compression::None => Form::Plain(whole),
            Compression::Gzip => Form::Gzip(Box::new(MultiGzDecoder::new(buffered(whole)))),
            Compression::Zstd => Form::Zstd(Box::new(Zstd::new(buffered(whole)))),
        };
        Ok(Decompressor { form, given: 0, max_ratio })
    }
}

impl<R> Decompressor<R> {
    /// Returns how the input is compressed.
    pub fn compression(&self) -> Compression {
        match self.form {
            Form::Plain(_) => Compression::None,
            Form::Gzip(_) => Compression::Gzip,
            Form::Zstd(_) => Compression::Zstd,
        }
    }
}

impl<R: Read> Read for Decompressor<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let (read, taken) = match &mut self.form {
            Form::Plain(input) => return input.read(out),
            Form::Gzip(decoder) => (decoder.read(out), decoder.get_ref().get_ref().count),
            Form::Zstd(decoder) => (decoder.read(out), decoder.source.get_ref().count),
        };
        let len = read.map_err(described)?;
        self.given += len as u64;
        let is_huge = self.given > FREE && self.given / taken.max(1) > self.max_ratio && self.max_ratio > 0;
        if is_huge { Err(HUGE.into()) } else { Ok(len) }
    }
}

/// Returns the fault in the compressed data that an error reports, or else the error unchanged.
fn described(error: io::Error) -> io::Error {
    match error.kind() {
        _ if Fault::of(&error).is_some() => error,
        ErrorKind::UnexpectedEof => CUT.into(),
        ErrorKind::InvalidData | ErrorKind::InvalidInput => WRONG.into(),
        _ => error,
    }
}

/// A reader of zstd frames, one after the other.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    /// Whether a frame has begun and not ended.
    is_open: bool,
    /// The error that ended the frame, which is returned after what was decoded before it.
    failed: Option<io::Error>,
    /// Number of bytes at the end of a failed frame that may be those of a damaged block.
    doubtful: usize,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Zstd<R> {
        Zstd { source, decoder: FrameDecoder::new(), is_open: false, failed: None, doubtful: 0 }
    }

    /// Decodes blocks until there is data to read or the frame ends. Where that fails, the frame ends there, since the
    /// decoder holds a whole window of an open frame back: up to 128 MiB of data that is right.
    fn advance(&mut self) {
        while self.failed.is_none() && self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            let mut watched = Watched { source: &mut self.source, failed: None };
            if self.decoder.decode_blocks(&mut watched, BlockDecodingStrategy::UptoBlocks(1)).is_err() {
                self.doubtful = if watched.failed.is_none() { HALF_BLOCK } else { 0 };
                self.failed = Some(watched.failed.map_or_else(|| WRONG.into(), described));
                let _ = self.decoder.decode_blocks(&END[..], BlockDecodingStrategy::UptoBlocks(1));
            }
        }
    }

    /// Begins the next frame; returns `false` at the end of the input.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            let mut watched = Watched { source: &mut self.source, failed: None };
            match self.decoder.reset(&mut watched) {
                Ok(()) => {
                    (self.is_open, self.doubtful) = (true, 0);
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(CUT.into());
                    }
                }
                Err(error) => {
                    let fault = match error {
                        FrameDecoderError::WindowSizeTooBig { .. }
                        | FrameDecoderError::FrameHeaderError(FrameHeaderError::WindowTooBig { .. }) => HUGE,
                        FrameDecoderError::DictNotProvided { .. } => DICTIONARY,
                        _ => WRONG,
                    };
                    return Err(watched.failed.map_or_else(|| fault.into(), described));
                }
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_open && !self.begin()? {
                return Ok(0);
            }
            self.advance();
            let ready = self.decoder.can_collect().saturating_sub(self.doubtful).min(out.len());
            if ready > 0 || out.is_empty() {
                return self.decoder.read(&mut out[..ready]);
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            self.is_open = false;
            let stated = self.decoder.get_checksum_from_data();
            if stated.is_some() && stated != self.decoder.get_calculated_checksum() {
                return Err(WRONG.into());
            }
        }
    }
}

/// A source that keeps the error of a read, which the decoder's own errors would hide.
struct Watched<'a, R> {
    source: &'a mut R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.source.read(out) {
            Ok(0) if !out.is_empty() => {
                self.failed = Some(ErrorKind::UnexpectedEof.into());
                Ok(0)
            }
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                let kind = error.kind();
                self.failed = Some(error);
                Err(kind.into())
            }
            other => other,
        }
    }
}

/// A writer of a file in a compression, or of an uncompressed one. zstd is written in frames of 1 MiB of data.
pub struct Compressor<W: Write> {
    form: OutputForm<W>,
}

enum OutputForm<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Zstd { output: W, waiting: Vec<u8> },
}

impl<W: Write> std::fmt::Debug for Compressor<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl<W: Write> Compressor<W> {
    /// Writes to `output` in `compression`.
    pub fn new(output: W, compression: Compression) -> Compressor<W> {
        let form = match compression {
            Compression::None => OutputForm::Plain(output),
            Compression::Gzip => OutputForm::Gzip(GzEncoder::new(output, flate2::Compression::default())),
            Compression::Zstd => OutputForm::Zstd { output, waiting: Vec::new() },
        };
        Compressor { form }
    }

    /// Writes the end of the compressed data, and returns the output.
    ///
    /// # Errors
    /// The error of writing.
    pub fn finish(self) -> io::Result<W> {
        match self.form {
            OutputForm::Plain(output) => Ok(output),
            OutputForm::Gzip(encoder) => encoder.finish(),
            OutputForm::Zstd { mut output, waiting } => {
                output.write_all(&compress_to_vec(&waiting[..], CompressionLevel::Fastest))?;
                Ok(output)
            }
        }
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.form {
            OutputForm::Plain(output) => output.write(bytes),
            OutputForm::Gzip(encoder) => encoder.write(bytes),
            OutputForm::Zstd { output, waiting } => {
                let taken = bytes.len().min(FRAME - waiting.len());
                waiting.extend_from_slice(&bytes[..taken]);
                if waiting.len() == FRAME {
                    output.write_all(&compress_to_vec(&waiting[..], CompressionLevel::Fastest))?;
                    waiting.clear();
                }
                Ok(taken)
            }
        }
    }

    /// Flushes the compressed blocks; data of an incomplete block stays in the buffer.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.form {
            OutputForm::Plain(output) | OutputForm::Zstd { output, .. } => output.flush(),
            OutputForm::Gzip(encoder) => encoder.get_mut().flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes that are compressible, but not highly so.
    fn sample(len: usize) -> Vec<u8> {
        (0..len as u32).map(|n| ((n / 7) ^ (n >> 9)) as u8).collect()
    }

    fn packed(bytes: &[u8], compression: Compression) -> Vec<u8> {
        let mut compressor = Compressor::new(Vec::new(), compression);
        bytes.chunks(1000).for_each(|part| compressor.write_all(part).unwrap());
        compressor.finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Decompressor::new(bytes, MAX_RATIO)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn what_was_written_is_read_whatever_its_length() {
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            for len in [0, 1, 3, 4, 70_000, FRAME - 1, FRAME, FRAME + 1] {
                let bytes = sample(len);
                assert!(unpacked(&packed(&bytes, compression)).unwrap() == bytes, "{compression:?} {len}");
            }
        }
    }

    #[test]
    fn several_members_and_frames_are_one_file() {
        let (a, b) = (sample(5000), sample(90_000));
        for compression in [Compression::Gzip, Compression::Zstd] {
            let mut both = packed(&a, compression);
            if compression == Compression::Zstd {
                // A skippable frame between them.
                both.extend_from_slice(&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
            }
            both.extend(packed(&b, compression));
            assert!(unpacked(&both).unwrap() == [a.clone(), b.clone()].concat(), "{compression:?}");
        }
    }

    #[test]
    fn every_cut_and_many_changes_are_noticed_or_harmless_and_none_panics() {
        let bytes = sample(3000);
        for compression in [Compression::Gzip, Compression::Zstd] {
            let whole = packed(&bytes, compression);
            for cut in 5..whole.len() {
                let error = unpacked(&whole[..cut]).unwrap_err();
                assert!(Fault::of(&error).is_some(), "{compression:?} {cut}: {error}");
            }
            for at in 0..whole.len() {
                for bit in [1, 0x80] {
                    let mut changed = whole.clone();
                    changed[at] ^= bit;
                    let _ = unpacked(&changed);
                }
            }
        }
    }

    #[test]
    fn a_small_file_that_expands_to_a_huge_one_is_given_up() {
        const BLOCKS: u64 = 640;
        // A frame of blocks that repeat one byte 128 KiB each (RFC 8878, section 3.1.1.2.2).
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
        let block = |is_last: bool| (u32::from(is_last) | 1 << 1 | (1 << 17) << 3).to_le_bytes()[..3].to_vec();
        for n in 0..BLOCKS {
            bomb.extend(block(n == BLOCKS - 1));
            bomb.push(0);
        }
        let mut decompressor = Decompressor::new(&bomb[..], MAX_RATIO).unwrap();
        let (mut buf, mut total) = (vec![0; 1 << 20], 0_u64);
        let error = loop {
            match decompressor.read(&mut buf) {
                Ok(0) => panic!("80 MiB from {} bytes", bomb.len()),
                Ok(len) => total += len as u64,
                Err(error) => break error,
            }
        };
        assert!(Fault::of(&error) == Some(HUGE.0) && total <= FREE + (1 << 20), "{total}: {error}");
        let mut unlimited = Decompressor::new(&bomb[..], 0).unwrap();
        assert_eq!(io::copy(&mut unlimited, &mut io::sink()).unwrap(), BLOCKS << 17);
    }

    /// A source that fails.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::ConnectionReset.into())
        }
    }

    #[test]
    fn what_was_decoded_before_a_fault_is_read_also_from_a_window_that_is_longer() {
        const BLOCK: usize = 100_000;
        let content = sample(9 * BLOCK);
        // A frame with a window of 2 MiB and a wrong checksum, of blocks that are not compressed (RFC 8878, section
        // 3.1.1.2.2).
        let mut file = vec![0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58];
        for (number, part) in content.chunks(BLOCK).enumerate() {
            file.extend_from_slice(&(u32::from(number == 8) | (BLOCK as u32) << 3).to_le_bytes()[..3]);
            file.extend_from_slice(part);
        }
        file.extend([0; 4]);
        let read = |input: &mut dyn Read| {
            let mut all = Vec::new();
            let error = Decompressor::new(input, MAX_RATIO).unwrap().read_to_end(&mut all).unwrap_err();
            assert!(content.starts_with(&all), "{error}");
            (all.len(), error)
        };
        // In the checksum, in the last block, and in its header.
        let last = file.len() - 4 - BLOCK;
        for (cut, len) in [(file.len() - 2, 9), (file.len() - 1000, 8), (last, 8), (last - 1, 8)] {
            let (got, error) = read(&mut &file[..cut]);
            assert_eq!((got, Fault::of(&error)), (len * BLOCK, Some(CUT.0)), "{cut}");
            let (got, error) = read(&mut file[..cut].chain(Broken));
            assert_eq!((got, error.kind()), (len * BLOCK, ErrorKind::ConnectionReset), "{cut}");
        }
        let (got, error) = read(&mut &file[..]);
        assert_eq!((got, Fault::of(&error)), (9 * BLOCK, Some(WRONG.0)));
        // A block of a type that is reserved.
        file[last - 3] |= 6;
        let (got, error) = read(&mut &file[..]);
        assert_eq!((got, Fault::of(&error)), (8 * BLOCK - HALF_BLOCK, Some(WRONG.0)));
    }

    #[test]
    fn a_dictionary_that_is_not_in_the_file_is_told_from_damage() {
        let error = unpacked(&[0x28, 0xb5, 0x2f, 0xfd, 0x01, 0x58, 7, 1, 0, 0]).unwrap_err();
        assert_eq!(Fault::of(&error), Some(DICTIONARY.0));
    }

    #[test]
    fn the_name_says_the_compression() {
        for (name, compression) in [
            ("a.pcap", Compression::None),
            ("a.pcap.gz", Compression::Gzip),
            ("a.PCAPNG.ZST", Compression::Zstd),
            ("gz", Compression::None),
        ] {
            assert_eq!(Compression::of_name(Path::new(name)), compression, "{name}");
        }
    }
}
