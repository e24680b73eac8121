//! Words of commands that a user can paste into a shell.

use std::path::Path;

/// Quotes a word for a shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Quotes a path for a shell.
pub(super) fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Quotes words for a shell, with a space between them.
pub(super) fn quoted_words(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_each_quoted_word_as_one() {
        let words = ["/srv/d 0", "/srv/it's", "$(reboot)`", ""].map(str::to_owned);
        let script = format!("printf '%s\\n' {}", quoted_words(&words));
        let shown = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown, words.map(|word| word + "\n").concat());
        assert_eq!(quoted_path(Path::new("/srv/d 0")), "'/srv/d 0'");
    }
}
