//! The documents of `segue.set/1`: the knobs of a running instance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Kind, printable, printable_line};
use crate::suggest::{integer, list, nearest};

/// The schema id of the document.
pub const SCHEMA: &str = "segue.set/1";

/// The output of `segue set -j`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// The schema id, always `segue.set/1`.
    pub schema: String,
    /// The name of the instance.
    pub instance: String,
    /// The knobs with their present values: all of them, or those that were named.
    pub knobs: Vec<Knob>,
    /// The changes, in the order in which they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<Change>,
    /// Counters that were named, such as `net.gso.stats`, by port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stats: Vec<Stats>,
}

/// A knob with its present value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Knob {
    /// The name of the knob.
    pub name: String,
    /// Current value of the knob.
    pub value: Setting,
    /// The value at the start.
    pub default: Setting,
    /// The smallest number that the knob accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// The largest number that the knob accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// The named values, where the knob takes names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// The unit of a number; empty for none.
    #[serde(default)]
    pub unit: String,
    /// Description of the knob, one sentence.
    pub help: String,
    /// Reason why the knob cannot be changed; missing where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<String>,
    /// The value that another knob must have for this one to be anything but 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
}

/// A value that another knob must have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Needs {
    /// The name of the other knob.
    pub name: String,
    /// The value that the other knob must have.
    pub value: Setting,
}

/// Returns whether the knob `name` belongs to the port `port`: `net.WHAT.dev.PORT.KEY`.
pub fn is_of(name: &str, port: &str) -> bool {
    let of = name.split_once(".dev.").and_then(|(_, rest)| rest.rsplit_once('.'));
    of.is_some_and(|(known, _)| known == port)
}

/// The value of a knob: a number, or a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Setting {
    /// The value is a number; 0 and 1 mean off and on.
    Number(u64),
    /// A value given by name.
    Name(String),
}

impl Setting {
    /// Returns whether the value is anything but 0.
    fn is_on(&self) -> bool {
        *self != Setting::Number(0)
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Setting::Number(number) => number.fmt(f),
            Setting::Name(name) => f.write_str(&printable(name)),
        }
    }
}

/// A change of a knob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The name of the knob.
    pub name: String,
    /// The value before the change.
    pub before: Setting,
    /// The value after the change.
    pub value: Setting,
}

/// Counters that are read by the name of a knob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// The requested instance name.
    pub name: String,
    /// Counters by port; a counter of a group has the group in front (`flushes.full`).
    pub ports: std::collections::BTreeMap<String, std::collections::BTreeMap<String, u64>>,
}

/// The refusal of an assignment to a knob, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    /// Whether the name is wrong; otherwise the value is.
    pub is_name: bool,
    /// The kind of the failure.
    pub kind: Kind,
    /// Description of the mistake.
    pub message: String,
    /// The note next to the caret.
    pub note: String,
    /// The nearest valid name or value, if there is one.
    pub nearest: Option<String>,
    /// The valid names or values, one line or several.
    pub good: String,
}

impl Knob {
    /// Returns the knob of an answer, with texts that are safe to print.
    #[must_use]
    pub(crate) fn printable(self) -> Knob {
        let line = |text: String| printable_line(&text);
        Knob {
            name: line(self.name),
            values: self.values.into_iter().map(line).collect(),
            unit: line(self.unit),
            help: line(self.help),
            fixed: self.fixed.map(line),
            needs: self.needs.map(|needs| Needs { name: line(needs.name), ..needs }),
            ..self
        }
    }

    /// Describes the values that the knob takes.
    pub fn takes(&self) -> String {
        if !self.values.is_empty() {
            return list(&self.values.iter().map(String::as_str).collect::<Vec<_>>());
        }
        match (self.min, self.max) {
            (Some(0), Some(1)) => "0 or 1".to_owned(),
            (min, max) => {
                let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
                format!("{} to {}{unit}", min.unwrap_or(0), max.unwrap_or(u64::MAX))
            }
        }
    }

    /// Returns the number that `text` stands for. `off` and `on` are 0 and 1.
    fn number(&self, text: &str) -> Option<u64> {
        if !self.values.is_empty() {
            let at = self.values.iter().position(|value| value == text);
            // `linux` without a version selects the value that has one, such as `linux:6.12`.
            let is_version = |value: &String| value.split_once(':').is_some_and(|(name, _)| name == text);
            return at.or_else(|| self.values.iter().position(is_version)).map(|at| at as u64);
        }
        let (min, max) = (self.min.unwrap_or(0), self.max.unwrap_or(u64::MAX));
        let number = match text {
            "off" if max == 1 => 0,
            "on" if max == 1 => 1,
            _ => integer(text)?,
        };
        (min..=max).contains(&number).then_some(number)
    }

    /// Returns a number in the form in which it is shown.
    pub fn setting(&self, number: u64) -> Setting {
        match usize::try_from(number).ok().and_then(|at| self.values.get(at)) {
            Some(name) => Setting::Name(name.clone()),
            None => Setting::Number(number),
        }
    }
}

