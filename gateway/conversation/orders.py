"""The outbox: numbered commands to stages, kept until the stage says it obeyed them. A restore issues them again."""

from __future__ import annotations

from msgspec import Struct

from .effects import Order, OrderBody
from .fence import Fence


class StageOrders(Struct):
    issued: int = 0
    last_append: int = 0
    """Highest number that travelled on the edge "core": the `previous` of the next."""
    waiting: list[Order] = []


class Outbox(Struct):
    stages: dict[str, StageOrders] = {}

    def issue(self, stage: str, fence: Fence, body: OrderBody, *, append: bool) -> Order:
        orders = self.stages.setdefault(stage, StageOrders())
        orders.issued += 1
        order = Order(stage, orders.issued, orders.last_append, fence.epoch, body, fence.config_generation)
        if append:
            orders.last_append = orders.issued
        orders.waiting.append(order)
        return order

    def issued(self, stage: str) -> int:
        """The highest number so far."""
        return self.stages[stage].issued if stage in self.stages else 0

    def obeyed(self, stage: str, number: int) -> bool:
        """Forget what the stage has; True when something was forgotten."""
        orders = self.stages.get(stage)
        if orders is None or not orders.waiting or orders.waiting[0].number > number:
            return False
        orders.waiting = [order for order in orders.waiting if order.number > number]
        return True

    def outrun(self, stage: str, number: int, position: int) -> None:
        """The stage obeyed orders that the store forgot: the next one must not pass for a repeat of those."""
        orders = self.stages.setdefault(stage, StageOrders())
        orders.issued, orders.last_append = max(orders.issued, number), max(orders.last_append, position)

    def forget(self, stage: str) -> int:
        """The stage is lost with all that it was told; answers the last number on its edge "core"."""
        orders = self.stages.setdefault(stage, StageOrders())
        orders.waiting = []
        return orders.last_append

    def unanswered(self) -> list[Order]:
        return [order for orders in self.stages.values() for order in orders.waiting]
