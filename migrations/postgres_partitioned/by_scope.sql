-- Optional: the key table in sixteen partitions by hash of the scope. See docs/scaling.md. It copies the rows under a
-- lock that all requests wait for, so stop the engines first where there are many.
--
-- One transaction: copied while engines run, a key could be there twice.
BEGIN;
SET LOCAL lock_timeout = '500ms';
LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE;

-- A foreign key, a view, a trigger, a policy or a publication of yours would be lost with the table that was copied.
DO $$
DECLARE found text;
BEGIN
    SELECT string_agg(DISTINCT pg_describe_object(classid, objid, 0), ', ') INTO found
    FROM pg_depend
    LEFT JOIN pg_constraint ON classid = 'pg_constraint'::regclass AND pg_constraint.oid = objid
    LEFT JOIN pg_trigger ON classid = 'pg_trigger'::regclass AND pg_trigger.oid = objid
    WHERE refclassid = 'pg_class'::regclass AND refobjid = 'atomic_phases_keys'::regclass
    AND (contype = 'f' OR NOT tgisinternal OR classid IN ('pg_policy'::regclass, 'pg_rewrite'::regclass,
        'pg_proc'::regclass, 'pg_publication_rel'::regclass));
    IF found IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'dependent_objects_still_exist',
            MESSAGE = 'not while these belong to atomic_phases_keys or refer to it: ' || found,
            HINT = 'Drop them, run the script again, and create them anew: they would be lost, or be of a part of the rows.';
    END IF;
END $$;

-- The owner of one table, and who may do what with it, become those of another.
CREATE OR REPLACE FUNCTION pg_temp.atomic_phases_hand_over(its regclass, other regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    its_owner oid := (SELECT relowner FROM pg_class WHERE oid = its);
    granted record;
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO %I', other, pg_get_userbyid(its_owner));
    FOR granted IN
        SELECT relation, privilege_type || coalesce(' (' || quote_ident(attname) || ')', '') AS what,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS role_name,
            CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS others
        FROM (SELECT oid AS relation, NULL AS attname, relacl AS acl FROM pg_class
            UNION ALL SELECT attrelid, attname, attacl FROM pg_attribute) AS acls, aclexplode(acl)
        WHERE relation IN (its, other) AND grantee <> its_owner ORDER BY relation = its
    LOOP
        IF granted.relation = other THEN
            EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', other, granted.role_name);
        ELSE
            EXECUTE format('GRANT %s ON %s TO %s%s', granted.what, other, granted.role_name, granted.others);
        END IF;
    END LOOP;
END $$;

ALTER TABLE atomic_phases_keys RENAME TO atomic_phases_keys_whole;

CREATE TABLE atomic_phases_keys
    (LIKE atomic_phases_keys_whole INCLUDING ALL EXCLUDING INDEXES) PARTITION BY HASH (scope);

DO $$
DECLARE
    index record;
BEGIN
    FOR number IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE atomic_phases_keys_%s PARTITION OF atomic_phases_keys
             FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (fillfactor = 80)', number, number);
    END LOOP;
    INSERT INTO atomic_phases_keys SELECT * FROM atomic_phases_keys_whole;
    PERFORM pg_temp.atomic_phases_hand_over('atomic_phases_keys_whole', relid) FROM pg_partition_tree('atomic_phases_keys');
    -- Each index under its own name, by which migrations know it.
    FOR index IN
        SELECT relname AS name, pg_get_indexdef(indexrelid) AS definition, pg_get_constraintdef(pg_constraint.oid) AS key
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid LEFT JOIN pg_constraint ON conindid = indexrelid AND contype = 'p'
        WHERE indrelid = 'atomic_phases_keys_whole'::regclass
    LOOP
        EXECUTE format('ALTER INDEX %I RENAME TO %I', index.name, index.name || '_whole');
        IF index.key IS NOT NULL THEN
            EXECUTE format('ALTER TABLE atomic_phases_keys ADD CONSTRAINT %I %s', index.name, index.key);
        ELSE
            EXECUTE format('CREATE INDEX %I ON atomic_phases_keys %s', index.name,
                substring(index.definition FROM 'USING .*'));
        END IF;
    END LOOP;
END $$;

DROP TABLE atomic_phases_keys_whole;
COMMIT;
