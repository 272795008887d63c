//! Settings that can be changed while packets are forwarded.
//!
//! A pipeline names its settings once, in [`tune`](crate::pipeline::Pipeline::tune): the same walk lists them with
//! their present values and, later, takes new ones. Other threads set [`Knobs`], an array of atomics; the worker reads
//! one generation number a round and walks again when it has changed. So a change is in force from the next round on,
//! no packet waits for a lock, and none is lost.
//!
//! The names follow FreeBSD's GSO of 2014 (`net.gso.dev.IFNAME.max_burst`) and continue its pattern.

use crate::sync::{AtomicU64, Ordering};

/// Values that a knob takes. Each is stored as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A switch: 0 or 1.
    Switch,
    /// Any number in a range, with both bounds included.
    Number {
        /// Smallest value that the knob takes.
        min: u64,
        /// Largest value that the knob takes.
        max: u64,
    },
    /// A name; its index in the list is the knob's number.
    Names(&'static [&'static str]),
}

impl Values {
    fn takes(self, value: u64) -> bool {
        match self {
            Values::Switch => value <= 1,
            Values::Number { min, max } => (min..=max).contains(&value),
            Values::Names(names) => usize::try_from(value).is_ok_and(|at| at < names.len()),
        }
    }
}

/// The definition of one setting, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Name of the knob.
    pub name: String,
    /// The values that the knob takes.
    pub values: Values,
    /// Unit of a number; empty for none.
    pub unit: &'static str,
    /// Description of the knob, one sentence.
    pub help: &'static str,
    /// Reason why the knob cannot be changed, if it is fixed.
    pub fixed: Option<&'static str>,
    /// Another knob and the value that it must have while this knob is not 0.
    pub needs: Option<(String, u64)>,
    /// Value of the knob at the start.
    pub default: u64,
}

/// The knobs of one pipeline, shared with the threads that set them.
#[derive(Debug, Default)]
pub struct Knobs {
    list: Vec<Knob>,
    values: Box<[AtomicU64]>,
    /// Positions of the knobs, in the order of their names.
    by_name: Box<[u32]>,
    /// Number that rises with every change.
    generation: AtomicU64,
}

impl Knobs {
    /// Creates the knobs that `tune`, such as a pipeline's, visits, with their current values as defaults.
    pub fn of(tune: impl FnOnce(&mut Dial<'_>)) -> Knobs {
        let mut list = Vec::new();
        tune(&mut Dial { to: To::List(&mut list) });
        let values = list.iter().map(|knob: &Knob| AtomicU64::new(knob.default)).collect();
        Knobs { by_name: by_name(&list), list, values, generation: AtomicU64::new(0) }
    }

    /// Appends a knob that the pipeline does not know.
    #[must_use]
    pub fn and(self, knob: Knob) -> Knobs {
        let mut values: Vec<AtomicU64> = self.values.into();
        values.push(AtomicU64::new(knob.default));
        let mut list = self.list;
        list.push(knob);
        Knobs { by_name: by_name(&list), list, values: values.into(), generation: self.generation }
    }

    /// Returns every knob with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&Knob, u64)> {
        self.list.iter().zip(self.values.iter().map(|value| value.load(Ordering::Relaxed)))
    }

    /// Returns the knob `name` with its value.
    pub fn get(&self, name: &str) -> Option<(&Knob, u64)> {
        let at = self.position(name)?;
        Some((&self.list[at], self.values[at].load(Ordering::Relaxed)))
    }

    /// Returns the position of the knob `name`: of the first one, should several have this name. A process with many
    /// tunnels has thousands of knobs.
    fn position(&self, name: &str) -> Option<usize> {
        let at = self.by_name.partition_point(|at| self.list[*at as usize].name.as_str() < name);
        let at = *self.by_name.get(at)? as usize;
        (self.list[at].name == name).then_some(at)
    }

    /// Sets a knob; the worker applies the value at its next round. Returns the value before, or `None` where no
    /// knob has this name or it does not take this number; nothing was changed then.
    ///
    /// Whether the knob may be changed ([`Knob::fixed`], [`Knob::needs`]) is the rule of those that set it: they check
    /// several assignments together and say what is wrong with which.
    pub fn set(&self, name: &str, value: u64) -> Option<u64> {
        let at = self.position(name)?;
        if !self.list[at].values.takes(value) {
            return None;
        }
        let before = self.values[at].swap(value, Ordering::Relaxed);
        // A thread that reads the new generation reads the new value.
        self.generation.fetch_add(1, Ordering::Release);
        Some(before)
    }

    /// Sets a knob before the start, like [`Knobs::set`]: the value becomes the knob's default.
    pub fn preset(&mut self, name: &str, value: u64) -> Option<u64> {
        let before = self.set(name, value)?;
        let at = self.position(name)?;
        self.list[at].default = value;
        Some(before)
    }

    /// Calls `tune`, such as a pipeline's, to apply the values if one was set since the generation `seen` (0 at the
    /// start).
    pub fn follow(&self, seen: &mut u64, tune: impl FnOnce(&mut Dial<'_>)) {
        let generation = self.generation.load(Ordering::Acquire);
        if generation != *seen {
            *seen = generation;
            tune(&mut Dial { to: To::Values { values: &self.values, next: 0 } });
        }
    }
}

/// Returns the positions of knobs in the order of their names.
fn by_name(list: &[Knob]) -> Box<[u32]> {
    let mut by_name: Vec<u32> = (0..list.len() as u32).collect();
    by_name.sort_by_key(|at| &list[*at as usize].name);
    by_name.into()
}

enum To<'a> {
    List(&'a mut Vec<Knob>),
    Values { values: &'a [AtomicU64], next: usize },
}

/// A visitor of settings, which lists them or sets them to new values.
pub struct Dial<'a> {
    to: To<'a>,
}

impl std::fmt::Debug for Dial<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dial")
    }
}

impl Dial<'_> {
    /// Visits a number; `value` is its current value, and receives the new one.
    pub fn number(&mut self, make: impl FnOnce() -> Knob, value: &mut u64) {
        match &mut self.to {
            To::List(list) => list.push(Knob { default: *value, ..make() }),
            To::Values { values, next } => {
                if let Some(place) = values.get(*next) {
                    *value = place.load(Ordering::Relaxed);
                }
                *next += 1;
            }
        }
    }

    /// Visits a switch, as [`number`](Self::number).
    pub fn switch(&mut self, make: impl FnOnce() -> Knob, on: &mut bool) {
        let mut value = u64::from(*on);
        self.number(make, &mut value);
        *on = value != 0;
    }
}

impl Knob {
    /// Returns a switch that can be changed and needs no other knob.
    pub(crate) fn switch(name: impl Into<String>, help: &'static str) -> Knob {
        let name = name.into();
        Knob { name, values: Values::Switch, unit: "", help, fixed: None, needs: None, default: 0 }
    }

    /// Returns a knob for a number that can be changed and needs no other knob.
    pub(crate) fn number(name: String, (min, max): (u64, u64), unit: &'static str, help: &'static str) -> Knob {
        Knob { values: Values::Number { min, max }, unit, ..Knob::switch(name, help) }
    }
}
