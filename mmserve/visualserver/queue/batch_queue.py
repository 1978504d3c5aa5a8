"""Requests that wait for images, and the choice of the next images to decode and encode. Pure: no clock, no torch.

An image is decoded and encoded once, however many requests need it. Requests are served in order of arrival. The images
of a request are started only under a decode permit of that request.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.request import AbortReason, AbortRequest, EncodeRequest, ImagesEncoded, WorkerDied
from mmserve.visualserver.images import Image, Outcome, item_ids
from mmserve.visualserver.queue.image_tasks import ImageBatch, ImageTask
from mmserve.visualserver.queue.pending_request import PendingRequest, PermitCandidate
from mmserve.visualserver.queue.permits import PermitHolders

Answer = ImagesEncoded | AbortRequest
"""To the router."""


class BatchQueue:
    """Pending requests and the images that they need.

    A batch has at most ``max_images``. At most ``max_requests`` client requests wait, a request with all its choices
    counting as one; further ones are refused.
    """

    def __init__(self, max_images: int, max_requests: int = sys.maxsize) -> None:
        self._max_images = max_images
        self._max_requests = max_requests
        self.permits = PermitHolders()
        self.promised: PendingRequest | None = None
        """The request that holds a permit as soon as the current one ends."""
        self._pending: dict[str, PendingRequest] = {}
        self._num_choices: Counter[str] = Counter()
        """Client request -> number of its choices that are pending."""
        self._tasks: dict[int, ImageTask] = {}

    def __len__(self) -> int:
        """Number of client requests that are pending."""
        return len(self._num_choices)

    def add(self, request: EncodeRequest, now_s: float) -> list[Answer]:
        """Add a request. Returns what can be answered at once: a request for no image, or one too many.

        A later attempt replaces an earlier one with the same id; the same attempt again is ignored.
        """
        if (known := self._pending.get(request.id)) is not None:
            if (known.request.attempt, known.request.number) >= (request.attempt, request.number):
                return []
            self.drop(request.id)
        pending = PendingRequest(request, now_s)
        for span in request.spans:
            if span.data is not None and span.item_id not in pending.missing:
                pending.missing[span.item_id] = span.media_index
                self._task_for(span, span.data).waiters[request.id] = pending
        if not pending.missing:
            return [ImagesEncoded(id=request.id, attempt=request.attempt, item_ids=())]
        self._pending[request.id] = pending
        self._num_choices[request.client_request] += 1
        if len(self) > self._max_requests and not request.number:  # a further request's client has been accepted
            return [self.abort(pending, "queue_full", f"{self._max_requests} requests wait for their images already")]
        return []

    def drop_orphans(self, died: WorkerDied) -> None:
        """Remove the requests of an HTTP worker that has died."""
        orphans = [each.request.id for each in self._pending.values() if died.concerns(each.request)]
        for request_id in orphans:
            self.drop(request_id)

    def drop(self, request_id: str) -> None:
        """Remove the request, and the images in no batch yet that no other request needs."""
        if request_id not in self._pending:
            return
        pending = self._remove(request_id)
        self.permits.close(pending.permit_name)
        if pending is self.promised:
            self.promised = None
            self.permits.decline(pending.permit_name)
        for item_id in pending.missing:
            task = self._tasks[item_id]
            del task.waiters[request_id]
            if not task.waiters and not task.in_flight:
                del self._tasks[item_id]

    def abort(self, pending: PendingRequest, reason: AbortReason, message: str) -> AbortRequest:
        """Remove a request that got no permit in time. Returns the abort for the router."""
        self.drop(pending.request.id)
        return _abort(pending.request, reason, message, None)

    def permit_candidates(self) -> list[PermitCandidate]:
        """The oldest requests that need a decode permit, at most ``max_images`` of them.

        Of several requests that need the same image only the first is a candidate, so that the image is counted once.
        The next one becomes a candidate when the first has started or was dropped.
        """
        covered_by = (pending for pending in self._pending.values() if pending.has_permit or pending is self.promised)
        covered = {item_id for pending in covered_by for item_id in pending.missing}
        candidates: list[PermitCandidate] = []
        for pending in self._pending.values():
            idle = self._idle_tasks(pending)
            idle_ids = {task.image.item_id for task in idle}
            if idle and covered.isdisjoint(idle_ids):
                candidates.append(PermitCandidate(pending, sum(task.decoded_nbytes for task in idle)))
                covered |= idle_ids
            if len(candidates) == self._max_images:
                break
        return candidates

    def has_waiters(self, images: Sequence[Image]) -> bool:
        """True if a request still needs any of these images, which are in flight."""
        return any(self._tasks[image.item_id].waiters for image in images)

    def cancel(self, images: Sequence[Image]) -> None:
        """Remove images of a batch that has no waiters and will not be decoded."""
        for image in images:
            del self._tasks[image.item_id]
        self.permits.decoded(item_ids(images))

    def is_pending(self, pending: PendingRequest) -> bool:
        """True if exactly this attempt of the request is pending."""
        return self._pending.get(pending.request.id) is pending

    def needs_permit(self, pending: PendingRequest) -> bool:
        """True if exactly this attempt is pending, and an image of it is in no batch and at no other machine."""
        return self.is_pending(pending) and bool(self._idle_tasks(pending))

    def grant(self, pending: PendingRequest) -> None:
        """The request has its permit. If it was dropped meanwhile, the permit ends at once."""
        pending.has_permit = True
        self.permits.open(pending.permit_name)
        if not self.is_pending(pending):
            self.permits.close(pending.permit_name)

    def promise(self, pending: PendingRequest) -> None:
        """The request gets its permit when the current one ends. If it was dropped meanwhile, it gives that up."""
        if self.is_pending(pending):
            self.promised = pending
        else:
            self.permits.decline(pending.permit_name)

    def next_batch(self, *, promised_only: bool = False, room: int = sys.maxsize) -> ImageBatch | None:
        """Take images that are not in flight, of the oldest requests with a permit; in flight until ``finish``.

        ``room``: most images, at least 1. ``promised_only``: only images of the promised request, for a batch behind
        one that is being decoded.
        """
        if self.promised is not None and self.permits.all_closed:
            pending, self.promised = self.promised, None
            self.grant(pending)
        elif promised_only:
            return None
        chosen: list[ImageTask] = []
        first_started: list[PendingRequest] = []
        for pending in [pending for pending in self._pending.values() if pending.has_permit]:
            idle = self._idle_tasks(pending)
            added = idle[: min(self._max_images, room) - len(chosen)]
            if added:
                self._start(pending, added)
                chosen += added
                first_started += [] if pending.started else [pending]
                pending.started = True
            if len(added) == len(idle):
                self.permits.close(pending.permit_name)
        if not chosen:
            return None
        others_waiting = any(self._idle_tasks(pending) for pending in self._pending.values() if not pending.has_permit)
        return ImageBatch(tuple(task.image for task in chosen), tuple(first_started), others_waiting)

    # For images that other machines encode, which need no permit

    @property
    def item_ids(self) -> frozenset[int]:
        """Of all images that are needed."""
        return frozenset(self._tasks)

    @property
    def num_in_flight(self) -> int:
        return sum(task.in_flight for task in self._tasks.values())

    def waiting_images(self, most: int) -> list[Image]:
        """Up to so many images that are not in flight, those of the oldest requests first."""
        tasks = (self._tasks[item_id] for pending in self._pending.values() for item_id in pending.missing)
        waiting = dict.fromkeys(itertools.islice((task for task in tasks if not task.in_flight), most))
        return [task.image for task in waiting]

    def take(self, image: Image) -> None:
        """The image is in flight until ``finish`` or ``give_back``."""
        self._tasks[image.item_id].in_flight = True

    def give_back(self, image: Image) -> None:
        """The image was taken and is not encoded. It waits again, if a request still needs it: for a further permit if
        that one's has no image left to start, as it may have ended."""
        task = self._tasks[image.item_id]
        task.in_flight = False
        for pending in task.waiters.values():
            if pending.has_permit and not self.permits.is_open(pending.permit_name):
                pending.has_permit = False
                pending.num_permits_before += 1
        if not task.waiters:
            del self._tasks[image.item_id]

    def _start(self, pending: PendingRequest, tasks: Sequence[ImageTask]) -> None:
        for task in tasks:
            task.in_flight = True
        self.permits.decode(pending.permit_name, (task.image.item_id for task in tasks))

    def _idle_tasks(self, pending: PendingRequest) -> list[ImageTask]:
        return [task for item_id in pending.missing if not (task := self._tasks[item_id]).in_flight]

    def finish(self, outcomes: Mapping[int, Outcome], now_s: float) -> list[Answer]:
        """Record outcomes by item id. Returns the messages for the router: the images of each request that are encoded,
        with the times of its stages if they were the last ones, and aborts."""
        encoded: dict[str, tuple[PendingRequest, list[int]]] = {}
        aborts: list[AbortRequest] = []
        for item_id, outcome in outcomes.items():
            task = self._tasks.pop(item_id)
            for request_id, pending in task.waiters.items():
                media_index = pending.missing.pop(item_id)
                if outcome.state == "encoded":
                    encoded.setdefault(request_id, (pending, []))[1].append(item_id)
                    continue
                aborts.append(_abort(pending.request, outcome.state, outcome.message, media_index))
                encoded.pop(request_id, None)
                self.drop(request_id)
        return [*(self._encoded(pending, item_ids, now_s) for pending, item_ids in encoded.values()), *aborts]

    def _encoded(self, pending: PendingRequest, item_ids: Sequence[int], now_s: float) -> ImagesEncoded:
        request = pending.request
        message = ImagesEncoded(id=request.id, attempt=request.attempt, item_ids=tuple(item_ids))
        if pending.missing:
            return message
        self._remove(request.id)
        self.permits.close(pending.permit_name)  # other machines may have encoded all before one was started here
        return msgspec.structs.replace(message, stage_times=pending.stage_times(now_s))

    def _remove(self, request_id: str) -> PendingRequest:
        pending = self._pending.pop(request_id)
        client_request = pending.request.client_request
        self._num_choices[client_request] -= 1
        if not self._num_choices[client_request]:
            del self._num_choices[client_request]
        return pending

    def _task_for(self, span: MediaSpan, data: Handle) -> ImageTask:
        image = Image(span.item_id, data, span.embed, span.processing, span.key)
        return self._tasks.setdefault(span.item_id, ImageTask(image, span.decoded_nbytes))


def _abort(request: EncodeRequest, reason: AbortReason, message: str, media_index: int | None) -> AbortRequest:
    return AbortRequest(
        id=request.id,
        reply_to=request.reply_to,
        reason=reason,
        message=message,
        media_index=media_index,
        attempt=request.attempt,
    )
