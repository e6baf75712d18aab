//! Typing mistakes name their remedy, and every tip works; and what people set once, for all commands.

#[cfg(feature = "sqlite")]
use std::{fs, os::unix::fs::PermissionsExt as _};

#[cfg(feature = "sqlite")]
use crate::scene::Running;
use crate::scene::Scene;

#[test]
fn a_mistake_on_the_command_line_names_its_remedy() {
    let scene = Scene::new();
    for (args, code, remedy) in [
        (&["--session", "x", "status"][..], 64, "tenure status --session"),
        (&["status", "x"], 64, "tenure status -s x"),
        (&["status", "-s", "-x"], 64, "-s-x"),
        (&["stop", "-s", "x", "--run", "nope"], 64, "UUID"),
        (&["--database", "foo.db", "list"], 78, "sqlite://foo.db"),
        (&["--database", "/var/lib/foo", "list"], 78, "sqlite:///var/lib/foo"),
        (&["--database", "foo", "list"], 78, "does not begin with a scheme"),
        (&["run", "-s", "x", "--reason", "y", "--", "true"], 64, "is an option of 'tenure stop'"),
        (&["run", "-s", "x", "--events", "9", "--", "true"], 64, "descriptor 9 is not open"),
        (&["run", "-s", "x", "--events", "/no/dir/x", "--", "true"], 64, "/no/dir/x cannot be written"),
        (&["man", "nothing"], 64, "--help"),
    ] {
        let done = scene.output(args);
        assert_eq!(done.code, code, "{args:?}: {done:?}");
        assert!(done.is_said(remedy), "{args:?} does not say {remedy:?}: {done:?}");
    }
    // No secret is shown as if it were a file.
    let done = scene.output(["--database", "me:s3cret@db/app", "list"]);
    assert!(done.code == 78 && !done.is_said("s3cret"), "{done:?}");
}

