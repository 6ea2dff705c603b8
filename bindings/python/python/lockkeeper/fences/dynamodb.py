"""The fence of DynamoDB, by a client of boto3: the marks are attributes of the item, the check is a condition.

    fence = dynamodb.Fence(boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 1})))
    key = {"id": {"S": "screws"}}
    with locks.mutex("stock/screws") as guard:
        item = fence.enter("stock", key, guard.token)  # this is the read
        pieces = int(item["pieces"]["N"]) - 1
        fence.write("stock", key, guard.token, Update(set=["pieces = :p"], values={":p": {"N": str(pieces)}}))

Turn off the client's own retries, as above: a write that is sent twice may be done twice. Items are as boto3's client
takes them, with their types. Attributes that begin with ``lk_`` are the fence's.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Union

from .. import _lockkeeper
from . import Mode

#: Values by the names of attributes, each with its type: ``{"pieces": {"N": "7"}}``.
Item = Mapping[str, Any]


@dataclass(frozen=True)
class Update:
    """Changes some attributes, by actions of DynamoDB's expressions."""

    #: Actions such as ``count = :count``.
    set: List[str] = field(default_factory=list)
    remove: List[str] = field(default_factory=list)
    add: List[str] = field(default_factory=list)
    delete: List[str] = field(default_factory=list)
    #: The caller's own condition, beside the fence's.
    when: Optional[str] = None
    #: Placeholders of names (``#…``) and of values (``:…``).
    names: Mapping[str, str] = field(default_factory=dict)
    values: Item = field(default_factory=dict)


@dataclass(frozen=True)
class Put:
    """Replaces the whole item; the key is added. Not under a permit."""

    item: Item


@dataclass(frozen=True)
class Delete:
    """Removes the item except for its key and its marks, and sets ``lk_deleted``. Not under a permit."""


Effect = Union[Update, Put, Delete]


def _json(item: Item) -> str:
    return json.dumps(item, default=lambda value: base64.b64encode(bytes(value)).decode())


def _native(effect: Effect) -> str:
    if isinstance(effect, Put):
        return _json({"put": effect.item})
    if isinstance(effect, Delete):
        return _json({"delete": True})
    parts = vars(effect)
    return _json({"update": {**parts, "names": dict(effect.names), "values": dict(effect.values)}})


def _binary(value: Any) -> Any:
    """Values of JSON as boto3 takes them: ``{"B": ...}`` with bytes."""
    if isinstance(value, dict):
        if isinstance(value.get("B"), str):
            return {"B": base64.b64decode(value["B"])}
        if isinstance(value.get("BS"), list):
            return {"BS": [base64.b64decode(one) for one in value["BS"]]}
        return {name: _binary(one) for name, one in value.items()}
    return [_binary(one) for one in value] if isinstance(value, list) else value


class Fence:
    """Fenced requests by this client (``boto3.client("dynamodb")``)."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def enter(
        self, table: str, key: Item, token: int, *, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> Dict[str, Any]:
        """Checks the token, and marks the item: older tokens are refused from then on. Returns the item, as it is now.

        A missing item is created, with its key and marks only. Raises ``Stale``.
        """
        request = _lockkeeper.dynamodb_request(table, _json(key), ("enter", token, mode, slot))
        item: Dict[str, Any] = self._send(request)["Attributes"]
        return item

    def write(
        self, table: str, key: Item, token: int, effect: Effect, *, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> None:
        """Checks the token and writes, in one step.

        Raises ``Stale``, and ``ConditionFailed`` if the condition of the update did not hold. After an exception of the
        client it is unknown whether it was done.
        """
        self._send(_lockkeeper.dynamodb_request(table, _json(key), ("write", token, mode, slot), _native(effect)))

    def once(
        self, table: str, key: Item, token: int, effect: Effect, *, mode: Mode = "exclusive", slot: Optional[int] = None
    ) -> None:
        """:meth:`write`, but each token passes once, and needs no ``enter``. Raises ``Repeated``, too."""
        asked = ("check_once", token, mode, slot)
        self._send(_lockkeeper.dynamodb_request(table, _json(key), asked, _native(effect)))

    def content(self, table: str, key: Item, item: Item) -> Optional[Dict[str, Any]]:
        """The caller's own attributes of an item; ``None`` if it was only entered, or deleted."""
        content = _lockkeeper.dynamodb_content(table, _json(key), _json(item))
        return None if content is None else _binary(json.loads(content))

    def reset(self, table: str, key: Item, to: int, item: Optional[Item] = None) -> None:
        """Sets the marks, even to a lower token: for a move to another lock service. Stop all writers first.

        ``item`` is the item as it is.
        """
        call, parameters = _lockkeeper.dynamodb_reset(table, _json(key), to, None if item is None else _json(item))
        getattr(self._client, call)(**_binary(json.loads(parameters)))

    def _send(self, request: _lockkeeper.DynamoDbRequest) -> Dict[str, Any]:
        while True:
            call, parameters = request.parts()
            try:
                response: Dict[str, Any] = getattr(self._client, call)(**_binary(json.loads(parameters)))
                return response
            except Exception as error:
                reply = getattr(error, "response", {})
                if reply.get("Error", {}).get("Code") != "ConditionalCheckFailedException":
                    raise
                item = reply.get("Item")
            request = request.after_refusal(None if item is None else _json(item))
