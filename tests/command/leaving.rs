//! What may outlive a run, and what may not.

use rustix::process::Signal;

use crate::{
    scene::Scene,
    support::{self, process_table},
};

/// A build daemon, by its name, with a worker; and one that is not to be shared.
const HELPERS: &str = "
    setsid sh -c 'printf buildd > /proc/self/comm; sleep 6000 & echo $! > $dir/worker; echo $$ > $dir/daemon; wait' > /dev/null 2>&1 &
    setsid sh -c 'printf otherd > /proc/self/comm; echo $$ >> $pids; sleep 6000' > /dev/null 2>&1 &
    until [ -s $dir/daemon ] && [ -s $pids ]; do sleep 0.01; done; ";

fn start(scene: &Scene, options: &[&str], rest: &str) -> (crate::scene::Running, [i32; 2]) {
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let run = scene.run(&url, "chat", options, &format!("{HELPERS} ready; {rest}"));
    scene.wait_for("ready");
    let pid = |name| scene.text(name).trim().parse().unwrap();
    (run, [pid("daemon"), pid("worker")])
}

#[test]
fn a_helper_that_may_be_left_outlives_the_run_with_what_it_started_and_that_is_told() {
    for (rest, code) in [("exit 3", 3), ("trap 'exit 4' TERM; while :; do sleep 0.01; done", 4)] {
        let scene = Scene::new();
        let (run, helpers) = start(&scene, &["--leave", "buildd", "--leave", "none"], rest);
        if code == 4 {
            run.signal(Signal::TERM);
        }
        let done = run.finish();
        assert_eq!(done.code, code, "{done:?}");
        let events = done.events();
        let left: Vec<_> = events.iter().filter(|event| event["event"] == "left").collect();
        assert_eq!(left.len(), 1, "{done:?}");
        assert_eq!((&left[0]["pid"], &left[0]["name"]), (&helpers[0].into(), &"buildd".into()));
        assert_eq!(events.last().unwrap()["released"], true);
        scene.assert_gone();
        for pid in helpers {
            assert!(process_table::is_alive(pid));
            process_table::signal(pid, Signal::KILL);
        }
    }
}

#[test]
fn without_leave_to_live_on_a_helper_ends_with_the_run() {
    for options in [&[][..], &["--leave", "build"]] {
        let scene = Scene::new();
        let (run, helpers) = start(&scene, options, "exit 3");
        let done = run.finish();
        assert_eq!(done.code, 3, "{done:?}");
        assert!(done.events().iter().all(|event| event["event"] != "left"), "{done:?}");
        scene.assert_gone();
        for pid in helpers {
            support::wait_until("the helper is gone", || !process_table::is_alive(pid));
        }
    }
}

#[test]
fn cmd_itself_is_never_left() {
    let scene = Scene::new();
    let url = format!("sqlite://{}", scene.path("t.db").display());
    let run = scene.run(
        &url,
        "chat",
        &["--leave", "sh", "--stop-grace", "100ms"],
        "trap '' TERM; echo $$ > $pids; ready; while :; do sleep 0.01; done",
    );
    scene.wait_for("ready");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code, 143);
    scene.assert_gone();
}
