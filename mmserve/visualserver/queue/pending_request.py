"""A request that waits for its images: what is missing, its permit, and the times of its stages. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.messages.cache import PermitRequest
from mmserve.messages.request import EncodeRequest


@dataclass
class PendingRequest:
    """A request with images that are not encoded yet."""

    request: EncodeRequest
    received_s: float
    missing: dict[int, int] = field(default_factory=dict)
    """Item id of an image that is not encoded -> its index among the request's images."""
    started: bool = False
    """Some of its images were put into a batch under its permit."""
    has_permit: bool = False
    num_permits_before: int = 0
    """Permits that it had before this one, for other images."""
    started_s: float | None = None
    """When its first images went into a batch, and when that batch was decoded. Set by the pipeline, for its trace."""
    decoded_s: float | None = None

    def stage_times(self, now_s: float) -> dict[str, float]:
        """The seconds of its stages, once all its images are encoded."""
        if self.started_s is None:  # other requests have started all its images
            return {"encode": now_s - self.received_s}
        decoded_s = self.decoded_s if self.decoded_s is not None else now_s
        return {
            "turn": self.started_s - self.received_s,
            "image_decode": decoded_s - self.started_s,
            "encode": now_s - decoded_s,
        }

    @property
    def permit_name(self) -> str:
        """Name of its decode permit. Each has a name of its own, also those of requests of the same sequence: the last
        one's may not have ended yet."""
        request, before = self.request, self.num_permits_before
        name = f"{request.id}/{request.attempt}" + (f".{request.number}" if request.number else "")
        return f"{name}+{before}" if before else name


@dataclass(frozen=True)
class PermitCandidate:
    """A request that needs a decode permit; ``nbytes``: estimated bytes of the pixels to be decoded under it."""

    pending: PendingRequest
    nbytes: int

    @property
    def permit_request(self) -> PermitRequest:
        return PermitRequest(self.pending.permit_name, self.nbytes, self.pending.request.arrival_s)