/// Checks an assignment against the current values in `knobs`. Returns the knob `name` and the number that `text`
/// stands for.
pub fn check<'a>(knobs: &'a [Knob], name: &str, text: &str) -> Result<(&'a Knob, u64), Wrong> {
    if STATS.iter().any(|stats| stats.0 == name) {
        return Err(Wrong {
            is_name: true,
            kind: Kind::Conflict,
            message: format!("{name} cannot be set"),
            note: "it can only be read".into(),
            nearest: None,
            good: format!("segue set NAME {name}"),
        });
    }
    let knob = find(knobs, name)?;
    let wrong = |kind, message: String, note: String, good: String| Wrong {
        is_name: false,
        kind,
        message,
        note,
        nearest: None,
        good,
    };
    let Some(number) = knob.number(text) else {
        let near = nearest(text, knob.values.iter().map(String::as_str)).map(str::to_owned);
        let note = match &near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("expected {}", knob.takes()),
        };
        let message = format!("`{}` is not a value of {name}", printable(text));
        return Err(Wrong {
            nearest: near,
            ..wrong(Kind::BadValue, message, note, format!("{name} {}", knob.takes()))
        });
    };
    let value = knob.setting(number);
    if let Some(why) = &knob.fixed
        && value != knob.value
    {
        let message = format!("{name} cannot be changed here");
        return Err(wrong(Kind::Conflict, message, why.clone(), format!("leave it at {}", knob.value)));
    }
    if let Some(needs) = &knob.needs
        && number != 0
        && knobs.iter().any(|other| other.name == needs.name && other.value != needs.value)
    {
        let message = format!("{name} needs {} {}", needs.name, needs.value);
        let note =
            format!("it is {} now", knobs.iter().find(|k| k.name == needs.name).map_or(&needs.value, |k| &k.value));
        return Err(wrong(Kind::Conflict, message, note, format!("first {} {}", needs.name, needs.value)));
    }
    let is_broken = |needs: &Needs| needs.name == name && needs.value != value;
    if let Some(other) = knobs.iter().find(|knob| knob.value.is_on() && knob.needs.as_ref().is_some_and(is_broken)) {
        let message = format!("{} needs {name} {}", other.name, knob.value);
        let note = format!("{} is {} now", other.name, other.value);
        return Err(wrong(Kind::Conflict, message, note, format!("first {} 0", other.name)));
    }
    Ok((knob, number))
}

/// Sets a knob in a list of knobs, as far as [`check`] allows it. Returns the number that `text` stands for, and the
/// change.
///
/// Where one assignment is the condition of another one, they are set in the list one after the other.
pub fn set(knobs: &mut [Knob], name: &str, text: &str) -> Result<(u64, Change), Wrong> {
    let (knob, number) = check(knobs, name, text)?;
    let change = Change { name: knob.name.clone(), before: knob.value.clone(), value: knob.setting(number) };
    if let Some(knob) = knobs.iter_mut().find(|knob| knob.name == name) {
        knob.value.clone_from(&change.value);
    }
    Ok((number, change))
}

/// Finds the knob `name`; the refusal for an unknown name suggests a similar one.
pub fn find<'a>(knobs: &'a [Knob], name: &str) -> Result<&'a Knob, Wrong> {
    knobs.iter().find(|knob| knob.name == name).ok_or_else(|| unknown(knobs, name))
}

/// Returns the refusal for a name that no knob has.
pub fn unknown(knobs: &[Knob], name: &str) -> Wrong {
    let names = || knobs.iter().map(|knob| knob.name.as_str()).chain(STATS.iter().map(|stats| stats.0));
    let near = nearest(name, names()).map(str::to_owned);
    // Names have long common prefixes, so that the last part alone is enough for a suggestion.
    let ends =
        |known: &&str| !name.is_empty() && known.rsplit('.').next() == Some(name.rsplit('.').next().unwrap_or(name));
    let near = near.or_else(|| names().find(ends).map(str::to_owned));
    Wrong {
        is_name: true,
        kind: Kind::UnknownWord,
        message: format!("no knob is called `{}`", printable(name)),
        note: near.as_ref().map_or(String::new(), |near| format!("did you mean `{near}`?")),
        // The whole list only where nothing is near.
        good: match &near {
            Some(near) => format!("{near}; segue set INSTANCE lists all"),
            None => names().collect::<Vec<_>>().join("\n"),
        },
        nearest: near,
    }
}

