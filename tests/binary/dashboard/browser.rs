//! The page in headless Chromium, which is asked over its pipe for debugging.

use super::*;
use crate::alerts::Port;

/// The programs that are Chromium, by name.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A page that is open in a browser.
struct Page {
    child: Child,
    requests: Option<std::process::ChildStdin>,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    /// Errors that the page told, such as violations of its policy.
    errors: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Drop for Page {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.requests.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Page {
    /// Opens an address. None if there is no browser.
    fn open(url: &str) -> Option<Self> {
        let name = NAMES.into_iter().find(|name| {
            let found = run("sh", &["-c", &format!("command -v {name}")]);
            found.status.success()
        })?;
        let profile = tempfile::tempdir().expect("there is room");
        // The browser reads requests from descriptor 3, and writes answers to descriptor 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", name, "--headless=new", "--no-sandbox"])
            .args([
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the browser starts");
        let answers = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut page = Self {
            requests: child.stdin.take(),
            child,
            answers,
            session: None,
            number: 0,
            errors: Vec::new(),
            _profile: profile,
        };
        let target = page.ask(
            "Target.createTarget",
            &serde_json::json!({"url": "about:blank"}),
        );
        let attach = serde_json::json!({"targetId": target["targetId"], "flatten": true});
        let session = page.ask("Target.attachToTarget", &attach);
        page.session = session["sessionId"].as_str().map(str::to_owned);
        page.ask("Runtime.enable", &serde_json::json!({}));
        page.ask("Log.enable", &serde_json::json!({}));
        page.ask("Page.enable", &serde_json::json!({}));
        page.ask("Page.navigate", &serde_json::json!({"url": url}));
        Some(page)
    }

    /// Sends a request, and waits for its answer.
    #[track_caller]
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.number += 1;
        let mut request =
            serde_json::json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        let requests = self.requests.as_mut().expect("the browser runs");
        write!(requests, "{request}\0").expect("the browser reads");
        loop {
            let mut answer = Vec::new();
            self.answers
                .read_until(0, &mut answer)
                .expect("the browser answers");
            answer.pop();
            let answer: Value = serde_json::from_slice(&answer).expect("it is JSON");
            let told = answer["method"].as_str();
            if matches!(told, Some("Log.entryAdded" | "Runtime.exceptionThrown")) {
                self.errors.push(answer["params"].to_string());
            }
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Returns the value of an expression.
    #[track_caller]
    fn value(&mut self, expression: &str) -> Value {
        let params = serde_json::json!({"expression": expression, "returnByValue": true});
        let result = self.ask("Runtime.evaluate", &params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    fn wait_until(&mut self, what: &str, expression: &str) {
        eventually(what, || self.value(expression) == true);
    }

    /// Presses a key.
    fn press(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            let code = if key == "Tab" { 9 } else { 13 };
            let params = serde_json::json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code
            });
            self.ask("Input.dispatchKeyEvent", &params);
        }
    }
}

/// The least contrast of any text that is shown, with the text.
const LEAST_CONTRAST: &str = r#"(() => {
  const parse = (color) => { const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const light = ({ r, g, b }) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  let least = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || ["STYLE", "SCRIPT", "NOSCRIPT"].includes(element.tagName)) continue;
    let behind = element;
    while (behind && parse(getComputedStyle(behind).backgroundColor).a < 1) behind = behind.parentElement;
    const [a, b] = [parse(getComputedStyle(element).color), parse(getComputedStyle(behind || document.body).backgroundColor)].map(light);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, text];
  }
  return least;
})()"#;

