//! Test of undo on notes that promise more than their file holds: memory and output stay in proportion to the input,
//! beside the headers of the packets that it asks for. It is the only one of its program, because it reads the peak of
//! the process's memory.

mod common;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use common::peak;
use segue_capture::file::{Format, Order, Outgoing, PcapHeader, Reader, Writer, link, options};
use segue_capture::undo::undo;

/// Limit of the process's peak memory, in bytes: about ten times the size of the largest file.
const MOST_MEMORY: u64 = 100_000_000;
/// Bytes of each merged packet.
const FRAME: [u8; 1500] = [0x45; 1500];

/// A crafted file of merged packets with notes, as no merge writes them, and its expected output.
struct Bomb {
    name: &'static str,
    /// Number of merged packets.
    packets: usize,
    /// Number of packets from which each packet was merged, according to its note.
    members: usize,
    /// Length of each packet's headers in bytes.
    head: usize,
    /// Distance between the positions of consecutive packets.
    step: usize,
    /// Length of the shared options in bytes.
    carried: usize,
    /// Number of packets written.
    restored: u64,
    /// Most bytes written per byte of the file beside the headers of the packets made, of which 20 are allowed: of a
    /// member that takes seven bytes of its note, a block of 32 bytes, padding, and options with their end.
    growth: u64,
}

const BOMBS: [Bomb; 6] = [
    // Half a million packets with short headers and an empty comment each (40 bytes for seven of a note); they wait for
    // positions that never come.
    Bomb {
        name: "many packets",
        packets: 20,
        members: 25_000,
        head: 60,
        step: 1,
        carried: 0,
        restored: 500_000,
        growth: 6,
    },
    Bomb {
        name: "far positions",
        packets: 20,
        members: 25_000,
        head: 60,
        step: 1 << 40,
        carried: 0,
        restored: 500_000,
        growth: 4,
    },
    Bomb {
        name: "equal positions",
        packets: 1,
        members: 100_000,
        head: 60,
        step: 0,
        carried: 0,
        restored: 100_000,
        growth: 6,
    },
    // The most that a note may promise: seven bytes of it for a block of 32 bytes, 127 of headers with padding, 56 of
    // options that are shared, and four of their end.
    Bomb {
        name: "the most for each byte",
        packets: 20,
        members: 25_000,
        head: 127,
        step: 1,
        carried: 52,
        restored: 500_000,
        growth: 14,
    },
    // Packets whose headers or shared options would grow without measure are left as they are.
    Bomb {
        name: "long headers",
        packets: 20,
        members: 25_000,
        head: 1000,
        step: 1,
        carried: 0,
        restored: 20,
        growth: 1,
    },
    Bomb {
        name: "shared options",
        packets: 20,
        members: 2000,
        head: 60,
        step: 1,
        carried: 60_000,
        restored: 20,
        growth: 1,
    },
];

impl Bomb {
    fn file(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), Format::Pcapng);
        let header = PcapHeader { order: Order::NATIVE, nanos: true, snaplen: 262_144, link: u32::from(link::RAW) };
        writer.begin_pcap(&header, &header.bytes(), &[]).unwrap();
        let mut note = Vec::new();
        leb128(&mut note, self.members);
        for member in 0..self.members {
            note.push(0);
            leb128(&mut note, if member == 0 { 0 } else { self.step });
            note.push(0);
            leb128(&mut note, self.head);
            note.push(0);
            leb128(&mut note, if member == 0 { FRAME.len() - self.head } else { 0 });
            note.push(0);
        }
        let mut list = Vec::new();
        options::push(&mut list, Order::NATIVE, options::COMMENT, &vec![b'x'; self.carried]);
        for (number, chunk) in note.chunks(65_000).enumerate() {
            let value = [b"sgue\x01", &[if number == 0 { b'm' } else { b'c' }][..], chunk].concat();
            options::push(&mut list, Order::NATIVE, 0xd347, &value);
        }
        for packet in 0..self.packets {
            let ticks = Some(packet as u64);
            writer.packet(&Outgoing { interface: 0, ticks, len: 1500, data: &[&FRAME], options: &list }).unwrap();
        }
        writer.finish().unwrap()
    }
}

fn leb128(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// An output that only counts its bytes.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn notes_that_promise_much_take_no_more_than_the_file_is_long() {
    for bomb in BOMBS {
        let (name, file) = (bomb.name, bomb.file());
        let begin = Instant::now();
        let mut writer = Writer::new(Counter(0), Format::Pcapng);
        let report = undo(&mut Reader::new(&file[..]).unwrap(), &mut writer).unwrap();
        let written = writer.finish().unwrap().0;
        assert_eq!((report.packets_in, report.packets_out), (bomb.packets as u64, bomb.restored), "{name}: {report:?}");
        let undone = if bomb.restored > report.packets_in { report.packets_in } else { 0 };
        assert_eq!((report.trains, report.unreadable), (undone, report.packets_in - undone), "{name}: {report:?}");
        let headers = bomb.head as u64 * (report.packets_out - report.packets_in);
        let most = headers + bomb.growth * file.len() as u64;
        assert!(written <= most, "{name}: {written} bytes of {}, {headers} of them headers", file.len());
        assert!(begin.elapsed() < Duration::from_secs(60), "{name}: {:?}", begin.elapsed());
        assert!(peak() < MOST_MEMORY, "{name}: {} bytes of memory for a file of {}", peak(), file.len());
    }
}
