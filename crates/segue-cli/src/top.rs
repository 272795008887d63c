//! `segue top`: the live screen; without a terminal, the output of `segue stat --watch`.

use std::env;
use std::io::{self, IsTerminal};
use std::time::Duration;

use anstream::ColorChoice;
use segue_control::error::Error;
use segue_top::{Appearance, Options};

use crate::args::{Stat, Top};
use crate::out::Out;
use crate::stat;

/// Runs `segue top`.
pub(crate) fn run(args: &Top, out: &Out) -> Result<(), Error> {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if out.json || !is_terminal || env::var("TERM").is_ok_and(|term| term == "dumb") {
        let (name, watch) = (args.filter.clone(), Some(args.interval));
        let plain = Stat { name, why: false, watch, health: false, strict: false, raw: false, details: false };
        return stat::run(&plain, out);
    }
    let has_colour = match ColorChoice::global() {
        ColorChoice::Never => false,
        ColorChoice::Always | ColorChoice::AlwaysAnsi => true,
        ColorChoice::Auto => env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let appearance = Appearance { has_colour, is_ascii: args.ascii || !has_utf8() };
    let filter = args.filter.clone().unwrap_or_default();
    let options = Options { interval: Duration::from_secs(u64::from(args.interval)), filter, appearance };
    segue_top::run(&options).map_err(|error| {
        Error::system("cannot draw on this terminal", &error, "segue stat --watch 1").why("the terminal refused")
    })
}

/// Returns whether the locale has UTF-8: the first variable that is set counts.
fn has_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| env::var(name).ok().filter(|v| !v.is_empty()));
    set.is_some_and(|locale| locale.to_ascii_lowercase().replace('-', "").contains("utf8"))
}
