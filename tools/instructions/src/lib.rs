//! The workloads whose instructions are counted, of the engine and of the product. `bench/peers` measures their time
//! beside other implementations of the same.

pub mod engine;
pub mod frames;
pub mod product;
pub mod uncopied;

/// A workload after its preparation and one run to warm up.
pub struct Workload {
    /// Name of the workload, as in `expected.json`.
    pub name: &'static str,
    /// Number of packets that one run handles.
    pub packets: usize,
    /// Function that handles the packets once.
    pub run: Box<dyn FnMut()>,
}
