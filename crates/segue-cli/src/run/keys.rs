//! A table of the file: its keys as keywords and options of a command.

use std::ops::Range;

use clap::{Arg, ArgAction, CommandFactory};
use segue_control::error::{Error, printable};
use segue_control::suggest::nearest;
use segue_host::names::Names;
use segue_service::gateway::plan;
use segue_service::supervise::spec::{ALSO, InstancePlan, InstanceSpec, Kind, KnobAssignment, Token, Unresolved};
use toml::de::{DeTable, DeValue};

use super::command::{checked, located, planned_by_name, usage_error};
use super::source::{MOST_ERRORS, Text};
use crate::args::Cli;
use segue_grammar::parse::{self, Value};
use segue_grammar::{Takes, Word, tunnel::KEYWORDS};

/// Command-line options that a configuration file cannot have.
const NOT_HERE: &[&str] = &["check", "force", "set", "list", "once", "openmetrics"];

pub(super) fn unknown(text: &Text, span: &Range<usize>, key: &str, known: &[String]) -> Error {
    let near = nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
    let note = near.as_ref().map_or(String::new(), |near| format!("did you mean `{near}`?"));
    let mut error = text.error(span, format!("unknown key `{}`", printable(key)), note);
    // The whole list only where nothing is near.
    error.hint = if near.is_some() { "segue help run".to_owned() } else { format!("one of {}", known.join(", ")) };
    if let Some(source) = &mut error.source {
        source.nearest = near;
    }
    error
}

/// Returns the host names of the remotes of all tunnels.
pub(super) fn hosts(document: &DeTable<'_>) -> Vec<String> {
    let mut hosts = Vec::new();
    for (key, value) in document {
        let Some(tables) = value.get_ref().as_array().filter(|_| &**key.get_ref() == "tunnel") else { continue };
        for table in tables.iter() {
            let DeValue::Table(keys) = table.get_ref() else { continue };
            for (key, value) in keys {
                let word = KEYWORDS.iter().find(|word| spells(word, key.get_ref()));
                if let (Some(word), DeValue::String(text)) = (word, value.get_ref())
                    && let Ok(Value::Host(name)) = parse::value(word.takes, text)
                {
                    hosts.push(name);
                }
            }
        }
    }
    hosts
}

