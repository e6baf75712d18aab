//! Names as people give them, and as they read them.

use crate::{
    scene::Scene,
    support::{
        backend::Reachable,
        client::{Client, acquire, key},
    },
};

on_every_backend! {
    names_that_differ_are_shown_apart_wherever_people_read_them
    a_negative_number_is_a_name
}

async fn names_that_differ_are_shown_apart_wherever_people_read_them(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let names = ["sb", "sb ", "s/b", "sb\u{200b}", "\u{202e}sb", "sb\u{a0}", "\"sb \""];
    let mut client = Client::connect(&*backend.store()).await;
    for name in names {
        client.granted(acquire(&key(name), tenure::RunId::random())).await;
    }
    client.close().await;
    let shown =
        ["sb", r#""sb ""#, r#""s/b""#, r#""sb\u{200b}""#, r#""\u{202e}sb""#, r#""sb\u{a0}""#, r#""\"sb \"""#];
    let list = scene.output(["--database", &url, "list"]).text();
    for (name, shown) in names.into_iter().zip(shown) {
        let row = |line: &str| line.trim_start().starts_with("acct ") && line.contains(&format!(" {shown} "));
        assert_eq!(list.lines().filter(|line| row(line)).count(), 1, "{shown}: {list}");
        let status = scene.output(["--database", &url, "status", "-a", "acct", "-s", name]).text();
        assert!(status.starts_with(&format!("acct/{shown} is running")), "{shown}: {status}");
        let run = scene.output(["--database", &url, "run", "-a", "acct", "-s", name, "--", "true"]);
        assert!(run.code == 75 && run.is_said(&format!("acct/{shown} is busy")), "{shown}: {run:?}");
        let stop = scene.output(["--database", &url, "stop", "-a", "acct", "-s", name]).text();
        assert!(stop.starts_with(&format!("acct/{shown}: asked ")), "{shown}: {stop}");
    }
    for (account, session, shown) in [("a/b", "c", "\"a/b\"/c is idle"), ("a", "b/c", "a/\"b/c\" is idle")] {
        let status = scene.output(["--database", &url, "status", "-a", account, "-s", session]).text();
        assert!(status.starts_with(shown), "{status}");
    }
}

async fn a_negative_number_is_a_name(backend: impl Reachable) {
    let (scene, url) = (Scene::new(), backend.url());
    let named = ["-a", "-5", "-s", "-1001234567890"];
    let script = "$TENURE phase -7 && $TENURE status -a -5 -s -1001234567890 --database $URL";
    let run =
        [&["--database", &url, "run"][..], &named, &["--holder", "-1", "--", "sh", "-c", script]].concat();
    let mut command = scene.tenure(run);
    command.env("URL", &url);
    let done = crate::scene::Running::start(command).finish();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.text().starts_with("-5/-1001234567890 is running"), "{done:?}");
    let stop = [&["--database", &url, "stop"][..], &named, &["--reason", "-3"]].concat();
    assert_eq!(scene.output(stop).code, 1);
    // Never what was meant as an option.
    for args in [["status", "-s", "--json"], ["status", "-s", "-v"]] {
        assert_eq!(scene.output(args).code, 64);
    }
}
