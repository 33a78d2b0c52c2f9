"""When requests run and what goes into each step.

Belongs here: which requests wait and which run (`admission`), how many rows of each go into the next step
(`scheduler`, pure), how much prefill a step may take beside answers (`prefill_pace`), and room between steps for other
large work (`step_pauses`).

Does not belong here: a step's arrays (`colibri.coordinator.step_batch`), and computing it.
"""
