//! Two commands and one session.

use std::process::Stdio;

use tenure::RunId;

use crate::{
    scene::{ACCOUNT, Running, Scene},
    support::{
        backend::Reachable,
        client::{Client, acquire, key},
    },
};

on_every_backend! {
    a_busy_session_is_75_and_untouched_and_its_holder_is_named
    the_code_of_a_busy_session_can_be_chosen
    of_two_commands_that_race_exactly_one_runs_its_program
}

async fn a_busy_session_is_75_and_untouched_and_its_holder_is_named(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    // Stays connected: the last to leave a SQLite file tidies it up.
    let mut client = Client::connect(&*backend.store()).await;
    let holder = RunId::random();
    client.granted(acquire(&key("chat"), holder)).await;
    let holder = holder.to_string();
    let before = backend.image(&key("chat")).await;
    let done = scene.run(&url, "chat", &[], "ready").finish();
    assert_eq!(done.code, 75, "{done:?}");
    let [busy] = &done.events()[..] else { panic!("{done:?}") };
    assert_eq!((&busy["event"], &busy["holder"]["run_id"]), (&"busy".into(), &holder.as_str().into()));

    let run = ["run", "-a", ACCOUNT, "-s", "chat", "--", "touch", "ready"];
    for quiet in [false, true] {
        let mut command = scene.tenure(["--database", &url]);
        command.args(quiet.then_some("-q")).args(run);
        let done = Running::start(command).finish();
        assert_eq!(done.code, 75, "{done:?}");
        assert!(done.is_said("acct/chat is busy: held by api-3, since "), "{done:?}");
    }
    assert_eq!(backend.image(&key("chat")).await, before);
    client.close().await;
    assert!(!scene.has("ready"));
}

async fn the_code_of_a_busy_session_can_be_chosen(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let mut client = Client::connect(&*backend.store()).await;
    client.granted(acquire(&key("chat"), RunId::random())).await;
    client.close().await;
    for (text, code) in [("0", 0), ("9", 9), ("255", 255)] {
        assert_eq!(scene.run(&url, "chat", &["-E", text], "ready").finish().code, code);
    }
    assert!(!scene.has("ready"));
}

async fn of_two_commands_that_race_exactly_one_runs_its_program(backend: impl Reachable) {
    const ROUNDS: usize = 200;
    let (scene, url) = (Scene::new(), backend.url());
    let race = |session: &str| {
        // The winner holds on until the test has heard the loser.
        let mut command = scene.run_command(&url, session, &["-E", "9"], "echo started; read line; exit 3");
        command.stdin(Stdio::piped());
        Running::start(command)
    };
    for round in 0..ROUNDS {
        // Each fourth time a new session: then there is no row of an earlier run, and each other time there was.
        let session = format!("chat-{}", round / 4);
        let mut racers = [race(&session), race(&session)];
        crate::support::wait_until("one is refused", || racers.iter_mut().any(Running::has_ended));
        if racers[0].has_ended() {
            racers.swap(0, 1);
        }
        racers[0].close_input();
        let done = racers.map(Running::finish);
        assert_eq!((done[0].code, done[0].text().as_str()), (3, "started\n"), "round {round}: {done:?}");
        assert_eq!((done[1].code, done[1].text().as_str()), (9, ""), "round {round}: {done:?}");
        let run_id = &done[0].events()[0]["run_id"];
        assert_eq!(&done[1].events()[0]["holder"]["run_id"], run_id, "round {round}: {done:?}");
    }
}
