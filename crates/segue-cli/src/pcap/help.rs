//! The help of each subcommand of `segue pcap`.

use segue_control::error::Error;

use crate::help::{Page, of_action};

/// The pages, in the order of the subcommands.
const PAGES: &[Page] = &[
    Page {
        name: "pcap merge",
        usage: "segue pcap merge IN OUT [OPTION]...",
        examples: &[
            ("segue pcap merge in.pcap out.pcapng", "trains, with notes to undo them"),
            ("tcpdump -w - | segue pcap merge - - | tshark -r -", "in a pipe"),
            ("segue pcap merge in.pcap out.pcap --profile linux --max-packets 44", "by the rules of Linux, at most 44"),
        ],
        more: "\
Time is taken from the timestamps. A train takes the place of its first packet.
In pcapng each train carries a note from which segue pcap split --undo restores
the packets exactly; pcap has no place for it. Its format is in docs/pcap.md.
",
    },
    Page {
        name: "pcap split",
        usage: "segue pcap split IN OUT [--undo | --mtu N | --mss N] [OPTION]...",
        examples: &[
            ("segue pcap split big.pcap wire.pcap", "cut by the MSS of each connection, else at 1500"),
            ("segue pcap split --undo merged.pcapng out.pcap", "what was merged, exactly"),
            ("segue pcap split -i big.pcap --mtu 9000", "in place, for a jumbo link"),
        ],
        more: "\
Unfinished checksums, which hold only the pseudo header's sum, are finished.
Wrong ones stay wrong, in every piece too, unless --fix-checksums all.
A UDP train does not tell the size of its datagrams; --mss does. With --mtu,
longer packets other than TCP become IP fragments unless DF forbids it.
",
    },
    Page {
        name: "pcap decap",
        usage: "segue pcap decap IN OUT [OPTION]...",
        examples: &[
            ("segue pcap decap tunnel.pcap inside.pcap", "GUE, VXLAN and Geneve on their ports, GRE, IPIP, SIT"),
            ("segue pcap decap in.pcap out.pcap --fou 5555:ipip --only-tunnelled", "FOU, and nothing else"),
        ],
        more: "\
One layer is taken off; run it again for the next. The packet inside stays as it
was in the tunnel, its checksum finished where a remote checksum option asks for
it. Packets with damaged outer headers stay in their tunnel and are counted.
",
    },
    Page {
        name: "pcap verify",
        usage: "segue pcap verify IN [OPTION]...",
        examples: &[
            ("segue pcap verify in.pcap", "a line for each packet that would be wrong on a wire"),
            ("segue pcap verify in.pcap -j | jq -c 'select(.verdict==\"bad\")'", "an object a line for each packet"),
        ],
        more: "\
Exit status: 0 nothing bad, 1 something bad or the file is cut. Unfinished
checksums are not bad: the network card would have finished them.
",
    },
    Page {
        name: "pcap stat",
        usage: "segue pcap stat IN [OPTION]...",
        examples: &[
            ("segue pcap stat in.pcap", "a screen"),
            ("segue pcap stat in.pcap -j -p", "all of it, for programs"),
        ],
        more: "",
    },
];

/// Returns the pages of all subcommands.
pub(crate) fn pages() -> &'static [Page] {
    PAGES
}

/// Returns the help of one subcommand.
pub(crate) fn of(action: &str, long: bool) -> Result<String, Error> {
    of_action(PAGES, "pcap", action, long)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_has_a_page_a_screen_and_examples() {
        crate::help::check_actions(super::PAGES, "pcap");
    }
}
