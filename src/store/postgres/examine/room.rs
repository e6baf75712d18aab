//! Judges whether enough connections are free.

use sqlx::postgres::PgRow;

use super::visit::Visit;
use crate::store::{StoreError, finding::Finding};

/// How many connections one `tenure run` uses while nothing is wrong, and how many a supervisor of the library uses
/// with default settings.
const FOR_A_RUN: i64 = 2;
const FOR_A_SUPERVISOR: i64 = 5;
/// With fewer free connections, the next supervisor may fail to start, or find no spare connection when it needs one.
const LEAST_FREE: i64 = 2 * FOR_A_SUPERVISOR;

pub(super) fn connections(visit: &Visit<'_>, row: &PgRow) -> Result<Finding, StoreError> {
    let count = |column| visit.read::<i64>(row, column);
    let limits = [
        ("the server", "max_connections", count("server_limit")?, count("server_used")?),
        ("the role", "ALTER ROLE … CONNECTION LIMIT", count("role_limit")?, count("role_used")?),
        (
            "the database",
            "ALTER DATABASE … CONNECTION LIMIT",
            count("database_limit")?,
            count("database_used")?,
        ),
    ];
    // A negative limit means that there is none.
    let bounded = limits.into_iter().filter(|(_, _, limit, _)| *limit >= 0);
    let (whose, setting, limit, used) =
        bounded.min_by_key(|(_, _, limit, used)| limit - used).expect("the server has a limit");
    Ok(judge(whose, setting, limit, used, visit.server.pooled))
}

fn judge(whose: &str, setting: &str, limit: i64, used: i64, pooled: bool) -> Finding {
    let free = (limit - used).max(0);
    let found = format!(
        "{used} of {limit} that {whose} may have are used; {free} are free, enough for {} of `tenure run` or {} \
         supervisors",
        free / FOR_A_RUN,
        free / FOR_A_SUPERVISOR
    );
    let finding = if pooled {
        Finding::fine("connections", format!("{found}, without the pooler in between"))
    } else if free < LEAST_FREE {
        Finding::warning(
            "connections",
            found,
            format!(
                "without a free connection no run can begin (exit code 69): raise {setting}, let supervisors share one \
                 connection (Connections::Shared), or put a PgBouncer in between"
            ),
        )
    } else {
        Finding::fine("connections", found)
    };
    finding.measuring([("limit", limit as f64), ("used", used as f64)])
}
