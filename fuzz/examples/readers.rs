//! Reads one input of a reader of outside data: `readers NAME ENTRIES`, for `tools/trust.d/05-linear`. Without words it
//! lists the readers.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, count] = &words[..] else {
        segue_fuzz::READERS.iter().for_each(|reader| println!("{}", reader.name));
        return ExitCode::SUCCESS;
    };
    let reader = segue_fuzz::READERS.iter().find(|reader| reader.name == name);
    let (Some(reader), Ok(count)) = (reader, count.parse()) else {
        eprintln!("usage: readers [NAME ENTRIES]");
        return ExitCode::FAILURE;
    };
    let cost = reader.cost(count);
    println!("{} {} {} {}", cost.len, cost.memory, cost.allocations, cost.output);
    ExitCode::SUCCESS
}
