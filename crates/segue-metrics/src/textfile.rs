//! A file of metrics for the textfile collector of node_exporter.

use std::io;
use std::path::Path;

use segue_host::file;

/// Mode of the file, whatever the mask of the process: node_exporter has a user of its own.
pub(crate) const MODE: u32 = 0o644;

/// Replaces `path` by `text` in one step. The collector reads names that end in `.prom` alone, so that it never sees
/// the file before it is complete.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    file::replace(path, text.as_bytes(), Some(MODE))
}
