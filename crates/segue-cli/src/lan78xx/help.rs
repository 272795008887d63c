//! The help of each subcommand of `segue lan78xx`.

use segue_control::error::Error;

use crate::help::{Page, of_action};

/// Help pages in the order of the subcommands.
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
        usage: "segue lan78xx up [--usb USB] [OPTION]... [dev NAME]",
        examples: &[
            ("segue lan78xx up", "the adapter of this machine as lan0"),
            ("segue lan78xx up --usb model --wire tap:cable0", "a model in this process"),
            ("segue stat lan0 -j | jq .instances[0].ports", "its counters, the chip's included"),
        ],
        more: "\
The interface is a TAP with the adapter's address; its carrier is the link's,
and what is set on it (MTU, address, promiscuous, down) is set in the chip.
It is deleted when the command ends. More in docs/lan78xx.md, also on what was
never tested on hardware.
",
    },
    Page {
        name: "lan78xx model",
        usage: "segue lan78xx model [--usbip ADDR:PORT] [--wire tap:NAME] [OPTION]...",
        examples: &[
            ("segue lan78xx model --wire tap:cable0", "an adapter whose cable is the TAP cable0"),
            ("usbip attach -r 127.0.0.1 -b 1-1", "attach it on this or another host, as root"),
        ],
        more: "\
USB/IP has no authentication: any host that reaches the port can use the device.
With --commands, each line on stdin is a command:
  unplug, plug              off the bus, and on again
  link down, link up [10|100|1000]
  lie checksum|header|none  give the chip a defect, or none
  fault stall-in|stall-out|stall-control|empty|fcs
                            one fault, at the next opportunity
  notes                     what happened so far, one JSON object on stdout
  trace                     the registers touched since the last trace; the
                            first one only starts it
docs/lan78xx.md says what the model does, and what it was never compared with.
",
    },
];

/// Returns the pages of all subcommands.
pub(crate) fn pages() -> &'static [Page] {
    PAGES
}

/// Returns the help of one subcommand.
pub(crate) fn of(action: &str, long: bool) -> Result<String, Error> {
    of_action(PAGES, "lan78xx", action, long)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_has_a_page_a_screen_and_examples() {
        crate::help::check_actions(super::PAGES, "lan78xx");
    }
}
