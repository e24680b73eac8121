//! The results of a run, for machines (serde) and for people (Display).

use std::fmt;

use serde::Serialize;

use super::table::Table;

/// Everything that one run measured. Serialized, it is what `bench papers --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PapersReport {
    /// Name of the CPU, if the system tells it.
    pub cpu: Option<String>,
    /// Threads that run at once.
    pub threads: usize,
    /// The engine that `auto` picks.
    pub engine: &'static str,
    /// Name of the first GPU, if there is one and a source needs it.
    pub gpu: Option<String>,
    /// The file that ISA-L was loaded from, if it could be.
    pub isal: Option<String>,
    /// One entry per source.
    pub tables: Vec<Table>,
}

/// A table per source.
impl fmt::Display for PapersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or("unknown CPU");
        let (threads, engine) = (self.threads, self.engine);
        writeln!(f, "{cpu}, {threads} threads, engine {engine}")?;
        writeln!(f, "GPU: {}", self.gpu.as_deref().unwrap_or("none in use"))?;
        writeln!(f, "ISA-L: {}", self.isal.as_deref().unwrap_or("not found"))?;
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        writeln!(
            f,
            "\nratio: how many times as fast or good as the paper's, which ran on other hardware: higher is better. In rows of \
             ms and XORs\nit is the paper's figure, divided by ours, and elsewhere ours, divided by the paper's.\n– : the paper has \
             no such figure, or it was not found"
        )
    }
}
