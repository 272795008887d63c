//! The help of each command of `segue lan78xx`.

use clap::CommandFactory;

use crate::args::Cli;
use crate::error::{Error, Kind};
use crate::help::{Page, complete, screen};

/// The pages, in the order of the commands.
const PAGES: &[Page] = &[
    Page {
        name: "lan78xx list",
        usage: "segue lan78xx list [--usbip HOST[:PORT]]",
        examples: &[
            ("segue lan78xx list --usbip 127.0.0.1", "what a USB/IP server has"),
            ("segue lan78xx list -j", "for programs"),
        ],
        more: "",
    },
    Page {
        name: "lan78xx up",
        usage: "segue lan78xx up [--usb auto|PORT|usbip://HOST/BUSID|model] [OPTION]...",
        examples: &[
            ("segue lan78xx up", "the adapter of this machine as lan0"),
            ("segue lan78xx up --usb model --wire tap:cable0", "a model in this process"),
            ("segue stat lan0 -j | jq .instances[0].ports", "its counters, the chip's included"),
        ],
        more: "\
The interface is a TAP with the adapter's address; its carrier is the link's.
It goes when the command ends. docs/lan78xx.md has all of it, and says what was
never tried on silicon.
",
    },
    Page {
        name: "lan78xx model",
        usage: "segue lan78xx model [--usbip ADDR:PORT] [--wire tap:NAME] [OPTION]...",
        examples: &[
            ("segue lan78xx model --wire tap:cable0", "an adapter whose cable ends in cable0"),
            ("usbip attach -r 127.0.0.1 -b 1-1", "this or another host gets it, as root"),
        ],
        more: "\
USB/IP has no protection: whoever reaches the port has the device. With
--commands, lines on stdin are obeyed:
  unplug, plug              off the bus, and on again
  link down, link up [10|100|1000]
  lie checksum|header|none  a chip that is wrong
  fault stall-in|stall-out|stall-control|empty|fcs
                            once, at the next occasion
  notes                     what happened so far, one JSON object on stdout
docs/lan78xx.md says what the model does, and what it was never compared with.
",
    },
];

/// The help of one of the commands.
pub(crate) fn of(action: &str, long: bool) -> Result<String, Error> {
    let mut tree = Cli::command();
    tree.build();
    let page = PAGES.iter().find(|page| page.name.strip_prefix("lan78xx ") == Some(action));
    let command = tree.find_subcommand("lan78xx").and_then(|lan| lan.find_subcommand(action));
    let (Some(page), Some(command)) = (page, command) else {
        return Err(Error::new(Kind::Usage, format!("there is no help for `lan78xx {action}`"), "segue help lan78xx"));
    };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    Ok(if long { complete(page, command, &about) } else { screen(page, command, &about) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_a_screen_and_examples() {
        let tree = Cli::command();
        let lan = tree.find_subcommand("lan78xx").unwrap();
        let names: Vec<String> = lan.get_subcommands().map(|c| format!("lan78xx {}", c.get_name())).collect();
        assert_eq!(PAGES.iter().map(|page| page.name).collect::<Vec<_>>(), names);
        for page in PAGES {
            let action = page.name.strip_prefix("lan78xx ").unwrap();
            let screen = of(action, false).unwrap();
            assert!(screen.lines().count() <= 24, "{} lines\n{screen}", screen.lines().count());
            let long = of(action, true).unwrap();
            assert!(long.starts_with("Examples:\n  ") && (2..=3).contains(&page.examples.len()), "{long}");
            for text in [screen, long] {
                assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            }
        }
    }
}
