"""Starts a deployment for a verb, and shows on stderr how that goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from colibri.cli.progress import Loading
from colibri.cli.terminal import say
from colibri.deployment.phases import Phases

if TYPE_CHECKING:
    from colibri.deployment.options import DeploymentOptions
    from colibri.deployment.running import Deployment


def assembled(options: DeploymentOptions, phases: Phases, log: Callable[[str], None] = say) -> Deployment:
    """Returns a deployment that answers. Raises what `colibri.deployment.assemble.assemble` raises.

    phases: marked as the phases of the start end.
    log: takes each line that the deployment says, now and later.
    """
    from colibri.deployment.assemble import assemble

    with Loading(log) as loading:
        return assemble(options, log, progress=loading.update, milestone=phases.mark)
