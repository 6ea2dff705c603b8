"""A driver with one mistake: a true driver behind a filter of its lines.

python3 wrong_driver.py MISTAKE COMMAND...
"""

import json
import os
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
CANCEL, AGAIN = 1_000_000, 2_000_000  # added to the ids of the filter's own commands
lost = set()


def to_driver(line):
    true.stdin.write(json.dumps(line) + "\n")
    true.stdin.flush()


def to_harness(line):
    print(json.dumps(line), flush=True)


def expired(hold):
    """For the mistake that no hold is renewed."""
    return mistake == "no-renewal" and time.monotonic() - granted_at.get(hold, time.monotonic()) > 1.5


def handle_command(line):
    what = line.get("do")
    commands[line.get("id")] = line
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
    if what == "check" and expired(line["hold"]):
        if line["hold"] not in lost:
            lost.add(line["hold"])
            to_harness({"event": "lost", "hold": line["hold"]})
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
        if mistake not in ("never-lost", "no-event"):
            to_harness(line)
        return
    if line["id"] in moved:
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
    if ok is not None and mistake == "long-validity" and ok.get("valid_ms"):
        ok["valid_ms"] += 60_000
    if is_acquire and kind == "busy" and mistake == "ignores-busy":
        line = {"id": line["id"], "ok": {"token": 2**53 - 1, "valid_ms": 1000}}
    if asked["do"] == "release" and kind == "refused" and mistake == "releases-again":
        line = {"id": line["id"], "ok": {"was": "held"}}
    if kind == "refused" and mistake == "accepts-all":
        line = {"id": line["id"], "ok": {"token": None, "valid_ms": None}}
    if kind == "unreachable" and mistake == "unknown-is-busy":
        line["error"]["kind"] = "busy"
    to_harness(line)
    if mistake == "answers-twice":
        to_harness(line)


def answers():
    to_harness(json.loads(true.stdout.readline()))
    for text in true.stdout:
        with lock:
            handle_answer(json.loads(text))
    os._exit(true.wait())


threading.Thread(target=answers, daemon=True).start()
for text in sys.stdin:
    with lock:
        try:
            handle_command(json.loads(text))
        except (ValueError, AttributeError):
            true.stdin.write(text)
            true.stdin.flush()
true.stdin.close()
true.wait()
