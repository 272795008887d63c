//! Tests of the documents: every transcript is typed into a shell between two hosts, and its output is compared.
//!
//! A fenced block with the language `console` is a transcript. Prompts are `$ ` and `# ` (host a), or `a# `, `b# `,
//! `c# `. What stands below a command is its output, stdout and stderr together. Words and names are compared
//! exactly, figures only by their place ([`masked`]); lines with a caret are compared column by column; a line `...`
//! stands for any lines, and `...` at the end of a line for the rest of it. A comment before a block, `<!--
//! transcript: WORD; WORD -->`, says:
//!
//! - `stays`: the commands of the block continue to run until the document ends;
//! - `capture`: a capture of 69 packets in a tunnel is there as `big.pcap`;
//! - `router`: host a has `eth1` to host c (198.18.1.2, route by 198.18.1.1) and `eth2` to a host 198.18.2.2;
//! - `file NAME`: the block, of any language, is the contents of that file.
//!
//! A document begins with two fresh hosts, 198.18.0.1 and 198.18.0.2 on `eth0`, and an empty directory; its blocks
//! are typed one after the other. `segue lab` and `make demo`, whose first table is that of `segue lab`, are typed with
//! one short run of the rows over IPv4, and these are the document's rows. Of a bench a few rows are typed (all with
//! `SEGUE_SOAK`), which are among the document's, and the program lists as many as the document has. `segue bench napi`
//! is a model, whose figures are compared exactly. `make install` installs below the directory, and what follows it is
//! typed with the installed program. `SEGUE_BLESS=1` writes what the program printed into the documents instead of
//! failing.

#[path = "common/matching.rs"]
mod matching;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use matching::{Printed, agrees, has_table, row_count};
use segue_lab::{Host, LinkForm, Process};
use segue_tests::{Ground, test_name};

/// Longest time for a command to end, or for a running one to print its output.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for a table of measurements.
const TABLE_PATIENCE: Duration = Duration::from_secs(400);
/// The documents whose transcripts are run, each by one test below.
const TYPED: &[&str] = &[
    "README.md",
    "docs/bench.md",
    "docs/figures.md",
    "docs/gateway.md",
    "docs/pcap.md",
    "docs/run.md",
    "docs/tour.md",
];
/// Languages of fenced blocks.
const LANGUAGES: &[&str] = &["c", "console", "json", "rust", "rust,no_run", "sh", "text", "toml", "xml", "yaml"];

/// A fenced block of a document.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    language: String,
    /// Words of the comment before the block.
    needs: Vec<String>,
    /// Number of the first line inside, from 0.
    begin: usize,
    lines: Vec<String>,
}

/// A command of a transcript.
#[derive(Debug, PartialEq, Eq)]
struct Typed {
    /// The letter of the host that runs the command.
    host: char,
    line: String,
    /// Lines of the document with the expected output, numbered from 0.
    at: std::ops::Range<usize>,
    output: Vec<String>,
}

/// The hosts and the directory in which a document is typed. Processes end before their hosts.
struct Session {
    running: Vec<Process>,
    ground: Ground,
    /// Hosts c and the server of the fixture `router`.
    more: Vec<Host>,
    directory: PathBuf,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.running.clear();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(top().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the documents of the repository, by path: every `.md` file outside of build directories.
fn documents() -> Vec<String> {
    fn list(folder: &str, all: &mut Vec<String>) {
        for entry in fs::read_dir(top().join(folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}{name}");
            if entry.file_type().unwrap().is_dir() {
                if name != "target" && !name.starts_with('.') {
                    list(&format!("{path}/"), all);
                }
            } else if name.ends_with(".md") {
                all.push(path);
            }
        }
    }
    let mut all = Vec::new();
    list("", &mut all);
    all.sort();
    all
}

/// Returns the fenced code blocks of a document.
fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut open, mut needs) = (false, Vec::new());
    for (number, line) in text.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            if !open {
                let needs = std::mem::take(&mut needs);
                found.push(Block { language: language.trim().into(), needs, begin: number + 1, lines: Vec::new() });
            }
            open = !open;
        } else if open {
            found.last_mut().expect("an open block").lines.push(line.into());
        } else if let Some(words) = line.strip_prefix("<!-- transcript: ").and_then(|rest| rest.strip_suffix(" -->")) {
            needs = words.split(';').map(|word| word.trim().into()).collect();
        }
    }
    assert!(!open, "a block is not closed");
    found
}

