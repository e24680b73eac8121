//! Daemons that answer all questions but those for metrics.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::*;

/// The longest answer with metrics that a dashboard takes, in bytes.
const LONGEST: usize = 2 << 20;

/// The bytes of all answers that a dashboard takes at once from daemons of root.
const MOST_AT_ONCE: usize = 16 << 20;

/// A proxy at the control socket of a daemon. It begins an answer to a question for metrics, and does not end it.
struct Between {
    socket: PathBuf,
    behind: PathBuf,
    asked: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Between {
    /// Puts one before the daemon of a volume. It sends so many bytes of an answer.
    fn put(volume: &TestVolume, bytes: usize) -> Self {
        let socket = volume.control_socket();
        let behind = socket.with_extension("behind");
        let mode = fs::metadata(&socket).expect("it is there").permissions();
        fs::rename(&socket, &behind).expect("it is ours");
        let listener = UnixListener::bind(&socket).expect("its name is free");
        fs::set_permissions(&socket, mode).expect("it is ours");
        let (asked, is_over) = (Arc::default(), Arc::default());
        let mut between = Self {
            socket,
            behind,
            asked: Arc::clone(&asked),
            is_over: Arc::clone(&is_over),
            thread: None,
        };
        let behind = between.behind.clone();
        between.thread = Some(std::thread::spawn(move || {
            for client in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let client = client.expect("a client comes");
                let (behind, asked, is_over) = (behind.clone(), asked.clone(), is_over.clone());
                // A client or the daemon may hang up at any time.
                std::thread::spawn(move || pass(&client, &behind, bytes, &asked, &is_over).ok());
            }
        }));
        between
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that listens.
        let woken = UnixStream::connect(&self.socket);
        let ended = self.thread.take().map(JoinHandle::join);
        let renamed = fs::rename(&self.behind, &self.socket);
        if !std::thread::panicking() {
            woken.expect("it listens");
            assert!(ended.is_some_and(|it| it.is_ok()), "the proxy failed");
            renamed.expect("it is ours");
        }
    }
}

/// Passes requests on to the daemon, and its answers back.
fn pass(
    client: &UnixStream,
    behind: &Path,
    bytes: usize,
    asked: &AtomicUsize,
    is_over: &AtomicBool,
) -> std::io::Result<()> {
    let mut daemon = UnixStream::connect(behind)?;
    let (mut from, mut to) = (daemon.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to).ok());
    for line in BufReader::new(client.try_clone()?).lines() {
        let line = line?;
        if line.contains("\"request\":\"metrics\"") {
            (&*client).write_all(&vec![b' '; bytes])?;
            asked.fetch_add(1, Ordering::Relaxed);
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            break;
        }
        writeln!(daemon, "{line}")?;
    }
    daemon.shutdown(std::net::Shutdown::Both)
}

#[test]
fn a_daemon_that_hangs_at_the_question_for_metrics_alone_delays_neither_the_page_nor_others() {
    if skip_mounts() {
        return;
    }
    let [hangs, works] = [1, 2].map(|_| TestVolume::create(Shape::FOUR_TWO, 1024));
    hangs.mount();
    works.mount();
    let between = Between::put(&hangs, 0);
    let dashboard = Dashboard::start(&[]);
    dashboard.wait_for(&hangs, "healthy");
    dashboard.wait_for(&works, "healthy");
    let _undisturbed = scrape_undisturbed();
    let page = std::thread::scope(|scope| {
        let scrape = scope.spawn(|| dashboard.get("/metrics"));
        eventually("the daemon is asked", || between.is_asked());
        // While the scrape waits.
        dashboard.state();
        assert!(!scrape.is_finished(), "it waits for the daemon");
        dashboard.wait_for(&hangs, "healthy");
        let (here, away) = (&works.members[1], works.members[1].with_file_name("away"));
        fs::rename(here, &away).expect("it can be renamed");
        dashboard.wait_for(&works, "degraded");
        fs::rename(&away, here).expect("it can be renamed");
        scrape.join().expect("it ends")
    });
    let used = |page: &str, of| value_of(page, "cauchyfs_member_used_bytes", of);
    assert_eq!(used(&page, &hangs), None, "{page}");
    // It answers all else. On a busy machine, one scrape may come too late.
    eventually("both are up, and one has metrics", || {
        let page = dashboard.get("/metrics");
        let ups = [&hangs, &works].map(|it| value_of(&page, "cauchyfs_up", it));
        assert_eq!(used(&page, &hangs), None, "{page}");
        ups == [Some(1.0); 2] && used(&page, &works).is_some()
    });
    // Its own thread gives up a moment after the scrape.
    eventually("the page tells of it", || {
        let shown = dashboard.volume(&hangs.mountpoint).unwrap_or_default();
        let note = shown["no_metrics"].as_str().unwrap_or_default();
        note.contains("does not answer") && shown["kind"] == "healthy"
    });
    drop(between);
    eventually("its metrics are there again", || {
        used(&dashboard.get("/metrics"), &hangs).is_some()
    });
    hangs.unmount();
    works.unmount();
}

#[test]
fn answers_of_many_daemons_have_a_limit_together_and_those_beyond_it_are_told() {
    if skip_mounts() {
        return;
    }
    let fit = MOST_AT_ONCE / LONGEST;
    let volumes: Vec<_> = (0..fit + 3)
        .map(|_| TestVolume::create(Shape::FOUR_TWO, 1024))
        .collect();
    volumes.iter().for_each(TestVolume::mount);
    let dashboard = Dashboard::start(&[]);
    for volume in &volumes {
        dashboard.wait_for(volume, "healthy");
    }
    let disturbing = SCRAPES.write().unwrap_or_else(PoisonError::into_inner);
    let between: Vec<_> = volumes.iter().map(|it| Between::put(it, LONGEST)).collect();
    let refused = |page: &str| -> f64 {
        let of = |it| value_of(page, "cauchyfs_answers_refused_total", it);
        volumes.iter().filter_map(of).sum()
    };
    let is_told = |volume: &&TestVolume| {
        let shown = dashboard.volume(&volume.mountpoint).unwrap_or_default();
        let note = shown["no_metrics"].as_str().unwrap_or_default();
        note.contains("too much memory beside those of other daemons")
    };
    // On a busy machine, some may give up before others have sent as much.
    eventually("some are refused and told, and all are up", || {
        let page = dashboard.get("/metrics");
        let is_up = |it: &TestVolume| value_of(&page, "cauchyfs_up", it) == Some(1.0);
        refused(&page) >= 2.0
            && volumes.iter().filter(is_told).count() >= 2
            && volumes.iter().all(is_up)
    });
    drop(between);
    // The room that they had taken is given back.
    eventually("all are there again", || {
        let page = dashboard.get("/metrics");
        let has_metrics = |it: &TestVolume| {
            let up = value_of(&page, "cauchyfs_up", it) == Some(1.0);
            up && value_of(&page, "cauchyfs_member_used_bytes", it).is_some()
        };
        volumes.iter().all(has_metrics)
    });
    drop(disturbing);
    for volume in &volumes {
        dashboard.wait_for(volume, "healthy");
    }
    volumes.iter().for_each(TestVolume::unmount);
}
