//! The file of `segue run`: a `[[tunnel]]` or `[[gateway]]` for each instance. A key is a word or an option of the command,
//! so that there is one table of what they take; `net.` begins a knob.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::ops::Range;

use clap::{CommandFactory, Parser};
use toml::de::{DeTable, DeValue};

use super::source::{Text, together};
use crate::args::{self, Cli, Command};
use crate::control::knobs::{self, Knob, Wrong};
use crate::daemon::knobs as desk;
use crate::error::{Error, printable};
use crate::gateway;
use crate::system::Netlink;
use crate::tunnel::group::{self, Group};
use crate::tunnel::{self, plan::Plan};
use crate::usage;
use crate::words::parse::{self, nearest};
use crate::words::{Takes, Word, tunnel::WORDS};

/// Options that make no sense in a file.
const NOT_HERE: &[&str] = &["check", "set"];

/// What an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tunnel,
    Gateway,
}

impl Kind {
    /// The command that makes it.
    pub(super) fn command(self) -> &'static str {
        match self {
            Kind::Tunnel => "tunnel",
            Kind::Gateway => "gateway",
        }
    }
}

/// A word of a command line, and where in the file it is from.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    span: Range<usize>,
}

/// A knob with its value, and where both are.
#[derive(Clone, Debug)]
struct Wish {
    name: Token,
    value: Token,
}

/// One instance of the file.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) kind: Kind,
    /// The name by which it is asked for.
    pub(super) name: String,
    tokens: Vec<Token>,
    wishes: Vec<Wish>,
    /// Its heading.
    header: Range<usize>,
}

impl Unit {
    /// The words behind the command, knobs left out: two instances are the same where these are.
    pub(super) fn words(&self) -> Vec<String> {
        self.tokens.iter().map(|token| token.text.clone()).collect()
    }

    /// How many tunnels or gateways it is.
    pub(super) fn members(&self) -> usize {
        1 + self.tokens.iter().filter(|token| token.text == parse::ALSO).count()
    }

    /// The knobs that it sets.
    pub(super) fn wishes(&self) -> Vec<(String, String)> {
        self.wishes.iter().map(|wish| (wish.name.text.clone(), wish.value.text.clone())).collect()
    }

    /// An error about knob `at`.
    fn wrong_knob(&self, text: &Text, at: usize, wrong: &Wrong) -> Error {
        let span = self
            .wishes
            .get(at)
            .map_or(&self.header, |wish| if wrong.is_name { &wish.name.span } else { &wish.value.span });
        let mut error = text.error(span, wrong.message.clone(), wrong.note.clone());
        error.hint = wrong.good.clone();
        if let Some(source) = &mut error.source {
            source.nearest.clone_from(&wrong.nearest);
        }
        error
    }

    /// An error about the words, which may point at one of them.
    fn located(&self, text: &Text, error: Error) -> Error {
        let span = error.place.as_ref().map_or(&self.header, |place| {
            let wrong = place.words.get(place.at);
            let same = place.words.len() == self.tokens.len();
            let token = if same { self.tokens.get(place.at) } else { None };
            let token = token.or_else(|| self.tokens.iter().rfind(|token| Some(&token.text) == wrong));
            token.map_or(&self.header, |token| &token.span)
        });
        text.at(&span.clone(), error)
    }

    /// What would stop it on this host, or a description of it. Changes nothing.
    pub(super) fn check(&self, text: &Text, netlink: &mut Netlink) -> Result<String, Error> {
        let (knobs, words) = match self.parsed().map_err(|error| self.located(text, error))? {
            Parsed::Tunnels(plans) => {
                let knobs = tunnel::start::knobs(plans.iter(), &[]);
                let group = Group::resolve(plans, netlink).map_err(|error| self.located(text, error))?;
                (knobs, tunnel::show::plan_text(&group))
            }
            Parsed::Gateway(args) => {
                let plan = gateway::plan::plan(&args, netlink).map_err(|error| self.located(text, error))?;
                (gateway::start::knobs(&plan, &[]), format!("{} can be: {}", plan.name, plan.text()))
            }
        };
        let knobs = knobs.map_err(|error| self.located(text, error))?;
        self.check_knobs(text, desk::listed(&knobs))?;
        Ok(words.replace("nothing was changed\n", ""))
    }

