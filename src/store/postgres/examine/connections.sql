-- How many connections are allowed, and how many there are. Of other users' connections, this role sees at least the
-- names of database and user.
SELECT
    current_setting('max_connections')::bigint
        - coalesce((
            SELECT sum(setting::bigint)
            FROM pg_settings
            WHERE name IN ('superuser_reserved_connections', 'reserved_connections')
        ), 0)::bigint AS server_limit,
    (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL) AS server_used,
    (SELECT rolconnlimit::bigint FROM pg_roles WHERE rolname = current_user) AS role_limit,
    (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user) AS role_used,
    (SELECT datconnlimit::bigint FROM pg_database WHERE datname = current_database()) AS database_limit,
    (
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND usesysid IS NOT NULL
    ) AS database_used
