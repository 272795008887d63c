//! Conversion of knobs between the datapath's form and that of the control socket.

use std::sync::Arc;

use segue_control::error::{Error, Kind};
use segue_control::knobs::{self as model, Change, Needs, Setting};
use segue_datapath::knobs::{Knobs, Values};

/// The knobs of an instance, shared with the thread that moves packets.
#[derive(Clone, Debug, Default)]
pub struct SharedKnobs(Arc<Knobs>);

impl SharedKnobs {
    /// Creates a handle to the given knobs.
    pub fn new(knobs: Arc<Knobs>) -> SharedKnobs {
        SharedKnobs(knobs)
    }

    /// Returns every knob with its present value.
    pub fn list(&self) -> Vec<model::Knob> {
        listed(&self.0)
    }

    /// Sets all of the knobs, or none where one of them cannot be set.
    pub fn set(&self, assignments: &[(String, String)]) -> Result<Vec<Change>, Error> {
        set(&self.0, assignments).map_err(|(_, wrong)| failure(&wrong))
    }
}

/// Prepares the knobs of an instance: `preset` has the values of its words, `assignments` the knobs
/// to set at the start.
pub fn prepare(mut knobs: Knobs, preset: &[(String, u64)], assignments: &[(String, String)]) -> Result<Knobs, Error> {
    for (name, value) in preset {
        // The names and values are those of the program itself.
        if knobs.preset(name, *value).is_none() {
            return Err(Error::new(Kind::Internal, format!("{name} cannot be {value}"), "segue --version -v -j")
                .why("the words of the command and the knobs disagree"));
        }
    }
    set(&knobs, assignments).map_err(|(_, wrong)| failure(&wrong))?;
    Ok(knobs)
}

/// Sets knobs as [`prepare`] does; an error has the index of the wrong assignment.
pub fn set(knobs: &Knobs, assignments: &[(String, String)]) -> Result<Vec<Change>, (usize, model::Wrong)> {
    // The assignments are tried on a copy one after the other, since one may be the condition of the next one.
    let mut shadow = listed(knobs);
    let mut order: Vec<_> = assignments.iter().enumerate().collect();
    // A knob that needs another one is switched off before that one changes, in whatever order they are given.
    let is_off = |name: &str, text: &str| {
        let needs = knobs.get(name).is_some_and(|(knob, _)| knob.needs.is_some());
        needs && matches!(text, "0" | "off") && assignments.iter().filter(|(other, _)| other == name).count() == 1
    };
    order.sort_by_key(|(_, (name, text))| !is_off(name, text));
    let mut checked = Vec::new();
    for (at, (name, text)) in order {
        checked.push(model::set(&mut shadow, name, text).map_err(|wrong| (at, wrong))?);
    }
    // What the check lets through is a number of a knob that there is.
    for (number, change) in &checked {
        knobs.set(&change.name, *number);
    }
    Ok(checked.into_iter().map(|(_, change)| change).collect())
}

/// Returns every knob in the form of the control socket.
pub fn listed(knobs: &Knobs) -> Vec<model::Knob> {
    let shown = |(knob, value): (&segue_datapath::knobs::Knob, u64)| {
        let (min, max, values) = match knob.values {
            Values::Switch => (Some(0), Some(1), &[][..]),
            Values::Number { min, max } => (Some(min), Some(max), &[][..]),
            Values::Names(names) => (None, None, names),
        };
        model::Knob {
            name: knob.name.clone(),
            value: setting(knob.values, value),
            default: setting(knob.values, knob.default),
            min,
            max,
            values: values.iter().map(|name| (*name).to_owned()).collect(),
            unit: knob.unit.to_owned(),
            help: knob.help.to_owned(),
            fixed: knob.fixed.map(str::to_owned),
            needs: knob.needs.as_ref().map(|(name, value)| {
                let values = knobs.get(name).map_or(Values::Switch, |(other, _)| other.values);
                Needs { name: name.clone(), value: setting(values, *value) }
            }),
        }
    };
    knobs.iter().map(shown).collect()
}

fn setting(values: Values, value: u64) -> Setting {
    match values {
        Values::Names(names) => match usize::try_from(value).ok().and_then(|at| names.get(at)) {
            Some(name) => Setting::Name((*name).to_owned()),
            None => Setting::Number(value),
        },
        Values::Switch | Values::Number { .. } => Setting::Number(value),
    }
}

/// Converts a refusal into a failure, for an assignment without a position in a command line or a file.
pub fn failure(wrong: &model::Wrong) -> Error {
    let why = if wrong.note.is_empty() { "these are the valid names" } else { &wrong.note };
    Error::new(wrong.kind, wrong.message.clone(), wrong.good.clone()).why(why)
}

/// Parses a command-line word `KNOB=VALUE`.
pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected KNOB=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use segue_datapath::knobs::Knob;

    use super::*;

    /// Returns a switch `first`, a switch `second` that needs it, and a fixed one.
    fn knobs() -> Knobs {
        let knob = |name: &str| Knob {
            name: name.to_owned(),
            values: Values::Switch,
            unit: "",
            help: "",
            fixed: None,
            needs: None,
            default: 0,
        };
        Knobs::of(|dial| {
            dial.switch(|| knob("first"), &mut true);
            dial.switch(|| Knob { needs: Some(("first".to_owned(), 1)), ..knob("second") }, &mut false);
            dial.switch(|| Knob { fixed: Some("made without it"), ..knob("third") }, &mut false);
        })
    }

    fn assignments(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn values(knobs: &Knobs) -> Vec<u64> {
        knobs.iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn a_refused_assignment_changes_none_of_the_knobs() {
        let knobs = knobs();
        for (wrong, at, message) in [
            (&[("first", "0"), ("second", "1")][..], 1, "second needs first 1"),
            (&[("second", "1"), ("first", "0")][..], 1, "second needs first 1"),
            (&[("second", "1"), ("third", "1")][..], 1, "third cannot be changed here"),
            (&[("second", "1"), ("fourth", "1")][..], 1, "no knob is called `fourth`"),
            (&[("first", "2")][..], 0, "`2` is not a value of first"),
        ] {
            let (index, refusal) = set(&knobs, &assignments(wrong)).unwrap_err();
            assert_eq!((index, refusal.message.as_str()), (at, message), "{wrong:?}");
            assert_eq!(values(&knobs), [1, 0, 0], "{wrong:?}");
        }
    }

    #[test]
    fn assignments_that_depend_on_each_other_are_made_in_the_order_that_works() {
        let knobs = knobs();
        let changes = set(&knobs, &assignments(&[("second", "1"), ("third", "0")])).unwrap();
        assert_eq!(changes.iter().map(|change| change.before.clone()).collect::<Vec<_>>(), [0, 0].map(Setting::Number));
        assert_eq!(values(&knobs), [1, 1, 0]);
        set(&knobs, &assignments(&[("first", "0"), ("second", "off")])).unwrap();
        assert_eq!(values(&knobs), [0, 0, 0]);
        set(&knobs, &assignments(&[("first", "on"), ("second", "on")])).unwrap();
        assert_eq!(values(&knobs), [1, 1, 0]);
    }
}
