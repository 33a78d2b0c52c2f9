"""Show what options are set to, and where each value comes from.

A group of verbs; the mechanism is in `settings`, the file's format in `config_file`.
"""

from __future__ import annotations

from collections.abc import Mapping

from colibri.cli.verb import Verb

VERBS: Mapping[str, Verb] = {
    "show": Verb(
        "Show the options of a verb, or of all, with the source of each.", "colibri.cli.config_show"
    ),
}

ABOUT = """
Flags beat the environment (COLIBRI_ and the option's name, as COLIBRI_KV_PAGE), which beats the file of --config,
which beats the default. The file is YAML: keys are long options without their dashes, or MODEL as `model`; at the top
they hold for every verb that has them, in a section for that verb alone:

  model: /models/mixtral-8x7b
  workers: 4
  serve:
    listen: 127.0.0.1:50051
  bench:
    decode:
      batch: 8

Options that may be given again are YAML lists, or, in a variable, values with commas between; switches are true or
false. Unknown keys and unknown COLIBRI_ variables are errors that name the nearest match.

Three variables are no options: COLIBRI_HOME, the folder of the demo model and of caches (default ~/.cache/colibri);
COLIBRI_ISA, the instruction path of the CPU kernels (avx512bf16, avx512, avx2 or portable; default: the best here);
COLIBRI_CPU_LOCKS, the file by which workers of one host keep off one another's CPUs, or none (default:
/dev/shm/colibri-cpus).
"""
