CREATE TABLE IF NOT EXISTS lockkeeper_lease (
    name       VARBINARY(512) NOT NULL PRIMARY KEY,
    id         VARBINARY(100) NOT NULL DEFAULT '',
    token      BIGINT         NOT NULL DEFAULT 0,
    since      DATETIME(6)    NOT NULL DEFAULT '2000-01-01',
    held_until DATETIME(6)    NOT NULL DEFAULT '2000-01-01',
    shut_until DATETIME(6)    NOT NULL DEFAULT '2000-01-01',
    ended      TINYINT        NOT NULL DEFAULT 0,
    contended  TINYINT        NOT NULL DEFAULT 0,
    revoked    TINYINT        NOT NULL DEFAULT 0,
    reason     VARBINARY(256) NOT NULL DEFAULT '',
    by_whom    VARBINARY(256) NOT NULL DEFAULT '',
    label      VARBINARY(256) NOT NULL DEFAULT '',
    meta       VARBINARY(1024) NOT NULL DEFAULT ''
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS lockkeeper_waiter (
    ticket  BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name    VARBINARY(512) NOT NULL,
    id      VARBINARY(100) NOT NULL,
    expires DATETIME(6)    NOT NULL,
    label   VARBINARY(256) NOT NULL,
    meta    VARBINARY(1024) NOT NULL,
    UNIQUE KEY (id),
    KEY by_name (name, ticket)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS lockkeeper_gone (
    id      VARBINARY(100) NOT NULL PRIMARY KEY,
    name    VARBINARY(512) NOT NULL,
    expires DATETIME(6)    NOT NULL,
    KEY by_name (name)
) ENGINE = InnoDB;
