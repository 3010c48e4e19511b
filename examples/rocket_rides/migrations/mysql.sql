CREATE TABLE IF NOT EXISTS users (
    id                 BIGINT PRIMARY KEY,
    email              VARCHAR(255) NOT NULL UNIQUE,
    stripe_customer_id VARCHAR(255) NOT NULL
);
CREATE TABLE IF NOT EXISTS rides (
    id         CHAR(36) PRIMARY KEY,
    user_id    BIGINT NOT NULL,
    origin_lat DOUBLE NOT NULL,
    origin_lon DOUBLE NOT NULL,
    target_lat DOUBLE NOT NULL,
    target_lon DOUBLE NOT NULL,
    charge_id  VARCHAR(255),
    -- The card was declined: there is no flight.
    canceled   BOOLEAN NOT NULL DEFAULT FALSE,
    -- With user_id, the request that booked it. Compared byte by byte, as the engine compares keys.
    request_key VARBINARY(255) NOT NULL,
    -- Which of those that the key may have had, one after the other.
    request_id CHAR(36) NOT NULL,
    FOREIGN KEY (user_id) REFERENCES users (id)
);
CREATE TABLE IF NOT EXISTS audit_records (
    id      CHAR(36) PRIMARY KEY,
    user_id BIGINT NOT NULL,
    action  VARCHAR(255) NOT NULL,
    ride_id CHAR(36) NOT NULL,
    FOREIGN KEY (user_id) REFERENCES users (id),
    FOREIGN KEY (ride_id) REFERENCES rides (id)
);
INSERT IGNORE INTO users VALUES
    (1, 'user@example.com', 'cus_good'),
    (2, 'user-bad-source@example.com', 'cus_declined');
