//! A password in a URL is for the database alone.

use std::fs;

use crate::{
    scene::{ACCOUNT, Running, Scene},
    support::{self, client::key, postgres::Server, process_table, proxy::Proxy},
};

const PASSWORD: &str = "correct-donkey-staple";
const WRONG: &str = "wrong-mule-stapler";

#[track_caller]
fn assert_secret(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for word in [PASSWORD, WRONG] {
        assert!(!text.contains(word), "{what}: {text}");
    }
}

#[tokio::test]
async fn a_password_is_neither_printed_nor_seen_by_cmd() {
    let (scene, server) = (Scene::new(), Server::shared());
    let database = server.database().await;
    server.role_with_password("keyed", PASSWORD).await;
    tenure::migrate(&database.superuser_url()).await.unwrap();
    let grants = "GRANT USAGE ON SCHEMA tenure TO keyed; GRANT ALL ON ALL TABLES IN SCHEMA tenure TO keyed; \
                  GRANT ALL ON ALL SEQUENCES IN SCHEMA tenure TO keyed";
    sqlx::raw_sql(grants).execute(&mut database.admin().await).await.unwrap();
    let proxy = Proxy::start(server.address());
    let (address, proxied) = (server.address().to_string(), proxy.address().to_string());
    let url = database.url_as("keyed", PASSWORD).replace(&address, &proxied);

    for by_option in [false, true] {
        let script = "env; set; cat /proc/self/environ /proc/self/cmdline; sleep 6000 & echo $$ $! > $pids
            : > $dir/ready; wait";
        let mut command = scene.tenure(["-vvv"]);
        if by_option {
            command.args(["--database", &url]);
        } else {
            command.env("TENURE_DATABASE_URL", &url);
        }
        command.args(["run", "-a", ACCOUNT, "-s", "chat", "--ttl", "6s", "--", "sh", "-c", script]);
        let run = Running::start(command);
        scene.wait_for("ready");
        for pid in process_table::family(run.guardian()) {
            for file in ["cmdline", "environ"] {
                // Whoever has just ended shows nothing.
                let shown = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                assert_secret(&format!("{file} of {pid}"), &shown);
            }
        }
        proxy.cut();
        let done = run.finish();
        assert_eq!(done.code, 76, "{done:?}");
        assert!(done.stderr.len() > 20, "-vvv says much: {done:?}");
        assert_secret("stdout", &done.stdout);
        assert_secret("stderr", done.stderr.join("\n").as_bytes());
        proxy.pass();
        fs::remove_file(scene.path("ready")).unwrap();
        fs::remove_file(scene.path("pids")).unwrap();
        let mut admin = database.admin().await;
        let (account, session) = (key("chat").account().to_owned(), key("chat").session().to_owned());
        let delete = "DELETE FROM tenure.session_lease WHERE account_id = $1 AND session_id = $2";
        sqlx::query(delete).bind(account).bind(session).execute(&mut admin).await.unwrap();
    }

    let nowhere = format!("postgres://keyed:{PASSWORD}@{}/none", support::free_address());
    let wrong = database.url_as("keyed", WRONG);
    let urls = [&nowhere, &wrong, &url.replace("postgres:", "mysql:"), &url.replace(':', "::")];
    for url in urls {
        for args in [
            &["status", "-s", "x"][..],
            &["list"],
            &["migrate"],
            &["doctor"],
            &["run", "-s", "x", "--", "true"],
        ] {
            let mut command = scene.tenure(["-vvv", "--connect-timeout", "1s", "--database", url]);
            command.args(args);
            let done = Running::start(command).finish();
            assert!(done.code == 69 || done.code == 78, "{done:?}");
            assert_secret("stdout", &done.stdout);
            assert_secret("stderr", done.stderr.join("\n").as_bytes());
        }
    }
    // Where the database is named in an answer.
    for args in [&["status", "-s", "x"][..], &["list"], &["sweep"], &["migrate"], &["doctor"]] {
        let mut command = scene.tenure(["--database", &url]);
        command.args(args);
        let done = Running::start(command).finish();
        assert!(done.code <= 1, "{done:?}");
        assert!(!done.stdout.is_empty());
        assert_secret("stdout", &done.stdout);
    }
}

#[test]
fn a_url_in_the_wrong_place_is_refused_without_its_password() {
    let scene = Scene::new();
    let url = format!("postgres://keyed:{PASSWORD}@127.0.0.1/none");
    let option = format!("--databse={url}");
    for args in
        [&[url.as_str()][..], &["run", "-s", "x", &url], &[&option, "list"], &["list", "-a", "x", &url]]
    {
        let done = scene.output(args);
        assert_eq!(done.code, 64, "{done:?}");
        assert_secret("stderr", done.stderr.join("\n").as_bytes());
    }
}
