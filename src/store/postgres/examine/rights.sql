-- The trigger's function itself needs no right here: PostgreSQL checks that right when the trigger is created. The
-- function that it calls, next_fence, needs EXECUTE.
SELECT
    has_schema_privilege('tenure', 'USAGE')
    AND has_function_privilege('tenure.next_fence(bigint)', 'EXECUTE')
    AND has_table_privilege('tenure.migration', 'SELECT')
    AND has_table_privilege('tenure.session_lease', 'SELECT')
    AND has_table_privilege('tenure.session_lease', 'INSERT')
    AND has_table_privilege('tenure.session_lease', 'UPDATE')
    AND has_table_privilege('tenure.session_lease', 'DELETE')
    AND has_sequence_privilege('tenure.fence_floor', 'USAGE')
    AND has_sequence_privilege('tenure.fence_floor', 'UPDATE') AS sufficient,
    has_table_privilege('tenure.session_lease', 'SELECT') AS may_look