/// Reads one table of the file, whose remotes have the addresses of `names`.
pub(super) fn instance(
    text: &Text,
    kind: Kind,
    keys: &DeTable<'_>,
    header: Range<usize>,
    names: &Names,
) -> Result<InstanceSpec, Vec<Error>> {
    // Errors point at the heading alone, without the keys below it.
    let line_end = text.text[header.start..].find('\n').map_or(text.text.len(), |at| header.start + at);
    let header = header.start..header.end.min(line_end);
    let (mut tokens, mut assignments) = (Vec::new(), Vec::new());
    let mut errors = Vec::new();
    let mut ends: [Option<Token>; 2] = [None, None];
    let (mut positional, mut more) = (Vec::new(), Vec::new());
    let mut entries: Vec<_> = keys.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let known = options(kind);
    for (key, value) in entries {
        if errors.len() > MOST_ERRORS {
            break;
        }
        let (name, span) = (key.get_ref().as_ref(), key.span());
        if name == "net" || name.starts_with("net.") {
            knob_assignments(text, name, &span, value, &mut assignments, &mut errors);
            continue;
        }
        if let (Kind::Gateway, Some(at)) = (kind, ["in", "out"].iter().position(|end| *end == name)) {
            match scalar(text, value, Takes::Device) {
                Ok(token) => ends[at] = Some(token),
                Err(error) => errors.push(error),
            }
            continue;
        }
        if kind == Kind::Gateway && name == "more" {
            match list(text, value) {
                Ok(found) => more = found,
                Err(error) => errors.push(error),
            }
            continue;
        }
        let word = KEYWORDS.iter().filter(|_| kind == Kind::Tunnel).find(|word| spells(word, name));
        let outcome = match word {
            Some(word) => word_tokens(text, word, name, &span, value).map(|found| positional.extend(found)),
            None => match known.iter().find(|option| option.name == name) {
                Some(option) => option_tokens(text, option, &span, value).map(|found| tokens.extend(found)),
                None => Err(unknown(text, &span, name, &keys_of(kind))),
            },
        };
        errors.extend(outcome.err());
    }
    if kind == Kind::Gateway {
        for (end, name) in ends.into_iter().zip(["in", "out"]) {
            match end {
                Some(token) => positional.push(token),
                None => errors.push(text.error(&header, format!("`{name}` is missing"), "a gateway has two ends")),
            }
        }
        positional.append(&mut more);
    }
    tokens.extend(positional);
    let cli = checked(kind, tokens.clone(), text, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let planned = match cli {
        Ok(cli) => planned_by_name(kind, &mut tokens, cli, names),
        Err(found) => Err(usage_error(kind, &tokens, &found)),
    };
    let at_words = |error| vec![located(&tokens, &header, text, error)];
    let (plan, unresolved) = planned.map_err(at_words)?;
    let unresolved = unresolved.map(|Unresolved { host, error }| {
        let error = located(&tokens, &header, text, *error);
        Unresolved { host, error: Box::new(error) }
    });
    let name = match &plan {
        InstancePlan::Tunnels(plans) => plans.first().map_or(String::new(), |plan| plan.dev.clone()),
        InstancePlan::Gateway(config) => plan::name(config).map_err(at_words)?,
        InstancePlan::Adapter(dev) => dev.clone(),
        InstancePlan::Metrics => "metrics".to_owned(),
    };
    let tokens = in_order(kind, &known, &tokens);
    Ok(InstanceSpec { kind, name, tokens, assignments, header, plan, unresolved })
}

/// Returns the words of an instance in an order that does not depend on that of the keys in a file: first the options,
/// as in `known`, then the keywords, as in [`KEYWORDS`]. The values of one key, and the ends of a gateway, keep theirs.
pub(super) fn in_order(kind: Kind, known: &[CommandOption], tokens: &[Token]) -> Vec<Token> {
    let mut ordered = Vec::with_capacity(tokens.len());
    for own in tokens.split_inclusive(|token| token.text == ALSO) {
        let mut keys: Vec<(usize, &[Token])> = Vec::new();
        let mut rest = own;
        while let Some(word) = rest.first() {
            let (at, values) = place(kind, known, &word.text);
            let (key, after) = rest.split_at((1 + values).min(rest.len()));
            keys.push((at, key));
            rest = after;
        }
        keys.sort_by_key(|(at, _)| *at);
        ordered.extend(keys.into_iter().flat_map(|(_, key)| key).cloned());
    }
    ordered
}

/// Returns the place of a word for [`in_order`], and the number of values that follow it.
fn place(kind: Kind, known: &[CommandOption], word: &str) -> (usize, usize) {
    let of_option = |name| known.iter().position(|option| option.name == name);
    if let Some(at) = word.strip_prefix("--").and_then(of_option) {
        return (at, usize::from(known[at].takes_value));
    }
    let off = word.strip_prefix("no");
    let is = |other: &Word| {
        spells(other, word) || other.takes == Takes::Switch && off.is_some_and(|name| spells(other, name))
    };
    match KEYWORDS.iter().position(is).filter(|_| kind == Kind::Tunnel) {
        Some(at) => (known.len() + at, KEYWORDS[at].takes.tokens()),
        // An end of a gateway, or the word between two tunnels.
        None => (usize::MAX, 0),
    }
}

fn spells(word: &Word, name: &str) -> bool {
    word.name == name || word.aliases.contains(&name)
}

/// An option of a command that a file may have.
pub(super) struct CommandOption {
    name: String,
    takes_value: bool,
    /// Whether the option may be repeated.
    repeats: bool,
}

/// Returns the options of a command that a file may have.
pub(super) fn options(kind: Kind) -> Vec<CommandOption> {
    let option = |(name, arg): (String, Arg)| CommandOption {
        name,
        takes_value: arg.get_action().takes_values(),
        repeats: matches!(arg.get_action(), ArgAction::Append),
    };
    arguments(kind).into_iter().map(option).collect()
}

/// Returns the options of a command that are keys of its table, with their names.
pub(crate) fn arguments(kind: Kind) -> Vec<(String, Arg)> {
    let tree = Cli::command();
    let found = kind.words().into_iter().try_fold(&tree, |tree, word| tree.find_subcommand(word));
    let Some(command) = found else { return Vec::new() };
    let own = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    let named = own.filter_map(|arg| Some((arg.get_long()?.to_owned(), arg.clone())));
    named.filter(|(name, _)| !NOT_HERE.contains(&name.as_str())).collect()
}

/// Returns every key of a table.
pub(super) fn keys_of(kind: Kind) -> Vec<String> {
    let mut keys: Vec<String> = match kind {
        Kind::Tunnel => KEYWORDS.iter().map(|word| word.name.to_owned()).collect(),
        Kind::Gateway => ["in", "out", "more"].map(str::to_owned).to_vec(),
        Kind::Adapter | Kind::Metrics => Vec::new(),
    };
    keys.extend(options(kind).into_iter().map(|option| option.name));
    keys
}

/// Reads knob assignments such as `net.inet.tcp.gso = 0`, in all TOML forms.
fn knob_assignments(
    text: &Text,
    name: &str,
    span: &Range<usize>,
    value: &toml::Spanned<DeValue<'_>>,
    found: &mut Vec<KnobAssignment>,
    errors: &mut Vec<Error>,
) {
    if let DeValue::Table(inner) = value.get_ref() {
        let mut entries: Vec<_> = inner.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let span = span.start.min(key.span().start)..key.span().end;
            // The parent key may be in a heading on another line; the span is then that of the inner key.
            let span = if text.text[span.clone()].contains('\n') { key.span() } else { span };
            knob_assignments(text, &format!("{name}.{}", key.get_ref()), &span, value, found, errors);
        }
        return;
    }
    match scalar(text, value, Takes::Switch) {
        Ok(value) => found.push(KnobAssignment { name: Token::new(name, span.clone()), value }),
        Err(error) => errors.push(error),
    }
}

