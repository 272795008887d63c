//! The types of metric families.

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only increases; 0 is omitted.
    Counter,
    /// A number that can increase and decrease.
    Gauge,
    /// The constant 1, with properties in its labels.
    Info,
}

impl Kind {
    /// Returns the name of the type in OpenMetrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
        }
    }
}
