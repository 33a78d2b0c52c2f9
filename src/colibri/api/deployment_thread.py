"""A deployment kept by a thread of its own, so that the caller's threads keep their CPUs."""

from __future__ import annotations

import threading

from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.reports import Log, Progress
from colibri.deployment.running import Deployment
from colibri.errors import DeadlineExpired

#: Above the sum of the bounds within a start: each worker's start and load, and reading the dense weights.
_START_S = 7200.0
#: Above the sum of the bounds within an end: the engine's step, and the grace of the workers.
_CLOSE_S = 180.0


class DeploymentThread:
    """Starts a deployment on a thread, keeps it, and ends it on that same thread.

    `assemble` moves its thread to the coordinator's CPUs, and all threads that it starts follow.
    """

    def __init__(self, options: DeploymentOptions, log: Log, progress: Progress) -> None:
        self._options = options
        self._log = log
        self._progress = progress
        self._deployment: Deployment | None = None
        self._error: BaseException | None = None
        self._settled, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="colibri-deployment", daemon=True)

    def start(self) -> Deployment:
        """Returns the deployment once it answers. Raises what `assemble` raises.

        Interrupted, it leaves nothing running: a deployment that is half started ends by itself.
        """
        self._thread.start()
        try:
            settled = self._settled.wait(_START_S)
        except BaseException:
            self._stop.set()
            raise
        if not settled:
            self._stop.set()
            raise DeadlineExpired(f"deployment: not started within {_START_S:g} s", peer="deployment")
        if self._deployment is None:
            raise self._error or RuntimeError("assemble returns a deployment or raises")
        return self._deployment

    def close(self) -> None:
        """Ends the deployment and its workers. Raises what ending it raised, DeadlineExpired if it does not end."""
        self._stop.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise DeadlineExpired(f"deployment: not ended within {_CLOSE_S:g} s", peer="deployment")
        if self._error is not None:
            raise self._error

    def _keep(self) -> None:
        try:
            self._deployment = assemble(self._options, self._log, progress=self._progress)
            self._settled.set()
            self._stop.wait()
            self._deployment.close()
        except BaseException as error:  # raised again by `start` or `close`
            self._error = error
        finally:
            self._settled.set()
