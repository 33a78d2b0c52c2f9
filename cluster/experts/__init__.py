"""Experts as the whole cluster sees them: which worker holds which one, and that all copies of one are alike.

Belongs here: holders by worker name, which plans are made of (`holders`), and the digest of each expert's weights, as
every worker must report it (`contents`). Both know experts and worker names only.

Does not belong here: deciding who should hold what (`colibri.cluster.placing`), and weights (`colibri.models`).
"""
