CREATE TABLE IF NOT EXISTS tenure.migration (
    version int PRIMARY KEY CHECK (version > 0),
    compatible_from int NOT NULL CHECK (compatible_from BETWEEN 1 AND version),
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tenure.migration IS 'Which versions of this schema were applied; the greatest is in force.';
COMMENT ON COLUMN tenure.migration.version IS 'The schema''s version: 1, 2, 3 and so on.';
COMMENT ON COLUMN tenure.migration.compatible_from IS
    'The oldest schema version whose releases still work with this one.';
COMMENT ON COLUMN tenure.migration.applied_at IS 'When it was applied, by this server''s clock.';
