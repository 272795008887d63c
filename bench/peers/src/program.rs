//! A peer that is a program of its own. It finds the packets of a row in a file, and answers each line `ROW TIMES
//! hot|cold known|unknown` with nanoseconds per packet, or `-` if it does not do this work.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use segue::packet::Csum;

use crate::Peer;
use crate::rows::Row;

pub(crate) struct Program {
    name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Whether it has ended, as DPDK's does where it gets no memory. It is left out from then on.
    has_ended: bool,
}

impl Program {
    /// Starts the program with the folder of the packets as its last argument.
    pub(crate) fn start(name: &str, program: &str, folder: &str) -> Program {
        let mut words = program.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        let mut child = command
            .args(words)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let (requests, answers) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
        Program { name: name.to_owned(), child, requests, answers: BufReader::new(answers), has_ended: false }
    }
}

impl Peer for Program {
    fn name(&self) -> &str {
        &self.name
    }

    fn time(&mut self, row: &Row, times: usize) -> Option<f64> {
        let cold = if row.cold { "cold" } else { "hot" };
        let known = if row.csum == Csum::Unknown { "unknown" } else { "known" };
        if self.has_ended {
            return None;
        }
        let mut line = String::new();
        let asked = writeln!(self.requests, "{} {times} {cold} {known}", row.key);
        if asked.and_then(|()| self.answers.read_line(&mut line)).is_err() {
            line.clear();
        }
        match line.trim() {
            "" => {
                let how = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                eprintln!("bench-peers: without {}: it ended at row {} ({how})", self.name, row.key);
                self.has_ended = true;
                None
            }
            "-" => None,
            nanos => Some(nanos.parse().unwrap_or_else(|_| panic!("{} answered {line:?} for {}", self.name, row.key))),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
