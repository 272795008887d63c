//! Machine code of a running process that is replaced: a function of the program panics from then on, or never returns.
//!
//! The program has no part in it, so that one that takes no requests for faults, such as an earlier one, gets them too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// The function that the thread which moves a tunnel's packets calls in each of its rounds, and no other thread.
pub const ROUND_OF_TUNNEL: &str = "<segue_datapath::tunnel::...Tunnel as segue_datapath::pipeline::Pipeline>::round";
/// A function of the core library that panics. It has one argument, the place of which it speaks.
const PANICS: &str = "core::option::unwrap_failed";
/// Number of bytes that are written at most.
const LEN: u64 = 48;

/// Behaviour of a function from its next call on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoiled {
    /// Panic of the thread that calls it.
    Panic,
    /// Endless loop, which uses a whole processor.
    Loop,
}

/// A function of a program: its first address and its length.
type Function = (u64, u64);

/// Replaces the code of a function of the process `pid`. `function` is its name as nm(1) demangles it; `...` stands for
/// anything. Needs root.
///
/// # Panics
/// Where the program has no such function, or more than one.
#[track_caller]
pub fn spoil(pid: u32, function: &str, how: Spoiled) -> io::Result<()> {
    let symbols = Command::new("nm").args(["-C", "-S", &format!("/proc/{pid}/exe")]).output()?;
    let symbols = String::from_utf8_lossy(&symbols.stdout);
    let (at, len) = find(&symbols, function);
    assert!(len >= LEN, "{function} has {len} bytes");
    let base = base(pid)?;
    let code = match how {
        // A jump to itself.
        Spoiled::Loop => vec![0xeb, 0xfe],
        Spoiled::Panic => panic_code(base + at, base + find(&symbols, PANICS).0),
    };
    // The kernel makes a copy of the page of the program for this process.
    File::options().write(true).open(format!("/proc/{pid}/mem"))?.write_all_at(&code, base + at)
}

/// Returns code for the address `at` that calls a function at `panics` in its own place, with a
/// `core::panic::Location` in the bytes that follow.
fn panic_code(at: u64, panics: u64) -> Vec<u8> {
    const NAME: &[u8] = b"spoiled";
    let jump = i32::try_from(panics.cast_signed() - (at + 12).cast_signed()).expect("one program is not that large");
    let name = [at + 40, NAME.len() as u64].map(u64::to_le_bytes).concat();
    [
        // lea rdi, [rip + 9]: the address of the sixteenth byte.
        &[0x48, 0x8d, 0x3d, 9, 0, 0, 0][..],
        // jmp
        &[0xe9],
        &jump.to_le_bytes(),
        &[0xcc; 4],
        // The name of a file, a line and a column.
        &name,
        &[1_u32, 1].map(u32::to_le_bytes).concat(),
        NAME,
    ]
    .concat()
}

/// Returns the one function of this name among what nm(1) printed: `ADDRESS LENGTH TYPE NAME`.
#[track_caller]
fn find(symbols: &str, name: &str) -> Function {
    let is_it = |symbol: &str| match name.split_once("...") {
        Some((begin, end)) => symbol.starts_with(begin) && symbol.ends_with(end),
        None => symbol == name,
    };
    let mut found: Vec<Function> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.splitn(4, ' ');
            let [at, len] = [words.next()?, words.next()?].map(|number| u64::from_str_radix(number, 16));
            let symbol = words.nth(1)?;
            is_it(symbol).then_some((at.ok()?, len.ok()?))
        })
        .collect();
    found.dedup();
    assert_eq!(found.len(), 1, "functions of the name {name}");
    found[0]
}

/// Returns the address at which the program of a process begins.
fn base(pid: u32) -> io::Result<u64> {
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let is_begin = |line: &&str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        words.get(2) == Some(&"00000000") && words.get(5).is_some_and(|path| program.as_os_str() == *path)
    };
    let begin = maps.lines().find(is_begin).and_then(|line| line.split_once('-'));
    begin.and_then(|(begin, _)| u64::from_str_radix(begin, 16).ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}
