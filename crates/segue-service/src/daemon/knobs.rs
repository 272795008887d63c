//! Conversion of knobs between the datapath's form and that of the control socket.

use std::sync::Arc;

use segue_control::error::{Error, Kind};
use segue_control::knobs::{self as model, Change, Needs, Setting};
use segue_datapath::knobs::{Knobs, Values};

/// The knobs of an instance, shared with the thread that moves packets.
#[derive(Clone, Debug, Default)]
pub struct SharedKnobs(Arc<Knobs>);

impl SharedKnobs {
    /// Creates a handle to these knobs.
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
        if knobs.preset(name, *value).is_err() {
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
    let mut numbers = Vec::new();
    for (at, (name, text)) in order {
        let (knob, number) = model::check(&shadow, name, text).map_err(|wrong| (at, wrong))?;
        let value = knob.setting(number);
        if let Some(knob) = shadow.iter_mut().find(|knob| knob.name == *name) {
            knob.value = value.clone();
        }
        numbers.push(Checked { at, name, number, value });
    }
    apply(knobs, numbers)
}

/// An assignment that passed its checks.
struct Checked<'a> {
    /// Index of the assignment.
    at: usize,
    name: &'a str,
    number: u64,
    value: Setting,
}

/// Sets knobs in this order. One that is refused in spite of the checks takes back those before it.
fn apply(knobs: &Knobs, assignments: Vec<Checked<'_>>) -> Result<Vec<Change>, (usize, model::Wrong)> {
    let mut changed = Vec::new();
    let mut done: Vec<(&str, u64)> = Vec::new();
    for Checked { at, name, number, value } in assignments {
        let Ok(before) = knobs.set(name, number) else {
            for (name, before) in done.into_iter().rev() {
                // Each step leads back to a state that was valid.
                let _ = knobs.set(name, before);
            }
            return Err((at, disagreement(name, &value)));
        };
        done.push((name, before));
        let before = knobs.get(name).map_or(Setting::Number(before), |(knob, _)| setting(knob.values, before));
        changed.push(Change { name: name.to_owned(), before, value });
    }
    Ok(changed)
}

/// Returns the refusal of an assignment that passed the checks and that the datapath does not take.
fn disagreement(name: &str, value: &Setting) -> model::Wrong {
    model::Wrong {
        is_name: false,
        kind: Kind::Internal,
        message: format!("{name} cannot be {value}"),
        note: "the checks of the knobs disagree".to_owned(),
        nearest: None,
        good: "segue --version -v -j".to_owned(),
    }
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

/// Converts a refusal into a failure, for an assignment without a place in a command line or a file.
pub fn failure(wrong: &model::Wrong) -> Error {
    let why = if wrong.note.is_empty() { "these are the names that there are" } else { &wrong.note };
    Error::new(wrong.kind, wrong.message.clone(), wrong.good.clone()).why(why)
}

/// Parses `KNOB=VALUE`.
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

    #[test]
    fn a_refusal_of_the_datapath_takes_back_the_assignments_before_it() {
        let knob = |name: &str| Knob {
            name: name.to_owned(),
            values: Values::Switch,
            unit: "",
            help: "",
            fixed: None,
            needs: None,
            default: 0,
        };
        let knobs = Knobs::of(|dial| {
            dial.switch(|| knob("first"), &mut true);
            dial.switch(|| knob("second"), &mut false);
        });
        let assignment = |at, name, number| Checked { at, name, number, value: Setting::Number(number) };
        let (at, wrong) = apply(&knobs, vec![assignment(1, "first", 0), assignment(0, "second", 2)]).unwrap_err();
        assert_eq!((at, wrong.kind, wrong.message.as_str()), (0, Kind::Internal, "second cannot be 2"));
        assert_eq!(knobs.iter().map(|(_, value)| value).collect::<Vec<_>>(), [1, 0]);
        let changed = apply(&knobs, vec![assignment(0, "first", 0), assignment(1, "second", 1)]).unwrap();
        assert_eq!(changed.iter().map(|change| change.before.clone()).collect::<Vec<_>>(), [1, 0].map(Setting::Number));
        assert_eq!(knobs.iter().map(|(_, value)| value).collect::<Vec<_>>(), [0, 1]);
    }
}
