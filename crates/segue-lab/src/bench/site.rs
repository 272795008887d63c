//! The environment of a measurement: path of the program, number of the round, assignment of processors.

use std::path::PathBuf;

use super::bed;
use super::settings::Settings;
use crate::{LabError, cores};

/// Environment in which a point is measured.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) segue: PathBuf,
    /// Another `segue` to compare with.
    pub(super) beside: Option<PathBuf>,
    /// Number of the round, from 1.
    pub(super) run: u32,
    pub(super) seconds: u32,
    pub(super) quota: Option<u32>,
    /// The processor of the host that makes the load.
    pub(super) load_core: usize,
    /// The processor of the host under test.
    pub(super) test_core: usize,
}

impl Site {
    pub(super) fn new(settings: &Settings) -> Result<Site, LabError> {
        let cores = cores();
        let (Some(&load_core), Some(&test_core)) = (cores.first(), cores.last()) else {
            return Err(LabError::Usage("this process may run on no processor".into()));
        };
        if load_core == test_core {
            return Err(LabError::Usage(
                "a bench needs two processors: one for the load, one for the host under test".into(),
            ));
        }
        let segue = bed::program(&settings.segue)?;
        let beside = settings.beside.as_deref().map(bed::program).transpose()?;
        let Settings { seconds, quota, .. } = *settings;
        Ok(Site { segue, beside, run: 1, seconds, quota, load_core, test_core })
    }
}