/// Names of counters that can be read like knobs, and what each counts.
pub const STATS: &[(&str, &str)] = &[
    ("net.gso.stats", "trains cut, trains that went whole, drops of GSO"),
    ("net.gro.stats", "packets joined, and why trains ended and packets stayed alone"),
    ("net.ack.stats", "acknowledgments that were aggregated into newer ones"),
    ("net.napi.stats", "polls, full budgets, what came beyond them, wake-ups"),
    ("net.remcsum.stats", "packets whose checksum was left to the receiver"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn knob(name: &str, value: Setting, min: u64, max: u64, values: &[&str]) -> Knob {
        Knob {
            name: name.into(),
            default: value.clone(),
            value,
            min: values.is_empty().then_some(min),
            max: values.is_empty().then_some(max),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            unit: String::new(),
            help: "a knob".into(),
            fixed: None,
            needs: None,
        }
    }

    fn knobs() -> Vec<Knob> {
        let profile = knob("net.gro.dev.e.profile", Setting::Name("strict".into()), 0, 0, &["strict", "lro"]);
        let mut ack = knob("net.ack.dev.e.enable_ack", Setting::Number(0), 0, 1, &[]);
        ack.needs = Some(Needs { name: profile.name.clone(), value: Setting::Name("lro".into()) });
        let mut fixed = knob("net.remcsum.dev.u.enable_remcsum", Setting::Number(0), 0, 1, &[]);
        fixed.fixed = Some("made without it".into());
        vec![knob("net.inet.tcp.gso", Setting::Number(1), 0, 1, &[]), profile, ack, fixed]
    }

    #[test]
    fn good_values_become_numbers() {
        let knobs = knobs();
        for (name, text, number) in [
            ("net.inet.tcp.gso", "0", 0),
            ("net.inet.tcp.gso", "on", 1),
            ("net.gro.dev.e.profile", "lro", 1),
            ("net.ack.dev.e.enable_ack", "off", 0),
            ("net.remcsum.dev.u.enable_remcsum", "0", 0),
        ] {
            assert_eq!(check(&knobs, name, text).map(|(_, n)| n), Ok(number), "{name} {text}");
        }
    }

    #[test]
    fn bad_names_and_values_get_the_list_of_good_ones() {
        let knobs = knobs();
        let wrong = |name: &str, text: &str| check(&knobs, name, text).unwrap_err();
        let unknown = wrong("net.inet.tcp.gsoo", "1");
        assert_eq!((unknown.is_name, unknown.nearest.as_deref()), (true, Some("net.inet.tcp.gso")));
        assert_eq!(unknown.good, "net.inet.tcp.gso; segue set INSTANCE lists all");
        let unknown = wrong("nothing like it", "1");
        for name in knobs.iter().map(|knob| knob.name.as_str()).chain(["net.gso.stats"]) {
            assert!(unknown.good.lines().any(|line| line == name), "{}", unknown.good);
        }
        assert_eq!(wrong("enable_ack", "1").nearest.as_deref(), Some("net.ack.dev.e.enable_ack"));
        for text in ["2", "-1", "+1", "", "yes", "18446744073709551616"] {
            assert_eq!(wrong("net.inet.tcp.gso", text).note, "expected 0 or 1", "{text}");
        }
        assert_eq!(wrong("net.gro.dev.e.profile", "0").note, "expected strict or lro");
        assert_eq!(wrong("net.gro.dev.e.profile", "stric").note, "did you mean `strict`?");
        assert_eq!(wrong("net.ack.dev.e.enable_ack", "1").good, "first net.gro.dev.e.profile lro");
        assert_eq!(wrong("net.remcsum.dev.u.enable_remcsum", "1").note, "made without it");
    }

    #[test]
    fn what_another_one_needs_stays_until_that_is_off() {
        let mut knobs = knobs();
        let [profile, ack] = ["net.gro.dev.e.profile", "net.ack.dev.e.enable_ack"];
        set(&mut knobs, profile, "lro").unwrap();
        let change = Change { name: ack.to_owned(), before: Setting::Number(0), value: Setting::Number(1) };
        assert_eq!(set(&mut knobs, ack, "on"), Ok((1, change)));
        assert_eq!(find(&knobs, ack).map(|knob| knob.value.clone()), Ok(Setting::Number(1)), "the list has the change");
        set(&mut knobs, profile, "lro").unwrap();
        let wrong = set(&mut knobs, profile, "strict").unwrap_err();
        assert_eq!((wrong.kind, wrong.good.as_str()), (Kind::Conflict, "first net.ack.dev.e.enable_ack 0"));
        assert_eq!(wrong.message, format!("{ack} needs {profile} lro"));
        set(&mut knobs, ack, "0").unwrap();
        set(&mut knobs, profile, "strict").unwrap();
    }

    #[test]
    fn a_name_without_its_version_is_the_version_that_there_is() {
        let profile = || vec![knob("p", Setting::Name("strict".into()), 0, 0, &["strict", "linux:6.18", "lro"])];
        for (text, number) in [("linux", Some(1)), ("linux:6.18", Some(1)), ("linux:6.12", None), ("lin", None)] {
            assert_eq!(check(&profile(), "p", text).ok().map(|(_, n)| n), number, "{text}");
        }
    }
}
