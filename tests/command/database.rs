//! Which database is used, and who may create one.

use crate::{
    scene::{Running, Scene},
    support::{
        backend::{Backend as _, Reachable as _},
        client::key,
        sqlite_backend::SqliteBackend,
    },
};

#[test]
fn those_that_look_create_nothing_and_name_where_they_looked() {
    let scene = Scene::new();
    let default = scene.path("state/tenure/tenure.db").display().to_string();
    for (args, code) in
        [(&["status", "-s", "chat"][..], 1), (&["list"], 0), (&["sweep"], 0), (&["doctor"], 0)]
    {
        let done = scene.output(args);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.text().contains(&default), "{done:?}");
        let named = scene.path("named.db").display().to_string();
        let mut command = scene.tenure(["--database", &format!("sqlite://{named}")]);
        command.args(args);
        let done = Running::start(command).finish();
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.text().contains(&named), "{done:?}");
        assert!(!scene.has("named.db"));
    }
    assert_eq!(std::fs::read_dir(scene.path("state")).unwrap().count(), 0);
}

#[test]
fn the_first_run_creates_the_default_database_and_those_that_look_find_it() {
    let scene = Scene::new();
    let done = scene.output(["run", "-s", "chat", "--", "sh", "-c", "$TENURE status -s chat; exit 3"]);
    assert_eq!(done.code, 3, "{done:?}");
    assert!(done.text().starts_with("local/chat is running"), "{done:?}");
    assert!(scene.has("state/tenure/tenure.db"));
}

#[test]
fn without_a_state_directory_the_default_is_under_home() {
    for state in [None, Some("relative"), Some("")] {
        let scene = Scene::new();
        let mut command = scene.tenure(["run", "-s", "chat", "--", "true"]);
        command.env_remove("XDG_STATE_HOME").envs(state.map(|state| ("XDG_STATE_HOME", state)));
        assert_eq!(Running::start(command).exit(), 0);
        assert!(scene.has("home/.local/state/tenure/tenure.db"));
        assert!(!scene.has("relative"));
    }
    let scene = Scene::new();
    let mut command = scene.tenure(["run", "-s", "chat", "--", "touch", "started"]);
    command.env_remove("XDG_STATE_HOME").env_remove("HOME");
    let done = Running::start(command).finish();
    assert_eq!(done.code, 78, "{done:?}");
    assert!(done.is_said("--database") && !scene.has("started"), "{done:?}");
}

#[test]
fn a_state_directory_with_any_name_works() {
    let scene = Scene::new();
    let odd = scene.path("state/50% ?mode=ro #1 \u{e9}");
    for args in [&["run", "-s", "chat", "--", "true"][..], &["list"]] {
        let mut command = scene.tenure(args);
        command.env("XDG_STATE_HOME", &odd);
        let done = Running::start(command).finish();
        assert_eq!(done.code, 0, "{done:?}");
    }
    assert!(odd.join("tenure/tenure.db").exists());
}

#[tokio::test]
async fn the_variable_names_the_database_the_option_goes_before_it_and_the_hosts_own_is_ignored() {
    let (scene, used, ignored) = (Scene::new(), SqliteBackend::start().await, SqliteBackend::start().await);
    let script = "env > $dir/env; read line";
    let options = ["run", "-a", "acct", "-s", "chat", "--", "sh", "-c", script];
    for by_option in [false, true] {
        let mut command = scene.tenure([""; 0]);
        command.env("DATABASE_URL", ignored.url()).stdin(std::process::Stdio::piped());
        if by_option {
            command.env("TENURE_DATABASE_URL", ignored.url()).args(["--database", &used.url()]);
        } else {
            command.env("TENURE_DATABASE_URL", used.url());
        }
        command.args(options);
        let mut run = Running::start(command);
        scene.wait_for("env");
        assert!(used.image(&key("chat")).await.is_some());
        run.close_input();
        assert_eq!(run.exit(), 1, "read has met the end");
        let env = scene.text("env");
        assert!(!env.contains("TENURE_DATABASE_URL="), "{env}");
        assert!(env.contains(&format!("\nDATABASE_URL={}\n", ignored.url())), "the host's own: {env}");
        std::fs::remove_file(scene.path("env")).unwrap();
    }
    assert_eq!(scene.output(["--database", &ignored.url(), "--json", "list", "--expired"]).text(), "[]\n");
    let mut command = scene.tenure(["list"]);
    command.env("DATABASE_URL", used.url());
    let done = Running::start(command).finish();
    assert!(done.text().contains("state/tenure/tenure.db"), "{done:?}");
}
