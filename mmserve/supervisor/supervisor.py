"""Starts every process of a server, restarts those that die or are stuck, drains and stops them.

Handles one event at a time, in the main thread.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence

from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.protocol import Progress, Ready
from mmserve.supervisor.child.spawn import Spawner
from mmserve.supervisor.children import Children
from mmserve.supervisor.progress import StartBars
from mmserve.supervisor.rolling_restart import RollingRestart
from mmserve.supervisor.status_publisher import Publisher
from mmserve.supervisor.topology import Member, Topology, members
from mmserve.supervisor.watching.restarts import RestartLimit
from mmserve.supervisor.watching.start_limit import StartLimit
from mmserve.supervisor.watching.watch import Event, Exited, Reported, Signalled, Watch
from mmserve.supervisor.watching.watchdog import Watchdog, print_stacks

DRAIN_MARGIN_S = 5.0
"""HTTP workers get this much longer than --shutdown-timeout before they are killed."""
STOP_GRACE_S = 3.0
ABORT_GRACE_S = 2.0
_TOLD_WITHIN_S = 10.0
"""Longest wait for HTTP workers that have been told that the server is ready."""
_SPAWN_RETRY_S = 1.0
logger = logging.getLogger(__name__)


class Interrupted(BaseException):
    """A signal ended the server before it was ready. A BaseException, because the signal may arrive during a download,
    where libraries catch Exception."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Supervisor:
    """The processes of one server. ``run`` returns when all have ended."""

    def __init__(
        self,
        deployment: Deployment,
        roles: Topology,
        spawner: Spawner,
        watch: Watch,
        publisher: Publisher,
    ) -> None:
        self._deployment = deployment
        self._children = Children(members(roles), spawner, watch)
        self._watch = watch
        self._publisher = publisher
        self._restarts = RestartLimit()
        self._watchdog = Watchdog(Endpoints(deployment.run_dir), deployment.config.stuck_timeout)
        self._start_limit = StartLimit(deployment.config.start_timeout)
        self._roll = RollingRestart(self._children)
        self._restarting: set[str] = set()
        self._has_served = False
        self._draining = False
        self._drained = False
        self._stop_now = False

    def run(self, on_ready: Callable[[list[Child]], None]) -> None:
        """Start, serve until a signal, drain, stop. Raises StartupError (also on giving up) and Interrupted."""
        try:
            self._start()
            on_ready(list(self._children))
            self._serve()
            self._drain()
        finally:
            self._stop()

    # start

    def _start(self) -> None:
        """Returns when every process is ready and the HTTP workers know it. Until then the phase is ``loading``; see
        ``_publish_phase``."""
        self._children.start_unblocked()
        self._publish_phase()
        with StartBars() as bars:
            while self._children.missing():
                self._end_if_hung()
                for event in self._watch.wait(self._start_limit.interval_s(self._children)):
                    self._handle_at_start(event, bars)
        self._has_served = True
        self._publish_phase()
        self._await_accepting(time.monotonic() + _TOLD_WITHIN_S)

    def _handle_at_start(self, event: Event, bars: StartBars) -> None:
        match event:
            case Signalled(signum):
                raise Interrupted(signum)
            case Exited(child, cause):
                self._children.forget(child)
                raise StartupError(f"{child.member.title} {cause}")
            case Reported(child, Progress() as progress):
                bars.update(child.member, progress)
            case Reported(child, Ready()):
                logger.debug("%s is ready", child.member.title)
                self._children.start_unblocked()
                self._publish_phase()

    def _await_accepting(self, until_s: float) -> None:
        """Wait until the HTTP workers take requests. A process that dies by now is started again."""
        while self._children.not_accepting() and time.monotonic() < until_s:
            self._children.start_missing()
            for event in self._watch.wait(_SPAWN_RETRY_S):
                if isinstance(event, Signalled):
                    raise Interrupted(event.signum)
                self._handle(event)

    def _end_if_hung(self) -> None:
        """Raises StartupError if a process hangs while it starts."""
        if not (overdue := self._start_limit.overdue(self._children, time.monotonic())):
            return
        print_stacks([child for child, _ in overdue])
        raise StartupError(
            f"{', '.join(child.member.title for child, _ in overdue)} did not start: {overdue[0][1]}. The stacks above "
            "show what each waits for; where a start takes this long, set a higher --start-timeout"
        )

    # serve

    def _serve(self) -> None:
        """Returns on a signal. Raises StartupError when a group dies too often."""
        while True:
            self._restart_stuck()
            all_started = self._children.start_missing()
            events = self._watch.wait(self._looks_again_s() if all_started else _SPAWN_RETRY_S)
            signals = [event for event in events if isinstance(event, Signalled) and not self._reloads(event.signum)]
            self._draining = bool(signals)
            for event in events:
                match event:
                    case Exited(child, cause) if signals and self._children.is_current(child):
                        self._forget(child, cause)
                    case _:
                        self._handle(event)
            if signals:
                self._stop_now = len(signals) > 1
                return

    def _handle(self, event: Event) -> None:
        match event:
            case Exited(child, cause) if self._children.is_current(child):
                self._restart(child.member, cause)
            case Reported(child, Ready()) if self._children.is_current(child):
                self._on_ready_again(child.member)

    def _looks_again_s(self) -> float | None:
        intervals = (self._watchdog.interval_s, self._start_limit.interval_s(self._children))
        return min((interval_s for interval_s in intervals if interval_s is not None), default=None)

    def _restart_stuck(self) -> None:
        hung = self._start_limit.overdue(self._children, time.monotonic())
        for child, reason in [*self._watchdog.stuck(self._children), *hung]:
            if self._children.is_current(child):  # not restarted with another one of its group
                logger.error("%s is stuck: %s", child.member.title, reason)
                group = self._children.group(child.member)
                print_stacks([one for one in self._children if one.member in group])
                self._restart(child.member, f"was stuck ({reason})")

    def _restart(self, dead: Member, cause: str) -> None:
        group = self._children.group(dead)
        for member in group:
            self._children.kill([member])
            self._publisher.died(member)
        if self._roll.concerns(dead):
            self._roll.ended(dead, cause)
            self._publish_phase()
            return
        if not self._restarts.allows(dead.group, time.monotonic()):
            reason = f"gave up on {dead.title} after {self._restarts.rule}; the last time it {cause}"
            if not (dead.role.preloads and self._has_served):
                raise StartupError(reason)
            self._do_without(dead, reason)
            return
        logger.error("%s %s; starting again: %s", dead.title, cause, ", ".join(member.title for member in group))
        self._children.incarnations[dead.group] += 1
        self._restarting.add(dead.group)
        self._children.start_missing()
        self._watchdog.restarted()
        self._publish_phase()

    def _do_without(self, fork_server: Member, reason: str) -> None:
        """It makes starts of others faster, and nothing else."""
        logger.error(
            "%s: the server goes on without it, and processes that start again take longer; find out what ends it, in "
            "its lines above or in the kernel's log (memory?), and restart the server",
            reason,
        )
        self._restarting.discard(fork_server.group)
        self._children.members.remove(fork_server)
        self._publish_phase()

    def _on_ready_again(self, member: Member) -> None:
        # Once for a group, even if several of its members report at once.
        if member.group in self._restarting and self._children.are_ready(self._children.group(member)):
            self._restarting.remove(member.group)
            self._restarts.reset(member.group)
            logger.info("%s is ready again", member.group)
            self._publisher.raise_epoch(member)
        self._publish_phase()
        self._roll.ready(member)

    def _reloads(self, signum: int) -> bool:
        """True if HTTP workers are replaced; it starts with the first."""
        if asked := self._roll.is_asked_by(signum):
            self._roll.begin()
        return asked

    def _publish_phase(self) -> None:
        """Send the phase. After the start it depends on the engine only: without another process requests are delayed,
        without the engine none can be answered."""
        self._publisher.processes(self._children.table())
        workers = self._children.http_workers()
        if self._draining:
            # Sent again when a group gets ready during a drain: HTTP workers see its new epoch and resend requests.
            self._publisher.phase("draining", workers, ready=False)
            return
        missing = [member.title for member in self._children.missing()]
        engine = self._children.engine_ready
        phase = "ready" if engine else "restarting"
        self._publisher.phase(
            phase if self._has_served else "loading",
            workers,
            ready=self._has_served and engine,
            detail=f"waiting for {', '.join(missing)}" if missing else "",
        )

    # stop

    def _drain(self) -> None:
        """Wait until the HTTP workers have finished their live requests. A second signal ends the wait."""
        timeout_s = self._deployment.config.shutdown_timeout
        if self._children.http_workers():
            logger.info("draining: live requests may take %g s; a second signal stops at once", timeout_s)
        self._publish_phase()
        self._terminate(
            self._children.http_workers(),
            timeout_s + DRAIN_MARGIN_S,
            needed=[member for member in self._children.members if member.role.engine],
        )
        self._drained = True

    def _stop(self) -> None:
        """Stop all processes: in reverse start order after a drain, otherwise all at once."""
        if not self._drained:
            self._terminate(self._children.members, ABORT_GRACE_S)
        for role in dict.fromkeys(member.role for member in reversed(self._children.members)):
            self._terminate([member for member in self._children.members if member.role is role], STOP_GRACE_S)
        logger.debug("all processes have ended")

    def _terminate(self, members: list[Member], timeout_s: float, needed: Sequence[Member] = ()) -> None:
        """Send SIGTERM to ``members``, wait until they have ended, then send SIGKILL to the rest.

        The wait ends after ``timeout_s``, at a signal, or as soon as a process of ``needed`` is not alive.
        """
        self._children.send_signal(members, signal.SIGTERM)
        deadline_s = time.monotonic() + (timeout_s if all(map(self._children.of, needed)) else 0.0)
        while not self._stop_now and any(map(self._children.of, members)):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            for event in self._watch.wait(left_s):
                match event:
                    case Signalled():
                        self._stop_now = True
                    case Exited(child, cause) if self._children.is_current(child):
                        self._forget(child, cause)
                        if child.member in needed:
                            deadline_s = 0.0
                    case Reported(child, Ready()) if self._children.is_current(child):
                        self._on_ready_again(child.member)  # live requests may wait for it
        self._children.kill(members)

    def _forget(self, child: Child, cause: str) -> None:
        """Drop a process that has ended and is not restarted. During a drain, live requests need the engine."""
        self._children.forget(child)
        if child.member.role.engine and self._draining and not self._drained:
            logger.error("%s %s while draining", child.member.title, cause)
