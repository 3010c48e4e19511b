CREATE TABLE IF NOT EXISTS users (
    id                 bigint PRIMARY KEY,
    email              text NOT NULL UNIQUE,
    stripe_customer_id text NOT NULL
);
CREATE TABLE IF NOT EXISTS rides (
    id         text PRIMARY KEY,
    user_id    bigint NOT NULL REFERENCES users,
    origin_lat double precision NOT NULL,
    origin_lon double precision NOT NULL,
    target_lat double precision NOT NULL,
    target_lon double precision NOT NULL,
    charge_id  text,
    -- The card was declined: there is no flight.
    canceled   boolean NOT NULL DEFAULT false,
    -- With user_id, the request that booked it.
    request_key text NOT NULL,
    -- Which of those that the key may have had, one after the other.
    request_id text NOT NULL
);
CREATE TABLE IF NOT EXISTS audit_records (
    id      text PRIMARY KEY,
    user_id bigint NOT NULL REFERENCES users,
    action  text NOT NULL,
    ride_id text NOT NULL REFERENCES rides
);
INSERT INTO users VALUES
    (1, 'user@example.com', 'cus_good'),
    (2, 'user-bad-source@example.com', 'cus_declined')
ON CONFLICT DO NOTHING;