/// Checks contrast in both schemes, and that nothing is wider than a phone.
fn check_looks(page: &mut Page) {
    for scheme in ["light", "dark"] {
        let features = serde_json::json!([{"name": "prefers-color-scheme", "value": scheme}]);
        page.ask(
            "Emulation.setEmulatedMedia",
            &serde_json::json!({"features": features}),
        );
        let least = page.value(LEAST_CONTRAST);
        assert!(least[0].as_f64() >= Some(4.5), "{scheme}: {least}");
    }
    for (width, height) in [(360, 740), (1280, 900)] {
        let metrics = serde_json::json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500
        });
        page.ask("Emulation.setDeviceMetricsOverride", &metrics);
        let overflow = page.value("document.documentElement.scrollWidth - innerWidth");
        assert!(overflow.as_i64() <= Some(0), "{width}: {overflow}");
    }
}

/// Presses the tabulator until the command of the volume at `place` has the focus, and checks that both can be told.
fn check_command_by_keyboard(page: &mut Page, is_at_command: &str, place: &str) {
    let mut is_reached = false;
    for _ in 0..200 {
        page.press("Tab");
        is_reached = page.value(is_at_command) == true;
        if is_reached {
            break;
        }
    }
    assert!(is_reached, "the command cannot be reached by keyboard");
    assert_ne!(
        page.value("getComputedStyle(document.activeElement).outlineStyle"),
        "none"
    );
    let label = page.value("document.activeElement.getAttribute('aria-label')");
    let command = format!("Copy the command cauchyfs rebuild '{place}'");
    assert_eq!(label, command.as_str());
}

/// Rebuilds the volume at `place`, so that the command of the page goes away under the focus. Then its heading has that.
fn check_focus_without_command(page: &mut Page, place: &str) {
    let rebuilt = run(CAUCHYFS, &["rebuild", place]);
    assert!(rebuilt.status.code() <= Some(3), "{rebuilt:?}");
    let section = format!("document.querySelector('section[data-key=\"{place}\"]')");
    let command = format!("cauchyfs rebuild '{place}'");
    page.wait_until(
        "the command goes away",
        &format!(
            "![...{section}.querySelectorAll('button')].some((it) => it.dataset.command === \"{command}\")"
        ),
    );
    let is_at_heading = format!("{section}.querySelector('h2') === document.activeElement");
    assert_eq!(page.value(&is_at_heading), true, "the focus was lost");
}

/// Ends the dashboard. The page goes on to show the volumes, and tells of what time they are, always the same.
fn check_end_of_dashboard(page: &mut Page, dashboard: Dashboard) {
    drop(dashboard);
    let alarm = "document.getElementById('alarm')";
    page.wait_until(
        "the end of the dashboard is shown",
        &format!("!{alarm}.hidden && {alarm}.textContent.includes('has not answered since')"),
    );
    let updated = page.value("document.getElementById('foot').textContent");
    let updated = updated
        .as_str()
        .and_then(|it| it.strip_prefix("Updated at "));
    let (time, _) = updated
        .and_then(|it| it.split_once(','))
        .expect("it has a time");
    assert_eq!(time.len(), "00:00:00".len(), "{time}");
    let age = format!("This page shows how it was at {time}.");
    let told = page.value(&format!("{alarm}.textContent"));
    assert!(told.as_str().is_some_and(|it| it.ends_with(&age)), "{told}");
    // It has asked again meanwhile.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(page.value(&format!("{alarm}.textContent")), told);
    let shown = page.value("document.querySelectorAll('section').length");
    assert!(shown.as_u64() >= Some(2), "the volumes are still shown");
}

/// Opens the address with the token that `--url` prints. The page itself asks with that token, too.
fn check_address_with_token(page: &mut Page, place: &str) {
    let home = tempfile::tempdir().expect("there is room");
    let file = home.path().join("token");
    let options = ["--make-token", "--token-file", text(&file)];
    let dashboard = Dashboard::start(&options);
    let at = dashboard.address.to_string();
    let arguments = ["dashboard", "--url", "--listen", &at];
    let printed = run(CAUCHYFS, &[&arguments[..], &options[1..]].concat());
    assert!(printed.status.success(), "{}", said(&printed));
    let url = String::from_utf8(printed.stdout).expect("it is text");
    let url = url.trim_end();
    assert!(url.starts_with("http://cauchyfs:"), "{url}");
    page.ask("Page.navigate", &serde_json::json!({"url": url}));
    page.wait_until(
        "the address with the token shows the volume",
        &format!(
            "location.host === '{at}' && document.querySelector('section[data-key=\"{place}\"]') !== null"
        ),
    );
    let alarm_is_hidden = "document.getElementById('alarm').hidden";
    assert_eq!(page.value(alarm_is_hidden), true, "the page is refused");
}

