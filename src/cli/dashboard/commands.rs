//! The commands of an advice that can be copied, and run as they are.

use std::path::Path;

use super::document::{LONGEST, MOST_LINES, text};
use crate::cli::terminal::Escaped;
use crate::control::report::StatusReport;

/// Returns the commands in backquotes of a sentence that can be run as they are.
pub(super) fn commands_in(sentence: &str) -> Vec<String> {
    let quoted = sentence.split('`').skip(1).step_by(2);
    let commands = quoted.filter(|command| command.starts_with("cauchyfs ") && can_run(command));
    let mut commands: Vec<String> = commands.map(text).collect();
    commands.dedup();
    commands.truncate(MOST_LINES);
    commands
}

/// Returns whether a command has neither a word to be replaced, such as `DIR...`, nor more characters than are shown.
fn can_run(command: &str) -> bool {
    let mut unquoted = String::new();
    let (mut is_quoted, mut is_escaped) = (false, false);
    for sign in command.chars() {
        if is_quoted || is_escaped || matches!(sign, '\'' | '\\') {
            // Any sign, so that what is quoted is a word.
            unquoted.push('q');
        } else {
            unquoted.push(sign);
        }
        (is_quoted, is_escaped) = match sign {
            '\'' if !is_escaped => (!is_quoted, false),
            '\\' => (is_quoted, !is_quoted && !is_escaped),
            _ => (is_quoted, false),
        };
    }
    let is_open = |word: &str| {
        let mut letters = word.trim_end_matches("...").bytes();
        let is_name = |byte: u8| {
            byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
        };
        word.contains("...")
            || letters.next().is_some_and(|it| it.is_ascii_uppercase()) && letters.all(is_name)
    };
    command.chars().count() <= LONGEST && !is_quoted && !unquoted.split_whitespace().any(is_open)
}

/// Returns whether a name that is part of the advice has backquotes. What stands between these may be no command of ours.
pub(super) fn names_could_forge_commands(report: &StatusReport, mountpoint: &Path) -> bool {
    let mut names = vec![
        mountpoint.to_string_lossy().into_owned(),
        report.label.clone(),
    ];
    for member in &report.members {
        names.extend(member.path.clone());
        names.extend(member.reason.as_ref().map(ToString::to_string));
    }
    if let Some(elsewhere) = &report.elsewhere {
        names.extend(elsewhere.paths.iter().cloned());
    }
    // A text that would be escaped is shown otherwise than it is pasted.
    let is_unsafe = |name: &String| name.contains('`') || Escaped(name).to_string() != *name;
    names.iter().any(is_unsafe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_cannot_run_as_it_is_shown_is_not_offered() {
        for (command, is_offered) in [
            ("cauchyfs rebuild '/mnt/DIR'", true),
            ("cauchyfs rebuild '/it'\\''s DIR ...'", true),
            ("cauchyfs replace '/a' 3 NEW", false),
            ("cauchyfs replace '/a' 3 DIR2", false),
            ("cauchyfs member replace '/a' 3 NEW_DIR", false),
            ("cauchyfs member replace '/a' 3 NEW-DIR", false),
            ("cauchyfs mount DIR... '/mnt'", false),
            ("cauchyfs mount ... '/mnt'", false),
            ("cauchyfs unmount 'cut", false),
        ] {
            let offered = commands_in(&format!("do `{command}`"));
            assert_eq!(!offered.is_empty(), is_offered, "{command}");
        }
        for (more, is_offered) in [(0, true), (1, false)] {
            let path = "x".repeat(LONGEST - "cauchyfs check ''".len() + more);
            let offered = commands_in(&format!("`cauchyfs check '{path}'`"));
            assert_eq!(!offered.is_empty(), is_offered, "{more}");
        }
    }

    #[test]
    fn commands_are_those_between_backquotes() {
        let sentence =
            "wait; `cauchyfs scrub '/a'` shows `DIR`, or `cauchyfs rebuild '/a'` and `cauchyfs";
        let commands = commands_in(sentence);
        assert_eq!(
            commands[..2],
            ["cauchyfs scrub '/a'", "cauchyfs rebuild '/a'"]
        );
    }
}
