//! Entry point of the program `segue`. The library beside it has the whole of it, so that others can call what it
//! reads.

use std::process::ExitCode;

fn main() -> ExitCode {
    segue_cli::main()
}