/// Returns the lines of a document outside of its fenced blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let inside: BTreeSet<usize> =
        blocks(text).iter().flat_map(|block| block.begin..=block.begin + block.lines.len()).collect();
    text.lines()
        .enumerate()
        .filter(move |(number, _)| !inside.contains(number))
        .map(|(number, line)| (number + 1, line))
}

/// Returns whether the line is a command after a prompt; `# ` begins a heading or a comment too.
fn has_prompt(line: &str) -> bool {
    prompt(line).is_some_and(|(_, command)| !line.starts_with("# ") || command.starts_with("segue "))
}

/// Returns whether a line of a non-`console` block in the given language looks like a transcript: a command after a
/// prompt, or in a `text` block a message, the state of an instance or the head of a table.
fn is_transcript(language: &str, line: &str) -> bool {
    let marks = ["error: ", "note: ", "ROW ", "CASE "];
    let states = ["is up", "is down", "can be: "];
    let is_state = line.split_once(' ').is_some_and(|(_, rest)| states.iter().any(|state| rest.starts_with(state)));
    let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
    let is_title = |column: &str| column.starts_with(|first: char| first.is_ascii_uppercase());
    let is_first = |column: &str| column.len() > 1 && column.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_head = columns.next().is_some_and(is_first) && columns.next().is_some_and(is_title);
    let is_output = is_state || is_head || marks.iter().any(|mark| line.starts_with(mark));
    has_prompt(line.trim_start()) || (language == "text" && is_output)
}

/// Returns the host's letter and the command, if the line begins with a prompt.
fn prompt(line: &str) -> Option<(char, &str)> {
    let named = |letter: char| Some((letter, line.strip_prefix(letter)?.strip_prefix("# ")?));
    let plain = ["$ ", "# "].iter().find_map(|prompt| line.strip_prefix(prompt)).map(|line| ('a', line));
    plain.or_else(|| ['a', 'b', 'c'].into_iter().find_map(named))
}

/// Returns the commands of a transcript with their output.
fn commands(block: &Block) -> Vec<Typed> {
    let mut found: Vec<Typed> = Vec::new();
    let mut continues = false;
    for (number, text) in (block.begin..).zip(&block.lines) {
        match (prompt(text), found.last_mut()) {
            (_, Some(last)) if continues => {
                last.line += &format!("\n{text}");
                last.at = number + 1..number + 1;
            }
            (Some((host, line)), _) => {
                found.push(Typed { host, line: line.into(), at: number + 1..number + 1, output: Vec::new() });
            }
            (None, Some(last)) => {
                last.output.push(text.clone());
                last.at.end = number + 1;
            }
            (None, None) => panic!("line {}: output without a command", number + 1),
        }
        let open = found.last().is_some_and(|last| last.output.is_empty() && text.ends_with('\\'));
        continues = open && (continues || prompt(text).is_some());
    }
    found
}

/// Returns whether the command prints a table of measurements.
fn measures(line: &str) -> bool {
    line == "make demo"
        || line.starts_with("segue lab")
        || (line.starts_with("segue bench") && !line.contains("--list"))
}

/// Returns whether the command prints the table of a bench.
fn is_bench(line: &str) -> bool {
    line.starts_with("segue bench") && measures(line)
}

/// Returns whether the command prints a table of the model, which has the same figures on any machine.
fn is_model(line: &str) -> bool {
    is_bench(line) && line.starts_with("segue bench napi")
}

/// Returns whether the test prints all rows of the command's table.
fn is_whole(line: &str) -> bool {
    !is_bench(line) || (is_model(line) && line.contains("--rows")) || segue_testkit::is_set("SEGUE_SOAK")
}

