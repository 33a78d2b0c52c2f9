"""The CUDA backend passes what every backend passes: the suites of tests/conformance/kernels on its emulated device."""

from __future__ import annotations

import pytest

from tests.conformance.kernels.test_attention import *  # noqa: F403
from tests.conformance.kernels.test_errors import *  # noqa: F403
from tests.conformance.kernels.test_experts import *  # type: ignore[assignment]  # noqa: F403
from tests.conformance.kernels.test_gate import *  # noqa: F403
from tests.conformance.kernels.test_group_merge import *  # noqa: F403
from tests.conformance.kernels.test_linear import *  # noqa: F403
from tests.conformance.kernels.test_norm import *  # noqa: F403
from tests.conformance.kernels.test_rope import *  # noqa: F403
from tests.conformance.kernels.test_sampling import *  # noqa: F403

pytestmark = pytest.mark.slow  # a compiler, and an emulated device
