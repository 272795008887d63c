//! The page segue.toml(5): the file of `segue run`.

use segue_service::supervise::spec::Kind;

use super::roff::Page;
use crate::help;
use crate::run::keys;
use segue_grammar::help::sentence;
use segue_grammar::tunnel::KEYWORDS;
use segue_grammar::{Takes, Word};

/// The example with every key, which a test reads.
const EXAMPLE: &str = include_str!("../../../../docs/segue.toml");

/// Returns the manual page segue.toml(5).
pub(super) fn page() -> String {
    let mut page = Page::new("segue.toml", 5, "the tunnels and gateways of segue run");
    page.section("DESCRIPTION");
    page.text(
        "The file is TOML: a table [[tunnel]], [[gateway]] or [[lan78xx]] for each instance, and at most one [metrics]. A key of a tunnel \
         is a word of segue-tunnel(1), any other key is an option of the command without its dashes. A switch is true or \
         false, and what may be given several times is a list. A key that begins with net. is a knob of segue-set(1).\n\n\
         An instance is named after its interface (dev), or by name. Tunnels with the same local address and port share one \
         socket and one process.\n\n\
         segue run --check shows every error of a file with its line and column, and changes nothing. On SIGHUP the file is \
         read again: an instance with the same keys continues untouched, a changed knob is set while packets move, and any \
         other change restarts that one instance; of tunnels that share a port, those that did not change lose no packet. A \
         file with an error changes nothing.\n\n\
         A remote that is a host name is looked up at the start and at each reload. A tunnel whose name has no address yet is \
         down, and starts when it has one; the others do not wait for it.",
    );
    page.section("KEYS OF [[tunnel]]");
    for word in KEYWORDS {
        page.entry(&key(word), &sentence(word));
    }
    options(&mut page, Kind::Tunnel);
    page.section("KEYS OF [[gateway]]");
    page.entry("in = \"NAME\"", "An interface, tap:NAME[@NETNS] for a new TAP, or vhost:PATH for a guest.");
    page.entry("out = \"NAME\"", "The other side, likewise.");
    options(&mut page, Kind::Gateway);
    page.section("KEYS OF [[lan78xx]]");
    options(&mut page, Kind::Adapter);
    page.section("KEYS OF [metrics]");
    options(&mut page, Kind::Metrics);
    page.section("EXAMPLES");
    page.text("Every key with its default:");
    page.listing(EXAMPLE);
    page.section("FILES");
    page.entry("/etc/segue/segue.toml", "The file of segue.service.");
    page.entry("/etc/segue/NAME.toml", "The file of segue@NAME.service.");
    page.references(
        &["segue(1)", "segue-run(1)", "segue-tunnel(1)", "segue-gateway(1)", "segue-set(1)"].map(str::to_owned),
    );
    page.finish()
}

/// Returns a key with the form of its value.
fn key(word: &Word) -> String {
    let value = match word.takes {
        Takes::Switch => "true|false".to_owned(),
        Takes::Ports => "[MIN, MAX]".to_owned(),
        Takes::OneOf(["on", "off"]) => "true|false".to_owned(),
        Takes::Number { or: [], .. } => "N".to_owned(),
        _ => format!("\"{}\"", word.metavar),
    };
    let value = if word.repeats { format!("[{value}, ...]") } else { value };
    format!("{} = {value}", word.name)
}

fn options(page: &mut Page, kind: Kind) {
    for (name, arg) in keys::arguments(kind) {
        let value =
            match arg.get_value_names().and_then(|names| names.first()).filter(|_| arg.get_action().takes_values()) {
                Some(value) if matches!(arg.get_action(), clap::ArgAction::Append) => format!("[\"{value}\", ...]"),
                Some(value) => format!("\"{value}\""),
                None => "true|false".to_owned(),
            };
        page.entry(&format!("{name} = {value}"), &help::described(&arg).1);
    }
}