/// Returns a command in the form that the test runs: tables of measurements with one short run, and `make demo` with
/// its first table from the Makefile.
fn short(line: &str) -> String {
    let line = if line == "make demo" { "segue lab" } else { line }.to_owned();
    let words: Vec<_> = line.split(' ').collect();
    let without = |option: &str| match words.iter().position(|word| *word == option) {
        Some(at) => [&words[..at], &words[at + 2..]].concat().join(" "),
        None => line.clone(),
    };
    let is_full = segue_testkit::is_set("SEGUE_SOAK");
    let rows = match words[..] {
        _ if !measures(&line) => return line,
        ["segue", "lab", ..] if words.contains(&"--family") => "--runs 1 --seconds 1",
        ["segue", "lab", ..] => "--family 4 --runs 1 --seconds 1",
        ["segue", "bench", "napi", "--rows", ..] => "--runs 1",
        _ if is_full => "--runs 1 --seconds 1",
        _ => "--quick",
    };
    format!("{} {rows} --progress never", without("--runs"))
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

impl Session {
    fn new(name: &str) -> Option<Session> {
        let ground = Ground::new(name, LinkForm::NicCsum, &["iperf3", "ping", "stdbuf", "sysctl"])?;
        let directory = std::env::temp_dir().join(format!("segue-transcripts-{}-{name}", std::process::id()));
        let directory = PathBuf::from(directory.to_string_lossy().replace("::", "-"));
        fs::create_dir_all(&directory).unwrap();
        Some(Session { running: Vec::new(), ground, more: Vec::new(), directory })
    }

    fn host(&self, letter: char) -> &Host {
        match letter {
            'a' => &self.ground.a,
            'b' => &self.ground.b,
            _ => self.more.first().expect("the fixture `router`"),
        }
    }

    /// Returns a shell that runs `line` at a host, or on this machine if the command creates hosts itself.
    fn shell(&self, host: char, line: &str) -> Command {
        let is_table = measures(line);
        let line = short(line);
        let mut command = if is_table { Command::new("sh") } else { self.host(host).command("sh") };
        // Without a shell in between a signal reaches the program itself. iperf3 writes each line at once to a
        // terminal only.
        let exec = match line.contains(['|', '&', ';', '>', '<', '\n']) {
            true => "",
            false if line.starts_with("iperf3") => "exec stdbuf -oL ",
            false => "exec ",
        };
        command.arg("-c").arg(format!("exec 2>&1; {exec}{line}")).current_dir(&self.directory);
        let (folder, root) = (self.ground.program.parent().expect("a folder"), self.directory.join("root"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}/usr/local/bin:{}:{path}:/usr/sbin:/sbin", root.display(), folder.display());
        if line == "make install" {
            // The program under test is installed, and nothing is built.
            command.current_dir(top()).env("DESTDIR", root).env("SEGUE", &self.ground.program);
        }
        command.env("PATH", path).env("LC_ALL", "C").env("COLUMNS", "80").env_remove("SEGUE_SIMD");
        // `make test` is itself a make: the typed one is not to be its child, which names its directories.
        for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
            command.env_remove(name);
        }
        command
    }

    fn prepare(&mut self, block: &Block) {
        for need in &block.needs {
            match need.split_once(' ') {
                Some(("file", name)) => {
                    fs::write(self.directory.join(name), block.lines.join("\n") + "\n").unwrap();
                }
                _ if need == "capture" => {
                    let capture = top().join("captures/gue-gre-remcsum-inner4-tcp.pcap");
                    fs::copy(capture, self.directory.join("big.pcap")).unwrap();
                }
                _ if need == "router" => self.router(),
                _ => assert_eq!(need, "stays", "line {}: no such fixture", block.begin),
            }
        }
    }

    fn router(&mut self) {
        for (number, letter) in [(1, "c"), (2, "s")] {
            let host = Host::new(letter).unwrap();
            let (near, netns) = (format!("eth{number}"), host.net_path());
            let link = ["link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", &netns];
            self.ground.a.run("ip", &link).unwrap();
            self.ground.a.run("ip", &["link", "set", &near, "up"]).unwrap();
            host.run("ip", &["addr", "add", &format!("198.18.{number}.2/24"), "dev", "eth0"]).unwrap();
            host.run("ip", &["link", "set", "eth0", "up"]).unwrap();
            host.run("ip", &["route", "add", "default", "via", &format!("198.18.{number}.1")]).unwrap();
            self.more.push(host);
        }
    }

    /// Runs a command; returns its output, and whether that matches the document. A reading of counters is repeated
    /// until then.
    fn run(&mut self, typed: &Typed, stays: bool) -> (Vec<String>, bool) {
        let is_table = measures(&typed.line);
        let begin = Instant::now();
        loop {
            let mut process = Process::spawn(self.shell(typed.host, &typed.line), b"").expect("a shell");
            if stays {
                return self.wait_for(process, typed);
            }
            let patience = if is_table { TABLE_PATIENCE } else { PATIENCE };
            process.wait(patience).unwrap_or_else(|error| panic!("`{}`: {error}", typed.line));
            let output = lines(&process.stdout());
            let good = if is_table { self.has_rows(typed, &output) } else { agrees(&typed.output, &output) };
            let reads = ["segue stat", "segue nat"].iter().any(|start| typed.line.starts_with(start));
            if good || !reads || begin.elapsed() > PATIENCE {
                return (output, good);
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Returns whether a table has the rows of the document.
    fn has_rows(&self, typed: &Typed, output: &[String]) -> bool {
        let printed = if is_whole(&typed.line) { Printed::Whole } else { Printed::Part };
        // The second table of a bench has rows of its own, of which there is no list.
        let count = row_count(&typed.output);
        if printed == Printed::Part && count > 0 {
            let line = format!("{} --list", typed.line);
            let mut process = Process::spawn(self.shell(typed.host, &line), b"").expect("a shell");
            process.wait(PATIENCE).unwrap_or_else(|error| panic!("`{line}`: {error}"));
            let listed = lines(&process.stdout());
            let has_count = listed.iter().any(|line| line.starts_with(&format!("{count} rows, ")));
            assert!(has_count, "the table has {count} rows, and `{line}` prints\n{}", listed.join("\n"));
        }
        has_table(&typed.output, output, printed, is_model(&typed.line))
    }

    /// Waits until a running command has printed the output in the document, and leaves it running.
    fn wait_for(&mut self, mut process: Process, typed: &Typed) -> (Vec<String>, bool) {
        let begin = Instant::now();
        loop {
            let ended = process.ended().is_some();
            let output = lines(&process.stdout());
            let said = !output.is_empty() && agrees(&typed.output, &output);
            if said || ended || begin.elapsed() > PATIENCE {
                self.running.push(process);
                return (output, said && !ended);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The commands of a document that a test types.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// All transcripts but those of the benches.
    Usual,
    /// Transcripts of the benches: the rows of their tables take too long in the program of the tests' build for every
    /// run.
    Benches,
}

/// Types a part of the transcripts of a document, at least one command.
fn type_document(name: &str, part: Part, test: &str) {
    let Some(mut session) = Session::new(test) else { return };
    let text = read(name);
    let (mut faults, mut blessed) = (Vec::new(), text.lines().map(str::to_owned).collect::<Vec<_>>());
    let mut count = 0;
    for block in blocks(&text) {
        session.prepare(&block);
        if block.language != "console" {
            continue;
        }
        let stays = block.needs.iter().any(|need| need == "stays");
        for typed in commands(&block) {
            if is_bench(&typed.line) != (part == Part::Benches) {
                continue;
            }
            count += 1;
            let (output, good) = session.run(&typed, stays);
            if !good {
                let printed = output.join("\n");
                faults.push(format!("{name}:{}: `{}` prints\n{printed}\n", typed.at.start, typed.line));
                // Later blocks keep their line numbers: lines are replaced at once, and split when written.
                let at = typed.at.start - 1;
                typed.at.clone().for_each(|line| blessed[line].clear());
                typed.at.clone().for_each(|line| blessed[line].push('\0'));
                blessed[at] += &output.iter().map(|line| format!("\n{line}")).collect::<String>();
            }
        }
    }
    assert!(count > 0, "{name} has no command that this test types");
    if std::env::var_os("SEGUE_BLESS").is_some() && !faults.is_empty() {
        blessed.retain(|line| line != "\0");
        fs::write(top().join(name), blessed.join("\n") + "\n").unwrap();
        return;
    }
    assert!(faults.is_empty(), "SEGUE_BLESS=1 writes it into the document\n{}", faults.join("\n"));
}

#[test]
fn the_readme_tells_what_the_program_does() {
    type_document("README.md", Part::Usual, test_name!());
}

#[test]
fn the_tour_tells_what_the_program_does() {
    type_document("docs/tour.md", Part::Usual, test_name!());
}

#[test]
fn the_document_of_captures_tells_what_the_program_does() {
    type_document("docs/pcap.md", Part::Usual, test_name!());
}

#[test]
fn the_document_of_the_service_tells_what_the_program_does() {
    type_document("docs/run.md", Part::Usual, test_name!());
}

#[test]
fn the_document_of_the_gateway_tells_what_the_program_does() {
    type_document("docs/gateway.md", Part::Usual, test_name!());
}

#[test]
fn the_document_of_the_benches_tells_what_the_program_does() {
    type_document("docs/bench.md", Part::Usual, test_name!());
}

#[test]
fn full_size_document_of_figures_tells_what_the_program_does() {
    type_document("docs/figures.md", Part::Usual, test_name!());
}

#[test]
fn full_size_tables_of_the_benches_are_as_documented() {
    for name in ["docs/bench.md", "docs/figures.md"] {
        type_document(name, Part::Benches, test_name!());
    }
}

#[test]
fn every_block_has_a_language_and_every_transcript_is_typed() {
    let mut typed = BTreeSet::new();
    for name in documents() {
        let text = read(&name);
        for block in blocks(&text) {
            let place = format!("{name}:{}", block.begin);
            assert!(LANGUAGES.contains(&block.language.as_str()), "{place}: the language `{}`", block.language);
            if block.language == "console" {
                assert!(!commands(&block).is_empty(), "{place}: a transcript without a command");
                typed.insert(name.clone());
            } else if let Some(line) = block.lines.iter().find(|line| is_transcript(&block.language, line)) {
                panic!("{place}: a transcript has the language `console`: {line}");
            }
        }
        let outside =
            prose(&text).find(|(_, line)| has_prompt(line.trim_start()) || line.trim_start().starts_with("~~~"));
        assert!(
            outside.is_none(),
            "{name}:{}: a transcript is a fenced block",
            outside.map_or(0, |(number, _)| number)
        );
    }
    assert_eq!(typed.iter().map(String::as_str).collect::<Vec<_>>(), TYPED);
}

#[test]
fn the_readme_is_short_and_its_example_is_the_one_that_is_compiled() {
    let text = read("README.md");
    assert!(text.lines().count() <= 150, "{} lines", text.lines().count());
    let example =
        |text: &str| blocks(text).into_iter().find(|block| block.language == "rust").expect("an example").lines;
    assert_eq!(example(&text), example(&read("crates/segue/README.md")));
}

#[test]
fn make_demo_is_the_lab() {
    let text = read("Makefile");
    let recipe = text.lines().skip_while(|line| !line.starts_with("demo:")).skip(1);
    let lines: Vec<&str> = recipe.take_while(|line| line.starts_with('\t')).map(str::trim).collect();
    assert!(lines.ends_with(&["$(SEGUE) lab", "$(SEGUE) lab --link veth --family 4"]), "{lines:?}");
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for name in documents() {
        let text = read(&name);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") || target.contains(char::is_whitespace) {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { top().join(&name) } else { top().join(&name).with_file_name(file) };
            let path = if file.contains('/') { top().join(&name).parent().unwrap().join(file) } else { path };
            // A folder, or a picture.
            if heading.is_empty() {
                assert!(path.exists(), "{name}: no {target}");
                continue;
            }
            let there = fs::read_to_string(&path).unwrap_or_else(|_| panic!("{name}: no {target}"));
            let anchor = |line: &str| {
                let kept = line.to_lowercase().replace(' ', "-");
                kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>()
            };
            let mut headings = there.lines().filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")));
            assert!(headings.any(|line| anchor(line) == heading), "{name}: no {target}");
        }
    }
}

#[test]
fn every_measurement_named_after_make_figures_exists() {
    let mut named = 0;
    let files = fs::read_dir(top().join("tools/figures.d"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap());
    let measurements: Vec<String> = files.collect();
    for name in documents() {
        let text = read(&name);
        for rest in text.split("make figures").skip(1) {
            let Some(rest) = rest.trim_start_matches([' ', '[', '\n']).strip_prefix("ONLY=") else { continue };
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '-').unwrap_or(rest.len());
            let word = &rest[..end];
            // `NAME` is the placeholder of a synopsis; a word chooses all measurements whose name holds it.
            let is_there = word == "NAME" || (!word.is_empty() && measurements.iter().any(|name| name.contains(word)));
            assert!(is_there, "{name}: no measurement `{word}`");
            named += usize::from(word != "NAME");
        }
    }
    assert!(named > 0, "no document names a measurement");
}

#[test]
fn a_transcript_outside_of_a_console_block_is_found() {
    for line in ["$ segue stat", "# segue stat", "b# ip link", "  $ segue stat", "$ ls"] {
        assert!(is_transcript("sh", line), "{line}");
        assert_eq!(prose(&format!("Text\n{line}\n")).filter(|(_, line)| has_prompt(line.trim_start())).count(), 1);
        assert_eq!(
            prose(&format!("```sh\n{line}\n```\n")).filter(|(_, line)| has_prompt(line.trim_start())).count(),
            0
        );
    }
    for line in ["segue stat", "# a comment of a script", "cost: $ 3"] {
        assert!(!is_transcript("sh", line), "{line}");
    }
    let outputs = [
        "error: no such device",
        "note: pcap becomes pcapng in out.pcapng",
        "sg0 is up: gre, 198.18.0.1 -> 198.18.0.2",
        "sg0 can be: gre in GUE, 198.18.0.1 -> 198.18.0.2:6080",
        "NAME  UP  RX bit/s  TX bit/s",
        "  PORT  STAGE      UNITS",
        "CASE         NET  Gbit/s",
    ];
    for line in outputs {
        assert!(is_transcript("text", line) && !is_transcript("sh", line), "{line}");
    }
    for line in ["TUN read           one system call", "segue stat NAME  what it did", "[Service]"] {
        assert!(!is_transcript("text", line), "{line}");
    }
}

#[test]
fn blocks_and_commands_are_found() {
    let text =
        "Text\n<!-- transcript: stays; file x -->\n```console\na# one \\\n  two\nout\nb# three\n```\n```sh\nx\n```\n";
    let found = blocks(text);
    assert_eq!(found.iter().map(|block| block.language.as_str()).collect::<Vec<_>>(), ["console", "sh"]);
    assert_eq!(found[0].needs, ["stays", "file x"]);
    assert!(found[1].needs.is_empty());
    let commands = commands(&found[0]);
    assert_eq!((commands[0].host, commands[0].line.as_str(), commands[0].at.clone()), ('a', "one \\\n  two", 5..6));
    assert_eq!((commands[1].host, commands[1].line.as_str(), commands[1].output.len()), ('b', "three", 0));
    assert!(short("segue bench lro --runs 3").starts_with("segue bench lro --"));
    assert!(short("make demo").starts_with("segue lab --"));
    assert_eq!(short("segue bench lro --list"), "segue bench lro --list");
    let benches = ["segue bench lro --list", "segue bench lro", "segue bench napi", "segue bench napi --rows rpi4"];
    assert_eq!(benches.map(is_bench), [false, true, true, true]);
    assert_eq!(benches.map(is_model), [false, false, true, true]);
    assert!(is_whole("make demo") && is_whole("segue lab --family 4") && is_whole(benches[3]));
}
