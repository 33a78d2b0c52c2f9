"""The chaos driver: a seeded plan of kills, hangs, faults, moves and bad networks while the load harness asks
for answers, and the verdict over what came back.

Belongs here: what a plan is and when its events happen (`plan`, `plan_file`, `schedule`: pure), what makes
them happen (`processes`, `worker_faults`, `operator`, `network`), who starts the server (`serving`), the run
(`runner`), what was seen (`timeline`) and what it means (`verdict`, `picture`). Does not belong here: sending
requests and judging answers (colibri.bench.load), anything that a deployment needs when nobody breaks it.
"""
