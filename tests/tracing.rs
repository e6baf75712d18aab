//! What subscribers of `tracing` are told: the names, targets, levels and fields that the documentation promises.

#![cfg(feature = "testing")]

#[path = "support/panics.rs"]
mod panics;

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use tenure::{
    AcquireError, LeaseSupervisor, SessionKey,
    store::memory::Fault,
    testing::{Simulation, simulate},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    info, info_span,
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

const TTL: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq)]
struct Told {
    name: String,
    target: String,
    level: Level,
    fields: Fields,
    /// Outermost last.
    spans: Vec<(String, Fields)>,
}

type Fields = BTreeMap<String, String>;

#[derive(Debug, Default)]
struct Heard {
    events: Vec<Told>,
    /// Names of spans: which follows from which.
    follows: Vec<(String, String)>,
    closed: Vec<String>,
}

/// Hears everything on this thread.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>);

impl Ear {
    fn listen(&self) -> DefaultGuard {
        tracing::subscriber::set_default(tracing_subscriber::registry().with(self.clone()))
    }

    /// All events of these targets so far, but renewals.
    fn story(&self, targets: &[&str]) -> Vec<(String, Level)> {
        let heard = self.0.lock().unwrap();
        let wanted =
            heard.events.iter().filter(|told| targets.contains(&&*told.target) && told.name != "renewed");
        wanted.map(|told| (told.name.clone(), told.level)).collect()
    }

    fn event(&self, name: &str) -> Told {
        let heard = self.0.lock().unwrap();
        heard
            .events
            .iter()
            .find(|told| told.name == name)
            .unwrap_or_else(|| panic!("no {name}: {heard:?}"))
            .clone()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Ear {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Recorder(&mut fields));
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, _: &Id, _: &Record<'_>, _: Context<'_, S>) {
        panic!("all fields are known when a span begins");
    }

    fn on_follows_from(&self, id: &Id, cause: &Id, context: Context<'_, S>) {
        let name = |id| context.span(id).unwrap().name().to_owned();
        self.0.lock().unwrap().follows.push((name(id), name(cause)));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata: &Metadata<'_> = event.metadata();
        let mut fields = Fields::new();
        event.record(&mut Recorder(&mut fields));
        let spans = context.event_scope(event).into_iter().flatten();
        let spans =
            spans.map(|span| (span.name().to_owned(), span.extensions().get::<Fields>().unwrap().clone()));
        let told = Told {
            name: metadata.name().to_owned(),
            target: metadata.target().to_owned(),
            level: *metadata.level(),
            fields,
            spans: spans.collect(),
        };
        self.0.lock().unwrap().events.push(told);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.0.lock().unwrap().closed.push(context.span(&id).unwrap().name().to_owned());
    }
}

struct Recorder<'a>(&'a mut Fields);

impl Visit for Recorder<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

fn names(fields: &Fields) -> Vec<&str> {
    fields.keys().map(String::as_str).filter(|name| *name != "message").collect()
}

fn key(session: &str) -> SessionKey {
    SessionKey::new("acct-1", session).unwrap()
}

async fn supervisor(sim: &Simulation) -> LeaseSupervisor {
    sim.supervisor().holder_label("desktop").ttl(TTL).start_here().await.unwrap()
}

const OF_RUNS: &[&str] = &["tenure::run", "tenure::acquire"];

