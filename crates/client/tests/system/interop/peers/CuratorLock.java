import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;

/**
 * Runs Curator's own locks for the tests: reads one command per line. Used as {@code CuratorLock.java PORT mutex|readwrite}; the
 * second takes write locks.
 *
 * <pre>
 * try NAME TTL_MS       -> held VALUE | busy
 * acquire NAME TTL_MS   -> held VALUE if the lock is free; otherwise waiting, and later held VALUE
 * extend NAME TTL_MS    -> held | lost
 * release NAME          -> released | lost
 * </pre>
 *
 * A lock has no ttl of its own: it lasts as long as the session of its client, here four seconds after a crash. The program prints
 * {@code ready} once it has a session. It ends at the end of its input without releasing anything.
 */
class CuratorLock {
    static final int SESSION_MS = 4000;

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
            "127.0.0.1:" + args[0], SESSION_MS, SESSION_MS, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        say("ready");
        // What Curator writes into the node of a lock.
        String value = InetAddress.getLocalHost().getHostAddress();
        Map<String, InterProcessMutex> held = new HashMap<>();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            String name = words[1];
            switch (words[0]) {
                case "try":
                case "acquire":
                    InterProcessMutex lock = args[1].equals("mutex")
                        ? new InterProcessMutex(client, "/" + name)
                        : new InterProcessReadWriteLock(client, "/" + name).writeLock();
                    boolean got = lock.acquire(0, TimeUnit.MILLISECONDS);
                    if (!got && words[0].equals("acquire")) {
                        say("waiting");
                        lock.acquire();
                        got = true;
                    }
                    if (got) {
                        held.put(name, lock);
                    }
                    say(got ? "held " + value : "busy");
                    break;
                case "extend":
                    say(exists(held.get(name)) ? "held" : "lost");
                    break;
                case "release":
                    InterProcessMutex released = held.remove(name);
                    boolean there = exists(released);
                    released.release();
                    say(there ? "released" : "lost");
                    break;
                default:
                    throw new IllegalArgumentException("unknown command: " + line);
            }
        }
        // Without the end of the session, as by a crash.
        Runtime.getRuntime().halt(0);
    }

    static boolean exists(InterProcessMutex lock) throws Exception {
        return lock.isAcquiredInThisProcess() && !lock.getParticipantNodes().isEmpty();
    }

    static void say(String answer) {
        System.out.println(answer);
        System.out.flush();
    }
}
