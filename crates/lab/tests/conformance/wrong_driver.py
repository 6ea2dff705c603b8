"""A driver with one mistake: a true driver behind a filter of its lines.

python3 wrong_driver.py MISTAKE COMMAND...
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

mistake, command = sys.argv[1], sys.argv[2:]
true = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
lock = threading.Lock()
commands = {}  # by id
waiting = {}  # acquires without an answer, by id
granted_at = {}  # by hold
moved = {}  # the holds of acquires that were asked for again, by id
unacknowledged = set()  # ids of acquires that were answered before the service did
CANCEL, AGAIN = 1_000_000, 2_000_000  # added to the ids of the filter's own commands
lost = set()
released = {}  # locks by hold
service = []  # its URL
LATE = 4  # seconds


def to_driver(line):
    true.stdin.write(json.dumps(line) + "\n")
    true.stdin.flush()


def to_harness(line):
    print(json.dumps(line), flush=True)


def expired(hold):
    """For the mistake that no hold is renewed."""
    return mistake == "no-renewal" and time.monotonic() - granted_at.get(hold, time.monotonic()) > 1.5


def is_lost(hold):
    if hold not in lost:
        lost.add(hold)
        to_harness({"event": "lost", "hold": hold})


def later(line):
    with lock:
        lost.add(line["hold"])
        to_harness(line)


def follow(connection):
    """For the mistake that a session ends with its connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1024):
            pass
    with lock:
        for hold in granted_at:
            is_lost(hold)


def free(name):
    """For the mistake that a release names the lock only: ends whoever holds it."""
    lockkeeper, options = os.path.join(os.path.dirname(command[0]), "lockkeeper"), ["--locks", *service]
    shown = subprocess.run([lockkeeper, "show", name, "--json", *options], stdout=subprocess.PIPE, check=True)
    for hold in json.loads(shown.stdout)["holds"]:
        why = ["--token", str(hold["token"]), "--reason", "released again", "--now"]
        subprocess.run([lockkeeper, "break", name, *why, *options], stdout=subprocess.DEVNULL, check=True)


def handle_command(line):
    what = line.get("do")
    commands[line.get("id")] = line
    if what == "connect":
        service.append(line["url"])
    if what == "release" and mistake == "frees-by-name":
        if line["hold"] in released:
            free(released[line["hold"]])
        acquires = [it for it in commands.values() if it.get("hold") == line["hold"] and "lock" in it]
        released.update((it["hold"], it["lock"]) for it in acquires)
    if what == "connect" and mistake == "lost-with-connection":
        for host, port in re.findall(r"([\d.]+):(\d+)", line["url"]):
            connection = socket.create_connection((host, int(port)))
            threading.Thread(target=follow, args=(connection,), daemon=True).start()
    if what == "acquire" and mistake == "lost-unknown":
        to_harness({"event": "lost", "hold": "nobody's"})
    if what == "acquire" and mistake == "not-utf8":
        sys.stdout.buffer.write(b'"\xff"\n')
        sys.stdout.buffer.flush()
    if what == "acquire" and mistake == "grants-unacknowledged" and line["wait_ms"] is None:
        unacknowledged.add(line["id"])
        to_harness({"id": line["id"], "ok": {"token": None, "valid_ms": 1000}})
    if what == "acquire":
        if mistake == "asks-anew":  # and so loses its place in the queue
            earlier = [it for it in waiting.values() if it["lock"] == line["lock"] and it["wait_ms"] is None]
            to_driver(line)
            for other in earlier:
                to_driver({"id": other["id"] + CANCEL, "do": "cancel", "acquire": other["id"]})
                moved[other["id"]] = other["hold"] + "-again"
                to_driver({**other, "id": other["id"] + AGAIN, "hold": moved[other["id"]]})
            waiting[line["id"]] = line
            return
        waiting[line["id"]] = line
    if what == "cancel" and mistake == "ignores-cancel" and line["acquire"] in waiting:
        to_harness({"id": line["acquire"], "error": {"kind": "cancelled", "text": ""}})
        to_harness({"id": line["id"], "ok": {}})
        waiting.pop(line["acquire"])
        commands.pop(line["acquire"])
        return
    is_over = mistake == "lost-with-connection" and line.get("hold") in lost
    if what == "check" and (is_over or expired(line["hold"])):
        is_lost(line["hold"])
        to_harness({"id": line["id"], "error": {"kind": "lost", "text": ""}})
        return
    if what == "check" and mistake == "never-lost" and line["hold"] in granted_at:
        to_harness({"id": line["id"], "ok": {"valid_ms": 1000}})
        return
    for acquire, hold in moved.items():
        if line.get("hold") == commands[acquire]["hold"]:
            line = {**line, "hold": hold}
    to_driver(line)


def handle_answer(line):
    if "event" in line:
        if mistake in ("late-loss", "late-event"):
            threading.Timer(LATE, later, [line]).start()
        elif line["hold"] in lost:
            return
        elif mistake not in ("never-lost", "no-event"):
            to_harness(line)
        return
    if line["id"] in moved or line["id"] in unacknowledged:
        return
    if line["id"] is not None and line["id"] >= AGAIN:
        line["id"] -= AGAIN
    asked = commands.get(line["id"])
    if asked is None and line["id"] is not None:  # the harness does not wait for it
        return
    asked = asked or {"do": ""}
    waiting.pop(line["id"], None)
    kind, ok = line.get("error", {}).get("kind"), line.get("ok")
    is_acquire = asked["do"] in ("acquire", "lead")
    if is_acquire and ok is not None:
        granted_at[asked["hold"]] = time.monotonic()
        if mistake == "one-token":
            ok["token"] = 7
        if mistake == "no-other-tokens" and asked.get("mode") != "exclusive":
            ok["token"] = None
    if ok is not None and mistake == "long-validity" and ok.get("valid_ms"):
        ok["valid_ms"] += 60_000
    if is_acquire and kind == "busy" and mistake == "ignores-busy":
        line = {"id": line["id"], "ok": {"token": 2**53 - 1, "valid_ms": 1000}}
    if asked["do"] == "release" and kind == "refused" and mistake == "releases-again":
        line = {"id": line["id"], "ok": {"was": "held"}}
    if kind == "refused" and mistake == "accepts-all":
        line = {"id": line["id"], "ok": {"token": None, "valid_ms": None}}
    if asked["do"] == "check" and kind == "lost" and mistake == "late-loss" and asked["hold"] not in lost:
        line = {"id": line["id"], "ok": {"valid_ms": 0}}
    if kind == "unreachable" and mistake == "unknown-is-busy":
        line["error"]["kind"] = "busy"
    is_unknown = is_acquire and kind in ("unreachable", "lost")
    if is_unknown and asked["wait_ms"] and mistake == "unknown-is-not-in-time":
        line["error"]["kind"] = "timed-out"
    to_harness(line)
    if mistake == "answers-twice":
        to_harness(line)


def answers():
    to_harness(json.loads(true.stdout.readline()))
    for text in true.stdout:
        with lock:
            handle_answer(json.loads(text))
    ended(true.wait())


def ended(code):
    os._exit(1 if mistake == "ends-with-1" else code)


threading.Thread(target=answers, daemon=True).start()
for text in sys.stdin:
    with lock:
        try:
            handle_command(json.loads(text))
        except (ValueError, AttributeError):
            true.stdin.write(text)
            true.stdin.flush()
if mistake == "leaves-holds":
    true.kill()
    true.wait()
    os._exit(0)
true.stdin.close()
ended(true.wait())
