use std::os::unix::fs::PermissionsExt;

use super::*;

fn parse(text: &str) -> AlertConfig {
    AlertConfig::parse(Path::new("/etc/cauchyfs/alerts.toml"), text, true)
}

fn shown(text: &str) -> Vec<String> {
    let problems = parse(text).problems;
    problems.iter().map(ToString::to_string).collect()
}

const SOUND: &str = r#"
[[receiver]]
name = "pager"
kind = "webhook"
url = "http://127.0.0.1:8080/a"
secret = "s3cret"

[[receiver]]
name = "mail"
kind = "mail"
severity = "critical"
from = "cauchyfs@example.org"
to = ["a@example.org", "b@example.org"]
smtp = "localhost:2525"

[[receiver]]
name = "script"
kind = "program"
command = ["/usr/bin/logger", "-t", "x"]
timeout-seconds = 5
"#;

#[test]
fn a_sound_configuration_is_read_in_full() {
    let config = parse(&format!("state-directory = \"/var/lib/x\"\n{SOUND}"));
    assert_eq!(config.problems, []);
    assert_eq!(config.state, Some(PathBuf::from("/var/lib/x")));
    let kinds: Vec<&str> = config.receivers.iter().map(|it| it.way.kind()).collect();
    assert_eq!(kinds, ["webhook", "mail", "program"]);
    assert_eq!(config.receivers[0].severity, Severity::Warning);
    assert_eq!(config.receivers[1].severity, Severity::Critical);
    assert_eq!(config.receivers[2].timeout, Duration::from_secs(5));
    assert!(!format!("{config:?}").contains("s3cret"));
}

#[test]
fn the_example_in_contrib_is_sound() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/alerts.toml");
    let text = fs::read_to_string(path).unwrap();
    // Every receiver is a comment, so that the file as it is sends nothing.
    assert_eq!(parse(&text), AlertConfig::default());
    let live: String = text
        .lines()
        .map(|line| line.strip_prefix("#").unwrap_or(line).to_owned() + "\n")
        .filter(|line| !line.starts_with(' '))
        .collect();
    let live = live.replace("-file = \"/etc/cauchyfs/", " = \"");
    let config = parse(&live);
    assert_eq!(config.problems, []);
    assert_eq!(config.receivers.len(), 4);
}

/// Every error names file, line and key, and costs no other receiver.
#[test]
fn an_error_names_file_line_and_key_and_leaves_the_other_receivers() {
    let cases = [
        ("name = \"x\"\nkind = \"pigeon\"", 2, "kind"),
        ("name = \"x\"\nkind = \"program\"", 0, "command"),
        (
            "name = \"x\"\nkind = \"program\"\ncommand = \"true\"",
            3,
            "command",
        ),
        (
            "name = \"x\"\nkind = \"program\"\ncommand = [1]",
            3,
            "command",
        ),
        ("kind = \"program\"\nname = \"x y\"", 2, "name"),
        ("kind = \"program\"", 0, "name"),
        (
            "kind = \"program\"\ncommand = \"/a\"\nname = \"pager\"",
            3,
            "name",
        ),
        (
            "name = \"x\"\nkind = \"webhook\"\nurl = \"ftp://a\"",
            3,
            "url",
        ),
        (
            "name = \"x\"\nkind = \"webhook\"\nurl = \"http:///\"",
            3,
            "url",
        ),
        (
            "name = \"x\"\nkind = \"webhook\"\nurl = \"http://a\"\nsecret-file = \"/absent\"",
            4,
            "secret-file",
        ),
        (
            "name = \"x\"\nkind = \"webhook\"\nurl = \"http://a\"\nsecret = \"\"",
            4,
            "secret",
        ),
        ("name = \"x\"\nseverity = \"loud\"", 2, "severity"),
        ("name = \"x\"\n\ntimeout-seconds = 0", 3, "timeout-seconds"),
        (
            "name = \"x\"\ntimeout-seconds = \"5\"",
            2,
            "timeout-seconds",
        ),
        (
            "name = \"x\"\nkind = \"mail\"\nfrom = \"a@b.c\"\nto = [\"nobody\"]",
            4,
            "to",
        ),
        (
            "name = \"x\"\nkind = \"mail\"\nfrom = \"a@b.c\"\nto = \"a@b.c\"\nsmtp = \"host\"",
            5,
            "smtp",
        ),
        (
            "name = \"x\"\nkind = \"mail\"\nfrom = \"a@b.c\"\nto = \"a@b.c\"\nuser = \"u\"",
            5,
            "user",
        ),
        (
            "name = \"x\"\nkind = \"mail\"\nfrom = \"a@b.c\"\nto = \"a@b.c\"\nsmtp = \"h:25\"\nuser = \"u\"\npassword = \"p\"",
            6,
            "user",
        ),
        (
            "name = \"x\"\nkind = \"program\"\ncommand = \"/a\"\ncolour = 1",
            4,
            "colour",
        ),
        ("name = \"x\"\nkind = ", 2, "kind"),
        ("name = \"x\"\nname = \"x\"", 2, "name"),
    ];
    let before = SOUND.lines().count() + 1;
    for (wrong, line, key) in cases {
        let last = "[[receiver]]\nname = \"last\"\nkind = \"program\"\ncommand = \"/a\"\n";
        let text = format!("{SOUND}[[receiver]]\n{wrong}\n{last}");
        let shown = shown(&text);
        let line = before + line;
        let start = format!("/etc/cauchyfs/alerts.toml:{line}: {key}: ");
        assert_eq!(shown.len(), 1, "{wrong}: {shown:?}");
        assert!(shown[0].starts_with(&start), "{start} {shown:?}");
        assert_eq!(parse(&text).receivers.len(), 4, "{wrong}");
    }
    let shown = shown("colour = 1\n");
    assert!(
        shown[0].starts_with("/etc/cauchyfs/alerts.toml:1: colour: "),
        "{shown:?}"
    );
}