    /// Whether its knobs can be set where `known` are the knobs, as they are before.
    pub(super) fn check_knobs(&self, text: &Text, mut known: Vec<Knob>) -> Result<(), Error> {
        let mut errors = Vec::new();
        for (at, wish) in self.wishes.iter().enumerate() {
            match knobs::set(&mut known, &wish.name.text, &wish.value.text) {
                Ok(()) => {}
                Err(wrong) => errors.push(self.wrong_knob(text, at, &wrong)),
            }
        }
        together(errors).map_or(Ok(()), Err)
    }

    /// The command line that it stands for, read as the program reads it.
    fn parsed(&self) -> Result<Parsed, Error> {
        let words: Vec<String> = self.words();
        let line = ["segue", self.kind.command()].into_iter().map(str::to_owned).chain(words.iter().cloned());
        match Cli::try_parse_from(line).map_err(|found| usage::error(&found, &words))?.command {
            Some(Command::Tunnel(args)) => {
                let each = parse::parse_each("segue tunnel", WORDS, &args.words)?;
                let plan = |parsed| tunnel::plan::plan(parsed, args.trace.clone(), &[]);
                Ok(Parsed::Tunnels(each.iter().map(plan).collect::<Result<_, _>>()?))
            }
            Some(Command::Gateway(args)) => Ok(Parsed::Gateway(Box::new(args))),
            _ => Err(Error::new(crate::error::Kind::Internal, "a key became another command", "segue help run")),
        }
    }
}

/// What a unit is, as its command sees it.
enum Parsed {
    /// One, or several with one port.
    Tunnels(Vec<Plan>),
    Gateway(Box<args::Gateway>),
}

/// Reads a configuration; what can be found wrong without asking the system is found here, all of it.
pub(super) fn read(text: &Text) -> Result<Vec<Unit>, Error> {
    let (document, broken) = DeTable::parse_recoverable(&text.text);
    let end = text.text.len()..text.text.len();
    let mut errors: Vec<Error> =
        broken.iter().map(|error| text.error(&error.span().unwrap_or(end.clone()), error.message(), "")).collect();
    let mut units: Vec<Unit> = Vec::new();
    // What follows a fault in the form would be about the fault.
    if errors.is_empty() {
        for (key, value) in document.get_ref() {
            let kind = match key.get_ref().as_ref() {
                "tunnel" => Kind::Tunnel,
                "gateway" => Kind::Gateway,
                other => {
                    errors.push(unknown(text, &key.span(), other, &["tunnel".to_owned(), "gateway".to_owned()]));
                    continue;
                }
            };
            let tables =
                value.get_ref().as_array().filter(|tables| tables.iter().all(|table| table.get_ref().is_table()));
            let Some(tables) = tables else {
                let note = format!("write [[{}]] above each", kind.command());
                errors.push(text.error(&key.span(), format!("`{}` is a list of tables", kind.command()), note));
                continue;
            };
            for table in tables.iter() {
                if let DeValue::Table(keys) = table.get_ref() {
                    match unit(text, kind, keys, table.span()) {
                        Ok(unit) => units.push(unit),
                        Err(found) => errors.extend(found),
                    }
                }
            }
        }
    }
    units.sort_by_key(|unit| unit.header.start);
    let mut names: HashMap<&str, &Unit> = HashMap::new();
    for unit in &units {
        match names.entry(&unit.name) {
            Entry::Vacant(place) => drop(place.insert(unit)),
            Entry::Occupied(first) => {
                let note = format!("line {} has the same", text.line(first.get().header.start));
                let message = format!("`{}` is there twice", printable(&unit.name));
                errors.push(text.error(&unit.name_span(), message, note));
            }
        }
    }
    let units = if errors.is_empty() { joined(units, text, &mut errors) } else { units };
    match together(errors) {
        Some(error) => Err(error),
        None => Ok(units),
    }
}

