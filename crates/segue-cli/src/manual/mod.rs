//! The manual pages, made from the tables that parser, help and completion use: one for each command, segue.toml(5) and
//! segue-reasons(7).

mod command;
mod file;
mod reasons;
mod roff;

use std::fs;
use std::path::Path;

use segue_control::error::Error;

use crate::out::Out;

/// Returns every page with the name of its file.
fn pages() -> Vec<(String, String)> {
    let mut pages = command::pages();
    pages.push(("segue.toml.5".to_owned(), file::page()));
    pages.push(("segue-reasons.7".to_owned(), reasons::page()));
    pages
}

/// Writes every page into `folder`, which is made where it is missing.
pub(crate) fn write(folder: &Path, out: &Out) -> Result<(), Error> {
    let failed = |error: &std::io::Error| {
        Error::system(format!("cannot write manual pages into {}", folder.display()), error, "segue help help")
            .why("the folder must be one where this user may make files")
    };
    fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    let pages = pages();
    for (name, text) in &pages {
        fs::write(folder.join(name), text).map_err(|error| failed(&error))?;
    }
    out.note(&format!("{} manual pages are in {}", pages.len(), folder.display()));
    Ok(())
}