#[test]
fn the_story_of_a_run_has_the_promised_names_levels_and_fields() {
    let ear = Ear::default();
    simulate(async |sim| {
        let _listening = ear.listen();
        let (supervisor, phone) = (supervisor(&sim).await, supervisor(&sim).await);
        let run = supervisor.acquire(&key("chat")).await.unwrap();
        let (run_id, fence) = (run.run_id().to_string(), run.fence().to_string());
        phone.acquire(&key("chat")).await.unwrap_err();
        sim.store.set_fault(Fault::Unreachable);
        sim.sleep(TTL / 2).await;
        sim.store.set_fault(Fault::None);
        sim.sleep(TTL / 4).await;
        run.context().stop("tea");
        sim.sleep(Duration::from_millis(1)).await;
        assert!(run.release().await.released);
        sim.sleep(Duration::from_secs(1)).await;

        let told = [
            ("acquired", Level::INFO),
            ("refused", Level::DEBUG),
            ("at_risk", Level::WARN),
            ("recovered", Level::INFO),
            ("stopping", Level::INFO),
            ("ended", Level::INFO),
        ];
        let of_note: Vec<_> =
            ear.story(OF_RUNS).into_iter().filter(|(name, _)| !name.starts_with("event ")).collect();
        assert_eq!(of_note, told.map(|(name, level)| (name.to_owned(), level)));
        for (name, fields) in [
            ("acquired", &["holder", "ttl_ms"][..]),
            ("renewed", &["trusted_for_ms"]),
            ("at_risk", &["cause", "trusted_for_ms"]),
            ("recovered", &[]),
            ("stopping", &["reason"]),
            ("ended", &["reason", "released"]),
        ] {
            let event = ear.event(name);
            assert_eq!((names(&event.fields), &*event.target), (fields.to_vec(), "tenure::run"), "{name}");
            let [(span, of_run)] = &event.spans[..] else { panic!("{event:?}") };
            assert_eq!((&**span, names(of_run)), ("run", vec!["account", "fence", "run_id", "session"]));
            assert_eq!((&*of_run["account"], &*of_run["session"]), ("acct-1", "chat"));
            assert_eq!((&of_run["run_id"], &of_run["fence"]), (&run_id, &fence));
        }
        let refused = ear.event("refused");
        assert_eq!(
            names(&refused.fields),
            ["account", "expires_in_ms", "holder", "holder_run_id", "session"],
            "{refused:?}"
        );
        assert_eq!((&*refused.fields["holder"], &refused.fields["holder_run_id"]), ("desktop", &run_id));
        assert_eq!(
            (&*ear.event("acquired").fields["holder"], &*ear.event("acquired").fields["ttl_ms"]),
            ("desktop", "30000")
        );
        assert!(ear.event("at_risk").fields["cause"].contains("connection refused"));
        assert!(ear.event("stopping").fields["reason"].contains("tea"));
        assert_eq!(ear.event("ended").fields["released"], "true");
        assert_eq!(ear.0.lock().unwrap().closed, ["run"], "the run is over");
    });
}

#[test]
fn a_lost_lease_is_a_warning_with_its_cause() {
    let ear = Ear::default();
    simulate(async |sim| {
        let _listening = ear.listen();
        let supervisor = supervisor(&sim).await;
        let run = supervisor.acquire(&key("chat")).await.unwrap();
        sim.store.set_fault(Fault::Unreachable);
        run.cancelled().await;
        sim.sleep(Duration::from_secs(1)).await;
        let ended = ear.event("ended");
        assert_eq!((ended.level, names(&ended.fields)), (Level::WARN, vec!["cause", "reason", "released"]));
        let error = supervisor.acquire(&key("other")).await.unwrap_err();
        assert!(matches!(error, AcquireError::NotAcquired(_) | AcquireError::Unavailable(_)), "{error:?}");
        let not_acquired = ear.event("not_acquired");
        assert_eq!((not_acquired.level, &*not_acquired.target), (Level::DEBUG, "tenure::acquire"));
        assert_eq!(names(&not_acquired.fields), ["account", "cause", "session"]);
    });
}

