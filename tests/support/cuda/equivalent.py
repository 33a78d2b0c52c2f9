"""Mutations that no correct run can show, each with its reason."""

from __future__ import annotations

_STAGED = "the stage is copied once more, the same bytes to the same place, and waited for one step sooner"
_GUARDED = "one round more, all of whose work a condition inside it leaves out"
_EVERYTHING = "all candidates are kept either way; sorting them changes nothing"
_UNEQUAL = "the two are never equal"
_ZERO = "adds a zero that is none of the sum's"

#: (file, the place with what is mutated between « and », why)
_REASONS = (
    ("attention.cu", "d «<» head_dim; d += 16", _GUARDED),
    ("attention.cu", "first «<» share; first", _GUARDED),
    ("gate.cu", "if (expert «<» experts)", "sums of a column of padding, which nobody stores"),
    ("gate.cu", "step «<» 32", "no lane takes from 32 lanes below"),
    ("gate.cu", "first «<» buckets; first", _GUARDED),
    ("gate.cu", "if (bucket «<» buckets) offsets", "the last offset, which is written once more below"),
    ("gate.cu", "passes «<» 8", "buckets are at most 2^24"),
    (
        "gate.cu",
        "buckets «>» 1u",
        "one pass more, by a digit that is 0 everywhere: a stable sort changes nothing",
    ),
    ("gate.cu", "pass «<» passes; pass++", "one pass more, which writes to the array that is not the result"),
    ("gate.cu", "(count + threads« - 1»)", "runs a little longer; they cover the keys in the same order"),
    (
        "plain.cu",
        "i «<» PLAIN_K * 32",
        "the element behind is the rows' first, which this thread writes next",
    ),
    ("plain.cu", "float sum[4] = {0.f, 0.f, 0.f, 0.f}, inner«[4]»", "a size, not an index"),
    ("sample.cu", "«if (threadIdx.x) return;»\n  double target", "every thread finds and writes the same"),
    ("sample.cu", "key «>» best", _UNEQUAL),
    ("sample.cu", "+ step] «>» shared", "equal keys change places"),
    ("sample.cu", "first «<» count && !bad", _GUARDED),
    ("sample.cu", "e[i] «<» 0.f", _ZERO),
    ("sample.cu", "top_k «<» count", _EVERYTHING),
    ("sample.cu", "kept «<» count ||", _EVERYTHING),
    ("sample.cu", "top_p «<» 1.0;", _EVERYTHING),
    ("sample.cu", "top_p «<» 1.0)", "with all of the probability asked for, all candidates are kept"),
    ("sample.cu", "other «<=» i", _UNEQUAL),
    ("sample.cu", "a «<» b", "equal keys change places"),
    ("sample.cu", "a «>» b", "equal keys change places"),
    ("sample.cu", "i «<» kept", "the sum has reached what is needed before"),
    ("sample.cu", "i «<» count; i++) {\n    running", "the sum has passed the target before"),
    (
        "tensor.cuh",
        "«__syncthreads();»\n    if (threadIdx.x == 0) atomicAdd",
        "between blocks, which run in turn here",
    ),
    ("tensor.cuh", "«if (!up) continue;»", "counts parts of a tile that nobody waits for any more"),
    ("tensor.cuh", "row «<» live && at", "sums of a row of padding, which nobody stores"),
    ("tensor.cuh", "begin «<» end", "no steps either way"),
    ("tensor.cuh", "s «<» STAGES - 1", _STAGED),
    ("tensor.cuh", "STAGES« - 1»; s++", _STAGED),
    ("tensor.cuh", "32 * width * 4 «<=» STAGES", "checked when it is compiled"),
    ("tensor.cuh", "width = 8 * N« + 1»", "padding against bank conflicts"),
    ("tensor.cuh", "+ 31) / 32 + panels« - 1»", "a part more, all of it padding, which nobody stores"),
    ("tensor.cuh", "work.counters«[1]» = 1", "only where a wait gave up, which ends the emulation"),
    ("tensor.cuh", "segments «<» SEGMENTS; segments", _ZERO),
)


def reason_of(file: str, text: str, start: int, end: int) -> str:
    """Why a mutation of text[start:end] changes nothing that can be seen; empty: it does."""
    shown = f"{text[max(0, start - 90) : start]}«{text[start:end]}»{text[end : end + 90]}"
    return next((reason for name, place, reason in _REASONS if name == file and place in shown), "")
