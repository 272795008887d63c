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
        numbers.push((name, number, value));
    }
    let mut changed = Vec::new();
    for (name, number, value) in numbers {
        let Some((knob, _)) = knobs.get(name) else { continue };
        // Only this thread sets knobs, so that the checks still hold.
        if let Ok(before) = knobs.set(name, number) {
            changed.push(Change { name: name.clone(), before: setting(knob.values, before), value });
        }
    }
    Ok(changed)
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
