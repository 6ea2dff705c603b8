package io.github.lockkeeper;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Types;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The fence of PostgreSQL, by JDBC. The check is in the functions of {@code fence.sql} of the project's crate
 * {@code lockkeeper-fence}, which a database administrator applies once.
 *
 * <p>{@link #enter} is the first statement of the transaction that reads; {@link #write} is the first of each further
 * transaction that writes. Both are committed with what they have let through, or not at all, so the connection must
 * not be in auto-commit mode.
 *
 * <p>Of a hold of several permits, {@code slot} is the one of the lock that guards the resource, of {@link Hold#slots}.
 */
public final class PostgresFence {
    private static final Pattern TOKENS = Pattern.compile("offered=(\\d+) highest=(\\d+)");

    private PostgresFence() {}

    /** A write that was refused: roll back, and stop. */
    public static final class StaleToken extends SQLException {
        /** The newest token that has been at the resource. */
        public final long newest;

        StaleToken(SQLException cause, long newest) {
            super(cause.getMessage(), cause.getSQLState(), cause);
            this.newest = newest;
        }
    }

    /** Checks the hold's token before anything is read: older ones are refused from then on. */
    public static void enter(Connection connection, String resource, Hold hold) throws SQLException {
        call(connection, "enter", resource, hold, null);
    }

    /** {@link #enter(Connection, String, Hold)} for this permit. */
    public static void enter(Connection connection, String resource, Hold hold, int slot) throws SQLException {
        call(connection, "enter", resource, hold, slot);
    }

    /** Checks the hold's token in a transaction that writes, after an {@link #enter} in an earlier one. */
    public static void write(Connection connection, String resource, Hold hold) throws SQLException {
        call(connection, "check_write", resource, hold, null);
    }

    /** {@link #write(Connection, String, Hold)} for this permit. */
    public static void write(Connection connection, String resource, Hold hold, int slot) throws SQLException {
        call(connection, "check_write", resource, hold, slot);
    }

    /** Lets the hold's token through once; the SQLSTATE of a repetition is LK002. */
    public static void once(Connection connection, String resource, Hold hold) throws SQLException {
        call(connection, "check_once", resource, hold, null);
    }

    /** {@link #once(Connection, String, Hold)} for this permit. */
    public static void once(Connection connection, String resource, Hold hold, int slot) throws SQLException {
        call(connection, "check_once", resource, hold, slot);
    }

    private static void call(Connection connection, String function, String resource, Hold hold, Integer asked)
            throws SQLException {
        if (connection.getAutoCommit()) {
            throw new SQLException("the fence's check has to be in the transaction of what it lets through: call"
                    + " setAutoCommit(false) first", "25001");
        }
        List<Integer> slots = hold.slots();
        if (asked == null ? slots.size() > 1 : !slots.contains(asked)) {
            throw new SQLException((asked == null ? "no slot is given" : "slot " + asked + " is not of this hold")
                    + ": it has " + slots + "; give the one of the lock that guards `" + resource + "`", "LK004");
        }
        Integer slot = asked != null || slots.isEmpty() ? asked : slots.get(0);
        String sql = "SELECT lockkeeper_fence." + function + "(?::text, ?::text, ?::int, ?::bigint)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, resource);
            statement.setString(2, hold.lock().mode);
            statement.setObject(3, slot, Types.INTEGER);
            statement.setLong(4, hold.token());
            statement.execute();
        } catch (SQLException error) {
            Matcher tokens = TOKENS.matcher(String.valueOf(error.getMessage()));
            if ("LK001".equals(error.getSQLState()) && tokens.find()) {
                throw new StaleToken(error, Long.parseLong(tokens.group(2)));
            }
            throw error;
        }
    }
}
