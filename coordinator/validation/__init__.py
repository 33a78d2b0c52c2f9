"""Requests from the wire, checked against the model before anything is queued or allocated.

Belongs here: making a GenerationRequest of a message (`requests`; its parts in `sampling` and `stopping`), checks that
several messages share (`fields`), and how large a call's work is (`call_size`). Each refusal is an InvalidInput that
names the field, what was expected and what came.

Does not belong here: rendering and encoding prompts (`colibri.coordinator.prompts`), and doing the work.
"""
