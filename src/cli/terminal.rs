//! Printing to the terminal: everything that a command says passes through here, with control characters escaped.
//!
//! Names of files, messages of daemons and texts of helpers come from others. Without escaping, one of them could move
//! the cursor, recolour the screen, or forge a line of a report or of a log.
//!
//! A reader of standard output may go away, and its disk may be full. The command then does its work to the end, prints no
//! more, and [`end`] turns that into its exit code.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write as _};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// A text on one line, with every character escaped that would be more than a letter to a terminal or to a log.
///
/// These are the controls of C0 and C1, DEL, the separators of lines and paragraphs, and the controls that reorder text
/// of both directions. Everything else stays as it is, a backslash too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Escaped<T>(pub(super) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// A writer that escapes on the way.
struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_unsafe) {
            let (plain, tail) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut characters = tail.chars();
            if let Some(character) = characters.next() {
                write!(self.0, "{}", character.escape_default())?;
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Says whether a character acts on the terminal or on the order of the text, instead of being shown.
fn is_unsafe(character: char) -> bool {
    let reorders = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || reorders
}

/// Joins lines, each of which stays one line whatever it contains.
pub(super) fn join_lines(lines: &[String]) -> String {
    let escaped = lines.iter().map(|line| Escaped(line).to_string());
    escaped.collect::<Vec<_>>().join("\n")
}

/// The first failure to write to standard output. Nothing is written there after it.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Exit code of a command that did its work, and could not print all that it had to say.
const NOT_PRINTED: u8 = 2;

/// Prints one line on standard output.
pub(super) fn line(text: impl Display) {
    print(format_args!("{}", Escaped(text)));
}

/// Prints a line on standard output as it is, unless a line before it could not be printed.
fn print(line: fmt::Arguments<'_>) {
    if UNWRITTEN.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    if let Err(error) = written {
        UNWRITTEN.get_or_init(|| error);
    }
}

/// Returns the exit code of a command that would end with `code`. If its output was not written in full, success becomes
/// a failure, and standard error names the cause. A reader that is gone wants no more output: that is said by the code
/// alone, as tools of the system do.
pub(super) fn end(code: u8) -> u8 {
    let Some(error) = UNWRITTEN.get() else {
        return code;
    };
    if error.kind() != io::ErrorKind::BrokenPipe {
        let text = format_args!("cannot write to standard output: {error}");
        error_lines(text, None::<&str>);
    }
    if code == 0 { NOT_PRINTED } else { code }
}

/// Prints the lines of a report on standard output. The caller composes it with [`join_lines`], which keeps them apart.
pub(super) fn report(text: &str) {
    text.lines().for_each(line);
}

/// Prints a document on standard output, as JSON.
///
/// # Errors
///
/// If it cannot be written as JSON.
pub(super) fn json(document: &impl Serialize) -> serde_json::Result<()> {
    print(format_args!("{}", json_text(document)?));
    Ok(())
}

/// Prints a document on standard output, as JSON on one line.
///
/// # Errors
///
/// If it cannot be written as JSON.
pub(super) fn json_line(document: &impl Serialize) -> serde_json::Result<()> {
    print(format_args!(
        "{}",
        escaped(&serde_json::to_string(document)?)
    ));
    Ok(())
}

/// Says whether standard output may still have a reader, for a command that prints more later.
pub(super) fn waits_for_more() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let looked = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
    let is_gone = looked.is_ok() && polled[0].revents().contains(PollFlags::ERR);
    UNWRITTEN.get().is_none() && !is_gone
}

/// Returns a document as JSON in which no string has a character that acts on a terminal.
fn json_text(document: &impl Serialize) -> serde_json::Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(document)?))
}

/// Escapes the characters in strings of a JSON text that act on a terminal.
fn escaped(plain: &str) -> String {
    let mut text = String::with_capacity(plain.len());
    for character in plain.chars() {
        // The line ends between the values are the only controls outside of strings.
        if character != '\n' && is_unsafe(character) {
            write!(text, "\\u{:04x}", u32::from(character))
                .expect("writing to a string cannot fail");
        } else {
            text.push(character);
        }
    }
    text
}

/// Prints one line on standard error, and advice on a second one.
pub(super) fn error_lines(text: impl Display, advice: Option<impl Display>) {
    let mut lines = format!("cauchyfs: {}\n", Escaped(text));
    if let Some(advice) = advice {
        writeln!(lines, "  {}", Escaped(advice)).expect("writing to a string cannot fail");
    }
    // No place is left to say that standard error takes nothing. The exit code stays right.
    drop(io::stderr().lock().write_all(lines.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_escaped_and_letters_of_all_languages_stay() {
        for (given, expected) in [
            ("plain: Ünïcode ✓ 日本 a\\b", "plain: Ünïcode ✓ 日本 a\\b"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[31mred\u{7f}", "\\u{1b}[31mred\\u{7f}"),
            ("\u{9b}2J\u{85}", "\\u{9b}2J\\u{85}"),
            (
                "\u{202e}evil\u{2066}\u{2069}",
                "\\u{202e}evil\\u{2066}\\u{2069}",
            ),
            ("\u{200e}\u{200f}\u{61c}", "\\u{200e}\\u{200f}\\u{61c}"),
            ("\u{2028}\u{2029}", "\\u{2028}\\u{2029}"),
            ("", ""),
        ] {
            assert_eq!(Escaped(given).to_string(), expected);
            let again = Escaped(expected).to_string();
            assert_eq!(again, expected, "escaping twice changes nothing");
        }
    }

    #[test]
    fn a_line_stays_one_line() {
        let lines = ["first\nforged".to_owned(), "second".to_owned()];
        assert_eq!(join_lines(&lines), "first\\nforged\nsecond");
    }

    #[test]
    fn json_means_the_same_and_has_no_controls() {
        let given = ["a\u{1b}\n\u{7f}\u{9b}\u{202e}\"é".to_owned()];
        let text = json_text(&given).unwrap();
        assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text:?}");
        let back: [String; 1] = serde_json::from_str(&text).unwrap();
        assert_eq!(back, given);
    }
}