#[test]
fn receivers_are_bounded() {
    let one = |number| {
        format!("[[receiver]]\nname = \"r{number}\"\nkind = \"program\"\ncommand = \"/a\"\n")
    };
    let config = parse(&(0..20).map(one).collect::<String>());
    assert_eq!((config.receivers.len(), config.problems.len()), (16, 4));
}

#[test]
fn an_argument_that_others_can_write_leaves_out_only_its_receiver() {
    let home = tempfile::tempdir().unwrap();
    let list = home.path().join("recipients");
    fs::write(&list, "a@example.org").unwrap();
    let one = |name: &str, command: &str| {
        format!("[[receiver]]\nname = \"{name}\"\nkind = \"program\"\ncommand = {command}\n")
    };
    let text = [
        one("first", "\"/bin/sh\""),
        one("lists", &format!("[\"/bin/sh\", {list:?}]")),
        one("last", "\"/bin/sh\""),
    ];
    let text = text.concat();
    assert_eq!(parse(&text).receivers.len(), 3);
    fs::set_permissions(&list, fs::Permissions::from_mode(0o666)).unwrap();
    let config = parse(&text);
    let names: Vec<&str> = config.receivers.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["first", "last"]);
    let problems: Vec<_> = config.problems.iter().map(|it| &it.receiver).collect();
    assert_eq!(problems, [&Some("lists".to_owned())]);
}

#[test]
fn files_that_others_can_write_or_secrets_that_others_can_read_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("alerts.toml");
    assert_eq!(AlertConfig::read(&path), None);
    let secret = home.path().join("secret");
    fs::write(&secret, "key\n").unwrap();
    let webhook = "[[receiver]]\nname = \"x\"\nkind = \"webhook\"\nurl = \"http://a\"\n";
    fs::write(&path, format!("{webhook}secret-file = {secret:?}\n")).unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let problems = || AlertConfig::read(&path).unwrap().problems;
    for (config_mode, secret_mode, above, expected) in [
        (0o644, 0o600, 0o755, ""),
        (0o644, 0o640, 0o755, ""),
        (0o664, 0o600, 0o755, "write"),
        (0o646, 0o600, 0o755, "write"),
        (0o644, 0o644, 0o755, "read"),
        (0o644, 0o602, 0o755, "write"),
        (0o644, 0o600, 0o777, "write"),
    ] {
        set(&path, config_mode).unwrap();
        set(&secret, secret_mode).unwrap();
        set(home.path(), above).unwrap();
        let shown: String = problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            shown.is_empty(),
            expected.is_empty(),
            "{config_mode:o} {secret_mode:o} {shown}"
        );
        assert!(
            shown.contains(expected),
            "{config_mode:o} {secret_mode:o} {shown}"
        );
    }
    set(home.path(), 0o755).unwrap();
    let last = "[[receiver]]\nname = \"last\"\nkind = \"program\"\ncommand = \"/a\"\n";
    fs::write(&path, format!("{webhook}secret = \"key\"\n{last}")).unwrap();
    for (mode, expected) in [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1), (0o644, 1)] {
        set(&path, mode).unwrap();
        let config = AlertConfig::read(&path).unwrap();
        assert_eq!(config.problems.len(), expected, "{mode:o} {config:?}");
        assert_eq!(config.receivers.len(), 2 - expected, "{mode:o}");
        for problem in config.problems {
            let shown = problem.to_string();
            assert!(shown.contains("alerts.toml:5: secret: ") && shown.contains("chmod 600"));
        }
    }
    let fifo = home.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    set(home.path(), 0o755).unwrap();
    assert_eq!(AlertConfig::read(&fifo).unwrap().problems.len(), 1);
}