/// The socket that a tunnel receives with.
#[derive(PartialEq, Eq, Hash)]
struct Socket {
    local: Option<IpAddr>,
    is_ipv4: bool,
    /// UDP's, where there is that.
    port: Option<u16>,
    /// Those of IP, where there is no UDP.
    protocols: &'static [u8],
}

impl Socket {
    fn of(plan: &Plan) -> Socket {
        let (port, protocols) = match plan.has_udp() {
            true => (Some(plan.port), &[][..]),
            false => (None, tunnel::start::identity(plan).mode.protocols()),
        };
        Socket { local: plan.local, is_ipv4: plan.remote.is_ipv4(), port, protocols }
    }
}

/// Tunnels with one address and port become one instance, with the name of the first.
fn joined(units: Vec<Unit>, text: &Text, errors: &mut Vec<Error>) -> Vec<Unit> {
    let mut made: Vec<(Unit, Vec<Plan>, Vec<Range<usize>>)> = Vec::new();
    let mut places: HashMap<Socket, usize> = HashMap::new();
    for unit in units {
        let header = unit.header.clone();
        let plan = match unit.parsed() {
            // Without a port it must be sure that the address is one.
            Ok(Parsed::Tunnels(mut plans)) => plans.pop().filter(|plan| plan.has_udp() || plan.local.is_some()),
            Ok(Parsed::Gateway(_)) | Err(_) => None,
        };
        let Some(plan) = plan else {
            made.push((unit, Vec::new(), Vec::new()));
            continue;
        };
        let at = *places.entry(Socket::of(&plan)).or_insert(made.len());
        match made.get_mut(at) {
            None => made.push((unit, vec![plan], vec![header])),
            Some((first, plans, headers)) => {
                first.append(unit);
                plans.push(plan);
                headers.push(header);
            }
        }
    }
    for (_, plans, headers) in &made {
        if let Some(clash) = group::clash(plans) {
            let first = text.line(headers.first().map_or(0, |header| header.start));
            let note = format!("{} (line {first} has the first of them)", clash.note);
            errors.push(text.error(&headers[clash.at], clash.message, note));
        }
        if let Some(at) = plans.iter().skip(1).position(|plan| plan.trace.is_some()) {
            let message = format!("`trace` of `{}` is that of all who share its port", plans[at + 1].dev);
            errors.push(text.error(&headers[at + 1], message, format!("give it to `{}`, the first", plans[0].dev)));
        }
    }
    made.into_iter().map(|(unit, ..)| unit).collect()
}

impl Unit {
    /// Makes `other` a tunnel of the same process.
    fn append(&mut self, other: Unit) {
        let also = Token { text: parse::ALSO.to_owned(), span: other.header.clone() };
        // Options are of the process: those of the first, in front.
        self.tokens.push(also);
        self.tokens.extend(other.tokens);
        self.wishes.extend(other.wishes);
    }

    fn name_span(&self) -> Range<usize> {
        let named = |token: &&Token| token.text == self.name;
        self.tokens.iter().find(named).map_or(self.header.clone(), |token| token.span.clone())
    }
}

fn unknown(text: &Text, span: &Range<usize>, key: &str, known: &[String]) -> Error {
    let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
    let note = near.as_ref().map_or(String::new(), |near| format!("did you mean `{near}`?"));
    let mut error = text.error(span, format!("unknown key `{}`", printable(key)), note);
    error.hint = format!("one of {}", known.join(", "));
    if let Some(source) = &mut error.source {
        source.nearest = near;
    }
    error
}

