//! CMD's input and output are CMD's own.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::process::CommandExt as _,
    process::Stdio,
    time::Duration,
};

use crate::{
    scene::{Running, Scene},
    support::process_table,
};

const SIZE: usize = 10_000_000;

/// Every byte value, and no pattern that a block size would hide.
fn binary(scene: &Scene, name: &str) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut bytes = vec![0; SIZE];
    random.fill(&mut bytes);
    fs::write(scene.path(name), &bytes).unwrap();
    bytes
}

#[test]
fn ten_megabytes_on_both_outputs_at_once_pass_byte_for_byte_to_a_slow_reader() {
    let scene = Scene::new();
    let bytes = binary(&scene, "blob");
    let script = "cat $dir/blob & cat $dir/blob >&2; wait";
    let mut command =
        scene.tenure(["run", "-s", "chat", "--ttl", "6s", "--events", "events", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let slow = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut read = Vec::new();
            let mut buffer = vec![0; 100_000];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                read.extend_from_slice(&buffer[..length]);
                std::thread::sleep(Duration::from_millis(2));
            }
            read
        })
    };
    let outputs =
        [slow(Box::new(child.stdout.take().unwrap())), slow(Box::new(child.stderr.take().unwrap()))];
    for output in outputs {
        assert!(output.join().unwrap() == bytes, "the bytes have changed");
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(scene.text("events").lines().count(), 2);
}

#[test]
fn ten_megabytes_of_input_pass_byte_for_byte_to_a_slow_reader() {
    let scene = Scene::new();
    let bytes = binary(&scene, "blob");
    let script = "dd bs=100000 of=$dir/copy 2> /dev/null";
    let mut command = scene.tenure(["run", "-s", "chat", "--ttl", "6s", "--", "sh", "-c", script]);
    command.stdin(File::open(scene.path("blob")).unwrap());
    assert_eq!(Running::start(command).exit(), 0);
    assert!(fs::read(scene.path("copy")).unwrap() == bytes);

    let script = "while dd bs=200000 count=1 iflag=fullblock 2> /dev/null | tee -a $dir/piped | grep -c '' \
                  > $dir/count; [ $(cat $dir/count) != 0 ]; do sleep 0.01; done";
    let mut command = scene.tenure(["run", "-s", "chat", "--ttl", "6s", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped());
    let mut run = Running::start(command);
    run.write(&bytes);
    run.close_input();
    assert_eq!(run.exit(), 0);
    assert!(fs::read(scene.path("piped")).unwrap() == bytes);
}

#[test]
fn a_closed_output_ends_cmd_as_it_would_without_the_command() {
    let scene = Scene::new();
    let script = "trap '' INT; exec yes";
    let mut command = scene.tenure(["run", "-s", "chat", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 100]).unwrap();
    drop(output);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13), "SIGPIPE");
}

#[test]
fn arguments_pass_byte_for_byte() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    let scene = Scene::new();
    let odd: [&[u8]; 6] = [b"", b"--", b"-x", b"a b\n\"'$c", b"\xff\xfe", b"--json"];
    let mut command = scene.tenure(["run", "-s", "chat", "--", "printf", "%s\\0"]);
    command.args(odd.map(OsStr::from_bytes));
    let done = Running::start(command).finish();
    assert_eq!(done.stdout, odd.map(|arg| [arg, b"\0"].concat()).concat());
}

#[test]
fn one_that_keeps_the_outputs_open_does_not_keep_the_command() {
    let scene = Scene::new();
    let script = "trap '' TERM; setsid sleep 6000 & echo $! > $pids; echo out; exit 3";
    let done = scene.output(["run", "-s", "chat", "--stop-grace", "100ms", "--", "sh", "-c", script]);
    assert_eq!((done.code, done.text().as_str()), (3, "out\n"), "{done:?}");
    assert!(done.is_said("killed process"), "{done:?}");
    scene.assert_gone();
}

#[test]
fn without_any_standard_files_the_program_runs() {
    let scene = Scene::new();
    let script = "exec 0<&- 1>&- 2>&-; exec $TENURE run -s chat -- sh -c ': > $dir/ran; exit 3'";
    let mut command = scene.dress(std::process::Command::new("sh"), ["-c", script]);
    let status = command.process_group(0).status().unwrap();
    assert_eq!((status.code(), scene.has("ran")), (Some(3), true));
}

#[test]
fn what_the_command_ignores_cmd_ignores_too() {
    let scene = Scene::new();
    let script = "trap '' HUP; exec $TENURE run -s chat -- sh -c '
        grep SigIgn /proc/self/status; : > $dir/ready; read line < $dir/fifo; exit 3'";
    assert!(std::process::Command::new("mkfifo").arg(scene.path("fifo")).status().unwrap().success());
    let run = Running::start(scene.dress(std::process::Command::new("sh"), ["-c", script]));
    scene.wait_for("ready");
    run.signal(rustix::process::Signal::HUP);
    process_table::signal(run.guardian(), rustix::process::Signal::HUP);
    fs::write(scene.path("fifo"), "go on\n").unwrap();
    let done = run.finish();
    assert_eq!(done.code, 3, "as under nohup: {done:?}");
    let mask = u64::from_str_radix(done.text().trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 1, 1, "SIGHUP is ignored: {done:?}");
}
