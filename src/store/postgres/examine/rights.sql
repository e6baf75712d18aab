SELECT
    has_table_privilege('tenure.migration', 'SELECT')
    AND has_table_privilege('tenure.session_lease', 'SELECT')
    AND has_table_privilege('tenure.session_lease', 'INSERT')
    AND has_table_privilege('tenure.session_lease', 'UPDATE')
    AND has_table_privilege('tenure.session_lease', 'DELETE')
    AND has_sequence_privilege('tenure.fence_floor', 'USAGE')
    AND has_sequence_privilege('tenure.fence_floor', 'UPDATE') AS sufficient
