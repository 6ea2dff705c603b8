package io.github.lockkeeper;

import io.github.lockkeeper.Nodes.Answer;
import io.github.lockkeeper.Nodes.Call;
import java.time.Duration;
import java.util.Optional;

/** An election: a lock of this name, whose holder leads and proclaims a value, as its address. */
public final class Election {
    private final Locks locks;
    private final String name;

    Election(Locks locks, String name) {
        this.locks = locks;
        this.name = name;
    }

    /** Who leads: the token of the leadership, the leader's label, and the value that it campaigned with. */
    public record Leader(long token, String label, String value) {}

    /** The lock of a candidate with this value: who acquires it leads, until the hold is released or lost. */
    public Lock candidate(String value) {
        return locks.mutex(name).value(value);
    }

    /** Waits until this client leads. */
    public Hold campaign(String value) throws InterruptedException {
        return candidate(value).acquire();
    }

    /**
     * Who leads now.
     *
     * @throws LockException refused, or no node answers for a ttl
     */
    public Optional<Leader> leader() throws InterruptedException {
        long until = System.nanoTime() + Duration.ofMillis(locks.ttlMillis).toNanos();
        Answer answer = locks.ask(new Call("GET", "/v1/locks/" + Lock.encoded(name), null, null, null, "holds"), until);
        if (answer.status() >= 400) {
            throw answer.refusal("");
        }
        for (Object item : answer.body().list("holds")) {
            Json.Fields hold = (Json.Fields) item;
            if ("exclusive".equals(hold.text("mode")) && !"closed".equals(hold.text("state"))) {
                String value = hold.text("value");
                return Optional.of(new Leader(hold.number("token"), hold.text("label"), value == null ? "" : value));
            }
        }
        return Optional.empty();
    }
}
