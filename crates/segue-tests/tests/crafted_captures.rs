//! Tests of `segue pcap` on captures that no merge and no network makes: notes of merged packets that promise more than
//! their file holds, and segments that fill a train to its last byte (docs/security.md). Each fails on the program of
//! the attack.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use segue_lab::Process;
use segue_tests::capture::Directory;
use segue_tests::wire::{pseudo, sum};
use segue_tests::{find_program, skip, test_name};
use serde_json::Value;

/// Longest time of a run, for files that take seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Code of the pcapng option that holds the notes of merged packets, and the start of each of its values.
const NOTE: (u16, &[u8]) = (0xd347, b"sgue\x01");
/// Bytes of a merged packet.
const FRAME: [u8; 1500] = [0x45; 1500];

#[track_caller]
fn program(name: &str) -> Option<PathBuf> {
    let program = find_program();
    if program.is_none() {
        skip(name, "the program is not built (cargo build -p segue-cli)");
    }
    program
}

/// Runs `segue pcap` with `-j` on two files, with at most 1 GiB of address space, and returns its summary.
#[track_caller]
fn summary(program: &Path, words: &[&str], files: [&Path; 2]) -> Value {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1048576 && exec \"$@\"", "sh"]).arg(program).arg("pcap").args(words);
    command.args(files).args(["-j", "--progress", "never"]);
    let mut process = Process::spawn(command, b"").expect("segue starts");
    let ended = process.wait(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    assert!(ended.success(), "{ended}: {}", process.last_words());
    serde_json::from_str(process.stdout().trim()).unwrap_or_else(|error| panic!("{error}: {}", process.stdout()))
}

fn leb128(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    [&code.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), &padded(value)].concat()
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, body, &len].concat()
}

/// Builds a pcapng file with one merged packet and a note of `members` packets, each with a header of `head` bytes and
/// `step` positions after the one before. The first one has all of the payload.
fn merged(members: usize, head: usize, step: usize) -> Vec<u8> {
    let mut note = Vec::new();
    leb128(&mut note, members);
    for member in 0..members {
        // Flags, position, timestamp, header, differences of the header, payload, and bytes that were not captured.
        note.push(0);
        leb128(&mut note, if member == 0 { 0 } else { step });
        note.push(0);
        leb128(&mut note, head);
        note.push(0);
        leb128(&mut note, if member == 0 { FRAME.len() - head } else { 0 });
        note.push(0);
    }
    let mut options = Vec::new();
    for (number, chunk) in note.chunks(65_000).enumerate() {
        let letter: &[u8] = if number == 0 { b"m" } else { b"c" };
        options.extend(option(NOTE.0, &[NOTE.1, letter, chunk].concat()));
    }
    options.extend(option(0, &[]));
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    // Link type 101: IP packets without a link header.
    let interface = [&101_u32.to_le_bytes()[..], &262_144_u32.to_le_bytes()].concat();
    let lens = (FRAME.len() as u32).to_le_bytes();
    let packet = [&[0; 12][..], &lens, &lens, &padded(&FRAME), &options].concat();
    [block(0x0a0d_0d0a, &section), block(1, &interface), block(6, &packet)].concat()
}

/// Tests that a note of 12 MB that promises 1.5 GB is refused without the memory for them, and its packet is left as it
/// is.
#[test]
fn a_note_that_promises_much_takes_no_more_memory_than_its_file() {
    let Some(program) = program(test_name!()) else { return };
    let directory = Directory::new();
    let [from, to] = ["in.pcapng", "out.pcapng"].map(|name| directory.file(name));
    fs::write(&from, merged(1_500_000, 1000, 1)).expect("a file");
    let summary = summary(&program, &["split", "--undo"], [&from, &to]);
    let counts = ["packets_in", "packets_out", "notes_unreadable"].map(|key| summary[key].as_u64());
    assert_eq!(counts, [Some(1); 3], "{summary}");
}

/// Tests that packets that all claim one position are restored in a time that grows with their number, not with its
/// square.
#[test]
fn packets_that_claim_one_position_are_restored_soon() {
    let Some(program) = program(test_name!()) else { return };
    let directory = Directory::new();
    let [from, to] = ["in.pcapng", "out.pcapng"].map(|name| directory.file(name));
    fs::write(&from, merged(200_000, 60, 0)).expect("a file");
    let summary = summary(&program, &["split", "--undo"], [&from, &to]);
    let counts = ["packets_in", "packets_out", "notes_unreadable"].map(|key| summary[key].as_u64());
    assert_eq!(counts, [Some(1), Some(200_000), Some(0)], "{summary}");
}

/// Builds an Ethernet frame with a TCP segment over IPv4.
fn segment(number: u16, sequence: u32, len: usize) -> Vec<u8> {
    let (source, destination) = ([198, 18, 0, 1], [198, 18, 0, 2]);
    let mut tcp = [&7000_u16.to_be_bytes()[..], &80_u16.to_be_bytes(), &sequence.to_be_bytes()].concat();
    tcp.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    tcp.resize(20 + len, number as u8);
    let field = !sum(&[&pseudo(&source, &destination, 6, tcp.len()).to_be_bytes()[..], &tcp].concat());
    tcp[16..18].copy_from_slice(&field.to_be_bytes());
    let mut ip = [&[0x45, 0][..], &(20 + tcp.len() as u16).to_be_bytes(), &number.to_be_bytes()].concat();
    ip.extend([0x40, 0, 64, 6, 0, 0]);
    ip.extend([source, destination].concat());
    let field = !sum(&ip);
    ip[10..12].copy_from_slice(&field.to_be_bytes());
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &tcp].concat()
}

/// Tests that a short last segment joins a train that it fills to 65,535 bytes, the longest IP packet, as in Linux.
#[test]
fn a_short_segment_fills_a_train_to_the_longest_length() {
    let Some(program) = program(test_name!()) else { return };
    let directory = Directory::new();
    let from = directory.file("in.pcap");
    let mut file = [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8]].concat();
    file.extend([262_144_u32.to_le_bytes(), 1_u32.to_le_bytes()].concat());
    let lens = [4000; 16].into_iter().chain([65_535 - 40 - 16 * 4000]);
    for (number, len) in lens.enumerate() {
        let frame = segment(number as u16, 1 + 4000 * number as u32, len);
        let size = (frame.len() as u32).to_le_bytes();
        file.extend([[0; 4], (number as u32).to_le_bytes(), size, size].concat());
        file.extend(frame);
    }
    fs::write(&from, file).expect("a file");
    for profile in ["strict", "linux", "lro"] {
        let to = directory.file(&format!("{profile}.pcap"));
        let summary = summary(&program, &["merge", "--profile", profile], [&from, &to]);
        let counts = ["packets_in", "packets_out"].map(|key| summary[key].as_u64());
        assert_eq!(counts, [Some(17), Some(1)], "{profile}: {summary}");
    }
}