#[test]
fn the_page_shows_a_deleted_member_live_in_light_and_dark_on_a_phone_and_by_keyboard() {
    if skip_mounts() {
        return;
    }
    let mut volumes = [(); 2].map(|()| TestVolume::create(Shape::FOUR_TWO_AND_ONE, 2048));
    // The page shows volumes in the order of their mountpoints.
    volumes.sort_by_key(|it| it.mountpoint.clone());
    let [above, volume] = volumes;
    volume.mount();
    fs::write(volume.path("large"), vec![1; 8 << 20]).expect("there is room");
    must("sync", &["-f", text(&volume.mountpoint)]);
    // The same port is served again later.
    let port = Port::take();
    let at = format!("127.0.0.1:{}", port.number);
    let start = || {
        let mut command = Command::new(CAUCHYFS);
        Dashboard::start_command(command.args(["dashboard", "--listen", &at]))
    };
    let dashboard = start();
    let Some(mut page) = Page::open(&format!("http://{}/", dashboard.address)) else {
        let is_needed = std::env::var_os("CAUCHYFS_NEEDS_BROWSER").is_some();
        assert!(
            !is_needed,
            "there is no Chromium here, and CAUCHYFS_NEEDS_BROWSER is set"
        );
        println!("the page is NOT TESTED in a browser: there is no Chromium here");
        volume.unmount();
        return;
    };
    let place = text(&volume.mountpoint).to_owned();
    let of = |rest: &str| format!("document.querySelector('section[data-key=\"{place}\"]'){rest}");
    page.wait_until(
        "the volume is shown",
        &of("?.classList.contains('healthy') === true"),
    );
    check_looks(&mut page);
    page.value("window.isSame = true");
    fs::remove_dir_all(&volume.members[2]).expect("it can be removed");
    let began = Instant::now();
    page.wait_until(
        "the member is shown as missing",
        &of("?.querySelector('.disk.missing') != null"),
    );
    println!("shown after {:?}", began.elapsed());
    page.wait_until(
        "the volume is degraded",
        &of(".classList.contains('degraded')"),
    );
    assert_eq!(
        page.value("window.isSame"),
        true,
        "the page was not loaded again"
    );
    let said = of(".querySelector('.sentence').textContent");
    assert_eq!(
        page.value(&said),
        "test is degraded, 1 of 7 members are away."
    );
    page.wait_until(
        "a screen reader is told",
        "document.getElementById('said').textContent.includes('1 of 7 members are away')",
    );
    check_looks(&mut page);
    // The commands of all degraded volumes can be reached.
    let is_at_command = format!(
        "document.activeElement.matches('button') && {}.contains(document.activeElement)",
        of("")
    );
    check_command_by_keyboard(&mut page, &is_at_command, &place);
    // Updates leave the focus where it is, although a volume appears above.
    let above_is_shown = format!(
        "document.querySelector('section[data-key=\"{}\"]') !== null",
        text(&above.mountpoint)
    );
    above.mount();
    page.wait_until("the other volume is shown", &above_is_shown);
    assert_eq!(page.value(&is_at_command), true, "the focus was lost");
    check_focus_without_command(&mut page, &place);
    assert_eq!(page.errors, [""; 0], "the page told errors");
    check_end_of_dashboard(&mut page, dashboard);
    let again = start();
    page.wait_until(
        "the dashboard is back",
        "document.getElementById('alarm').hidden",
    );
    drop(again);
    check_address_with_token(&mut page, &place);
    drop(page);
    above.unmount();
    volume.unmount();
}
