//! The line that an event becomes: when, how grave and where, then the fields of its spans and its own, then its message.

use std::fmt::{self, Debug, Display};

use anstyle::{AnsiColor, Style};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::terminal::Escaped;

/// The parts of a line that precede the fields and the message.
#[derive(Clone, Copy, Debug)]
pub(super) enum LineFormat {
    /// Time, level and module.
    Plain,
    /// The same, in colors.
    Colored,
    /// Nothing, because the receiver adds time and level.
    Bare,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        self.write_head(&mut writer, *metadata.level(), metadata.target())?;
        let mut parts = Parts::default();
        let spans = context
            .event_scope()
            .into_iter()
            .flat_map(tracing_subscriber::registry::Scope::from_root);
        for span in spans {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                parts.add_formatted(fields);
            }
        }
        event.record(&mut parts);
        writeln!(writer, "{parts}")
    }
}

impl LineFormat {
    fn write_head(self, writer: &mut Writer<'_>, level: Level, target: &str) -> fmt::Result {
        let (subtle, vivid) = match self {
            Self::Bare => return Ok(()),
            Self::Plain => (Style::new(), Style::new()),
            Self::Colored => (AnsiColor::BrightBlack.on_default(), color(level)),
        };
        let (now, target) = (jiff::Timestamp::now(), Escaped(target));
        write!(
            writer,
            "{subtle}[{subtle:#}{now:.3} {vivid}{level:<5}{vivid:#} {target}{subtle}]{subtle:#} "
        )
    }
}

/// Returns the color of a level.
fn color(level: Level) -> Style {
    match level {
        Level::ERROR => AnsiColor::Red.on_default().bold(),
        Level::WARN => AnsiColor::Yellow.on_default(),
        Level::INFO => AnsiColor::Green.on_default(),
        Level::DEBUG => AnsiColor::Blue.on_default(),
        Level::TRACE => AnsiColor::Cyan.on_default(),
    }
}

/// Formats the fields of a span as `name=value`, in their order.
#[derive(Debug)]
pub(super) struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut parts = Parts::default();
        fields.record(&mut parts);
        write!(writer, "{parts}")
    }
}

/// The fields and the message of a span or of an event, escaped.
#[derive(Default)]
struct Parts {
    fields: String,
    message: String,
}

impl Parts {
    /// Adds fields that are formatted and escaped already.
    fn add_formatted(&mut self, fields: &str) {
        if !self.fields.is_empty() && !fields.is_empty() {
            self.fields.push(' ');
        }
        self.fields.push_str(fields);
    }

    fn add(&mut self, field: &Field, value: impl Display) {
        match field.name() {
            "message" => self.message = Escaped(value).to_string(),
            // The bridge keeps here which module of a library logs; the head of the line names it.
            name if name.starts_with("log.") => {}
            // The text names the member already.
            super::journal::MEMBER => {}
            name => self.add_formatted(&format!("{name}={}", Escaped(value))),
        }
    }
}

impl Visit for Parts {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

impl Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fields)?;
        if !self.fields.is_empty() && !self.message.is_empty() {
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}
