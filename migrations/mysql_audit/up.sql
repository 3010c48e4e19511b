-- Keeps the audit append-only, where a grant of SELECT and INSERT alone is not enough. Applied by hand, by a user
-- with the right to create triggers (SUPER, or log_bin_trust_function_creators, where there is a binary log):
--   mariadb --delimiter=// rides < up.sql
-- What is older than 90 days may be deleted; nothing is ever changed.
CREATE TRIGGER atomic_phases_audit_unchanged BEFORE UPDATE ON atomic_phases_audit FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'atomic_phases_audit is append-only';
CREATE TRIGGER atomic_phases_audit_kept BEFORE DELETE ON atomic_phases_audit FOR EACH ROW
BEGIN
    IF OLD.at > UNIX_TIMESTAMP(NOW(6)) * 1000 - 90 * 86400000 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'atomic_phases_audit is kept for 90 days';
    END IF;
END;