#[cfg(feature = "sqlite")]
#[test]
fn a_program_that_cannot_be_started_names_its_remedy() {
    let scene = Scene::new();
    fs::write(scene.path("plain"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(scene.path("plain"), fs::Permissions::from_mode(0o644)).unwrap();
    for (program, code, remedy) in [
        (&["sleep 1"][..], 127, "sh -c 'sleep 1'"),
        (&["cd", "/"], 127, "sh -c 'cd …'"),
        (&["./plain"], 126, "chmod +x ./plain"),
        (&["/tmp"], 126, "is a directory"),
        (&["./none"], 127, "./none cannot be started: No such file"),
    ] {
        let done = scene.output([&["run", "-s", "x", "--"], program].concat());
        assert_eq!(done.code, code, "{program:?}: {done:?}");
        assert!(done.is_said(remedy), "{program:?} does not say {remedy:?}: {done:?}");
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn ttl_holder_and_account_can_be_set_in_the_environment() {
    let scene = Scene::new();
    let mut command = scene.tenure(["--json", "run", "-s", "x", "--", "true"]);
    command.env("TENURE_TTL", "2m").env("TENURE_HOLDER", "the night").env("TENURE_ACCOUNT", "me");
    let done = Running::start(command).finish();
    let acquired = &done.events()[0];
    assert_eq!(
        (&acquired["ttl_ms"], &acquired["holder"], &acquired["account"]),
        (&120_000.into(), &"the night".into(), &"me".into())
    );
    let mut command = scene.tenure(["run", "-s", "x", "--", "true"]);
    command.env("TENURE_TTL", "2");
    assert_eq!(Running::start(command).exit(), 64, "what is set wrongly is not overlooked");
}

#[cfg(feature = "sqlite")]
#[test]
fn an_empty_variable_is_not_set() {
    let scene = Scene::new();
    let mut command = scene.tenure(["--json", "run", "-s", "x", "--", "true"]);
    for name in ["TENURE_TTL", "TENURE_HOLDER", "TENURE_ACCOUNT", "TENURE_SOCKET", "TENURE_RUN_ID"] {
        command.env(name, "");
    }
    let done = Running::start(command).finish();
    assert_eq!(done.code, 0, "{done:?}");
    let acquired = &done.events()[0];
    assert_eq!((&acquired["ttl_ms"], &acquired["account"]), (&30_000.into(), &"local".into()));
    assert!(acquired["holder"].as_str().is_some_and(|holder| holder.contains('@')), "{acquired}");
}

#[test]
fn a_wrong_value_of_a_variable_is_an_error_of_that_variable() {
    use std::os::unix::ffi::OsStrExt as _;

    let scene = Scene::new();
    let said = |name: &str, value: &[u8], args: &[&str]| {
        let mut command = scene.tenure(args);
        command.env(name, std::ffi::OsStr::from_bytes(value));
        let done = Running::start(command).finish();
        assert_eq!(done.code, 64, "{done:?}");
        done.stderr.join("\n")
    };
    let run = ["run", "-s", "x", "--", "true"];
    for (name, value) in [
        ("TENURE_TTL", &b"foo"[..]),
        ("TENURE_TTL", b"\xff"),
        ("TENURE_HOLDER", b"\xff"),
        ("TENURE_ACCOUNT", b"\xff"),
        ("TENURE_DATABASE_URL", b"\xff"),
    ] {
        let said = said(name, value, &run);
        assert!(said.contains(name) && !said.contains("'--ttl"), "{said}");
    }
    let by_option = said("TENURE_TTL", b"2m", &["run", "-s", "x", "--ttl=foo", "--", "true"]);
    assert!(by_option.contains("'--ttl") && !by_option.contains("TENURE_TTL"), "{by_option}");
}

#[cfg(feature = "sqlite")]
#[test]
fn events_to_a_dash_are_events_on_stderr() {
    let scene = Scene::new();
    let done = scene.output(["--json", "run", "-s", "x", "--events", "-", "--", "sh", "-c", "echo here >&2"]);
    assert_eq!((done.code, done.events().len()), (0, 2), "{done:?}");
    assert!(done.is_said("here") && !scene.has("-"));
}

#[cfg(feature = "sqlite")]
#[test]
fn the_guardian_shows_whose_it_is_and_nothing_of_cmd() {
    let scene = Scene::new();
    let args = ["run", "-s", "night\nly", "--", "sh", "-c", ": > $dir/ready; sleep 6000", "--token=s3cret"];
    let run = Running::start(scene.tenure(args));
    scene.wait_for("ready");
    let guardian = run.guardian();
    let line = fs::read_to_string(format!("/proc/{guardian}/cmdline")).unwrap();
    assert_eq!(line.trim_end_matches('\0'), r"tenure: guardian of night\nly");
    assert_eq!(fs::read_to_string(format!("/proc/{guardian}/comm")).unwrap().trim(), "tenure-guardian");
}

#[test]
fn every_command_shows_an_example_and_completions_and_pages_are_made_by_the_command() {
    let scene = Scene::new();
    let help = scene.output(["--help"]).text();
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<_> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()))
        .filter(|name| *name != "help")
        .collect();
    assert!(names.contains(&"run") && names.contains(&"completions") && names.len() > 9, "{names:?}");
    for name in &names {
        let help = scene.output([name, "--help"]).text();
        assert!(help.contains(&format!("Example:  tenure {name}")), "{help}");
        let page = scene.output(["man", name]);
        assert!(page.code == 0 && page.text().contains(&format!("tenure-{name}")), "{page:?}");
    }
    let page = scene.output(["man"]).text();
    assert!(page.contains(".TH") && names.iter().all(|name| page.contains(name)), "{page}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = scene.output(["completions", shell]);
        assert!(done.code == 0 && done.text().contains("max-duration"), "{done:?}");
    }
}

#[test]
fn without_arguments_the_help_is_as_it_was_asked_for() {
    let scene = Scene::new();
    let (asked, unasked) = (scene.output(["--help"]).text(), scene.output::<&str>([]));
    assert_eq!(unasked.code, 64, "{unasked:?}");
    let url =
        |text: &str| text.split_whitespace().find(|word| word.starts_with("postgres://")).map(str::to_owned);
    assert_eq!(url(&unasked.stderr.join("\n")), url(&asked), "{unasked:?}");
    assert!(url(&asked).is_some_and(|url| !url.contains('*')), "{asked}");
}

/// On a terminal it colours its log.
#[cfg(feature = "sqlite")]
#[test]
fn no_color_is_heeded() {
    let scene = Scene::new();
    for (plain, is_coloured) in [("1", false), ("", true)] {
        let script = "exec script -qec \"$TENURE -vvv run -s x -- true\" /dev/null > out < /dev/null";
        let mut command = scene.dress(std::process::Command::new("sh"), ["-c", script]);
        command.env("NO_COLOR", plain);
        assert_eq!(Running::start(command).exit(), 0);
        assert_eq!(scene.text("out").contains('\u{1b}'), is_coloured, "{}", scene.text("out"));
    }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_server_without_encryption_is_named_in_plain_words() {
    let scene = Scene::new();
    let database = crate::support::postgres::Server::shared().database().await;
    for mode in ["require", "verify-full&sslrootcert=system"] {
        let done = scene.output(["--database", &format!("{}?sslmode={mode}", database.url()), "list"]);
        assert!(done.code == 69 && done.is_said("offers no encryption"), "{done:?}");
        let text = done.stderr.join("\n");
        assert_eq!((text.matches("sslmode=").count(), done.is_said("sslmode=disable")), (1, true), "{text}");
    }
}

/// The reader gets the remedy for the URL that he gave.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_file_that_may_not_be_written_names_the_mode_only_where_it_is_the_reason() {
    use crate::support::{backend::Reachable as _, sqlite_backend::SqliteBackend};

    let (scene, backend) = (Scene::new(), SqliteBackend::start().await);
    let url = backend.url();
    let path = url.trim_start_matches("sqlite://");
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    for (mode, is_named) in [("", false), ("?mode=rw", false), ("?mode=ro", true)] {
        let url = format!("{url}{mode}");
        let args = ["--database", &url, "run", "-s", "x", "--", "true"];
        let (command, _program) = crate::scene::unprivileged(&scene, &args);
        let done = Running::start(command).finish();
        assert_eq!(done.code, 69, "{done:?}");
        assert_eq!(done.is_said("mode=ro"), is_named, "{done:?}");
    }
}
