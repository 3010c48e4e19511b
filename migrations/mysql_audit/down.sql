DROP TRIGGER IF EXISTS atomic_phases_audit_kept;
DROP TRIGGER IF EXISTS atomic_phases_audit_unchanged;