/// Reads a key that is a keyword of the command.
fn word_tokens(
    text: &Text,
    word: &Word,
    name: &str,
    span: &Range<usize>,
    value: &toml::Spanned<DeValue<'_>>,
) -> Result<Vec<Token>, Error> {
    let token = |text: String| Token::new(text, span.clone());
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

/// Reads a value that the keyword accepts.
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

/// Reads a key that is an option of the command.
fn option_tokens(
    text: &Text,
    option: &CommandOption,
    span: &Range<usize>,
    value: &toml::Spanned<DeValue<'_>>,
) -> Result<Vec<Token>, Error> {
    let name = &option.name;
    let token = Token::new(format!("--{name}"), span.clone());
    match (option.takes_value, value.get_ref()) {
        (false, DeValue::Boolean(true)) => Ok(vec![token]),
        (false, DeValue::Boolean(false)) => Ok(Vec::new()),
        (false, _) => Err(text.error(&value.span(), format!("`{name}` is on or off"), "expected true or false")),
        (true, DeValue::Array(_)) if !option.repeats => {
            Err(text.error(&value.span(), format!("`{name}` has one value"), "no list is taken here"))
        }
        (true, DeValue::Array(list)) => {
            let each = list.iter().map(|value| Ok([token.clone(), scalar(text, value, Takes::Device)?]));
            Ok(each.collect::<Result<Vec<_>, Error>>()?.concat())
        }
        (true, _) => Ok(vec![token, scalar(text, value, Takes::Device)?]),
    }
}

/// Returns the values of a TOML list.
fn list(text: &Text, value: &toml::Spanned<DeValue<'_>>) -> Result<Vec<Token>, Error> {
    match value.get_ref() {
        DeValue::Array(list) => list.iter().map(|value| scalar(text, value, Takes::Device)).collect(),
        _ => Ok(vec![scalar(text, value, Takes::Device)?]),
    }
}

/// Returns a value as it is written on a command line.
fn scalar(text: &Text, value: &toml::Spanned<DeValue<'_>>, takes: Takes) -> Result<Token, Error> {
    let hex = matches!(takes, Takes::Hex { .. });
    let written = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(on) => (if *on { "on" } else { "off" }).to_owned(),
        // The number in decimal form, however it is written: 0x10 and 16 are the same in TOML.
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
    // A value with a leading dash would be an option, and no key has such a value.
    if written.starts_with('-') {
        let message = format!("`{}` is not a value of this key", printable(&written));
        return Err(text.error(&value.span(), message, "no value begins with a dash"));
    }
    Ok(Token::new(written, value.span()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use segue_service::supervise::service::Configuration;

    use super::*;
    use crate::run::{ConfigFile, config};

    fn file(text: &str) -> Text {
        Text { file: "segue.toml".to_owned(), text: text.to_owned() }
    }

    /// Returns the words of the first instance of a file.
    fn words(text: &str) -> Vec<String> {
        let specs = config::read(&file(text), |_| Names::default());
        specs.unwrap_or_else(|error| panic!("{text}: {}", error.message))[0].words()
    }

    #[test]
    fn the_order_of_the_keys_of_a_table_makes_no_difference() {
        let tunnel = "remote = \"peer.invalid\"\nencap = \"gue\"\ndev = \"dev\"\npmtudisc = false";
        let traced = "trace = \"remote\"\nencap-csum6 = true\nremote = \"198.18.0.2\"\nencap = \"gue\"\ntos = \"10\"\n\
            addr = [\"198.19.0.9/30\", \"198.19.0.1/30\"]\nkey = 7\ndev = \"a\"\ntrace-size = 5\nhlim = 9\ncsum = false";
        let vxlan = "fdb = [\"0:0:0:0:0:0,198.18.0.9\", \"0:0:0:0:0:0,198.18.0.3\"]\nsrcport = [5, 9]\nvni = 1\n\
            remote = \"198.18.0.2\"\nmode = \"vxlan\"\nlearning = false\ndev = \"encap\"";
        let bridge = "name = \"gw0\"\nout = \"mode\"\nhold-us = 50\nmore = [\"tap:b\", \"tap:a\"]\nfragment = true\nin = \"dev\"";
        let router = "forward = [\"udp:2=198.18.1.2:2\", \"tcp:1=198.18.1.2:1\"]\nin = \"a\"\nnat = \"198.18.2.9\"\n\
            out = \"b\"\nroute = true";
        for (heading, keys) in [
            ("[[tunnel]]", tunnel),
            ("[[tunnel]]", traced),
            ("[[tunnel]]", vxlan),
            ("[[gateway]]", bridge),
            ("[[gateway]]", router),
            ("[[lan78xx]]", "usb = \"model\"\ndev = \"lan0\"\nmtu = 1400"),
            ("[metrics]", "textfile = \"x.prom\"\nlisten = [\"127.0.0.1:2\", \"127.0.0.1:1\"]\nevery = 5"),
        ] {
            let mut keys: Vec<&str> = keys.lines().collect();
            let written = |keys: &[&str]| format!("{heading}\n{}\n", keys.join("\n"));
            let expected = words(&written(&keys));
            for turn in 0..2 * keys.len() {
                keys.rotate_left(1);
                if turn == keys.len() {
                    keys.reverse();
                }
                assert_eq!(words(&written(&keys)), expected, "{keys:?}");
            }
        }
        let addresses = |list: &str| words(&format!("[[tunnel]]\ndev = \"a\"\nremote = \"::1\"\naddr = [{list}]\n"));
        let [one, other] = ["\"198.19.0.1/30\"", "\"198.19.0.9/30\""];
        assert_ne!(addresses(&format!("{one}, {other}")), addresses(&format!("{other}, {one}")), "of one key it does");
    }

    #[test]
    fn words_that_an_earlier_version_kept_in_the_order_of_the_file_are_those_of_the_file() {
        let configuration = ConfigFile { path: PathBuf::from("segue.toml"), text: file("") };
        for (kind, before, now) in [
            (
                Kind::Tunnel,
                "--trace a.pcap tos 10 encap gue remote 198.18.0.2 dev a also noencap-csum remote ::1 encap gue dev b",
                "--trace a.pcap dev a remote 198.18.0.2 encap gue tos 10 also dev b remote ::1 encap gue noencap-csum",
            ),
            (Kind::Gateway, "--name gw0 --route --hold-us 50 dev remote", "--hold-us 50 --route --name gw0 dev remote"),
            (Kind::Metrics, "--textfile x --listen 127.0.0.1:2", "--listen 127.0.0.1:2 --textfile x"),
        ] {
            let words: Vec<String> = before.split(' ').map(str::to_owned).collect();
            let spec = configuration.spec(kind, "a", &words, &[], &Names::default());
            let spec = spec.unwrap_or_else(|error| panic!("{before}: {}", error.message));
            assert_eq!(spec.words().join(" "), now);
        }
    }
}
