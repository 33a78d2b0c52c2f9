"""Packs: a model's weights in the layout that the kernels read, as a folder or behind a URL (docs/packs.md).

Belongs here: which blobs a pack has (`plan`) and its manifest (`manifest`); making one (`build`, over `weights`,
`scales` and `importances`; unfinished ones in `partial`); reading one (`pack`, over `blob` and `files`); and one that
lies elsewhere (`fetched`, over `remote_folder`, `http_folder` and `blob_cache`).

Does not belong here: reading the checkpoint that a pack is made of, and opening whichever of the two a location names
(`colibri.models`).
"""
