"""Starts a deployment for a verb, and shows on stderr how that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colibri.cli.progress import Loading
from colibri.cli.terminal import say
from colibri.deployment.phases import Phases

if TYPE_CHECKING:
    from colibri.deployment.options import DeploymentOptions
    from colibri.deployment.running import Deployment


def assembled(options: DeploymentOptions, phases: Phases) -> Deployment:
    """Returns a deployment that answers. Raises what `colibri.deployment.assemble.assemble` raises.

    phases: marked as the phases of the start end.
    """
    from colibri.deployment.assemble import assemble

    with Loading() as loading:
        return assemble(options, say, progress=loading.update, milestone=phases.mark)
