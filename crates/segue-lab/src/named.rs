//! Names and values in the order in which they were added.

use serde::{Serialize, Serializer};

/// Names and values in a fixed order, serialised as a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T>(pub Vec<(String, T)>);

impl<T> Named<T> {
    /// Returns the value of a name.
    pub fn find(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a name and its value at the end.
    pub fn push(&mut self, name: &str, value: impl Into<T>) {
        self.0.push((name.into(), value.into()));
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named(Vec::new())
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