/// One table of the file.
fn unit(text: &Text, kind: Kind, keys: &DeTable<'_>, header: Range<usize>) -> Result<Unit, Vec<Error>> {
    // The heading alone, without the keys below it.
    let line_end = text.text[header.start..].find('\n').map_or(text.text.len(), |at| header.start + at);
    let header = header.start..header.end.min(line_end);
    let mut unit = Unit { kind, name: String::new(), tokens: Vec::new(), wishes: Vec::new(), header };
    let mut errors = Vec::new();
    let mut ends: [Option<Token>; 2] = [None, None];
    let mut positional = Vec::new();
    let mut entries: Vec<_> = keys.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let (name, span) = (key.get_ref().as_ref(), key.span());
        if name == "net" || name.starts_with("net.") {
            wishes(text, name, &span, value, &mut unit.wishes, &mut errors);
            continue;
        }
        if let (Kind::Gateway, Some(at)) = (kind, ["in", "out"].iter().position(|end| *end == name)) {
            match scalar(text, value, Takes::Device) {
                Ok(token) => ends[at] = Some(token),
                Err(error) => errors.push(error),
            }
            continue;
        }
        let word = WORDS.iter().filter(|_| kind == Kind::Tunnel).find(|word| spells(word, name));
        let outcome = match word {
            Some(word) => word_tokens(text, word, name, &span, value).map(|tokens| positional.extend(tokens)),
            None => match option(kind, name) {
                Some(takes_value) => {
                    option_tokens(text, name, &span, value, takes_value).map(|tokens| unit.tokens.extend(tokens))
                }
                None => Err(unknown(text, &span, name, &known(kind))),
            },
        };
        errors.extend(outcome.err());
    }
    if kind == Kind::Gateway {
        for (end, name) in ends.into_iter().zip(["in", "out"]) {
            match end {
                Some(token) => positional.push(token),
                None => errors.push(text.error(&unit.header, format!("`{name}` is missing"), "a gateway has two ends")),
            }
        }
    }
    unit.tokens.extend(positional);
    if errors.is_empty() {
        match unit.parsed() {
            Ok(Parsed::Tunnels(plans)) => unit.name = plans.into_iter().next().map_or(String::new(), |plan| plan.dev),
            Ok(Parsed::Gateway(args)) => match gateway::plan::name(&args) {
                Ok(name) => unit.name = name,
                Err(error) => errors.push(unit.located(text, error)),
            },
            Err(error) => errors.push(unit.located(text, error)),
        }
    }
    if errors.is_empty() { Ok(unit) } else { Err(errors) }
}

fn spells(word: &Word, name: &str) -> bool {
    word.name == name || word.aliases.contains(&name)
}

/// Whether a command has an option of this name that may stand in a file, and whether it takes a value.
fn option(kind: Kind, name: &str) -> Option<bool> {
    options(kind).into_iter().find(|(known, _)| known == name).map(|(_, takes_value)| takes_value)
}

fn options(kind: Kind) -> Vec<(String, bool)> {
    let tree = Cli::command();
    let Some(command) = tree.find_subcommand(kind.command()) else { return Vec::new() };
    let own = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    own.filter_map(|arg| Some((arg.get_long()?.to_owned(), arg.get_action().takes_values())))
        .filter(|(name, _)| !NOT_HERE.contains(&name.as_str()))
        .collect()
}

/// Every key of a table.
pub(super) fn known(kind: Kind) -> Vec<String> {
    let mut known: Vec<String> = match kind {
        Kind::Tunnel => WORDS.iter().map(|word| word.name.to_owned()).collect(),
        Kind::Gateway => vec!["in".to_owned(), "out".to_owned()],
    };
    known.extend(options(kind).into_iter().map(|(name, _)| name));
    known
}

/// `net.inet.tcp.gso = 0` in any of the forms that TOML has for it.
fn wishes(
    text: &Text,
    name: &str,
    span: &Range<usize>,
    value: &toml::Spanned<DeValue<'_>>,
    found: &mut Vec<Wish>,
    errors: &mut Vec<Error>,
) {
    if let DeValue::Table(inner) = value.get_ref() {
        let mut entries: Vec<_> = inner.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let span = span.start.min(key.span().start)..key.span().end;
            // A heading of its own stands elsewhere.
            let span = if text.text[span.clone()].contains('\n') { key.span() } else { span };
            wishes(text, &format!("{name}.{}", key.get_ref()), &span, value, found, errors);
        }
        return;
    }
    match scalar(text, value, Takes::Switch) {
        Ok(value) => found.push(Wish { name: Token { text: name.to_owned(), span: span.clone() }, value }),
        Err(error) => errors.push(error),
    }
}