#[test]
fn a_run_follows_from_the_span_that_asked_and_its_work_is_in_its_span() {
    let ear = Ear::default();
    simulate(async |sim| {
        let _listening = ear.listen();
        let supervisor = supervisor(&sim).await;
        let request = info_span!("request");
        let run = tracing::Instrument::instrument(
            async { supervisor.acquire(&key("chat")).await },
            request.clone(),
        )
        .await
        .unwrap();
        let refused = async { supervisor.acquire(&key("chat")).await.unwrap_err() };
        tracing::Instrument::instrument(refused, request).await;
        assert_eq!(ear.0.lock().unwrap().follows, [("run".to_owned(), "request".to_owned())]);
        assert_eq!(
            ear.event("acquired").spans.len(),
            1,
            "a run may outlive the request, so it is no part of it"
        );
        assert_eq!(ear.event("refused").spans[0].0, "request");

        run.span().in_scope(|| info!(name: "by hand", "a host logs"));
        let kept = run
            .scope(async |ctx| {
                info!(name: "in the scope", "work logs");
                ctx.spawn(async { info!(name: "in a sub-task", "work logs") }).await.unwrap();
                ctx.spawn_blocking(|| ()).await.unwrap();
                ctx.track(async { info!(name: "tracked", "work logs") }).await.unwrap();
                let own = info_span!("step");
                own.in_scope(|| info!(name: "in a step", "work logs"));
                ctx
            })
            .await
            .unwrap();
        info!(name: "afterwards", "a host logs");
        for name in ["by hand", "in the scope", "in a sub-task", "tracked", "in a step"] {
            let told = ear.event(name);
            let (span, fields) = told.spans.last().unwrap_or_else(|| panic!("{told:?}"));
            assert_eq!((&**span, &*fields["session"]), ("run", "chat"), "{name}");
        }
        assert_eq!(ear.event("in a step").spans[0].0, "step");
        assert!(ear.event("afterwards").spans.is_empty());
        sim.sleep(Duration::from_secs(1)).await;
        assert!(ear.0.lock().unwrap().closed.contains(&"run".to_owned()), "though a context is kept");
        assert!(kept.span().is_disabled());
    });
}

#[test]
fn texts_of_strangers_cannot_forge_a_line() {
    let ear = Ear::default();
    simulate(async |sim| {
        let _listening = ear.listen();
        let supervisor = supervisor(&sim).await;
        let evil = SessionKey::new("a\nINFO forged", "\u{1b}[2Jb\u{202e}").unwrap();
        let run = supervisor.acquire(&evil).holder_label("x\r\ny").await.unwrap();
        supervisor.acquire(&evil).await.unwrap_err();
        run.context().stop("\u{7}bell");
        sim.sleep(Duration::from_secs(1)).await;
        drop(run);
        sim.sleep(Duration::from_secs(1)).await;
        let heard = ear.0.lock().unwrap();
        let all = heard.events.iter().flat_map(|told| {
            told.fields.values().chain(told.spans.iter().flat_map(|(_, fields)| fields.values()))
        });
        let texts: Vec<_> = all.collect();
        assert!(texts.iter().any(|text| text.contains("a\\nINFO forged")), "{texts:?}");
        for text in texts {
            assert!(!text.contains(|char: char| char.is_control() || char == '\u{202e}'), "{text:?}");
        }
    });
}

#[test]
fn every_event_of_the_library_has_a_target_that_the_documentation_names() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut nameless) = (vec![source.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("bin") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
                let code = code.join("\n");
                for (at, level) in ["trace!(", "debug!(", "info!(", "warn!(", "error!("]
                    .iter()
                    .flat_map(|level| code.match_indices(level))
                    .filter(|(at, _)| {
                        !code[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
                    })
                {
                    let arguments = code[at + level.len()..].split(';').next().unwrap();
                    if !arguments.contains("target: trace::") && !arguments.contains("target: crate::trace::")
                    {
                        nameless.push(format!("{}: {level}{arguments}", path.display()));
                    }
                }
            }
        }
    }
    assert!(nameless.is_empty(), "these name no target of src/trace.rs:\n{}", nameless.join("\n"));
    let (targets, page) = (
        fs::read_to_string(source.join("trace.rs")).unwrap(),
        fs::read_to_string(source.join("lib.rs")).unwrap(),
    );
    let targets: Vec<_> = targets.split('"').filter(|text| text.starts_with("tenure::")).collect();
    assert!(targets.len() >= 5, "{targets:?}");
    for target in targets {
        assert!(page.contains(&format!("//! | `{target}` | ")), "{target}");
    }
}
