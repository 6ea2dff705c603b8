CREATE TABLE IF NOT EXISTS lockkeeper_session (
    name       VARBINARY(512)  NOT NULL PRIMARY KEY,
    lock_key   VARBINARY(256)  NOT NULL,
    token      BIGINT          NOT NULL DEFAULT 0,
    connection BIGINT UNSIGNED NOT NULL DEFAULT 0,
    since      DATETIME(6)     NOT NULL DEFAULT '2000-01-01',
    revoked    TINYINT         NOT NULL DEFAULT 0,
    label      VARBINARY(256)  NOT NULL DEFAULT '',
    meta       VARBINARY(1024) NOT NULL DEFAULT ''
) ENGINE = InnoDB;