/// A key that is a word of the command.
fn word_tokens(
    text: &Text,
    word: &Word,
    name: &str,
    span: &Range<usize>,
    value: &toml::Spanned<DeValue<'_>>,
) -> Result<Vec<Token>, Error> {
    let token = |text: String| Token { text, span: span.clone() };
    if word.takes == Takes::Switch {
        return match value.get_ref() {
            DeValue::Boolean(true) => Ok(vec![token(name.to_owned())]),
            DeValue::Boolean(false) => Ok(vec![token(format!("no{name}"))]),
            _ => Err(text.error(&value.span(), format!("`{name}` is on or off"), "expected true or false")),
        };
    }
    if let DeValue::Array(list) = value.get_ref() {
        if word.takes.tokens() == 2 && list.len() == 2 {
            let ends: Result<Vec<Token>, Error> = list.iter().map(|end| word_value(text, word, name, end)).collect();
            return ends.map(|ends| [vec![token(name.to_owned())], ends].concat());
        }
        if !word.repeats {
            return Err(text.error(&value.span(), format!("`{name}` has one value"), "no list is taken here"));
        }
        let mut tokens = Vec::new();
        for value in list.iter() {
            tokens.extend([token(name.to_owned()), word_value(text, word, name, value)?]);
        }
        return Ok(tokens);
    }
    if word.takes.tokens() == 2 {
        return Err(text.error(&value.span(), format!("`{name}` has two values"), "expected [MIN, MAX]"));
    }
    Ok(vec![token(name.to_owned()), word_value(text, word, name, value)?])
}

/// A value that the word takes.
fn word_value(text: &Text, word: &Word, name: &str, value: &toml::Spanned<DeValue<'_>>) -> Result<Token, Error> {
    let token = scalar(text, value, word.takes)?;
    match parse::value(word.takes, &token.text) {
        Ok(_) => Ok(token),
        Err((note, near)) => {
            let message = format!("`{}` is not a value of `{name}`", printable(&token.text));
            let mut error = text.error(&token.span, message, note);
            if let Some(source) = &mut error.source {
                source.nearest = near;
            }
            Err(error)
        }
    }
}

/// A key that is an option of the command.
fn option_tokens(
    text: &Text,
    name: &str,
    span: &Range<usize>,
    value: &toml::Spanned<DeValue<'_>>,
    takes_value: bool,
) -> Result<Vec<Token>, Error> {
    let option = Token { text: format!("--{name}"), span: span.clone() };
    match (takes_value, value.get_ref()) {
        (false, DeValue::Boolean(true)) => Ok(vec![option]),
        (false, DeValue::Boolean(false)) => Ok(Vec::new()),
        (false, _) => Err(text.error(&value.span(), format!("`{name}` is on or off"), "expected true or false")),
        (true, _) => Ok(vec![option, scalar(text, value, Takes::Device)?]),
    }
}

