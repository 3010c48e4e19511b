CREATE TABLE IF NOT EXISTS users (
    id                 BIGINT PRIMARY KEY,
    email              TEXT NOT NULL UNIQUE,
    stripe_customer_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS rides (
    id         TEXT PRIMARY KEY,
    user_id    BIGINT NOT NULL REFERENCES users,
    origin_lat DOUBLE NOT NULL,
    origin_lon DOUBLE NOT NULL,
    target_lat DOUBLE NOT NULL,
    target_lon DOUBLE NOT NULL,
    charge_id  TEXT,
    -- The card was declined: there is no flight.
    canceled   BOOLEAN NOT NULL DEFAULT FALSE,
    -- With user_id, the request that booked it.
    request_key TEXT NOT NULL,
    -- Which of those that the key may have had, one after the other.
    request_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS audit_records (
    id      TEXT PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users,
    action  TEXT NOT NULL,
    ride_id TEXT NOT NULL REFERENCES rides
);
INSERT INTO users VALUES
    (1, 'user@example.com', 'cus_good'),
    (2, 'user-bad-source@example.com', 'cus_declined')
ON CONFLICT DO NOTHING;
