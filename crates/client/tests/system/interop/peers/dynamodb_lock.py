"""Runs python_dynamodb_lock's own client for the tests: reads one command per line. Used as `dynamodb_lock.py ENDPOINT TABLE`.

try NAME TTL_MS       -> held VALUE | busy
acquire NAME TTL_MS   -> held VALUE if the lock is free; otherwise waiting, and later held VALUE
extend NAME TTL_MS    -> held | lost
release NAME          -> released | lost

The lease of the client's locks is two seconds, whatever TTL_MS says: it is a setting of the client. The script prints `ready` once the
table has answered. It ends at the end of its input without releasing anything.
"""

import datetime
import os
import sys

import boto3
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient, DynamoDBLockError


def seconds(count):
    return datetime.timedelta(seconds=count)


RETRY = seconds(0.05)
AT_ONCE = seconds(0.01)
FOREVER = seconds(600)


def main():
    dynamodb = boto3.resource(
        "dynamodb",
        endpoint_url=sys.argv[1],
        region_name="us-east-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
    )
    owner = f"python-{os.getpid()}"
    client = DynamoDBLockClient(
        dynamodb,
        table_name=sys.argv[2],
        owner_name=owner,
        heartbeat_period=seconds(0.3),
        safe_period=seconds(1.5),
        lease_duration=seconds(2),
    )
    table = dynamodb.Table(sys.argv[2])

    def is_held(name):
        item = table.get_item(Key={"lock_key": name, "sort_key": "-"}, ConsistentRead=True).get("Item")
        return item is not None and item["owner_name"] == owner

    def acquire(name, limit):
        try:
            return client.acquire_lock(name, retry_period=RETRY, retry_timeout=limit)
        except DynamoDBLockError as error:
            if error.code != DynamoDBLockError.ACQUIRE_TIMEOUT:
                raise
            return None

    is_held("ready")
    say("ready")
    held = {}
    # Not `for line in sys.stdin`, which may read ahead and delay a command.
    for line in iter(sys.stdin.readline, ""):
        command, name, *_ = line.split()
        if command in ("try", "acquire"):
            lock = acquire(name, AT_ONCE)
            if lock is None and command == "acquire":
                say("waiting")
                lock = acquire(name, FOREVER)
            if lock is None:
                say("busy")
            else:
                held[name] = lock
                say(f"held {owner}")
        elif command == "extend":
            # The client renews by itself.
            say("held" if is_held(name) else "lost")
        elif command == "release":
            there = is_held(name)
            held.pop(name).release()
            say("released" if there else "lost")
        else:
            raise ValueError(f"unknown command: {line!r}")
    os._exit(0)


def say(answer):
    print(answer, flush=True)


main()
