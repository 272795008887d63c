//! The pages of segue(1) and of each command.

use clap::{Command, CommandFactory};
use segue_metrics::family::{FAMILIES, Family};

use super::roff::Page;
use crate::args::Cli;
use crate::help;
use crate::{lan78xx, pcap};
use segue_grammar::help::{sentence, spelling};
use segue_grammar::tunnel::KEYWORDS;

const EXIT: &[(&str, &str)] = &[
    ("0", "Done."),
    ("1", "Failed, or a finding: a bad packet, a problem, a case that became slower."),
    ("2", "Used wrongly: nothing was done."),
    ("130", "Interrupted by a signal. Commands that stay until they are stopped end with 0."),
];

const SIGNALS: &[(&str, &str)] = &[
    ("SIGINT, SIGTERM", "End cleanly; the second SIGINT ends at once."),
    (
        "SIGHUP",
        "segue run reads its file again, also under nohup; pcap, lab and bench end, but not under nohup; others ignore it.",
    ),
    ("SIGUSR1", "Instances write their counters to standard error."),
];

const VARIABLES: &[(&str, &str)] = &[
    ("SEGUE_RUNTIME_DIR", "The directory of control sockets instead of the usual ones."),
    (
        "SEGUE_GROUP",
        "The group whose members may read the state of an instance that is started with it: its control socket then belongs to \
         that group. A name or a number. Changes are for its owner and root alone.",
    ),
    ("SEGUE_SIMD", "The checksum implementation to use instead of the fastest one, for measurements."),
    ("NO_COLOR, CLICOLOR_FORCE, TERM", "Whether output has colour, where --color is auto."),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/segue/segue.toml", "The tunnels and gateways of segue.service; see segue.toml(5)."),
    (
        "/run/segue/NAME.sock, /run/segue-root/NAME.sock, $XDG_RUNTIME_DIR/segue/NAME.sock, /tmp/segue-UID/NAME.sock",
        "The control socket of an instance, for its owner and root; root's is in /run/segue-root where segue.service has /run/segue.",
    ),
    ("/dev/net/tun", "The device that makes interfaces."),
];

/// Returns segue(1) and the page of each command, with the names of their files.
pub(super) fn pages() -> Vec<(String, String)> {
    let mut tree = Cli::command();
    tree.build();
    let names = names(&tree);
    let mut pages = vec![("segue.1".to_owned(), overview(&tree, &names))];
    for (command, page) in documented(&tree) {
        let name = title(page);
        pages.push((format!("{name}.1"), self::page(command, page, &names)));
    }
    pages
}

/// Returns every documented command with the written part of its help.
fn documented(tree: &Command) -> Vec<(&Command, &'static help::Page)> {
    let mut found = Vec::new();
    for page in help::pages().iter().chain(pcap::help::pages()).chain(lan78xx::help::pages()) {
        let command = page.name.split(' ').try_fold(tree, |tree, word| tree.find_subcommand(word));
        found.extend(command.map(|command| (command, page)));
    }
    found
}

fn title(page: &help::Page) -> String {
    format!("segue-{}", page.name.replace(' ', "-"))
}

fn names(tree: &Command) -> Vec<String> {
    let mut names: Vec<String> = documented(tree).iter().map(|(_, page)| format!("{}(1)", title(page))).collect();
    names.insert(0, "segue(1)".to_owned());
    names.extend(["segue.toml(5)", "segue-reasons(7)"].map(str::to_owned));
    names
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn overview(tree: &Command, names: &[String]) -> String {
    let mut page = Page::new("segue", 1, &about(tree));
    page.section("SYNOPSIS");
    page.text("segue COMMAND [OPTION]...");
    page.section("DESCRIPTION");
    page.text(
        "segue moves packets in trains, one header and the payload of many segments: tunnels with segmentation and \
         receive offload, gateways, capture files. Each command has a page of its own and answers --help.",
    );
    page.section("COMMANDS");
    for (command, written) in documented(tree) {
        page.entry(&format!("segue {}", written.name), &about(command));
    }
    page.section("OPTIONS");
    for arg in tree.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let (term, description) = help::described(arg);
        page.entry(&term, &description);
    }
    page.section("EXAMPLES");
    for (command, what) in help::EXAMPLES {
        page.example(command, what);
    }
    common(&mut page, names, "segue(1)");
    page.finish()
}

fn page(command: &Command, written: &help::Page, names: &[String]) -> String {
    let name = title(written);
    let mut page = Page::new(&name, 1, &about(command));
    page.section("SYNOPSIS");
    page.text(written.usage);
    if !written.more.is_empty() {
        page.section("DESCRIPTION");
        page.text(written.more);
    }
    if written.name == "tunnel" {
        page.section("WORDS");
        for word in KEYWORDS {
            page.entry(&spelling(word), &sentence(word));
        }
    }
    page.section("OPTIONS");
    for (term, description) in help::listed(command) {
        page.entry(&term, &description);
    }
    page.section("EXAMPLES");
    for (line, what) in written.examples {
        page.example(line, what);
    }
    if written.name == "metrics" {
        page.section("METRICS");
        page.text(
            "A place is the one below instances[] in segue stat -j: {} stands for any key, [] for each element of a list, \
             and | for alternatives.",
        );
        for family in FAMILIES {
            page.entry(family.name, &metric(family));
        }
    }
    common(&mut page, names, &format!("{name}(1)"));
    page.finish()
}

/// Describes a family of metrics: its help, its type, its labels, and its path in the document of `segue stat -j`.
fn metric(family: &Family) -> String {
    let mut text = format!("{} Type: {}.", family.help, family.kind.name());
    for (head, value) in [("Labels", family.labels().join(", ")), ("Place", family.json.to_owned())] {
        if !value.is_empty() {
            text.push_str(&format!(" {head}: {value}."));
        }
    }
    text
}

/// Adds the sections that all pages have.
fn common(page: &mut Page, names: &[String], own: &str) {
    for (heading, entries) in
        [("EXIT STATUS", EXIT), ("ENVIRONMENT", VARIABLES), ("FILES", FILES), ("SIGNALS", SIGNALS)]
    {
        page.section(heading);
        entries.iter().for_each(|(term, description)| page.entry(term, description));
    }
    let others: Vec<String> = names.iter().filter(|name| *name != own).cloned().collect();
    page.references(&others);
}
