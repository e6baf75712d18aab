//! `tenure doctor`: examines the database, and says what to change.

use serde_json::{Map, Value, json};
use tenure::{
    diagnosis::{Diagnosis, Examination, Finding, Verdict},
    text::printable,
};

use crate::{
    cli::{DoctorArgs, Global},
    database::Database,
    exit::Failure,
    show,
};

pub(crate) async fn doctor(global: &Global, args: &DoctorArgs) -> Result<u8, Failure> {
    let database = Database::of(global)?;
    let examination = Examination::of(database.url()).lasting(args.lasting).patience(global.connect_timeout);
    let examination = examination.makes_directory(database.is_default());
    let diagnosis = examination.run().await?;
    if global.json {
        show::print(format_args!("{}\n", to_json(&diagnosis)))?;
    } else {
        show::print(to_lines(&diagnosis))?;
    }
    Ok(diagnosis.failure().map_or(0, |error| Failure::from(error.clone()).code))
}

fn to_json(diagnosis: &Diagnosis) -> Value {
    let finding = |finding: &Finding| {
        let measured = finding.measured.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
        json!({
            "check": finding.check,
            "verdict": word(finding.verdict),
            "found": finding.found,
            "advice": finding.advice,
            "measured": measured.collect::<Map<_, _>>(),
        })
    };
    json!({
        "database": diagnosis.location,
        "verdict": word(diagnosis.verdict()),
        "findings": diagnosis.findings.iter().map(finding).collect::<Value>(),
    })
}

/// One line for each finding, and one below it for its advice.
fn to_lines(diagnosis: &Diagnosis) -> String {
    let mut lines = format!("{}\n", diagnosis.location);
    for Finding { check, verdict, found, advice, .. } in &diagnosis.findings {
        lines += &format!("  {:<5} {check:<18} {}\n", word(*verdict), printable(found));
        if let Some(advice) = advice {
            lines += &format!("        {:<18} {}\n", "→", printable(advice));
        }
    }
    lines
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fine => "ok",
        Verdict::Warning => "warn",
        Verdict::Failure => "fail",
    }
}