/// A value as it would stand on a command line.
fn scalar(text: &Text, value: &toml::Spanned<DeValue<'_>>, takes: Takes) -> Result<Token, Error> {
    let hex = matches!(takes, Takes::Hex { .. });
    let written = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(on) => (if *on { "on" } else { "off" }).to_owned(),
        // The number itself, however it is written: 0x10 and 16 are the same in TOML.
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if hex => format!("{number:x}"),
            Ok(number) => number.to_string(),
            Err(_) => number.as_str().to_owned(),
        },
        _ => {
            let note = "expected a string, a number, true or false";
            return Err(text.error(&value.span(), "this is no value of a key", note));
        }
    };
    // What begins with a dash would be an option, and nothing that a key takes does.
    if written.starts_with('-') {
        let message = format!("`{}` is not a value of this key", printable(&written));
        return Err(text.error(&value.span(), message, "no value begins with a dash"));
    }
    Ok(Token { text: written, span: value.span() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Text {
        Text { file: "segue.toml".to_owned(), text: text.to_owned() }
    }

    fn units(text: &str) -> Vec<Unit> {
        read(&file(text)).unwrap_or_else(|error| panic!("{}", error.text()))
    }

    /// Line, column, message and note of every error.
    fn errors(text: &str) -> Vec<(usize, usize, String, String)> {
        let first = read(&file(text)).expect_err(text);
        let more = first.source.as_ref().map(|source| source.more.clone()).unwrap_or_default();
        let shown = |error: Error| {
            let source = error.source.expect("a place");
            (source.line, source.column, error.message, source.note)
        };
        std::iter::once(first).chain(more).map(shown).collect()
    }

    #[test]
    fn keys_become_the_words_and_options_of_the_command() {
        let units = units(
            r#"
[[tunnel]]
dev = "sg0"
remote = "198.18.0.2"
encap = "gue"
encap-remcsum = true
pmtudisc = false
tos = 0x10
ttl = 64
gro = false
addr = ["198.19.0.1/30", "2001:db8::1/64"]
trace = "x.pcap"
net.inet.tcp.gso = 0
net.gro.dev.sg0.profile = "linux"

[[gateway]]
out = "tap:lro0"
in = "eth1"
name = "gw0"
hold-us = 50
no-lro = false
"#,
        );
        assert_eq!(units.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>(), ["sg0", "gw0"]);
        let words = "--trace x.pcap dev sg0 remote 198.18.0.2 encap gue encap-remcsum nopmtudisc tos 10 ttl 64 gro off \
                     addr 198.19.0.1/30 addr 2001:db8::1/64";
        assert_eq!(units[0].words().join(" "), words);
        let wishes = [("net.inet.tcp.gso", "0"), ("net.gro.dev.sg0.profile", "linux")];
        assert_eq!(units[0].wishes(), wishes.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(units[1].words().join(" "), "--name gw0 --hold-us 50 eth1 tap:lro0");
    }

    #[test]
    fn knobs_may_be_written_in_every_form_of_a_key() {
        for form in [
            "net.gso.dev.sg0.tso = 0",
            "\"net.gso.dev.sg0.tso\" = 0",
            "net.gso = { dev.sg0.tso = false }",
            "[tunnel.net.gso.dev.sg0]\ntso = 0",
        ] {
            let text = format!("[[tunnel]]\ndev=\"sg0\"\nremote=\"::1\"\nencap=\"gue\"\n{form}\n");
            let wishes = units(&text)[0].wishes();
            assert_eq!((wishes.len(), wishes[0].0.as_str()), (1, "net.gso.dev.sg0.tso"), "{form}");
        }
    }

    #[test]
    fn every_error_has_its_line_and_column_and_all_are_found_at_once() {
        let found = errors(
            r#"[[tunnel]]
dev = "sg0"
remot = "198.18.0.2"
encap = "gue"
mtu = 99999
encap-csum = 1
  ttl = [1]

[[gateway]]
in = "eth1"
hold = 3

[[bridge]]
"#,
        );
        let expected = [
            (3, 1, "unknown key `remot`", "did you mean `remote`?"),
            (5, 7, "`99999` is not a value of `mtu`", "expected 68 to 65535 or auto"),
            (6, 14, "`encap-csum` is on or off", "expected true or false"),
            (7, 9, "`ttl` has one value", "no list is taken here"),
            (9, 1, "`out` is missing", "a gateway has two ends"),
            (11, 1, "unknown key `hold`", ""),
            (13, 3, "unknown key `bridge`", ""),
        ];
        assert_eq!(found, expected.map(|(line, column, a, b)| (line, column, a.to_owned(), b.to_owned())));
    }

    #[test]
    fn what_does_not_go_together_is_pointed_at() {
        let base = "[[tunnel]]\ndev = \"sg0\"\nremote = \"198.18.0.2\"\nencap = \"fou\"\n";
        assert_eq!((errors(base)[0].0, errors(base)[0].1), (1, 1), "something is missing: the heading");
        let conflict = format!("{base}encap-dport = 5\nencap-remcsum = true\n");
        let error = &errors(&conflict)[0];
        assert_eq!((error.0, error.1, error.2.as_str()), (6, 1, "`encap-remcsum` does not go with `encap fou`"));
        let twice = format!("{base}encap-dport = 5\n{base}encap-dport = 6\n");
        let error = &errors(&twice)[0];
        assert_eq!(
            (error.0, error.1, error.2.as_str(), error.3.as_str()),
            (7, 7, "`sg0` is there twice", "line 1 has the same")
        );
        let range = "[[gateway]]\nin = \"a\"\nout = \"b\"\nhold-us = 5000000\n";
        assert_eq!((errors(range)[0].0, errors(range)[0].1), (4, 11));
        let end = "[[gateway]]\nin = \"a/b\"\nout = \"b\"\n";
        assert_eq!((errors(end)[0].0, errors(end)[0].1), (2, 6));
    }

    #[test]
    fn tunnels_of_one_port_become_one_instance_where_they_can_be_told_apart() {
        let one = |dev: &str, more: &str| {
            format!("[[tunnel]]\ndev = \"{dev}\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\n{more}\n")
        };
        let error = &errors(&(one("a", "") + &one("b", "")))[0];
        assert_eq!((error.0, error.2.as_str()), (6, "`a` and `b` would take the same packets of 198.18.0.2"));
        assert_eq!(units(&(one("a", "") + &one("b", "port = 6081"))).len(), 2);
        let three = units(&(one("a", "key = 1") + &one("c", "port = 6081") + &one("b", "net.gso.dev.b.tso = 0")));
        assert_eq!(three.len(), 2);
        assert_eq!((three[0].name.as_str(), three[0].wishes().len()), ("a", 1));
        let words = three[0].words().join(" ");
        assert_eq!(words, "dev a remote 198.18.0.2 encap gue key 1 also dev b remote 198.18.0.2 encap gue");
        let error = &errors(&(one("a", "") + &one("b", "key = 1\nencap-csum = false")))[0];
        assert_eq!((error.0, error.2.as_str()), (6, "`a` and `b` cannot share a port: `encap-csum` differs"));
        let error = &errors(&(one("a", "") + &one("b", "key = 1\ntrace = \"x.pcap\"")))[0];
        assert_eq!((error.0, error.3.as_str()), (6, "give it to `a`, the first"));
    }

    #[test]
    fn a_thousand_tunnels_are_read_in_one_go() {
        let tunnel =
            |n: usize| format!("[[tunnel]]\ndev = \"t{n}\"\nremote = \"198.18.0.2\"\nencap = \"gue\"\nkey = {n}\n");
        let all = units(&(0..1000).map(tunnel).collect::<String>());
        assert_eq!((all.len(), all[0].words().iter().filter(|word| *word == "also").count()), (1, 999));
    }

    #[test]
    fn broken_toml_is_shown_where_it_breaks_and_nothing_panics() {
        for text in
            ["a = ", "[[tunnel]", "[[tunnel]]\ndev = \"x", "tunnel = 3", "tunnel = [1]", "\u{0}", "[[tunnel]]\nnet = 1"]
        {
            assert!(!errors(text).is_empty(), "{text}");
        }
        assert!(units("").is_empty() && units("# nothing\n").is_empty());
        // Every prefix of a file that is right is right or is refused in good order.
        let text = "[[tunnel]]\ndev = \"sgé\"\nremote = \"::1\"\nencap = \"gue\"\ntos = 0x10\n[tunnel.net.inet]\ntcp.gso = 0\n";
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let _ = read(&file(&text[..at])).map_err(|error| error.text());
        }
    }
}
