//! The knobs of an instance whose configuration changes: what has to be set, and what a successor begins with.

use std::collections::{BTreeSet, HashMap, HashSet};

use segue_control::error::Error;
use segue_control::{client, knobs};

use super::child::Instance;
use super::service::Configuration;
use super::spec::InstanceSpec;

/// Knob names with their values.
pub(super) type Assignments = Vec<(String, String)>;

/// Returns the knobs to set so that the running instance `old` becomes `new`: those of the configuration, and the
/// initial values of those removed from it, as far as they have other values now. One that needs another knob is
/// switched off before that one changes.
pub(super) fn turn(
    old: &Instance,
    new: &InstanceSpec,
    configuration: &dyn Configuration,
) -> Result<Assignments, Error> {
    let (before, assignments) = (assigned(&old.spec), assigned(new));
    if before == assignments && old.unset.is_empty() {
        return Ok(Vec::new());
    }
    let known = client::knobs(&new.name)?;
    let mut dropped: BTreeSet<&str> = before.iter().map(|(name, _)| &**name).collect();
    dropped.extend(old.unset.iter().map(String::as_str));
    for (kept, _) in &assignments {
        dropped.remove(&**kept);
    }
    let mut all: Assignments = known
        .iter()
        .filter(|knob| dropped.contains(&*knob.name))
        .map(|knob| (knob.name.clone(), knob.default.to_string()))
        .collect();
    let mut shadow = known.clone();
    for (name, value) in &all {
        // The value of the start is always valid.
        let _: Result<_, knobs::Wrong> = knobs::set(&mut shadow, name, value);
    }
    configuration.check_knobs(new, shadow)?;
    all.extend(assignments);
    Ok(different(all, &known))
}

/// Returns the knobs of `spec` with their values. Of several values of one knob the last one counts, as at the start.
fn assigned(spec: &InstanceSpec) -> Assignments {
    let (mut all, mut known) = (spec.knobs(), HashSet::new());
    all.reverse();
    all.retain(|(name, _)| known.insert(name.clone()));
    all.reverse();
    all
}

/// Returns those of `all` whose knobs have other values in `known`, in an order in which they can be set one by one.
fn different(mut all: Assignments, known: &[knobs::Knob]) -> Assignments {
    let known: HashMap<&str, &knobs::Knob> = known.iter().map(|knob| (&*knob.name, knob)).collect();
    all.retain(|(name, value)| known.get(&**name).is_none_or(|knob| knob.value.to_string() != *value));
    let is_off = |name: &str, value: &str| {
        matches!(value, "0" | "off") && known.get(name).is_some_and(|knob| knob.needs.is_some())
    };
    all.sort_by_key(|(name, value)| {
        (!is_off(name, value), known.get(&**name).is_some_and(|knob| knob.needs.is_some()))
    });
    all
}

/// Returns the initial knobs of `new` where it takes over interfaces of `old`: those of the configuration, and those
/// set at run time that the configuration has not changed since.
pub(super) fn carried(old: &Instance, new: &InstanceSpec) -> Result<Assignments, Error> {
    let (before, mut assignments) = (assigned(&old.spec), assigned(new));
    let said = |assignments: &Assignments, name: &str| {
        assignments.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    // A thousand tunnels have tens of thousands of knobs, of which few interfaces are gone.
    let has = new.devs();
    let mut lost = old.spec.devs();
    lost.retain(|dev| !has.contains(dev));
    let gone = |name: &str| lost.iter().any(|dev| knobs::is_of(name, dev));
    let mut set: Vec<knobs::Knob> = client::knobs(&old.spec.name)?;
    set.retain(|knob| knob.fixed.is_none() && !gone(&knob.name) && !old.unset.contains(&knob.name));
    // A knob that needs another one comes after it.
    set.sort_by_key(|knob| knob.needs.is_some());
    for knob in set {
        let was = said(&before, &knob.name);
        let now = knob.value.to_string();
        if was == said(&assignments, &knob.name) && now != was.unwrap_or_else(|| knob.default.to_string()) {
            assignments.retain(|(name, _)| *name != knob.name);
            assignments.push((knob.name, now));
        }
    }
    Ok(assignments)
}

#[cfg(test)]
mod tests {
    use segue_control::knobs::{Knob, Needs, Setting};

    use super::*;
    use crate::supervise::spec::{InstancePlan, Kind, KnobAssignment, Token};

    fn assignments(all: &[(&str, &str)]) -> Assignments {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn of_several_values_of_one_knob_the_last_one_counts() {
        let spec = |all: &[(&str, &str)]| {
            let token = |text: &str| Token::new(text, 0..0);
            let assignment = |(name, value): &(&str, &str)| KnobAssignment { name: token(name), value: token(value) };
            InstanceSpec {
                kind: Kind::Tunnel,
                name: "sg0".to_owned(),
                tokens: Vec::new(),
                assignments: all.iter().map(assignment).collect(),
                header: 0..0,
                plan: InstancePlan::Tunnels(Vec::new()),
                unresolved: None,
            }
        };
        // Two tunnels of one port are one instance.
        let mut joined = spec(&[("a", "0"), ("b", "2")]);
        joined.append(spec(&[("a", "1")]));
        assert_eq!(assigned(&joined), assignments(&[("b", "2"), ("a", "1")]));
        assert_eq!(different(assigned(&joined), &[knob("a", 1, None), knob("b", 2, None)]), []);
    }

    fn knob(name: &str, value: u64, needs: Option<(&str, u64)>) -> Knob {
        let needs = needs.map(|(name, value)| Needs { name: name.to_owned(), value: Setting::Number(value) });
        let (name, value, default) = (name.to_owned(), Setting::Number(value), Setting::Number(0));
        let (values, unit, help) = (Vec::new(), String::new(), String::new());
        Knob { name, value, default, min: Some(0), max: Some(9), values, unit, help, fixed: None, needs }
    }

    #[test]
    fn only_knobs_that_differ_are_set_and_one_that_needs_another_is_switched_off_first() {
        let known = [knob("a", 1, None), knob("b", 2, None), knob("c", 1, Some(("b", 2))), knob("d", 0, None)];
        let wanted = |all: &[(&str, &str)]| {
            different(assignments(all), &known)
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(wanted(&[("a", "1"), ("b", "2"), ("c", "1"), ("d", "0")]), [""; 0]);
        assert_eq!(wanted(&[("a", "1"), ("d", "3"), ("b", "1"), ("c", "0")]), ["c=0", "d=3", "b=1"]);
        assert_eq!(wanted(&[("c", "2"), ("b", "3")]), ["b=3", "c=2"], "the needed one first");
        assert_eq!(wanted(&[("other", "1")]), ["other=1"], "the instance refuses what it does not know");
    }
}
