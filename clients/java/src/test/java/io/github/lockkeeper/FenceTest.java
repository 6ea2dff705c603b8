package io.github.lockkeeper;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;

/** The fence of PostgreSQL on a real server, which has its schema: {@code FenceTest URL JDBC-URL}. */
final class FenceTest {
    private interface Body {
        void run() throws SQLException;
    }

    public static void main(String[] arguments) throws Exception {
        try (Locks locks = Lockkeeper.connect(arguments[0]);
                Connection old = DriverManager.getConnection(arguments[1], "postgres", "");
                Connection connection = DriverManager.getConnection(arguments[1], "postgres", "")) {
            Lock stock = locks.mutex("stock");
            Hold first = stock.acquire();
            refused("25001", () -> PostgresFence.enter(connection, "stock", first)); // auto-commit
            old.setAutoCommit(false);
            connection.setAutoCommit(false);
            PostgresFence.enter(old, "stock", first);
            old.commit();
            first.release();

            Hold second = stock.acquire();
            PostgresFence.enter(connection, "stock", second);
            connection.commit();
            SQLException error = refused("LK001", () -> PostgresFence.write(old, "stock", first));
            is(error instanceof PostgresFence.StaleToken stale && stale.newest == second.token(), error);
            old.rollback();

            PostgresFence.write(connection, "stock", second);
            connection.commit();
            refused("LK002", () -> PostgresFence.once(connection, "stock", second));
            connection.rollback();
            second.release();

            try (Hold permit = locks.semaphore(2, "pool").acquire()) {
                PostgresFence.enter(connection, "pool", permit);
                connection.commit();
                String sql = "SELECT slot FROM lockkeeper_fence.marks WHERE resource = 'pool' AND any_token = ";
                ResultSet row = connection.createStatement().executeQuery(sql + permit.token());
                is(row.next() && row.getInt(1) == permit.slots().get(0), "the slot is marked");
            }
            try (Hold shared = locks.shared("stock").acquire()) {
                PostgresFence.enter(connection, "stock", shared);
                refused("LK003", () -> PostgresFence.write(connection, "stock", shared));
            }
        }
    }

    private static SQLException refused(String state, Body body) {
        try {
            body.run();
        } catch (SQLException error) {
            is(state.equals(error.getSQLState()), error);
            return error;
        }
        throw new AssertionError("not refused: " + state);
    }

    private static void is(boolean condition, Object what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }
}
