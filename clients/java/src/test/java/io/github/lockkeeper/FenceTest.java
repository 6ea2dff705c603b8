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
            severalPermits(locks, connection);
            try (Hold shared = locks.shared("stock").acquire()) {
                PostgresFence.enter(connection, "stock", shared);
                refused("LK003", () -> PostgresFence.write(connection, "stock", shared));
            }
        }
    }

    /** The slots of several names differ, so that the right one has to be named: another's mark says nothing. */
    private static void severalPermits(Locks locks, Connection connection) throws Exception {
        try (Hold taken = locks.semaphore(2, "several/b").acquire();
                Hold both = locks.semaphore(2, "several/a", "several/b").acquire()) {
            int slot = 1 - taken.slots().get(0);
            is(both.slots().equals(java.util.List.of(0, slot)), both.slots());
            refused("LK004", () -> PostgresFence.enter(connection, "several/b", both));
            refused("LK004", () -> PostgresFence.once(connection, "several/b", both, 2));
            PostgresFence.enter(connection, "several/b", both, slot);
            PostgresFence.write(connection, "several/b", both, slot);
            connection.commit();
            String sql = "SELECT slot FROM lockkeeper_fence.marks WHERE resource = 'several/b' AND any_token = ";
            ResultSet row = connection.createStatement().executeQuery(sql + both.token());
            is(row.next() && row.getInt(1) == slot && !row.next(), "the slot of this lock is marked");
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
