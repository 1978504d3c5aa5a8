"""What replicas say of themselves that decides about the text of their answers: compared, and told to the operator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from mmserve.config.resolved.facts import difference, digest_of

logger = logging.getLogger(__name__)
Count = Callable[[int], None]


class ServerFacts:
    """``count``: is told how many kinds of replicas there are."""

    def __init__(self, count: Count = lambda kinds: None) -> None:
        self._count = count
        self._facts: dict[str, Mapping[str, str]] = {}
        self._logged: set[tuple[str, str]] = set()
        """Pairs of digests."""

    def tell(self, replica: str, facts: Mapping[str, str]) -> None:
        """A replica has told its facts. What differs from the first replica's is logged once."""
        self._facts[replica] = facts
        self._count_kinds()
        first, of_first = next(iter(self._facts.items()))
        pair = digest_of(dict(of_first)), digest_of(dict(facts))
        if pair[0] != pair[1] and pair not in self._logged:
            self._logged.add(pair)
            logger.warning(
                "%s is not as %s: %s; a stream that one of them has begun cannot go on at the other",
                replica, first, difference(dict(of_first), dict(facts)),
            )  # fmt: skip

    def keep(self, replicas: set[str]) -> None:
        """The others have left."""
        self._facts = {replica: facts for replica, facts in self._facts.items() if replica in replicas}
        self._count_kinds()

    def _count_kinds(self) -> None:
        self._count(len({digest_of(dict(each)) for each in self._facts.values()}))
